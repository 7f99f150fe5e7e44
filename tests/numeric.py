"""What the tests of composites and modules share: numbers, and gradients by differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tinyaot as ta


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def close(got: Any, want: Any, rtol: float = 1e-10, atol: float = 1e-12) -> None:
    """Equal as float64 computes."""
    np.testing.assert_allclose(np.asarray(got), want, rtol=rtol, atol=atol)


def near(got: Any, want: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Equal as float32 computes."""
    close(got, np.asarray(want), rtol, atol)


def check_gradients(fn: Callable[..., Any], *arrays: np.ndarray, rtol: float = 1e-6) -> None:
    """The gradients of a random weighting of fn's result are its central differences."""
    tensors = [ta.tensor(a, requires_grad=True) for a in arrays]
    y = fn(*tensors)
    weights = numbers(*y.shape, seed=99)
    grads = ta.grad((y * ta.tensor(weights)).sum(), tensors)
    for i, (array, grad) in enumerate(zip(arrays, grads)):
        expected = np.empty_like(array)
        for place in np.ndindex(array.shape):
            moved = []
            for sign in (1, -1):
                changed = [a.copy() for a in arrays]
                changed[i][place] += sign * 1e-6
                result = fn(*[ta.tensor(a) for a in changed])
                moved.append(float((result.numpy() * weights).sum()))
            expected[place] = (moved[0] - moved[1]) / 2e-6
        np.testing.assert_allclose(grad.numpy(), expected, rtol=rtol, atol=1e-7)


def tensor(*shape: int, seed: int = 0) -> ta.Tensor:
    """The numbers as float32."""
    return ta.tensor(numbers(*shape, seed=seed).astype(np.float32))


def ops_of(fn: Callable[..., Any], *args: Any) -> list[str]:
    """The names of the primitives that fn is made of."""
    return [n.op for n in ta.trace(fn, *args).nodes]
