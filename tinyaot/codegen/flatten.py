"""Two loops as one, where every index runs through both without a gap.

A matrix that a nest reads and writes in memory order is as good as a vector: one long vector loop
instead of many short ones, and the same kernel for every shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from tinyaot.codegen.loops import (
    Apply,
    Checked,
    Expr,
    Fold,
    Index,
    Let,
    Load,
    Loop,
    Position,
    Random,
    Report,
    Stmt,
    Store,
    Total,
    Var,
    Within,
)


def flatten(loop: Loop) -> Loop:
    """The loop with its inner loop merged into it, as often as that can be."""
    body = tuple(flatten(s) if isinstance(s, Loop) else s for s in loop.body)
    loop = replace(loop, body=body)
    if len(body) != 1:
        return loop
    inner = body[0]
    if not isinstance(inner, Loop) or inner.folds or not isinstance(inner.extent, int):
        return loop
    if not isinstance(loop.extent, int) or any(isinstance(s, Loop) for s in inner.body):
        return loop
    found = [i for s in inner.body for i in indices(s)]
    if not all(steps(i, loop.var) == steps(i, inner.var) * inner.extent for i in found):
        return loop
    merged = tuple(renamed(s, inner.var, loop.var) for s in inner.body)
    return Loop(loop.var, loop.extent * inner.extent, merged, inner.vector)


def live(body: Iterable[Stmt]) -> tuple[Stmt, ...]:
    """The statements of a loop without the scalars that none of them reads (a checked index stays:
    it reports)."""
    kept: list[Stmt] = []
    read: set[str] = set()
    for s in reversed(list(body)):
        if isinstance(s, Let) and not s.index and s.name not in read:
            continue
        kept.append(s)
        read.update(read_by(s))
    return tuple(reversed(kept))


def read_by(s: Stmt) -> Iterator[str]:
    """The scalars and loop variables that a statement without loops reads."""
    yield from (name for i in indices(s) for _, name in i.terms)
    if isinstance(s, (Let, Store, Fold)):
        yield from _names(s.expr)
    elif isinstance(s, Report):
        yield s.name


def _names(e: Expr) -> Iterator[str]:
    match e:
        case Var(name):
            yield name
        case Apply():
            for a in e.args:
                yield from _names(a)
        case Checked(value) | Within(value):
            yield from _names(value)
        case Random(seed, base, _, _):
            yield from _names(seed)
            yield from _names(base)


def steps(index: Index, var: str) -> int:
    """Elements that an index moves with a loop variable."""
    return sum(c for c, name in index.terms if name == var)


def indices(s: Stmt) -> Iterator[Index]:
    """Every index in a statement without loops."""
    if isinstance(s, Store):
        yield s.index
    if isinstance(s, (Let, Store, Fold)):
        yield from _indices(s.expr)


def _indices(e: Expr) -> Iterator[Index]:
    match e:
        case Load(_, index) | Total(_, index, _, _) | Position(index, _):
            yield index
        case Apply():
            for a in e.args:
                yield from _indices(a)
        case Checked(value) | Within(value):
            yield from _indices(value)
        case Random(seed, base, _, element):
            yield element
            yield from _indices(seed)
            yield from _indices(base)


def renamed(s: Stmt, inner: str, outer: str) -> Stmt:
    """A statement of the inner loop, in one loop over both that has the outer's name."""

    def index(i: Index) -> Index:
        kept = [(c, name) for c, name in i.terms if name != outer]
        return Index(i.const, tuple((c, outer if name == inner else name) for c, name in kept))

    def expr(e: Expr) -> Expr:
        match e:
            case Load() | Total() | Position():
                return replace(e, index=index(e.index))
            case Apply():
                return replace(e, args=tuple(map(expr, e.args)))
            case Checked(value) | Within(value):
                return replace(e, value=expr(value))
            case Random(seed, base, ordinal, element):
                return Random(expr(seed), expr(base), ordinal, index(element))
            case _:
                return e

    if isinstance(s, Store):
        return replace(s, index=index(s.index), expr=expr(s.expr))
    if isinstance(s, (Let, Fold)):
        return replace(s, expr=expr(s.expr))
    return s
