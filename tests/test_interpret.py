"""Interpreting a Program: NumPy's meaning of it, views that alias, and grad nodes on the tape."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import tinyaot as ta
from tinyaot.errors import DTypeError, ShapeError, TinyaotError, VerifyError
from tinyaot.interpret import interpret, run_nodes
from tinyaot.text import parse


def run(text: str, *arrays: object, observe: object = None) -> list[np.ndarray]:
    return interpret(parse(text), *arrays, observe=observe)


def f32(*numbers: object) -> np.ndarray:
    return np.array(numbers, np.float32)


MADE = """
program f @ simplify
  input %0: f32[2,3] argument "x"
  input %1: f32[3] argument "b"
  %2: f32[2,3] = add(%0, %1)
  %3: f32[2,1] = sum(%2) {axes=[1]}
  %4: f32[] = full() {value=0.5, shape=[], dtype=f32}
  %5: f32[2,3] = mul(%2, %4)
  output user %3
  output user %5
  output user %0
"""


def test_values_in_the_order_of_the_outputs() -> None:
    x, b = np.arange(6, dtype=np.float32).reshape(2, 3), f32(1, 2, 3)
    sums, half, same = run(MADE, x, b)
    np.testing.assert_array_equal(sums, (x + b).sum(1, keepdims=True))
    np.testing.assert_array_equal(half, (x + b) * np.float32(0.5))
    np.testing.assert_array_equal(same, x)
    assert half.dtype == np.float32
    assert not np.may_share_memory(same, x)


def test_observe_sees_every_value() -> None:
    seen: dict[int, np.ndarray] = {}
    run(MADE, np.ones((2, 3), np.float32), f32(1, 2, 3), observe=seen.__setitem__)
    assert list(seen) == [0, 1, 2, 3, 4, 5]
    assert seen[4].shape == ()


def test_run_nodes_goes_on_from_given_values() -> None:
    p = parse(MADE)
    values = {2: np.ones((2, 3), np.float32)}
    run_nodes(p.nodes[1:2], values)
    np.testing.assert_array_equal(values[3], [[3], [3]])


def test_floating_point_trouble_is_silent() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (y,) = run(
            "program f @ simplify\ninput %0: f32[2] argument\n%1: f32[2] = log(%0)\noutput user %1",
            f32(0, -1),
        )
    assert y[0] == -np.inf and np.isnan(y[1])


# ---- views and writes ---------------------------------------------------------------------------

WRITES = """
program f @ trace
  input %0: f32[2,3] argument "x"
  input %1: f32[2] argument "c"
  %2: f32[3,2] = permute(%0) {perm=[1,0]}
  %3: f32[1,2] = slice(%2) {starts=[1,0], stops=[2,2], steps=[1,1]}
  %4: f32[2] = reshape(%3) {shape=[2]}
  write(%4, %1)
  %5: f32[2,3] = neg(%0)
  output user %5
  output user %2
  output mutated %0 of %0 "x"
"""


def test_a_write_reaches_the_base_and_its_views_but_not_the_caller() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    negated, transposed, mutated = run(WRITES, x, f32(10, 20))
    want = np.array([[0, 10, 2], [3, 20, 5]], np.float32)
    np.testing.assert_array_equal(mutated, want)
    np.testing.assert_array_equal(transposed, want.T)
    np.testing.assert_array_equal(negated, -want)
    np.testing.assert_array_equal(x, np.arange(6).reshape(2, 3))


def test_a_map_of_a_permuted_value_is_in_c_order() -> None:
    """Its reshape is a view, though NumPy would have kept the operand's order and copied."""
    (y,) = run(
        """
        program f @ trace
          input %0: f32[2,3] argument
          input %1: f32[] argument
          %2: f32[3,2] = permute(%0) {perm=[1,0]}
          %3: f32[3,2] = neg(%2)
          %4: f32[6] = reshape(%3) {shape=[6]}
          %5: f32[1] = slice(%4) {starts=[1], stops=[2], steps=[1]}
          %6: f32[] = reshape(%5) {shape=[]}
          write(%6, %1)
          output user %3
        """,
        np.zeros((2, 3), np.float32),
        7.0,
    )
    assert y[0, 1] == 7


def test_a_broadcast_that_repeats_nothing_can_be_written() -> None:
    (x,) = run(
        """
        program f @ trace
          input %0: f32[2] argument
          %1: f32[1,2] = broadcast(%0) {shape=[1,2]}
          %2: f32[1,2] = full() {value=3.0, shape=[1,2], dtype=f32}
          write(%1, %2)
          output mutated %0 of %0
        """,
        f32(1, 2),
    )
    np.testing.assert_array_equal(x, [3, 3])


def test_overlapping_source_and_target() -> None:
    (x,) = run(
        """
        program f @ trace
          input %0: f32[4] argument
          %1: f32[3] = slice(%0) {starts=[0], stops=[3], steps=[1]}
          %2: f32[3] = slice(%0) {starts=[1], stops=[4], steps=[1]}
          write(%2, %1)
          output mutated %0 of %0
        """,
        f32(1, 2, 3, 4),
    )
    np.testing.assert_array_equal(x, [1, 1, 2, 3])


# ---- grad nodes ---------------------------------------------------------------------------------


def test_grad_of_a_loss() -> None:
    x = f32(1, 2, 3)
    loss, dx = run(
        """
        program f @ trace
          input %0: f32[3] argument "x" grad
          %1: f32[3] = mul(%0, %0)
          %2: f32[1] = sum(%1) {axes=[0]}
          %3: f32[3] = grad(%2, %0) {outputs=1, cotangents=false, wrt=1}
          output user %2
          output user %3
        """,
        x,
    )
    np.testing.assert_array_equal(loss, [14])
    np.testing.assert_array_equal(dx, 2 * x)


def test_grad_with_cotangents_by_unconnected_and_unflagged_values() -> None:
    seen: dict[int, np.ndarray] = {}
    dx, dy, dz = run(
        """
        program f @ functionalize
          input %0: f32[2] argument "x"
          input %1: f32[2] argument "g"
          %2: f32[2] = exp(%0)
          %3: f32[2] = mul(%2, %2)
          %4: f32[2] = neg(%0)
          %5:f32[2], %6:f32[2], %7:f32[2] = grad(%3,%1,%2,%0,%4) {outputs=1,cotangents=true,wrt=3}
          output user %5
          output user %6
          output user %7
        """,
        f32(0, 1),
        f32(1, 10),
        observe=seen.__setitem__,
    )
    e = np.exp(f32(0, 1))
    np.testing.assert_allclose(dx, 2 * e * [1, 10], rtol=1e-6)
    np.testing.assert_allclose(dy, 2 * e * e * [1, 10], rtol=1e-6)
    np.testing.assert_array_equal(dz, [0, 0])
    assert sorted(seen) == list(range(8))


def test_grad_of_a_grad() -> None:
    (d2,) = run(
        """
        program f @ trace
          input %0: f64[] argument "x" grad
          %1: f64[] = mul(%0, %0)
          %2: f64[] = mul(%1, %0)
          %3: f64[] = grad(%2, %0) {outputs=1, cotangents=false, wrt=1}
          %4: f64[] = grad(%3, %0) {outputs=1, cotangents=false, wrt=1}
          output user %4
        """,
        2.0,
    )
    assert d2 == 12


def test_grad_of_nothing_is_zero() -> None:
    (d,) = run(
        """
        program f @ trace
          input %0: f32[2] argument "x"
          %1: f32[] = full() {value=3.0, shape=[], dtype=f32}
          %2: f32[2] = grad(%1, %0) {outputs=1, cotangents=false, wrt=1}
          output user %2
        """,
        f32(1, 2),
    )
    np.testing.assert_array_equal(d, [0, 0])


def test_a_training_step_writes_its_parameter_hidden_from_autograd() -> None:
    """p -= grad through a detached alias; the gradient that follows is still by p's history."""
    w = f32(1, 2)
    new, first, second = run(
        """
        program step @ trace
          input %0: f32[2] state "w" grad
          %1: f32[2] = mul(%0, %0)
          %2: f32[1] = sum(%1) {axes=[0]}
          %3: f32[2] = grad(%2, %0) {outputs=1, cotangents=false, wrt=1}
          %4: f32[2] = detach(%0)
          %5: f32[2] = sub(%4, %3)
          write(%4, %5)
          %6: f32[2] = mul(%0, %0)
          %7: f32[2] = mul(%6, %0)
          %8: f32[1] = sum(%7) {axes=[0]}
          %9: f32[2] = grad(%8, %0) {outputs=1, cotangents=false, wrt=1}
          output mutated %0 of %0 "w"
          output user %3
          output user %9
        """,
        w,
    )
    np.testing.assert_array_equal(first, [2, 4])
    np.testing.assert_array_equal(new, [-1, -2])
    np.testing.assert_array_equal(second, [3, 12])
    np.testing.assert_array_equal(w, [1, 2])


def test_a_visible_write_of_an_input_that_requires_grad() -> None:
    """Row 13 of the semantics: x *= 2; return x * x, by the x that was given: here by the new x."""
    (dx,) = run(
        """
        program f @ trace
          input %0: f32[2] argument "x" grad
          %1: f32[2] = add(%0, %0)
          write(%0, %1)
          %2: f32[2] = mul(%0, %0)
          %3: f32[1] = sum(%2) {axes=[0]}
          %4: f32[2] = grad(%3, %0) {outputs=1, cotangents=false, wrt=1}
          output user %4
        """,
        f32(1, 2),
    )
    np.testing.assert_array_equal(dx, [4, 8])


def test_a_detached_alias_that_is_differentiated_by_shares_its_bytes() -> None:
    """d = x.detach().requires_grad_(): a write to x is seen through d."""
    d, dd = run(
        """
        program f @ trace
          input %0: f32[2] argument "x"
          %1: f32[2] = detach(%0)
          %2: f32[2] = full() {value=3.0, shape=[2], dtype=f32}
          write(%0, %2)
          %3: f32[2] = mul(%1, %1)
          %4: f32[1] = sum(%3) {axes=[0]}
          %5: f32[2] = grad(%4, %1) {outputs=1, cotangents=false, wrt=1}
          output user %1
          output user %5
          output mutated %0 of %0
        """,
        f32(1, 2),
    )[:2]
    np.testing.assert_array_equal(d, [3, 3])
    np.testing.assert_array_equal(dd, [6, 6])


def test_a_value_whose_detached_alias_is_differentiated_by_is_written() -> None:
    """v = x.detach(); v.fill_(3): only the alias of v is a leaf."""
    (dd,) = run(
        """
        program f @ trace
          input %0: f32[2] argument "x" grad
          %1: f32[2] = detach(%0)
          %2: f32[2] = full() {value=3.0, shape=[2], dtype=f32}
          write(%1, %2)
          %3: f32[2] = detach(%1)
          %4: f32[2] = mul(%3, %1)
          %5: f32[1] = sum(%4) {axes=[0]}
          %6: f32[2] = grad(%5, %3) {outputs=1, cotangents=false, wrt=1}
          output user %6
        """,
        f32(1, 2),
    )
    np.testing.assert_array_equal(dd, [3, 3])


def test_gradients_have_bytes_of_their_own() -> None:
    """Both operands of an add get one cotangent; a write to one gradient reaches one only."""
    a, b = run(
        """
        program f @ trace
          input %0: f32[2] argument "a" grad
          input %1: f32[2] argument "b" grad
          %2: f32[2] = add(%0, %1)
          %3: f32[1] = sum(%2) {axes=[0]}
          %4: f32[2], %5: f32[2] = grad(%3, %0, %1) {outputs=1, cotangents=false, wrt=2}
          %6: f32[2] = detach(%4)
          %7: f32[2] = full() {value=9.0, shape=[2], dtype=f32}
          write(%6, %7)
          output user %4
          output user %5
        """,
        f32(1, 2),
        f32(1, 2),
    )
    np.testing.assert_array_equal(a, [9, 9])
    np.testing.assert_array_equal(b, [1, 1])


# ---- what is refused ----------------------------------------------------------------------------


def test_arrays_must_fit_their_inputs() -> None:
    x, b = np.ones((2, 3), np.float32), np.ones(3, np.float32)
    with pytest.raises(TinyaotError, match=r"2 inputs \(x: f32\[2,3\], b: f32\[3\]\), got 1"):
        run(MADE, x)
    with pytest.raises(DTypeError, match=r"b: f32\[3\].*float64"):
        run(MADE, x, b.astype(np.float64))
    with pytest.raises(ShapeError, match=r"x: f32\[2,3\].*\(3, 2\)"):
        run(MADE, x.T, b)
    with pytest.raises(DTypeError, match="no such dtype"):
        run(MADE, x, np.array(["a", "b", "c"]))


def test_numbers_are_taken_for_zero_dimensional_inputs_only() -> None:
    text = "program f @ simplify\ninput %0: i64[] argument\n%1: i64[] = neg(%0)\noutput user %1"
    assert run(text, 3)[0] == -3
    with pytest.raises(DTypeError):
        run(text, 0.5)
    with pytest.raises(ShapeError):
        run("program f @ simplify\ninput %0: f32[2] argument\noutput user %0", 0.5)


def test_an_unknown_op_and_a_false_type() -> None:
    with pytest.raises(VerifyError, match="no primitive 'mend'"):
        run("program f @ trace\ninput %0: f32[] argument\n%1: f32[] = mend(%0)", 1.0)
    with pytest.raises(VerifyError, match=r"neg gave f32\[\] for %1: f64\[\]"):
        run("program f @ trace\ninput %0: f32[] argument\n%1: f64[] = neg(%0)", 1.0)


def test_a_gradient_by_a_view_of_what_is_written_in_between() -> None:
    def f(x: ta.Tensor, base: ta.Tensor, view: ta.Tensor) -> ta.Tensor:
        base += x
        part = view[-2:]
        (found,) = ta.grad((part * part).sum(), [view])
        part.sub_(view * 2)
        return found

    x = ta.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    base = ta.tensor([5.0, 6.0, 7.0, 8.0])
    given = [x.detach().numpy().copy(), base.numpy().copy()]
    program = ta.trace(f, x * 1, base, base[:2])
    found, written = ta.interpret(program, *given)
    np.testing.assert_array_equal(found, [12, 16])
    np.testing.assert_array_equal(written, [-6, -8, 10, 12])
