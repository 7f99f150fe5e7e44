"""The NumPy executable gives what interpreting gives, in the memory that the plan says."""

from __future__ import annotations

import threading
import warnings
from dataclasses import replace

import numpy as np
import pytest

from tests.random_programs import random_arrays, random_program
from tinyaot import ops
from tinyaot.backends.measure import Allocations, measure_peak, run_whole
from tinyaot.backends.numpy import Executable
from tinyaot.builder import Builder, Sym
from tinyaot.interpret import interpret
from tinyaot.ir import Input, Output, Program, Value
from tinyaot.memory import output_bytes, planned_peak, saved_bytes, scratch_bytes
from tinyaot.ops.core import using
from tinyaot.passes import differentiate, partition, plan, schedule, simplify
from tinyaot.shapes import DType, TensorType, bfloat16, float16, float32, float64, int64


def lowered(program: Program, strategy: str = "min_cut") -> Program:
    return plan(schedule(partition(program, strategy=strategy)))  # type: ignore[arg-type]


def run(program: Program, arrays: list[np.ndarray], poison: bool = True) -> list[np.ndarray]:
    """The outputs, saved ones left out; the arrays are copied first."""
    given = {i.value.id: a.copy() for i, a in zip(program.inputs, arrays, strict=True)}
    found = run_whole(Executable(program, poison=poison), given)
    return [found[o.value.id] for o in program.outputs if o.role != "saved"]


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("strategy", ["save_all", "recompute_all", "min_cut"])
def test_random_programs(joint: bool, strategy: str) -> None:
    """With poison, so that a read of dead or unwritten memory is a NaN."""
    for seed in range(20):
        program = random_program(seed, joint=joint)
        arrays = random_arrays(program, seed)
        wanted = interpret(program, *arrays)
        optimised = simplify(program) if seed % 2 else program
        for x, y in zip(run(lowered(optimised, strategy), arrays), wanted, strict=True):
            assert x.dtype == y.dtype
            np.testing.assert_allclose(x, y, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("joint", [False, True])
def test_measured_memory_is_planned_memory(joint: bool) -> None:
    for seed in range(10):
        program = lowered(random_program(seed, joint=joint))
        assert program.plan is not None
        measured = measure_peak(program, random_arrays(program, seed))
        assert measured.arena == program.plan.arena
        beside = output_bytes(program) + saved_bytes(program)
        # Ops may allocate a few bytes for a scalar that they convert.
        assert beside <= measured.allocated <= beside + scratch_bytes(program) + 512
        assert measured.peak <= planned_peak(program) + 512


# ---- small programs -----------------------------------------------------------------------------


def small(dtype: DType = float32, shape: tuple[int, ...] = (4, 6)) -> Program:
    """loss = sum(tanh(x @ w)); w -= 0.1 * gradient. Also gives a view of tanh's result."""
    t = TensorType(dtype, shape)
    builder = Builder(2)
    x, w = Value(0, t), Value(1, TensorType(dtype, (shape[1], 3)))
    with using(builder):
        y = ops.tanh(ops.dot(Sym(x), Sym(w), spec="ij,jk->ik"))
        loss = ops.sum(y, axes=(0, 1))
        attrs = {"outputs": 1, "cotangents": False, "wrt": 1}
        grad = builder.emit("grad", [loss.value, w], [w.type], attrs)
        new = ops.sub(Sym(w), ops.mul(Sym(grad.result), 0.5))
        turned = ops.permute(y, perm=(1, 0))
    outputs = (Output(loss.value), Output(turned.value), Output(new.value, "mutated", 1))
    inputs = (Input(x, "argument", "x"), Input(w, "state", "w", True))
    return differentiate(
        Program("small", "functionalize", inputs, tuple(builder.nodes), outputs, builder.next_id)
    )


def halves() -> Program:
    """y = sin(x) * exp(x) with its gradient."""
    builder = Builder(1)
    x = Value(0, TensorType(float32, (5,)))
    with using(builder):
        y = ops.mul(ops.sin(Sym(x)), ops.exp(Sym(x)))
    program = Program(
        "halves",
        "functionalize",
        (Input(x, "argument", "x", True),),
        tuple(builder.nodes),
        (Output(y.value, requires_grad=True),),
        builder.next_id,
    )
    return lowered(differentiate(program), "save_all")


def arrays_of(program: Program, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [
        np.array(rng.uniform(-1, 1, i.value.type.shape), i.value.type.dtype.numpy)
        for i in program.inputs
    ]


@pytest.mark.parametrize("dtype", [float32, float64, float16, bfloat16])
def test_dtypes(dtype: DType) -> None:
    program = small(dtype)
    arrays = arrays_of(program)
    wanted = interpret(program, *arrays)
    for x, y in zip(run(lowered(program), arrays), wanted, strict=True):
        assert x.dtype == y.dtype == dtype.numpy
        np.testing.assert_allclose(x.astype(np.float64), y.astype(np.float64), rtol=1e-6)


def test_outputs_are_fresh_and_updates_in_place() -> None:
    program = lowered(small())
    executable = Executable(program)
    x, w = arrays_of(program)
    before = w.copy()
    first = executable.run("step", [x, w])
    assert first[2] is w and not np.array_equal(w, before)
    kept = [a.copy() for a in first]
    second = executable.run("step", [x, w])
    for a, b, c in zip(first[:2], second[:2], kept[:2], strict=True):
        assert not np.shares_memory(a, b)
        assert not np.shares_memory(a, executable.arena)
        np.testing.assert_array_equal(a, c)
    wanted = interpret(small(), x, before)
    np.testing.assert_allclose(kept[2], wanted[2], rtol=1e-6)


def test_state_may_become_another_array() -> None:
    """The views of a parameter are made once, and again when it is another array."""
    program = lowered(small())
    executable = Executable(program)
    for seed in range(3):
        x, w = arrays_of(program, seed)
        wanted = interpret(small(), x, w)
        for found, value in zip(executable.run("step", [x, w]), wanted, strict=True):
            np.testing.assert_allclose(found, value, rtol=1e-6)


def test_inputs_in_any_order_of_memory() -> None:
    """Of a state that is overwritten and seen through a reshape, whose strides the plan fixed."""
    builder = Builder(2)
    x, w = Value(0, TensorType(float32, (4, 6))), Value(1, TensorType(float32, (4, 6)))
    builder.phase = "forward"
    with using(builder):
        flat = ops.mul(ops.reshape(Sym(w), shape=(24,)), ops.reshape(Sym(x), shape=(24,)))
        new = ops.add(Sym(w), ops.reshape(flat, shape=(4, 6)))
    outputs = (Output(flat.value), Output(new.value, "mutated", 1))
    inputs = (Input(x), Input(w, "state"))
    nodes = tuple(builder.nodes)
    program = Program("p", "schedule", inputs, nodes, outputs, builder.next_id)
    arrays = arrays_of(program)
    wanted = interpret(program, *arrays)
    executable = Executable(plan(program))
    for strided in (np.asfortranarray, lambda a: np.repeat(a, 2, axis=1)[:, ::2]):
        given = [strided(a.copy()) for a in arrays]
        assert not any(a.flags.c_contiguous for a in given)
        found = executable.run("step", given)
        assert found[1] is given[1]
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(a, b)


def test_two_forwards_before_one_backward() -> None:
    program = halves()
    executable = Executable(program, poison=True)
    assert [v.id for v in executable.inputs("forward")] == [0]
    xs = [np.linspace(k, k + 1, 5, dtype=np.float32) for k in range(2)]
    results = [executable.run("forward", [x]) for x in xs]
    saved = [
        {o.value.id: a for o, a in zip(executable.outputs("forward"), r, strict=True)}
        for r in results
    ]
    ones = np.ones(5, np.float32)
    for x, values in zip(xs, saved, strict=True):
        given = {0: x, program.inputs_of("cotangent")[0].value.id: ones, **values}
        (gradient,) = executable.run(
            "backward", [given[v.id] for v in executable.inputs("backward")]
        )
        np.testing.assert_allclose(gradient, np.exp(x) * (np.sin(x) + np.cos(x)), rtol=1e-5)


def test_saved_values_are_one_block() -> None:
    program = halves()
    executable = Executable(program)
    results = executable.run("forward", [np.ones(5, np.float32)])
    blocks = {
        id(a.base)
        for o, a in zip(executable.outputs("forward"), results, strict=True)
        if o.role == "saved"
    }
    assert len(blocks) == 1


def test_warnings_are_silent_and_values_as_ieee_says() -> None:
    builder = Builder(1)
    x = Value(0, TensorType(float32, (3,)))
    builder.phase = "forward"
    with using(builder):
        y = ops.log(Sym(x))
    program = Program(
        "p", "schedule", (Input(x),), tuple(builder.nodes), (Output(y.value),), builder.next_id
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (found,) = Executable(plan(program)).run("step", [np.array([0, -1, 1], np.float32)])
    np.testing.assert_array_equal(found, np.array([-np.inf, np.nan, 0], np.float32))


def test_poison_finds_a_plan_that_is_wrong() -> None:
    """A buffer that is said to die too early is NaN when it is read."""
    program = lowered(small())
    assert program.plan is not None
    arrays = arrays_of(program)
    wanted = interpret(small(), *arrays)
    arena = {p.root: p for p in program.plan.places.values() if p.space == "arena"}
    seen = 0
    for root, place in arena.items():
        if place.last <= place.first + 1:
            continue
        places = {
            id_: replace(p, last=p.first) if p.root == root else p
            for id_, p in program.plan.places.items()
        }
        broken = program.replace(plan=replace(program.plan, places=places))
        found = run(broken, arrays)
        seen += any(not np.allclose(a, b) for a, b in zip(found, wanted, strict=True))
    assert seen


def test_the_environment_asks_for_poison(monkeypatch: pytest.MonkeyPatch) -> None:
    program = lowered(small())
    monkeypatch.setenv("TINYAOT_POISON", "1")
    assert "arena.fill" in Executable(program).source("step")
    monkeypatch.setenv("TINYAOT_POISON", "0")
    assert "arena.fill" not in Executable(program).source("step")


def test_the_text_is_a_straight_list_of_calls() -> None:
    program = lowered(simplify(small()))
    executable = Executable(program)
    source = executable.source("step")
    assert source.startswith("def step(v0):")  # the state is global, the argument is not
    assert "for " not in source and source.count("\n") < 25
    assert {k.name for k in executable.kernels} >= {"dot", "tanh", "sum"}
    assert all(k.source in source for k in executable.kernels)


def test_views_cost_no_call() -> None:
    builder = Builder(1)
    w = Value(0, TensorType(float32, (4, 6)))
    builder.phase = "forward"
    with using(builder):
        turned = ops.permute(Sym(w), perm=(1, 0))
        flat = ops.reshape(ops.sin(turned), shape=(24,))
        odd = ops.slice(flat, starts=(23,), stops=(-1,), steps=(-2,))
        y = ops.mul(odd, 2.0)
    program = Program(
        "p",
        "schedule",
        (Input(w, "state"),),
        tuple(builder.nodes),
        (Output(y.value),),
        builder.next_id,
    )
    executable = Executable(plan(program))
    assert len(executable.kernels) == 2
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    (found,) = executable.run("step", [array])
    np.testing.assert_array_equal(found, 2 * np.sin(array.T).reshape(-1)[::-2])


def test_shared_outputs_share_memory() -> None:
    builder = Builder(1)
    x = Value(0, TensorType(float32, (4,)))
    builder.phase = "forward"
    with using(builder):
        y = ops.sin(Sym(x))
        head = ops.slice(y, starts=(0,), stops=(3,), steps=(1,))
        tail = ops.slice(y, starts=(1,), stops=(4,), steps=(1,))
    outputs = (Output(head.value), Output(tail.value))
    program = Program("p", "schedule", (Input(x),), tuple(builder.nodes), outputs, builder.next_id)
    a, b = Executable(plan(program)).run("step", [np.ones(4, np.float32)])
    a[1] = 7
    assert b[0] == 7


def test_calls_from_threads_take_turns() -> None:
    """The arena is one; NumPy lets other threads run while it computes."""
    builder = Builder(1)
    x = Value(0, TensorType(float32, (256, 256)))
    builder.phase = "forward"
    with using(builder):
        h = Sym(x)
        for _ in range(4):
            h = ops.mul(ops.sin(ops.dot(h, h, spec="ij,jk->ik")), ops.cos(h))
        total = ops.sum(h, axes=(0, 1))
    inputs, outputs = (Input(x),), (Output(total.value),)
    nodes = tuple(builder.nodes)
    executable = Executable(plan(Program("p", "schedule", inputs, nodes, outputs, builder.next_id)))
    wrong: list[object] = []

    def work(seed: int) -> None:
        array = np.full((256, 256), seed / 100, np.float32)
        (first,) = executable.run("step", [array])
        for _ in range(20):
            (again,) = executable.run("step", [array])
            if again.tobytes() != first.tobytes():
                wrong.append(seed)

    for start in range(4):  # alone first, so that `first` is right
        work(start)
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_an_unplanned_program() -> None:
    with pytest.raises(ValueError, match="no memory plan"):
        Executable(small())


# ---- counting -----------------------------------------------------------------------------------


def test_allocations_are_counted() -> None:
    outside = np.empty(1000)
    with Allocations() as counted:
        kept = np.empty((10, 10), np.float64)
        np.add(kept, kept)  # one temporary
        del outside
    assert counted.peak == 2 * kept.nbytes
    with Allocations() as counted:
        first = np.empty(100, np.int64)
        del first
        second = np.empty(100, np.int64)
    assert counted.peak == second.nbytes
    grown = np.empty(10, np.uint8)
    with Allocations() as counted:
        grown.resize(1000)
    assert np.empty(1).nbytes == 8 and kept.shape == (10, 10)


def test_an_index_out_of_range_raises() -> None:
    builder = Builder(2)
    x, i = Value(0, TensorType(float32, (4,))), Value(1, TensorType(int64, (2,)))
    builder.phase = "forward"
    with using(builder):
        y = ops.gather(Sym(x), Sym(i), axes=(0,))
    program = Program(
        "p", "schedule", (Input(x), Input(i)), tuple(builder.nodes), (Output(y.value),), 9
    )
    with pytest.raises(IndexError, match="out of range"):
        Executable(plan(program)).run("step", [np.ones(4, np.float32), np.array([0, 4])])
