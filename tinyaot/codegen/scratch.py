"""Scratch: what the regions of a share work in, one after the other, all from the same byte on.

A region has its values there, behind them the panels that it packs before its tiles, and behind
those what one product packs, or one sort sorts, at a time. A share has as much as its largest
region takes, but the last share only what its own regions do: those of one tile take turns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from tinyaot.codegen.addresses import Addresses
from tinyaot.codegen.fallback import shares_lanes, sort_bytes
from tinyaot.codegen.panels import panels_of
from tinyaot.codegen.printer import C
from tinyaot.codegen.products import Size, product_sizes
from tinyaot.passes.fusion.plan import FusionPlan
from tinyaot.passes.fusion.regions import Region
from tinyaot.passes.fusion.storage import padded


@dataclass(frozen=True, slots=True)
class Scratch:
    """Bytes from one share to the next, and of all."""

    share: int
    nbytes: int


def scratch_of(
    plans: Collection[FusionPlan], pack_bytes: Callable[[Collection[Size]], int]
) -> Scratch:
    """What entry points with these plans need. `pack_bytes`: what the largest product packs."""
    found = [x for plan in plans for x in regions_of(plan, pack_bytes)]
    share = padded(max((nbytes for _, nbytes in found), default=0))
    return Scratch(share, max((at * share + n for at, n in found if n), default=0))


def regions_of(
    plan: FusionPlan, pack_bytes: Callable[[Collection[Size]], int]
) -> Iterator[tuple[int, int]]:
    """Of each region the last share that computes it, and the bytes that it takes there."""
    panels, where = panels_of(plan), Addresses(plan, C.memory)
    for number, region in enumerate(plan.regions):
        values, ahead = plan.storage.scratch[region], panels.nbytes.get(region, 0)
        sizes = product_sizes(plan, where, region, panels.at)
        behind = max(pack_bytes(sizes), sort_bytes(region))
        before = padded(values) + ahead if ahead or behind else values
        yield last_share(plan, region, number), before + behind


def last_share(plan: FusionPlan, region: Region, number: int) -> int:
    """The last share that has a tile, or a lane, of a region."""
    tiles = math.prod(-(-a.size // region.block[a]) for a in region.parallel)
    if tiles == 1 and not shares_lanes(region):
        return number % plan.threads
    return plan.threads - 1
