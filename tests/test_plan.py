"""Plans are run on tagged bytes: every read finds the value that it asks for, whole.

The simulation knows nothing of liveness. Each byte of the arena, of the saved block, of outputs and
inputs holds the id of the value written there last; a node that writes its place makes the bytes
its own, and a node that reads a value must find the value's id (or its storage's) in every one.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from tests.random_programs import random_program
from tinyaot import ops
from tinyaot.builder import Builder, Sym
from tinyaot.ir import Input, Output, Program, Value
from tinyaot.memory import (
    beside_arena,
    live_bytes,
    lower_bound,
    output_bytes,
    planned_peak,
    saved_bytes,
)
from tinyaot.ops.core import TABLE, using
from tinyaot.passes import partition, plan, schedule
from tinyaot.passes.plan import ALIGNMENT, Slot, place_slots
from tinyaot.record import Decision
from tinyaot.shapes import TensorType, bfloat16, float32, int32
from tinyaot.verify import verify

T = TensorType(float32, (8, 8))


def simulate(program: Program) -> None:
    """Run the plan on tagged bytes."""
    assert program.plan is not None
    places = program.plan.places
    memory: dict[tuple[str, int], np.ndarray] = defaultdict(lambda: np.full(1 << 16, -1))
    memory["arena", 0] = np.full(program.plan.arena, -1)
    owner: dict[int, int] = {}  # value -> the value whose bytes it looks at

    def cells(id_: int) -> np.ndarray:
        place = places[id_]
        of = place.root if place.space in ("input", "output") else 0
        size = program.values[owner[id_]].type.nbytes
        return memory[place.space, of][place.offset : place.offset + size]

    def check(value: Value, who: object) -> None:
        if places[value.id].space != "literal":
            found = set(cells(value.id).tolist())
            assert found <= {owner[value.id]}, f"{who} reads {value} and finds {found}"

    for i in program.inputs:
        owner[i.value.id] = i.value.id
        cells(i.value.id)[:] = i.value.id
    for at, node in enumerate(program.nodes):
        if at and node.phase == "backward" != program.nodes[at - 1].phase and program.is_joint:
            memory["arena", 0][:] = -1  # another call
        result = node.results[0]
        is_view = TABLE[node.op].kind == "view" and (
            places[result.id].root == places[node.inputs[0].id].root
        )
        owner[result.id] = owner[node.inputs[0].id] if is_view else result.id
        if is_view:
            continue
        for v in node.inputs:
            check(v, node)
        if places[result.id].space != "literal":
            cells(result.id)[:] = result.id
    for o in program.outputs:
        check(o.value, o)
        if o.role == "mutated":
            assert places[o.value.id].space == "input" and places[o.value.id].root == o.of


def lowered(program: Program, strategy: str = "min_cut") -> Program:
    return plan(schedule(partition(program, strategy=strategy)))  # type: ignore[arg-type]


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("strategy", ["save_all", "recompute_all", "min_cut"])
def test_random_programs(joint: bool, strategy: str) -> None:
    for seed in range(15):
        program = lowered(random_program(seed, joint=joint), strategy)
        verify(program)
        simulate(program)
        assert lower_bound(program) <= planned_peak(program)


def test_the_simulation_sees_a_bad_plan() -> None:
    """Moving any one buffer of the arena onto another one that lives beside it is seen."""
    program = lowered(random_program(3, joint=False))
    assert program.plan is not None
    places = program.plan.places
    roots = [p for id_, p in places.items() if p.root == id_ and p.space == "arena" and p.nbytes]
    seen = 0
    for a in roots:
        for b in roots:
            if a is b or not (a.first < b.first < a.last):
                continue
            moved = {
                id_: replace(p, offset=a.offset) if p.root == b.root else p
                for id_, p in places.items()
            }
            broken = program.replace(plan=replace(program.plan, places=moved, arena=1 << 16))
            with pytest.raises(AssertionError):
                simulate(broken)
            seen += 1
    assert seen > 5


# ---- small programs -----------------------------------------------------------------------------


class Small:
    """A builder of a few inputs of one type."""

    def __init__(self, count: int, type_: TensorType = T, role: str = "state") -> None:
        self.builder = Builder(count)
        self.builder.phase = "forward"
        self.values = [Value(i, type_) for i in range(count)]
        self.syms = [Sym(v) for v in self.values]
        self.role = role

    def plan(self, *outputs: Output, log: list[Decision] | None = None) -> Program:
        inputs = tuple(Input(v, self.role, f"in{v.id}") for v in self.values)  # type: ignore[arg-type]
        program = Program(
            "p", "schedule", inputs, tuple(self.builder.nodes), outputs, self.builder.next_id
        )
        planned = plan(program, log=log)
        verify(planned)
        simulate(planned)
        return planned


def place(program: Program, x: Sym) -> object:
    assert program.plan is not None
    return program.plan.places[x.value.id]


def test_a_chain_of_maps_is_one_buffer() -> None:
    s = Small(1)
    with using(s.builder):
        a = ops.sin(s.syms[0])
        b = ops.mul(ops.exp(a), 2.0)
        c = ops.sum(b, axes=(0, 1))
    log: list[Decision] = []
    program = s.plan(Output(c.value), log=log)
    assert program.plan is not None and program.plan.arena == T.nbytes
    assert place(program, a) == place(program, b)
    assert [d.reason for d in log] == ["dies-here", "dies-here"]


def test_what_is_not_written_over() -> None:
    s = Small(1)
    with using(s.builder):
        a = ops.sin(s.syms[0])
        turned = ops.mul(a, ops.permute(a, perm=(1, 0)))  # reads elements that it would overwrite
        b = ops.exp(s.syms[0])
        row = ops.slice(b, starts=(0, 0), stops=(1, 8), steps=(1, 1))
        spread = ops.mul(b, row)  # reads a row for all others
        c = ops.exp(ops.add(s.syms[0], 1.0))
        product = ops.dot(c, c, spec="ij,jk->ik")
        d = ops.sin(ops.add(s.syms[0], 2.0))
        less = ops.lt(d, 0.0)  # another size of element
        e = ops.sin(ops.add(s.syms[0], 3.0))
        total = ops.sum(e, axes=(0,))
        outputs = [Output(ops.sum(x, axes=(0, 1)).value) for x in (turned, spread, product, total)]
        outputs.append(Output(ops.sum(ops.cast(less, dtype=int32), axes=(0, 1)).value))
    program = s.plan(*outputs)
    for operand, result in ((a, turned), (b, spread), (c, product), (d, less), (e, total)):
        assert place(program, operand).root != place(program, result).root  # type: ignore[attr-defined]


def test_scatters_write_into_their_base() -> None:
    s = Small(1)
    with using(s.builder):
        base = ops.sin(s.syms[0])
        part = ops.slice(s.syms[0], starts=(0, 0), stops=(2, 8), steps=(1, 1))
        where = {"starts": (2, 0), "stops": (4, 8), "steps": (1, 1)}
        new = ops.slice_scatter(base, part, **where)
        own = ops.slice(new, starts=(0, 0), stops=(2, 8), steps=(1, 1))
        newer = ops.slice_scatter(new, own, **where)  # its source is a part of its base
        outputs = [Output(ops.sum(newer, axes=(0, 1)).value)]
    program = s.plan(*outputs)
    assert place(program, base) == place(program, new)
    assert place(program, new) != place(program, newer)


def test_an_update_is_written_into_the_parameter() -> None:
    s = Small(3)
    w, m, g = s.syms
    with using(s.builder):
        momentum = ops.add(ops.mul(m, 0.9), g)
        new = ops.sub(w, ops.mul(momentum, 0.1))
    log: list[Decision] = []
    program = s.plan(Output(new.value, "mutated", 0), Output(momentum.value, "mutated", 1), log=log)
    assert len(program.nodes) == len(s.builder.nodes)
    assert program.plan is not None and program.plan.arena == T.nbytes  # of the step alone
    assert {d.reason for d in log} == {"updates-input", "dies-here"}


def test_an_intermediate_borrows_a_parameters_buffer_until_the_update() -> None:
    for perm, borrows in (((0, 1), True), ((1, 0), False)):  # the update may not turn it in place
        s = Small(2)
        w, g = s.syms
        with using(s.builder):
            squashed = ops.tanh(w)
            new = ops.add(ops.permute(squashed, perm=perm), g)
        program = s.plan(Output(new.value, "mutated", 0))
        assert program.plan is not None
        assert (program.plan.places[squashed.value.id].space == "input") is borrows


def test_an_update_that_comes_too_early_is_copied_at_the_end() -> None:
    s = Small(1)
    with using(s.builder):
        new = ops.sin(s.syms[0])
        later = ops.dot(s.syms[0], new, spec="ij,jk->ik")
    program = s.plan(Output(new.value, "mutated", 0), Output(later.value))
    assert [n.op for n in program.nodes] == ["sin", "dot", "copy"]
    assert [o.value.id for o in program.outputs_of("mutated")] == [program.nodes[-1].result.id]


def test_one_value_for_two_inputs() -> None:
    """As when two gradients are set to zero: one is written in place, the other copied."""
    s = Small(2)
    with using(s.builder):
        zero = ops.full(value=0.0, shape=(8, 8), dtype=float32)
    log: list[Decision] = []
    program = s.plan(Output(zero.value, "mutated", 0), Output(zero.value, "mutated", 1), log=log)
    assert [n.op for n in program.nodes] == ["full", "copy"]
    assert {d.reason for d in log} == {"updates-input", "given-twice"}


def test_a_swap() -> None:
    s = Small(2)
    a, b = s.values
    program = s.plan(Output(b, "mutated", 0), Output(a, "mutated", 1))
    assert [n.op for n in program.nodes] == ["copy"] * len(program.nodes)
    assert program.plan is not None and program.plan.arena == T.nbytes  # one of them, staged


def test_transposed_onto_itself() -> None:
    s = Small(1)
    with using(s.builder):
        turned = ops.permute(s.syms[0], perm=(1, 0))
    program = s.plan(Output(turned.value, "mutated", 0))
    assert program.plan is not None and program.plan.arena == T.nbytes


def test_what_is_given_back_is_never_an_input() -> None:
    s = Small(2)
    with using(s.builder):
        new = ops.add(s.syms[0], s.syms[1])
        view = ops.permute(s.syms[1], perm=(1, 0))
    program = s.plan(
        Output(new.value, "mutated", 0),
        Output(new.value),  # the new value, also returned
        Output(s.values[0]),  # the old one
        Output(view.value),
    )
    assert program.plan is not None
    spaces = [program.plan.places[o.value.id].space for o in program.outputs]
    assert spaces == ["input", "output", "output", "output"]
    assert output_bytes(program) == 3 * T.nbytes


def test_outputs_that_look_at_one_storage_share_it() -> None:
    s = Small(1)
    with using(s.builder):
        y = ops.sin(s.syms[0])
        top = ops.slice(y, starts=(0, 0), stops=(4, 8), steps=(1, 1))
    program = s.plan(Output(y.value), Output(top.value))
    assert place(program, y) == place(program, top)
    assert output_bytes(program) == T.nbytes


def test_gradients_share_nothing() -> None:
    builder = Builder(2)
    x, g = Value(0, T), Value(1, T)
    builder.phase = "backward"
    with using(builder):
        same = ops.mul(Sym(g), 2.0)
        flat = ops.broadcast(ops.sum(Sym(g), axes=(0, 1)), shape=(8, 8))
        other = ops.exp(Sym(g))
        view = ops.reshape(other, shape=(64,))
    inputs = [Input(x, "argument", "x", True), Input(g, "cotangent", "y")]
    inputs += [Input(Value(i, T), "argument", f"x{i}", True) for i in (20, 21, 22, 24)]
    inputs.append(Input(Value(23, T.with_shape((64,))), "argument", "x23", True))
    outputs = [
        Output(same.value, "gradient", 0),
        Output(same.value, "gradient", 20),
        Output(flat.value, "gradient", 21),  # repeats one element
        Output(g, "gradient", 22),  # the caller's own array
        Output(view.value, "gradient", 23),
        Output(other.value, "gradient", 24),
    ]
    program = Program("p", "schedule", tuple(inputs), tuple(builder.nodes), tuple(outputs), 30)
    planned = plan(program)
    simulate(planned)
    assert planned.plan is not None
    roots = {planned.plan.places[o.value.id].root for o in planned.outputs}
    assert len(roots) == len(outputs)
    assert {planned.plan.places[o.value.id].space for o in planned.outputs} == {"output"}
    assert all(n.phase == "backward" for n in planned.nodes)


def test_constants_take_no_memory_until_they_are_given() -> None:
    s = Small(1)
    with using(s.builder):
        wide = ops.full(value=2.0, shape=(8, 8), dtype=float32)
        product = ops.mul(s.syms[0], ops.permute(wide, perm=(1, 0)))
        given = ops.full(value=0.0, shape=(8, 8), dtype=float32)
    program = s.plan(Output(product.value), Output(given.value))
    assert place(program, wide).space == "literal"  # type: ignore[attr-defined]
    assert place(program, given).space == "output"  # type: ignore[attr-defined]


def test_a_reshape_without_strides_is_a_copy() -> None:
    s = Small(1)
    with using(s.builder):
        y = ops.sin(s.syms[0])
        flat = ops.reshape(ops.permute(y, perm=(1, 0)), shape=(64,))
        near = ops.reshape(y, shape=(64,))
        total = ops.sum(ops.mul(flat, near), axes=(0,))
    program = s.plan(Output(total.value))
    assert place(program, near) == place(program, y)
    assert place(program, flat) != place(program, y)


def test_saved_values_have_a_block_of_their_own() -> None:
    for seed in range(10):
        program = lowered(random_program(seed, joint=True), "save_all")
        assert program.plan is not None
        saved = [
            p for id_, p in program.plan.places.items() if p.space == "saved" and p.root == id_
        ]
        assert saved_bytes(program) >= sum(p.nbytes for p in saved)
        assert all(p.offset % ALIGNMENT == 0 for p in saved)
        assert planned_peak(program) == program.plan.arena + beside_arena(program)


def test_nothing_at_all() -> None:
    empty = TensorType(float32, (0, 3))
    s = Small(1, empty)
    with using(s.builder):
        y = ops.sin(s.syms[0])
    program = s.plan(Output(ops_sum(s, y).value))
    assert planned_peak(program) == 3 * 4
    nothing = plan(Program("p", "schedule", (), (), (), 0))
    assert planned_peak(nothing) == lower_bound(nothing) == 0


def ops_sum(s: Small, x: Sym) -> Sym:
    with using(s.builder):
        result: Sym = ops.sum(x, axes=(0,))
    return result


def test_halves_are_aligned() -> None:
    s = Small(1, TensorType(bfloat16, (3,)))
    with using(s.builder):
        a, b = ops.sin(s.syms[0]), ops.exp(s.syms[0])
        total = ops.mul(a, ops.concat(b, axis=0))
    program = s.plan(Output(total.value))
    assert program.plan is not None
    assert all(p.offset % ALIGNMENT == 0 for p in program.plan.places.values())


# ---- placing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_slots_that_live_together_are_apart(seed: int) -> None:
    rng = random.Random(seed)
    slots = []
    for root in range(rng.randint(1, 40)):
        first = rng.randrange(30)
        size = rng.choice((0, 1, 4, 60, 64, 100, 1000))
        slots.append(Slot("arena", root, size, first, first + rng.randrange(10), root))
    span = place_slots(slots)
    assert span == max((s.offset + s.nbytes for s in slots), default=0)
    for a in slots:
        assert a.offset % ALIGNMENT == 0
        for b in slots:
            if a is not b and a.first <= b.last and b.first <= a.last and a.nbytes and b.nbytes:
                assert a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset


def test_the_lowest_gap_is_taken() -> None:
    def slot(root: int, nbytes: int, first: int, last: int) -> Slot:
        return Slot("arena", root, nbytes, first, last, root)

    slots = [slot(0, 256, 0, 9), slot(1, 128, 0, 3), slot(2, 128, 4, 9), slot(3, 64, 2, 2)]
    assert place_slots(slots) == 448
    assert [s.offset for s in slots] == [0, 256, 256, 384]
    # A gap between two that stay: between the first and the third, where the second has died.
    slots = [slot(0, 256, 0, 9), slot(1, 256, 0, 3), slot(2, 256, 2, 9), slot(3, 128, 4, 9)]
    assert place_slots(slots) == 768
    assert [s.offset for s in slots] == [0, 256, 512, 256]


def test_figures_of_the_live_bytes() -> None:
    s = Small(1)
    with using(s.builder):
        a = ops.sin(s.syms[0])
        b = ops.dot(a, a, spec="ij,jk->ik")
        total = ops.sum(b, axes=(0, 1))
    program = s.plan(Output(total.value))
    assert live_bytes(program) == [T.nbytes, 2 * T.nbytes, T.nbytes]
    assert lower_bound(program) == planned_peak(program) == 2 * T.nbytes + 4
    with pytest.raises(ValueError, match="no memory plan"):
        planned_peak(program.replace(plan=None))
