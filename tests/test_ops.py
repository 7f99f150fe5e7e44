"""Every row of the table of primitives against NumPy written another way, and against itself:
type rule and result, `array` and `into`, gradients and central differences to second order."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from scipy import special

from tinyaot import ops
from tinyaot import shapes as S
from tinyaot.builder import Builder, Sym
from tinyaot.errors import DTypeError, IndexingError, MutationError, ShapeError
from tinyaot.ops import TABLE, Primitive
from tinyaot.ops.core import same_buffer
from tinyaot.ops.random import philox_blocks
from tinyaot.shapes import TensorType, dtype_of

# ---- a small engine: build nodes by the rules, run them by the arrays ---------------------------


def type_of(x: np.ndarray) -> TensorType:
    return TensorType(dtype_of(x.dtype), x.shape)


class Graph:
    """Inputs as Syms, nodes by a Builder, values by running the nodes."""

    def __init__(self, *types: TensorType) -> None:
        self.builder = Builder(0)
        self.inputs = [Sym(self.builder.fresh(t)) for t in types]

    def apply(self, name: str, *operands: Any, **attrs: Any) -> Sym:
        with ops.using(self.builder):
            return TABLE[name](*operands, **attrs)

    def gradients(self, outputs: list[Sym], cotangents: list[Sym], wrt: list[Sym]) -> list[Any]:
        """Reverse mode over the nodes so far; None where nothing flows."""
        found: dict[int, Any] = {}

        def add(value_id: int, g: Any) -> None:
            have = found.get(value_id)
            found[value_id] = g if have is None else ops.add(have, g)

        with ops.using(self.builder):
            for y, g in zip(outputs, cotangents, strict=True):
                add(y.value.id, g)
            for node in reversed(list(self.builder.nodes)):
                g, primitive = found.get(node.result.id), TABLE[node.op]
                if g is None or not primitive.differentiable:
                    continue
                operands = [Sym(v) for v in node.inputs]
                for i, x in enumerate(operands):
                    rule = primitive.rule(i)
                    ct = rule(g, Sym(node.result), *operands, **node.attrs) if rule else None
                    if ct is None or not x.dtype.is_floating:
                        continue
                    if primitive.kind == "map":
                        ct = ops.unbroadcast(ct, x.shape)
                    assert (ct.shape, ct.dtype) == (x.shape, x.dtype), (node.op, i)
                    add(x.value.id, ct)
        return [found.get(x.value.id) for x in wrt]

    def run(self, arrays: list[np.ndarray], wanted: list[Sym]) -> list[np.ndarray]:
        env = {s.value.id: x for s, x in zip(self.inputs, arrays, strict=True)}
        with np.errstate(all="ignore"):
            for node in self.builder.nodes:
                args = [env[v.id] for v in node.inputs]
                env[node.result.id] = np.asarray(TABLE[node.op].array(*args, **node.attrs))
        return [env[s.value.id] for s in wanted]


def evaluate(build: Callable[..., Any], *arrays: np.ndarray) -> np.ndarray:
    """The value of `build(*operands)`, written with ops, on arrays."""
    graph = Graph(*map(type_of, arrays))
    with ops.using(graph.builder):
        out = build(*graph.inputs)
    return graph.run(list(arrays), [out])[0]


# ---- samples ------------------------------------------------------------------------------------


@dataclass
class Case:
    name: str
    arrays: tuple[np.ndarray, ...]
    expected: Callable[..., Any]  # (*arrays, **attrs), in NumPy, another way
    attrs: dict[str, Any] = field(default_factory=dict)
    smooth: bool = True  # whether central differences mean something here

    def __str__(self) -> str:
        types = ",".join(str(type_of(x)) for x in self.arrays)
        attrs = " ".join(f"{k}={v}" for k, v in self.attrs.items())
        return f"{self.name}({types}) {attrs}"


def numbers(*shape: int, seed: int = 0, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(low, high, shape)


UNARY: dict[str, tuple[Callable[..., Any], float, float]] = {
    "neg": (lambda x: 0 - x, -2, 2),
    "abs": (lambda x: np.where(x < 0, -x, x), -2, 2),
    "sign": (lambda x: (x > 0) * 1.0 - (x < 0), -2, 2),
    "exp": (lambda x: math.e**x, -2, 2),
    "expm1": (lambda x: math.e**x - 1, -2, 2),
    "log": (lambda x: np.log2(x) * math.log(2), 0.3, 2),
    "log1p": (lambda x: np.log2(x + 1) * math.log(2), -0.5, 2),
    "sqrt": (lambda x: x**0.5, 0.3, 2),
    "rsqrt": (lambda x: x**-0.5, 0.3, 2),
    "sin": (lambda x: np.imag(np.exp(1j * x)), -2, 2),
    "cos": (lambda x: np.real(np.exp(1j * x)), -2, 2),
    "tan": (lambda x: np.sin(x) / np.cos(x), -1, 1),
    "tanh": (lambda x: 1 - 2 / (np.exp(2 * x) + 1), -2, 2),
    "sigmoid": (special.expit, -2, 2),
    "erf": (lambda x: 1 - special.erfc(x), -2, 2),
    "relu": (lambda x: x * (x > 0), -2, 2),
    "floor": (lambda x: -np.ceil(-x), -2, 2),
    "ceil": (lambda x: -np.floor(-x), -2, 2),
    "round": (np.round, -2, 2),
    "isnan": (lambda x: x != x, -2, 2),
    "isfinite": (lambda x: np.abs(x) < np.inf, -2, 2),
    "copy": (lambda x: x, -2, 2),
}
BINARY: dict[str, tuple[Callable[..., Any], float, float]] = {
    "add": (lambda a, b: a - -b, -2, 2),
    "sub": (lambda a, b: a + -b, -2, 2),
    "mul": (lambda a, b: np.einsum("...,...->...", a, b), -2, 2),
    "div": (lambda a, b: a * (1 / b), 0.5, 2),
    "floordiv": (lambda a, b: np.floor(a / b), 0.5, 3),
    "remainder": (lambda a, b: a - b * np.floor(a / b), 0.5, 3),
    "pow": (lambda a, b: np.exp(b * np.log(a)), 0.5, 2),
    "maximum": (lambda a, b: np.where(a > b, a, b), -2, 2),
    "minimum": (lambda a, b: np.where(a < b, a, b), -2, 2),
    "atan2": (lambda a, b: np.angle(b + 1j * a), 0.5, 2),
}
COMPARE: dict[str, Callable[..., Any]] = {
    "eq": lambda a, b: ~((a < b) | (a > b)),
    "ne": lambda a, b: (a < b) | (a > b),
    "lt": lambda a, b: b > a,
    "le": lambda a, b: ~(a > b),
    "gt": lambda a, b: b < a,
    "ge": lambda a, b: ~(a < b),
}
LOGICAL: dict[str, Callable[..., Any]] = {
    "logical_and": lambda a, b: a & b,
    "logical_or": lambda a, b: a | b,
    "logical_xor": lambda a, b: a ^ b,
}


def map_cases(n: int) -> Iterator[Case]:
    for name, (expected, low, high) in UNARY.items():
        for shape in [(n, n + 1), (), (1,), (0, n)]:
            yield Case(name, (numbers(*shape, low=low, high=high),), expected)
    for name, (expected, low, high) in BINARY.items():
        for left, right in [((n, n), (n, n)), ((n, n), (n,)), ((n, 1), (1, n)), ((), (n,))]:
            a = numbers(*left, low=low, high=high)
            yield Case(name, (a, numbers(*right, seed=1, low=low, high=high)), expected)
        a, b = numbers(0, n, low=low, high=high), numbers(1, n, low=low, high=high)
        yield Case(name, (a, b), expected)
    for name, compare in COMPARE.items():
        a = np.round(numbers(n, n))
        yield Case(name, (a, np.round(numbers(n, n, seed=1))), compare)
        yield Case(name, (a, np.round(numbers(n, seed=1))), compare)
        yield Case(name, (a > 0, a.T > 0), compare)
        yield Case(name, (np.float64(1.0).reshape(()), a[0]), compare)
    for name, logical in LOGICAL.items():
        for right in [(n, n), (n,), (), (0, 1, 1)]:
            yield Case(name, (numbers(n, n) > 0, numbers(*right, seed=1) > 0), logical)
    yield Case("logical_not", (numbers(n, n) > 0,), lambda x: x ^ True)
    yield Case("logical_not", (np.array(True),), lambda x: x ^ True)
    for c, a, b in [((n, n),) * 3, ((n, 1), (n,), ()), ((), (n, n), (n, n)), ((0, 1), (1,), (1,))]:
        yield Case(
            "where",
            (numbers(*c) > 0, numbers(*a, seed=1), numbers(*b, seed=2)),
            lambda c, a, b: c * a + (1 - c) * b,
        )
    for dtype in ("float32", "int32", "bool", "float64"):
        target = dtype_of(dtype)
        for shape in [(n, n), ()]:
            yield Case(
                "cast",
                (numbers(*shape, low=0, high=90),),
                lambda x, dtype: np.array(x, dtype.numpy),
                {"dtype": target},
                smooth=dtype == "float64",
            )
    yield Case("set_value", (numbers(n, n), numbers(n, n, seed=1)), lambda a, b: b, smooth=False)


def _by_loop(name: str) -> Callable[..., Any]:
    """A reduction or scan by Python loops."""
    step = {"sum": lambda p, q: p + q, "prod": lambda p, q: p * q, "amax": max, "amin": min}[name]

    def expected(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        shape = [1 if a in axes else m for a, m in enumerate(x.shape)]
        start = {"sum": 0.0, "prod": 1.0}.get(name)
        found: dict[tuple[int, ...], Any] = {}
        for at in np.ndindex(x.shape):
            to = tuple(0 if a in axes else i for a, i in enumerate(at))
            have = found.get(to, start)
            found[to] = x[at] if have is None else step(have, x[at])
        out = np.full(shape, start or 0.0)
        for to, v in found.items():
            out[to] = v
        return out

    return expected


def reduce_cases(n: int) -> Iterator[Case]:
    with_zeros = numbers(n, n)
    with_zeros[0, 0] = with_zeros[1, 0] = with_zeros[1, 1] = 0.0
    for name in ("sum", "prod", "amax", "amin"):
        for x, axes in [
            (numbers(n, n), (0,)),
            (numbers(n, n), (1,)),
            (numbers(2, n, 2), (0, 2)),
            (numbers(2, n, 2), (0, 1, 2)),
            (numbers(n, n), ()),
            (numbers(), ()),
            (numbers(1, 1), (0, 1)),
            (numbers(0, n), (1,)),
            (with_zeros, (0,)),
            (with_zeros, (0, 1)),
        ]:
            ties = name.startswith("am") and x is with_zeros
            yield Case(name, (x,), _by_loop(name), {"axes": axes}, smooth=not ties)
    for name in ("sum", "prod"):
        yield Case(name, (numbers(0, n),), _by_loop(name), {"axes": (0,)})
    for name in ("amax", "amin"):
        yield Case(name, (numbers(n, n) > 0,), _by_loop(name), {"axes": (0,)})
    for name, pick in (("argmax", max), ("argmin", min)):
        for x, axis in [(numbers(n, n), 1), (np.round(numbers(n, n)), 0), (numbers(0, 2), 1)]:
            yield Case(
                name,
                (x,),
                lambda x, axis, pick=pick: _along(
                    lambda row: [row.index(pick(row))], x, axis, np.int64
                ),
                {"axis": axis},
            )
    yield Case(
        "argmax", (numbers(n, n) > 0,), lambda x, axis: x.argmax(axis, keepdims=True), {"axis": 0}
    )
    for x, axis in [
        (numbers(n, n), 0),
        (numbers(n, n), 1),
        (numbers(2, n, 2), 1),
        (numbers(1), 0),
        (numbers(n, 0), 1),
        (with_zeros, 0),
        (with_zeros, 1),
        (np.array([2.0, 0.0, 3.0, 0.0, 4.0]), 0),
    ]:
        for name, step in (("cumsum", lambda p, q: p + q), ("cumprod", lambda p, q: p * q)):
            yield Case(
                name,
                (x,),
                lambda x, axis, step=step: _along(
                    lambda row: list(itertools.accumulate(row, step)), x, axis, np.float64
                ),
                {"axis": axis},
            )
    for x, axis in [(np.round(numbers(n, n)), 0), (numbers(n, n) > 0, 1), (numbers(0), 0)]:
        for descending in (False, True):
            yield Case(
                "argsort",
                (x,),
                lambda x, axis, descending: _along(
                    lambda row: sorted(range(len(row)), key=row.__getitem__, reverse=descending)
                    if not descending
                    else sorted(range(len(row)), key=lambda i: (-float(row[i]), i)),
                    x,
                    axis,
                    np.int64,
                ),
                {"axis": axis, "descending": descending},
            )


def _along(function: Callable[..., list[Any]], x: np.ndarray, axis: int, dtype: Any) -> np.ndarray:
    """Rows of x along `axis` through a function of lists."""
    rows = np.moveaxis(x, axis, -1)
    results = [function(row.tolist()) for row in rows.reshape(-1, rows.shape[-1])]
    if not results:
        return np.zeros([*rows.shape[:-1], 1], dtype).swapaxes(axis, -1)
    out = np.array(results, dtype).reshape(*rows.shape[:-1], len(results[0]))
    return np.moveaxis(out, -1, axis)


def _sliced(x: np.ndarray, starts: Any, stops: Any, steps: Any) -> np.ndarray:
    for axis, (a, b, k) in enumerate(zip(starts, stops, steps, strict=True)):
        x = np.take(x, list(range(a, b, k)), axis)
    return x


def _replaced(
    base: np.ndarray, src: np.ndarray, place: Callable[..., np.ndarray], **attrs: Any
) -> np.ndarray:
    """base with src where `place` picks element numbers."""
    out = base.ravel().copy()
    out[place(np.arange(base.size).reshape(base.shape), **attrs)] = src
    return out.reshape(base.shape)


def view_cases(n: int) -> Iterator[Case]:
    for x, shape in [
        (numbers(n, n), (n * n,)),
        (numbers(2, n), (n, 2, 1)),
        (numbers(), (1, 1)),
        (numbers(1, 1), ()),
        (numbers(0, n), (n, 0, 2)),
    ]:
        yield Case(
            "reshape", (x,), lambda x, shape: np.array(list(x.flat)).reshape(shape), {"shape": shape}
        )
    for x, perm in [(numbers(n, n), (1, 0)), (numbers(2, n, 1), (2, 0, 1)), (numbers(), ())]:
        letters = "abc"[: x.ndim]
        yield Case(
            "permute",
            (x,),
            lambda x, perm, letters=letters: np.einsum(
                f"{letters}->{''.join(letters[p] for p in perm)}", x
            ),
            {"perm": perm},
        )
    for x, shape in [
        (numbers(n), (n, n)),
        (numbers(n, 1), (2, n, n)),
        (numbers(), (n, 2)),
        (numbers(1, 1), (0, 1)),
        (numbers(n, n), (n, n)),
    ]:
        yield Case("broadcast", (x,), lambda x, shape: x + np.zeros(shape), {"shape": shape})
    yield Case("detach", (numbers(n, n),), lambda x: x + 0, smooth=False)
    for x, starts, stops, steps in [
        (numbers(n, n), (1, 0), (n, n), (1, 2)),
        (numbers(n, n), (n - 1, n - 1), (-1, 0), (-1, -2)),
        (numbers(n), (2,), (1,), (1,)),
        (numbers(n, 2), (0, -1), (n, -1), (1, -1)),
        (numbers(), (), (), ()),
        (numbers(0), (0,), (0,), (1,)),
    ]:
        attrs = {"starts": starts, "stops": stops, "steps": steps}
        yield Case("slice", (x,), _sliced, attrs)
        src = numbers(*S.slice_sizes(starts, stops, steps), seed=1)
        yield Case(
            "slice_scatter", (x, src), lambda b, s, **at: _replaced(b, s, _sliced, **at), attrs
        )
    for x, offset, axis1, axis2 in [
        (numbers(n, n), 0, 0, 1),
        (numbers(n, n), 1, 1, 0),
        (numbers(2, n, 2), -1, 2, 1),
        (numbers(n, n), n, 0, 1),
    ]:
        attrs = {"offset": offset, "axis1": axis1, "axis2": axis2}
        yield Case("diagonal", (x,), np.diagonal, attrs)
        src = numbers(*np.diagonal(x, **attrs).shape, seed=1)
        yield Case(
            "diagonal_scatter",
            (x, src),
            lambda b, s, **at: _replaced(b, s, np.diagonal, **at),
            attrs,
        )
    for shapes, axis in [
        (((n, 2), (n, 3), (n, 0)), 1),
        (((1, n), (2, n)), 0),
        (((n,),), 0),
        (((0, 2), (0, 2)), 0),
    ]:
        yield Case(
            "concat",
            tuple(numbers(*s, seed=i) for i, s in enumerate(shapes)),
            lambda *xs, axis: np.moveaxis(
                np.array([r for x in xs for r in np.moveaxis(x, axis, 0)]).reshape(
                    -1, *np.moveaxis(xs[0], axis, 0).shape[1:]
                ),
                0,
                axis,
            ),
            {"axis": axis},
        )


def index_cases(n: int) -> Iterator[Case]:
    rng = np.random.default_rng(5)

    def picks(size: int, *shape: int, dtype: Any = np.int64) -> np.ndarray:
        return rng.integers(-size, size, shape, dtype)

    def gathered(x: np.ndarray, *indices: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        grid = np.broadcast_arrays(*indices)
        rows = np.moveaxis(x, axes, range(len(axes)))
        out = np.empty([*grid[0].shape, *rows.shape[len(axes) :]], x.dtype)
        for at in np.ndindex(grid[0].shape):
            out[at] = rows[tuple(int(g[at]) for g in grid)]
        return out

    def scattered(
        base: np.ndarray, src: np.ndarray, *indices: np.ndarray, axes: Any, mode: str
    ) -> np.ndarray:
        out = base.copy()
        grid = np.broadcast_arrays(*indices)
        rows = np.moveaxis(out, axes, range(len(axes)))
        for at in np.ndindex(grid[0].shape):
            to = tuple(int(g[at]) for g in grid)
            rows[to] = src[at] + (rows[to] if mode == "add" else 0)
        return out

    def taken(x: np.ndarray, index: np.ndarray, axis: int) -> np.ndarray:
        out = np.empty(index.shape, x.dtype)
        for at in np.ndindex(index.shape):
            out[at] = x[(*at[:axis], int(index[at]), *at[axis + 1 :])]
        return out

    def put(
        base: np.ndarray, src: np.ndarray, index: np.ndarray, axis: int, mode: str
    ) -> np.ndarray:
        out = base.copy()
        for at in np.ndindex(index.shape):
            to = (*at[:axis], int(index[at]), *at[axis + 1 :])
            out[to] = src[at] + (out[to] if mode == "add" else 0)
        return out

    for x, indices, axes in [
        (numbers(n, n), (picks(n, n + 2),), (0,)),
        (numbers(n, n), (picks(n, n, 2),), (1,)),
        (numbers(n, n), (np.arange(n), picks(n, n)), (0, 1)),
        (numbers(2, n, 3), (picks(3, n, 1), picks(2, 2)), (2, 0)),
        (numbers(n, 2), (np.array(-1),), (0,)),
        (numbers(n, 2), (picks(n, n, dtype=np.int32),), (0,)),
        (numbers(n, 2), (np.zeros(0, np.int64),), (0,)),
        (numbers(n, 0), (picks(n, 2),), (0,)),
        (numbers(0, 2), (np.zeros(0, np.int64),), (0,)),
    ]:
        yield Case("gather", (x, *indices), gathered, {"axes": axes})
        src = numbers(*gathered(x, *indices, axes=axes).shape, seed=1)
        for mode in ("set", "add"):
            yield Case("scatter", (x, src, *indices), scattered, {"axes": axes, "mode": mode})
    for x, index, axis in [
        (numbers(n, n), picks(n, n, n), 1),
        (numbers(n, n), picks(n, 2, 2), 0),
        (numbers(n), picks(n, 2 * n), 0),
        (numbers(2, n, 2), picks(n, 1, n, 2, dtype=np.int32), 1),
        (numbers(n, 2), np.zeros((n, 0), np.int64), 1),
        (numbers(0, 2), np.zeros((0, 2), np.int64), 0),
    ]:
        yield Case("take_along", (x, index), taken, {"axis": axis})
        src = numbers(*index.shape, seed=1)
        for mode in ("set", "add"):
            yield Case("put_along", (x, src, index), put, {"axis": axis, "mode": mode})


def dot_cases(n: int) -> Iterator[Case]:
    for spec, a, b in [
        ("ij,jk->ik", (n, n), (n, n + 1)),
        ("ij,kj->ik", (n, n), (n, n)),
        ("ij,jk->ki", (n, n), (n, n)),
        ("ji,jk->ik", (n, n), (n, 2)),
        ("bij,bjk->bik", (2, n, n), (2, n, n)),
        ("bij,jk->bik", (2, n, n), (n, n)),
        ("bti,bto->io", (2, n, n), (2, n, n)),
        ("bthd,bshd->bhts", (2, n, 2, 2), (2, n, 2, 2)),
        ("bhts,bshd->bthd", (2, 2, n, n), (2, n, 2, 2)),
        ("i,i->", (n,), (n,)),
        ("i,j->ij", (n,), (n,)),
        ("ij,ij->ji", (n, n), (n, n)),
        ("ij,j->i", (n, n), (n,)),
        (",i->i", (), (n,)),
        (",->", (), ()),
        ("ij,jk->k", (n, n), (n, n)),
        ("ij,kl->ik", (n, 2), (n, 2)),
        ("ij,->i", (n, 2), ()),
        ("ijk,kjl->il", (2, n, 2), (2, n, n)),
        ("ij,jk->ik", (n, 0), (0, n)),
        ("ij,jk->ik", (0, n), (n, 1)),
        ("ij,jk->ik", (1, 1), (1, 1)),
    ]:
        yield Case(
            "dot",
            (numbers(*a), numbers(*b, seed=1)),
            lambda a, b, spec: np.einsum(spec, a, b, optimize=False),
            {"spec": spec},
        )


def leaf_cases(n: int) -> Iterator[Case]:
    for value, shape, dtype in [(0.5, (n, n), "f32"), (True, (), "bool"), (-3, (0, 2), "i64")]:
        yield Case(
            "full",
            (),
            lambda value, shape, dtype: np.ones(shape, dtype.numpy) * dtype.numpy.type(value),
            {"value": value, "shape": shape, "dtype": dtype_of(dtype)},
        )
    for size, dtype in [(n, "i64"), (n * n, "i32"), (0, "i64"), (1, "f32"), (n * n, "f64")]:
        yield Case(
            "iota",
            (),
            lambda size, dtype: np.array(list(range(size)), dtype.numpy),
            {"size": size, "dtype": dtype_of(dtype)},
        )
    for shape in [(n, n), (), (0,), (n * n + 3,)]:
        yield Case(
            "random_bits",
            (np.array(7), np.array(11)),
            lambda seed, base, ordinal, shape: slow_philox(int(seed), int(base) + ordinal, shape),
            {"ordinal": 2, "shape": shape},
        )


def slow_philox(seed: int, draw: int, shape: tuple[int, ...]) -> np.ndarray:
    """The generator of the paper on Python integers, one block at a time."""
    words: list[int] = []
    mask = 0xFFFFFFFF
    for block in range((math.prod(shape) + 3) // 4):
        k0, k1 = seed & mask, seed >> 32 & mask
        c = [block & mask, block >> 32, draw & mask, draw >> 32 & mask]
        for _ in range(10):
            p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [q >> 32 ^ c[1] ^ k0, q & mask, p >> 32 ^ c[3] ^ k1, p & mask]
            k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
        words += c
    return np.array(words[: math.prod(shape)], np.uint32).reshape(shape)


def all_cases(n: int) -> list[Case]:
    families = (map_cases, reduce_cases, view_cases, index_cases, dot_cases, leaf_cases)
    return [case for family in families for case in family(n)]


CASES = all_cases(3)
BY_NAME: dict[str, list[Case]] = {}
for _case in CASES:
    BY_NAME.setdefault(_case.name, []).append(_case)
NAMES = sorted(TABLE.keys() - {"write"})  # `write` has a test of its own


def test_every_primitive_has_a_sample() -> None:
    assert set(BY_NAME) == set(NAMES)


def layouts(x: np.ndarray) -> Iterator[np.ndarray]:
    """The same values in other memory: as is, Fortran order, backwards, every second element."""
    yield x
    if x.ndim:
        yield np.asfortranarray(x)
        yield np.flip(np.ascontiguousarray(np.flip(x)))
        spaced = np.zeros([2 * n for n in x.shape], x.dtype)[(slice(None, None, 2),) * x.ndim]
        spaced[...] = x
        yield spaced


def variants(case: Case) -> Iterator[tuple[np.ndarray, ...]]:
    """The operands in every layout and in every dtype that the primitive takes."""
    for operands in zip(*(itertools.cycle(layouts(x)) for x in case.arrays)):
        yield operands
        if all(x.ndim == 0 for x in case.arrays):
            break
        if operands[0] is not case.arrays[0] and all(
            same_buffer(x, y) for x, y in zip(operands, case.arrays)
        ):
            break
        if len(_seen := [0]) and _count(case, operands):
            break
    for dtype in ("f32", "i32", "u8", "i64"):
        cast = tuple(
            np.abs(x * 3).astype(dtype_of(dtype).numpy) + 1 if x.dtype == np.float64 else x
            for x in case.arrays
        )
        try:
            TABLE[case.name].infer([type_of(x) for x in cast], case.attrs)
        except DTypeError:
            continue
        yield cast
