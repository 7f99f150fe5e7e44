"""The fusion plan of one entry point: regions, their statements and storage.

Plans are made for one thread and for all, and the cheaper is taken, since small steps do not pay
for a fork and barriers. Results that threads hold in parts, and overwrites that cannot happen in
place, get a copy of their own at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from tinyaot.ir import Program
from tinyaot.passes.fusion.forms import to_forms
from tinyaot.passes.fusion.graph import Graph, add_copy, build, whole_readers
from tinyaot.passes.fusion.levels import Overwritten, levels
from tinyaot.passes.fusion.limits import mask, masks_read
from tinyaot.passes.fusion.machine import Machine
from tinyaot.passes.fusion.model import BARRIER, FORK, best_block, op_ns
from tinyaot.passes.fusion.regions import NEARLY, Region, Stuck, partition
from tinyaot.passes.fusion.statements import Schedule, schedule
from tinyaot.passes.fusion.storage import Storage, place, verify


@dataclass
class FusionPlan:
    """What emission needs. `regions` are in order of execution, with a barrier between levels."""

    graph: Graph
    threads: int
    schedule: Schedule
    level: dict[Region, int]
    seconds: float

    @cached_property
    def regions(self) -> list[Region]:
        """In the order they run."""
        return sorted(self.schedule.regions, key=lambda r: (self.level[r], r.members[0].id))

    @cached_property
    def storage(self) -> Storage:
        """Where values live."""
        storage = place(self.graph, self.schedule, self.level, self.threads)
        verify(self.graph, self.schedule, self.level, storage)
        return storage


def plan_fusion(program: Program, threads: int, machine: Machine) -> FusionPlan:
    """The cheaper of the plans for one thread and for `threads`."""
    return plan_among(program, (1, threads), machine)


def plan_among(
    program: Program,
    threads: Sequence[int],
    machine: Machine,
    adjust: Callable[[Graph, Region], None] = lambda g, region: None,
) -> FusionPlan:
    """The cheapest plan with one of these numbers of threads, its regions adjusted."""
    late: set[int] = set()  # leaves that are overwritten by a copy at the end
    while True:
        g = build(to_forms(program), machine)
        for op, leaf in list(g.overwrites.items()):
            if leaf.value in late:
                g.late.add(add_copy(g, op, readers=False))
        try:
            plans = plan_for(g, sorted(set(threads)))
            fastest = min(total_ns(*plan) for plan in plans)
            # of nearly equal plans that for fewer threads, which hold fewer parts
            number, regions = next(p for p in plans if total_ns(*p) <= NEARLY * fastest)
            for region in regions:
                adjust(g, region)
            return finish(g, number, regions)
        except (Stuck, Overwritten) as stuck:
            new = {g.overwrites[op].value for op in stuck.outputs} - late
            if not new:
                raise
            late |= new


def plan_for(g: Graph, threads: Sequence[int]) -> list[tuple[int, list[Region]]]:
    """Plans by number of threads, but for those that cannot be as cheap as that for the most."""
    most = threads[-1]
    regions = partition(g, most)
    bound = NEARLY * total_ns(most, regions)
    least = least_ns(g) if len(threads) > 1 else 0.0
    fewer = [(n, partition(g, n)) for n in threads[:-1] if least / n <= bound]
    return [*fewer, (most, regions)]


def least_ns(g: Graph) -> float:
    """What no plan for one thread costs less than: every op once, in one tile, with triangular
    loops at half their length."""
    masks = (mask(g, op) for op in masks_read(g, g.work))
    short = {found[0] for found in masks if found}
    return sum(float(op_ns(g, op, lambda a: a.size / 2 if a in short else a.size)) for op in g.work)


def total_ns(threads: int, regions: Sequence[Region]) -> float:
    """Of a step. One thread waits for nobody between regions."""
    waits = 2 * FORK if threads > 1 else -BARRIER * len(regions)
    return sum(r.ns for r in regions) + waits


def finish(g: Graph, threads: int, regions: list[Region]) -> FusionPlan:
    """What follows from the choice of regions. Raises Overwritten."""
    seconds = total_ns(threads, regions) * 1e-9
    combine(g, regions, threads)
    found = schedule(g, regions)
    return FusionPlan(g, threads, found, levels(g, found), seconds)


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
