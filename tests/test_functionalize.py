"""Functionalize: the rows of torch's mutation and view semantics, with values and gradients
written out; then random programs, bit for bit against the interpreter and the tape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.random_traces import Generator, build, random_inputs, same_bits, with_gradients
from tinyaot import ops
from tinyaot.errors import MutationError
from tinyaot.interpret import interpret
from tinyaot.ir import Program
from tinyaot.location import Loc
from tinyaot.passes import differentiate, functionalize
from tinyaot.shapes import TensorType, float64
from tinyaot.verify import verify


def f64(*shape: int) -> TensorType:
    return TensorType(float64, shape)


def part(x: Any, *cuts: Any) -> Any:
    """Basic slicing of the first axes."""
    full = [*cuts, *[slice(None)] * (x.ndim - len(cuts))]
    found = [c.indices(n) for c, n in zip(full, x.shape, strict=True)]
    starts, stops, steps = (tuple(column) for column in zip(*found, strict=True))
    return ops.slice(x, starts=starts, stops=stops, steps=steps)


def run(
    function: Callable[..., Any], *arrays: Any, mutated: bool = False
) -> tuple[list[np.ndarray], list[np.ndarray | None]]:
    """Outputs, and the gradients of `sum((i + 1) * output_i.sum())` by the arguments, of a
    functionalized and differentiated function. The written inputs' new values, if `mutated`, are
    outputs with a cotangent, too."""
    arrays = tuple(np.asarray(a, np.float64) for a in arrays)
    program = build(function, *(f64(*a.shape) for a in arrays))
    if not mutated:
        outputs = program.outputs_of("user")
        hidden = [o for o in program.outputs if o.role == "mutated"]
        program = program.replace(
            outputs=(*outputs, *(type(o)(o.value, o.role, o.of, o.name) for o in hidden))
        )
    verify(program)
    pure = functionalize(program)
    verify(pure)
    plain = interpret(program, *arrays)
    for x, y in zip(plain, interpret(pure, *arrays), strict=True):
        assert same_bits(x, y)
    joint = differentiate(pure)
    verify(joint)
    ones = [np.full(i.value.type.shape, n + 1.0) for n, i in enumerate(joint.inputs[len(arrays) :])]
    results = interpret(joint, *arrays, *ones)
    gradients: dict[int | None, np.ndarray] = {
        o.of: x for o, x in zip(joint.outputs, results, strict=True) if o.role == "gradient"
    }
    return plain, [gradients.get(i.value.id) for i in program.inputs]


def check(
    function: Callable[..., Any], arrays: Any, outputs: Any, gradients: Any, mutated: bool = False
) -> None:
    found, by = run(function, *arrays, mutated=mutated)
    for x, want in zip(found, outputs, strict=True):
        np.testing.assert_allclose(x, want, rtol=1e-12)
    for g, want in zip(by, gradients, strict=True):
        if want is None:
            assert g is None
        else:
            assert g is not None
            np.testing.assert_allclose(g, want, rtol=1e-12)


# ---- the rows -----------------------------------------------------------------------------------


def test_write_to_an_intermediate() -> None:
    def f(x: Any) -> Any:
        y = ops.mul(x, 2.0)
        ops.write(y, ops.mul(y, x))
        return y

    check(f, [[1, 2, 3]], [[2, 8, 18]], [[4, 8, 12]])


def test_write_that_discards_the_old_value() -> None:
    def f(x: Any) -> Any:
        y = ops.mul(x, 5.0)
        ops.write(y, ops.full(value=3.0, shape=(2,), dtype=float64))
        return ops.mul(y, x)

    check(f, [[1, 2]], [[3, 6]], [[3, 3]])


def test_a_value_that_was_all_replaced_has_a_gradient_of_zeros() -> None:
    """As every operand of what was recorded; only an unused input has none (rows 22 and 23)."""

    def f(x: Any, unused: Any) -> Any:
        y = ops.mul(x, 5.0)
        ops.write(y, ops.full(value=3.0, shape=(2,), dtype=float64))
        return y

    check(f, [[1, 2], [1, 2]], [[3, 3]], [[0, 0], None])

    def through_a_view(x: Any, z: Any) -> Any:
        y = ops.mul(x, 5.0)
        ops.write(ops.reshape(y, shape=(2, 1)), ops.reshape(ops.mul(z, 2.0), shape=(2, 1)))
        return y

    check(through_a_view, [[1, 2], [1, 2]], [[2, 4]], [[0, 0], [2, 2]])


def test_write_through_a_view_changes_the_base() -> None:
    def f(x: Any) -> Any:
        y = ops.mul(x, 1.0)
        v = part(y, slice(1, 3))
        ops.write(v, ops.mul(v, 10.0))
        return ops.mul(y, x)

    check(f, [[1, 2, 3, 4]], [[1, 40, 90, 16]], [[2, 40, 60, 8]])


def test_write_to_the_base_is_seen_in_an_older_view() -> None:
    def f(x: Any) -> Any:
        y = ops.mul(x, 1.0)
        v = part(y, slice(0, 1))
        ops.write(y, ops.mul(y, 3.0))
        return v

    check(f, [[1, 2]], [[3]], [[3, 0]])


VIEWS_OF_VIEWS: dict[str, tuple[Callable[[Any], Any], Callable[[np.ndarray], np.ndarray]]] = {
    "a row of the transpose": (
        lambda y: part(ops.permute(y, perm=(1, 0)), slice(0, 1)),
        lambda y: y.T[:1],
    ),
    "a slice of a slice": (
        lambda y: part(part(y, slice(1, 4)), slice(1, 3), slice(0, 2)),
        lambda y: y[1:4][1:3, 0:2],
    ),
    "a negative step": (lambda y: part(y, slice(None, None, -2)), lambda y: y[::-2]),
    "a diagonal": (
        lambda y: ops.diagonal(y, offset=1, axis1=0, axis2=1),
        lambda y: np.diagonal(y, 1),
    ),
    "a reshape": (
        lambda y: part(ops.reshape(y, shape=(12,)), slice(2, 9, 3)),
        lambda y: y.reshape(12)[2:9:3],
    ),
    "a broadcast that repeats nothing": (
        lambda y: part(ops.broadcast(y, shape=(1, 4, 3)), slice(0, 1), slice(1, 2)),
        lambda y: y[None][:1, 1:2],
    ),
    "all of them": (
        lambda y: part(
            ops.diagonal(
                ops.reshape(ops.permute(part(y, slice(0, 4, 3)), perm=(1, 0)), shape=(3, 1, 2)),
                offset=-1,
                axis1=0,
                axis2=2,
            ),
            slice(0, 1),
            slice(None, None, -1),
        ),
        lambda y: np.diagonal(y[0:4:3].T.reshape(3, 1, 2), -1, 0, 2)[:1, ::-1],
    ),
}


@pytest.mark.parametrize("name", VIEWS_OF_VIEWS)
def test_write_through_a_view_of_a_view(name: str) -> None:
    view, by_numpy = VIEWS_OF_VIEWS[name]

    def f(x: Any) -> Any:
        y = ops.mul(x, 1.0)
        v = view(y)
        ops.write(v, ops.add(ops.mul(v, v), 1.0))
        return y

    x = np.arange(12.0).reshape(4, 3) + 1
    index = by_numpy(np.arange(12).reshape(4, 3)).reshape(-1)
    want, slope = x.reshape(-1).copy(), np.ones(12)
    want[index] = want[index] ** 2 + 1
    slope[index] = 2 * x.reshape(-1)[index]
    check(f, [x], [want.reshape(4, 3)], [slope.reshape(4, 3)])


def test_writes_through_overlapping_siblings_keep_their_order() -> None:
    def f(x: Any) -> Any:
        y = ops.full(value=0.0, shape=(4,), dtype=float64)
        ops.write(part(y, slice(0, 2)), part(x, slice(0, 2)))
        v = part(y, slice(1, 3))
        ops.write(v, ops.add(v, part(x, slice(2, 4))))
        return ops.mul(y, y)

    check(f, [[1, 2, 3, 4]], [[1, 25, 16, 0]], [[2, 10, 10, 8]])


def test_write_to_an_expanded_tensor_raises() -> None:
    def f(x: Any) -> Any:
        y = ops.broadcast(ops.mul(x, 1.0), shape=(4, 3))
        ops.write(y, ops.mul(y, 2.0))
        return y

    program = build(f, f64(3))
    last = program.nodes[-1]
    located = type(last)(last.op, last.inputs, last.results, last.attrs, loc=Loc("train.py", 7))
    with pytest.raises(MutationError, match=r"expanded(.|\n)*train.py:7"):
        functionalize(program.replace(nodes=(*program.nodes[:-1], located)))


def test_a_reshape_that_copies_is_no_view() -> None:
    def f(x: Any) -> Any:
        y = ops.mul(x, 1.0)
        v = ops.reshape(ops.permute(y, perm=(1, 0)), shape=(6,))
        ops.write(v, ops.mul(v, 0.0))
        return y

    x = np.arange(6.0).reshape(2, 3)
    check(f, [x], [x], [np.ones((2, 3))])


def test_written_input() -> None:
    def f(x: Any) -> Any:
        ops.write(x, ops.mul(x, 2.0))
        return ops.mul(x, x)

    check(f, [[1, 2]], [[4, 16], [2, 4]], [[8, 16]])
    check(f, [[1, 2]], [[4, 16], [2, 4]], [[12, 20]], mutated=True)  # and 2 * 2 of the input


def test_gradient_of_a_written_input_is_by_its_old_value() -> None:
    def f(x: Any) -> Any:
        y = ops.sin(x)
        ops.write(x, ops.mul(x, 2.0))
        return ops.add(y, x)

    check(f, [[0.5]], [[np.sin(0.5) + 1], [1.0]], [[np.cos(0.5) + 2]])


def test_value_saved_then_written() -> None:
    def f(x: Any) -> Any:
        y = ops.mul(x, 1.0)
        z = ops.mul(y, y)
        ops.write(y, ops.mul(y, 0.0))
        return ops.add(z, y)

    check(f, [[3, 4]], [[9, 16]], [[6, 8]])


# ---- histories ----------------------------------------------------------------------------------


def test_write_through_a_detached_alias_is_hidden() -> None:
    def f(x: Any, z: Any) -> Any:
        y = ops.mul(x, 3.0)
        ops.write(ops.detach(y), ops.mul(z, 2.0))
        return ops.mul(y, x)  # the value of 2z, the gradient of 3x

    check(f, [[1.0, 2], [5.0, 7]], [[10, 28]], [[3 + 10, 6 + 14], None])


def test_detached_alias_sees_writes_without_their_gradient() -> None:
    def f(x: Any) -> Any:
        y = ops.mul(x, 1.0)
        d = ops.detach(y)
        ops.write(y, ops.mul(y, 3.0))
        return ops.mul(d, x)

    check(f, [[2.0]], [[12]], [[6]])


def test_a_view_after_a_visible_and_a_hidden_write() -> None:
    """It has the gradient of the one, and the value of the other."""

    def f(x: Any) -> Any:
        y = ops.mul(x, 1.0)
        v = part(y, slice(0, 1))
        ops.write(y, ops.mul(y, x))
        ops.write(ops.detach(y), ops.full(value=10.0, shape=(2,), dtype=float64))
        return ops.mul(v, v)

    check(f, [[3.0, 4.0]], [[100]], [[2 * 10 * 2 * 3, 0]])


def test_detached_view_of_a_view_writes_the_base() -> None:
    def f(x: Any) -> Any:
        y = ops.mul(x, 1.0)
        d = part(ops.detach(part(y, slice(1, 4))), slice(0, 2))
        v = part(y, slice(0, 2))
        ops.write(d, ops.mul(d, 10.0))
        return v, y, d

    check(
        f,
        [[1, 2, 3, 4]],
        [[1, 20], [1, 20, 30, 4], [20, 30]],
        [[1 + 2, 1 + 2, 2, 2]],
    )


def test_a_write_to_a_part_keeps_hidden_writes_to_the_others() -> None:
    def f(x: Any) -> Any:
        y = ops.mul(x, 1.0)
        ops.write(part(ops.detach(y), slice(0, 1)), ops.full(value=7.0, shape=(1,), dtype=float64))
        ops.write(part(y, slice(1, 2)), ops.mul(part(x, slice(1, 2)), 3.0))
        return y

    check(f, [[1.0, 2.0]], [[7, 6]], [[1, 3]])


def test_a_write_gives_a_detached_alias_a_gradient_of_its_own() -> None:
    def f(x: Any, z: Any) -> Any:
        y = ops.mul(x, 1.0)
        d = ops.detach(y)
        ops.write(d, ops.mul(z, z))
        return ops.add(d, y)  # d has z's gradient, y has x's

    check(f, [[2.0], [3.0]], [[18]], [[1], [6]])


def test_wrt_is_the_value_of_the_last_visible_write() -> None:
    """A hidden write (an optimizer's) moves the value, not what a gradient is taken by."""

    def f(w: Any) -> Any:
        from tinyaot.builder import Builder, Sym
        from tinyaot.ops.core import mode

        builder = mode.engine
        assert isinstance(builder, Builder)
        for _ in range(2):
            loss = ops.reshape(ops.sum(ops.mul(w, w), axes=(0,)), shape=())
            node = builder.emit(
                "grad",
                [loss.value, w.value],
                [w.value.type],
                {"outputs": 1, "cotangents": False, "wrt": 1},
            )
            hidden = ops.detach(w)
            ops.write(hidden, ops.sub(hidden, ops.mul(Sym(node.result), 0.25)))
        return w

    program = build(f, f64(2), grad=False)
    verify(program)
    pure = functionalize(program)
    verify(pure)
    second = [n for n in pure.nodes if n.op == "grad"][1]
    assert second.inputs[1] == program.inputs[0].value
    want = np.array([1.0, -2.0]) / 4  # w -= w / 2, twice
    for p in (program, pure, differentiate(pure)):
        np.testing.assert_allclose(interpret(p, np.array([1.0, -2.0]))[0], want)


def test_wrt_of_a_view_collects_uses_on_both_sides_of_a_hidden_write() -> None:
    def f(x: Any) -> Any:
        y = ops.mul(x, 1.0)
        v = part(y, slice(0, 1))
        before = ops.mul(v, v)
        ops.write(ops.detach(y), ops.full(value=10.0, shape=(2,), dtype=float64))
        loss = ops.reshape(ops.add(before, ops.mul(v, 7.0)), shape=())
        return _grad(loss, v)

    program = build(f, f64(2), grad=False)
    pure = functionalize(program)
    for p in (program, pure, differentiate(pure)):
        np.testing.assert_allclose(interpret(p, np.array([3.0, 4.0]))[0], [6 + 7])


def test_a_copied_tensor_is_another_one() -> None:
    """`y.copy_(z)` makes y's value equal to z's, but a gradient by y is not one by z."""

    def f(x: Any) -> Any:
        z = ops.mul(x, 1.0)
        y = ops.mul(x, 2.0)
        ops.write(y, z)
        loss = ops.reshape(ops.add(ops.mul(z, z), ops.mul(y, 5.0)), shape=())
        return _grad(loss, y)

    def read_once(x: Any) -> Any:
        z = ops.mul(x, 1.0)
        y = ops.mul(x, 2.0)
        ops.write(y, z)
        loss = ops.reshape(ops.add(ops.sin(z), ops.mul(y, 5.0)), shape=())
        return _grad(loss, y)

    for function in (f, read_once):
        for p in (pure := functionalize(build(function, f64(1), grad=False)), differentiate(pure)):
            np.testing.assert_allclose(interpret(p, np.array([3.0]))[0], [5.0])


def test_a_write_of_nothing_makes_a_new_value() -> None:
    """As on the tape: a gradient by what was written is not one by what it was before."""

    def f(x: Any) -> Any:
        y = ops.mul(x, 1.0)
        before = ops.mul(y, 7.0)
        empty = part(y, slice(0, 0))
        ops.write(empty, ops.mul(empty, 2.0))
        loss = ops.reshape(ops.add(before, ops.mul(y, 5.0)), shape=())
        return _grad(loss, y)

    program = build(f, f64(1), grad=False)
    for p in (program, pure := functionalize(program), differentiate(pure)):
        np.testing.assert_allclose(interpret(p, np.array([3.0]))[0], [5.0])


def _grad(loss: Any, wrt: Any) -> Any:
    from tinyaot.builder import Sym
    from tinyaot.ops.core import mode

    builder: Any = mode.engine
    attrs = {"outputs": 1, "cotangents": False, "wrt": 1}
    node = builder.emit("grad", [loss.value, wrt.value], [wrt.value.type], attrs)
    return Sym(node.result)


# ---- what is written ----------------------------------------------------------------------------


def test_a_view_is_replayed_once_a_write_and_only_when_read() -> None:
    def f(x: Any) -> Any:
        y = ops.mul(x, 1.0)
        read, unread = part(y, slice(0, 2)), part(y, slice(2, 4))
        ops.write(unread, ops.neg(unread))
        a = ops.exp(read)
        b = ops.sin(read)
        return a, b

    pure = functionalize(build(f, f64(4)))
    assert [n.op for n in pure.nodes].count("slice") == 2  # of y, and of the written y
    assert not any(n.op == "write" for n in pure.nodes)


def test_new_nodes_name_what_was_written() -> None:
    def f(x: Any) -> Any:
        y = ops.mul(x, 1.0)
        v = part(y, slice(0, 2))
        ops.write(v, ops.neg(v))
        return y

    program = build(f, f64(4))
    pure = functionalize(program)
    (node,) = [n for n in pure.nodes if n.op == "slice_scatter"]
    view = next(n for n in program.nodes if n.op == "slice").result
    assert [(o.relation, o.id) for o in node.origin] == [("functionalized", view.id)]


def test_programs_without_writes_stay_as_they_are() -> None:
    program = build(lambda x: ops.exp(ops.permute(x, perm=(1, 0))), f64(2, 3))
    pure = functionalize(program)
    assert pure == program.replace(stage="functionalize")


def test_outputs_with_storages_of_their_own_keep_them() -> None:
    """Two inputs swapped, and an output that equals a written input, are no aliases."""

    def swap(x: Any, y: Any) -> Any:
        old = ops.copy(x)
        ops.write(x, y)
        ops.write(y, old)
        z = ops.mul(x, 2.0)
        ops.write(x, z)
        return z, x

    pure = functionalize(build(swap, f64(2), f64(2)))
    inputs = {i.value.id for i in pure.inputs}
    z, x, new_x, new_y = (o.value.id for o in pure.outputs)
    assert not inputs & {z, x, new_x, new_y}
    assert x == new_x and z != x and new_y not in (x, z)
    a, b = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    for got, want in zip(interpret(pure, a, b), [2 * b, 2 * b, 2 * b, a], strict=True):
        np.testing.assert_array_equal(got, want)


# ---- random programs ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(60))
def test_random_programs_keep_their_values(seed: int) -> None:
    program = Generator(seed).program(steps=4 + seed % 30, grads=seed % 3)
    verify(program)
    pure = functionalize(program)
    verify(pure)
    for special in (False, True):
        arrays = random_inputs(program, seed, special)
        assert_same(program, pure, arrays)


@pytest.mark.parametrize("seed", range(100, 160))
def test_random_programs_keep_their_gradients(seed: int) -> None:
    """The tape of the program with writes, and the tape of the pure one, agree."""
    program = Generator(seed).program(steps=4 + seed % 30)
    pure = functionalize(program)
    want, got = with_gradients(program), with_gradients(pure)
    assert_same(want, got, random_inputs(want, seed))


def assert_same(before: Program, after: Program, arrays: list[np.ndarray]) -> None:
    for x, y in zip(interpret(before, *arrays), interpret(after, *arrays), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-13)
        if not any(n.op == "dot" for n in before.nodes):  # products round by their strides
            assert same_bits(x, y)
