"""Every function through the whole compiler: outputs and gradients are those of eager code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinyaot as ta
from tests.case import Case, outputs, tensors
from tests.functional_cases import EVERY
from tinyaot import Tensor


def step(case: Case, run: Callable[..., Any]) -> tuple[list[Tensor], list[Tensor | None]]:
    """The outputs, and the gradients of the sum of their squares."""
    xs = [
        x.requires_grad_() if x.dtype.is_floating else x for x in tensors(case.operands, ta.float64)
    ]
    ta.manual_seed(5)
    ys = outputs(run(*xs))
    pulled = [(y * y).sum() for y in ys if y.requires_grad]
    if pulled:
        ta.stack(pulled).sum().backward()
    return ys, [x.grad for x in xs]


@pytest.mark.parametrize("case", [c for c in EVERY if not c.traced], ids=lambda c: c.name)
def test_compiled_is_eager(case: Case) -> None:
    ys, gradients = step(case, ta.compile(case.function, backend="numpy"))
    eager_ys, eager_gradients = step(case, case.function)
    for got, want in zip([*ys, *gradients], [*eager_ys, *eager_gradients], strict=True):
        assert (got is None) == (want is None)
        if got is not None and want is not None:
            assert got.dtype is want.dtype
            a, b = got.detach().numpy(), want.detach().numpy()
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
