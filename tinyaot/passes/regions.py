"""What schedule and plan do with regions: levels, and the memory between them.

Regions of one level run side by side, so a buffer is in use from the beginning of the level that
writes it to the end of the last that reads it. What one region alone touches is scratch, a piece
for each thread; it has no place here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tinyaot.ir import Node, Place, Plan, Program, Value
from tinyaot.passes.fuse import Fusion, fusion_of, with_regions
from tinyaot.passes.fusion.export import Exporter
from tinyaot.passes.fusion.op import Op
from tinyaot.passes.fusion.storage import padded
from tinyaot.record import Decision


def schedule_regions(program: Program, log: list[Decision] | None = None) -> Program:
    """The regions by level."""
    fusion = fusion_of(program)
    nodes: list[Node] = [n for n in program.nodes if n.body is None]
    made = iter([n for n in fusion.nodes if n.body is not None])
    for name, plan in fusion.plans.items():
        for region in plan.regions:
            node = _at(next(made), "schedule")
            nodes.append(replace(node, attrs={**node.attrs, "level": plan.level[region]}))
        if log is not None:
            levels = len(set(plan.level.values()))
            numbers = {"levels": levels, "regions": len(plan.regions), "threads": plan.threads}
            log.append(Decision("schedule", None, name, "levels", numbers))
    if program.is_joint:  # an empty value of the backward is no region's
        nodes.sort(key=lambda n: n.phase == "backward")
    return with_regions(program.replace(stage="schedule"), nodes, fusion)


def plan_regions(program: Program, log: list[Decision] | None = None) -> Program:
    """A place for every value that is in memory between regions."""
    fusion = fusion_of(program)
    nodes = [n if n.body is None else _at(n, "plan") for n in program.nodes]
    planned = with_regions(program.replace(stage="plan"), nodes, fusion)
    places = {
        i.value.id: Place("input", 0, i.value.type.nbytes, i.value.id, -1, -1)
        for i in program.inputs
    }
    end = len(nodes)
    for at, node in enumerate(nodes):
        if node.body is None:  # an empty value
            places[node.result.id] = Place("output", 0, 0, node.result.id, at, end)
    saved = 0
    for name in fusion.plans:
        placer = _Placer(planned, name, fusion)
        for id_, place in placer.places():
            if place.space == "saved" and place.root == id_:
                place = replace(place, offset=saved)
                saved += padded(place.nbytes)
            elif place.space == "saved":
                place = replace(place, offset=places[place.root].offset)
            places[id_] = place
        for id_, last in placer.last_reads():
            root = places[id_].root
            if last > places[root].last:
                places[root] = replace(places[root], last=last)
        if log is not None:
            log += placer.decisions()
    for o in program.outputs_of("mutated"):
        if o.of is not None and o.value.id != o.of:
            places[o.of] = replace(places[o.of], last=end)
    for id_, place in places.items():  # places with one root are equal
        if place.root != id_:
            places[id_] = places[place.root]
    plans = fusion.plans.values()
    arena = max((p.storage.arena for p in plans), default=0)
    scratch = max(
        (padded(max(p.storage.scratch.values(), default=0)) * p.threads for p in plans), default=0
    )
    return planned.replace(plan=Plan(arena, places, scratch))


def _at(node: Node, stage: str) -> Node:
    assert node.body is not None
    return replace(node, body=node.body.replace(stage=stage))


class _Placer:
    """The places of what one entry point's regions make."""

    def __init__(self, program: Program, name: str, fusion: Fusion) -> None:
        self.program, self.plan = program, fusion.plans[name]
        self.to: Exporter = fusion.names[name]
        self.op_of: dict[int, Op] = {v.id: op for op, v in self.to.value_of.items()}
        self.op_of |= {v.id: op for op, v in self.to.given.values()}
        self.given: dict[Op, list[Value]] = {}
        for op, v in self.to.given.values():
            self.given.setdefault(op, []).append(v)
        self.slot_in = {
            a.root: op for op in self.plan.graph.work if op.form == "concat"
            for a in self.plan.graph.reads[op]
        }  # fmt: skip
        regions = [at for at, n in enumerate(program.nodes) if _entry(n) == name]
        self.mine = regions
        self.made = {r.id for at in regions for r in program.nodes[at].results}
        level = [self.plan.level[r] for r in self.plan.regions]
        self.begins: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        for at, x in zip(regions, level, strict=True):
            self.begins.setdefault(x, at)
            self.ends[x] = at
        self.level_at = dict(zip(regions, level))

    def places(self) -> Iterator[tuple[int, Place]]:
        """Of each result, roots first."""
        storage, end = self.plan.storage, len(self.program.nodes)
        role = {o.value.id: o.role for o in self.program.outputs}
        found: list[tuple[int, Place]] = []
        for at in self.mine:
            for value in self.program.nodes[at].results:
                op = self.op_of[value.id]
                root = self.root(op, value.id)
                owner = self.op_of[root]
                home = storage.homes[op]
                first = self.begins[self.level_at[at]]
                if home.space == "input":
                    leaf = self.plan.graph.forms.inputs[home.at].value
                    found.append((value.id, Place("input", 0, value.type.nbytes, leaf, first, end)))
                elif home.space == "output":
                    place = Place("output", 0, owner.type.nbytes, root, first, end)
                    if role.get(root) == "saved":
                        place = replace(place, space="saved")
                    found.append((value.id, place))
                else:
                    size, level, _ = storage.sizes[owner]
                    nbytes = size - padded(owner.type.nbytes) + owner.type.nbytes
                    first, last = self.begins[level], self.ends[self.level_at[at]]
                    at_ = storage.homes[owner].at
                    found.append((value.id, Place("arena", at_, nbytes, root, first, last)))
        yield from sorted(found, key=lambda x: x[1].root != x[0])

    def root(self, op: Op, id_: int) -> int:
        """The value whose buffer it is: of a concatenation's part the whole, of an output that
        others read in another shape their value."""
        while op in self.slot_in:
            op = self.slot_in[op]
        names = [self.to.value_of.get(op), *self.given.get(op, ())]
        return next((v.id for v in names if v is not None and v.id in self.made), id_)

    def last_reads(self) -> Iterator[tuple[int, int]]:
        """(an input or a saved value, the end of the last level that reads it)."""
        for at in self.mine:
            for v in self.program.nodes[at].inputs:
                yield v.id, self.ends[self.level_at[at]]

    def decisions(self) -> Iterator[Decision]:
        """What is computed over an input."""
        for op, leaf in self.plan.graph.overwrites.items():
            value = self.to.name(op)
            numbers = {"bytes": value.type.nbytes}
            yield Decision("in-place", value.id, f"%{leaf.value}", "updates-input", numbers)


def _entry(node: Node) -> str:
    """The entry point that a region belongs to."""
    return str(node.attrs.get("name", "")).partition("_region_")[0]
