"""The members of a region in the order a tile runs them: products, slots and loop nests.

A nest is a set of loops (`rows`) around vector loops over one label (`inner`) that share all their
members: maps, reductions, gathers, scatters. Nests are filled greedily, so that a value is used
while it is in a register; what is not stored is cloned into every nest that reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from tinyaot.passes.fusion.graph import Graph
from tinyaot.passes.fusion.labels import Atom
from tinyaot.passes.fusion.op import LEAVES, Op
from tinyaot.passes.fusion.regions import Region

SINGLE = ("dot", "concat", "fallback")  # forms that are statements of their own


@dataclass(eq=False, slots=True)
class Nest:
    """`members` belong here; `all` also has what is recomputed here, in topological order."""

    rows: tuple[Atom, ...]
    inner: Atom | None
    members: list[Op] = field(default_factory=list)
    all: list[Op] = field(default_factory=list)

    @property
    def ops(self) -> list[Op]:
        return self.all


@dataclass(eq=False, slots=True)
class Single:
    """A product, a concatenation (no code) or a fallback."""

    op: Op

    @property
    def ops(self) -> list[Op]:
        return [self.op]


Statement = Nest | Single


@dataclass(slots=True)
class Schedule:
    """Statements by region; where each op is made; who reads it from memory: (region, position),
    and (None, 0) for the caller."""

    regions: list[Region]
    statements: dict[Region, list[Statement]]
    where: dict[Op, tuple[Region, int]]
    readers: dict[Op, list[tuple[Region | None, int]]]


def schedule(g: Graph, regions: Sequence[Region]) -> Schedule:
    """Statements of every region, with recomputation filled in."""
    by_region = {r: order_members(g, r) for r in regions}
    for nests in by_region.values():
        for s in nests:
            if isinstance(s, Nest):
                s.all = with_recomputed(g, s)
    readers = find_readers(g, by_region)
    for region, found in by_region.items():  # what was cloned everywhere has no place of its own
        for s in found:
            if isinstance(s, Nest):
                s.all = needed_here(g, s, readers)
        by_region[region] = [s for s in found if isinstance(s, Single) or s.all]
    by_region = {r: found for r, found in by_region.items() if found}
    readers = find_readers(g, by_region)
    where: dict[Op, tuple[Region, int]] = {}
    for region, found in by_region.items():
        own = set(region.members)
        for j, s in enumerate(found):
            mine = [s.op] if isinstance(s, Single) else s.members
            for op in mine:
                if op in own and op in s.ops:
                    where[op] = region, j
    return Schedule(list(by_region), by_region, where, readers)


def order_members(g: Graph, region: Region) -> list[Statement]:
    """Products as soon as they can run, loops as full as they can be."""
    members = region.members  # what one reads stands before it
    inside = {op: at for at, op in enumerate(members)}
    missing: list[int] = []
    readers: list[list[int]] = [[] for _ in members]
    for at, op in enumerate(members):
        needs = [inside[r] for r in g.needs[op] if r in inside]
        missing.append(len(needs))
        for r in needs:
            readers[r].append(at)
    ready = [at for at, n in enumerate(missing) if not n]  # positions, in order
    out: list[Statement] = []

    def take(at: int) -> None:
        for reader in readers[at]:
            missing[reader] -= 1
            if not missing[reader]:
                heappush(ready, reader)

    while ready:
        ready.sort()
        now = [at for at in ready if members[at].form in SINGLE]
        if now:
            ready = [at for at in ready if members[at].form not in SINGLE]
            for at in now:
                take(at)
                out.append(Single(members[at]))
            continue
        lead = max((members[at] for at in ready), key=lambda op: len(g.space(op)))
        space = g.space(lead)
        nest = Nest(space[:-1], space[-1] if space else None)
        left: list[int] = []
        while ready:
            at = heappop(ready)
            op = members[at]
            if op is lead or (op.form not in SINGLE and joins(g, op, nest)):
                nest.members.append(op)
                take(at)
            else:
                left.append(at)
        ready = left
        out.append(nest)
    return out


def joins(g: Graph, op: Op, nest: Nest) -> bool:
    """Whether op can run in the nest: the same loops, or the row loops alone, and nothing it reads
    is complete only after them."""
    rows = set(nest.rows)
    inner = {nest.inner} if nest.inner else set()
    members = set(nest.members)
    for r in g.needs[op]:
        if r in members and (r.form == "scatter" or not rows.isdisjoint(g.red[r])):
            return False
    if op.form == "reduce" and follows_overwrite(g, op, members):
        return False
    for i, access in enumerate(g.reads[op]):
        if access.root in members and (not access.straight or (op.form == "gather" and i == 0)):
            return False
    space = set(g.space(op))
    if space == rows | inner:
        return True
    if space != rows:
        return False
    return op.form in ("map", "random", "gather", "reduce")


def follows_overwrite(g: Graph, op: Op, members: set[Op]) -> bool:
    """Whether op depends on a member that overwrites a leaf. Such a member belongs to the last of
    a nest's vector loops, since an earlier one must not write what a later one reads."""
    if g.overwrites.keys().isdisjoint(members):
        return False
    todo, seen = [op], {op}
    while todo:
        for r in g.needs[todo.pop()]:
            if r in members and r in g.overwrites:
                return True
            if r in members and r not in seen:
                seen.add(r)
                todo.append(r)
    return False


def with_recomputed(g: Graph, nest: Nest) -> list[Op]:
    own = set(nest.members)
    todo = list(nest.members)
    while todo:
        for access in g.reads[todo.pop()]:
            root = access.root
            if root not in own and root.form not in LEAVES and root not in g.stored:
                own.add(root)
                todo.append(root)
    return sorted(own, key=lambda op: op.id)


Readers = dict[Op, list[tuple[Region | None, int]]]


def find_readers(g: Graph, by_region: dict[Region, list[Statement]]) -> Readers:
    """Who reads what from memory."""
    readers: Readers = {op: [(None, 0)] for op in g.outputs}
    for region, found in by_region.items():
        for j, s in enumerate(found):
            own = set(s.ops)
            for op in s.ops:
                for access in g.reads[op]:
                    if access.root not in own and access.root.form not in LEAVES:
                        readers.setdefault(access.root, []).append((region, j))
    return readers


def needed_here(g: Graph, nest: Nest, readers: Readers) -> list[Op]:
    """Drop what nobody reads here or from memory."""
    needed: set[Op] = set()
    keep = []
    members = set(nest.members)
    for op in reversed(nest.all):
        if op in needed or (op in members and op in readers):
            keep.append(op)
            needed |= {a.root for a in g.reads[op]}
    return keep[::-1]
