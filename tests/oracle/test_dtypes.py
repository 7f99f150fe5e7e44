"""torch on the same inputs in every dtype: which it takes, the result's dtype, and its values."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tinyaot as ta
from tests.case import Case, outputs
from tests.functional_cases import EVERY
from tests.oracle.names import TORCH, in_torch, torch_dtype
from tinyaot.errors import TinyaotError

DTYPES = [
    *(ta.float32, ta.float64, ta.float16, ta.bfloat16),
    *(ta.int8, ta.int16, ta.int32, ta.int64, ta.uint8, ta.bool),
]
ASKED = [c for c in EVERY if not c.torch]
# Where we differ on purpose, by public name: what, and why.
ON_PURPOSE = {
    "addcmul": "integers times a fraction are floats; torch computes with the fraction cut off",
    "addcmul_": "the same, and floats do not fit into integers",
    "einsum": "a sum over one operand keeps its dtype, as a product does; torch makes it int64",
    "conv2d": "not of integers",
    "avg_pool2d": "not of integers; torch divides int64 alone, rounding down",
    "any": "always bool; torch gives uint8 for uint8",
    "all": "always bool; torch gives uint8 for uint8",
    "sign": "not of bools",
    "add": "alpha times a bool is an integer",
    "matmul": "not of bools; torch takes them where nothing is to be multiplied",
    "pow": "of two bools an integer, as of a bool and any number",
}


def operands(case: Case, dtype: Any) -> list[np.ndarray]:
    """The float operands of a case as numbers that the dtype holds."""
    arrays = []
    for a in case.operands:
        if a.dtype.kind == "f":
            a = a if dtype.is_floating else np.round(3 * a)
            a = a - a.min(initial=0) if dtype in (ta.uint8, ta.bool) else a
            a = ta.tensor(a).to(dtype).numpy()
        arrays.append(a)
    return arrays


def ours(f: Callable[..., Any], *arguments: Any) -> list[Any] | str:
    try:
        return outputs(f(*arguments))
    except (TinyaotError, TypeError, ValueError) as error:
        return str(error)


def theirs(f: Callable[..., Any], *arguments: Any) -> list[Any] | str:
    try:
        return outputs(f(*arguments))
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
        return str(error)


def differences(got: list[Any] | str, want: list[Any] | str, dtype: Any) -> str:
    """What differs, or nothing. To take more than torch does is no difference."""
    if isinstance(want, str):
        return ""
    if isinstance(got, str):
        return got
    for y, z in zip(got, want):
        if y.dtype.name != str(z.dtype).removeprefix("torch."):
            return f"{y.dtype} / {z.dtype}"
        rounding = {ta.float16: 2e-3, ta.bfloat16: 2e-2, ta.float64: 1e-10}.get(y.dtype, 2e-5)
        a, b = y.double().numpy(), z.double().numpy()
        if not np.allclose(a, b, rtol=rounding, atol=rounding, equal_nan=True):
            return f"{a.tolist()} / {b.tolist()}"
    return ""


def leaf(array: np.ndarray, dtype: Any) -> Any:
    if array.dtype.kind in "iub":
        return torch.tensor(array)
    return torch.tensor(array.astype("f8")).to(torch_dtype(dtype))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_function_takes_what_torch_takes(dtype: Any) -> None:
    found = []
    for case in ASKED:
        arrays = operands(case, dtype)
        got = ours(case.function, *map(ta.tensor, arrays))
        want = theirs(in_torch(case.function), *(leaf(a, dtype) for a in arrays))
        differs = differences(got, want, dtype)
        if differs and (dtype.is_floating or case.public not in ON_PURPOSE):
            found.append(f"{case.name}: {differs}")
    assert not found, "\n".join(found)


PROMOTING = ("add sub mul div floordiv remainder pow maximum minimum atan2 eq lt").split()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PROMOTING)
def test_promotion_is_torchs(name: str) -> None:
    found = []
    f, g = getattr(ta, name), getattr(TORCH, name)
    for a, b in itertools.product(DTYPES, DTYPES):
        x, y = ta.full((2,), 3).to(a), ta.full((2,), 2).to(b)
        p, q = torch.full((2,), 3).to(torch_dtype(a)), torch.full((2,), 2).to(torch_dtype(b))
        for left, right in ((slice(None), slice(None)), (0, slice(None)), (slice(None), 0), (0, 0)):
            got, want = ours(f, x[left], y[right]), theirs(g, p[left], q[right])
            if differs := differences(got, want, a):
                found.append(f"{a} {left}, {b} {right}: {differs}")
    for a, number in itertools.product(DTYPES, (True, 2, 2.5)):
        x, p = ta.full((2,), 3).to(a), torch.full((2,), 3).to(torch_dtype(a))
        for left, right in ((x, number), (x[0], number)):
            got = ours(f, left, right)
            want = theirs(g, p if left is x else p[0], number)
            differs = differences(got, want, a)
            if differs and not (name in ON_PURPOSE and a is ta.bool and number is True):
                found.append(f"{a}{left.shape}, {number}: {differs}")
    assert not found, "\n".join(found)
