"""The fusion plan of one entry point: regions, their statements and storage.

Plans are made for one thread and for all, and the cheaper is taken, since small steps do not pay
for a fork and barriers. Results that threads hold in parts, and overwrites that cannot happen in
place, get a copy of their own at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tinyaot.ir import Program
from tinyaot.ops.core import TABLE
from tinyaot.passes.fusion.accesses import Access
from tinyaot.passes.fusion.forms import to_forms
from tinyaot.passes.fusion.graph import Graph, add_copy, build, whole_readers
from tinyaot.passes.fusion.labels import Atom
from tinyaot.passes.fusion.machine import Machine
from tinyaot.passes.fusion.model import FORK, best_block
from tinyaot.passes.fusion.op import Op
from tinyaot.passes.fusion.regions import Region, Stuck, partition
from tinyaot.passes.fusion.statements import Schedule, schedule
from tinyaot.passes.fusion.storage import Overwritten, Storage, place, verify


@dataclass(slots=True)
class FusionPlan:
    """What emission needs. `regions` are in order of execution, with a barrier between levels."""

    graph: Graph
    threads: int
    schedule: Schedule
    storage: Storage
    seconds: float

    @property
    def regions(self) -> list[Region]:
        level = self.storage.level
        return sorted(self.schedule.regions, key=lambda r: (level[r], r.members[0].id))


def plan_fusion(program: Program, threads: int, machine: Machine) -> FusionPlan:
    """The cheaper of the plans for one thread and for `threads`."""
    return plan_among(program, (1, threads), machine)


def plan_among(program: Program, threads: Sequence[int], machine: Machine) -> FusionPlan:
    """The cheapest plan with one of these numbers of threads."""
    late: set[int] = set()  # leaves that are overwritten by a copy at the end
    while True:
        g = build(to_forms(program), machine)
        for op, leaf in list(g.overwrites.items()):
            if leaf.value in late:
                g.late.add(add_copy(g, op, readers=False))
        try:
            plans = [(n, partition(g, n)) for n in dict.fromkeys(threads)]
            return finish(g, *min(plans, key=lambda plan: total_ns(*plan)))
        except (Stuck, Overwritten) as stuck:
            new = {g.overwrites[op].value for op in stuck.outputs} - late
            if not new:
                raise
            late |= new


def total_ns(threads: int, regions: Sequence[Region]) -> float:
    return sum(r.ns for r in regions) + (2 * FORK if threads > 1 else 0)


def finish(g: Graph, threads: int, regions: list[Region]) -> FusionPlan:
    """Everything after the choice of regions. Raises Overwritten."""
    seconds = total_ns(threads, regions) * 1e-9
    combine(g, regions, threads)
    found = schedule(g, regions)
    storage = place(g, found, threads)
    verify(g, found, storage)
    return FusionPlan(g, threads, found, storage, seconds)


def combine(g: Graph, regions: list[Region], threads: int) -> None:
    """What threads hold in parts is added up where it is an output, or read as a whole."""
    for region in list(regions):
        for op in region.members:
            if region.kind[op] != "acc" or not region.tile:
                continue
            if op in g.outputs or whole_readers(g, op):
                copy = add_copy(g, op, readers=True)
                tile = g.flat[copy][:1]
                ns, block = best_block(g, [copy], {copy: "row"}, tile, threads)
                regions.append(Region(tile, [copy], {copy: "row"}, block, ns, {}, tile))


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
    total = access.root.dtype.itemsize
    for a in access.atoms:
        total *= a.size
    return total


def region_flops(region: Region) -> int:
    """FLOPs of the members, by the table's convention."""
    total = 0
    for op in region.members:
        primitive = TABLE.get(op.name)
        if primitive is not None and op.form not in ("concat", "view"):
            total += primitive.flops([x.type for x in op.ins], op.type, attrs_of(op))
    return total


def attrs_of(op: Op) -> Mapping[str, object]:
    return op.attrs


def tile_text(region: Region) -> str:
    """`{a12=32 of 256, a7}`: the tile for people."""

    def one(a: Atom) -> str:
        return f"a{a.id}={region.block[a]} of {a.size}"

    return "{" + ", ".join(map(one, region.tile)) + "}"
