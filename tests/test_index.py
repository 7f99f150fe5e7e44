"""Indexing and item assignment against NumPy: values, views, gradients, and in a trace."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tinyaot as ta
from tinyaot import Tensor

# ---- reading by index ---------------------------------------------------------------------------

SHAPE = (3, 4, 2, 5)
PICK, OTHER = np.array([2, 0, -1]), np.array([1, 1, 0])
MASK = np.array([True, False, True])
MASK2 = np.arange(12).reshape(3, 4) % 5 == 0
INDICES: list[Any] = [
    0, -1, np.int64(1), (1, 2), (1, 2, 1, 4), slice(1, None), slice(None, None, -1), Ellipsis, (),
    (slice(None, None, 2), slice(3, 0, -2)), (Ellipsis, 0), (0, Ellipsis, slice(1, 3)), None,
    (None, 1, None, Ellipsis, None), (slice(5, 9),), (slice(-2, None), None, 1),
    (slice(1, 1), slice(None), 0),
    PICK, [0, 2], [[0, 1], [2, 0]], (slice(None), PICK), (Ellipsis, PICK), (PICK, OTHER),
    (PICK, slice(None), OTHER), (slice(None), PICK, OTHER), (0, PICK), (slice(None), 0, OTHER),
    (0, slice(None), OTHER), (slice(None), PICK, slice(None), OTHER), (PICK, Ellipsis, OTHER),
    (PICK[:, None], OTHER), (PICK[:, None], slice(1, 3), OTHER[:2]), (None, PICK),
    (slice(None), None, PICK), (PICK, None, OTHER), (PICK, 0, slice(None), OTHER),
    (slice(None, None, -1), PICK, 0), (slice(None), np.array([], np.int64)), [],
    MASK, MASK2, (MASK, 1), (MASK, PICK[:2]), (slice(None), slice(None), [True, False]),
    (MASK2, slice(None), 0), (None, MASK2), (MASK, Ellipsis, PICK[:2]), np.array(1),
    (slice(None), slice(None), 1, [[4]]), PICK.astype(np.int8),
]  # fmt: skip


def as_tensors(index: Any) -> Any:
    """The index with its arrays as tensors."""
    if isinstance(index, tuple):
        return tuple(map(as_tensors, index))
    return ta.tensor(index) if isinstance(index, np.ndarray) else index


def name_of(index: Any) -> str:
    return " ".join(str(index).split())


def numbered() -> np.ndarray:
    return np.arange(math.prod(SHAPE), dtype=np.float64).reshape(SHAPE)


each_index = pytest.mark.parametrize("index", INDICES, ids=name_of)


@each_index
def test_getitem(index: Any) -> None:
    a = numbered()
    want = a[tuple(index) if isinstance(index, tuple) else index]
    for i in (index, as_tensors(index)):
        got = ta.tensor(a)[i]
        assert got.shape == want.shape
        np.testing.assert_array_equal(got.numpy(), want)


@each_index
def test_getitem_is_a_view_when_numpy_says_so(index: Any) -> None:
    a = numbered()
    x = ta.tensor(a)
    y = x[as_tensors(index)]
    assert y is not x
    if isinstance(a[index], np.ndarray) and y.size:
        is_view = np.may_share_memory(a, a[index])
        assert np.may_share_memory(x.numpy(), y.numpy()) == is_view
        assert is_view or y.is_contiguous()


@each_index
def test_gradient_of_getitem(index: Any) -> None:
    x = ta.tensor(numbered(), requires_grad=True)
    y = x[as_tensors(index)]
    (y * y).sum().backward()
    want = np.zeros(SHAPE)
    np.add.at(want, index, 2 * numbered()[index])
    assert x.grad is not None or y.size == 0
    if x.grad is not None:
        np.testing.assert_array_equal(x.grad.numpy(), want)


@each_index
def test_getitem_in_a_trace(index: Any) -> None:
    x = ta.tensor(numbered())
    step = ta.compile(lambda x: x[index] * 2, backend="numpy")
    np.testing.assert_array_equal(step(x).numpy(), numbered()[index] * 2)


@each_index
def test_setitem(index: Any) -> None:
    shape = numbered()[index].shape
    own = np.arange(1.0, math.prod(shape) + 1).reshape(shape)
    for value in (
        own,
        np.ones((1, 1, *shape)),
        np.ones(shape[-1:]),
        np.ones((1,) * len(shape)),
        -7,
    ):
        want = numbered()
        want[index] = value if shape else np.max(value)
        for i in (index, as_tensors(index)):
            x = ta.tensor(numbered())
            x[i] = value if isinstance(value, int) else ta.tensor(value)
            np.testing.assert_array_equal(x.numpy(), want)


@each_index
def test_setitem_in_a_trace(index: Any) -> None:
    def f(x: Tensor, v: Tensor) -> Tensor:
        y = x * 1
        y[index] = v
        return y

    x, v = ta.tensor(numbered()), ta.tensor(-1.0)
    want = numbered()
    want[index] = -1
    np.testing.assert_array_equal(ta.compile(f, backend="numpy")(x, v).numpy(), want)


@each_index
def test_gradient_of_setitem(index: Any) -> None:
    shape = numbered()[index].shape
    x = ta.tensor(numbered(), requires_grad=True)
    v = ta.ones(shape, dtype=ta.float64, requires_grad=True)
    y = x * 1
    y[as_tensors(index)] = v
    weights = np.arange(1.0, x.size + 1).reshape(SHAPE)
    (y * ta.tensor(weights)).sum().backward()
    overwritten = weights.copy()
    overwritten[index] = 0
    assert x.grad is not None
    np.testing.assert_array_equal(x.grad.numpy(), overwritten)
    # of several writes to one element the last wins, and alone gets the gradient
    winner = np.full(SHAPE, -1)
    winner[index] = np.arange(math.prod(shape)).reshape(shape)
    won = winner[index] == np.arange(math.prod(shape)).reshape(shape)
    if v.grad is not None:
        np.testing.assert_array_equal(v.grad.numpy(), weights[index] * won)


def test_index_by_a_traced_tensor() -> None:
    def f(x: Tensor, i: Tensor, mask: Tensor) -> Any:
        y = x * 1
        y[mask] = 0.0
        y[i, 1] += 5
        return x[i], x[:, i[0]], y

    x, i = ta.arange(12).reshape(3, 4).float(), ta.tensor([2, 0])
    mask = x > 6
    for got, want in zip(ta.compile(f, backend="numpy")(x, i, mask), f(x, i, mask)):
        np.testing.assert_array_equal(got.numpy(), want.numpy())


def test_a_mask_assigns_values_of_every_shape() -> None:
    a = np.arange(12.0).reshape(3, 4)
    mask = a % 3 == 1
    rows = np.array([True, False, True])
    for m, value in [
        (mask, 5.0),
        (mask, np.arange(4.0) - 9),  # one for each True
        (mask, np.array([7.0])),
        (rows, np.arange(4.0)),
        (rows, np.arange(8.0).reshape(2, 4)),
        (rows, np.full((1, 4), 2.0)),
        (rows, np.full((2, 1), 2.0)),
    ]:
        want = a.copy()
        want[m] = value
        x = ta.tensor(a)
        x[ta.tensor(m)] = value if isinstance(value, float) else ta.tensor(value)
        np.testing.assert_array_equal(x.numpy(), want)


def test_assignment_casts_to_the_dtype_of_the_tensor() -> None:
    x = ta.tensor([1, 2, 3])
    x[0] = 7.9
    x[1:] = ta.tensor([True, False])
    assert x.tolist() == [7, 1, 0]


def test_augmented_assignment_through_an_index() -> None:
    x = ta.arange(6).float()
    x[1:3] += 10
    x[[0, 0]] += 1  # written twice, added once
    x[x > 10] *= 2
    assert x.tolist() == [1, 22, 24, 3, 4, 5]


def test_overlapping_assignment() -> None:
    x = ta.arange(5).float()
    x[1:] = x[:-1]
    assert x.tolist() == [0, 0, 1, 2, 3]
