"""Indices that are in range: what is said of one that is not, and `within`, a check as a map.

A gather checks its indices. What finds a class by comparing it with 0, 1, 2, ... reads at no
computed place, and so says with `within` which integers there may be: a check that is part of the
dataflow is fused, moved and recomputed like any other map, and dropped only with what reads it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tinyaot.errors import DTypeError, IndexingError
from tinyaot.location import Loc
from tinyaot.ops.core import Primitive, declare, elements
from tinyaot.shapes import Shape, TensorType

CHECKED = frozenset({"gather", "take_along", "scatter", "put_along", "within"})  # may raise it
_BLOCK = 1 << 12  # elements looked at one by one at a time: bounds the memory that this takes


def out_of_range(index: int, size: int, at: Loc | None = None) -> IndexingError:
    """The error for an index that is not in -size .. size - 1. `at`: the user's line, where that is
    not the one that runs. The user wrote `x[i]`: neither an op's name (functions that take indices
    say by `within` what is wrong) nor the axis of what is gathered from, a view of x by the rest of
    the index, would help."""
    wanted = f"it must lie in {-size} .. {size - 1}" if size else "there is nothing to choose from"
    return IndexingError(
        f"index: {index} is out of range for a dim of size {size}: {wanted}", at=at
    )


def not_within(
    what: str, index: int, size: int, ignored: int, at: Loc | None = None
) -> IndexingError:
    """The error for an element that `within` does not let through."""
    wanted = f"it must lie in 0 .. {size - 1}" if size else "there is nothing to choose from"
    other = f", or be {ignored} (ignored)" if not 0 <= ignored < size else ""
    return IndexingError(f"{what} {index} is out of range: {wanted}{other}", at=at)


def check_ranges(indices: Sequence[np.ndarray], shape: Shape, axes: Sequence[int]) -> None:
    """IndexingError for an index that is not in -size .. size - 1."""
    for index, axis in zip(indices, axes, strict=True):
        if not index.size:
            continue
        low, high, size = int(index.min()), int(index.max()), shape[axis]
        if low < -size or high >= size:
            raise out_of_range(low if low < -size else high, size)


def _within_type(x: TensorType, what: str, size: int, ignored: int) -> TensorType:
    if x.dtype.kind != "int":
        raise DTypeError(f"{what}: indices must be integers, got {x.dtype.name}; cast first")
    return x


def _check_within(x: np.ndarray, what: str, size: int, ignored: int) -> None:
    if not x.size or 0 <= int(x.min()) <= int(x.max()) < size:
        return
    flat = x.reshape(-1)
    for start in range(0, x.size, _BLOCK):
        part = flat[start : start + _BLOCK]
        bad = part[((part < 0) | (part >= size)) & (part != ignored)]
        if bad.size:
            raise not_within(what, int(bad[0]), size, ignored)


def _within(x: np.ndarray, what: str, size: int, ignored: int) -> np.ndarray:
    _check_within(x, what, size, ignored)
    return np.array(x, order="C")


def _within_into(out: np.ndarray, x: np.ndarray, what: str, size: int, ignored: int) -> None:
    _check_within(x, what, size, ignored)
    np.copyto(out, x)


within: Primitive = declare(
    "within",
    "map",
    _within_type,
    _within,
    _within_into,
    None,
    elements,
    doc="x itself, every element of which is in 0 .. size - 1 or equal to `ignored`; `what` "
    "names it to the user. Otherwise an IndexingError.",
)
