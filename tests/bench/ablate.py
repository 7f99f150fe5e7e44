"""What each pass buys: the built-in steps compiled for NumPy with one pass off at a time.

    python -m tests.bench.ablate

A pass that can be left out is left out; the plan, without which nothing runs, loses its reuse of
memory instead (every value gets bytes of its own). Printed: nodes, planned peak, saved bytes, and
the time of a step beside that of the full pipeline, timed in turn.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import tinyaot as ta
import tinyaot.nn.functional as F
from tinyaot import nn, passes
from tinyaot.backends.numpy import Executable
from tinyaot.capture import capture
from tinyaot.ir import Program
from tinyaot.memory import buffers_of, planned_peak

ROUNDS, CALLS = 15, 3


def mlp() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    net = nn.Sequential(
        nn.Linear(64, 256), nn.LayerNorm(256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 10)
    )
    opt = ta.optim.AdamW(net.parameters(), lr=1e-3)

    def step(x: Any, y: Any) -> Any:
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        return loss

    return step, (ta.randn(128, 64), ta.randint(0, 10, (128,)))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        b, t, d = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(b, t, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def transformer() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    net = nn.Sequential(nn.Embedding(64, 64), Block(64, 4), Block(64, 4), nn.Linear(64, 64))
    opt = ta.optim.AdamW(net.parameters(), lr=1e-3)

    def step(ids: Any, y: Any) -> Any:
        opt.zero_grad()
        loss = F.cross_entropy(net(ids).reshape(-1, 64), y.reshape(-1))
        loss.backward()
        opt.step()
        return loss

    return step, (ta.randint(0, 64, (8, 64)), ta.randint(0, 64, (8, 64)))


def branches() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Independent branches without a backward, in whose order a schedule has a choice."""
    weights = [ta.randn(256, 256) for _ in range(6)]

    def step(x: Any) -> Any:
        products = [x @ w for w in weights]
        return sum((p * p).sum(dim=1) for p in products)

    return step, (ta.randn(64, 256),)


Pass = Callable[[Program], Program]
FULL: dict[str, Pass] = {
    "functionalize": passes.functionalize,
    "autodiff": lambda p: passes.differentiate(p, joint=False),
    "simplify": passes.simplify,
    "partition": passes.partition,
    "schedule": passes.schedule,
    "plan": passes.plan,
}


def relabel(stage: str) -> Pass:
    return lambda p: p.replace(stage=stage)


def without() -> dict[str, dict[str, Pass]]:
    """The pipelines, by what is off."""
    variants = {"nothing": FULL}
    variants["simplify"] = {**FULL, "simplify": relabel("simplify")}
    for rule in ("cse", "dce", "fold", "algebra", "casts", "views", "pieces"):
        rules = {"cse", "dce", "fold", "algebra", "casts", "views", "pieces"} - {rule}
        variants[f"simplify: {rule}"] = {
            **FULL,
            "simplify": lambda p, rules=rules: passes.simplify(p, rules=sorted(rules)),
        }
    save_all: Pass = lambda p: passes.partition(p, strategy="save_all")  # noqa: E731
    variants["partition (saves all)"] = {**FULL, "partition": save_all}
    variants["schedule"] = {**FULL, "schedule": relabel("schedule")}
    return variants


def main() -> None:
    for name, build in (("mlp", mlp), ("transformer", transformer), ("branches", branches)):
        ta.manual_seed(0)
        step, batch = build()
        captured = capture(step, batch, {})
        arrays = [
            np.array(x.source._data)
            if isinstance(x.source, ta.Tensor)
            else np.array(getattr(*x.source), x.value.type.dtype.numpy)
            for x in captured.inputs
        ]
        print(f"\n{name}\n{'off':24} {'nodes':>6} {'planned peak':>13} {'step':>8}")
        runs: dict[str, tuple[Executable, Program]] = {}
        for off, pipeline in without().items():
            program = captured.program
            for run in pipeline.values():
                program = run(program)
            runs[off] = Executable(program), program
        seconds: dict[str, list[float]] = {off: [] for off in runs}
        for _ in range(ROUNDS):
            for off, (executable, _) in runs.items():
                began = time.perf_counter()
                for _ in range(CALLS):
                    executable.run("step", arrays)
                seconds[off].append((time.perf_counter() - began) / CALLS)
        base = statistics.median(seconds["nothing"])
        for off, (_, program) in runs.items():
            ratio = statistics.median(seconds[off]) / base
            peak = planned_peak(program)
            print(f"{off:24} {len(program.nodes):6} {peak:13,} {ratio:7.2f}x")
        _, program = runs["nothing"]
        beside = planned_peak(program) - (program.plan.arena if program.plan else 0)
        apart = beside + sum(p.nbytes for p in buffers_of(program, "arena").values())
        own = beside + sum(
            n.result.type.nbytes
            for n in program.nodes
            if program.plan is not None
            and program.plan.places[n.result.id].space == "arena"
            and ta.ops.TABLE[n.op].kind != "view"
        )
        print(f"{'plan: offsets not reused':24} {len(program.nodes):6} {apart:13,}       -")
        print(f"{'plan: no value in place':24} {len(program.nodes):6} {own:13,}       -")


if __name__ == "__main__":
    main()
