"""Orders: nothing that must wait is early, and the planned arena never grows."""

from __future__ import annotations

import numpy as np
import pytest

import tinyaot as ta
from tests.random_programs import random_program
from tinyaot import ops
from tinyaot.builder import Builder, Sym
from tinyaot.ir import Input, Output, Program, Value
from tinyaot.ops.core import using
from tinyaot.passes import partition, plan, schedule
from tinyaot.record import Decision
from tinyaot.shapes import TensorType, float32
from tinyaot.verify import verify

BIG = TensorType(float32, (64, 64))


def arena(program: Program) -> int:
    planned = plan(program).plan
    assert planned is not None
    return planned.arena


def program_of(builder: Builder, inputs: list[Value], outputs: list[Output]) -> Program:
    return Program(
        "p",
        "fuse",
        tuple(Input(v, "state", f"in{v.id}") for v in inputs),
        tuple(builder.nodes),
        tuple(outputs),
        builder.next_id,
    )


@pytest.mark.parametrize("joint", [False, True])
def test_random_programs(joint: bool) -> None:
    for seed in range(15):
        given = partition(random_program(seed, joint=joint), strategy="recompute_all")
        after = schedule(given)
        verify(after)  # defined before use; the forward before the backward
        assert sorted(map(str, after.nodes)) == sorted(map(str, given.nodes))
        assert arena(after) <= arena(given) or joint


def test_what_frees_memory_goes_first() -> None:
    """Wide values that are summed at once: one alive at a time, not all."""
    builder = Builder(1)
    x = Value(0, BIG)
    builder.phase = "forward"
    with using(builder):
        wide = [ops.sin(ops.mul(Sym(x), float(k))) for k in range(6)]
        sums = [ops.sum(w, axes=(0, 1)) for w in wide]
        total = sums[0]
        for s in sums[1:]:
            total = ops.add(total, s)
    given = program_of(builder, [x], [Output(total.value)])
    assert arena(given) >= 6 * BIG.nbytes
    log: list[Decision] = []
    assert arena(schedule(given, log=log)) < 2 * BIG.nbytes
    (decision,) = log
    assert decision.choice != "given"
    assert {a["order"] for a in decision.alternatives} >= {"given", decision.choice}


def test_what_nobody_waits_for_is_computed_late() -> None:
    """A wide value that is read at the end only is not kept alive from the start."""
    builder = Builder(1)
    x = Value(0, BIG)
    builder.phase = "forward"
    with using(builder):
        early = ops.exp(Sym(x))
        h = ops.mul(ops.sin(ops.add(Sym(x), 1.0)), Sym(x))
        h = ops.mul(ops.sin(ops.dot(h, h, spec="ij,jk->ik")), Sym(x))
        h = ops.dot(h, h, spec="ij,jk->ik")
        small = ops.sum(h, axes=(0, 1))
        total = ops.sum(ops.mul(early, small), axes=(0, 1))
    given = program_of(builder, [x], [Output(total.value)])
    after = schedule(given)
    position = {r.id: at for at, n in enumerate(after.nodes) for r in n.results}
    assert position[early.value.id] > position[small.value.id]
    assert arena(after) < arena(given)


def test_readers_of_an_old_value_come_before_its_overwriting() -> None:
    builder = Builder(2)
    w, x = Value(0, BIG), Value(1, BIG)
    builder.phase = "forward"
    with using(builder):
        new = ops.sub(Sym(w), Sym(x))
        late = ops.sum(ops.permute(ops.mul(Sym(w), 2.0), perm=(1, 0)), axes=(0, 1))
        through_view = ops.sum(ops.permute(Sym(w), perm=(1, 0)), axes=(0,))
    outputs = [
        Output(new.value, "mutated", 0),
        Output(late.value),
        Output(through_view.value),
    ]
    after = schedule(program_of(builder, [w, x], outputs))
    position = {r.id: at for at, n in enumerate(after.nodes) for r in n.results}
    assert position[new.value.id] > position[through_view.value.id]
    planned = plan(after)
    assert planned.plan is not None
    assert planned.plan.places[new.value.id].space == "input"
    assert not any(n.op == "copy" for n in planned.nodes)


def test_a_reader_that_needs_the_new_value_is_no_cycle() -> None:
    builder = Builder(1)
    w = Value(0, BIG)
    builder.phase = "forward"
    with using(builder):
        new = ops.sin(Sym(w))
        both = ops.mul(Sym(w), new)  # reads the old value and the new one
    outputs = [Output(new.value, "mutated", 0), Output(both.value)]
    after = schedule(program_of(builder, [w], outputs))
    verify(after)
    verify(plan(after))


def test_two_overwritings_that_wait_for_each_other() -> None:
    builder = Builder(2)
    a, b = Value(0, BIG), Value(1, BIG)
    builder.phase = "forward"
    with using(builder):
        new_a, new_b = ops.sin(Sym(b)), ops.exp(Sym(a))
    outputs = [Output(new_a.value, "mutated", 0), Output(new_b.value, "mutated", 1)]
    after = schedule(program_of(builder, [a, b], outputs))
    verify(plan(after))


def test_a_long_chain() -> None:
    """Deep programs are walked with a stack of our own."""
    builder = Builder(1)
    x = Value(0, TensorType(float32, (2,)))
    builder.phase = "forward"
    with using(builder):
        h = Sym(x)
        for _ in range(2000):
            h = ops.reshape(ops.sin(h), shape=(2, 1) if h.ndim == 1 else (2,))
    after = schedule(program_of(builder, [x], [Output(h.value)]))
    assert len(after.nodes) == 4000
    verify(after)


def test_a_write_of_the_forward_waits_for_no_check_of_the_backward() -> None:
    # The first write is dead, but its gradient gathers: with nothing left that has checked before.
    def f(x: ta.Tensor) -> None:
        x[ta.tensor([-4, 1])] = 1.0
        x[...] = 0.5

    leaf = ta.ones(4, requires_grad=True)
    x = leaf * 1
    ta.compile(f, backend="numpy")(x)
    x.sum().backward()
    np.testing.assert_array_equal(x.detach().numpy(), np.full(4, 0.5, np.float32))
    np.testing.assert_array_equal(leaf.grad.numpy(), np.zeros(4))  # type: ignore[union-attr]
