"""Derivatives of the functions, first and second, against central differences; subgradients.

A gradient is compared with the central difference along one random direction, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinyaot as ta
from tests.case import INF, NAN, Case, outputs, tensors
from tests.functional_cases import EVERY
from tinyaot import Tensor

each_smooth = pytest.mark.parametrize("case", [c for c in EVERY if c.smooth], ids=lambda c: c.name)


def pulled(case: Case, xs: list[Tensor]) -> Tensor:
    """The scalar <c, y> over the floating outputs y, for fixed random c."""
    rng = np.random.default_rng(3)
    total = ta.zeros((), dtype=ta.float64)
    ta.manual_seed(5)
    for y in outputs(case.function(*xs)):
        if y.dtype.is_floating:
            total = total + (y * ta.tensor(rng.normal(size=y.shape))).sum()
    return total


def slope(f: Callable[[list[Tensor]], Tensor], case: Case, way: list[np.ndarray]) -> float:
    """The central difference of f at the operands along `way`."""
    step = 1e-6

    def at(t: float) -> float:
        moved = [a + t * v if a.dtype.kind == "f" else a for a, v in zip(case.operands, way)]
        return f(leaves(tuple(moved))).item()  # type: ignore[return-value]

    return (at(step) - at(-step)) / (2 * step)


def leaves(arrays: tuple[np.ndarray, ...]) -> list[Tensor]:
    return [ta.tensor(a, requires_grad=np.asarray(a).dtype.kind == "f") for a in arrays]


def gradients(y: Tensor, xs: list[Tensor], **options: Any) -> list[Tensor | None]:
    """None where y does not depend on x, or x holds integers."""
    wanted = [x for x in xs if x.requires_grad]
    if not y.requires_grad:
        return [None for _ in xs]
    found = iter(ta.grad(y, wanted, allow_unused=True, **options))
    return [next(found) if x.requires_grad else None for x in xs]


def along(found: list[Tensor | None], way: list[np.ndarray]) -> Tensor:
    total = ta.zeros((), dtype=ta.float64)
    for g, v in zip(found, way):
        total = total if g is None else total + (g * ta.tensor(v)).sum()
    return total


def directions(case: Case, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.normal(size=a.shape)) for a in case.operands]


@each_smooth
def test_gradient(case: Case) -> None:
    xs, way = leaves(case.operands), directions(case, 5)
    found = gradients(pulled(case, xs), xs)
    for g, x in zip(found, xs):
        assert g is None or (g.shape == x.shape and g.dtype is ta.float64)
    expected = slope(lambda ys: pulled(case, ys), case, way)
    np.testing.assert_allclose(along(found, way).item(), expected, rtol=1e-5, atol=1e-6)


@each_smooth
def test_second_gradient(case: Case) -> None:
    way, other = directions(case, 5), directions(case, 6)

    def first(xs: list[Tensor]) -> Tensor:
        return along(gradients(pulled(case, xs), xs, create_graph=True), way)

    xs = leaves(case.operands)
    got = along(gradients(first(xs), xs), other).item()
    np.testing.assert_allclose(got, slope(first, case, other), rtol=1e-4, atol=1e-5)


def gradient(f: Callable[[Tensor], Tensor], x: Any) -> Any:
    t = ta.tensor(x, dtype=ta.float64, requires_grad=True)
    return ta.grad(f(t).sum(), t)[0].tolist()


def test_subgradients() -> None:
    assert gradient(ta.relu, 0.0) == 0
    assert gradient(ta.abs, 0.0) == 0
    assert gradient(lambda x: ta.clamp(x, 0.0, 1.0), [0.0, 1.0, 1.5, -1.0]) == [1, 1, 0, 0]
    assert gradient(lambda x: ta.maximum(x, 2.0), 2.0) == 0.5
    assert gradient(ta.amax, [2.0, 2.0, 1.0]) == [0.5, 0.5, 0]
    assert gradient(ta.max, [2.0, 2.0, 1.0]) == [0.5, 0.5, 0]
    assert gradient(lambda x: x.max(0).values, [2.0, 2.0, 1.0]) == [1, 0, 0]
    assert gradient(ta.sqrt, 0.0) == INF
    assert gradient(ta.norm, [0.0, 0.0]) == [0, 0]
    assert gradient(ta.std, [3.0, 3.0]) == [0, 0]
    assert math.isnan(gradient(lambda x: (x * x).sum().sqrt(), 0.0))
    assert [gradient(lambda x, b=b: x**b, 0.0) for b in (0, 1, 2, 0.5)] == [0, 1, 0, INF]
    zero = ta.tensor(0.0, dtype=ta.float64)
    assert gradient(lambda b: zero**b, [0.0, 1.0, 2.0]) == [0, 0, 0]
    assert gradient(ta.prod, [2.0, 0.0, 3.0]) == [0, 6, 0]
    assert gradient(lambda x: ta.cumprod(x, 0), [2.0, 0.0, 3.0, 4.0]) == [1, 32, 0, 0]


def test_logsumexp_of_nothing_but_minus_infinity() -> None:
    x = ta.tensor([[-INF, -INF], [0.0, -INF]], requires_grad=True)
    y = x.logsumexp(1)
    assert y.tolist() == [-INF, 0]
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[0, 0], [1, 0]]
    assert ta.logsumexp(ta.tensor([INF, 1.0]), 0).item() == INF
    assert ta.logsumexp(ta.tensor([1000.0, 1000.0]), 0).item() == pytest.approx(1000 + math.log(2))


def test_where_passes_a_nan_of_the_branch_not_taken() -> None:
    # as torch: the mask protects the value, not the branch's own derivative
    x = ta.tensor([0.0], requires_grad=True)
    ta.where(x > 0, x.sqrt(), 0.0).sum().backward()
    assert x.grad is not None
    assert math.isnan(x.grad.item())


def test_nan_passes() -> None:
    x = ta.tensor([NAN, 1.0])
    assert math.isnan(ta.clamp(x, 0.0, 1.0)[0].item())
    assert math.isnan(x.max().item())
    assert math.isnan(x.softmax(0)[1].item())
    assert x.argmax().item() == 0
    assert x.sort().indices.tolist() == [1, 0]


def test_minus_zero_keeps_its_sign() -> None:
    assert math.copysign(1, ta.round(ta.tensor(-0.2)).item()) == -1
    assert math.copysign(1, ta.neg(ta.tensor(0.0)).item()) == -1


HALVES = ["exp", "pow-2.5", "sum-0-False", "mean-None-True", "std-0-False", "norm-None-False",
          "softmax", "logsumexp-0-True", "cumprod", "gather", "matmul-(2, 3)-(3, 4)"]  # fmt: skip


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("dtype", [ta.float16, ta.bfloat16], ids=str)
def test_gradients_of_halves(dtype: Any, name: str) -> None:
    case = next(c for c in EVERY if c.name == name)

    def pull(dtype: Any) -> list[Tensor | None]:
        xs = [
            x.requires_grad_() if x.dtype.is_floating else x for x in tensors(case.operands, dtype)
        ]
        y = outputs(case.function(*xs))[0]
        return gradients((y * y).float().sum(), xs)

    for got, want in zip(pull(dtype), pull(ta.float64)):
        if got is not None and want is not None:
            assert got.dtype is dtype
            np.testing.assert_allclose(got.double().numpy(), want.numpy(), rtol=0.1, atol=0.1)
