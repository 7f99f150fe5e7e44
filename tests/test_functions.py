"""Functions of tensors against NumPy and SciPy: values, dtypes, shapes, derivatives, and traced."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy import special

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
    """A function of tensors, what NumPy says it is, and operands (float64 arrays)."""

    name: str
    function: Callable[..., Any]
    reference: Callable[..., Any]
    operands: tuple[np.ndarray, ...]
    smooth: bool = True


def outputs(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def tensors(arrays: tuple[np.ndarray, ...], dtype: Any) -> list[Tensor]:
    return [ta.tensor(a, dtype=dtype if a.dtype.kind == "f" else None) for a in arrays]


def softmax(x: np.ndarray, axis: Any) -> np.ndarray:
    return special.softmax(x, axis=axis)


INDEX = np.array([[0, 2, 1], [1, 0, 2]])
UNARY: list[tuple[str, Callable[..., Any], Callable[..., np.ndarray]]] = [
    ("neg", np.negative, normal),
    ("abs", np.abs, normal),
    ("sign", np.sign, normal),
    ("exp", np.exp, normal),
    ("expm1", np.expm1, normal),
    ("log", np.log, positive),
    ("log1p", np.log1p, positive),
    ("sqrt", np.sqrt, positive),
    ("rsqrt", lambda x: 1 / np.sqrt(x), positive),
    ("square", np.square, normal),
    ("reciprocal", lambda x: 1 / x, positive),
    ("sin", np.sin, normal),
    ("cos", np.cos, normal),
    ("tan", np.tan, positive),
    ("tanh", np.tanh, normal),
    ("sigmoid", special.expit, normal),
    ("relu", lambda x: np.maximum(x, 0), normal),
    ("erf", special.erf, normal),
    ("floor", np.floor, normal),
    ("ceil", np.ceil, normal),
    ("round", np.round, normal),
]
BINARY: list[tuple[str, Callable[..., Any], Callable[..., np.ndarray]]] = [
    ("add", np.add, normal),
    ("sub", np.subtract, normal),
    ("mul", np.multiply, normal),
    ("div", np.divide, positive),
    ("floordiv", np.floor_divide, positive),
    ("remainder", np.remainder, positive),
    ("pow", np.power, positive),
    ("maximum", np.maximum, normal),
    ("minimum", np.minimum, normal),
    ("atan2", np.arctan2, normal),
]
PAIRS = [((3,), (3,)), ((2, 3), (3,)), ((2, 1), (1, 3)), ((), (2, 2)), ((2, 0), (1, 1))]


def reductions() -> list[Case]:
    found = []
    plain: list[tuple[str, Any, Callable[..., np.ndarray]]] = [
        ("sum", np.sum, normal),
        ("mean", np.mean, normal),
        ("prod", np.prod, positive),
        ("amax", np.max, distinct),
        ("amin", np.min, distinct),
        ("var", lambda x, **k: np.var(x, ddof=1, **k), normal),
        ("std", lambda x, **k: np.std(x, ddof=1, **k), normal),
        ("logsumexp", special.logsumexp, normal),
        ("norm", lambda x, **k: np.sqrt(np.sum(x * x, **k)), normal),
    ]
    for name, reference, draw in plain:
        for dim in (None, 0, -1, (0, 2)):
            for keep in (False, True):
                found.append(
                    Case(
                        f"{name}-{dim}-{keep}",
                        lambda x, name=name, d=dim, k=keep: getattr(ta, name)(x, dim=d, keepdim=k),
                        lambda x, f=reference, d=dim, k=keep: f(x, axis=d, keepdims=k),
                        (draw(2, 3, 2),),
                    )
                )
    for p in (1, 2.5, 0.5, 3, INF, -INF, 0):
        found.append(
            Case(
                f"norm-p{p}",
                lambda x, p=p: ta.norm(x, p, 1),
                lambda x, p=p: np.linalg.norm(x, p, axis=1),
                (distinct(2, 4) / 3 + 0.1,),
                p != 0,
            )
        )
    return found


def cases() -> list[Case]:
    found = [Case(name, getattr(ta, name), f, (draw(2, 3) + 0.0,)) for name, f, draw in UNARY]
    found += [
        Case(f"{name}-{a}-{b}", getattr(ta, name), f, (draw(*a), draw(*b) * 1.7))
        for name, f, draw in BINARY
        for a, b in PAIRS
    ]
    found += reductions()
    x34, y34 = normal(3, 4), normal(3, 4)
    found += [
        # elementwise choices
        Case("clamp", lambda x: ta.clamp(x, -0.5, 0.7), lambda x: np.clip(x, -0.5, 0.7), (x34,)),
        Case("clamp-min", lambda x: ta.clamp(x, min=0.1), lambda x: np.maximum(x, 0.1), (x34,)),
        Case("clamp-tensor", ta.clamp, lambda x, a, b: np.minimum(np.maximum(x, a), b),
             (x34, normal(4) - 1, normal(3, 1) + 1)),
        Case("where", lambda a, b: ta.where(a > b, a * 2, b), lambda a, b: np.where(a > b, a * 2, b),
             (x34, normal(4))),
        Case("masked_fill", lambda x: ta.masked_fill(x, x > 0, -1.0),
             lambda x: np.where(x > 0, -1.0, x), (x34,)),
        Case("lerp", lambda a, b, w: ta.lerp(a, b, w), lambda a, b, w: a + w * (b - a),
             (x34, y34, positive(4))),
        Case("addcmul", lambda a, b, c: ta.addcmul(a, b, c, value=0.5),
             lambda a, b, c: a + 0.5 * b * c, (x34, y34, positive(4))),
        Case("addcdiv", lambda a, b, c: ta.addcdiv(a, b, c, value=-2.0),
             lambda a, b, c: a - 2 * b / c, (x34, y34, positive(4))),
        Case("add-alpha", lambda a, b: ta.add(a, b, alpha=3), lambda a, b: a + 3 * b, (x34, y34)),
        Case("div-floor", lambda a: ta.div(a, 0.3, rounding_mode="floor"),
             lambda a: np.floor(a / 0.3), (x34,)),
        Case("div-trunc", lambda a: ta.div(a, 0.3, rounding_mode="trunc"),
             lambda a: np.trunc(a / 0.3), (x34,)),
        Case("round-2", lambda a: ta.round(a, decimals=2), lambda a: np.round(a, 2), (x34,)),
        *(Case(f"pow-{p}", lambda x, p=p: x**p, lambda x, p=p: np.power(x, p), (positive(5),))
          for p in (2, 3, 0.5, -1, -2, 2.5, 0, 1)),
        Case("rpow", lambda x: 2.0**x, lambda x: 2.0**x, (x34,)),
        # reductions that are not plain
        Case("max-dim", lambda x: ta.max(x, 1), lambda x: (x.max(1), x.argmax(1)), (distinct(3, 4),)),
        Case("min-dim", lambda x: ta.min(x, 0, keepdim=True),
             lambda x: (x.min(0, keepdims=True), x.argmin(0)[None]), (distinct(3, 4),)),
        Case("max-all", ta.max, np.max, (distinct(3, 4),)),
        Case("max-other", ta.max, np.maximum, (x34, y34)),
        Case("argmax", lambda x: ta.argmax(x), np.argmax, (x34,), False),
        Case("argmin", lambda x: ta.argmin(x, -1, True),
             lambda x: np.argmin(x, -1, keepdims=True), (x34,), False),
        Case("var-0", lambda x: ta.var(x, 1, correction=0), lambda x: np.var(x, axis=1), (x34,)),
        Case("var-biased", lambda x: x.var(False), lambda x: np.var(x), (x34,)),
        Case("cumsum", lambda x: ta.cumsum(x, 1), lambda x: np.cumsum(x, 1), (x34,)),
        Case("cumprod", lambda x: ta.cumprod(x, 0), lambda x: np.cumprod(x, 0), (x34,)),
        Case("softmax", lambda x: ta.softmax(x, -1), lambda x: softmax(x, -1), (x34,)),
        Case("softmax-0", lambda x: ta.softmax(x, 0), lambda x: softmax(x, 0), (x34,)),
        Case("log_softmax", lambda x: ta.log_softmax(x, 1),
             lambda x: special.log_softmax(x, axis=1), (x34,)),
        # shapes
        Case("reshape", lambda x: x.reshape(2, -1), lambda x: x.reshape(2, -1), (x34,)),
        Case("reshape-copy", lambda x: x.T.reshape(-1), lambda x: x.T.reshape(-1), (x34,)),
        Case("view", lambda x: x.view(4, 3), lambda x: x.reshape(4, 3), (x34,)),
        Case("flatten", lambda x: ta.flatten(x, 1), lambda x: x.reshape(2, 6), (normal(2, 3, 2),)),
        Case("squeeze", lambda x: ta.squeeze(x), lambda x: np.squeeze(x), (normal(1, 3, 1),)),
        Case("squeeze-1", lambda x: ta.squeeze(x, (0, 1)), lambda x: x[0], (normal(1, 3, 1),)),
        Case("unsqueeze", lambda x: ta.unsqueeze(x, -1), lambda x: x[..., None], (x34,)),
        Case("transpose", lambda x: ta.transpose(x, 0, -1), lambda x: x.swapaxes(0, -1),
             (normal(2, 3, 4),)),
        Case("permute", lambda x: ta.permute(x, 2, 0, 1), lambda x: x.transpose(2, 0, 1),
             (normal(2, 3, 4),)),
        Case("movedim", lambda x: ta.movedim(x, (0, 1), (2, 0)),
             lambda x: np.moveaxis(x, (0, 1), (2, 0)), (normal(2, 3, 4),)),
        Case("T", lambda x: x.T, lambda x: x.T, (normal(2, 3, 4),)),
        Case("mT", lambda x: x.mT, lambda x: x.swapaxes(-1, -2), (normal(2, 3, 4),)),
        Case("expand", lambda x: x.expand(2, -1, 3), lambda x: np.broadcast_to(x, (2, 4, 3)),
             (normal(4, 1),)),
        Case("broadcast_to", lambda x: ta.broadcast_to(x, (2, 3, 4)),
             lambda x: np.broadcast_to(x, (2, 3, 4)), (x34,)),
        Case("repeat", lambda x: x.repeat(2, 1, 2), lambda x: np.tile(x, (2, 1, 2)), (x34,)),
        Case("diagonal", lambda x: ta.diagonal(x, 1, 0, 2), lambda x: np.diagonal(x, 1, 0, 2),
             (normal(3, 2, 4),)),
        Case("split", lambda x: ta.split(x, 2, 1), lambda x: np.split(x, [2], 1), (normal(2, 3),)),
        Case("split-sizes", lambda x: ta.split(x, [1, 0, 3], 1),
             lambda x: np.split(x, [1, 1], 1), (x34,)),
        Case("chunk", lambda x: ta.chunk(x, 2, 1), lambda x: np.split(x, [2], 1), (normal(2, 3),)),
        Case("unbind", lambda x: ta.unbind(x, 1), lambda x: list(x.T), (x34,)),
        Case("cat", lambda a, b: ta.cat([a, b], 1), lambda a, b: np.concatenate([a, b], 1),
             (x34, normal(3, 2))),
        Case("stack", lambda a, b: ta.stack([a, b], -1), lambda a, b: np.stack([a, b], -1),
             (x34, y34)),
        Case("pad", lambda x: ta.pad(x, (1, 2, 0, 1), value=-1),
             lambda x: np.pad(x, ((0, 1), (1, 2)), constant_values=-1), (x34,)),
        Case("pad-crop", lambda x: ta.pad(x, (-1, 2)),
             lambda x: np.pad(x[:, 1:], ((0, 0), (0, 2))), (x34,)),
        Case("flip", lambda x: ta.flip(x, 0, 1), lambda x: np.flip(x, (0, 1)), (x34,)),
        Case("roll", lambda x: ta.roll(x, (1, -2), (0, 1)),
             lambda x: np.roll(x, (1, -2), (0, 1)), (x34,)),
        Case("roll-flat", lambda x: ta.roll(x, 5), lambda x: np.roll(x, 5), (x34,)),
        Case("tril", lambda x: ta.tril(x, -1), lambda x: np.tril(x, -1), (normal(2, 3, 4),)),
        Case("triu", lambda x: ta.triu(x, 1), lambda x: np.triu(x, 1), (normal(2, 3, 4),)),
        Case("clone", ta.clone, np.copy, (x34,)),
        # picking and placing
        Case("gather", lambda x, i: ta.gather(x, 1, i),
             lambda x, i: np.take_along_axis(x[:2], i, 1), (x34, INDEX)),
        Case("scatter", lambda x, s, i: ta.scatter(x, 1, i, s),
             lambda x, s, i: put(x, s, "set"), (x34, normal(2, 3), INDEX)),
        Case("scatter-number", lambda x, i: ta.scatter(x, 1, i, 2.0),
             lambda x, i: put(x, np.full((2, 3), 2.0), "set"), (x34, INDEX)),
        Case("scatter_add", lambda x, s, i: ta.scatter_add(x, 1, i, s),
             lambda x, s, i: put(x, s, "add"), (x34, normal(2, 4), INDEX)),
        Case("index_select", lambda x, i: ta.index_select(x, 1, i), lambda x, i: x[:, i],
             (x34, INDEX[0])),
        Case("take_along_dim", lambda x, i: ta.take_along_dim(x, i, 1),
             lambda x, i: np.take_along_axis(x, i, 1), (x34, INDEX[:1].T.copy())),
        Case("take_along_dim-flat", lambda x, i: ta.take_along_dim(x, i),
             lambda x, i: x.ravel()[i].ravel(), (x34, INDEX)),
        Case("embedding", lambda t, i: ta.embedding(i, t), lambda t, i: t[i],
             (normal(3, 4), INDEX)),
        Case("sort", lambda x: ta.sort(x, 0), lambda x: (np.sort(x, 0), np.argsort(x, 0)),
             (distinct(3, 4),)),
        Case("sort-down", lambda x: ta.sort(x, descending=True),
             lambda x: (-np.sort(-x), np.argsort(-x)), (distinct(3, 4),)),
        Case("topk", lambda x: ta.topk(x, 2),
             lambda x: (-np.sort(-x)[:, :2], np.argsort(-x)[:, :2]), (distinct(3, 4),)),
        Case("topk-least", lambda x: ta.topk(x, 2, 0, largest=False),
             lambda x: (np.sort(x, 0)[:2], np.argsort(x, 0)[:2]), (distinct(3, 4),)),
        # products
        *(Case(f"matmul-{a}-{b}", ta.matmul, np.matmul, (normal(*a), normal(*b)))
          for a, b in [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((2, 3), (3, 4)),
                       ((2, 2, 3), (3, 4)), ((2, 3), (2, 3, 4)), ((2, 1, 2, 3), (3, 3, 2)),
                       ((1, 2, 3), (2, 3, 1)), ((2, 2, 3), (3,)), ((3,), (2, 3, 2)),
                       ((2, 0), (0, 3)), ((0, 3), (3, 2)), ((1, 2, 3), (1, 3, 2))]),
        Case("dot", ta.dot, np.dot, (normal(4), normal(4))),
        Case("outer", ta.outer, np.outer, (normal(4), normal(3))),
        *(Case(f"einsum-{spec}", lambda *xs, s=spec: ta.einsum(s, *xs),
               lambda *xs, s=spec: np.einsum(s, *xs), tuple(normal(*s) for s in shapes))
          for spec, shapes in [
              ("ij,jk->ik", [(2, 3), (3, 4)]), ("ij,jk", [(2, 3), (3, 4)]), ("ii", [(3, 3)]),
              ("ii->i", [(3, 3)]), ("ij->ji", [(2, 3)]), ("ij->", [(2, 3)]), ("ij->i", [(2, 3)]),
              ("...ij,...jk->...ik", [(2, 1, 2, 3), (4, 3, 2)]), ("i,j,k->kji", [(2,), (3,), (4,)]),
              ("bij,bjk,kl->bil", [(2, 3, 4), (2, 4, 2), (2, 3)]), ("iij,jk->ik", [(2, 2, 3), (3, 2)]),
              ("...i->...", [(2, 3, 4)]), ("ij,ij->", [(2, 3), (2, 3)]), ("ij,k->i", [(2, 3), (4,)]),
              ("...,...", [(2, 3), (3,)]), ("ba,b", [(2, 3), (2,)]),
          ]),
    ]  # fmt: skip
    return found


def put(x: np.ndarray, src: np.ndarray, mode: str) -> np.ndarray:
    out = x.copy()
    for i in range(INDEX.shape[0]):
        for j in range(INDEX.shape[1]):
            old = out[i, INDEX[i, j]] if mode == "add" else 0.0
            out[i, INDEX[i, j]] = old + src[i, j]
    return out


CASES = cases()
SMOOTH = [c for c in CASES if c.smooth]
each_case = pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
each_smooth = pytest.mark.parametrize("case", SMOOTH, ids=lambda c: c.name)


# ---- values -------------------------------------------------------------------------------------


@each_case
@pytest.mark.parametrize("dtype", [ta.float32, ta.float64], ids=["f32", "f64"])
def test_value_and_dtype(case: Case, dtype: Any) -> None:
    got = outputs(case.function(*tensors(case.operands, dtype)))
    arrays = [a.astype(dtype.numpy) if a.dtype.kind == "f" else a for a in case.operands]
    expected = outputs(case.reference(*arrays))
    assert len(got) == len(expected)
    for y, want in zip(got, expected):
        want = np.asarray(want)
        assert y.shape == want.shape
        assert y.dtype is (dtype if want.dtype.kind == "f" else ta.int64)
        tolerance = 2e-5 if dtype is ta.float32 else 1e-12
        np.testing.assert_allclose(y.numpy(), want, rtol=tolerance, atol=tolerance)


@each_case
def test_traced_is_eager(case: Case) -> None:
    xs = tensors(case.operands, ta.float32)

    def copies(*xs: Tensor) -> list[Tensor]:  # a view of an argument would be no output
        return [y.clone() for y in outputs(case.function(*xs))]

    got = ta.interpret(ta.trace(copies, *xs), *(x.numpy() for x in xs))
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


# ---- derivatives --------------------------------------------------------------------------------
# A gradient is compared with the central difference along one random direction, in float64.


def pulled(case: Case, xs: list[Tensor]) -> Tensor:
    """The scalar <c, y> over the floating outputs y, for fixed random c."""
    rng = np.random.default_rng(3)
    total = ta.zeros((), dtype=ta.float64)
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


# ---- making tensors -----------------------------------------------------------------------------


def test_tensor_copies_and_infers() -> None:
    array = np.arange(3.0)
    t = ta.tensor(array)
    array[0] = 7
    assert t.tolist() == [0, 1, 2] and t.dtype is ta.float64
    assert ta.tensor([1.0]).dtype is ta.tensor(0.5).dtype is ta.tensor([]).dtype is ta.float32
    assert ta.tensor([1, 2]).dtype is ta.int64
    assert ta.tensor([True]).dtype is ta.bool
    assert ta.tensor([1, 2.5]).tolist() == [1, 2.5]
    assert ta.tensor(np.float64(1)).dtype is ta.float64
    assert ta.tensor([np.float32(1), np.float32(2)]).dtype is ta.float32
    assert ta.tensor([1, 2], dtype="int8").dtype is ta.int8
    assert ta.tensor([[1, 2], [3, 4]], dtype=float).tolist() == [[1, 2], [3, 4]]
    assert ta.tensor(ta.ones(2, requires_grad=True)).requires_grad is False
    assert ta.tensor([ta.tensor(1.0), ta.tensor(2.0)]).tolist() == [1, 2]
    assert ta.tensor(1.0, requires_grad=True).requires_grad


def test_filled() -> None:
    for shape in ((2, 3), ((2, 3),), ([2, 3],)):
        assert ta.zeros(*shape).tolist() == [[0] * 3] * 2
        assert ta.ones(*shape).dtype is ta.float32
    assert ta.zeros().shape == ()
    assert ta.full((2,), 7).dtype is ta.int64
    assert ta.full((2,), 7, dtype=ta.float16).tolist() == [7, 7]
    assert ta.full(2, True).tolist() == [True, True]
    x = ta.ones(2, dtype=ta.int8)
    assert ta.zeros_like(x).dtype is ta.int8
    assert ta.ones_like(x, dtype=ta.float64).dtype is ta.float64
    assert ta.full_like(x, 3).tolist() == [3, 3]
    assert ta.empty(3, 2).shape == ta.empty_like(ta.ones(3, 2)).shape == (3, 2)
    assert ta.zeros(2, requires_grad=True).requires_grad


@pytest.mark.parametrize(
    "args", [(5,), (2, 7), (7, 2, -2), (0, 1, 0.1), (5.0,), (1, 1), (0.5, 3, 0.5), (-3, 4, 3)]
)
def test_arange(args: tuple[Any, ...]) -> None:
    got = ta.arange(*args)
    want = np.arange(*args)
    assert got.dtype is (ta.int64 if want.dtype.kind == "i" else ta.float32)
    np.testing.assert_array_equal(got.numpy(), want.astype(got.dtype.numpy))


def test_eye() -> None:
    np.testing.assert_array_equal(ta.eye(3).numpy(), np.eye(3))
    np.testing.assert_array_equal(ta.eye(2, 4, dtype=ta.int64).numpy(), np.eye(2, 4))


# ---- random tensors -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [ta.float32, ta.float64, ta.float16, ta.bfloat16], ids=str)
def test_uniform(dtype: Any) -> None:
    ta.manual_seed(1)
    x = ta.rand(100, 200, dtype=dtype)
    y = x.double().numpy()
    assert x.dtype is dtype
    assert y.min() >= 0 and y.max() < 1
    assert abs(y.mean() - 0.5) < 0.01 and abs(y.var() - 1 / 12) < 0.003
    assert len(np.unique(y)) > (15000 if dtype.itemsize > 2 else 200)


@pytest.mark.parametrize("dtype", [ta.float32, ta.float64], ids=str)
def test_normal(dtype: Any) -> None:
    ta.manual_seed(1)
    y = ta.randn(100, 200, dtype=dtype).double().numpy()
    assert np.isfinite(y).all()
    assert abs(y.mean()) < 0.02 and abs(y.var() - 1) < 0.03
    assert abs((y**3).mean()) < 0.06 and abs((y**4).mean() - 3) < 0.2


def test_random_tensors_repeat_after_seeding() -> None:
    def draw() -> list[Any]:
        ta.manual_seed(5)
        x = ta.zeros(3)
        drawn = [ta.rand(2), ta.randn(2), ta.randint(0, 9, (2,)), ta.bernoulli(ta.full((3,), 0.5))]
        return [t.tolist() for t in (*drawn, x.uniform_(2, 3), x.clone().normal_(1, 2))]

    first = draw()
    assert first == draw()
    assert first[0] != ta.rand(2).tolist()


def test_randint_and_bernoulli() -> None:
    ta.manual_seed(2)
    x = ta.randint(-3, 4, (1000,))
    assert x.dtype is ta.int64
    assert set(x.tolist()) == set(range(-3, 4))
    assert set(ta.randint(2, (50,)).tolist()) == {0, 1}
    mean = ta.bernoulli(ta.full((10000,), 0.3)).mean().item()
    assert abs(mean - 0.3) < 0.02
    assert ta.bernoulli(ta.tensor([0.0, 1.0])).tolist() == [0, 1]
    assert ta.bernoulli(ta.ones(4), 1.0).tolist() == [1] * 4
    assert ta.bernoulli(ta.ones(4), 0.0).tolist() == [0] * 4


def test_random_in_a_trace_draws_what_eager_draws() -> None:
    def f(x: Tensor) -> Any:
        return x + ta.rand(4), ta.randn(3), ta.randint(0, 100, (5,)), ta.bernoulli(x)

    ta.manual_seed(9)
    x = ta.full((4,), 0.5)
    step = ta.compile(f, backend="numpy")
    ta.manual_seed(9)
    compiled = [t.tolist() for t in step(x)]
    ta.manual_seed(9)
    assert compiled == [t.tolist() for t in f(x)]
