"""Regions for a GPU: as many tiles as there can be, each for one thread or for a block of them.

Growth is the one that serves a processor's cores, with two differences (`Machine.grid`): a product
is a region of its own, a library's; and no tile adds to what another makes, so sums over rows are
regions of their own, too, with a tile a column. A tile is then cut as small as the members allow: a
map gets an element a thread; a reduction along the innermost label a row a block, whose threads
share out the row (a *team*); any other reduction a thread for each result, so that neighbouring
threads read neighbouring elements. Nothing depends on the order in which blocks run, and no two
threads add to one element, so runs repeat bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tinyaot.ir import Program
from tinyaot.passes.fusion.graph import Graph
from tinyaot.passes.fusion.labels import Atom
from tinyaot.passes.fusion.machine import Machine
from tinyaot.passes.fusion.model import volume, whole
from tinyaot.passes.fusion.op import Op
from tinyaot.passes.fusion.plan import FusionPlan, plan_among
from tinyaot.passes.fusion.regions import Region, verdict

WARP, BLOCK = 32, 256  # threads that run in step, and of a block at most


@dataclass(slots=True)
class GridPlan:
    """A fusion plan, and for each region the threads that share one of its tiles."""

    fusion: FusionPlan
    team: dict[Region, int]


def plan_grid(program: Program) -> GridPlan:
    """Plan one entry point. BackendError for what has no form (see `to_forms`)."""
    plan = plan_among(program, (1,), Machine(grid=True), cut)
    return GridPlan(plan, {r: team(plan.graph, r) for r in plan.regions})


def cut(g: Graph, region: Region) -> None:
    """Take the longest tile that makes every member a row's own, one element of each label."""
    if region.tile or widest(g, region).form not in ("fallback", "dot"):
        tiles = [g.flat[op][:n] for op in region.members for n in range(len(g.flat[op]) + 1)]
        longest = sorted(dict.fromkeys(tiles), key=lambda tile: -volume(tile, whole))
        region.tile = next((t for t in longest if fits(g, region, t)), region.tile)
    region.parallel, region.limits = region.tile, {}
    region.block = dict.fromkeys(region.tile, 1)


def fits(g: Graph, region: Region, tile: Sequence[Atom]) -> bool:
    """Whether every member could be in a region with this tile, and complete."""
    before: set[Op] = set()
    for op in region.members:
        if verdict(g, op, tile, before, region.kind) != "row":
            return False
        before.add(op)
    return True


def widest(g: Graph, region: Region) -> Op:
    return max(region.members, key=lambda op: volume(g.space(op), whole))


def team(g: Graph, region: Region) -> int:
    """How many threads share a tile: one, or so many that each has a few elements of a row."""
    lead = widest(g, region)
    alone = {"fallback", "scatter", "dot"}  # scatters add in order
    space = g.space(lead)
    inner = [a for a in space if a not in region.tile]
    if not inner or space[-1] in region.tile or any(op.form in alone for op in region.members):
        return 1
    threads = WARP
    while threads < min(BLOCK, inner[-1].size):
        threads *= 2
    return threads
