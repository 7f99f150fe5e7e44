"""The order in which growth walks the ops, and what a recomputation waits for."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence

from tinyaot.cost import is_recomputed
from tinyaot.ir import PHASES
from tinyaot.passes.fusion.op import Op


def scalar_ops(ops: Iterable[Op]) -> set[Op]:
    """Ops of one element that depend on leaves of one element alone."""
    found: set[Op] = set()
    for op in ops:
        if op.type.size == 1 and all(x in found for x in op.ins):
            found.add(op)
    return found


def written(op: Op) -> tuple[int, int]:
    """When an op was written: its phase, and the id that its node's result got."""
    return PHASES.index(op.phase), op.node.result.id if op.node else -1


def topological(order: Iterable[Op], roots: Iterable[Op]) -> list[Op]:
    """Live ops, what they read and wait for first, otherwise in the given order; numbered."""
    live: set[Op] = set()
    todo = list(roots)
    while todo:
        op = todo.pop()
        if op not in live:
            live.add(op)
            todo += op.ins
    done: list[Op] = []
    placed: set[Op] = set()
    for first in order:
        stack = [first] if first in live else []
        while stack:
            op = stack[-1]
            missing = [x for x in (*op.ins, *op.after) if x in live and x not in placed]
            if op in placed or not missing:
                stack.pop()
                if op not in placed:
                    op.id = len(done)
                    placed.add(op)
                    done.append(op)
            else:
                stack += reversed(missing)
    return done


def wait_for_gradients(ops: Sequence[Op]) -> None:
    """Give each recomputation the gradient that it first meets as something to wait for."""
    again = [op for op in ops if op.node and is_recomputed(op.node)]
    if not again:
        return
    clones = set(again)
    waits: list[tuple[int, int]] = []  # id of each clone that waits, and the greatest it waits for
    users: dict[Op, list[Op]] = {op: [] for op in ops}
    for op in ops:
        for x in op.ins:
            users[x].append(op)
    for clone in again:
        for user in users[clone]:
            met = [
                x
                for x in user.ins
                if x.phase != "forward" and x not in clones and x.ins and not leads(x, clone, waits)
            ]
            if met:
                _wait(clone, met, waits)
                break
    for clone in reversed(again):
        later = [u for u in users[clone] if u in clones and u.after]
        if not clone.after and later:
            met = [x for x in later[0].after if not leads(x, clone, waits)]
            if met:
                _wait(clone, met, waits)


def _wait(clone: Op, met: Sequence[Op], waits: list[tuple[int, int]]) -> None:
    clone.after = tuple(met)
    insort(waits, (clone.id, max(x.id for x in met)))


def leads(op: Op, source: Op, waits: Sequence[tuple[int, int]]) -> bool:
    """Whether op depends on source or waits for it: source must not wait for op then.

    What is read has a smaller id than its reader, so a search may stop below the source, but for
    the clones there that wait for something above where it would stop.
    """
    least = source.id
    for clone, top in reversed(waits):
        if clone < least < top:
            least = clone
    seen: set[Op] = set()
    todo = [op]
    while todo:
        x = todo.pop()
        if x is source:
            return True
        if x not in seen and x.id >= least:
            seen.add(x)
            todo += x.ins
            todo += x.after
    return False
