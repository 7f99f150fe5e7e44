"""Linear maps, activations, dropout and tables, against closed formulas and differences."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from scipy import special, stats

import tinyaot as ta
from tests.numeric import check_gradients, close, numbers, ops_of
from tinyaot.errors import ArgumentError, DTypeError, IndexingError, ShapeError
from tinyaot.nn import functional as F


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    return special.softmax(x, axis=axis)


# ---- linear and activations ---------------------------------------------------------------------


@pytest.mark.parametrize("lead", [(), (5,), (2, 5), (2, 3, 5)])
def test_linear(lead: tuple[int, ...]) -> None:
    x, w, b = numbers(*lead, 4), numbers(3, 4, seed=1), numbers(3, seed=2)
    close(F.linear(ta.tensor(x), ta.tensor(w), ta.tensor(b)), x @ w.T + b)
    close(F.linear(ta.tensor(x), ta.tensor(w)), x @ w.T)
    close(F.linear(ta.tensor(x), ta.tensor(w[0])), x @ w[0])
    check_gradients(F.linear, x, w, b)


def test_linear_errors_name_both_shapes() -> None:
    with pytest.raises(ShapeError, match=r"linear.*\(2, 4\).*\(3, 5\)"):
        F.linear(ta.zeros(2, 4), ta.zeros(3, 5))
    with pytest.raises(DTypeError, match=r"linear.*float32 does not fit one of float64"):
        F.linear(ta.zeros(2, 4), ta.zeros(3, 4, dtype=ta.float64))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "relu": (F.relu, lambda x: np.maximum(x, 0)),
    "gelu": (F.gelu, lambda x: x * stats.norm.cdf(x)),
    "gelu tanh": (lambda x: F.gelu(x, approximate="tanh"), gelu_tanh),
    "silu": (F.silu, lambda x: x * special.expit(x)),
    "sigmoid": (F.sigmoid, special.expit),
    "tanh": (F.tanh, np.tanh),
    "softplus": (F.softplus, lambda x: np.logaddexp(0, x)),
    "softplus beta": (lambda x: F.softplus(x, beta=2.0), lambda x: np.logaddexp(0, 2 * x) / 2),
    "softmax": (lambda x: F.softmax(x, 1), lambda x: softmax(x, 1)),
    "log_softmax": (lambda x: F.log_softmax(x, 0), lambda x: special.log_softmax(x, axis=0)),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str) -> None:
    fn, formula = ACTIVATIONS[name]
    x = 2 * numbers(3, 4)
    close(fn(ta.tensor(x)), formula(x))
    check_gradients(fn, x)
    assert fn(ta.tensor(x.astype(np.float32))).dtype is ta.float32


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", ["gelu", "gelu tanh", "silu", "softplus", "softmax"])
def test_half_precision_rounds_once(name: str, dtype: Any) -> None:
    fn, _ = ACTIVATIONS[name]
    x = (2 * numbers(4, 5)).astype(dtype)
    wide = fn(ta.tensor(x.astype(np.float32))).numpy()
    got = fn(ta.tensor(x))
    assert got.numpy().dtype == dtype
    np.testing.assert_array_equal(got.numpy(), wide.astype(dtype))


def test_softplus_far_out() -> None:
    x = ta.tensor(
        np.array([-800.0, -40.0, 0.0, 19.0, 20.0, 21.0, 800.0, np.inf]), requires_grad=True
    )
    y = F.softplus(x)
    close(y, [0, np.exp(-40), np.log(2), *np.logaddexp(0, [19, 20]), 21, 800, np.inf], atol=0)
    y[:-1].sum().backward()
    close(x.grad[:-1], [0, np.exp(-40), 0.5, *special.expit([19, 20]), 1, 1])


def test_gelu_rejects_other_approximations() -> None:
    with pytest.raises(ArgumentError, match="'none' or 'tanh'"):
        F.gelu(ta.zeros(2), approximate="erf")
    with pytest.raises(DTypeError, match="gelu"):
        F.gelu(ta.tensor([1, 2]))


def test_inplace_writes_the_input() -> None:
    x = ta.tensor([-1.0, 2.0])
    assert F.relu(x, inplace=True) is x
    close(x, [0, 2])
    assert F.silu(x, inplace=True) is x
    close(x, [0, 2 * special.expit(2)], rtol=1e-6)


# ---- dropout ------------------------------------------------------------------------------------


def test_dropout_keeps_a_share_and_scales_it() -> None:
    ta.manual_seed(3)
    x = ta.ones(200, 300, requires_grad=True)
    y = F.dropout(x, 0.3)
    kept = y.numpy() != 0
    assert abs(kept.mean() - 0.7) < 0.01
    close(y.numpy()[kept], 1 / 0.7, rtol=1e-6)
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), y.numpy())  # the same mask and scale


def test_dropout_repeats_with_the_seed_and_not_from_call_to_call() -> None:
    x = ta.ones(64)
    masks = []
    for seed in (1, 1, 2):
        ta.manual_seed(seed)
        masks.append([F.dropout(x, 0.5).numpy() for _ in range(2)])
    np.testing.assert_array_equal(masks[0], masks[1])
    assert (masks[0][0] != masks[0][1]).any() and (masks[0][0] != masks[2][0]).any()


def test_dropout_off() -> None:
    x = ta.ones(8)
    assert F.dropout(x, 0.5, training=False) is x
    assert F.dropout(x, 0.0) is x
    close(F.dropout(x, 1.0), np.zeros(8))
    y = F.dropout(x, 0.5, inplace=True)
    assert y is x
    for p in (-0.1, 1.1, math.nan):
        with pytest.raises(ArgumentError, match="between 0 and 1"):
            F.dropout(x, p)


def test_dropout_masks_are_equal_when_interpreted() -> None:
    x = ta.ones(50)
    ta.manual_seed(5)
    eager = F.dropout(F.dropout(x, 0.3), 0.4).numpy()
    ta.manual_seed(5)
    compiled = ta.compile(lambda t: F.dropout(F.dropout(t, 0.3), 0.4), backend="numpy")
    np.testing.assert_array_equal(compiled(x).numpy(), eager)


# ---- tables -------------------------------------------------------------------------------------


def test_embedding() -> None:
    table, ids = numbers(5, 3), np.array([[0, 4], [2, 4]])
    close(F.embedding(ta.tensor(ids), ta.tensor(table)), table[ids])
    check_gradients(lambda t: F.embedding(ta.tensor(ids), t), table)
    t = ta.tensor(table, requires_grad=True)
    F.embedding(ta.tensor(ids), t, padding_idx=-1).sum().backward()
    close(t.grad, [[1] * 3, [0] * 3, [1] * 3, [0] * 3, [0] * 3])
    with pytest.raises(IndexingError):
        F.embedding(ta.tensor([5]), ta.tensor(table))
    with pytest.raises(ta.errors.TinyaotError, match="embedding"):
        F.embedding(ta.tensor([0.5]), ta.tensor(table))


def test_one_hot() -> None:
    ids = np.array([[0, 2], [1, 1]])
    np.testing.assert_array_equal(F.one_hot(ta.tensor(ids)).numpy(), np.eye(3, dtype=int)[ids])
    got = F.one_hot(ta.tensor(ids), 5)
    assert got.dtype is ta.int64 and got.shape == (2, 2, 5)


def test_pad() -> None:
    x = numbers(2, 3)
    close(F.pad(ta.tensor(x), (1, 2)), np.pad(x, ((0, 0), (1, 2))))
    close(
        F.pad(ta.tensor(x), (0, 1, 2, 0), value=7.0), np.pad(x, ((2, 0), (0, 1)), constant_values=7)
    )
    close(F.pad(ta.tensor(x), (-1, 0)), x[:, 1:])
    check_gradients(lambda t: F.pad(t, (1, 0, 0, 1)), x)


# ---- how they are decomposed --------------------------------------------------------------------


def test_linear_is_one_product_without_a_transpose() -> None:
    ops = ops_of(F.linear, ta.zeros(2, 3, 4), ta.zeros(5, 4), ta.zeros(5))
    assert [op for op in ops if op != "full"] == ["dot", "add"]
