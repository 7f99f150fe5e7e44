"""Normalisations against closed formulas, their gradients against differences."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tinyaot as ta
from tests.numeric import check_gradients, close, numbers
from tinyaot.errors import ArgumentError, ShapeError
from tinyaot.nn import functional as F


@pytest.mark.parametrize("shape", [(6,), (5, 6)])
def test_layer_norm(shape: tuple[int, ...]) -> None:
    x, w, b = numbers(3, 5, 6), numbers(*shape, seed=1), numbers(*shape, seed=2)
    axes = tuple(range(3 - len(shape), 3))
    plain = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)
    close(F.layer_norm(ta.tensor(x), shape), plain)
    close(F.layer_norm(ta.tensor(x), shape, ta.tensor(w), ta.tensor(b)), plain * w + b)
    check_gradients(lambda t, u, v: F.layer_norm(t, shape, u, v), x[:2], w, b)


def test_rms_norm() -> None:
    x, w = numbers(3, 6), numbers(6, seed=1)
    close(
        F.rms_norm(ta.tensor(x), (6,), ta.tensor(w), eps=0.1),
        x / np.sqrt((x**2).mean(-1, keepdims=True) + 0.1) * w,
    )
    check_gradients(lambda a, b: F.rms_norm(a, 6, b), x, w)
    small = np.full((1, 4), 2.0**-12)  # eps=None: that of float32, in which halves are computed
    got = F.rms_norm(ta.tensor(small.astype(np.float16)), 4)
    close(got.double(), small / np.sqrt(small**2 + 2.0**-23), rtol=1e-3)


def test_norms_check_shapes() -> None:
    with pytest.raises(ShapeError, match=r"layer_norm.*\(2, 3\) does not end in \(4,\)"):
        F.layer_norm(ta.zeros(2, 3), 4)
    with pytest.raises(ShapeError, match=r"weight must have shape \(3,\)"):
        F.rms_norm(ta.zeros(2, 3), 3, ta.ones(2))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_layer_norm_in_half_precision(dtype: Any) -> None:
    x = (100 + numbers(2, 64)).astype(dtype)
    wide = x.astype(np.float64)
    want = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    got = F.layer_norm(ta.tensor(x), 64)
    assert got.numpy().dtype == dtype
    close(
        got.numpy().astype(np.float64), want, rtol=2 * float(ml_dtypes.finfo(dtype).eps), atol=1e-2
    )


@pytest.mark.parametrize("tail", [(), (2, 3)])
def test_batch_norm(tail: tuple[int, ...]) -> None:
    x, w, b = numbers(4, 3, *tail), numbers(3, seed=1), numbers(3, seed=2)
    axes = tuple(a for a in range(x.ndim) if a != 1)
    column = (3,) + (1,) * len(tail)
    mean, var = x.mean(axes), x.var(axes)
    n = x.size / 3
    running_mean, running_var = ta.tensor(np.full(3, 2.0)), ta.tensor(np.full(3, 4.0))
    args = ta.tensor(w), ta.tensor(b)
    got = F.batch_norm(ta.tensor(x), running_mean, running_var, *args, True, 0.25)
    plain = (x - mean.reshape(column)) / np.sqrt(var.reshape(column) + 1e-5)
    close(got, plain * w.reshape(column) + b.reshape(column))
    close(running_mean, 0.75 * 2 + 0.25 * mean)
    close(running_var, 0.75 * 4 + 0.25 * var * n / (n - 1))
    still = F.batch_norm(ta.tensor(x), running_mean, running_var, *args)
    scale = np.sqrt(running_var.numpy() + 1e-5).reshape(column)
    shifted = (x - running_mean.numpy().reshape(column)) / scale
    close(still, shifted * w.reshape(column) + b.reshape(column))
    check_gradients(lambda t, u, v: F.batch_norm(t, None, None, u, v, True), x, w, b, rtol=1e-5)


def test_batch_norm_errors() -> None:
    with pytest.raises(ShapeError, match="more than one value a channel"):
        F.batch_norm(ta.zeros(1, 3), None, None, training=True)
    with pytest.raises(ArgumentError, match="running_mean and running_var are needed"):
        F.batch_norm(ta.zeros(2, 3), None, None)
    with pytest.raises(ShapeError, match=r"weight must have shape \(3,\), got \(2,\)"):
        F.batch_norm(ta.zeros(2, 3), None, None, ta.ones(2), training=True)
