"""Every function through the whole compiler: outputs and gradients are those of eager code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinyaot as ta
from tests.function_cases import CASES, Case, outputs, tensors
from tinyaot import Tensor


def step(case: Case, run: Callable[..., Any]) -> tuple[list[Tensor], list[Tensor | None]]:
    """The outputs, and the gradients of the sum of their squares."""
    xs = [
        x.requires_grad_() if x.dtype.is_floating else x for x in tensors(case.operands, ta.float64)
    ]
    ys = outputs(run(*xs))
    pulled = [(y * y).sum() for y in ys if y.requires_grad]
    if pulled:
        ta.stack(pulled).sum().backward()
    return ys, [x.grad for x in xs]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_compiled_is_eager(case: Case) -> None:
    ys, gradients = step(case, ta.compile(case.function, backend="numpy"))
    eager_ys, eager_gradients = step(case, case.function)
    for got, want in zip([*ys, *gradients], [*eager_ys, *eager_gradients], strict=True):
        assert (got is None) == (want is None)
        if got is not None and want is not None:
            assert got.dtype is want.dtype
            a, b = got.detach().numpy(), want.detach().numpy()
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
