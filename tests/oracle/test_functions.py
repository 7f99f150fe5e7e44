"""torch on the same inputs: values, dtypes and gradients of every function of the table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinyaot as ta
from tests.case import Case, outputs, tensors
from tests.functional_cases import EVERY
from tests.oracle import names

ASKED = [c for c in EVERY if not c.torch]


@pytest.mark.filterwarnings("ignore:The use of `x.T`")
@pytest.mark.parametrize("case", ASKED, ids=lambda c: c.name)
@pytest.mark.parametrize("dtype", [ta.float32, ta.float64], ids=["f32", "f64"])
def test_values_dtypes_and_gradients_are_torchs(case: Case, dtype: Any) -> None:
    want, gradients = names.run(case, dtype)
    xs = tensors(case.operands, dtype)
    xs = [x.requires_grad_() if moves else x for x, moves in zip(xs, names.moving(case))]
    got = outputs(case.function(*xs))
    pulled = [(y * y).sum() for y in got if y.requires_grad]
    if pulled:
        ta.stack([p.to(pulled[0].dtype) for p in pulled]).sum().backward()
    rtol, atol = (2e-5, 2e-6) if dtype is ta.float32 else (1e-10, 1e-12)
    assert len(got) == len(want)
    for ours, theirs in zip(got, want):
        assert ours.dtype.name == str(theirs.dtype).removeprefix("torch.")
        assert ours.shape == tuple(theirs.shape)
        assert ours.requires_grad == theirs.requires_grad
        np.testing.assert_allclose(
            ours.detach().double().numpy(), theirs.detach().double().numpy(), rtol=rtol, atol=atol
        )
    for x, theirs in zip(xs, gradients):
        assert (x.grad is None) == (theirs is None)
        if x.grad is not None and theirs is not None:
            assert x.grad.dtype.name == str(theirs.dtype).removeprefix("torch.")
            np.testing.assert_allclose(
                x.grad.double().numpy(), theirs.double().numpy(), rtol=10 * rtol, atol=10 * atol
            )
