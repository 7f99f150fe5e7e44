"""Homes: where outputs have to be, and the copies without which they could not be there.

A user's output needs memory of its own, a gradient shares its memory with nobody, and the new value
of a mutated input ends in that input's buffer: computed there, if no reader of the old value comes
later, or else copied there at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tinyaot.ir import Node, Phase, Program, Value
from tinyaot.ops.core import TABLE
from tinyaot.passes.storage import Storages
from tinyaot.shapes import overlaps_itself


@dataclass(frozen=True)
class Homes:
    """A program in which every output can have its home.

    `updates`: its `in_place_updates`. `copies`: (the copy's id, the id it copies, why): of an input
    that is given back, `input-given-back`; of an input's old value that would be lost before its
    other reader, `swapped`; of a new value that could not be computed in the input's buffer, since
    the old one is `read-later`, since it is a `view` of another storage, or since two inputs are
    `given-twice` the same; of one that the caller gets apart, too, `also-given-back`; of a gradient
    that shares its storage or repeats elements, `shared-gradient`.
    """

    program: Program
    storages: Storages
    updates: dict[int, int]
    copies: list[tuple[int, int, str]]


def give_homes(program: Program, storages: Storages) -> Homes:
    """Add the `copy` nodes without which some output would have no memory of its own."""
    editor = _Editor(program, storages)
    editor.copy_given_inputs()
    editor.copy_mutated()
    editor.copy_shared_gradients()
    after = editor.program_so_far()
    updates = editor.updates
    if after is not editor.looked_at:
        updates = in_place_updates(after, editor.storages)
    return Homes(after, editor.storages, updates, editor.copies)


class _Editor:
    """Collects copies: right behind what they copy, or at the end of a half."""

    def __init__(self, program: Program, storages: Storages) -> None:
        self.program, self.storages = program, storages
        self.joint = program.is_joint
        self.outputs = list(program.outputs)
        self.inputs = {i.value.id for i in program.inputs}
        self.next_id = program.next_id
        self.early: dict[int, list[Node]] = {}  # by the value that is copied
        self.late: dict[bool, list[Node]] = {False: [], True: []}  # by: in the backward half
        self.copies: list[tuple[int, int, str]] = []

    def root(self, value: Value) -> int:
        return self.storages.root[value.id]

    def copy(self, position: int, why: str, *, early: bool = False) -> None:
        """Let the output at `position` give a copy of its value. `early`: of the value that an
        input has before any overwriting."""
        output = self.outputs[position]
        value = output.value
        producer = self.program.producers.get(value.id)
        cotangent = any(i.value.id == value.id for i in self.program.inputs_of("cotangent"))
        phase: Phase = (producer.phase if producer else None) or "forward"
        if output.role == "gradient" or cotangent:
            phase = "backward"
        fresh = Value(self.next_id, value.type)
        self.next_id += 1
        node = Node("copy", (value,), (fresh,), {}, phase, producer.loc if producer else None)
        if early and phase != "backward":
            self.early.setdefault(value.id, []).append(node)
        else:
            self.late[self.joint and phase == "backward"].append(node)
        self.storages = self.storages.with_root(fresh)
        self.copies.append((fresh.id, value.id, why))
        self.outputs[position] = replace(output, value=fresh)

    def copy_given_inputs(self) -> None:
        """The caller gets its own memory, with the value from before any overwriting."""
        for position, output in enumerate(self.outputs):
            if output.role in ("user", "gradient") and self.root(output.value) in self.inputs:
                self.copy(position, "input-given-back", early=True)

    def copy_mutated(self) -> None:
        mutated = [at for at, o in enumerate(self.outputs) if o.role == "mutated"]
        overwritten = {self.outputs[at].of for at in mutated}
        for at in mutated:
            # The value is another input, or a view of this one: it must not be lost meanwhile.
            output = self.outputs[at]
            if output.value.id != output.of and self.root(output.value) in overwritten:
                self.copy(at, "swapped")
        self.looked_at = self.program_so_far()
        self.updates = in_place_updates(self.looked_at, self.storages)
        for at in mutated:
            output = self.outputs[at]
            if output.value.id != output.of and output.of not in self.updates:
                self.copy(at, self._why_not_in_place(output.value))
        # Whoever else gives such a value to the caller cannot give it the input's own buffer.
        owned = {self.outputs[at].value.id for at in mutated}
        for position, output in enumerate(self.outputs):
            if output.role in ("user", "gradient") and self.root(output.value) in owned:
                self.copy(position, "also-given-back")

    def _why_not_in_place(self, value: Value) -> str:
        if self.storages.is_root(value):
            written = {self.looked_at.nodes[at].results[0].id for at in self.updates.values()}
            return "given-twice" if value.id in written else "read-later"
        return "view"

    def copy_shared_gradients(self) -> None:
        """A gradient is accumulated in place later on, so it shares its memory with nothing."""
        taken = {self.root(o.value) for o in self.outputs if o.role in ("user", "saved")}
        for position, output in enumerate(self.outputs):
            if output.role != "gradient":
                continue
            root, geometry = self.root(output.value), self.storages.geometry[output.value.id]
            whole = math.prod(self.storages.geometry[root].shape) == math.prod(geometry.shape)
            if root in taken or not whole or overlaps_itself(geometry):
                self.copy(position, "shared-gradient")
            taken.add(root)

    def program_so_far(self) -> Program:
        if self.next_id == self.program.next_id:
            return self.program  # no copies
        nodes = [n for i in self.program.inputs for n in self.early.get(i.value.id, ())]
        for node in self.program.nodes:
            nodes.append(node)
            nodes += [n for r in node.results for n in self.early.get(r.id, ())]
        for backward in (False, True):
            at = _end_of_half(nodes, self.joint, backward)
            nodes[at:at] = self.late[backward]
        return self.program.replace(
            nodes=tuple(nodes), outputs=tuple(self.outputs), next_id=self.next_id
        )


def _end_of_half(nodes: Sequence[Node], joint: bool, backward: bool) -> int:
    if joint and not backward:
        return next((i for i, n in enumerate(nodes) if n.phase == "backward"), len(nodes))
    return len(nodes)


def in_place_updates(program: Program, storages: Storages) -> dict[int, int]:
    """The inputs whose new value can be computed in their own buffer: input id -> position of the
    node that writes it. Every read of the old value is over by then, or is by that node, of an op
    that goes element by element."""
    positions = {r.id: at for at, n in enumerate(program.nodes) for r in n.results}
    last_read: dict[int, int] = {}
    for at, node in enumerate(program.nodes):
        for v in node.inputs:
            last_read[storages.root[v.id]] = at
    for output in program.outputs:
        if output.role in ("user", "gradient"):
            last_read[storages.root[output.value.id]] = len(program.nodes)
    found: dict[int, int] = {}
    claimed: set[int] = set()
    for output in program.outputs_of("mutated"):
        value, of = output.value, output.of
        assert of is not None
        at = positions.get(value.id, -1)
        if at < 0 or value.id in claimed or not storages.is_root(value):
            continue
        last = last_read.get(of, -1)
        if last < at or (last == at and may_write_over(program.nodes[at], of, storages)):
            found[of] = at
            claimed.add(value.id)
    return found


def may_write_over(node: Node, root: int, storages: Storages) -> bool:
    """Whether the node may write its result over the storage `root`, which it reads: it goes
    element by element, and reads that storage only as the result's own shape, in C order, or it
    replaces a part of it."""
    primitive, result = TABLE[node.op], node.results[0]
    for i, v in enumerate(node.inputs):
        if storages.root[v.id] == root and not (
            v.type == result.type and primitive.may_overwrite(i) and v.id in storages.whole
        ):
            return False
    return True
