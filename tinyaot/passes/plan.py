"""Plan memory: a place for every value, in-place where that is proven, one arena for the rest.

After functionalization nothing is overwritten; here, and only here, memory is reused. Liveness is
exact because a program is a straight line. A result may take the buffer of an operand that dies
with it when the op goes element by element; an updated parameter is written straight into the
parameter's own buffer when nobody reads the old value any more. What remains is placed greedily,
largest storage first, into the lowest gap that is free for its whole life (the "greedy by size"
of Pisarchyk and Lee, "Efficient memory management for deep neural net inference", 2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tinyaot.ir import Node, Place, Plan, Program, Value
from tinyaot.passes.homes import give_homes, may_write_over
from tinyaot.passes.regions import plan_regions
from tinyaot.passes.storage import Storages, beside, is_constant, raising, storages_of
from tinyaot.record import Decision

ALIGNMENT = 64  # bytes: a cache line, and the widest vector


def plan(program: Program, *, log: list[Decision] | None = None) -> Program:
    """Give every value of a scheduled program a place.

    What it does: views share their base's bytes; results take the buffers of dying operands where
    the op allows it; mutated outputs are written into their input, by the node that computes them
    or, where that cannot be, by a `copy` added at the end; outputs get memory of their own, which
    is fresh at every call; what the backward half reads gets a place in a block of saved values;
    the rest shares one arena. Of regions only what passes between them has a place.

        %3: f32[64,32] = dot(%0, %1)            place %3 arena offset=0     bytes=8192 root=%3
        %4: f32[64,32] = exp(%3)         ->     place %4 arena offset=0     bytes=8192 root=%3
        %5: f32[64,1] = sum(%4) {axes=[1]}      place %5 arena offset=8192  bytes=256  root=%5

    What to look at: `root` (%4 is computed in %3's bytes), offsets that repeat, and in the record
    the lower bound beside the planned peak.
    """
    if program.is_fused:
        return plan_regions(program, log)
    return plan_storages(program, storages_of(program), log)


def plan_storages(
    program: Program, storages: Storages, log: list[Decision] | None = None
) -> Program:
    """`plan` for a caller that knows the program's storages already (schedule tries orders)."""
    homes = give_homes(program, storages)
    program = homes.program
    planner = _Planner(program, homes.storages, homes.updates)
    planner.share_buffers()
    planner.assign_offsets()
    constants = {n.result.id for n in program.nodes if is_constant(n)}
    scratch = max((beside(n, homes.storages, constants) for n in program.nodes), default=0)
    result = program.replace(stage="plan", plan=Plan(planner.arena, planner.places(), scratch))
    if log is not None:
        values = program.values
        log += [
            Decision("copy", of, f"%{copy}", why, {"bytes": values[copy].type.nbytes})
            for copy, of, why in homes.copies
        ]
        log += planner.decisions()
    return result


# ---- sharing buffers and placing them -----------------------------------------------------------


@dataclass(slots=True)
class Slot:
    """A buffer that storages use one after another. `first` and `last` are the positions of the
    nodes that write it first and use it last; `content` is the root that lives in it now."""

    space: Literal["arena", "output", "saved", "input", "literal"]
    root: int
    nbytes: int
    first: int
    last: int
    content: int
    offset: int = 0


class _Planner:
    def __init__(self, program: Program, storages: Storages, overwritten: dict[int, int]) -> None:
        self.program, self.storages = program, storages
        self.overwritten = overwritten  # input id -> position of the node that writes it in place
        self.slots: list[Slot] = []
        self.slot_of: dict[int, Slot] = {}  # by root
        self.arena = 0
        self.taken: list[tuple[int, int]] = []  # (result, root whose buffer it took)
        self.end = len(program.nodes)
        self.checks = raising(program.nodes)
        self.last = self._last_uses()
        self.home = self._homes()

    def _last_uses(self) -> dict[int, int]:
        """The position of the last node that uses each storage: `end` for what is given back."""
        last: dict[int, int] = {}
        root = self.storages.root
        for at, node in enumerate(self.program.nodes):
            for r in node.results:
                last.setdefault(root[r.id], at)
            for v in node.inputs:
                last[root[v.id]] = at
        for output in self.program.outputs:
            if output.value.id != output.of:
                last[root[output.value.id]] = self.end
        return last

    def _homes(self) -> dict[int, Slot]:
        """The slots that outputs have to be in, by the root of the output."""
        program, root = self.program, self.storages.root
        for entry in program.inputs:
            id_ = entry.value.id
            slot = Slot("input", id_, entry.value.type.nbytes, -1, self.last.get(id_, -1), id_)
            self.slot_of[id_] = slot
        home: dict[int, Slot] = {}
        for output in program.outputs_of("mutated"):
            if output.value.id != output.of:
                assert output.of is not None
                home[output.value.id] = self.slot_of[output.of]
        for role, space in (("user", "output"), ("gradient", "output"), ("saved", "saved")):
            for output in program.outputs:
                id_ = root[output.value.id]
                if output.role == role and id_ not in home and id_ not in self.slot_of:
                    home[id_] = Slot(space, id_, 0, 0, self.end, id_)  # type: ignore[arg-type]
        return home

    def share_buffers(self) -> None:
        """Walk the nodes: each new storage takes an operand's buffer, or gets one."""
        for at, node in enumerate(self.program.nodes):
            if self.storages.is_view(node):
                continue
            for result in node.results:
                self._place_result(at, node, result)

    def _place_result(self, at: int, node: Node, result: Value) -> None:
        home = self.home.get(result.id)
        if home is not None and home.space == "input":
            self.slot_of[result.id] = home
            home.content, home.last = result.id, self.end
            return
        if home is None and is_constant(node):
            self.slot_of[result.id] = Slot(
                "literal", result.id, 0, at, self.last[result.id], result.id
            )
            return
        slot = self._operand_to_take(at, node, result, home)
        if slot is None:
            space = home.space if home is not None else "arena"
            slot = Slot(space, result.id, result.type.nbytes, at, at, result.id)
            self.slots.append(slot)
        else:
            self.taken.append((result.id, slot.content))
            if home is not None:
                slot.space = home.space
        slot.content, slot.last = result.id, self.last[result.id]
        self.slot_of[result.id] = slot

    def _operand_to_take(
        self, at: int, node: Node, result: Value, home: Slot | None
    ) -> Slot | None:
        """The buffer of an operand that dies here, if the result can be written over it."""
        for operand in node.inputs:
            root = self.storages.root[operand.id]
            slot = self.slot_of[root]
            if slot.content != root or not may_write_over(node, root, self.storages):
                continue
            if slot.last != at:
                continue
            if slot.space == "arena":
                return slot
            if (
                slot.space == "input"
                and home is None
                and self._fits_before_update(at, slot.root, result)
            ):
                return slot
        return None

    def _fits_before_update(self, at: int, id_: int, result: Value) -> bool:
        """Whether an intermediate may use a parameter's buffer between the last read of the old
        value and the writing of the new one, with nothing in between that may raise."""
        update, last = self.overwritten.get(id_, -1), self.last[result.id]
        if any(at < check < update for check in self.checks):
            return False
        if last < update:
            return True
        if last > update:
            return False
        return may_write_over(self.program.nodes[update], result.id, self.storages)

    def assign_offsets(self) -> None:
        """Greedy by size; of equal sizes the longer life first."""
        arena = [s for s in self.slots if s.space == "arena"]
        arena.sort(key=lambda s: (-s.nbytes, s.first - s.last, s.root))
        self.arena = place_slots(arena)
        end = 0
        for slot in self.slots:
            if slot.space == "saved":
                slot.offset = end
                end = _align(end + slot.nbytes)

    def places(self) -> dict[int, Place]:
        found = {}
        for id_ in self.program.values:
            s = self.slot_of[self.storages.root[id_]]
            found[id_] = Place(s.space, s.offset, s.nbytes, s.root, s.first, s.last)
        return found

    def decisions(self) -> list[Decision]:
        values = self.program.values
        return [
            Decision(
                "in-place", result, f"%{root}", "dies-here", {"bytes": values[result].type.nbytes}
            )
            for result, root in self.taken
        ] + [
            Decision(
                "in-place", self.program.nodes[at].result.id, f"%{of}", "updates-input",
                {"bytes": values[of].type.nbytes},
            )
            for of, at in self.overwritten.items()
        ]  # fmt: skip


def _align(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def place_slots(slots: Sequence[Slot]) -> int:
    """Give the slots offsets, in their order, each in the lowest gap that is free through its
    life; returns the bytes that they span."""
    count = len(slots)
    first, last = np.empty(count, np.int64), np.empty(count, np.int64)
    start, stop = np.empty(count, np.int64), np.empty(count, np.int64)
    span = 0
    for at, slot in enumerate(slots):
        meets = np.flatnonzero((first[:at] <= slot.last) & (last[:at] >= slot.first))
        slot.offset = 0
        if meets.size:
            starts, stops = start[meets], stop[meets]
            order = starts.argsort(kind="stable")
            # Gaps lie between what ends so far and what starts next; the last has no end.
            ends = np.maximum.accumulate(stops[order])
            gaps = starts[order]
            gaps[1:] -= ends[:-1]
            fits = int((gaps >= slot.nbytes).argmax())
            if gaps[fits] < slot.nbytes:
                slot.offset = int(ends[-1])
            elif fits:
                slot.offset = int(ends[fits - 1])
        first[at], last[at] = slot.first, slot.last
        start[at], stop[at] = slot.offset, _align(slot.offset + slot.nbytes)
        span = max(span, slot.offset + slot.nbytes)
    return span
