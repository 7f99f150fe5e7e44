"""The order in which growth walks the ops, and which ops of the backward wait for a gradient."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush

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


def growth_order(ops: Sequence[Op], roots: Sequence[Op]) -> list[Op]:
    """What depends on scalars alone (step sizes), then forward, backward and update, each as it was
    written and not as a schedule has it, since a gradient should come before the recomputation that
    it meets."""
    scalars = scalar_ops(ops)
    found = topological(sorted(ops, key=lambda op: (op not in scalars, *written(op))), roots)
    wait_for_gradients(found)
    return topological(found, roots)


def wait_for_gradients(ops: Sequence[Op]) -> None:
    """Give what the backward computes of forward values alone, recomputations and factors of a
    derivative, the gradient that it first meets as something to wait for: beside the forward it
    would be one more value to keep."""
    users: dict[Op, list[Op]] = {op: [] for op in ops}
    for op in ops:
        for x in op.ins:
            users[x].append(op)
    # Where the gradients that lead to an op begin: the first of the ops behind it in the backward
    # that read forward values alone. A gradient comes from the loss, and so from further up.
    clones = {op for op in ops if op.node and is_recomputed(op.node)}
    begins: dict[Op, int] = {}
    for op in ops:
        if op.phase != "forward" and op.ins and op not in clones:
            begins[op] = min((begins[x] for x in op.ins if x in begins), default=op.id)
    first = min(begins.values(), default=0)
    waits: list[tuple[int, int]] = []  # id of each op that waits, and the greatest it waits for
    for op in ops:
        if op.phase == "backward" and op.ins and not any(x in begins for x in op.ins):
            begin = begins.get(op, min((u.id for u in users[op]), default=first))
            met = _first_met(op, begin, users, begins, waits) if begin > first else []
            if met:
                op.after = tuple(met)
                insort(waits, (op.id, max(x.id for x in met)))


def _first_met(
    source: Op,
    begin: int,
    users: Mapping[Op, Sequence[Op]],
    begins: Mapping[Op, int],
    waits: Sequence[tuple[int, int]],
) -> list[Op]:
    """The gradients, from further up than `begin`, that are read beside the source or the first op
    computed from it that meets any."""
    queue = [(u.id, u) for u in users[source]]
    seen = {u for _, u in queue}
    heapify(queue)
    while queue:
        _, user = heappop(queue)
        above = [x for x in user.ins if begins.get(x, begin) < begin]
        met = [x for x in above if not leads(x, source, waits)]
        if met:
            return met
        for u in users[user] if not above else ():
            if u not in seen and u.phase != "update":
                seen.add(u)
                heappush(queue, (u.id, u))
    return []


def leads(op: Op, source: Op, waits: Sequence[tuple[int, int]]) -> bool:
    """Whether op depends on source or waits for it: source must not wait for op then.

    What is read has a smaller id than its reader, so a search may stop below the source, but for
    those there that wait for something above where it would stop.
    """
    least = source.id
    for waiting, top in reversed(waits):
        if waiting < least <= top:
            least = waiting
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
