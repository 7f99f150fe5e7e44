"""docs/values.md says what happens: each row in eager and compiled, on NumPy and in C."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinyaot as ta
from tests.agree import BACKENDS
from tests.values_table import ROWS, Row
from tinyaot import Tensor
from tinyaot.nn import functional as F

DTYPES = [ta.float32, ta.float64]


def program(row: Row) -> Callable[[Any], Any]:
    return row.function(ta=ta, F=F)


def check(row: Row, dtype: Any, value: Tensor, gradient: Tensor | None) -> None:
    """Value, gradient, and the shape and dtype of the gradient; the sign of a zero counts."""
    tolerance = 1e-6 if dtype is ta.float32 else 1e-12
    assert value.dtype is dtype and gradient is not None, row
    assert gradient.dtype is dtype and gradient.shape == row.x.shape, row
    for got, want in ((value.detach().numpy(), row.value), (gradient.numpy(), row.gradient)):
        assert got.shape == want.shape, row
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=1e-30, err_msg=str(row))
    exact = row.value == 0
    signs = np.signbit(value.detach().numpy()[exact]), np.signbit(row.value[exact])
    np.testing.assert_array_equal(*signs, err_msg=str(row))


def test_the_table_is_read() -> None:
    assert len(ROWS) > 60
    assert sum(row.torch != "same" for row in ROWS) < 10


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.program)
def test_eager_and_compiled(row: Row, dtype: Any) -> None:
    for run in (program(row), ta.compile(program(row), backend="numpy")):
        x = ta.tensor(row.x, dtype=dtype, requires_grad=True)
        y = run(x)
        y.sum().backward()
        check(row, dtype, y, x.grad)


@pytest.mark.skipif("c" not in BACKENDS, reason="no C compiler")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_all_rows_as_one_program_in_c(dtype: Any) -> None:
    programs = [program(row) for row in ROWS]

    def together(*xs: Tensor) -> list[Tensor]:
        return [f(x) for f, x in zip(programs, xs)]

    xs = [ta.tensor(row.x, dtype=dtype, requires_grad=True) for row in ROWS]
    ys = ta.compile(together, backend="c")(*xs)
    gradients = ta.grad(ys, xs, [ta.ones_like(y) for y in ys])
    for row, y, gradient in zip(ROWS, ys, gradients, strict=True):
        check(row, dtype, y, gradient)
