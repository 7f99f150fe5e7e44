"""What fusion does with the structures it is made for: labels, regions, triangles, overwrites."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable

import numpy as np
import pytest

import tinyaot as ta
from tinyaot import ops
from tinyaot.backends import cpu
from tinyaot.builder import Builder, Sym
from tinyaot.errors import IndexingError
from tinyaot.interpret import interpret
from tinyaot.ir import Input, Node, Origin, Output, Phase, Program, Value
from tinyaot.nn import functional as F
from tinyaot.ops.core import using
from tinyaot.passes import fuse
from tinyaot.passes.fusion.figures import ALONE, SHARED
from tinyaot.passes.fusion.forms import to_forms
from tinyaot.passes.fusion.graph import Graph, build
from tinyaot.passes.fusion.levels import delay
from tinyaot.passes.fusion.machine import Machine
from tinyaot.passes.fusion.op import Op
from tinyaot.passes.fusion.order import topological, wait_for_gradients
from tinyaot.passes.fusion.plan import plan_among
from tinyaot.passes.fusion.regions import REASONS, Region
from tinyaot.record import Decision
from tinyaot.shapes import DType, TensorType, dtype_of, float32, int8, int16, int64, uint8

needs_compiler = pytest.mark.skipif(cpu.unavailable() is not None, reason="no C compiler")
MACHINE = Machine(lanes=8, l2=512 << 10, flops=65.0)
SCALAR = TensorType(float32, ())


def program(
    inputs: dict[str, tuple[DType, tuple[int, ...]]],
    body: Callable[..., dict[str, Sym]],
    overwrites: dict[str, str] | None = None,
) -> Program:
    """A step whose body maps inputs to named outputs; `overwrites`: output name -> input name."""
    builder = Builder(0)
    given = {n: builder.fresh(TensorType(d, s)) for n, (d, s) in inputs.items()}
    with using(builder):
        made = body(*(Sym(v) for v in given.values()))
    where = overwrites or {}
    outputs = [
        Output(x.value, "mutated", given[where[n]].id, n) if n in where else Output(x.value, name=n)
        for n, x in made.items()
    ]
    lifted = tuple(Input(v, "argument", n) for n, v in given.items())
    return Program("test", "fuse", lifted, tuple(builder.nodes), tuple(outputs), builder.next_id)


def check(p: Program, threads: int = 1) -> cpu.CompiledC:
    """Run it in C and compare with the interpreter."""
    rng = np.random.default_rng(0)
    arrays = []
    for i in p.inputs:
        t = i.value.type
        made = rng.standard_normal(t.shape) if t.dtype.is_floating else rng.integers(0, 3, t.shape)
        arrays.append(np.asarray(made, t.dtype.numpy))
    expected = interpret(p, *arrays)
    executable = cpu.Executable(p, poison=True, threads=threads)
    for a, b in zip(expected, executable.run("step", [a.copy() for a in arrays]), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)
    return executable.compiled


def graph_of(p: Program) -> Graph:
    return build(to_forms(p), MACHINE)


def layer(x: Sym, w: Sym, b: Sym) -> dict[str, Sym]:
    h = ops.relu(ops.add(ops.dot(x, w, spec="ij,jk->ik"), b))
    return {"h": h, "total": ops.sum(h, axes=(0, 1))}


LAYER = {"x": (float32, (64, 40)), "w": (float32, (40, 24)), "b": (float32, (24,))}


def test_a_layer_is_one_region() -> None:
    plan = plan_among(program(LAYER, layer), (1,), MACHINE)
    big = [r for r in plan.regions if len(r.members) > 1]
    assert [op.name for op in big[0].members] == ["dot", "add", "relu", "sum"]


@needs_compiler
@pytest.mark.parametrize("rows", [1, 2, 31, 61, 64])
def test_ragged_rows(rows: int) -> None:
    check(program(LAYER | {"x": (float32, (rows, 40))}, layer), threads=2)


@needs_compiler
@pytest.mark.parametrize("shape", [(300_007,), (1, 300_007)])
def test_a_sum_along_the_axis_that_tiles_cut_has_all_of_them(shape: tuple[int, ...]) -> None:
    p = program(
        {"x": (float32, shape)},
        lambda x: {"total": ops.sum(ops.exp(x), axes=tuple(range(len(shape))))},
    )
    (region,) = (r for r in plan_among(p, (2,), MACHINE).regions if r.tile)
    assert math.prod(region.block.values()) * 2 < math.prod(shape)  # several tiles a thread
    check(p, threads=2)


def scores(q: Sym, k: Sym, v: Sym) -> dict[str, Sym]:
    n = q.shape[1]
    s = ops.dot(q, k, spec="htd,hsd->hts")
    at = ops.iota(size=n, dtype=int64)
    seen = ops.le(at, ops.reshape(at, shape=(n, 1)))
    e = ops.exp(ops.where(seen, s, -1e30))
    o = ops.dot(e, v, spec="hts,hsd->htd")
    return {"o": ops.div(o, ops.sum(e, axes=(2,)))}


def test_queries_and_keys_have_labels_of_their_own() -> None:
    shape = (float32, (2, 64, 8))
    g = graph_of(program({"q": shape, "k": shape, "v": shape}, scores))
    first = next(op for op in g.work if op.form == "dot")
    assert len(set(g.flat[first])) == 3


def test_a_masked_half_is_skipped() -> None:
    shape = (float32, (2, 512, 8))
    p = program({"q": shape, "k": shape, "v": shape}, scores)
    plan = plan_among(p, (2,), MACHINE)
    assert any(r.limits for r in plan.regions)
    assert plan.storage.arena < 512 * 512 * 4  # the scores are never stored


@needs_compiler
def test_masked_scores_are_right() -> None:
    shape = (float32, (2, 100, 8))
    check(program({"q": shape, "k": shape, "v": shape}, scores), threads=2)


def test_a_reshape_splits_a_label() -> None:
    p = program(
        {"x": (float32, (6, 12))},
        lambda x: {"y": ops.sum(ops.reshape(ops.exp(x), shape=(6, 3, 4)), axes=(2,))},
    )
    g = graph_of(p)
    exp = next(op for op in g.work if op.name == "exp")
    assert [a.size for a in g.flat[exp]] == [6, 3, 4]


@needs_compiler
def test_two_inputs_are_swapped() -> None:
    pair = {"a": (float32, (40,)), "b": (float32, (40,))}
    p = program(
        pair, lambda a, b: {"x": ops.mul(b, 2.0), "y": ops.mul(a, 3.0)}, {"x": "a", "y": "b"}
    )
    check(p, threads=2)


@needs_compiler
def test_an_overwritten_leaf_is_read_elsewhere_first() -> None:
    p = program(
        {"a": (float32, (33, 33))},
        lambda a: {"x": ops.add(a, ops.permute(a, perm=(1, 0)))},
        {"x": "a"},
    )
    check(p, threads=2)


def test_one_thread_waits_for_nobody() -> None:
    p = program(LAYER, layer)
    one, two = (plan_among(p, (threads,), MACHINE) for threads in (1, 2))
    regions = [sum(r.ns for r in plan.regions) * 1e-9 for plan in (one, two)]
    assert one.seconds < regions[0] and regions[1] < two.seconds


@needs_compiler
def test_a_bad_index_raises() -> None:
    p = program(
        {"x": (float32, (4, 3)), "i": (int64, (2,))},
        lambda x, i: {"y": ops.gather(x, i, axes=(0,))},
    )
    executable = cpu.Executable(p, threads=1)
    x = np.ones((4, 3), np.float32)
    (y,) = executable.run("step", [x, np.array([0, -1])])
    assert y.shape == (2, 3)
    with pytest.raises(IndexingError, match="out of range"):
        executable.run("step", [x, np.array([0, 4])])


@needs_compiler
@pytest.mark.parametrize("threads", [1, 2])
def test_after_a_bad_index_no_later_level_runs(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fuse = importlib.import_module("tinyaot.passes.fuse")  # else the plan is for one thread
    monkeypatch.setattr(fuse, "plan_fusion", lambda p, n, machine: plan_among(p, (n,), machine))
    p = program(
        {"x": (float32, (40, 3)), "i": (int64, (40,)), "p": (float32, (40, 3))},
        lambda x, i, p: {"p": ops.sub(p, ops.sum(ops.gather(x, i, axes=(0,)), axes=(0,)))},
        {"p": "p"},
    )
    executable = cpu.Executable(p, threads=threads)
    assert f"&f, 2, {threads})" in executable.compiled.source
    x, i, old = np.ones((40, 3), np.float32), np.arange(40), np.zeros((40, 3), np.float32)
    i[33] = 40
    for _ in range(3):
        with pytest.raises(IndexingError, match="40 is out of range"):
            executable.run("step", [x, i, old])
        assert not old.any()
    i[33] = 0
    (new,) = executable.run("step", [x, i, old])
    assert new is old and (old == -40).all()


def test_reasons_come_from_the_list_and_kernels_have_facts() -> None:
    log: list[Decision] = []
    fused = fuse(program(LAYER, layer), machine=MACHINE, threads=2, log=log)
    assert {d.reason for d in log} <= {*REASONS, SHARED, ALONE}
    compiled = cpu.compile_program(fused, 2)
    assert all(k.seconds > 0 and k.bytes > 0 for k in compiled.kernels)
    assert sum(k.flops for k in compiled.kernels) >= 2 * 64 * 40 * 24


def test_the_text_says_what_a_region_is() -> None:
    source = cpu.compile_program(program(LAYER, layer), 1).source
    assert re.search(r"/\* tile \{a\d+=\d+ of 64\}: dot, add, relu, sum", source)


def test_the_same_program_gives_the_same_text() -> None:
    p = program(LAYER, layer)
    assert cpu.compile_program(p, 2).source == cpu.compile_program(p, 2).source


@needs_compiler
def test_a_run_repeats_bit_for_bit() -> None:
    p = program(LAYER, layer)
    arrays = [np.random.default_rng(1).standard_normal(i.value.type.shape) for i in p.inputs]
    given = [a.astype(np.float32) for a in arrays]
    executable = cpu.Executable(p, threads=2)
    first, second = executable.run("step", given), executable.run("step", given)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@needs_compiler
def test_an_overwrite_waits_for_a_later_loop_of_its_nest() -> None:
    def body(x: Sym) -> dict[str, Sym]:
        y = ops.div(x, ops.sum(x, axes=(1,)))  # x is read after the loop that makes the sum
        return {"y": y, "halved": ops.mul(x, 0.5)}

    check(program({"x": (float32, (8, 512))}, body, {"halved": "x"}))


@needs_compiler
def test_a_chain_of_slow_maps_is_cut_into_short_loops() -> None:
    def body(x: Sym) -> dict[str, Sym]:
        t = ops.tanh(x)
        return {"y": ops.add(ops.erf(ops.mul(t, 0.5)), t)}

    compiled = check(program({"x": (float32, (16, 300))}, body))
    assert compiled.source.count("row0[i1]") == 2  # written by the first, read by the second
    assert "row1" not in compiled.source


@needs_compiler
@pytest.mark.parametrize(("steps", "loops"), [(4, 1), (20, 2)])
def test_much_after_a_slow_map_has_a_loop_of_its_own(steps: int, loops: int) -> None:
    def body(x: Sym) -> dict[str, Sym]:
        y = e = ops.exp(x)
        for _ in range(steps):
            y = ops.add(ops.mul(y, 0.5), e)
        return {"y": y}

    compiled = check(program({"x": (float32, (16, 300))}, body))
    assert compiled.source.count("#pragma omp simd") == loops


@needs_compiler
def test_shapes_share_a_kernel() -> None:
    def body(x: Sym, y: Sym) -> dict[str, Sym]:
        return {"a": ops.relu(x), "b": ops.relu(y)}

    p = program({"x": (float32, (16, 30)), "y": (float32, (7, 5, 11))}, body)
    assert len(re.findall(r"void kernel_\d+\(", check(p).source)) == 1


@needs_compiler
def test_scores_are_made_again_in_the_backward() -> None:
    rng = np.random.default_rng(0)
    shape, n = (1, 2, 1024, 32), 1024
    q, k, v = (
        ta.tensor(rng.standard_normal(shape).astype(np.float32), requires_grad=True)
        for _ in range(3)
    )

    def loss() -> ta.Tensor:
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return ta.sum(out * out)

    compiled = ta.compile(loss, backend="c")
    compiled().backward()
    record = compiled.records[-1]
    assert record.recomputed and record.memory["saved_bytes"] < n * n
    with ta.no_grad():
        compiled()
    assert compiled.records[-1].memory["arena"] < n * n  # nor does the forward hold them
    step = ta.compile(lambda q, k, v: ta.grad(loss(), [q, k, v]), backend="c")
    assert step.explain(q, k, v).memory["planned_peak"] < n * n * 4  # nor a whole step


@needs_compiler
def test_long_rows_do_not_fill_the_stack() -> None:
    def rows(x: Sym) -> dict[str, Sym]:
        e = ops.exp(ops.sin(x))
        return {"y": ops.div(ops.tanh(e), ops.sum(e, axes=(1,)))}

    check(program({"x": (float32, (2, 3_000_000))}, rows))


@needs_compiler
@pytest.mark.parametrize(
    "shape", [(5, 7), (33, 65), (3, 4, 257), (2, 40_001), (9, 8), (70,), (6, 1)]
)
def test_random_bits_are_those_of_each_element(shape: tuple[int, ...]) -> None:
    """A row is made at once, wherever it begins; with a mask read again in a later loop."""

    def draw(seed: Sym, base: Sym, x: Sym) -> dict[str, Sym]:
        bits = ops.random_bits(seed, base, ordinal=3, shape=shape)
        kept = ops.where(ops.ge(bits, 1 << 30), x, 0.0)
        total = ops.sum(kept, axes=(len(shape) - 1,))
        return {"bits": bits, "y": ops.mul(kept, total)}

    p = program({"seed": (int64, ()), "base": (int64, ()), "x": (float32, shape)}, draw)
    for threads in (1, 2):
        check(p, threads)
    executable = cpu.Executable(p, threads=2)
    given = [np.array(2**40 + 5), np.array(2**33), np.zeros(shape, np.float32)]
    assert np.array_equal(executable.run("step", given)[0], interpret(p, *given)[0])


def backward_op(name: str, *ins: Op, again: bool = False) -> Op:
    origin = (Origin("recompute-of", 0),) if again else ()
    node = Node(name, (), (Value(0, SCALAR),), phase="backward", origin=origin)
    return Op("map", name, ins, SCALAR, node=node)


def test_recomputations_do_not_wait_for_one_another() -> None:
    """Each meets a gradient that reads the other: one of them waits, or the order has no end."""
    source = Op("input", "input", (), SCALAR)
    one, two = (backward_op(name, source, again=True) for name in ("exp", "log"))
    meets_one, meets_two = backward_op("neg", two), backward_op("neg", one)
    ends = [backward_op("mul", one, meets_one), backward_op("mul", two, meets_two)]
    ops = topological([source, one, two, meets_one, meets_two, *ends], ends)
    wait_for_gradients(ops)
    assert [bool(one.after), bool(two.after)] == [True, False]
    assert {*topological(ops, ends)} == {*ops}


def test_what_is_waited_for_does_not_wait_in_turn() -> None:
    """The recomputation waits for the factor, so the factor does not for what reads the former."""
    source = Op("input", "input", (), SCALAR)
    loss = backward_op("neg", source)
    again, factor = backward_op("exp", source, again=True), backward_op("log", source)
    meets = backward_op("mul", again, factor)
    gradient = backward_op("mul", loss, again)
    ends = [meets, backward_op("mul", factor, gradient)]
    ops = topological([source, loss, again, factor, meets, gradient, *ends], ends)
    wait_for_gradients(ops)
    assert [again.after, factor.after] == [(factor,), ()]
    assert {*topological(ops, ends)} == {*ops}


def test_what_the_backward_computes_of_forward_values_alone_waits_for_a_gradient() -> None:
    """Else it is made where the forward value is, and a second value kept beside that."""
    scalar, ids = TensorType(float32, ()), iter(range(100))

    def op(name: str, *ins: Op, phase: Phase = "backward") -> Op:
        node = Node(name, (), (Value(next(ids), scalar),), phase=phase)
        return Op("map", name, ins, scalar, node=node)

    x = Op("input", "input", (), scalar)
    value = op("tanh", x, phase="forward")
    seed = op("sub", value, x)  # the loss's: there is nothing that it could wait for
    gradient = op("neg", seed)
    square = op("mul", value, value)
    factor = op("exp", square)
    end = op("mul", gradient, factor)
    ops = topological([x, value, seed, gradient, square, factor, end], [end])
    wait_for_gradients(ops)
    assert square.after == (gradient,)
    assert not any(o.after for o in ops if o is not square)


@needs_compiler
def test_a_sum_of_bools_is_whether_one_is_true():
    def f(x, y, i):
        return ta.scatter_add(x, 0, i, y), ta.scatter_add(ta.zeros_like(x), 0, i, y)

    x, y = ta.tensor([False, True, True]), ta.tensor([True, True, False])
    i = ta.zeros(3, dtype=ta.int64)
    for got, want in zip(ta.compile(f, backend="c")(x, y, i), f(x, y, i)):
        np.testing.assert_array_equal(got.numpy().view(np.uint8), want.numpy().view(np.uint8))


@needs_compiler
def test_what_is_written_whole_is_not_a_slot_of_a_concatenation():
    def f(x):  # a slice with steps is scattered into a copy, and padded
        return ta.cumprod(ta.chunk(x, 2, 1)[0][:, ::-2] * 2, 1)

    gradients = []
    for g in (f, ta.compile(f, backend="c")):
        x = ta.tensor(np.arange(6.0, dtype=np.float32).reshape(2, 3), requires_grad=True)
        g(x * 1).sum().backward()
        gradients.append(x.grad.numpy())
    np.testing.assert_array_equal(*gradients)


@needs_compiler
@pytest.mark.parametrize("value", [0.0, -1.5])
def test_what_is_written_into_a_constant_needs_no_memory_for_it(value: float) -> None:
    """The slices of windows that leave gaps, in a pooling's backward."""

    def spread(x: Sym) -> dict[str, Sym]:
        base = ops.full(value=value, shape=(8, 9), dtype=float32)
        slot = {"starts": (1, 0), "stops": (8, 9), "steps": (2, 3)}
        return {"out": ops.slice_scatter(base, ops.mul(x, x), **slot)}

    made = check(program({"x": (float32, (4, 3))}, spread))
    sizes = made.entries["step"].plan.storage.sizes
    assert [op.name for op in sizes] == ["mul"]


def test_what_waits_for_nothing_runs_when_it_is_needed() -> None:
    """A constant takes no memory while what it is used with is computed."""
    constant, first, second, last, unread = (Region((), [], {}, {}, 0.0, {}) for _ in range(5))
    before = {
        constant: set(),
        first: set(),
        second: {first},
        last: {second, constant},
        unread: set(),
    }
    level = {constant: 1, first: 1, second: 2, last: 3, unread: 1}
    delay(before, level)
    assert level == {constant: 2, first: 1, second: 2, last: 3, unread: 1}


@needs_compiler
@pytest.mark.parametrize("dtype", ["f32", "f64", "i64", "i8", "bool", "bf16"])
@pytest.mark.parametrize("n", [1, 7, 33, 700])
def test_sorts_are_stable_and_nan_is_last(dtype: str, n: int) -> None:
    kind = dtype_of(dtype)
    rng = np.random.default_rng(n)
    x = rng.integers(-100, 100, (3, n, 2)).astype(kind.numpy)
    if kind.is_floating:
        x[rng.random(x.shape) < 0.2] = 0.0
        x[rng.random(x.shape) < 0.1] = -0.0
        x[rng.random(x.shape) < 0.1] = np.nan
        x[rng.random(x.shape) < 0.1] = -np.inf

    def body(x: Sym) -> dict[str, Sym]:
        return {k: ops.argsort(x, axis=1, descending=k == "down") for k in ("up", "down")}

    p = program({"x": (kind, x.shape)}, body)
    found = cpu.Executable(p, poison=True, threads=2).run("step", [x])
    for expected, got in zip(interpret(p, x), found, strict=True):
        np.testing.assert_array_equal(got, expected)


@needs_compiler
@pytest.mark.parametrize("to", [uint8, int8, int16])
def test_a_cast_to_few_bits_keeps_the_low_ones(to: DType) -> None:
    """Fused or stored: a float that is no uint8 became no uint8."""
    p = program(
        {"x": (float32, (64,))}, lambda x: {"y": ops.cast(ops.cast(x, dtype=to), dtype=float32)}
    )
    x = np.linspace(-70_000, 70_000, 64, dtype=np.float32)
    (got,) = cpu.Executable(p).run("step", [x])
    assert np.array_equal(got, x.astype(np.int32).astype(to.numpy).astype(np.float32))


@needs_compiler
def test_threads_share_the_lanes_of_a_sort() -> None:
    def body(x: Sym, y: Sym) -> dict[str, Sym]:
        best = ops.argsort(x, axis=1, descending=True)
        first = ops.slice(best, starts=(0, 0), stops=(64, 1), steps=(1, 1))
        return {"hits": ops.sum(ops.cast(ops.eq(first, y), dtype=float32), axes=(0, 1))}

    p = program({"x": (float32, (64, 100)), "y": (int64, (64, 1))}, body)
    regions = plan_among(p, (2,), MACHINE).regions
    (sort,) = (r for r in regions if r.members[0].name == "argsort")
    assert len(sort.members) == 1
    assert "* (share + 1) / 2" in next(
        k.source for k in check(p, threads=2).kernels if "argsort" in k.source
    )
