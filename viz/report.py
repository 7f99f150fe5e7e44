"""Records and checks as tables in the terminal, coloured only where colour is wanted.

Rich takes care of pipes, of NO_COLOR and of the width. Nothing here parses markup, since source
lines and names of a user's program are full of brackets.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .plot import bar
from .units import bytes_text, count_text, seconds_text

MOST_ROWS = 20
PIPE_WIDTH = 110  # characters, where no terminal says


class _Stdout(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # the command decides what that means


def console() -> Console:
    """Where reports go: stdout."""
    out = _Stdout(highlight=False, markup=False, emoji=False)
    if not out.is_terminal and "COLUMNS" not in os.environ:
        out.width = PIPE_WIDTH
    return out


def table(title: str, *columns: str, numbers: Iterable[int] = ()) -> Table:
    """An empty table; the columns at `numbers` are right aligned."""
    made = Table(title=Text(title, style="bold"), title_justify="left", box=SIMPLE, pad_edge=False)
    for i, name in enumerate(columns):
        made.add_column(name, justify="right" if i in set(numbers) else "left", overflow="fold")
    return made


def show_record(out: Console, record: Any) -> None:
    """Stages, memory, FLOPs, kernels, and what is saved and recomputed and why."""
    _stages(out, record)
    _memory(out, record)
    _flops(out, record)
    _kernels(out, record)
    _saved(out, record)
    _recomputed(out, record)
    _partitions(out, record)


def _stages(out: Console, record: Any) -> None:
    stages = table("Stages", "stage", "ops", "new", "gone", "time", numbers=(1, 2, 3, 4))
    before: set[int] = set()
    for i, stage in enumerate(record.stages):
        made = {r.id for n in stage.program.nodes for r in n.results}
        new, gone = len(made - before), len(before - made)
        changes = (f"+{new}" if new and i else "", f"-{gone}" if gone else "")
        ops = str(len(stage.program.nodes))
        stages.add_row(stage.name, ops, *changes, seconds_text(stage.seconds))
        before = made
    out.print(stages)


def _memory(out: Console, record: Any) -> None:
    memory = dict(record.memory)
    known = {k: v for k, v in memory.items() if v is not None}
    most = max(known.values(), default=0) or 1
    rows = table("Memory, beyond parameters, state and batch", "", "bytes", "", numbers=(1,))
    for name, size in memory.items():
        label = name.replace("_", " ")
        rows.add_row(label, bytes_text(size), Text(bar((size or 0) / most), style="blue"))
    out.print(rows)


def _flops(out: Console, record: Any) -> None:
    flops = dict(record.flops)
    total = sum(flops.values()) or 1
    rows = table("FLOPs of a call", "", "FLOPs", "share", numbers=(1, 2))
    for name, n in flops.items():
        rows.add_row(name, count_text(n), f"{n / total:.0%}")
    out.print(rows)


def _kernels(out: Console, record: Any) -> None:
    if not record.kernels:
        return
    rows = table("Kernels", "kernel", "ops", "bytes", "FLOPs", numbers=(1, 2, 3))
    for k in record.kernels[:MOST_ROWS]:
        rows.add_row(k.name, str(len(k.members)), bytes_text(k.bytes), count_text(k.flops))
    _and_more(rows, len(record.kernels))
    out.print(rows)


def _saved(out: Console, record: Any) -> None:
    lines = _source_lines(record)
    rows = table(
        f"Saved from forward to backward: {bytes_text(sum(s.bytes for s in record.saved))}",
        *("value", "type", "bytes", "line", "to recompute", "why"),
        numbers=(2, 4),
    )
    for s in sorted(record.saved, key=lambda s: (-s.bytes, s.id))[:MOST_ROWS]:
        again = seconds_text(s.cost_to_recompute)
        rows.add_row(f"%{s.id}", str(s.type), bytes_text(s.bytes), lines.get(s.id), again, s.reason)
    _and_more(rows, len(record.saved))
    out.print(rows)


def _recomputed(out: Console, record: Any) -> None:
    if not record.recomputed:
        return
    lines = _source_lines(record)
    rows = table("Recomputed in backward", "value", "FLOPs", "time", "line", "why", numbers=(1, 2))
    for r in sorted(record.recomputed, key=lambda r: (-r.flops, r.id))[:MOST_ROWS]:
        cost = (count_text(r.flops), seconds_text(r.seconds))
        rows.add_row(f"%{r.id}", *cost, lines.get(r.id), r.reason)
    _and_more(rows, len(record.recomputed))
    out.print(rows)


def _partitions(out: Console, record: Any) -> None:
    if not record.pareto:
        return
    columns = ("way", "saved", "planned peak", "extra FLOPs", "extra time", "")
    rows = table("Ways to split forward from backward", *columns, numbers=(1, 2, 3, 4))
    for p in record.pareto:
        sizes = (bytes_text(p.saved_bytes), bytes_text(p.planned_peak))
        extra = (count_text(p.extra_flops), seconds_text(p.extra_seconds))
        rows.add_row(p.name, *sizes, *extra, "chosen" if p.chosen else "")
    out.print(rows)


def _source_lines(record: Any) -> dict[int, str]:
    """The user's line of every value, of any stage."""
    nodes = (n for stage in record.stages for n in stage.program.nodes if n.loc)
    return {r.id: str(n.loc) for n in nodes for r in n.results}


def _and_more(rows: Table, total: int) -> None:
    if total > MOST_ROWS:
        rows.add_row(f"... {total - MOST_ROWS} more")


def show_checks(out: Console, checks: Iterable[Any]) -> None:
    """The doctor's findings."""
    rows = table("What works here", "", "", "found", "for", "without it")
    for c in checks:
        sign = Text("ok", style="green") if c.found else Text("no", style="yellow")
        rows.add_row(c.name, sign, c.found or "-", c.use, "" if c.found else c.otherwise)
    out.print(rows)
