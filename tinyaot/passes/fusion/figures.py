"""What a region holds and costs, for people and for the record."""

from __future__ import annotations

import math

from tinyaot.ops.core import TABLE
from tinyaot.passes.fusion.accesses import Access
from tinyaot.passes.fusion.graph import Graph
from tinyaot.passes.fusion.labels import Atom
from tinyaot.passes.fusion.op import Op
from tinyaot.passes.fusion.plan import FusionPlan
from tinyaot.passes.fusion.regions import Region
from tinyaot.passes.fusion.statements import Schedule
from tinyaot.passes.fusion.storage import Storage
from tinyaot.record import Decision

SHARED, ALONE = "shares a loop over tiles", "alone"  # reason codes of regions


def decisions_on(region: Region, name: str, plan: FusionPlan) -> list[Decision]:
    """Why the region is one, and why each op that could have joined it did not."""
    numbers = {
        "bytes": region_bytes(plan.graph, region, plan.schedule),
        "kept inside": bytes_inside(region, plan.storage),
        "seconds": region.ns * 1e-9,
    }
    reason = SHARED if len(region.members) > 1 else ALONE
    found = [Decision("fusion", region.members[0].value, name, reason, numbers)]
    for op, why in region.refused.items():
        found.append(Decision("fusion", op.value, f"not in {name}", why))
    return found


def region_bytes(g: Graph, region: Region, plan: Schedule) -> int:
    """Bytes that cross the region's border: outside values read, and values kept."""
    members = set(region.members)
    total = 0
    seen: set[Op] = set()
    for op in region.members:
        for access in g.reads[op]:
            root = access.root
            if root not in members and root not in seen and root.form not in ("const", "iota"):
                seen.add(root)
                total += bytes_read(access)
        if op in plan.readers and any(r is not region for r, _ in plan.readers[op]):
            total += op.type.nbytes
    return total


def bytes_inside(region: Region, storage: Storage) -> int:
    """Bytes of the members that never reach memory as whole values."""
    return sum(
        op.type.nbytes
        for op in region.members
        if op not in storage.homes or storage.homes[op].space == "scratch"
    )


def bytes_read(access: Access) -> int:
    return access.root.dtype.itemsize * math.prod(a.size for a in access.atoms)


def region_flops(g: Graph, region: Region) -> int:
    """FLOPs that the members run, by the table's convention: loops that a mask ends are counted as
    far as they go."""
    total = 0.0
    for op in region.members:
        primitive = TABLE.get(op.name)
        if primitive is not None and op.form not in ("concat", "view"):
            flops = primitive.flops([x.type for x in op.ins], op.type, op.attrs)
            total += flops * math.prod(map(region.share, {*g.flat[op], *g.red[op]}))
    return round(total)


def tile_text(region: Region) -> str:
    """`{a12=32 of 256, a7}`: the tile for people."""

    def one(a: Atom) -> str:
        return f"a{a.id}={region.block[a]} of {a.size}"

    return "{" + ", ".join(map(one, region.tile)) + "}"
