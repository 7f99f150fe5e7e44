"""Two training runs side by side: live while they run, then as a report."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as Bars
from rich.text import Text

from .plot import curves
from .tables import table
from .units import DASH, bytes_text, count_text, seconds_text

if TYPE_CHECKING:
    from tinyaot.compare import Comparison, Run

REFRESH = 0.1  # seconds between two drawings: drawing is done between steps, never during one


class Progress:
    """A bar for each mode in a terminal; call it after every step. Silent in a pipe."""

    def __init__(self, out: Console, model: str) -> None:
        self.model = model
        self.bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}  {task.fields[speed]}"),
            console=out,
            auto_refresh=False,
            transient=True,
            disable=not out.is_terminal,
        )
        self.tasks: dict[str, TaskID] = {}
        self.drawn = 0.0

    def __enter__(self) -> Progress:
        self.bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.bars.stop()

    def __call__(self, mode: str, done: int, steps: int, loss: float, seconds: float) -> None:
        if self.bars.disable:
            return
        if mode not in self.tasks:
            name = f"{self.model} {mode}"
            self.tasks[mode] = self.bars.add_task(f"{name:14}", total=steps, loss="", speed="")
        now = time.monotonic()
        if now - self.drawn < REFRESH and done < steps:
            return
        self.drawn = now
        speed = f"{seconds_text(seconds)} a step"
        self.bars.update(self.tasks[mode], completed=done, loss=f"{loss:.4f}", speed=speed)
        self.bars.refresh()


def show(out: Console, result: Comparison) -> None:
    """The side-by-side report of one model."""
    a, b = result.eager, result.compiled
    rows = table(
        f"{a.model}: {a.steps} training steps", "", "eager", "compiled", "", numbers=(1, 2)
    )
    rows.add_row("computed by", a.backend, b.backend, "")
    rows.add_row("step time, median", *_pair(a, b, "step_seconds"), _speedup(result))
    rows.add_row("compile time", *_pair(a, b, "compile_seconds"), _paid_off(result))
    rows.add_row("peak memory, planned", *_pair(a, b, "planned_peak_bytes"), "")
    rows.add_row("peak memory, measured", *_pair(a, b, "measured_peak_bytes"), _memory(a, b))
    rows.add_row("saved for backward", *_pair(a, b, "saved_bytes"), "")
    for name in b.flops:
        rows.add_row(f"FLOPs, {name}", count_text(a.flops[name]), count_text(b.flops[name]), "")
    rows.add_row("kernels", _number(a.kernels), _number(b.kernels), "")
    rows.add_row("loss, last step", f"{a.losses[-1]:.5f}", f"{b.losses[-1]:.5f}", "")
    rows.add_row(result.accuracy_name, _percent(a.accuracy), _percent(b.accuracy), "")
    out.print(rows)
    out.print(Text(result.loss_name.capitalize(), style="bold"))
    for line in curves({"eager": a.losses, "compiled": b.losses}):
        out.print(line)
    first = min(50, a.steps)
    text = f"greatest relative difference of the losses: {_share(result.difference())}"
    if a.steps > first:
        text += f" ({_share(result.difference(first))} over the first {first} steps)"
    out.print(f"\n{text}")
    if not result.agrees:
        out.print(Text("the two modes did not train alike", style="bold red"))


def _pair(a: Run, b: Run, name: str) -> tuple[str, str]:
    text = seconds_text if name.endswith("seconds") else bytes_text
    return text(getattr(a, name)), text(getattr(b, name))


def _speedup(result: Comparison) -> str:
    ratio = result.speedup
    if ratio is None:
        return ""
    return f"{ratio:.2f}x faster" if ratio >= 1 else f"{1 / ratio:.2f}x slower"


def _paid_off(result: Comparison) -> str:
    steps = result.paid_off_after
    if result.compiled.step_seconds is None:
        return ""
    return "never paid for itself" if steps is None else f"paid for itself after {steps:,} steps"


def _memory(a: Run, b: Run) -> str:
    if not a.measured_peak_bytes or b.measured_peak_bytes is None:
        return ""
    return f"{b.measured_peak_bytes / a.measured_peak_bytes:.2f} of eager's"


def _share(x: float) -> str:
    return f"{x:.1e}" if x else "0"


def _number(n: int | None) -> str:
    return DASH if n is None else str(n)


def _percent(share: float | None) -> str:
    return DASH if share is None else f"{share:.1%}"
