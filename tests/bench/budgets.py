"""gpt on C at 21 budgets: planned and measured peak, losses and step time beside the default's.

    python -m tests.bench.budgets

Losses are of the first eight steps, and the difference is relative. Each plan that some budget
leads to is timed beside the default's, step by step in turn; the figure is the median ratio.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import tinyaot as ta
from tinyaot.compare import relative_difference
from tinyaot.models.gpt import gpt

STEPS, TIMED = 8, 60


def trained(budget: float | None) -> tuple[Callable[[int], Any], ta.Record, list[float]]:
    """A step by its number, its measured record, and the first losses."""
    training = gpt()
    compiled = ta.compile(training.step, backend="c", memory_budget=budget)
    record = compiled.explain(*training.batch(0))
    losses = [float(compiled(*training.batch(i)).item()) for i in range(STEPS)]
    record.measure(*training.batch(STEPS))
    return lambda number: compiled(*training.batch(number)), record, losses


def ratio(step: Callable[[int], Any], beside: Callable[[int], Any]) -> float:
    """Median ratio of their times, one after the other."""
    found = []
    for number in range(TIMED):
        seconds = []
        for run in (step, beside):
            start = time.perf_counter()
            run(number)
            seconds.append(time.perf_counter() - start)
        found.append(seconds[0] / seconds[1])
    return statistics.median(found)


def main() -> None:
    default, record, expected = trained(None)
    ratios = {record.memory["saved_bytes"]: 1.0}
    print(f"{'budget':8}{'saved':>12}{'extra FLOPs':>14}{'planned':>12}{'measured':>12}", end="")
    print(f"{'losses':>10}{'time':>7}")
    for budget in (None, *(i / 20 for i in range(21))):
        step, record, losses = trained(budget)
        saved = record.memory["saved_bytes"]
        if saved not in ratios:
            ratios[saved] = ratio(step, default)
        figures = (record.memory["planned_peak"], record.memory["measured_peak"])
        print(f"{budget!s:8}{saved:12,}{record.flops['recompute']:14,}", end="")
        print("".join(f"{x:12,}" for x in figures), end="")
        print(f"{relative_difference(losses, expected):10.1e}{ratios[saved]:7.2f}", flush=True)


if __name__ == "__main__":
    main()
