"""Autodiff: rows of torch's rules; programs with `grad` nodes; joint graphs; gradients of whole
networks against central differences and against HIPS autograd, an independent reverse mode."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import autograd
import autograd.numpy as anp
import numpy as np
import pytest

from tests.random_traces import Generator, build, random_inputs, same_bits, with_gradients
from tinyaot import ops
from tinyaot.builder import Sym
from tinyaot.errors import GradError
from tinyaot.interpret import interpret
from tinyaot.ir import Program
from tinyaot.location import Loc
from tinyaot.ops.core import TABLE, mode
from tinyaot.passes import differentiate, functionalize
from tinyaot.record import Decision
from tinyaot.shapes import TensorType, float32, float64, int64
from tinyaot.verify import verify


def f64(*shape: int) -> TensorType:
    return TensorType(float64, shape)


def emit_grad(outputs: Sequence[Any], wrt: Sequence[Any], cotangents: Sequence[Any] = ()) -> Any:
    """A `grad` node in the program being built; its results."""
    builder: Any = mode.engine
    operands = [s.value for s in (*outputs, *cotangents, *wrt)]
    attrs = {"outputs": len(outputs), "cotangents": bool(cotangents), "wrt": len(wrt)}
    node = builder.emit("grad", operands, [s.value.type for s in wrt], attrs)
    return tuple(map(Sym, node.results))


def total(x: Any) -> Any:
    """The sum of all elements, 0-d."""
    return ops.reshape(ops.sum(x, axes=tuple(range(x.ndim))), shape=())


def expand(program: Program, **options: Any) -> Program:
    """Functionalized and differentiated, each stage verified."""
    verify(program)
    pure = functionalize(program)
    verify(pure)
    done = differentiate(pure, **options)
    verify(done)
    return done


def joint(function: Callable[..., Any], *types: TensorType, **options: Any) -> Program:
    return expand(build(function, *types), **options)


def gradients(function: Callable[..., Any], *arrays: Any) -> list[np.ndarray | None]:
    """Of the sum of all outputs, by each argument (None: it has no gradient output)."""
    arrays = tuple(np.asarray(a) for a in arrays)
    types = [TensorType(float64 if a.dtype.kind == "f" else int64, a.shape) for a in arrays]
    program = joint(function, *types)
    seeds = [np.ones(i.value.type.shape) for i in program.inputs_of("cotangent")]
    found = zip(program.outputs, interpret(program, *arrays, *seeds), strict=True)
    by = {o.of: x for o, x in found if o.role == "gradient"}
    return [by.get(i.value.id) for i in program.inputs[: len(arrays)]]


# ---- the rows -----------------------------------------------------------------------------------


def test_fan_out_is_summed() -> None:
    x = np.array([1.0, 2.0])
    (g,) = gradients(lambda x: ops.add(ops.mul(x, x), x), x)
    np.testing.assert_allclose(g, 2 * x + 1)


@pytest.mark.parametrize(
    ("a", "b"),
    [((2,), (1,)), ((2, 3), (3,)), ((2, 3), ()), ((4, 1), (4, 0)), ((1, 1), (2, 3)), ((0,), (1,))],
)
def test_broadcasting_is_undone(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y = np.arange(math.prod(a)).reshape(a) + 1.0, np.arange(math.prod(b)).reshape(b) + 2.0
    gx, gy = gradients(ops.mul, x, y)
    assert gx is not None and gx.shape == a and gy is not None and gy.shape == b
    shape = np.broadcast_shapes(a, b)
    np.testing.assert_allclose(gx, _sum_to(np.broadcast_to(y, shape), a))
    np.testing.assert_allclose(gy, _sum_to(np.broadcast_to(x, shape), b))


def _sum_to(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    x = x.sum(axis=tuple(range(x.ndim - len(shape))))
    axes = tuple(i for i, n in enumerate(shape) if n == 1)
    return x.sum(axis=axes, keepdims=True)


def test_detach_stops_the_gradient() -> None:
    x = np.array([3.0, 5.0])
    (g,) = gradients(lambda x: ops.mul(x, ops.detach(x)), x)
    np.testing.assert_allclose(g, x)
    (g,) = gradients(lambda x: ops.mul(x, ops.detach(ops.mul(x, 3.0))), x)  # a no_grad block
    np.testing.assert_allclose(g, 3 * x)


def test_unused_input_has_no_gradient_and_a_zero_contribution_is_zeros() -> None:
    x, y = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    gx, gy = gradients(lambda x, y: ops.mul(x, 2.0), x, y)
    np.testing.assert_allclose(gx, [2, 2])
    assert gy is None
    gx, gy = gradients(lambda x, y: ops.add(ops.mul(x, 2.0), ops.mul(y, 0.0)), x, y)
    np.testing.assert_allclose(gy, [0, 0])


def test_unused_input_is_a_decision() -> None:
    log: list[Decision] = []
    joint(lambda x, y: ops.mul(x, 2.0), f64(2), f64(2), log=log)
    assert [(d.kind, d.subject, d.choice) for d in log] == [("gradient", 1, "none")]


def test_integers_have_no_gradient() -> None:
    x, i = np.array([10.0, 20, 30]), np.array([0, 0, 2])
    program = joint(lambda x, i: ops.gather(x, i, axes=(0,)), f64(3), TensorType(int64, (3,)))
    results = interpret(program, x, i, np.array([1.0, 10, 100]))
    assert [o.role for o in program.outputs] == ["user", "gradient"]
    np.testing.assert_allclose(results[1], [11, 0, 100])


def test_the_same_value_returned_twice() -> None:
    def f(x: Any) -> Any:
        y = ops.mul(x, x)
        return y, y

    program = joint(f, f64(2))
    x = np.array([1.0, 2.0])
    assert len(program.inputs_of("cotangent")) == 2
    found = interpret(program, x, np.ones(2), np.full(2, 2.0))
    np.testing.assert_allclose(found[-1], [6, 12])


def test_a_gradient_has_its_operands_dtype() -> None:
    def f(a: Any, b: Any) -> Any:
        return ops.mul(ops.cast(a, dtype=float64), b)

    program = joint(f, TensorType(float32, (2,)), f64(2))
    assert [str(o.value.type) for o in program.outputs_of("gradient")] == ["f32[2]", "f64[2]"]


# ---- grad nodes ---------------------------------------------------------------------------------


def step(function: Callable[..., Any], *types: TensorType) -> Program:
    return expand(build(function, *types, grad=False))


def test_grad_of_a_scalar() -> None:
    program = step(lambda x: emit_grad([total(ops.mul(x, x))], [x]), f64(3))
    x = np.array([1.0, -2.0, 3.0])
    np.testing.assert_allclose(interpret(program, x)[0], 2 * x)
    assert not program.inputs_of("cotangent") and not program.outputs_of("gradient")


def test_grad_with_cotangents_and_several_outputs() -> None:
    def f(x: Any, g: Any) -> Any:
        return emit_grad([ops.sin(x), total(x)], [x], [g, total(g)])

    program = step(f, f64(3), f64(3))
    x, g = np.array([1.0, -2.0, 3.0]), np.array([0.5, 2.0, -1.0])
    np.testing.assert_allclose(interpret(program, x, g)[0], g * np.cos(x) + g.sum())


def test_grad_without_a_path_is_zeros() -> None:
    program = step(lambda x, y: emit_grad([total(x)], [y, x]), f64(2), f64(3))
    found = interpret(program, np.ones(2), np.ones(3))
    np.testing.assert_allclose(found[0], np.zeros(3))
    np.testing.assert_allclose(found[1], np.ones(2))


def test_grad_by_intermediate_values() -> None:
    def f(x: Any) -> Any:
        y = ops.mul(x, 3.0)
        z = ops.sin(y)
        return emit_grad([total(ops.mul(z, y))], [y, z, x])

    y = 3 * (x := np.array([0.3, 0.7]))
    gy, gz, gx = interpret(step(f, f64(2)), x)
    np.testing.assert_allclose(gz, y)
    np.testing.assert_allclose(gy, np.sin(y) + y * np.cos(y))
    np.testing.assert_allclose(gx, 3 * gy)


def test_grad_of_the_output_itself() -> None:
    def f(x: Any) -> Any:
        loss = total(ops.mul(x, x))
        return emit_grad([loss], [loss, x])

    found = interpret(step(f, f64(2)), np.array([1.0, 2.0]))
    np.testing.assert_allclose(found[0], 1.0)
    np.testing.assert_allclose(found[1], [2.0, 4.0])


def test_several_grad_nodes() -> None:
    def f(x: Any, y: Any) -> Any:
        (a,) = emit_grad([total(ops.exp(x))], [x])
        (b,) = emit_grad([total(ops.mul(ops.sin(y), x))], [y])
        return a, b

    x, y = np.array([0.1, 0.2]), np.array([0.3, 0.4])
    a, b = interpret(step(f, f64(2), f64(2)), x, y)
    np.testing.assert_allclose(a, np.exp(x))
    np.testing.assert_allclose(b, np.cos(y) * x)


def test_grad_of_grad() -> None:
    def f(x: Any) -> Any:
        (first,) = emit_grad([total(ops.mul(ops.mul(x, x), x))], [x])
        (second,) = emit_grad([total(first)], [x])
        (third,) = emit_grad([total(second)], [x])
        return first, second, third

    x = np.array([0.5, -2.0])
    first, second, third = interpret(step(f, f64(2)), x)
    np.testing.assert_allclose(first, 3 * x**2)
    np.testing.assert_allclose(second, 6 * x)
    np.testing.assert_allclose(third, [6, 6])


def test_gradient_penalty() -> None:
    """A gradient inside the loss, differentiated by two inputs."""

    def f(w: Any, x: Any) -> Any:
        y = ops.tanh(ops.mul(w, x))
        (gx,) = emit_grad([total(y)], [x])
        loss = ops.add(total(y), total(ops.mul(gx, gx)))
        return emit_grad([loss], [w, x])

    w, x = np.array([0.5, -1.5]), np.array([0.7, 0.2])
    program = step(f, f64(2), f64(2))

    def loss(w: Any, x: Any) -> Any:
        y = anp.tanh(w * x)
        return anp.sum(y) + anp.sum(((1 - y**2) * w) ** 2)

    for found, position in zip(interpret(program, w, x), (0, 1), strict=True):
        np.testing.assert_allclose(found, autograd.grad(loss, position)(w, x), rtol=1e-10)


def test_phases_of_a_step() -> None:
    def f(w: Any, x: Any) -> Any:
        loss = total(ops.mul(w, x))
        (g,) = emit_grad([loss], [w])
        ops.write(ops.detach(w), ops.sub(ops.detach(w), ops.mul(g, 0.1)))
        return loss

    program = step(f, f64(2), f64(2))
    phases = [n.phase for n in program.nodes]
    assert phases == sorted(phases, key=["forward", "backward", "update"].index)
    assert {n.phase for n in program.nodes if n.op == "sub"} == {"update"}
    assert program.producers[program.outputs[0].value.id].phase == "forward"


def test_what_reads_a_gradient_is_not_forward() -> None:
    """Two steps in one program: the second forward reads the weights that the first updated."""

    def f(w: Any) -> Any:
        (g,) = emit_grad([total(ops.mul(w, w))], [w])
        v = ops.sub(w, g)
        (h,) = emit_grad([total(ops.exp(v))], [v])
        return ops.mul(h, 2.0)

    program = step(f, f64(2))
    verify(program)  # phases run forward
    assert {n.phase for n in program.nodes if n.op == "exp"} == {"backward"}
    assert program.producers[program.outputs[0].value.id].phase == "update"


# ---- joint graphs -------------------------------------------------------------------------------


def test_joint_graph_has_cotangents_and_gradients_in_order() -> None:
    program = build(lambda x, y: (ops.mul(x, y), ops.gt(x, y), ops.sin(y)), f64(2), f64(2))
    done = expand(program)
    assert [(i.role, i.name) for i in done.inputs[2:]] == [("cotangent", "y0"), ("cotangent", "y2")]
    assert [(o.role, o.of, o.name) for o in done.outputs[3:]] == [
        ("gradient", 0, "x0"),
        ("gradient", 1, "x1"),
    ]
    assert {n.phase for n in done.nodes} == {"forward", "backward"}


def test_outputs_that_require_no_grad_get_no_cotangent() -> None:
    program = build(lambda x: (ops.mul(x, x), ops.sin(x)), f64(2))
    first, second = program.outputs
    done = expand(program.replace(outputs=(replace(first, requires_grad=False), second)))
    assert [i.name for i in done.inputs_of("cotangent")] == ["y1"]
    assert not any(n.op == "mul" and n.origin and n.origin[0].id == 1 for n in done.nodes)


def test_cotangents_may_be_chosen() -> None:
    program = functionalize(build(lambda x, y: (ops.sin(x), ops.exp(y)), f64(2), f64(2)))
    done = differentiate(program, cotangents=[1])
    verify(done)
    assert [i.name for i in done.inputs_of("cotangent")] == ["y1"]
    assert [o.of for o in done.outputs_of("gradient")] == [1]


def test_without_a_gradient_to_give_all_is_forward() -> None:
    program = expand(build(lambda x: ops.sin(x), f64(2), grad=False))
    assert {n.phase for n in program.nodes} == {"forward"}
    assert len(program.inputs) == len(program.outputs) == 1


def test_joint_may_be_forbidden_and_forced() -> None:
    program = functionalize(build(lambda x: ops.sin(x), f64(2)))
    assert not differentiate(program, joint=False).inputs_of("cotangent")

    def f(x: Any) -> Any:
        (g,) = emit_grad([total(ops.mul(ops.mul(x, x), x))], [x])
        return g

    done = expand(build(f, f64(2)), joint=True)
    x, c = np.array([1.0, 2.0]), np.array([1.0, 10.0])
    np.testing.assert_allclose(interpret(done, x, c)[1], 6 * x * c)


def test_backward_nodes_carry_line_and_origin() -> None:
    program = functionalize(build(lambda x: ops.exp(ops.sin(x)), f64(2)))
    lines = {n.op: Loc("train.py", at) for at, n in enumerate(program.nodes, 10)}
    located = [replace(n, loc=lines[n.op]) for n in program.nodes]
    done = differentiate(program.replace(nodes=tuple(located)))
    for node in done.nodes:
        if node.phase == "backward":
            (origin,) = node.origin
            assert origin.relation == "vjp-of" and origin.operand == 0
            assert node.loc == done.producers[origin.id].loc


def test_markers_are_gone() -> None:
    def f(x: Any) -> Any:
        y = ops.mul(x, 2.0)
        ops.write(ops.detach(y), ops.sin(y))
        return ops.mul(y, ops.detach(x))

    program = joint(f, f64(2))
    assert not {"detach", "set_value", "grad"} & {n.op for n in program.nodes}


def test_only_paths_are_differentiated() -> None:
    """Nothing is emitted for an operand that no input is behind."""

    def f(x: Any) -> Any:
        ramp = ops.cast(ops.iota(size=3, dtype=int64), dtype=float64)
        return ops.mul(ops.exp(ramp), x)

    program = joint(f, f64(3))
    assert [n.op for n in program.nodes if n.phase == "backward"] == ["mul"]


def test_integer_outputs_have_no_gradient() -> None:
    def f(x: Any) -> Any:
        return emit_grad([total(ops.cast(x, dtype=int64))], [x])

    builder_program = build(f, f64(2), grad=False)
    with pytest.raises(GradError, match=r"i64\[\] is not floating"):
        differentiate(functionalize(builder_program))


def test_a_missing_rule_names_op_and_operand(monkeypatch: pytest.MonkeyPatch) -> None:
    program = functionalize(build(ops.atan2, f64(2), f64(2)))
    monkeypatch.setitem(TABLE, "atan2", replace(TABLE["atan2"], vjp=TABLE["atan2"].vjp[:1]))  # type: ignore[index]
    with pytest.raises(GradError, match=r"atan2: no vjp rule for operand 1"):
        differentiate(program)


def test_a_rule_of_the_wrong_type_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    program = functionalize(build(lambda x: ops.amax(x, axes=(0,)), f64(2)))
    wrong = replace(TABLE["amax"], vjp=(lambda g, y, x, axes: g,))
    monkeypatch.setitem(TABLE, "amax", wrong)
    with pytest.raises(GradError, match=r"amax: the vjp rule of operand 0 gave f64\[1\]"):
        differentiate(program)


def test_deep_programs_need_no_deep_stack() -> None:
    def f(x: Any) -> Any:
        for _ in range(3000):
            x = ops.sin(x)
        return x

    assert len(joint(f, f64(1)).nodes) > 6000


# ---- networks -----------------------------------------------------------------------------------


def dense(x: Any, w: Any, b: Any) -> Any:
    return ops.add(ops.dot(x, w, spec="ij,jk->ik"), b)


def softmax(x: Any) -> Any:
    axis = x.ndim - 1
    e = ops.exp(ops.sub(x, ops.detach(ops.amax(x, axes=(axis,)))))
    return ops.div(e, ops.sum(e, axes=(axis,)))


def mean(x: Any) -> Any:
    axis = x.ndim - 1
    return ops.div(ops.sum(x, axes=(axis,)), float(x.shape[axis]))


def layer_norm(x: Any, scale: Any, shift: Any) -> Any:
    centred = ops.sub(x, mean(x))
    deviation = ops.sqrt(ops.add(mean(ops.mul(centred, centred)), 1e-5))
    return ops.add(ops.mul(ops.div(centred, deviation), scale), shift)


def part(x: Any, start: int, stop: int) -> Any:
    return ops.slice_axis(x, x.ndim - 1, start, stop)


def attention(x: Any, wqkv: Any, wo: Any) -> Any:
    """Causal, of two heads."""
    t, d = x.shape
    qkv = ops.dot(x, wqkv, spec="ij,jk->ik")

    def heads(a: Any) -> Any:
        return ops.permute(ops.reshape(a, shape=(t, 2, d // 2)), perm=(1, 0, 2))

    q, k, v = (heads(part(qkv, i * d, (i + 1) * d)) for i in range(3))
    scores = ops.mul(ops.dot(q, k, spec="hid,hjd->hij"), (d // 2) ** -0.5)
    rows = ops.reshape(ops.iota(size=t, dtype=int64), shape=(t, 1))
    mask = ops.ge(rows, ops.iota(size=t, dtype=int64))
    weights = softmax(ops.where(mask, scores, -1e9))
    mixed = ops.permute(ops.dot(weights, v, spec="hij,hjd->hid"), perm=(1, 0, 2))
    return ops.dot(ops.reshape(mixed, shape=(t, d)), wo, spec="ij,jk->ik")


def mlp_loss(x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    h = ops.relu(dense(x, w1, b1))
    p = softmax(dense(ops.tanh(h), w2, b2))
    return ops.neg(total(ops.log(part(p, 0, 1))))


def block_loss(x: Any, scale: Any, shift: Any, wqkv: Any, wo: Any, w: Any, b: Any) -> Any:
    h = ops.add(x, attention(layer_norm(x, scale, shift), wqkv, wo))
    h = ops.add(h, ops.mul(ops.sigmoid(dense(h, w, b)), h))
    return total(ops.mul(h, h))


def np_softmax(x: Any) -> Any:
    e = anp.exp(x - anp.max(x, axis=-1, keepdims=True))
    return e / anp.sum(e, axis=-1, keepdims=True)


def np_mlp_loss(x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    h = anp.tanh(anp.maximum(x @ w1 + b1, 0))
    return -anp.sum(anp.log(np_softmax(h @ w2 + b2)[:, :1]))


def np_block_loss(x: Any, scale: Any, shift: Any, wqkv: Any, wo: Any, w: Any, b: Any) -> Any:
    t, d = x.shape
    centred = x - anp.mean(x, axis=-1, keepdims=True)
    n = centred / anp.sqrt(anp.mean(centred**2, axis=-1, keepdims=True) + 1e-5) * scale + shift
    qkv = n @ wqkv
    q, k, v = (
        anp.transpose(anp.reshape(qkv[:, i * d : (i + 1) * d], (t, 2, d // 2)), (1, 0, 2))
        for i in range(3)
    )
    scores = anp.einsum("hid,hjd->hij", q, k) * (d // 2) ** -0.5
    scores = anp.where(np.tril(np.ones((t, t), bool)), scores, -1e9)
    mixed = anp.einsum("hij,hjd->hid", np_softmax(scores), v)
    h = x + anp.reshape(anp.transpose(mixed, (1, 0, 2)), (t, d)) @ wo
    h = h + h / (1 + anp.exp(-(h @ w + b)))
    return anp.sum(h * h)


NETWORKS = {
    "mlp": (mlp_loss, np_mlp_loss, [(5, 4), (4, 6), (6,), (6, 3), (3,)]),
    "block": (block_loss, np_block_loss, [(5, 4), (4,), (4,), (4, 12), (4, 4), (4, 4), (4,)]),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name: str) -> None:
    loss, np_loss, shapes = NETWORKS[name]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s) * 0.7 for s in shapes]
    program = joint(loss, *(f64(*s) for s in shapes))
    value, *found = interpret(program, *arrays, np.array(1.0))
    np.testing.assert_allclose(value, np_loss(*arrays), rtol=1e-12)
    for position, (g, x) in enumerate(zip(found, arrays, strict=True)):
        by_autograd = autograd.grad(np_loss, position)(*arrays)
        np.testing.assert_allclose(g, by_autograd, rtol=1e-9, atol=1e-12)
        direction = rng.standard_normal(x.shape)
        numeric = _slope(np_loss, arrays, position, direction)
        np.testing.assert_allclose(np.sum(g * direction), numeric, rtol=1e-6)


def _slope(
    loss: Callable[..., Any], arrays: list[np.ndarray], position: int, direction: np.ndarray
) -> float:
    """The central difference along a direction, Richardson-extrapolated."""

    def difference(h: float) -> float:
        up, down = list(arrays), list(arrays)
        up[position] = arrays[position] + h * direction
        down[position] = arrays[position] - h * direction
        return float(loss(*up) - loss(*down)) / (2 * h)

    return (4 * difference(1e-4) - difference(2e-4)) / 3


def test_second_order_of_a_network() -> None:
    """A Hessian-vector product through the block, against autograd's."""
    loss, np_loss, shapes = NETWORKS["block"]
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(s) * 0.5 for s in shapes]
    vector = rng.standard_normal(shapes[0])

    def f(*xs: Any) -> Any:
        (g,) = emit_grad([loss(*xs[:-1])], [xs[0]])
        return emit_grad([total(ops.mul(g, xs[-1]))], [xs[0], xs[3]])

    program = step(f, *(f64(*s) for s in (*shapes, shapes[0])))
    found = interpret(program, *arrays, vector)

    def inner(*xs: Any) -> Any:
        return anp.sum(autograd.grad(np_loss, 0)(*xs) * vector)

    for g, position in zip(found, (0, 3), strict=True):
        np.testing.assert_allclose(g, autograd.grad(inner, position)(*arrays), rtol=1e-8)


# ---- random programs ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(200, 280))
def test_random_joint_graphs_equal_the_tape(seed: int) -> None:
    """Outputs and gradients, bit for bit: the same rules, and sums in the same order."""
    program = Generator(seed, exact=True).program(steps=4 + seed % 30)
    oracle = with_gradients(program)
    done = expand(program)
    arrays = random_inputs(oracle, seed)
    want = interpret(oracle, *arrays)
    found = interpret(done, *arrays)
    wrt = [i.value.id for i in program.inputs if i.requires_grad]
    by = dict(zip(wrt, want[len(program.outputs) :], strict=True))
    for output, x in zip(done.outputs, found, strict=True):
        if output.role == "gradient":
            assert output.of is not None
            assert same_bits(by.pop(output.of), x)
    for x, y in zip(want, found[: len(program.outputs)], strict=False):
        assert same_bits(x, y)
    for left in by.values():
        assert not left.any()


@pytest.mark.parametrize("seed", range(300, 350))
def test_random_grad_nodes_equal_the_tape(seed: int) -> None:
    program = Generator(seed, exact=True).program(steps=3 + seed % 12, grads=1 + seed % 2)
    done = expand(program, joint=False)
    arrays = random_inputs(program, seed)
    for x, y in zip(interpret(program, *arrays), interpret(done, *arrays), strict=True):
        assert same_bits(x, y)


def test_gradients_do_not_depend_on_the_builders_past() -> None:
    """Ids are the same from run to run."""
    made = [joint(block_loss, *(f64(*s) for s in NETWORKS["block"][2])) for _ in range(2)]
    assert str(made[0]) == str(made[1])
    assert made[0] == made[1]
