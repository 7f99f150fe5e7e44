"""The order in which growth walks the ops, and what a recomputation waits for."""

from __future__ import annotations

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
    users: dict[Op, list[Op]] = {op: [] for op in ops}
    for op in ops:
        for x in op.ins:
            users[x].append(op)
    for clone in again:
        for user in users[clone]:
            met = [
                x
                for x in user.ins
                if x.phase != "forward" and x not in clones and x.ins and not reads(x, clone)
            ]
            if met:
                clone.after = tuple(met)
                break
    for clone in reversed(again):
        later = [u for u in users[clone] if u in clones and u.after]
        if not clone.after and later:
            clone.after = tuple(x for x in later[0].after if not reads(x, clone))


def reads(op: Op, source: Op) -> bool:
    """Whether op depends on source."""
    seen: set[Op] = set()
    todo = [op]
    while todo:
        x = todo.pop()
        if x is source:
            return True
        if x not in seen and x.id > source.id:
            seen.add(x)
            todo += x.ins
    return False
