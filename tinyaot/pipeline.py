"""The pipeline: from a traced Program to a planned one, read top to bottom in `lower`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

import numpy as np

from tinyaot import passes
from tinyaot.cost import NUMPY_RATES, Rates
from tinyaot.errors import IndexingError, VerifyError
from tinyaot.interpret import interpret
from tinyaot.ir import Output, Program
from tinyaot.passes.partition import check_options
from tinyaot.record import Decision, Stage
from tinyaot.verify import verify

Loops: TypeAlias = dict[str, Any]  # the options of fuse


@dataclass(frozen=True)
class Options:
    """The keyword options of `compile`, checked."""

    backend: str = "auto"
    partition: Any = "min_cut"
    memory_budget: int | float | None = None
    time_slack: float = 0.05
    cost: Literal["time", "flops"] = "time"
    keep_grads: bool = False
    record: bool = True

    def check(self) -> None:
        """Raise ArgumentError or BudgetError for a wrong option."""
        check_options("compile", self.partition, self.memory_budget, self.cost, self.time_slack)


class Pipeline:
    """Runs passes one after another; everything that watches a compile hangs on `note`."""

    def __init__(self) -> None:
        self.stages: list[Stage] = []
        self.decisions: list[Decision] = []
        self.check = os.environ.get("TINYAOT_CHECK") == "1"

    def run(self, name: str, program: Program, **options: Any) -> Program:
        """Run the pass of that name."""
        return passes.run_pass(name, program, self.note, log=self.decisions, **options)

    def note(self, name: str, before: Program, after: Program, seconds: float) -> None:
        """After each pass: verify what it made, and record it."""
        verified = bool(self.stages) and self.stages[-1].program is before
        verify(after, before if verified else None)
        if self.check and before is not after:
            check_values(name, before, after)
        self.stages.append(Stage(name, after, seconds))


def lower(
    program: Program,
    options: Options,
    joint: bool,
    rates: Rates = NUMPY_RATES,
    loops: Loops | None = None,
    planned_peak: Callable[[Program], int] | None = None,
) -> tuple[Program, Pipeline]:
    """From a traced Program to a planned one. `loops`: the options of fuse, for a backend that
    prints loops; `planned_peak`: what a call of a fused program will take there, in bytes.

    What to look at: each stage is a Program that prints, parses back, verifies and runs.
    """
    tried: dict[int, Tried] = {}

    def peak_of(candidate: Program) -> int:
        """Lay out and fuse a candidate of partition; the one chosen is not fused again."""
        assert planned_peak is not None
        found = tried[id(candidate)] = Tried(candidate, loops or {})
        return planned_peak(found.fused)

    p = Pipeline()
    p.note("trace", program, program, 0.0)
    x = p.run("functionalize", program)
    x = p.run("autodiff", x, joint=joint)
    x = p.run("simplify", x)
    x = p.run(
        "partition",
        x,
        strategy=options.partition,
        memory_budget=options.memory_budget,
        cost=options.cost,
        time_slack=options.time_slack,
        rates=rates,
        peak_of=peak_of if planned_peak else None,
    )
    return place(x, p, loops, tried.get(id(x))), p


class Tried:
    """A candidate of partition laid out and fused, to see what it would take; not verified."""

    def __init__(self, program: Program, loops: Loops) -> None:
        self.stages: list[tuple[str, Program, Program, float]] = []
        self.decisions: list[Decision] = []
        x = passes.run_pass("layout", program, self.note, log=self.decisions)
        self.fused = passes.run_pass("fuse", x, self.note, log=self.decisions, **loops)

    def note(self, *stage: Any) -> None:
        self.stages.append(stage)


def place(x: Program, p: Pipeline, loops: Loops | None, tried: Tried | None = None) -> Program:
    """From a partitioned Program to a planned one; what was tried is not done again."""
    if tried:
        x, p.decisions = tried.fused, p.decisions + tried.decisions
        for stage in tried.stages:
            p.note(*stage)
    else:
        x = p.run("layout", x, loops=bool(loops))
        x = p.run("fuse", x, **(loops or {"machine": None}))
    x = p.run("schedule", x)
    return p.run("plan", x)


def loops_of(backend: Any) -> Loops | None:
    """The options of fuse for a backend that prints loops."""
    return cast(Loops, backend.loops()) if hasattr(backend, "loops") else None


def check_values(name: str, before: Program, after: Program) -> None:
    """TINYAOT_CHECK=1: a pass must not change what a program computes (on random inputs)."""
    rng = np.random.default_rng(0)
    given = {i.value.id: _random_input(i.value.type, rng) for i in after.inputs}

    def values(program: Program) -> list[tuple[Output, np.ndarray]]:
        found = interpret(program, *(given[i.value.id] for i in program.inputs))
        pairs = zip(program.outputs, found, strict=True)
        return [(o, a) for o, a in pairs if o.role in ("user", "mutated")]

    try:
        old = values(before)
    except IndexingError:  # 1 is no index into a single row: 0 is one wherever there is any
        given = {k: a if a.dtype.kind not in "iu" else a * 0 for k, a in given.items()}
        old = values(before)
    for (_, a), (output, b) in zip(old, values(after), strict=True):
        close = np.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)
        if a.shape != b.shape or a.dtype != b.dtype or not close:
            raise VerifyError(f"pass {name} changed the value of output {output.value}")


def _random_input(type_: Any, rng: np.random.Generator) -> np.ndarray:
    if type_.dtype.kind == "float":
        return np.asarray(rng.uniform(0.1, 1.0, type_.shape), type_.dtype.numpy)
    return np.asarray(rng.integers(0, 2, type_.shape), type_.dtype.numpy)
