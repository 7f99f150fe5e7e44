"""A Record as tables in the terminal: by stage, phase, kernel and value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.text import Text

from tinyaot.cost import Cost, node_cost

from .kernels import show_kernels, show_values, source_lines
from .memory import show_memory
from .plot import scatter
from .tables import MOST_ROWS, and_more, console, table
from .units import bytes_text, count_text, seconds_text

__all__ = ["console", "show_checks", "show_record", "table"]


def show_record(out: Console, record: Any) -> None:
    """Everything that the record knows, from the whole call down to single values."""
    _calls(out, record)
    _stages(out, record)
    show_memory(out, record)
    _flops(out, record)
    show_kernels(out, record)
    show_values(out, record)
    _saved(out, record)
    _recomputed(out, record)
    _partitions(out, record)


def _calls(out: Console, record: Any) -> None:
    """Eager beside compiled, where they were measured."""
    times, memory = record.times, record.memory
    if not times and memory.get("measured_peak") is None:
        return
    rows = table("One call, measured", "", "eager", record.backend, "", numbers=(1, 2))
    if times:
        a, b = times["eager"], times["compiled"]
        ratio = f"{a / b:.2f}x faster" if a >= b else f"{b / a:.2f}x slower"
        rows.add_row("time, median", seconds_text(a), seconds_text(b), ratio)
        if "overhead" in times:
            rows.add_row("of a call besides its step", "-", seconds_text(times["overhead"]), "")
    a, b = memory.get("eager_peak"), memory.get("measured_peak")
    share = f"{b / a:.2f} of eager's" if a and b is not None else ""
    rows.add_row("peak memory", bytes_text(a), bytes_text(b), share)
    rows.add_row("peak memory, planned", "-", bytes_text(memory["planned_peak"]), "")
    out.print(rows)


def _stages(out: Console, record: Any) -> None:
    stages = table(
        f"Stages of {record.name}, for the backend {record.backend}",
        *("stage", "ops", "new", "gone", "FLOPs", "bytes moved", "time"),
        numbers=(1, 2, 3, 4, 5, 6),
    )
    before: set[int] = set()
    for i, stage in enumerate(record.stages):
        made = {r.id for n in stage.program.all_nodes for r in n.results}
        new, gone = len(made - before), len(before - made)
        changes = (f"+{new}" if new and i else "", f"-{gone}" if gone else "")
        ops, cost = _count(stage.program), _cost(stage, record.kernels)
        moved = count_text(cost.flops), bytes_text(cost.bytes)
        stages.add_row(stage.name, ops, *changes, *moved, seconds_text(stage.seconds))
        before = made
    out.print(stages)


def _count(program: Any) -> str:
    """Ops, and how many regions they are in."""
    regions = f" in {len(program.nodes)}" if program.is_fused else ""
    return f"{len(program.computed) or len(program.nodes)}{regions}"


def _cost(stage: Any, kernels: Any) -> Cost:
    """Every op on its own; of the emitted code, kernels, between which alone bytes move."""
    if stage.name == "emit" and kernels:
        return Cost(sum(k.flops for k in kernels), sum(k.bytes for k in kernels))
    return sum((node_cost(n) for n in stage.program.nodes), Cost())


def _flops(out: Console, record: Any) -> None:
    flops = dict(record.flops)
    total = sum(flops.values()) or 1
    rows = table("FLOPs of a call", "", "FLOPs", "share", numbers=(1, 2))
    for name, n in flops.items():
        rows.add_row(name, count_text(n), f"{n / total:.0%}")
    out.print(rows)


def _saved(out: Console, record: Any) -> None:
    lines = source_lines(record)
    rows = table(
        f"Saved from forward to backward: {bytes_text(sum(s.bytes for s in record.saved))}",
        *("value", "type", "bytes", "line", "to recompute", "why"),
        numbers=(2, 4),
    )
    for s in sorted(record.saved, key=lambda s: (-s.bytes, s.id))[:MOST_ROWS]:
        again = seconds_text(s.cost_to_recompute)
        rows.add_row(f"%{s.id}", str(s.type), bytes_text(s.bytes), lines.get(s.id), again, s.reason)
    and_more(rows, len(record.saved))
    out.print(rows)


def _recomputed(out: Console, record: Any) -> None:
    if not record.recomputed:
        return
    lines = source_lines(record)
    columns = ("value", "FLOPs", "time", "line", "to save", "would spare", "why")
    rows = table("Recomputed in backward", *columns, numbers=(1, 2, 4, 5))
    for r in sorted(record.recomputed, key=lambda r: (-r.flops, r.id))[:MOST_ROWS]:
        cost = (count_text(r.flops), seconds_text(r.seconds))
        flip = (bytes_text(r.bytes_to_save), seconds_text(r.seconds_to_save))
        rows.add_row(f"%{r.id}", *cost, lines.get(r.id), *flip, r.reason)
    and_more(rows, len(record.recomputed))
    out.print(rows)


def _partitions(out: Console, record: Any) -> None:
    """The Pareto front: what less memory would cost in time."""
    if not record.pareto:
        return
    columns = ("way", "saved", "planned peak", "extra FLOPs", "extra time", "")
    rows = table("Ways to split forward from backward", *columns, numbers=(1, 2, 3, 4))
    planned = [p for p in record.pareto if p.planned_peak is not None]
    for p in record.pareto:
        bound = "" if p.is_exact or p.planned_peak is None else "<= "
        peak = bound + bytes_text(p.planned_peak)
        sizes = (bytes_text(p.saved_bytes), peak)
        extra = (count_text(p.extra_flops), seconds_text(p.extra_seconds))
        note = "chosen" if p.chosen else "" if _on_front(p, planned) else "beaten by another"
        rows.add_row(p.name, *sizes, *extra, note)
    out.print(rows)
    _plot(out, planned)


def _plot(out: Console, points: Iterable[Any]) -> None:
    """Planned peaks over the time that they cost, one mark a way."""
    marks = [(p.extra_seconds * 1e6, p.planned_peak / 1024, p.chosen) for p in points]
    if len({m[:2] for m in marks}) > 2:
        out.print("Planned peak (KiB) over extra time (us)", style="bold")
        for line in scatter(marks):
            out.print(line)
        out.print()


def _on_front(point: Any, points: Iterable[Any]) -> bool:
    """Whether no other point is as small and as quick, and better in one of the two (one without a
    planned peak is beaten by none)."""
    if point.planned_peak is None:
        return True
    here = point.planned_peak, point.extra_seconds
    others = ((p.planned_peak, p.extra_seconds) for p in points)
    return not any(o[0] <= here[0] and o[1] <= here[1] and o != here for o in others)


def show_checks(out: Console, checks: Iterable[Any]) -> None:
    """The doctor's findings."""
    rows = table("What works here", "", "", "found", "for", "without it")
    for c in checks:
        sign = Text("ok", style="green") if c.found else Text("no", style="yellow")
        rows.add_row(c.name, sign, c.found or "-", c.use, "" if c.found else c.otherwise)
    out.print(rows)
