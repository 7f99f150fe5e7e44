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

    def __post_init__(self) -> None:
        self.arrays = tuple(map(np.asarray, self.arrays))

    def __str__(self) -> str:
        types = ",".join(str(type_of(x)) for x in self.arrays)
        attrs = " ".join(f"{k}={v}" for k, v in self.attrs.items())
        return f"{self.name}({types}) {attrs}"


def numbers(*shape: int, seed: int = 0, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    return np.asarray(np.random.default_rng(seed).uniform(low, high, shape))


def _power(a: np.ndarray, b: np.ndarray) -> Any:
    if a.dtype.kind == "f":
        return np.exp(b * np.log(a))
    wraps = 2 ** (8 * a.itemsize)
    powers = [int(p) ** int(q) % wraps for p, q in np.broadcast(a, b)]
    return np.array(powers, np.uint64).astype(a.dtype).reshape(np.broadcast(a, b).shape)


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
    "pow": (lambda a, b: _power(a, b), 0.5, 2),
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
                    lambda row: (
                        sorted(range(len(row)), key=row.__getitem__, reverse=descending)
                        if not descending
                        else sorted(range(len(row)), key=lambda i: (-float(row[i]), i))
                    ),
                    x,
                    axis,
                    np.int64,
                ),
                {"axis": axis, "descending": descending},
            )


def _along(function: Callable[..., list[Any]], x: np.ndarray, axis: int, dtype: Any) -> np.ndarray:
    """Rows of x along `axis` through a function of lists."""
    rows = np.moveaxis(x, axis, -1)
    results = [
        function(row.tolist()) for row in rows.reshape(math.prod(rows.shape[:-1]), rows.shape[-1])
    ]
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
            "reshape",
            (x,),
            lambda x, shape: np.array(list(x.flat)).reshape(shape),
            {"shape": shape},
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


def layouts(x: np.ndarray) -> list[np.ndarray]:
    """The same values in other memory: as is, Fortran order, backwards, every second element."""
    if not x.ndim:
        return [x]
    spaced = np.zeros([2 * n for n in x.shape], x.dtype)[(slice(None, None, 2),) * x.ndim]
    spaced[...] = x
    backwards = np.flip(np.ascontiguousarray(np.flip(x)))
    return [x, np.asfortranarray(x), backwards, spaced]


def variants(case: Case) -> Iterator[tuple[np.ndarray, ...]]:
    """The operands in mixed layouts, and in other dtypes where the primitive takes them."""
    choices = [layouts(x) for x in case.arrays]
    for k in range(max(map(len, choices), default=1)):
        yield tuple(c[(k + i) % len(c)] for i, c in enumerate(choices))
    for dtype in ("f32", "i32", "u8", "i64"):
        cast = tuple(
            np.array(np.abs(x * 3) + 1, dtype_of(dtype).numpy) if x.dtype == np.float64 else x
            for x in case.arrays
        )
        try:
            TABLE[case.name].infer([type_of(x) for x in cast], case.attrs)
        except DTypeError:
            continue
        yield cast


def check_bits(have: np.ndarray, want: np.ndarray, about: object) -> None:
    assert have.tobytes() == want.tobytes(), f"{about}: {have} is not {want}"


def garbage(t: TensorType) -> np.ndarray:
    """Memory of a type with bytes that no computation gives."""
    return np.frombuffer(bytearray(b"\xa5" * t.nbytes), t.dtype.numpy).reshape(t.shape)


@pytest.mark.parametrize("name", NAMES)
def test_type_and_values(name: str) -> None:
    primitive = TABLE[name]
    for case in BY_NAME[name]:
        for arrays in variants(case):
            frozen = [x.view() for x in arrays]
            for x in frozen:
                x.flags.writeable = False
            result = np.asarray(primitive.array(*frozen, **case.attrs))
            inferred = primitive.infer([type_of(x) for x in arrays], case.attrs)
            assert inferred == type_of(result), case
            if primitive.kind != "view":
                assert result.flags.c_contiguous, case
                assert not any(np.may_share_memory(result, x) for x in arrays), case
            expected = np.asarray(case.expected(*arrays, **case.attrs))
            exact = result.dtype.kind in "biu"
            if exact:
                expected = expected.astype(result.dtype)
            tolerance = 0 if exact else 1e-5 if result.dtype == np.float32 else 1e-12
            np.testing.assert_allclose(
                result, expected, rtol=tolerance, atol=tolerance, err_msg=str(case)
            )


@pytest.mark.parametrize("name", NAMES)
def test_into_is_array_bit_for_bit(name: str) -> None:
    primitive = TABLE[name]
    assert primitive.into is not None
    for case in BY_NAME[name]:
        for arrays in variants(case):
            want = np.asarray(primitive.array(*arrays, **case.attrs))
            t = type_of(want)
            out = garbage(t)
            primitive.into(out, *arrays, **case.attrs)
            check_bits(out, want, case)
            for i, x in enumerate(arrays):
                if not (primitive.may_overwrite(i) and type_of(x) == t):
                    continue
                out = np.array(x, order="C")
                operands = [out if j == i else y.copy() for j, y in enumerate(arrays)]
                want = np.asarray(primitive.array(*(y.copy() for y in operands), **case.attrs))
                primitive.into(out, *operands, **case.attrs)
                check_bits(out, want, f"{case} in place of operand {i}")


NUMPYS_BUFFERS = 3 * 8192 * 8 + 10_000  # what a ufunc may use to iterate, whatever the size
BIG: dict[str, list[Case]] = {}
for _case in all_cases(400):
    BIG.setdefault(_case.name, []).append(_case)


@pytest.mark.parametrize("name", NAMES)
def test_into_allocates_no_more_than_it_says(name: str) -> None:
    """Only operands of over 1 MB are looked at here, so fixed blocks do not matter."""
    primitive = TABLE[name]
    assert primitive.into is not None
    for case in BIG[name]:
        types = [type_of(x) for x in case.arrays]
        result = primitive.infer(types, case.attrs)
        if max([result.nbytes, *(t.nbytes for t in types)]) < 1_000_000:
            continue
        out = garbage(result)
        allowed = primitive.scratch(types, result, case.attrs) + NUMPYS_BUFFERS
        with np.errstate(all="ignore"):
            primitive.into(out, *case.arrays, **case.attrs)  # fills caches
            tracemalloc.start()
            primitive.into(out, *case.arrays, **case.attrs)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak <= allowed, f"{case}: {peak} bytes, {allowed} allowed"


# ---- derivatives --------------------------------------------------------------------------------


def differentiable_operands(case: Case) -> list[int]:
    primitive = TABLE[case.name]
    if not case.smooth or not primitive.differentiable:
        return []
    result = primitive.infer([type_of(x) for x in case.arrays], case.attrs)
    if not result.dtype.is_floating:
        return []
    return [
        i
        for i, x in enumerate(case.arrays)
        if x.dtype == np.float64 and primitive.rule(i) is not None
    ]


def central(f: Callable[..., float], arrays: list[np.ndarray], i: int, eps: float) -> np.ndarray:
    """df / d arrays[i] by central differences."""
    grad = np.zeros(arrays[i].shape)
    for at in np.ndindex(grad.shape):
        values = []
        for shift in (eps, -eps):
            moved = [x.copy() if j == i else x for j, x in enumerate(arrays)]
            moved[i][at] += shift
            values.append(f(*moved))
        grad[at] = (values[0] - values[1]) / (2 * eps)
    return grad


def or_zero(graph: Graph, g: Any, like: np.ndarray) -> Any:
    return graph.apply("full", value=0.0, shape=like.shape, dtype=S.float64) if g is None else g


@pytest.mark.parametrize("name", [n for n in NAMES if TABLE[n].differentiable])
def test_gradients_to_second_order(name: str) -> None:
    for case in BY_NAME[name]:
        wrt = differentiable_operands(case)
        if not wrt:
            continue
        arrays = list(case.arrays)
        result = TABLE[name].infer([type_of(x) for x in arrays], case.attrs)
        c = numbers(*result.shape, seed=7)
        directions = [numbers(*arrays[i].shape, seed=20 + i) for i in wrt]
        everything = [*arrays, c, *directions]
        graph = Graph(*map(type_of, everything))
        xs, cotangent = graph.inputs[: len(arrays)], graph.inputs[len(arrays)]
        variables = [xs[i] for i in wrt]
        y = graph.apply(name, *xs, **case.attrs)
        first = graph.gradients([y], [cotangent], variables)
        first = [or_zero(graph, g, arrays[i]) for g, i in zip(first, wrt)]
        # Second order: of sum(direction * first), by the operands and by the cotangent too.
        seconds = [*variables, cotangent]
        second = graph.gradients(first, graph.inputs[len(arrays) + 1 :], seconds)
        places = [*wrt, len(arrays)]
        second = [or_zero(graph, g, everything[i]) for g, i in zip(second, places)]

        def value(*moved: np.ndarray, graph=graph, y=y, c=c) -> float:  # type: ignore[no-untyped-def]
            return float(np.sum(graph.run(list(moved), [y])[0] * c))

        def slope(*moved: np.ndarray, graph=graph, first=first, to=directions) -> float:  # type: ignore[no-untyped-def]
            return float(sum(np.sum(f * d) for f, d in zip(graph.run(list(moved), first), to)))

        found = graph.run(everything, first)
        for i, g in zip(wrt, found):
            want = central(value, everything, i, 1e-6)
            np.testing.assert_allclose(g, want, rtol=1e-6, atol=1e-7, err_msg=f"{case} by {i}")
        for i, g in zip(places, graph.run(everything, second)):
            want = central(slope, everything, i, 1e-6)
            np.testing.assert_allclose(
                g, want, rtol=1e-6, atol=1e-6, err_msg=f"{case}: second order by {i}"
            )


def reads(case: Case, operand: int) -> frozenset[str]:
    """What the rule of an operand reads: g, y, and operands by position, by dataflow."""
    primitive = TABLE[case.name]
    types = [type_of(x) for x in case.arrays]
    result = primitive.infer(types, case.attrs)
    graph = Graph(result, result, *types)
    g, y, *operands = graph.inputs
    with ops.using(graph.builder):
        ct = primitive.rule(operand)(g, y, *operands, **case.attrs)  # type: ignore[misc]
    names = {s.value.id: n for s, n in zip(graph.inputs, ["g", "y", *map(str, range(len(types)))])}
    live = {ct.value.id}
    for node in reversed(graph.builder.nodes):
        if node.result.id in live:
            live.update(v.id for v in node.inputs)
    return frozenset(names[i] for i in live if i in names)


@pytest.mark.parametrize("name", [n for n in NAMES if TABLE[n].differentiable])
def test_what_a_rule_reads_does_not_depend_on_the_sample(name: str) -> None:
    """Only the mode of a scatter may change it: what a tape keeps is found once for each."""
    found: dict[Any, set[frozenset[str]]] = {}
    for case in BY_NAME[name]:
        for i in differentiable_operands(case):
            key = min(i, 0) if name == "concat" else i
            read = {
                r if not r.isdigit() else "x" if name == "concat" else r for r in reads(case, i)
            }
            if name in ("gather", "scatter"):  # variadic in its indices
                fixed = 1 if name == "gather" else 2
                read = {r if not r.isdigit() or int(r) < fixed else "indices" for r in read}
            found.setdefault((key, case.attrs.get("mode")), set()).add(frozenset(read))
    for key, sets in found.items():
        assert len(sets) == 1, (name, key, sets)


def test_rules_read_as_little_as_they_can() -> None:
    """The tape keeps what a rule reads, so these are memory."""
    want = {
        ("add", 0): "g", ("sum", 0): "g", ("exp", 0): "gy", ("tanh", 0): "gy", ("relu", 0): "gy",
        ("sigmoid", 0): "gy", ("sqrt", 0): "gy", ("mul", 0): "g1", ("mul", 1): "g0",
        ("dot", 0): "g1", ("dot", 1): "g0", ("where", 1): "g0", ("cumsum", 0): "g",
        ("slice", 0): "g", ("gather", 0): "g1", ("log", 0): "g0", ("prod", 0): "g0",
        ("floor", 0): "", ("concat", 0): "g", ("slice_scatter", 0): "g", ("set_value", 0): "g",
    }  # fmt: skip
    for (name, i), read in want.items():
        assert reads(BY_NAME[name][0], i) == set(read), (name, i)


def test_subgradients_are_torchs() -> None:
    def slope(name: str, *values: Any, operand: int = 0, **attrs: Any) -> list[float]:
        arrays = [np.array(v, np.float64) for v in values]
        graph = Graph(*map(type_of, arrays))
        y = graph.apply(name, *graph.inputs, **attrs)
        one = graph.apply("full", value=1.0, shape=y.shape, dtype=S.float64)
        (g,) = graph.gradients([y], [one], [graph.inputs[operand]])
        found: list[float] = graph.run(arrays, [g])[0].tolist()
        return found

    inf = math.inf
    assert slope("relu", [0.0, -1, 2]) == [0, 0, 1]
    assert slope("abs", [0.0, -1, 2]) == [0, -1, 1]
    assert slope("sqrt", [0.0, 4]) == [inf, 0.25]
    assert slope("maximum", [1.0, 2, 3], [1.0, 3, 2]) == [0.5, 0, 1]
    assert slope("minimum", [1.0, 2, 3], [1.0, 3, 2], operand=1) == [0.5, 0, 1]
    assert slope("pow", [0.0] * 4, [0, 1, 2, 0.5]) == [0, 1, 0, inf]
    assert slope("pow", [0.0] * 4, [0, 1, 2, 0.5], operand=1) == [0, 0, 0, 0]
    assert slope("amax", [[1.0, 3, 3], [2, 2, 2]], axes=(1,)) == [[0, 0.5, 0.5], [1 / 3] * 3]
    assert slope("amin", [[1.0, 3, 3], [2, 2, 2]], axes=(0,)) == [[1, 0, 0], [0, 1, 1]]
    assert slope("cumprod", [2.0, 0, 3, 4], axis=0) == [1, 32, 0, 0]
    assert slope("prod", [[2.0, 0, 3]], axes=(0, 1)) == [[0, 6, 0]]
    assert slope("prod", [[0.0, 0, 3]], axes=(1,)) == [[0, 0, 0]]
    assert slope("floor", [0.5, inf]) == [0, 0]
    # The winner of several writes gets the gradient, and what was overwritten none.
    index = np.array([1, 0, 1])
    base, src = np.zeros(3), np.array([1.0, 2, 3])
    for operand, want in ((0, [0, 0, 1]), (1, [0, 1, 1])):
        graph = Graph(type_of(base), type_of(src), type_of(index))
        for name, attrs in (("scatter", {"axes": (0,)}), ("put_along", {"axis": 0})):
            y = graph.apply(name, *graph.inputs, mode="set", **attrs)
            one = graph.apply("full", value=1.0, shape=(3,), dtype=S.float64)
            (g,) = graph.gradients([y], [one], [graph.inputs[operand]])
            value, found = graph.run([base, src, index], [y, g])
            assert (value.tolist(), found.tolist()) == ([2, 3, 0], want)


def test_the_last_write_wins_whatever_the_memory_order() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        rows, columns, size = (int(n) for n in rng.integers(1, 5, 3))
        index = layouts(rng.integers(-size, size, (rows, columns)))[rng.integers(4)]
        src = layouts(numbers(rows, columns, 2))[rng.integers(4)]
        base = np.zeros((2, size))
        want = base.copy()
        for at in np.ndindex(rows, columns):
            want[:, index[at]] = src[at]
        check_bits(TABLE["scatter"].array(base, src, index, axes=(1,), mode="set"), want, index)
        base, src = np.zeros((rows, size)), src[..., 0]
        want = base.copy()
        for at in np.ndindex(rows, columns):
            want[at[0], index[at]] = src[at]
        check_bits(TABLE["put_along"].array(base, src, index, axis=1, mode="set"), want, index)


def test_detach_and_set_value_stop_gradients() -> None:
    assert TABLE["detach"].rule(0) is None
    assert TABLE["set_value"].rule(1) is None
    assert TABLE["gather"].rule(1) is None and TABLE["scatter"].rule(2) is None
    assert not TABLE["argmax"].differentiable and not TABLE["random_bits"].differentiable


# ---- particular ops -----------------------------------------------------------------------------


@pytest.mark.parametrize("half", [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)])
def test_halves_compute_in_float32(half: np.dtype[Any]) -> None:
    x = numbers(64, 48).astype(half)
    wide = x.astype(np.float32)
    many = np.ones((1, 5000), half)  # in float16, 2048 + 1 is 2048
    for name, result, want in [
        ("sum", TABLE["sum"].array(many, axes=(1,)), np.array([[5000]])),
        ("cumsum", TABLE["cumsum"].array(many, axis=1)[0, -1:], np.array([5000])),
        ("prod", TABLE["prod"].array(x[:4], axes=(0,)), wide[:4].prod(0, keepdims=True)),
        ("dot", TABLE["dot"].array(many, many, spec="ij,kj->ik"), np.array([[5000]])),
        ("sigmoid", TABLE["sigmoid"].array(x), special.expit(wide)),
        ("erf", TABLE["erf"].array(x), special.erf(wide)),
        ("rsqrt", TABLE["rsqrt"].array(np.abs(x)), 1 / np.sqrt(np.abs(wide))),
        ("add", TABLE["add"].array(x, x), wide + wide),
        (
            "scatter",
            TABLE["scatter"].array(
                np.zeros(1, half), many[0], np.zeros(5000, int), axes=(0,), mode="add"
            ),
            np.array([5000]),
        ),
    ]:
        assert result.dtype == half, name
        check_bits(result, want.astype(half), name)
    for name in NAMES:  # and every primitive that takes float64 takes halves
        for case in BY_NAME[name]:
            arrays = [x.astype(half) if x.dtype == np.float64 else x for x in case.arrays]
            inferred = TABLE[name].infer([type_of(x) for x in arrays], case.attrs)
            with np.errstate(all="ignore"):
                result = np.asarray(TABLE[name].array(*arrays, **case.attrs))
                out = garbage(inferred)
                TABLE[name].into(out, *arrays, **case.attrs)  # type: ignore[misc]
            assert type_of(result) == inferred, case
            check_bits(out, result, case)


def test_integers_keep_their_dtype_and_wrap() -> None:
    small = np.full((1, 300), 1, np.uint8)
    assert TABLE["sum"].array(small, axes=(1,)).tolist() == [[44]]
    assert TABLE["dot"].array(small, small, spec="ij,kj->ik").tolist() == [[44]]
    assert TABLE["cumsum"].array(small, axis=1)[0, -1] == 44
    a, b = np.array([1, -1, -1, 2, 3]), np.array([-3, -3, -2, -1, 2])
    assert TABLE["pow"].array(a, b).tolist() == [1, -1, 1, 0, 9]


def test_nan_and_signed_zero() -> None:
    nan, zero = np.array([1.0, np.nan, 2.0]), np.array([-0.0])
    assert np.isnan(TABLE["amax"].array(nan, axes=(0,))).all()
    assert TABLE["argmax"].array(nan, axis=0).tolist() == [1]
    assert TABLE["argmin"].array(nan, axis=0).tolist() == [1]
    assert TABLE["argsort"].array(nan, axis=0, descending=False).tolist() == [0, 2, 1]
    assert TABLE["argsort"].array(nan, axis=0, descending=True).tolist() == [1, 2, 0]
    assert np.isnan(TABLE["maximum"].array(nan, np.zeros(3))[1])
    assert np.signbit(TABLE["copy"].array(zero)) and np.signbit(TABLE["mul"].array(zero, 1 + zero))


def test_write_puts_bytes_into_a_view() -> None:
    base = np.zeros((2, 3))
    TABLE["write"].array(TABLE["diagonal"].array(base, offset=1, axis1=0, axis2=1), np.ones(2))
    TABLE["write"].array(TABLE["permute"].array(base, perm=(1, 0))[0], np.array([5.0, 6.0]))
    assert base.tolist() == [[5, 1, 0], [6, 0, 1]]
    assert TABLE["write"].kind == "mutate" and not TABLE["write"].differentiable


def test_reshape_is_a_view_exactly_where_geometry_says() -> None:
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(300):
        x = np.zeros((2, 3, 4))[:, :: int(rng.choice([1, -1, 2])), :: int(rng.choice([1, 2]))]
        x = x.transpose(rng.permutation(3))
        shape = [(x.size,), (x.size // 2, 2), (2, -1), (1, *x.shape), (*x.shape[:2], 1, x.shape[2])]
        target = S.normalize_shape("", shape[rng.integers(len(shape))], x.size)
        item = x.itemsize
        geometry = S.reshape_geometry(
            S.Geometry(x.shape, tuple(s // item for s in x.strides)), target
        )
        result = TABLE["reshape"].array(x, shape=target)
        assert np.shares_memory(result, x) == (geometry is not None)
        seen.add(geometry is None)
    assert seen == {True, False}


def test_dot_reads_operands_where_they_lie() -> None:
    """Transposes and merged batches are strides: no hidden copies, whatever the letters."""
    n = 96
    for spec, a, b in [
        ("ij,jk->ik", (n, n), (n, n)),
        ("ji,jk->ki", (n, n), (n, n)),
        ("ij,kj->ki", (n, n), (n, n)),
        ("bti,io->bto", (4, n, n), (n, n)),
        ("bto,io->bti", (4, n, n), (n, n)),
        ("bti,bto->io", (4, n, n), (4, n, n)),
        ("bti,bto->oi", (4, n, n), (4, n, n)),
        ("bthd,bshd->bhts", (2, n, 2, 32), (2, n, 2, 32)),
        ("bhts,bshd->bthd", (2, 2, n, n), (2, n, 2, 32)),
        ("bhts,bthd->bshd", (2, 2, n, n), (2, n, 2, 32)),
    ]:
        x, y = numbers(*a), numbers(*b, seed=1)
        result = TABLE["dot"].infer([type_of(x), type_of(y)], {"spec": spec})
        assert TABLE["dot"].scratch([type_of(x), type_of(y)], result, {"spec": spec}) == 0
        out = garbage(result)
        TABLE["dot"].into(out, x, y, spec=spec)  # type: ignore[misc]
        np.testing.assert_allclose(out, np.einsum(spec, x, y, optimize=True), rtol=1e-10)
        tracemalloc.start()
        TABLE["dot"].into(out, x, y, spec=spec)  # type: ignore[misc]
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 8_000, spec


def test_dot_of_random_letters_and_strides() -> None:
    rng = np.random.default_rng(3)
    for _ in range(400):
        sizes = dict(zip("abcdef", rng.integers(1, 4, 6)))
        left, right = (
            "".join(rng.permutation(list("abcdef"))[: rng.integers(0, 5)]) for _ in range(2)
        )
        out = "".join(c for c in rng.permutation(list("abcdef")) if c in left + right)
        out = out[: rng.integers(0, len(out) + 1)]
        spec = f"{left},{right}->{out}"
        x, y = (
            layouts(numbers(*(sizes[c] for c in s), seed=i))[rng.integers(4 if s else 1)]
            for i, s in enumerate((left, right))
        )
        want = np.einsum(spec, x, y)
        np.testing.assert_allclose(TABLE["dot"].array(x, y, spec=spec), want, atol=1e-12)
    flops = TABLE["dot"].flops
    x, y = TensorType(S.float32, (4, 5)), TensorType(S.float32, (5, 6))
    assert flops([x, y], TensorType(S.float32, (4, 6)), {"spec": "ij,jk->ik"}) == 2 * 4 * 5 * 6
    assert TABLE["sum"].flops([x], x, {}) == 20


def test_philox_known_answers() -> None:
    """The vectors published with Random123 (kat_vectors: philox4x32 10)."""
    for counter, key, want in [
        ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ]:
        even, odd = philox_blocks(
            np.array(counter[0::2], np.uint64)[:, None],
            np.array(counter[1::2], np.uint64)[:, None],
            key,
        )
        assert (even[0, 0], odd[0, 0], even[1, 0], odd[1, 0]) == want


def test_philox_counts_elements_and_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    seed, draw = 2**63 + 12345, 2**32 + 1
    want = slow_philox(seed, draw, (3, 5))
    check_bits(ops.philox(seed, draw, (3, 5)), want, "row-major elements")
    monkeypatch.setattr("tinyaot.ops.random._BLOCK", 2)
    check_bits(ops.philox(seed, draw, (15,)), want.ravel(), "in blocks")
    assert ops.philox(-1, 0, (2,)).tolist() == ops.philox(2**64 - 1, 0, (2,)).tolist()
    assert ops.philox(0, 0, (4,)).tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_replay_and_scatter_back() -> None:
    """A write through a chain of views, in NumPy's memory and as a pure value."""
    chains: list[list[tuple[str, dict[str, Any]]]] = [
        [],
        [("slice", {"starts": (1, 4), "stops": (3, -1), "steps": (1, -2)})],
        [
            ("permute", {"perm": (1, 0)}),
            ("slice", {"starts": (2, 0), "stops": (3, 4), "steps": (1, 1)}),
            ("reshape", {"shape": (4,)}),
            ("detach", {}),
        ],
        [
            ("reshape", {"shape": (2, 2, 5)}),
            ("diagonal", {"offset": 0, "axis1": 0, "axis2": 1}),
            ("slice", {"starts": (4, 0), "stops": (0, 1), "steps": (-3, 1)}),
        ],
        [("detach", {}), ("slice", {"starts": (0, 0), "stops": (0, 5), "steps": (1, 1)})],
    ]
    for chain in chains:
        x = numbers(4, 5)
        want = x.copy()
        view = want
        for name, attrs in chain:
            view = TABLE[name].array(view, **attrs)
        check_bits(evaluate(lambda x, c=chain: ops.replay(x, c), x), view, chain)
        value = numbers(*view.shape, seed=1)
        view[...] = value
        found = evaluate(lambda x, v, c=chain: ops.scatter_back(x, c, v), x, value)
        check_bits(found, want, chain)
    with pytest.raises(MutationError, match="broadcast"):
        evaluate(lambda x: ops.scatter_back(x, [("broadcast", {"shape": (2, 3)})], x), x)


def test_unbroadcast_sums_what_broadcasting_repeated() -> None:
    for shape, full in [((3,), (2, 3)), ((2, 1), (2, 3)), ((), (2, 3)), ((4, 1), (4, 0))]:
        x = np.ones(full)
        found = evaluate(lambda x, s=shape: ops.unbroadcast(x, s), x)
        assert found.shape == shape and (found == x.size / max(math.prod(shape), 1)).all()


# ---- errors -------------------------------------------------------------------------------------

F, N, B = S.float32, S.int64, S.bool_
BAD: list[tuple[str, list[tuple[S.DType, tuple[int, ...]]], dict[str, Any], type, str]] = [
    ("add", [(F, (2, 3)), (F, (4,))], {}, ShapeError, r"add.*\(2, 3\).*\(4,\)"),
    ("add", [(F, (2,)), (N, (2,))], {}, DTypeError, "add.*float32.*int64"),
    ("exp", [(N, (2,))], {}, DTypeError, "exp.*int64.*float"),
    ("logical_and", [(F, ()), (F, ())], {}, DTypeError, "logical_and.*float32"),
    ("where", [(F, ()), (F, ()), (F, ())], {}, DTypeError, "where.*bool.*float32"),
    ("where", [(B, ()), (F, ()), (N, ())], {}, DTypeError, "where.*float32.*int64"),
    ("sum", [(B, (2,))], {"axes": (0,)}, DTypeError, "sum.*bool"),
    ("sum", [(F, (2,))], {"axes": (1,)}, ShapeError, r"sum.*\(1,\).*\(2,\)"),
    ("sum", [(F, (2, 2))], {"axes": (1, 0)}, ShapeError, "sum.*axes"),
    ("amax", [(F, (2, 0))], {"axes": (1,)}, ShapeError, r"amax.*\(2, 0\).*no elements"),
    ("argmin", [(F, (0,))], {"axis": 0}, ShapeError, "argmin.*no elements"),
    ("argmax", [(F, ())], {"axis": 0}, ShapeError, "argmax.*no axis"),
    ("cumsum", [(B, (2,))], {"axis": 0}, DTypeError, "cumsum.*bool"),
    ("cumprod", [(F, (2,))], {"axis": 1}, ShapeError, "cumprod.*no axis 1"),
    ("argsort", [(F, (2,))], {"axis": 2, "descending": False}, ShapeError, "argsort"),
    ("reshape", [(F, (2, 3))], {"shape": (4,)}, ShapeError, "reshape.*6 elements"),
    ("permute", [(F, (2, 3))], {"perm": (0, 0)}, ShapeError, r"permute.*\(2, 3\)"),
    ("broadcast", [(F, (2,))], {"shape": (3,)}, ShapeError, r"broadcast.*\(2,\).*\(3,\)"),
    ("broadcast", [(F, (1, 2))], {"shape": (2,)}, ShapeError, "broadcast"),
    ("slice", [(F, (2,))], {"starts": (0,), "stops": (3,), "steps": (1,)}, ShapeError, "slice"),
    ("slice", [(F, (2,))], {"starts": (0,), "stops": (2,), "steps": (0,)}, ShapeError, "slice"),
    ("slice", [(F, (2,))], {"starts": (), "stops": (), "steps": ()}, ShapeError, "slice"),
    (
        "slice_scatter",
        [(F, (2,)), (F, (2,))],
        {"starts": (0,), "stops": (1,), "steps": (1,)},
        ShapeError,
        r"slice_scatter.*\(2,\).*\(1,\)",
    ),
    ("diagonal", [(F, (2,))], {"offset": 0, "axis1": 0, "axis2": 1}, ShapeError, "diagonal"),
    ("concat", [(F, (2, 3)), (F, (2, 4))], {"axis": 0}, ShapeError, r"concat.*\(2, 4\)"),
    ("concat", [(F, (2,)), (N, (2,))], {"axis": 0}, DTypeError, "concat.*int64"),
    ("concat", [(F, ())], {"axis": 0}, ShapeError, "concat"),
    ("concat", [], {"axis": 0}, ShapeError, "concat"),
    ("gather", [(F, (2,)), (F, (2,))], {"axes": (0,)}, IndexingError, "gather.*float32"),
    ("gather", [(F, (2,)), (B, (2,))], {"axes": (0,)}, IndexingError, "gather.*bool"),
    ("gather", [(F, (2,)), (N, (2,))], {"axes": (1,)}, IndexingError, r"gather.*\(2,\)"),
    ("gather", [(F, (2,))], {"axes": ()}, IndexingError, "gather"),
    (
        "scatter",
        [(F, (2,)), (F, (3,)), (N, (2,))],
        {"axes": (0,), "mode": "add"},
        ShapeError,
        r"scatter.*\(3,\).*\(2,\)",
    ),
    (
        "scatter",
        [(F, (2,)), (F, (2,)), (N, (2,))],
        {"axes": (0,), "mode": "mul"},
        DTypeError,
        "scatter.*mode",
    ),
    ("take_along", [(F, (2, 2)), (N, (2,))], {"axis": 0}, ShapeError, r"take_along.*\(2,\)"),
    ("take_along", [(F, (2, 2)), (N, (2, 3))], {"axis": 0}, ShapeError, "take_along"),
    (
        "put_along",
        [(F, (2,)), (F, (1,)), (N, (2,))],
        {"axis": 0, "mode": "set"},
        ShapeError,
        "put_along",
    ),
    ("dot", [(F, (2, 3)), (F, (4, 2))], {"spec": "ij,jk->ik"}, ShapeError, "dot.*'j'.*3.*4"),
    ("dot", [(F, (2,)), (F, (2, 2))], {"spec": "ij,jk->ik"}, ShapeError, r"dot.*\(2,\)"),
    ("dot", [(F, (2, 2)), (F, (2,))], {"spec": "ii,i->i"}, ShapeError, "dot.*spec"),
    ("dot", [(F, (2,)), (F, (2,))], {"spec": "i,i->k"}, ShapeError, "dot.*spec"),
    ("dot", [(F, (2,)), (N, (2,))], {"spec": "i,i->"}, DTypeError, "dot.*int64"),
    ("dot", [(B, (2,)), (B, (2,))], {"spec": "i,i->"}, DTypeError, "dot.*bool"),
    ("full", [], {"value": "a", "shape": (), "dtype": F}, DTypeError, "full"),
    ("full", [], {"value": -1, "shape": (), "dtype": S.uint8}, DTypeError, "full.*uint8"),
    ("full", [], {"value": math.nan, "shape": (), "dtype": N}, DTypeError, "full.*int64"),
    ("full", [], {"value": 1, "shape": (-1,), "dtype": N}, ShapeError, "full"),
    ("iota", [], {"size": -1, "dtype": N}, ShapeError, "iota"),
    ("random_bits", [(F, ()), (N, ())], {"ordinal": 0, "shape": ()}, DTypeError, "random_bits"),
    ("set_value", [(F, (2,)), (F, ())], {}, ShapeError, "set_value"),
    ("write", [(F, (2,)), (F, ())], {}, ShapeError, "write"),
    ("write", [(F, (2,)), (N, (2,))], {}, DTypeError, "write"),
]


@pytest.mark.parametrize("name,types,attrs,error,message", BAD)
def test_errors_name_op_and_types(
    name: str, types: Any, attrs: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        TABLE[name].infer([TensorType(d, s) for d, s in types], attrs)


@pytest.mark.parametrize("bad", [3, -4])
def test_indices_out_of_range(bad: int) -> None:
    x, index = np.zeros((3, 3)), np.array([[0, bad]])
    src = np.zeros((1, 2, 3))
    for call in [
        lambda: TABLE["gather"].array(x, index, axes=(0,)),
        lambda: TABLE["gather"].into(np.zeros((1, 2, 3)), x, index, axes=(0,)),  # type: ignore[misc]
        lambda: TABLE["gather"].array(x, index, axes=(1,)),
        lambda: TABLE["scatter"].array(x, src, index, axes=(0,), mode="set"),
        lambda: TABLE["scatter"].array(x, src, index, axes=(0,), mode="add"),
        lambda: TABLE["take_along"].array(x, index, axis=1),
        lambda: TABLE["put_along"].array(x, src[..., 0], index, axis=1, mode="set"),
        lambda: TABLE["put_along"].array(x, src[..., 0], index, axis=1, mode="add"),
    ]:
        with pytest.raises(
            IndexingError, match=f"index {bad} is out of range for axis . of size 3"
        ):
            call()


def test_names_are_exported_under_their_own_names() -> None:
    for name, primitive in TABLE.items():
        assert getattr(ops, name) is primitive and isinstance(primitive, Primitive)
