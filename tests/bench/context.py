"""How the memory of a training step grows with a transformer's context.

    python -m tests.bench.context [T ...]

Plans the step of a block with causal attention (one sequence, 128 wide, 4 heads, AdamW) on C for
contexts of 512 to 4096 tokens, and prints what it takes beyond parameters, optimizer state and
batch, in all and for each token, and the largest value that has memory. Scores of all pairs of
tokens would grow fourfold where the context doubles. Nothing is compiled by a compiler or run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import tinyaot as ta
from tinyaot import nn
from tinyaot.backends import cpu
from tinyaot.capture import capture
from tinyaot.nn import functional as F
from tinyaot.pipeline import Options, lower

CONTEXTS = (512, 1024, 2048, 4096)
WIDTH, HEADS, VOCABULARY = 128, 4, 256


class Block(nn.Module):
    """Attention and a feedforward net, each behind a norm and beside a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: ta.Tensor) -> ta.Tensor:
        length = x.shape[0]
        heads = self.qkv(self.norm1(x)).reshape(length, 3, HEADS, WIDTH // HEADS)
        q, k, v = heads.permute(1, 2, 0, 3).unbind(0)
        read = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(read.transpose(0, 1).reshape(length, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def step_of(context: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The training step of one block between an embedding and a head, and its batch."""
    ta.manual_seed(0)
    net = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), Block(), nn.Linear(WIDTH, VOCABULARY))
    optimizer = ta.optim.AdamW(net.parameters(), lr=1e-3)

    def step(ids: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(ids), y)
        loss.backward()
        optimizer.step()
        return loss

    return step, tuple(ta.randint(0, VOCABULARY, (context,)) for _ in range(2))


@dataclass(frozen=True)
class Row:
    """Planned bytes of a step, and of its largest value in memory."""

    context: int
    peak: int
    largest: int


def planned(context: int, threads: int = 2) -> Row:
    """What the step takes on C with so many threads."""
    step, batch = step_of(context)
    loops = {**cpu.loops(), "threads": threads}
    program, _ = lower(capture(step, batch, {}).program, Options(), False, cpu.rates(), loops)
    made = cpu.compile_program(program, threads)
    plan = made.entries["step"].plan
    homes = plan.storage.homes
    largest = max(op.type.nbytes for op in homes if homes[op].space in ("arena", "output"))
    return Row(context, made.memory["planned_peak"], largest)


def main(contexts: Iterable[int]) -> None:
    print(f"{'context':>8} {'planned peak':>13} {'a token':>8} {'largest value':>14} {'pairs':>10}")
    for context in contexts:
        row = planned(context)
        pairs = 4 * HEADS * context**2
        print(
            f"{row.context:8} {row.peak / 1e6:10.2f} MB {row.peak / context / 1e3:5.1f} kB "
            f"{row.largest / 1e6:11.2f} MB {pairs / 1e6:7.1f} MB",
            flush=True,
        )


if __name__ == "__main__":
    main([int(x) for x in sys.argv[1:]] or CONTEXTS)
