"""Our partitioner beside torch's on the same two models.

    BENCH_ENVS=~/.cache/tinyaot-bench python -m tests.bench.partitioners

torch runs in its own process (in `torchcpu` below BENCH_ENVS, or else in the Python that runs
this). Budgets are shares of what torch saves at 1.0, non-input bytes counted once a storage. Our
partitioner gets torch's own joint graph, with the same bytes and FLOPs, and is asked for the least
FLOPs within that many bytes, and again within those that torch's answer took. Masks: torch's are
looked at where it runs; ours on our own graph of the same model, with the budget as a share of what
that saves, bit for bit beside eager mode.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

import tinyaot as ta
from tests.bench.hull import Graph
from tests.bench.partition_models import BUDGETS, MODELS, batch_of, loss_of
from tinyaot import nn
from tinyaot.nn import functional as F
from tinyaot.passes.exact import least_price
from tinyaot.passes.frontier import Frontier

HERE = Path(__file__).resolve().parent


def torch_answers() -> dict[str, Any]:
    envs = Path(os.environ.get("BENCH_ENVS", Path.home() / ".cache/tinyaot-bench"))
    python = envs / "torchcpu" / "bin" / "python"
    command = [str(python if python.exists() else sys.executable), "-W", "ignore"]
    done = subprocess.run(
        [*command, str(HERE / "peers/torch_partition.py")], capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"torch's side failed:\n{done.stderr[-1500:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def arrays(name: str) -> tuple[Any, ...]:
    made: list[Any] = []
    for kind, shape, classes in batch_of(name):
        if kind == "classes":
            made.append(ta.randint(0, classes, shape))
        elif kind == "normal":
            made.append(ta.randn(*shape))
        else:
            made.append(ta.tensor(np.triu(np.full(shape, -1e9, np.float32), 1)))
    return tuple(made)


def masks_are_right(name: str, budget: float) -> bool:
    """Whether loss and gradients of the compiled model are eager's under the same seed."""
    ta.manual_seed(0)
    net = MODELS[name](nn, F)
    loss, batch = loss_of(name, net, F), arrays(name)
    fast = ta.compile(loss, backend="numpy", cost="flops", memory_budget=budget)
    results = []
    for run in (fast, loss):
        for p in net.parameters():
            p.grad = None
        ta.manual_seed(2)
        value = run(*batch)
        value.backward()
        results.append([value.numpy(), *(p.grad.numpy().copy() for p in net.parameters())])
    return all(np.allclose(a, b, rtol=1e-5, atol=1e-7) for a, b in zip(*results, strict=True))


def graph_of(answer: dict[str, Any]) -> tuple[Graph, dict[str, int]]:
    """torch's joint graph as ours, and its storages' numbers."""
    rows = answer["graph"]["rows"]
    number = {name: at for at, name in enumerate(rows)}
    needs = {number[name]: [number[x] for x in row[2]] for name, row in rows.items()}
    read = {number[name] for name in answer["graph"]["read"]}
    wanted, stack = set(), list(read)
    while stack:
        v = stack.pop()
        if v not in wanted:
            wanted.add(v)
            stack += needs[v]
    sizes = {number[name]: row[0] for name, row in rows.items()}
    prices = {number[name]: row[1] for name, row in rows.items()}
    kept = {v: needs[v] for v in sorted(wanted)}
    return Graph(kept, read, sizes, prices), number


def main() -> None:
    theirs = torch_answers()
    print(f"torch {theirs['torch']}, NumPy {np.__version__}, {platform.processor()}")
    head = ("", "torch: bytes", "FLOPs", "kept", "masks", "ours: bytes", "FLOPs", "kept", "masks")
    head += ("gap", "ours at torch's bytes")
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    for name in MODELS:
        graph, number = graph_of(theirs[name])
        frontier = Frontier(graph)  # type: ignore[arg-type]
        answers = theirs[name]["budgets"]
        full = graph.choice(number[x] for x in answers["1.0"]["saved"]).bytes
        for budget in (1.0, *BUDGETS, 0.0):
            row, limit = answers[str(budget)], int(budget * full)
            torchs = graph.choice(number[x] for x in row["saved"])
            best, same = least_price(frontier, limit), least_price(frontier, torchs.bytes)
            assert best is not None and same is not None
            cells = [f"{name} {budget}", f"{torchs.bytes:,}", f"{torchs.price:,}"]
            cells += [_yes(torchs.bytes <= limit), _yes(row["masks"])]
            cells += [f"{best.choice.bytes:,}", f"{best.choice.price:,}"]
            cells += [_yes(best.choice.bytes <= limit), _yes(masks_are_right(name, budget))]
            cells += [str(best.gap), f"{same.choice.price:,}"]
            print("| " + " | ".join(cells) + " |")


def _yes(x: bool) -> str:
    return "yes" if x else "**no**"


if __name__ == "__main__":
    main()
