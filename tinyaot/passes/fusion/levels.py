"""In which order regions run: levels, with a barrier between them and none inside.

A region runs after what it reads, and after the readers of what it overwrites (a write after read
is a dependence like any other), and what may raise before. Regions of one level run side by side.
What waits for nothing waits until it is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tinyaot.passes.fusion.graph import Graph
from tinyaot.passes.fusion.op import Op
from tinyaot.passes.fusion.regions import Region
from tinyaot.passes.fusion.statements import Schedule


class Overwritten(Exception):
    """Outputs whose leaf is read after they are written: they must be written later."""

    def __init__(self, outputs: Sequence[Op]) -> None:
        super().__init__(str(outputs))
        self.outputs = list(outputs)


def levels(g: Graph, plan: Schedule) -> dict[Region, int]:
    """The longest path to each region over reads and overwrites. Raises Overwritten."""
    home = {op: r for op, (r, _) in plan.where.items()}
    before: dict[Region, set[Region]] = {r: set() for r in plan.regions}
    emitters: dict[Op, list[Region]] = {c: [] for checks in g.checks.values() for c in checks}
    leaf_users: dict[Op, list[tuple[Region, int, Op]]] = {
        leaf: [] for leaf in g.overwrites.values()
    }
    for region in plan.regions:
        for j, s in enumerate(plan.statements[region]):
            own = set(s.ops)
            for op in s.ops:
                if op in emitters:
                    emitters[op].append(region)
                for access in g.reads[op]:
                    root = access.root
                    if root in leaf_users:
                        leaf_users[root].append((region, j, op))
                    if root not in own and root in home and home[root] is not region:
                        before[region].add(home[root])
    bad = []
    for out, leaf in g.overwrites.items():
        region, at = plan.where[out]
        for reader, j, op in leaf_users[leaf]:
            if reader is not region:
                before[region].add(reader)
            elif j < at:  # before the write, if other tiles have not written it yet
                if not reads_own_tile(g, op, leaf, region):
                    bad.append(out)
            elif j > at or not reads_in_place(g, op, leaf, out):
                bad.append(out)
    if bad:
        raise Overwritten(list(dict.fromkeys(bad)))
    for out in g.overwrites:
        checks = sorted(g.checks[out], key=lambda op: op.id)
        wait_for_checks(plan.where[out][0], [emitters[c] for c in checks], before)
    level: dict[Region, int] = {}
    for region in plan.regions:  # in an order where reads come first; overwrites may not
        visit(region, before, level)
    delay(before, level)
    return level


def delay(before: Mapping[Region, set[Region]], level: dict[Region, int]) -> None:
    """Run what waits for nothing (constants, sums of inputs) only when it is needed: what it makes
    takes memory from then on, and what it reads is there all the time."""
    needed: dict[Region, int] = {}
    for region, waits in before.items():
        for b in waits:
            needed[b] = min(needed.get(b, level[region]), level[region])
    for region, waits in before.items():
        if not waits and region in needed:
            level[region] = needed[region] - 1


def visit(region: Region, before: dict[Region, set[Region]], level: dict[Region, int]) -> None:
    """Find the level of a region, after those before it (an explicit stack: plans are deep)."""
    stack, path = [region], set[Region]()
    while stack:
        r = stack[-1]
        missing = [b for b in before[r] if b not in level]
        if r in level:
            stack.pop()
        elif missing:
            if r in path and any(b in path for b in missing):
                raise AssertionError("a cycle of regions")
            path.add(r)
            stack += missing
        else:
            level[r] = 1 + max((level[b] for b in before[r]), default=0)
            path.discard(r)
            stack.pop()


def wait_for_checks(
    region: Region, checks: Sequence[Sequence[Region]], before: dict[Region, set[Region]]
) -> None:
    """Let a region run after another that makes each check, where one need not run later."""
    for makers in checks:
        early = [r for r in makers if region not in upstream(r, before)]
        before[region].update(early[:1])


def upstream(region: Region, before: dict[Region, set[Region]]) -> set[Region]:
    """A region and all that run before it."""
    found, todo = {region}, [region]
    while todo:
        new = before[todo.pop()] - found
        found |= new
        todo += new
    return found


def reads_own_tile(g: Graph, op: Op, leaf: Op, region: Region) -> bool:
    """Whether op reads only the leaf's elements of its own tile."""
    for access in g.reads[op]:
        if access.root is leaf:
            pairs = dict(access.pairs)
            if access.affine or any(pairs.get(t) is not t for t in region.tile):
                return False
    return True


def reads_in_place(g: Graph, op: Op, leaf: Op, out: Op) -> bool:
    """Whether op reads, of the leaf, just the element that `out` writes in the same iteration."""
    for access in g.reads[op]:
        if access.root is leaf:
            reads = tuple(e for _, e in access.pairs)
            if access.affine or reads != g.flat[out]:
                return False
    return True
