"""Functions of tensors against NumPy and SciPy: values, dtypes, shapes, derivatives, and traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special

import tinyaot as ta
from tests.case import INF, NAN, Case, outputs, positive, tensors
from tests.function_cases import UNARY, softmax
from tests.functional_cases import EVERY
from tinyaot import Tensor
from tinyaot.errors import DTypeError
from tinyaot.functions.methods import methods
from tinyaot.nn import functional as F

each_case = pytest.mark.parametrize("case", EVERY, ids=lambda c: c.name)
each_formula = pytest.mark.parametrize(
    "case", [c for c in EVERY if c.reference is not None], ids=lambda c: c.name
)
each_traced = pytest.mark.parametrize(
    "case", [c for c in EVERY if not c.traced], ids=lambda c: c.name
)


# ---- values -------------------------------------------------------------------------------------


def test_every_function_and_method_is_in_the_table() -> None:
    public = set(ta.functions.__all__) | set(methods()) | set(F.__all__)
    # what needs a device, and the remedy for an attribute that is not there
    assert public - {c.public for c in EVERY} == {"cuda", "__getattr__"}


@each_formula
@pytest.mark.parametrize("dtype", [ta.float32, ta.float64], ids=["f32", "f64"])
def test_value_and_dtype(case: Case, dtype: Any) -> None:
    assert case.reference is not None
    got = outputs(case.function(*tensors(case.operands, dtype)))
    arrays = [a.astype(dtype.numpy) if a.dtype.kind == "f" else a for a in case.operands]
    expected = outputs(case.reference(*arrays))
    assert len(got) == len(expected)
    for y, want in zip(got, expected):
        want = np.asarray(want)
        assert y.shape == want.shape
        floating = dtype if case.operands else ta.float32
        assert y.dtype is {"f": floating, "b": ta.bool}.get(want.dtype.kind, ta.int64)
        tolerance = 2e-5 if dtype is ta.float32 else 1e-12
        np.testing.assert_allclose(y.numpy(), want, rtol=tolerance, atol=tolerance)


@each_traced
def test_traced_is_eager(case: Case) -> None:
    xs = tensors(case.operands, ta.float32)

    def copies(*xs: Tensor) -> list[Tensor]:  # a view of an argument would be no output
        return [y.clone() for y in outputs(case.function(*xs))]

    ta.manual_seed(5)
    # beside the arguments there may be constants and the generator's state
    lifted = ta.compile(copies, backend="numpy").inputs(*xs)
    got = ta.interpret(ta.trace(copies, *xs), *lifted)
    for y, want in zip(got, outputs(case.function(*xs)), strict=True):
        np.testing.assert_array_equal(y, want.numpy())


def views() -> dict[str, tuple[np.ndarray, Callable[[Any], Any]]]:
    """Arrays, and a view that NumPy and tinyaot can both take of them."""
    return {
        "0-d": (np.array(0.4), lambda x: x),
        "empty": (np.zeros((2, 0, 3)), lambda x: x),
        "negative step": (positive(3, 4), lambda x: x[::-1, ::-2]),
        "transposed": (positive(3, 4), lambda x: x.T),
        "column": (positive(3, 4), lambda x: x[:, 1]),
        "expanded": (positive(1, 4), lambda x: x[None]),
    }


@pytest.mark.parametrize("view", views())
@pytest.mark.parametrize("name", [u[0] for u in UNARY])
def test_unary_of_views(name: str, view: str) -> None:
    reference = next(f for n, f, _ in UNARY if n == name)
    array, take = views()[view]
    got = getattr(ta, name)(take(ta.tensor(array)))
    np.testing.assert_allclose(got.numpy(), reference(take(array)), rtol=1e-12)
    assert got.is_contiguous()


@pytest.mark.parametrize("view", [v for v in views() if v not in ("empty", "0-d")])
@pytest.mark.parametrize("name", ["sum", "mean", "prod", "amax", "amin"])
def test_reductions_of_views(name: str, view: str) -> None:
    reference = getattr(np, {"amax": "max", "amin": "min"}.get(name, name))
    array, take = views()[view]
    for dim in (None, 0, -1):
        got = getattr(take(ta.tensor(array)), name)(dim)
        np.testing.assert_allclose(got.numpy(), reference(take(array), axis=dim), rtol=1e-12)


def test_reductions_over_nothing() -> None:
    x = ta.zeros(2, 0)
    assert x.sum(1).tolist() == [0, 0]
    assert x.prod(1).tolist() == [1, 1]
    assert x.any(1).tolist() == [False, False]
    assert x.all(1).tolist() == [True, True]
    assert x.logsumexp(1).tolist() == [-INF, -INF]
    assert np.isnan(x.mean(1).numpy()).all()
    assert x.sum(0).shape == (0,)
    assert x.amax(0).shape == (0,)
    assert x.softmax(1).shape == (2, 0)
    assert x.cumsum(1).shape == (2, 0)


def test_reductions_of_no_dims() -> None:
    x = ta.tensor(2.5)
    assert x.sum().item() == x.sum(0).item() == x.mean(-1).item() == 2.5
    assert [t.item() for t in x.max(0)] == [2.5, 0]
    assert x.argmax().item() == x.argmax(0).item() == 0
    assert x.cumsum(0).item() == 2.5
    assert [t.item() for t in x.sort()] == [2.5, 0]
    assert x.softmax(0).item() == 1


@pytest.mark.parametrize("name", ["isnan", "isinf", "isfinite"])
def test_classification(name: str) -> None:
    x = np.array([0.0, -1.0, INF, -INF, NAN], np.float32)
    reference = getattr(np, name)
    assert getattr(ta, name)(x).tolist() == reference(x).tolist()
    assert getattr(ta, name)(ta.tensor([1, 2])).tolist() == reference([1, 2]).tolist()


@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparisons(name: str) -> None:
    full = {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal"}
    full |= {"gt": "greater", "ge": "greater_equal"}
    a, b = np.array([[1.0, 2.0, NAN]]), np.array([[2.0], [NAN]])
    got = getattr(ta, name)(ta.tensor(a), b)
    assert got.dtype is ta.bool
    assert got.tolist() == getattr(np, full[name])(a, b).tolist()
    assert getattr(ta, name)(ta.tensor([1, 2, 3]), 2.0).tolist() == [
        getattr(np, full[name])(n, 2) for n in (1, 2, 3)
    ]


def test_logicals() -> None:
    a, b = ta.tensor([0.0, 2.0, 0.0, NAN]), ta.tensor([0, 0, 3, 1])
    assert ta.logical_and(a, b).tolist() == [False, False, False, True]
    assert ta.logical_or(a, b).tolist() == [False, True, True, True]
    assert ta.logical_xor(a, b).tolist() == [False, True, True, False]
    assert ta.logical_not(a).tolist() == [True, False, True, False]
    assert a.any().item() and not a.all().item()


def test_where_with_one_argument_is_left_to_nonzero() -> None:
    x = ta.tensor([[0, 3], [5, 0]])
    assert ta.nonzero(x).tolist() == [[0, 1], [1, 0]]
    assert [i.tolist() for i in ta.nonzero(x, as_tuple=True)] == [[0, 1], [1, 0]]
    assert ta.nonzero(ta.tensor(3)).shape == (1, 0)
    assert ta.nonzero(ta.zeros(2, 2)).shape == (0, 2)


def test_one_hot() -> None:
    assert ta.one_hot(ta.tensor([[0, 2]])).tolist() == [[[1, 0, 0], [0, 0, 1]]]
    assert ta.one_hot(ta.tensor([1]), 4).tolist() == [[0, 1, 0, 0]]
    assert ta.one_hot(ta.tensor([1]), 2).dtype is ta.int64


# ---- dtypes -------------------------------------------------------------------------------------

PROMOTIONS = [
    (ta.float32, ta.float64, ta.float64),
    (ta.float32, ta.int64, ta.float32),
    (ta.float16, ta.int64, ta.float16),
    (ta.float16, ta.bfloat16, ta.float32),
    (ta.bfloat16, ta.float32, ta.float32),
    (ta.int8, ta.int32, ta.int32),
    (ta.uint8, ta.int8, ta.int16),
    (ta.bool, ta.int8, ta.int8),
    (ta.bool, ta.float32, ta.float32),
]


@pytest.mark.parametrize(("a", "b", "result"), PROMOTIONS, ids=str)
def test_promotion_of_tensors(a: Any, b: Any, result: Any) -> None:
    x, y = ta.ones(2, dtype=a), ta.ones(2, dtype=b)
    for z in (x + y, y + x, x * y, ta.maximum(x, y), ta.where(x > 0, x, y), ta.cat([x, y])):
        assert z.dtype is result
    assert ta.matmul(x[None], y[:, None]).dtype is result


def test_scalars_are_weak() -> None:
    half, single, whole = ta.ones(2, dtype=ta.float16), ta.ones(2), ta.ones(2, dtype=ta.int8)
    assert (half * 2.5).dtype is (2 * half).dtype is ta.float16
    assert (half * np.float64(2.5)).dtype is ta.float16
    assert (single + np.int64(3)).dtype is ta.float32
    assert (whole + 1).dtype is ta.int8
    assert (whole + 1.5).dtype is (whole / 2).dtype is ta.float32
    assert (ta.ones(2, dtype=ta.bool) + 1).dtype is ta.int64
    assert (ta.ones(2, dtype=ta.bool) * 1.5).dtype is ta.float32
    assert (ta.ones(2, dtype=ta.bfloat16) * 1.5 - 1).dtype is ta.bfloat16


def test_tensors_without_dims_give_way_to_those_with() -> None:
    scalar = ta.tensor(2.0, dtype=ta.float64)
    assert (ta.ones(2) * scalar).dtype is ta.float32
    assert (ta.ones(2, dtype=ta.int64) * scalar).dtype is ta.float64  # a higher category
    assert (ta.tensor(1.0) * scalar).dtype is ta.float64


def test_integers_in_functions_of_reals() -> None:
    x = ta.tensor([1, 4])
    assert ta.sqrt(x).dtype is ta.exp(x).dtype is ta.sigmoid(x).dtype is ta.float32
    assert (x / x).dtype is ta.reciprocal(x).dtype is ta.float32
    assert (x // 2).dtype is (x % 3).dtype is (x**2).dtype is ta.int64
    assert x.sum().dtype is ta.tensor([True]).sum().dtype is x.prod().dtype is ta.int64
    assert ta.ones(3, dtype=ta.uint8).cumsum(0).dtype is ta.int64
    assert x.softmax(0).dtype is x.logsumexp(0).dtype is ta.float32
    assert ta.floor(x).dtype is ta.round(x).dtype is ta.abs(x).dtype is ta.int64


def test_python_sign_of_division() -> None:
    a, b = np.array([7, -7, 7, -7]), np.array([3, 3, -3, -3])
    for dtype in (ta.int64, ta.int8, ta.float32):
        x, y = ta.tensor(a, dtype=dtype), ta.tensor(b, dtype=dtype)
        assert (x // y).tolist() == [m // n for m, n in zip(a.tolist(), b.tolist())]
        assert (x % y).tolist() == [m % n for m, n in zip(a.tolist(), b.tolist())]
    assert ta.div(ta.tensor(a), b, rounding_mode="trunc").tolist() == [2, -2, -2, 2]


def test_the_square_of_bools_is_an_integer() -> None:
    assert ta.square(ta.tensor([True, False])).dtype is ta.int64


def test_whole_numbers_fill_integers() -> None:
    x = ta.tensor([1, 2], dtype=ta.int8)
    filled = x.masked_fill(x > 1, -1.0)
    assert filled.tolist() == [1, -1] and filled.dtype is ta.int8
    for value in (0.5, NAN, INF):
        with pytest.raises(DTypeError, match="cannot be stored"):
            x.masked_fill(x > 1, value)


def test_bools_add_and_multiply_as_logic() -> None:
    a, b = ta.tensor([True, True, False]), ta.tensor([True, False, False])
    assert (a + b).tolist() == [True, True, False]
    assert (a * b).tolist() == [True, False, False]
    assert ta.maximum(a, b).dtype is ta.bool


@pytest.mark.parametrize("dtype", [ta.float16, ta.bfloat16], ids=str)
def test_halves(dtype: Any) -> None:
    x = ta.tensor(positive(5, 7), dtype=dtype)
    exact = x.double().numpy()
    tolerance = 2e-3 if dtype is ta.float16 else 2e-2
    results = {
        "exp": (x.exp(), np.exp(exact)),
        "tanh": (x.tanh(), np.tanh(exact)),
        "pow": (x**2.5, exact**2.5),
        "sum": (x.sum(0), exact.sum(0)),
        "mean": (x.mean(), exact.mean()),
        "var": (x.var(1), exact.var(1, ddof=1)),
        "softmax": (x.softmax(1), softmax(exact, 1)),
        "logsumexp": (x.logsumexp(1), special.logsumexp(exact, axis=1)),
        "norm": (x.norm(), np.sqrt((exact**2).sum())),
        "matmul": (x @ x.T, exact @ exact.T),
    }
    for name, (got, want) in results.items():
        assert got.dtype is dtype, name
        np.testing.assert_allclose(got.double().numpy(), want, rtol=tolerance, err_msg=name)


def test_a_mean_of_many_halves_does_not_overflow() -> None:
    assert ta.full((5000,), 100.0, dtype=ta.float16).mean().item() == 100
