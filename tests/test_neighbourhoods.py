"""Functions among others: a map before, a map after, a broadcast and a reduction beside them.

A compiler that fuses sees a function differently by what stands next to it. Each function of the
table gets neighbours drawn by its number, and many of them make one program, so that a C compiler
is called a few times only; every output and gradient is compared with eager code. No warning may
come up anywhere.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import tinyaot as ta
from tests.agree import BACKENDS
from tests.case import Case, outputs, tensors
from tests.function_cases import BINARY, UNARY, positive
from tests.functional_cases import EVERY
from tinyaot import Tensor
from tinyaot.errors import TinyaotError

pytestmark = pytest.mark.filterwarnings("error")
on_backends = pytest.mark.parametrize("backend", BACKENDS)

# Maps of an operand that keep its sign, its order and (nearly) its range.
BEFORE: list[Callable[[Any], Any]] = [
    lambda x: x * 0.875,
    lambda x: x * 0.5 + x * 0.25,
    lambda x: ta.maximum(x, -50.0) * 1.125,
    lambda x: ta.where(x > 0, x, x * 0.5),
    lambda x: ta.neg(-x) * ta.full_like(x, 0.75),
]
AFTER: list[Callable[[Any], Any]] = [
    lambda y: y * 2 - 1,
    lambda y: ta.relu(y) + y * 0.5,
    lambda y: ta.clamp(y, -30.0, 30.0) * 0.5,
    lambda y: ta.where(y > 1, y * 0.5, -y),
    lambda y: y * y * 0.125,
]


def surrounded(case: Case, xs: Sequence[Tensor], seed: int) -> list[Tensor]:
    """The function between neighbours, all of which are outputs."""
    rng = np.random.default_rng(seed)
    before, after = BEFORE[rng.integers(len(BEFORE))], AFTER[rng.integers(len(AFTER))]
    with_neighbours = [before(x) if x.dtype.is_floating else x for x in xs]
    found = [x.sum(-1) if x.ndim else x * 1 for x in with_neighbours if x.dtype.is_floating]
    for y in outputs(case.function(*with_neighbours)):
        if y.dtype.is_floating:
            z = after(y)
            found += [z, z[None] * ta.tensor([1.0, -0.5]).reshape(2, *[1] * y.ndim), y.sum()]
        else:
            found += [y.logical_not() if y.dtype is ta.bool else y * 2 + 1, y.sum()]
    return found


def run(cases: list[Case], dtype: Any, through: Callable[[Any], Any], gradients: bool) -> Any:
    """Outputs of all the cases as one program, and the gradients of their sum by each operand;
    and beside these the names of the cases they are of."""
    counts = [len(c.operands) for c in cases]

    def together(*xs: Tensor) -> list[list[Tensor]]:
        found, start = [], 0
        for case, count in zip(cases, counts):
            seed = zlib.crc32(case.name.encode())
            found.append(surrounded(case, xs[start : start + count], seed))
            start += count
        return found

    ta.manual_seed(5)
    xs = [x for c in cases for x in tensors(c.operands, dtype)]
    xs = [x.requires_grad_() if gradients and x.dtype.is_floating else x for x in xs]
    groups = through(together)(*xs)
    ys = [y for group in groups for y in group]
    of = [c.name for c, group in zip(cases, groups) for _ in group]
    moving = [x for x in xs if x.requires_grad]
    if not moving:
        return ys, of
    of += [c.name for c, n in zip(cases, counts) for _ in range(n)]
    pulled = [y for y in ys if y.requires_grad]
    found = iter(ta.grad(pulled, moving, [ta.ones_like(y) for y in pulled], allow_unused=True))
    return ys + [next(found) if x.requires_grad else None for x in xs], of


def agree(cases: list[Case], dtype: Any, backend: str, gradients: bool, rtol: float) -> None:
    eager, names = run(cases, dtype, lambda f: f, gradients)
    # quicker on NumPy; what to recompute is chosen, and done, in C
    partition = "save_all" if backend == "numpy" else "min_cut"
    through = lambda f: ta.compile(f, backend=backend, partition=partition)  # noqa: E731
    compiled, _ = run(cases, dtype, through, gradients)
    for a, b, name in zip(compiled, eager, names, strict=True):
        assert (a is None) == (b is None), name
        if a is not None and b is not None:
            assert a.dtype is b.dtype
            got, want = a.detach().double().numpy(), b.detach().double().numpy()
            np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol, err_msg=name)


def one_of_each(cases: list[Case]) -> list[Case]:
    """One case of each public name, drawn by the name."""
    found: dict[str, list[Case]] = {}
    for case in cases:
        found.setdefault(case.public, []).append(case)
    return [group[zlib.crc32(name.encode()) % len(group)] for name, group in found.items()]


TRACED = [c for c in EVERY if not c.traced]
SOME = one_of_each(TRACED)


@on_backends
@pytest.mark.parametrize("part", range(3))
def test_functions_among_neighbours(backend: str, part: int) -> None:
    agree(SOME[part::3], ta.float32, backend, True, 2e-5)


@on_backends
@pytest.mark.parametrize(("part", "dtype"), [(0, ta.float16), (1, ta.bfloat16)], ids=str)
def test_halves_among_neighbours(backend: str, part: int, dtype: Any) -> None:
    """Each primitive rounds once, so fused or not the numbers are the same but for the order of
    sums, which are made in float32."""
    cases = [c for c in SOME[part::2] if takes(c, dtype)]
    assert len(cases) > 75
    agree(cases, dtype, backend, False, 2e-3 if dtype is ta.float16 else 2e-2)


def takes(case: Case, dtype: Any) -> bool:
    """Whether the function takes the dtype."""
    try:
        surrounded(case, tensors(case.operands, dtype), 0)
    except TinyaotError:
        return False
    return True


# ---- other shapes and strides -------------------------------------------------------------------

VIEWS: dict[str, Callable[[Any], Any]] = {
    "backwards": lambda x: x[::-1, ::-2],
    "transposed": lambda x: x.T,
    "0-d": lambda x: x[0, 0],
    "size 1": lambda x: x[:1, 1:2],
    "nothing": lambda x: x[:0],
    "column": lambda x: x[:, 1],
}
REDUCTIONS = (
    "sum mean prod amax amin std logsumexp norm softmax cumsum cumprod argmax any"
).split()


def of_shapes() -> list[tuple[str, Callable[[Any, Any], Any]]]:
    """Every map, binary and reduction of every view, as functions of two matrices."""
    found: list[tuple[str, Callable[[Any, Any], Any]]] = []
    for name, view in VIEWS.items():
        for op, *_ in UNARY:
            found.append((f"{op} {name}", lambda x, y, f=op, v=view: getattr(ta, f)(v(x))))
        for op, *_ in BINARY:
            found.append((f"{op} {name}", lambda x, y, f=op, v=view: getattr(ta, f)(v(x), v(y))))
        for op in REDUCTIONS:
            if name == "nothing" and op in ("amax", "amin", "argmax", "std"):
                continue
            found.append((f"{op} {name}", lambda x, y, f=op, v=view: getattr(ta, f)(v(x), 0)))
    return found


@on_backends
def test_views_of_every_kind(backend: str) -> None:
    """As arguments that are views, and as views taken inside."""
    functions = of_shapes()
    x, y = ta.tensor(positive(3, 4)), ta.tensor(positive(3, 4))

    def together(x: Tensor, y: Tensor) -> list[Tensor]:
        return [f(x, y).clone() for _, f in functions]

    compiled = ta.compile(together, backend=backend)
    for a, b in ((x, y), (x[::-1], ta.tensor(positive(6, 8))[::2, ::-2])):
        for (name, f), got in zip(functions, compiled(a, b), strict=True):
            want = f(a, b)
            assert (got.dtype, got.shape) == (want.dtype, want.shape), name
            np.testing.assert_allclose(
                got.numpy(), want.numpy(), rtol=1e-12, atol=1e-14, err_msg=name
            )


# ---- integers -----------------------------------------------------------------------------------

INTEGERS = [ta.int8, ta.int16, ta.int32, ta.int64, ta.uint8]


def arithmetic(x: Any, y: Any, xp: Any) -> list[Any]:
    """Chains that overflow, in tensors or in NumPy's arrays."""
    z = x * y + x
    return [z, z * z - y, -z, x + 100, z // 3, z % 7, abs(z), xp.maximum(z, x) * 2, z * z * z]


@on_backends
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_wrap_as_numpys_do(backend: str, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    bounds = np.iinfo(dtype.numpy)
    x, y = (rng.integers(bounds.min, bounds.max, (4, 5), dtype.numpy) for _ in range(2))

    def f(x: Tensor, y: Tensor) -> list[Tensor]:
        return [*arithmetic(x, y, ta), (x * y).sum(0), x.cumsum(1), (x * 3).amax()]

    with np.errstate(all="ignore"):
        want = [*arithmetic(x, y, np), (x * y).sum(0, np.int64), x.cumsum(1, np.int64)]
        want.append((x * 3).max())
    for run in (f, ta.compile(f, backend=backend)):
        for got, expected in zip(run(ta.tensor(x), ta.tensor(y)), want, strict=True):
            assert got.numpy().dtype == expected.dtype
            np.testing.assert_array_equal(got.numpy(), expected)


@on_backends
def test_int64_is_exact(backend: str) -> None:
    """Numbers that no float holds."""
    x = ta.tensor([2**53 + 1, 2**62 - 1, -(2**60) - 1])

    def f(x: Tensor) -> list[Tensor]:
        picked = x[ta.tensor([2, 0])]
        products = ta.matmul(x[None], ta.tensor([[1], [0], [2]]))
        return [x * 1 + 1, x.sum(), x.cumsum(0), x.max(), x // 3, x % 1000, picked, products]

    values = x.tolist()
    want = [
        *([v + 1 for v in values], sum(values), list(np.cumsum(values)), max(values)),
        *([v // 3 for v in values], [v % 1000 for v in values], [values[2], values[0]]),
        [[values[0] + 2 * values[2]]],
    ]
    for run in (f, ta.compile(f, backend=backend)):
        assert [y.tolist() for y in run(x)] == want


@on_backends
@pytest.mark.parametrize("dtype", INTEGERS[:4], ids=str)
def test_integers_to_negative_powers_are_cut(backend: str, dtype: Any) -> None:
    x = ta.tensor([2, 1, -1, -1, 0, 3, -2, 0], dtype=dtype)
    y = ta.tensor([-1, -2, -1, -2, -1, -3, -1, 0], dtype=dtype)
    for f in (ta.pow, ta.compile(lambda x, y: x**y, backend=backend)):
        assert f(x, y).tolist() == [0, 1, -1, 1, 0, 0, 0, 1]


@on_backends
def test_integers_among_neighbours(backend: str) -> None:
    """Every function that takes int32, on operands rounded to it."""
    cases = [_of_integers(c) for c in SOME]
    agree([c for c in cases if takes(c, ta.float32)], ta.float32, backend, False, 2e-5)


def _of_integers(case: Case) -> Case:
    def rounded(a: np.ndarray) -> np.ndarray:
        return np.round(3 * np.where(np.isfinite(a), a, 0)).astype(np.int32)

    return case._replace(
        operands=tuple(rounded(a) if a.dtype.kind == "f" else a for a in case.operands)
    )
