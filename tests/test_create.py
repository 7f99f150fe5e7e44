"""Making tensors: from data, filled, ramps, random; in a trace as in eager code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinyaot as ta
from tinyaot import Tensor

# ---- making tensors -----------------------------------------------------------------------------


def test_tensor_copies_and_infers() -> None:
    array = np.arange(3.0)
    t = ta.tensor(array)
    array[0] = 7
    assert t.tolist() == [0, 1, 2] and t.dtype is ta.float64
    assert ta.tensor([1.0]).dtype is ta.tensor(0.5).dtype is ta.tensor([]).dtype is ta.float32
    assert ta.tensor([1, 2]).dtype is ta.int64
    assert ta.tensor([True]).dtype is ta.bool
    assert ta.tensor([1, 2.5]).tolist() == [1, 2.5]
    assert ta.tensor(np.float64(1)).dtype is ta.float64
    assert ta.tensor([np.float32(1), np.float32(2)]).dtype is ta.float32
    assert ta.tensor([1, 2], dtype="int8").dtype is ta.int8
    assert ta.tensor([[1, 2], [3, 4]], dtype=float).tolist() == [[1, 2], [3, 4]]
    assert ta.tensor(ta.ones(2, requires_grad=True)).requires_grad is False
    assert ta.tensor([ta.tensor(1.0), ta.tensor(2.0)]).tolist() == [1, 2]
    assert ta.tensor(1.0, requires_grad=True).requires_grad


def test_filled() -> None:
    for shape in ((2, 3), ((2, 3),), ([2, 3],)):
        assert ta.zeros(*shape).tolist() == [[0] * 3] * 2
        assert ta.ones(*shape).dtype is ta.float32
    assert ta.zeros().shape == ()
    assert ta.full((2,), 7).dtype is ta.int64
    assert ta.full((2,), 7, dtype=ta.float16).tolist() == [7, 7]
    assert ta.full(2, True).tolist() == [True, True]
    x = ta.ones(2, dtype=ta.int8)
    assert ta.zeros_like(x).dtype is ta.int8
    assert ta.ones_like(x, dtype=ta.float64).dtype is ta.float64
    assert ta.full_like(x, 3).tolist() == [3, 3]
    assert ta.empty(3, 2).shape == ta.empty_like(ta.ones(3, 2)).shape == (3, 2)
    assert ta.zeros(2, requires_grad=True).requires_grad


@pytest.mark.parametrize(
    "args", [(5,), (2, 7), (7, 2, -2), (0, 1, 0.1), (5.0,), (1, 1), (0.5, 3, 0.5), (-3, 4, 3)]
)
def test_arange(args: tuple[Any, ...]) -> None:
    got = ta.arange(*args)
    want = np.arange(*args)
    assert got.dtype is (ta.int64 if want.dtype.kind == "i" else ta.float32)
    np.testing.assert_array_equal(got.numpy(), want.astype(got.dtype.numpy))


def test_eye() -> None:
    np.testing.assert_array_equal(ta.eye(3).numpy(), np.eye(3))
    np.testing.assert_array_equal(ta.eye(2, 4, dtype=ta.int64).numpy(), np.eye(2, 4))


# ---- random tensors -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [ta.float32, ta.float64, ta.float16, ta.bfloat16], ids=str)
def test_uniform(dtype: Any) -> None:
    ta.manual_seed(1)
    x = ta.rand(100, 200, dtype=dtype)
    y = x.double().numpy()
    assert x.dtype is dtype
    assert y.min() >= 0 and y.max() < 1
    assert abs(y.mean() - 0.5) < 0.01 and abs(y.var() - 1 / 12) < 0.003
    assert len(np.unique(y)) > (15000 if dtype.itemsize > 2 else 200)


@pytest.mark.parametrize("dtype", [ta.float32, ta.float64], ids=str)
def test_normal(dtype: Any) -> None:
    ta.manual_seed(1)
    y = ta.randn(100, 200, dtype=dtype).double().numpy()
    assert np.isfinite(y).all()
    assert abs(y.mean()) < 0.02 and abs(y.var() - 1) < 0.03
    assert abs((y**3).mean()) < 0.06 and abs((y**4).mean() - 3) < 0.2


def test_random_tensors_repeat_after_seeding() -> None:
    def draw() -> list[Any]:
        ta.manual_seed(5)
        x = ta.zeros(3)
        drawn = [ta.rand(2), ta.randn(2), ta.randint(0, 9, (2,)), ta.bernoulli(ta.full((3,), 0.5))]
        return [t.tolist() for t in (*drawn, x.uniform_(2, 3), x.clone().normal_(1, 2))]

    first = draw()
    assert first == draw()
    assert first[0] != ta.rand(2).tolist()


def test_randint_and_bernoulli() -> None:
    ta.manual_seed(2)
    x = ta.randint(-3, 4, (1000,))
    assert x.dtype is ta.int64
    assert set(x.tolist()) == set(range(-3, 4))
    assert set(ta.randint(2, (50,)).tolist()) == {0, 1}
    mean = ta.bernoulli(ta.full((10000,), 0.3)).mean().item()
    assert abs(mean - 0.3) < 0.02
    assert ta.bernoulli(ta.tensor([0.0, 1.0])).tolist() == [0, 1]
    assert ta.bernoulli(ta.ones(4), 1.0).tolist() == [1] * 4
    assert ta.bernoulli(ta.ones(4), 0.0).tolist() == [0] * 4


def test_random_in_a_trace_draws_what_eager_draws() -> None:
    def f(x: Tensor) -> Any:
        return x + ta.rand(4), ta.randn(3), ta.randint(0, 100, (5,)), ta.bernoulli(x)

    ta.manual_seed(9)
    x = ta.full((4,), 0.5)
    step = ta.compile(f, backend="numpy")
    ta.manual_seed(9)
    compiled = [t.tolist() for t in step(x)]
    ta.manual_seed(9)
    assert compiled == [t.tolist() for t in f(x)]
