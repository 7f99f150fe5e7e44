"""Convolution and pooling against loops over windows, their gradients against differences."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

import tinyaot as ta
from tests.numeric import check_gradients, close, numbers
from tinyaot.errors import ArgumentError, DTypeError, ShapeError
from tinyaot.nn import functional as F


def conv(x: Any, w: Any, b: Any, stride: Any, pad: Any, dilation: Any, groups: int) -> np.ndarray:
    """One output at a time. stride, pad and dilation are pairs."""
    x = np.pad(x, ((0, 0), (0, 0), (pad[0],) * 2, (pad[1],) * 2))
    n, out, (kh, kw) = len(x), len(w), w.shape[2:]
    reach = dilation[0] * (kh - 1) + 1, dilation[1] * (kw - 1) + 1
    size = [(x.shape[2 + a] - reach[a]) // stride[a] + 1 for a in (0, 1)]
    y = np.empty((n, out, *size))
    for o, i, j in product(range(out), range(size[0]), range(size[1])):
        group = o // (out // groups) * w.shape[1]
        top, left = i * stride[0], j * stride[1]
        window = x[
            :,
            group : group + w.shape[1],
            top : top + reach[0] : dilation[0],
            left : left + reach[1] : dilation[1],
        ]
        y[:, o, i, j] = (window * w[o]).sum((1, 2, 3)) + b[o]
    return y


@pytest.mark.parametrize("kernel", [(1, 1), (3, 2)])
@pytest.mark.parametrize("stride", [1, (2, 3)])
@pytest.mark.parametrize("padding", [0, (2, 1)])
@pytest.mark.parametrize("dilation", [1, (1, 2)])
@pytest.mark.parametrize("groups", [1, 2])
def test_conv2d(kernel: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> None:
    x, w, b = numbers(2, 4, 7, 6), numbers(6, 4 // groups, *kernel, seed=1), numbers(6, seed=2)
    pairs = [p if isinstance(p, tuple) else (p, p) for p in (stride, padding, dilation)]
    options = stride, padding, dilation, groups
    close(
        F.conv2d(ta.tensor(x), ta.tensor(w), ta.tensor(b), *options), conv(x, w, b, *pairs, groups)
    )


@pytest.mark.parametrize("groups", [1, 2])
def test_conv2d_gradients(groups: int) -> None:
    x, w, b = numbers(1, 2, 4, 5), numbers(2, 2 // groups, 2, 3, seed=1), numbers(2, seed=2)
    check_gradients(lambda *t: F.conv2d(*t, (1, 2), 1, 1, groups), x, w, b)


def test_conv2d_paddings_by_name_and_images_alone() -> None:
    x, w = numbers(1, 2, 5, 6), numbers(3, 2, 3, 3, seed=1)
    same = F.conv2d(ta.tensor(x), ta.tensor(w), padding="same")
    close(same, conv(x, w, np.zeros(3), (1, 1), (1, 1), (1, 1), 1))
    valid = F.conv2d(ta.tensor(x[0]), ta.tensor(w), padding="valid")
    close(valid, conv(x, w, np.zeros(3), (1, 1), (0, 0), (1, 1), 1)[0])
    even = F.conv2d(ta.tensor(x), ta.tensor(w[..., :2]), padding="same")  # pads more at the end
    wider = np.pad(x, ((0, 0), (0, 0), (0, 0), (0, 1)))
    close(even, conv(wider, w[..., :2], np.zeros(3), (1, 1), (1, 0), (1, 1), 1))


def test_conv2d_errors() -> None:
    x, w = ta.zeros(1, 3, 4, 4), ta.zeros(2, 3, 3, 3)
    for make, error, message in (
        (lambda: F.conv2d(x, ta.zeros(2, 4, 3, 3)), ShapeError, "input of 3 channels"),
        (lambda: F.conv2d(x, ta.zeros(2, 3, 5, 5)), ShapeError, "window of 5 does not fit"),
        (lambda: F.conv2d(x, ta.zeros(2, 3)), ShapeError, "weight must be"),
        (lambda: F.conv2d(ta.zeros(3, 4), w), ShapeError, r"input must be \[n, c, h, w\]"),
        (lambda: F.conv2d(x, w, stride=2, padding="same"), ArgumentError, "needs stride 1"),
        (lambda: F.conv2d(x, w, padding="full"), ArgumentError, "'same' or 'valid'"),
        (lambda: F.conv2d(x, w, stride=0), ArgumentError, "must be positive"),
        (lambda: F.conv2d(x, w.double()), DTypeError, "float32 does not fit one of float64"),
    ):
        with pytest.raises(error, match=message):
            make()


# ---- pooling ------------------------------------------------------------------------------------


def pool(
    x: np.ndarray, k: int, s: int, p: int, ceil: bool, combine: Callable[[Any, int], Any]
) -> np.ndarray:
    """`combine(window, elements with padding)` of each window, cut at the image's edges."""
    h = x.shape[2]
    count = (math.ceil if ceil else math.floor)((h + 2 * p - k) / s) + 1
    if ceil and (count - 1) * s >= h + p:
        count -= 1
    spans = []
    for i in range(count):
        start, stop = i * s - p, min(i * s - p + k, h + p)
        spans.append((slice(max(start, 0), min(stop, h)), stop - start))
    rows = [
        [combine(x[:, :, a, b], m * n) for b, n in spans]  # square images
        for a, m in spans
    ]
    return np.stack([np.stack(r, -1) for r in rows], -2)


POOLS = [(2, None, 0), (3, 2, 1), (2, 3, 1), (3, 1, 0)]


@pytest.mark.parametrize("kernel, stride, padding", POOLS)
@pytest.mark.parametrize("ceil", [False, True])
def test_pools(kernel: int, stride: int | None, padding: int, ceil: bool) -> None:
    x = numbers(2, 3, 7, 7)
    args = kernel, stride or kernel, padding, ceil
    t = ta.tensor(x)
    greatest = F.max_pool2d(t, kernel, stride, padding, ceil_mode=ceil)
    close(greatest, pool(x, *args, lambda w, n: w.max((2, 3))))
    padded = F.avg_pool2d(t, kernel, stride, padding, ceil)
    close(padded, pool(x, *args, lambda w, n: w.sum((2, 3)) / n))
    bare = F.avg_pool2d(t, kernel, stride, padding, ceil, count_include_pad=False)
    close(bare, pool(x, *args, lambda w, n: w.mean((2, 3))))


def test_pool_gradients() -> None:
    x = numbers(1, 2, 5, 5)
    check_gradients(lambda t: F.max_pool2d(t, 3, 2, 1), x)
    check_gradients(lambda t: F.avg_pool2d(t, 2, 2, 1, True, False), x)


def test_max_pool_gives_a_tie_to_the_first() -> None:
    x = ta.tensor(np.zeros((1, 1, 2, 4)), requires_grad=True)
    F.max_pool2d(x, 2).sum().backward()
    close(x.grad[0, 0], [[1, 0, 1, 0], [0, 0, 0, 0]])


def test_max_pool_of_other_values() -> None:
    x = numbers(1, 1, 4, 4)
    x[0, 0, 1, 1] = np.nan
    assert np.isnan(F.max_pool2d(ta.tensor(x), 2).numpy()).tolist() == [
        [[[True, False], [False] * 2]]
    ]
    whole = ta.tensor(np.arange(16).reshape(1, 4, 4)) - 20
    assert F.max_pool2d(whole, 2, padding=1)[0].tolist() == [
        [-20, -18, -17],
        [-12, -10, -9],
        [-8, -6, -5],
    ]
    dilated = F.max_pool2d(ta.tensor(numbers(1, 1, 4, 4)), 2, 1, dilation=2)
    y = numbers(1, 1, 4, 4)
    close(dilated[0, 0, 0, 0], y[0, 0, ::2, ::2].max())


def test_pool_errors_and_divisor() -> None:
    x = ta.ones(1, 1, 4, 4)
    close(F.avg_pool2d(x, 2, divisor_override=8), np.full((1, 1, 2, 2), 0.5))
    with pytest.raises(ArgumentError, match="more than half of the window"):
        F.max_pool2d(x, 2, padding=2)
    with pytest.raises(ArgumentError, match="must not be 0"):
        F.avg_pool2d(x, 2, divisor_override=0)
    with pytest.raises(ShapeError, match="kernel_size must be an int or two"):
        F.max_pool2d(x, (1, 2, 3))
    with pytest.raises(DTypeError, match="avg_pool2d needs a floating dtype"):
        F.avg_pool2d(ta.ones(1, 4, 4, dtype=ta.int64), 2)
    with pytest.raises(DTypeError, match="max_pool2d is not defined for bool"):
        F.max_pool2d(ta.ones(1, 4, 4, dtype=ta.bool), 2)
