"""The main job: train the same model eager and compiled, and measure both.

Both runs start from the same seed, so from the same parameters, batches and random numbers; what
may differ is time, memory and rounding. Every figure is measured here except `planned_peak_bytes`,
`saved_bytes` and `flops`, which are the plan's and say so.
"""

from __future__ import annotations

import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import tinyaot as ta
from tinyaot.models import BUILTIN, Training
from tinyaot.record import Record

SEED = 0
AGREE_STEPS, AGREE = 50, 1e-3  # losses of the first steps may differ by this share, not more
FLOPS = ("forward", "backward", "recompute", "update")

# (mode, steps done, steps, loss, seconds of the step)
OnStep = Callable[[str, int, int, float, float], None]


@dataclass
class Run:
    """One training run. Seconds and bytes; None where a figure does not apply.

    step_seconds:    median over all steps but the first.
    compile_seconds: from the first call, with an empty cache, to the end of the first step.
    """

    model: str
    mode: str
    backend: str
    steps: int
    losses: list[float] = field(default_factory=list)
    step_seconds: float | None = None
    compile_seconds: float | None = None
    planned_peak_bytes: int | None = None
    measured_peak_bytes: int | None = None
    saved_bytes: int | None = None
    flops: dict[str, float | None] = field(default_factory=lambda: dict.fromkeys(FLOPS))
    kernels: int | None = None
    accuracy: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """The run as JSON data: losses that are not finite are None."""
        losses = [x if math.isfinite(x) else None for x in self.losses]
        return asdict(self) | {"losses": losses}


@dataclass(frozen=True)
class Comparison:
    """A model's two runs and the compiled one's record, and what its loss and accuracy are."""

    eager: Run
    compiled: Run
    record: Record
    loss_name: str = "loss"
    accuracy_name: str = "test accuracy"

    @property
    def speedup(self) -> float | None:
        """Eager step time over compiled step time."""
        a, b = self.eager.step_seconds, self.compiled.step_seconds
        return a / b if a and b else None

    @property
    def paid_off_after(self) -> int | None:
        """The number of steps from which on compiling has cost less time than it saved; None if
        that never comes."""
        a, b, c = self.eager.step_seconds, self.compiled.step_seconds, self.compiled.compile_seconds
        if not (a and b and c) or a <= b:
            return None
        return max(1, math.ceil((c - b) / (a - b)))

    def difference(self, steps: int | None = None) -> float:
        """The greatest relative difference of the losses, over the first `steps` or all."""
        return relative_difference(self.eager.losses[:steps], self.compiled.losses[:steps])

    @property
    def agrees(self) -> bool:
        """Whether both modes trained alike, as far as rounding lets one say."""
        return self.difference(AGREE_STEPS) <= AGREE


def relative_difference(a: Sequence[float], b: Sequence[float]) -> float:
    """max |a - b| / max(|a|, |b|); infinite if one is finite where the other is not."""
    worst = 0.0
    for x, y in zip(a, b, strict=True):
        if math.isfinite(x) and math.isfinite(y):
            worst = max(worst, abs(x - y) / (max(abs(x), abs(y)) or 1.0))
        elif repr(x) != repr(y):
            return math.inf
    return worst


def compare(
    model: str,
    *,
    steps: int | None = None,
    backend: str = "auto",
    budget: int | float | None = None,
    on_step: OnStep = lambda *_: None,
) -> Comparison:
    """Train a built-in model both ways. Raises what `ta.compile` raises for its options."""
    build = BUILTIN[model]

    training = build(SEED)
    steps = training.steps if steps is None else steps
    eager = Run(model, "eager", "numpy", steps)
    seconds = _train(training, training.step, eager, on_step)
    eager.step_seconds = statistics.median(seconds[1:] or seconds)
    eager.accuracy = training.accuracy()

    training = build(SEED)
    compiled = Run(model, "compiled", backend, steps)
    step = ta.compile(training.step, backend=backend, memory_budget=budget)
    with _empty_cache():
        seconds = _train(training, step, compiled, on_step)
    compiled.compile_seconds = seconds[0]
    compiled.step_seconds = statistics.median(seconds[1:]) if steps > 1 else None
    compiled.accuracy = training.accuracy()

    record = step.records[-1]
    record.measure(*training.batch(steps))  # trains on for untimed steps, so it comes last
    eager.measured_peak_bytes = record.memory["eager_peak"]
    compiled.backend = record.backend
    compiled.planned_peak_bytes = record.memory["planned_peak"]
    compiled.measured_peak_bytes = record.memory["measured_peak"]
    compiled.saved_bytes = record.memory["saved_bytes"]
    compiled.flops = {name: record.flops[name] for name in FLOPS}
    compiled.kernels = len(record.kernels)
    return Comparison(eager, compiled, record, training.loss_name, training.accuracy_name)


def _train(training: Training, step: Callable[..., Any], run: Run, on_step: OnStep) -> list[float]:
    """Take the run's steps, filling its losses; the seconds of each."""
    seconds = []
    for number in range(run.steps):
        batch = training.batch(number)
        start = time.perf_counter()
        loss = step(*batch)
        seconds.append(time.perf_counter() - start)
        run.losses.append(float(loss.item()))
        on_step(run.mode, number + 1, run.steps, run.losses[-1], seconds[-1])
    return seconds


@contextmanager
def _empty_cache() -> Iterator[None]:
    """An empty compile cache for a while, so that the compile time is that of a first call."""
    before = os.environ.get("TINYAOT_CACHE")
    with tempfile.TemporaryDirectory(prefix="tinyaot-") as folder:
        os.environ["TINYAOT_CACHE"] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ["TINYAOT_CACHE"]
            else:
                os.environ["TINYAOT_CACHE"] = before
