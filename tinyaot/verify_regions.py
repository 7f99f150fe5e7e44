"""The laws of regions, and of the memory between them.

As in `verify_plan`, nothing that fuse or the planner believes is believed here: who makes and reads
a value, at which level, and whose bytes meet are derived anew from the nodes.
"""

from __future__ import annotations

from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator

from tinyaot.ir import Node, Program
from tinyaot.text import print_node

# ---- from fuse on -------------------------------------------------------------------------------


def bodies_fit_their_regions(program: Program) -> Iterator[str]:
    """A region's operands are the inputs of its body and its results the outputs, under the same
    ids and in the same order; a body is at its program's stage and holds no region and no plan."""
    for n in program.nodes:
        if n.body is None:
            continue
        if n.inputs != tuple(i.value for i in n.body.inputs):
            yield f"{print_node(n)} does not read what its body does"
        if not n.results or n.results != tuple(o.value for o in n.body.outputs):
            yield f"{print_node(n)} does not give what its body does"
        if n.body.stage != program.stage or n.body.plan is not None or n.body.is_fused:
            yield f"{print_node(n)} has a body of another kind, at stage {n.body.stage}"


def one_computation_an_id(program: Program) -> Iterator[str]:
    """An id that several bodies define is the same computation in each of them, and an id that a
    region gives is computed in its body alone."""
    seen: dict[int, Node] = {}
    given = {r.id for n in program.nodes for r in n.results}
    for n in program.all_nodes:
        for r in n.results:
            if r.id in seen:
                other = seen[r.id]
                same = (other.op, other.inputs, other.attrs) == (n.op, n.inputs, n.attrs)
                if r.id in given or not same:
                    yield f"{r} is both {print_node(other)} and {print_node(n)}"
            seen[r.id] = n


# ---- from plan on -------------------------------------------------------------------------------


def _levels(program: Program) -> list[int]:
    """The level of every node, counted through both halves of a joint program."""
    found: list[int] = []
    base = top = 0
    backward = False
    for n in program.nodes:
        if program.is_joint and n.phase == "backward" and not backward:
            backward, base = True, top + 1
        found.append(base + int(n.attrs.get("level", 0)))
        top = max(top, found[-1])
    return found


def levels_follow_reads(program: Program) -> Iterator[str]:
    """A region runs at a later level than those whose values it reads, and than those that read the
    old value of an input that it overwrites."""
    if program.plan is None:
        return
    level = _levels(program)
    made = {r.id: at for at, n in enumerate(program.nodes) for r in n.results}
    readers = defaultdict(list)
    for at, n in enumerate(program.nodes):
        for v in n.inputs:
            readers[v.id].append(at)
            if v.id in made and level[made[v.id]] >= level[at]:
                yield f"{print_node(n)} reads {v} of its own level"
    for id_, place in program.plan.places.items():
        if place.space == "input" and id_ in made:
            for at in readers[place.root]:
                if at != made[id_] and level[at] >= level[made[id_]]:
                    yield f"{print_node(program.nodes[at])} reads %{place.root}, which %{id_} is in"


def region_values_have_places(program: Program) -> Iterator[str]:
    """A fused program has a place for every value between regions, and for nothing else, inside the
    arena; places with one root are equal."""
    if program.plan is None:
        return
    places = program.plan.places
    for id_ in program.values.keys() ^ places.keys():
        yield f"%{id_} has {'a place' if id_ in places else 'none'}"
    for id_, place in places.items():
        if id_ in program.values and place != places.get(place.root):
            yield f"%{id_} is in {place}, its root in {places.get(place.root)}"
        if place.space == "arena" and not 0 <= place.offset <= program.plan.arena - place.nbytes:
            yield f"%{id_} is outside the arena"


def _alive(program: Program, level: list[int]) -> dict[int, tuple[int, int]]:
    """The first and last level at which each of the arena's buffers is touched, by its root."""
    assert program.plan is not None
    found: dict[int, tuple[int, int]] = {}
    for at, n in enumerate(program.nodes):
        for v in (*n.inputs, *n.results):
            place = program.plan.places.get(v.id)
            if place is not None and place.space == "arena":
                lo, hi = found.get(place.root, (level[at], level[at]))
                found[place.root] = min(lo, level[at]), max(hi, level[at])
    return found


def region_lives_are_right(program: Program) -> Iterator[str]:
    """A buffer of the arena is in use from the first region of the level that writes it to the last
    region of the level that reads it last."""
    if program.plan is None:
        return
    level = _levels(program)
    for root, (lo, hi) in _alive(program, level).items():
        first = level.index(lo)
        last = len(level) - 1 - level[::-1].index(hi)
        place = program.plan.places[root]
        if (place.first, place.last) != (first, last):
            yield f"%{root} lives {first}..{last}, the plan says {place.first}..{place.last}"


def region_buffers_are_apart(program: Program) -> Iterator[str]:
    """In the arena, buffers that are alive at one level share no byte, nor do the saved values."""
    if program.plan is None:
        return
    level, places = _levels(program), program.plan.places
    buffers = _alive(program, level)
    for id_, place in places.items():
        if place.space == "saved" and place.root == id_:
            buffers[id_] = 0, max(level, default=0)
    for space in ("arena", "saved"):
        alive: list[tuple[int, int, int]] = []  # by offset: apart so far, so only neighbours meet
        now = 0
        for root, (lo, hi) in sorted(buffers.items(), key=lambda item: item[1]):
            p = places[root]
            if p.space != space:
                continue
            if lo != now:
                alive, now = [b for b in alive if b[2] >= lo], lo
            at = bisect(alive, (p.offset, root, hi))
            for _, other, _ in alive[max(at - 1, 0) : at + 1]:
                q = places[other]
                if p.offset < q.offset + q.nbytes and q.offset < p.offset + p.nbytes:
                    yield f"%{other} and %{root} overlap at level {lo}"
            alive.insert(at, (p.offset, root, hi))


def region_outputs_outlive_the_call(program: Program) -> Iterator[str]:
    """What the caller is given has memory of its own, not the arena's."""
    if program.plan is None:
        return
    allowed = {"user": ("output",), "gradient": ("output",), "saved": ("saved", "output", "input")}
    inputs = {i.value.id for i in program.inputs}
    for o in program.outputs:
        if not o.value.type.size:
            continue  # what has no elements is in no buffer
        space = program.plan.places[o.value.id].space
        if o.role in allowed and space not in allowed[o.role]:
            yield f"output {o.role} {o.value} is in the {space} space"
        if o.role == "mutated" and o.value.id not in inputs:
            if program.plan.places[o.value.id].root != o.of:
                yield f"output {o.value} is not in the buffer of %{o.of}"


REGION_LAWS = (bodies_fit_their_regions, one_computation_an_id)
REGION_PLAN_LAWS = (
    levels_follow_reads,
    region_values_have_places,
    region_lives_are_right,
    region_buffers_are_apart,
    region_outputs_outlive_the_call,
)
