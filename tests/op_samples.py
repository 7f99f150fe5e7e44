"""Samples of every primitive, each with its meaning in NumPy written another way."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy import special

from tests.op_graph import type_of
from tests.op_samples_index import Case, index_cases, numbers, view_cases
from tinyaot.errors import DTypeError
from tinyaot.ops import TABLE
from tinyaot.shapes import TensorType, dtype_of


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
