"""Panels: what all tiles of a region multiply by is packed once, before the loop over them.

A product packs its right operand into panels (gemm.h), which is mostly waiting for memory. Where no
label of the tile is in it, as in a weight under tiles of rows, each tile would pack the same again;
so each share has the panels in its scratch, as BLAS libraries offer for constant operands (MKL's
`cblas_sgemm_pack`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from tinyaot.codegen.addresses import Addresses, Pointer
from tinyaot.codegen.printer import C
from tinyaot.codegen.products import Merged, at_loops, open_loops, outer_loops, product_of
from tinyaot.passes.fusion.graph import Graph
from tinyaot.passes.fusion.labels import Atom
from tinyaot.passes.fusion.op import Op
from tinyaot.passes.fusion.plan import FusionPlan
from tinyaot.passes.fusion.regions import Region
from tinyaot.passes.fusion.statements import Single

TILES = 4  # of a share, from which on packing apart pays for what it writes
ROW = 128  # bytes of a panel's row, or a divisor of it


@dataclass(slots=True)
class Panels:
    """Where packed operands are, in bytes of scratch behind the values; how many a region has."""

    at: dict[Op, int] = field(default_factory=dict)
    nbytes: dict[Region, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Right:
    """The operand that a product packs: k x columns elements, for each of `loops`."""

    source: Pointer
    rows: int
    row: int  # elements from one to the next
    columns: Merged
    loops: list[Atom]

    @property
    def elements(self) -> int:
        """Of the panels, for one iteration of the loops."""
        lanes = ROW // self.source.dtype.itemsize
        return self.rows * -(-self.columns.bound // lanes) * lanes


def panels_of(plan: FusionPlan) -> Panels:
    """What each region packs before its tiles: as much as stays in L3, of all threads together."""
    found, where = Panels(), Addresses(plan, C.memory)
    most = plan.graph.machine.l3 // 2 // plan.threads
    for region, statements in plan.schedule.statements.items():
        tiles, shared = (
            math.prod(-(-a.size // region.block[a]) for a in atoms)
            for atoms in (region.tile, region.parallel)
        )
        if shared < plan.threads or tiles < TILES * plan.threads:
            continue
        used = 0
        for s in statements:
            if not isinstance(s, Single) or not (
                right := right_of(plan.graph, where, region, s.op)
            ):
                continue
            size = right.elements * math.prod(region.extent(x) for x in right.loops)
            nbytes = size * right.source.dtype.itemsize
            if used + nbytes <= most:
                found.at[s.op] = used
                used += nbytes
        found.nbytes[region] = used
    return found


def right_of(g: Graph, where: Addresses, region: Region, op: Op) -> Right | None:
    """What a product packs, if it is the same for every tile."""
    if op.form != "dot" or not op.dtype.is_floating:
        return None
    product = product_of(g, where, region, op)
    if 1 in (product.m.bound, product.n.bound):
        return None  # of a row nothing is packed
    turned = product.turned
    access = g.reads[op][0 if turned else 1]
    if access.root in region.members or not set(region.tile).isdisjoint(access.atoms):
        return None
    if not product.known and product.n.strides[1] != 1:
        return None  # some tile may turn, and pack the other
    source = product.a if turned else product.b
    columns, row = product.m if turned else product.n, product.k.strides[0 if turned else 1]
    loops = [x for x in outer_loops(g, region, op, product) if source.strides.get(x)]
    cut = not region.limits.keys().isdisjoint((*loops, *access.atoms))
    return None if cut else Right(source, product.k.bound, row, columns, loops)


def packing(right: Right, region: Region, at: int) -> tuple[Pointer, list[str]]:
    """The panels, at so many bytes of scratch, and lines of C that fill them."""
    dtype, step, strides = right.source.dtype, right.elements, {}
    for x in reversed(right.loops):
        strides[x] = step
        step *= region.extent(x)
    panels = Pointer(f"({C.memory[dtype.short]} *)(scratch + {at}L)", dtype, strides)
    arguments: Sequence[object] = (
        right.columns.bound,
        right.rows,
        at_loops(right.source, right.loops),
        right.row,
        right.columns.strides[0],
        at_loops(panels, right.loops),
    )
    call = f"  rt->panels_{dtype.short}({', '.join(map(str, arguments))});"
    return panels, [*open_loops(right.loops, region, "  "), call]
