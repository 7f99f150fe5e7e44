"""Memory in the terminal: the figures of a plan, and what is alive while a step runs, as bars.

A bar is the most that lives at one time in its part of the step: buffers of the arena, saved values
and outputs, by the record's own positions. Scratch that a kernel has while it runs is not in them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from .plot import bar
from .tables import table
from .units import bytes_text

MOST_BARS = 24
ALIVE = ("arena", "saved", "output")  # spaces of a step's own buffers
COLOURS = {"forward": "blue", "backward": "yellow", "update": "green"}


@dataclass(frozen=True)
class Position:
    """A node or a kernel of the step: what is alive at it, and whose it is."""

    alive: int
    phase: str
    line: str


def show_memory(out: Console, record: Any) -> None:
    """What the plan says, what was measured, and the bars."""
    known = {k: v for k, v in record.memory.items() if v is not None}
    most = max(known.values(), default=0) or 1
    rows = table("Memory, beyond parameters, state and batch", "", "bytes", "", numbers=(1,))
    for name, size in record.memory.items():
        label = name.replace("_", " ")
        rows.add_row(label, bytes_text(size), Text(bar((size or 0) / most), style="blue"))
    out.print(rows)
    _over_the_step(out, record)


def _over_the_step(out: Console, record: Any) -> None:
    found = positions(record)
    most = max((p.alive for p in found), default=0)
    if not most:
        return
    per = -(-len(found) // MOST_BARS)
    rows = table(
        f"Memory over the step: buffers alive, at most {bytes_text(most)}",
        *(f"{record.clock}s", "phase", "alive", "", "line at the highest"),
        numbers=(2,),
    )
    for start in range(0, len(found), per):
        part = found[start : start + per]
        top = max(part, key=lambda p: p.alive)
        phase = Counter(p.phase for p in part).most_common(1)[0][0]
        last = start + len(part) - 1
        rows.add_row(
            f"{start}-{last}" if last > start else f"{start}",
            phase,
            bytes_text(top.alive),
            Text(bar(top.alive / most, 40), style=COLOURS.get(phase, "blue")),
            top.line + ("  peak" if top.alive == most else ""),
        )
    out.print(rows)


def positions(record: Any) -> list[Position]:
    """Every position of the step in order, as the record's buffers count them."""
    program = record.stages[-1].program
    if record.clock == "kernel":
        made_by = program.computed
        nodes = [
            next((made_by[i] for i in k.members if i in made_by), None) for k in record.kernels
        ]
    else:
        nodes = list(program.nodes)
    change = [0] * (len(nodes) + 1)
    for b in record.buffers:
        if b.space in ALIVE and nodes:
            change[max(b.first, 0)] += b.nbytes
            change[min(b.last, len(nodes) - 1) + 1] -= b.nbytes
    alive, found = 0, []
    for node, c in zip(nodes, change):
        alive += c
        phase = (node.phase if node else None) or ""
        found.append(Position(alive, phase, str(node.loc) if node and node.loc else ""))
    return found
