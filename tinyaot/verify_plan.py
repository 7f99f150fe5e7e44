"""The laws of a memory plan: that running it in shared bytes gives what running it apart gives.

Nothing that the planner believes is believed here. Which values are views, when each buffer is
alive, and what may be computed in place are derived anew from the nodes, and compared. The words: a
*buffer* is the values whose places have one root; a *version* is one value computed in it, together
with the views of that value; a version lasts until the next one overwrites it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from tinyaot.ir import Node, Place, Program
from tinyaot.ops.core import TABLE
from tinyaot.shapes import Geometry, contiguous
from tinyaot.text import print_node


@dataclass
class _Facts:
    """What the nodes say of every value: the version it belongs to (the id of the value that is
    computed), how it lies in that, where it is made (-1: an input), and by whom a version is read
    (an output reads at the end)."""

    version: dict[int, int] = field(default_factory=dict)
    geometry: dict[int, Geometry] = field(default_factory=dict)
    made: dict[int, int] = field(default_factory=dict)
    reads: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))


def _facts(program: Program) -> _Facts:
    f = _Facts()
    for i in program.inputs:
        f.version[i.value.id], f.made[i.value.id] = i.value.id, -1
        f.geometry[i.value.id] = contiguous(i.value.type.shape)
    for position, node in enumerate(program.nodes):
        for v in node.inputs:
            f.reads[f.version[v.id]].append(position)
        seen = None
        through = TABLE[node.op].geometry
        if through is not None:
            seen = through(f.geometry[node.inputs[0].id], **node.attrs)
        for r in node.results:
            f.made[r.id] = position
            f.version[r.id] = r.id if seen is None else f.version[node.inputs[0].id]
            f.geometry[r.id] = contiguous(r.type.shape) if seen is None else seen
    for o in program.outputs:
        if o.value.id != o.of:  # an input that kept its value is not given back
            f.reads[f.version[o.value.id]].append(len(program.nodes))
    return f


def _places(program: Program) -> dict[int, Place]:
    assert program.plan is not None
    return dict(program.plan.places)


def _buffers(program: Program, f: _Facts) -> dict[int, list[int]]:
    """The versions in each buffer, by its root, in the order they are made."""
    found = defaultdict(list)
    for id_, place in _places(program).items():
        if f.version[id_] == id_:
            found[place.root].append(id_)
    return {root: sorted(versions, key=f.made.__getitem__) for root, versions in found.items()}


# ---- places -------------------------------------------------------------------------------------


def every_value_has_a_place(program: Program) -> Iterator[str]:
    """A planned program has a place for every value, and for nothing else."""
    if program.plan is None:
        yield "there is no plan"
        return
    for id_ in program.values:
        if id_ not in program.plan.places:
            yield f"%{id_} has none"
    for id_ in program.plan.places:
        if id_ not in program.values:
            yield f"%{id_} has one, but nothing defines it"


def roots_own_their_bytes(program: Program) -> Iterator[str]:
    """The root of a place is a value with itself as root, and places with one root are equal."""
    places = _places(program)
    for id_, place in places.items():
        root = places.get(place.root)
        if root is None or root.root != place.root:
            yield f"%{id_} has the root %{place.root}, which is none"
        elif root != place:
            yield f"%{id_} is in {place}, its root %{place.root} in {root}"


def views_share_their_storage(program: Program) -> Iterator[str]:
    """A view is in the place of the value it looks at."""
    places, f = _places(program), _facts(program)
    for id_, version in f.version.items():
        if places[id_].root != places[version].root:
            yield f"%{id_} is a view of %{version}, but its root is %{places[id_].root}"


def places_hold_their_values(program: Program) -> Iterator[str]:
    """A place has room for its value, at a multiple of the element's size, inside the arena;
    literals take no room, and are constants."""
    assert program.plan is not None
    f = _facts(program)
    for id_, place in program.plan.places.items():
        type_ = program.values[id_].type
        if place.space == "literal":
            node = program.producers.get(f.version[id_])
            if node is None or node.op != "full" or place.nbytes:
                yield f"%{id_} is no constant of zero bytes, but a literal"
            continue
        if f.version[id_] == id_ and place.nbytes < type_.nbytes:
            yield f"%{id_}: {type_} has {type_.nbytes} bytes, its place {place.nbytes}"
        if place.offset < 0 or place.offset % type_.dtype.itemsize:
            yield f"%{id_}: {type_} is at offset {place.offset}"
        if place.space == "arena" and place.offset + place.nbytes > program.plan.arena:
            end = place.offset + place.nbytes
            yield f"%{id_} ends at {end}, the arena at {program.plan.arena}"


def live_ranges_are_right(program: Program) -> Iterator[str]:
    """A place's first and last are the positions where its buffer is first made and last read."""
    f, places = _facts(program), _places(program)
    for root, versions in _buffers(program, f).items():
        first = f.made[versions[0]]
        last = max(max(f.reads[v], default=f.made[v]) for v in versions)
        place = places[root]
        if (place.first, place.last) != (first, last):
            yield f"%{root} lives {first}..{last}, the plan says {place.first}..{place.last}"


def live_buffers_are_apart(program: Program) -> Iterator[str]:
    """In the arena, and in the block of saved values, buffers that are alive at one node share no
    byte."""
    roots = [(id_, p) for id_, p in _places(program).items() if p.root == id_ and p.nbytes]
    for space in ("arena", "saved"):
        alive: list[tuple[int, Place]] = []
        for id_, p in sorted((x for x in roots if x[1].space == space), key=lambda x: x[1].first):
            alive = [(other, q) for other, q in alive if q.last >= p.first]
            for other, q in alive:
                if p.offset < q.offset + q.nbytes and q.offset < p.offset + p.nbytes:
                    yield f"%{other} and %{id_} overlap at node {p.first} of the {space}"
            alive.append((id_, p))


# ---- overwriting --------------------------------------------------------------------------------


def overwritten_values_are_dead(program: Program) -> Iterator[str]:
    """A version is overwritten after its last read, or by the node that reads it last, if the op
    may write over that operand and reads it element by element in place."""
    f = _facts(program)
    for versions in _buffers(program, f).values():
        for old, new in pairwise(versions):
            position = f.made[new]
            node = program.nodes[position]
            if late := [r for r in f.reads[old] if r > position]:
                at = late[0]
                by = print_node(program.nodes[at]) if at < len(program.nodes) else "an output"
                yield f"{print_node(node)} overwrites %{old}, which is read later, by {by}"
            elif position in f.reads[old] and not _may_overwrite(node, old, f):
                yield f"{print_node(node)} cannot write over %{old} while it reads it"


def _may_overwrite(node: Node, old: int, f: _Facts) -> bool:
    reads = [(i, v) for i, v in enumerate(node.inputs) if f.version[v.id] == old]
    whole = (f.geometry[v.id] for _, v in reads)
    return (
        all(TABLE[node.op].may_overwrite(i) and v.type == node.result.type for i, v in reads)
        and all(g.offset == 0 and g.is_contiguous for g in whole)
    )  # fmt: skip


def inputs_keep_their_buffers(program: Program) -> Iterator[str]:
    """An input is in its own buffer, which is written only if the input is mutated, and then holds
    the new value at the end; nothing else is in such a space."""
    places, f = _places(program), _facts(program)
    inputs = {i.value.id for i in program.inputs}
    for id_ in inputs:
        if places[id_].space != "input" or places[id_].root != id_:
            yield f"input %{id_} is in {places[id_]}"
    mutated = {o.of: o.value.id for o in program.outputs_of("mutated")}
    for root, versions in _buffers(program, f).items():
        if places[root].space == "input" and root not in inputs:
            yield f"%{root} is no input"
        if root in inputs and versions[-1] != mutated.get(root, root):
            yield f"input %{root}'s buffer ends with the value of %{versions[-1]}"


def outputs_outlive_the_call(program: Program) -> Iterator[str]:
    """What the caller is given has memory of its own. Saved values are in their block, unless the
    caller has them too: the arena carries nothing from the forward to the backward."""
    places = _places(program)
    own = ("output",)
    allowed = {"user": own, "gradient": own, "saved": ("saved", "output", "input")}
    for o in program.outputs:
        space = places[o.value.id].space
        if o.role in allowed and space not in allowed[o.role]:
            yield f"output {o.role} {o.value} is in the {space} space"


PLAN_LAWS = (
    every_value_has_a_place,
    roots_own_their_bytes,
    views_share_their_storage,
    places_hold_their_values,
    live_ranges_are_right,
    live_buffers_are_apart,
    overwritten_values_are_dead,
    inputs_keep_their_buffers,
    outputs_outlive_the_call,
)
