"""float16 and bfloat16 on the C backend: casts are NumPy's bit for bit, the rest is in float32."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tinyaot as ta
from tests.agree import BACKENDS
from tinyaot import nn, optim
from tinyaot.nn import functional as F

NUMPY = {ta.float16: np.dtype(np.float16), ta.bfloat16: np.dtype(ml_dtypes.bfloat16)}
EVERY = np.arange(65536, dtype=np.uint16)  # as bits
halves = pytest.mark.parametrize("dtype", NUMPY, ids=str)
on_backends = pytest.mark.parametrize("backend", BACKENDS)


def cast(array: np.ndarray, dtype: Any, backend: str) -> np.ndarray:
    f = ta.compile(lambda x: x.to(dtype), backend=backend)
    return f(ta.from_numpy(array)).numpy()


def assert_same(got: np.ndarray, want: np.ndarray) -> None:
    """The same bits, but for which NaN it is."""
    assert got.dtype == want.dtype
    bits = np.dtype(f"u{got.dtype.itemsize}")
    same = got.view(bits) == want.view(bits)
    assert (same | (np.isnan(got.astype(np.float64)) & np.isnan(want.astype(np.float64)))).all()


def around(dtype: np.dtype[Any], wide: Any) -> np.ndarray:
    """Every number of the dtype, the middle between it and the next, and that one's neighbours."""
    with np.errstate(all="ignore"):
        numbers = EVERY.view(dtype).astype(np.float64)
        middle = ((numbers[:-1] + numbers[1:]) / 2).astype(wide)
        near = [np.nextafter(middle, wide(way)) for way in (np.inf, -np.inf)]
    bits = np.random.default_rng(0).integers(0, 2**64, 100_000, dtype=np.uint64)
    return np.concatenate([numbers.astype(wide), middle, *near, bits.view(wide)])


@on_backends
@halves
@pytest.mark.parametrize("wide", [np.float32, np.float64])
def test_casts(dtype: Any, wide: Any, backend: str) -> None:
    with np.errstate(all="ignore"):
        given = around(NUMPY[dtype], wide)
        assert_same(cast(given, dtype, backend), given.astype(NUMPY[dtype]))
        given = EVERY.view(NUMPY[dtype])
        assert_same(cast(given, ta.tensor(wide(0)).dtype, backend), given.astype(wide))


@on_backends
@halves
def test_every_op_rounds_once(dtype: Any, backend: str) -> None:
    """1 + tiny is 1 and then nothing is left of tiny, fused or not; a sum is made in float32."""

    def f(x: ta.Tensor, tiny: ta.Tensor) -> Any:
        many = ta.ones(5000, dtype=dtype) * x
        return (x + tiny) - x, many.sum(), many.mean(), x @ tiny, x.argmax(), x > tiny

    x, tiny = ta.ones(1, dtype=dtype), ta.full((1,), 2.0**-12, dtype=dtype)
    lost, total, mean, product, at, greater = ta.compile(f, backend=backend)(x, tiny)
    assert lost.tolist() == [0] and lost.dtype is dtype
    assert total.item() == ta.tensor(5000.0, dtype=dtype).item() and mean.item() == 1
    assert product.dtype is dtype and product.item() == 2**-12 and at.item() == 0
    assert greater.tolist() == [True]


@on_backends
@halves
def test_a_training_step(dtype: Any, backend: str) -> None:
    """Parameters, gradients and the optimizer's state in two bytes each."""

    def curve(compiled: bool) -> list[float]:
        ta.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Dropout(0.25), nn.Linear(8, 3))
        model.to(dtype)
        opt = optim.SGD(model.parameters(), lr=0.25, momentum=0.5)
        rng = np.random.default_rng(0)
        x = ta.tensor(rng.standard_normal((16, 6)).astype(np.float32)).to(dtype)
        y = ta.tensor(rng.integers(0, 3, 16))

        def step(x: ta.Tensor, y: ta.Tensor) -> ta.Tensor:
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            return loss

        run = ta.compile(step, backend=backend) if compiled else step
        return [run(x, y).item() for _ in range(8)]

    eps = float(ml_dtypes.finfo(NUMPY[dtype]).eps)
    np.testing.assert_allclose(curve(True), curve(False), rtol=8 * eps)  # one a step
