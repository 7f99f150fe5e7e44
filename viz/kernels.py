"""Kernels and values in the terminal: what each computes and costs, and where it lives."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rich.console import Console

from tinyaot.cost import node_cost

from .tables import MOST_ROWS, and_more, table
from .units import bytes_text, count_text, seconds_text

MOST_NAMES = 4  # of ops, in one cell
MOST_LINES = 2


def show_kernels(out: Console, record: Any) -> None:
    """The kernels that take longest: as measured, or as the cost model expects."""
    kernels = record.kernels
    if not kernels:
        return
    measured = all(k.seconds is not None for k in kernels)

    def seconds(k: Any) -> float:
        return (k.seconds if measured else k.expected_seconds) or 0.0

    total = sum(map(seconds, kernels)) or 1.0
    kept = {d.choice: d.numbers["kept inside"] for d in _fusions(record) if d.numbers}
    title = f"Kernels: {len(kernels)}, {bytes_text(sum(k.bytes for k in kernels))} moved"
    if kept:
        title += f", {bytes_text(sum(kept.values()))} kept inside"
    columns = ["kernel", "ops", "bytes", "FLOPs run", "expected", "measured", "share"]
    columns.insert(3, "inside" if kept else "line")
    rows = table(title, *columns, numbers=(2, 4, 5, 6, 7, *((3,) if kept else ())))
    rows.columns[0].no_wrap = True
    lines, made_by = source_lines(record), record.stages[-1].program.computed
    for k in sorted(kernels, key=lambda k: -seconds(k))[:MOST_ROWS]:
        where = list(dict.fromkeys(lines[i] for i in k.members if i in lines))
        rows.add_row(
            k.name,
            _counted([made_by[i].op for i in k.members if i in made_by]),
            bytes_text(k.bytes),
            bytes_text(kept.get(k.name)) if kept else _some(where, MOST_LINES),
            count_text(k.flops),
            seconds_text(k.expected_seconds),
            seconds_text(k.seconds),
            f"{seconds(k) / total:.0%}",
        )
    and_more(rows, len(kernels))
    out.print(rows)
    _borders(out, record)


def _borders(out: Console, record: Any) -> None:
    """Why kernels end where they do: each reason, and how often it was one."""
    apart = Counter(d.reason for d in _fusions(record) if not d.numbers)
    if apart:
        rows = table("Why ops are not in one kernel", "reason", "times", numbers=(1,))
        for reason, times in apart.most_common():
            rows.add_row(reason, str(times))
        out.print(rows)


def _fusions(record: Any) -> list[Any]:
    """Decisions on kernels: with numbers, what one holds; without, what it does not."""
    return [d for d in record.decisions if d.kind == "fusion"]


def show_values(out: Console, record: Any) -> None:
    """The largest values of the finished program: cost, home, and what became of them."""
    program = record.stages[-1].program
    lines, fate = source_lines(record), fates(record)
    kernel_of = {i: k.name for k in record.kernels for i in k.members}
    buffer_of = {i: b for b in record.buffers for i in b.values}
    nodes = program.computed.values()
    made = [(r, n) for n in nodes for r in n.results if r.id in kernel_of]
    rows = table(
        f"Largest of the {len(made)} values that kernels make",
        *("value", "type", "bytes", "FLOPs", "line", "kernel", "lives in", "backward"),
        numbers=(2, 3),
    )
    rows.columns[5].no_wrap = True
    over = {o.value.id: o.of for o in program.outputs_of("mutated")}
    for value, node in sorted(made, key=lambda p: (-p[0].type.nbytes, p[0].id))[:MOST_ROWS]:
        b = buffer_of.get(value.id)
        home = f"{b.space} +{b.offset:,}" if b else "the kernel"
        if b is None and value.id in over:
            home = f"%{over[value.id]}, overwritten"
        elif b is not None and b.space == "input":
            home = f"%{b.id}, overwritten"
        rows.add_row(
            str(value),
            str(value.type),
            bytes_text(value.type.nbytes),
            count_text(node_cost(node).flops),
            lines.get(value.id, ""),
            kernel_of[value.id],
            home,
            fate.get(value.id, ""),
        )
    and_more(rows, len(made))
    out.print(rows)


def fates(record: Any) -> dict[int, str]:
    """What the partition decided about values: 'saved: reason', 'again: reason' (computed anew in
    the backward), and of the clones which one each is."""
    found = {s.id: f"saved: {s.reason}" for s in record.saved}
    found |= {r.id: f"again: {r.reason}" for r in record.recomputed}
    for node in record.stages[-1].program.computed.values():
        for step in node.origin:
            if step.relation == "recompute-of":
                found |= {r.id: f"%{step.id} again" for r in node.results}
    return found


def source_lines(record: Any) -> dict[int, str]:
    """The user's line of every value, of any stage."""
    nodes = (n for stage in record.stages for n in stage.program.all_nodes if n.loc)
    return {r.id: str(n.loc) for n in nodes for r in n.results}


def _counted(names: list[str]) -> str:
    """'4 dot, 2 where, sum', the most frequent first."""
    counts = Counter(names).most_common()
    return _some([name if n == 1 else f"{n} {name}" for name, n in counts], MOST_NAMES)


def _some(texts: list[str], most: int) -> str:
    return ", ".join(texts[:most]) + (" ..." if len(texts) > most else "")
