"""What a sample of a primitive is; samples of views, gathers and scatters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.op_graph import type_of
from tinyaot import shapes as S


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
    for within in (np.arange(n), picks(n, n, 2, dtype=np.int32) % n, np.array([-100, 0, -100])):
        yield Case(
            "within", (within,), lambda x, **_: x + 0, {"what": "it", "size": n, "ignored": -100}
        )
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
