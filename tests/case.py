"""What a row of the table of functions is, and numbers to call it with."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import tinyaot as ta
from tinyaot import Tensor

RNG = np.random.default_rng(7)
INF, NAN = math.inf, math.nan


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape)


def positive(*shape: int) -> np.ndarray:
    return RNG.uniform(0.3, 0.9, size=shape)


def distinct(*shape: int) -> np.ndarray:
    """Numbers at least 1 apart, so that no small step changes their order."""
    return RNG.permutation(math.prod(shape)).reshape(shape).astype(float) - 2.5


class Case(NamedTuple):
    """A function of tensors, what NumPy says it is, and operands (float64 arrays, indices, bools).

    name:      the public name, and after a dash what is particular.
    reference: None where a test file of its own has the formula.
    smooth:    whether it has derivatives near the operands.
    torch:     why torch is not asked; the tests of tests/oracle ask it by the same code otherwise.
    traced:    why it cannot be traced.
    """

    name: str
    function: Callable[..., Any]
    reference: Callable[..., Any] | None
    operands: tuple[np.ndarray, ...]
    smooth: bool = True
    torch: str = ""
    traced: str = ""

    @property
    def public(self) -> str:
        """The name of the function or method that the case is of."""
        return self.name.split("-")[0]


def outputs(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def tensors(arrays: tuple[np.ndarray, ...], dtype: Any) -> list[Tensor]:
    return [ta.tensor(a, dtype=dtype if a.dtype.kind == "f" else None) for a in arrays]
