"""Short rows side by side: the loop over rows as the vector loop.

A vector loop over ten columns is a vector and two scalars, and what needs a row's sum waits for it.
Where rows are short, every statement of theirs runs over all of them before the next begins, so
that a vector has an element of each of several rows; what one loop leaves to a later one becomes an
array, with an element for each row (loop distribution and scalar expansion: Padua and Wolfe, 1986).
Rows depend on each other only where they add to one place, which is a fold of the vector loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from tinyaot.codegen.flatten import read_by, steps
from tinyaot.codegen.loops import (
    Buffer,
    Finish,
    Fold,
    Index,
    Let,
    Literal_,
    Load,
    Loop,
    Report,
    Start,
    Stmt,
    Store,
    Var,
)
from tinyaot.codegen.printer import neutral, sees_nan
from tinyaot.ops.core import TABLE
from tinyaot.ops.elementwise import CHEAP
from tinyaot.passes.fusion.graph import Graph
from tinyaot.passes.fusion.labels import Atom
from tinyaot.passes.fusion.op import Op
from tinyaot.shapes import DType, float64

MOST = 1024  # rows whose arrays stay in the nearest cache
FOLD = 20 * CHEAP  # completing a row's sum, which what follows waits for
SHORTEST = 4  # elements of a vector


def pays(g: Graph, ops: Sequence[Op], row: Atom, rows: int, column: Atom, columns: int) -> bool:
    """Whether ops over `rows` x `columns` are quicker as vectors across rows. An iteration costs
    what its op does, with a vector or an element; what is not side by side moves one by one."""
    if rows > MOST:
        return False
    along = across = 0.0
    long, high = _iterations(columns, g.machine.lanes), _iterations(rows, g.machine.lanes)
    # A compiler takes a stride of a power of two for interleaved arrays: it reads and sorts all.
    move = CHEAP * rows * (columns if _is_power_of_2(columns) else 1)
    for op in ops:
        if op.form not in ("map", "reduce") or op.dtype is float64:  # data's indices; no vectors
            return False
        if op.form == "reduce" and g.is_repeated(op):  # which adds up in the same order elsewhere
            return False
        space, weight = g.space(op), TABLE[op.name].weight
        if column not in space:
            along += rows * weight
            across += high * weight
            continue
        sums = op.form == "reduce" and column in g.red[op]
        memory = [g.flat[op]] if op in g.stored and not sums else []
        outside = (a for a in g.reads[op] if a.root not in ops)
        memory += [tuple(a.atoms) for a in outside if a.root.form not in ("const", "iota")]
        moved = sum(row in atoms and column in atoms for atoms in memory)
        along += rows * (long * weight + FOLD * sums)
        across += columns * (high * weight * (1 + sums) + move * moved)
    return across < along


def _iterations(extent: int, lanes: int) -> int:
    """Of a vector loop: one for a vector, and for each element that is left, unless a shorter
    vector has them all."""
    if SHORTEST <= extent < lanes and _is_power_of_2(extent):
        return 1
    return extent // lanes + extent % lanes


def _is_power_of_2(n: int) -> bool:
    return n & (n - 1) == 0


def side_by_side(loop: Loop, most: int, fresh: Callable[[], str]) -> list[Stmt]:
    """A loop over rows, at most so many, as loops over them for one part of its body at a time.
    `fresh` gives names."""
    parts = list(_parts(loop.body))
    made = {s.name: s.dtype for s in loop.body if isinstance(s, Let)}
    kept = {s.name: s.dtype for s in loop.body if isinstance(s, Start)}
    for _, part in parts:
        kept.update((name, made[name]) for name in _from_elsewhere(part) if name in made)
    lines: list[Stmt] = [Buffer(_array(name), dtype, most) for name, dtype in kept.items()]
    for columns, part in parts:
        over_rows = _over_rows(loop, part, kept, fresh)
        lines += [Loop(columns.var, columns.extent, over_rows)] if columns else over_rows
    return lines


def _parts(body: Iterable[Stmt]) -> Iterator[tuple[Loop | None, Sequence[Stmt]]]:
    """What can be one loop over the rows each: a loop over columns, scalars, reports."""
    for is_loop, group in groupby(body, lambda s: isinstance(s, Loop)):
        if is_loop:
            yield from ((s, s.body) for s in group if isinstance(s, Loop))
        else:
            found = list(group)
            scalars = [s for s in found if not isinstance(s, Finish | Report)]  # NaN is kept anyway
            reports = [s for s in found if isinstance(s, Report)]
            yield from ((None, p) for p in (scalars, reports) if p)


def _from_elsewhere(part: Sequence[Stmt]) -> list[str]:
    """Names that statements read and do not make."""
    own = {s.name for s in part if isinstance(s, Let)}
    read = dict.fromkeys(name for s in part for name in read_by(s))
    return [name for name in read if name not in own]


def _over_rows(
    loop: Loop, part: Sequence[Stmt], kept: Mapping[str, DType], fresh: Callable[[], str]
) -> tuple[Stmt, ...]:
    """A part's loop over rows, with what it folds into one place."""
    row = Index(0, ((1, loop.var),))
    found = [name for name in _from_elsewhere(part) if name in kept]
    body: list[Stmt] = [Let(name, kept[name], Load(_array(name), row)) for name in found]
    folds, after = list[Start](), list[Stmt]()
    for s in part:
        match s:
            case Start(name, dtype, combine):
                value = Literal_(neutral(combine, dtype), dtype)
                body.append(Store(_array(name), row, value, dtype))
            case Fold(name, dtype, combine, value):
                body.append(Store(_array(name), row, value, dtype, combine))
            case Store(array, index, value, dtype, combine) if not steps(index, loop.var):
                name = fresh()
                folds.append(Start(name, dtype, combine))
                body.append(Fold(name, dtype, combine, value))
                after += [Finish(name, dtype, combine)] if sees_nan(combine, dtype) else []
                after.append(Store(array, index, Var(name), dtype, combine))
            case Let(name, dtype) if name in kept:
                body += [s, Store(_array(name), row, Var(name), dtype)]
            case _:
                body.append(s)
    vector = not any(isinstance(s, Report) for s in part)
    return (*folds, Loop(loop.var, loop.extent, tuple(body), vector, tuple(folds)), *after)


def _array(name: str) -> str:
    """A scalar's name, for all rows."""
    return f"{name}s"
