"""The chain of the lesson on rematerialization, three ways, planned and measured.

    python -m tests.bench.chain

x -> matmul -> gelu -> dropout -> matmul -> norm -> loss, as a training step: everything saved,
everything computed again, and the minimum cut, which saves the matmul outputs and computes gelu and
dropout again. Where ops are fused (C), a value computed again never has memory; where each op is a
call (NumPy), it has it while it is used, and so a smaller cut may well take a larger peak.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tinyaot as ta
from tests.agree import BACKENDS
from tinyaot import nn
from tinyaot.nn import functional as F

ROWS, WIDTH, HIDDEN = 256, 64, 256
WAYS = ("save_all", "recompute_all", "min_cut")


def chain() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The training step, and its batch."""
    ta.manual_seed(0)
    up, down, norm = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH), nn.LayerNorm(WIDTH)
    optimizer = ta.optim.SGD([p for m in (up, down, norm) for p in m.parameters()], lr=0.1)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        product = up(x)
        active = F.gelu(product)
        dropped = F.dropout(active, 0.1)
        second = down(dropped)
        loss = F.mse_loss(norm(second), y)
        loss.backward()
        optimizer.step()
        return loss

    return step, (ta.randn(ROWS, WIDTH), ta.randn(ROWS, WIDTH))


def main() -> None:
    columns = ("saved", "extra FLOPs", "planned peak", "measured peak", "eager's")
    for backend in BACKENDS:
        print(f"\n{backend:14}" + "".join(f"{c:>15}" for c in columns))
        for way in WAYS:
            step, batch = chain()
            record = ta.compile(step, backend=backend, partition=way).explain(*batch)
            record.measure(*batch)
            peaks = (record.memory[k] for k in ("planned_peak", "measured_peak", "eager_peak"))
            figures = (record.memory["saved_bytes"], record.flops["recompute"], *peaks)
            print(f"{way:14}" + "".join(f"{x:15,}" for x in figures))
        lines = {
            id_: node.loc.source
            for id_, node in record.program("simplify").producers.items()
            if node.loc is not None
        }
        for kind, ids in (("saves", record.saved), ("computes again", record.recomputed)):
            told = dict.fromkeys(lines.get(x.id, "") for x in ids)
            print(f"  min_cut {kind}: " + "; ".join(told))


if __name__ == "__main__":
    main()
