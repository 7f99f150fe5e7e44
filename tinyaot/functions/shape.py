"""Functions that give the elements of tensors another shape or order in new memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinyaot import ops
from tinyaot.errors import ArgumentError, ShapeError
from tinyaot.functions.operands import (
    as_scalar,
    as_tensor,
    constant,
    dims_of,
    numpy_names,
    promoted,
)
from tinyaot.functions.views import real_axis, reshaped, several, unsqueeze
from tinyaot.shapes import as_int, int64, normalize_axes, normalize_axis
from tinyaot.tensor import Tensor

# ---- joins --------------------------------------------------------------------------------------


@numpy_names
def cat(tensors: Sequence[Any], dim: int = 0) -> Tensor:
    """The tensors one after another along an existing `dim`; dtypes are promoted."""
    return _joined("cat", _tensors("cat", tensors), dim)


def _tensors(op: str, tensors: Sequence[Any]) -> list[Any]:
    found = list(tensors)
    if not found:
        raise ShapeError(f"{op}: needs at least one tensor, got none")
    return promoted(op, *(as_tensor(op, t) for t in found))


def _joined(op: str, tensors: list[Any], dim: int) -> Tensor:
    shapes = [t.shape for t in tensors]
    if not all(shapes):
        raise ShapeError(f"{op}: a tensor without dims cannot be joined; use stack")
    axis = real_axis(op, tensors[0], dim)
    for shape in shapes:
        rest = shape[:axis] + shape[axis + 1 :]
        if len(shape) != len(shapes[0]) or rest != shapes[0][:axis] + shapes[0][axis + 1 :]:
            raise ShapeError(
                f"{op}: shapes {shapes[0]} and {shape} must be equal but for dim {axis}; pad or "
                f"reshape one of them"
            )
    return ops.concat(*tensors, axis=axis)


@numpy_names
def stack(tensors: Sequence[Any], dim: int = 0) -> Tensor:
    """Tensors of one shape along a new `dim`; dtypes are promoted."""
    found = _tensors("stack", tensors)
    for t in found:
        if t.shape != found[0].shape:
            raise ShapeError(
                f"stack: shapes {found[0].shape} and {t.shape} must be equal; use cat to join "
                f"different sizes"
            )
    axis = normalize_axis("stack", dim, found[0].ndim + 1)
    return ops.concat(*(unsqueeze(t, axis) for t in found), axis=axis)


def repeat(x: Any, *sizes: Any) -> Tensor:
    """x repeated `sizes[i]` times along each dim, as tiles (torch's repeat, NumPy's tile)."""
    x, times = as_tensor("repeat", x), tuple(as_int("repeat", n, "count") for n in dims_of(sizes))
    if len(times) < x.ndim:
        raise ShapeError(f"repeat: {times} must give a count for each of the dims of {x.shape}")
    if any(n < 0 for n in times):
        raise ShapeError(f"repeat: counts must not be negative, got {times}")
    own = (1,) * (len(times) - x.ndim) + x.shape
    paired = [size for n, m in zip(times, own) for size in (n, m)]
    apart = ops.reshape(x, shape=tuple(size for m in own for size in (1, m)))
    tiles = ops.copy(ops.broadcast(apart, shape=tuple(paired)))
    return ops.reshape(tiles, shape=tuple(n * m for n, m in zip(times, own)))


def pad(x: Any, pad: Sequence[int], mode: str = "constant", value: Any = 0) -> Tensor:
    """x with `value` around it: `pad` is (left, right) of the last dim, then of the one before ...

    A negative amount crops. Only mode "constant".
    """
    x = as_tensor("pad", x)
    if mode != "constant":
        raise ArgumentError(f"pad: mode must be 'constant', got {mode!r}; cat makes other borders")
    amounts = [as_int("pad", n, "amount") for n in pad]
    if len(amounts) % 2 or len(amounts) > 2 * x.ndim:
        raise ShapeError(
            f"pad: {tuple(amounts)} must hold a pair (before, after) for at most each of the "
            f"{x.ndim} dims of {x.shape}, the last dim first"
        )
    before, after = [0] * x.ndim, [0] * x.ndim
    for i in range(len(amounts) // 2):
        before[x.ndim - 1 - i], after[x.ndim - 1 - i] = amounts[2 * i], amounts[2 * i + 1]
    if any(n + min(b, 0) + min(a, 0) < 0 for n, b, a in zip(x.shape, before, after)):
        raise ShapeError(f"pad: {tuple(amounts)} crops more than there is of shape {x.shape}")
    ones = (1,) * x.ndim
    if min(amounts, default=0) < 0:
        lows = tuple(max(-b, 0) for b in before)
        highs = tuple(n - max(-a, 0) for n, a in zip(x.shape, after))
        x = ops.slice(x, starts=lows, stops=highs, steps=ones)
    starts = tuple(max(b, 0) for b in before)
    shape = tuple(s + n + max(a, 0) for s, n, a in zip(starts, x.shape, after))
    if shape == x.shape:
        return ops.copy(x)
    around = constant(as_scalar("pad", value, x.dtype), x.dtype, shape)
    stops = tuple(s + n for s, n in zip(starts, x.shape))
    return ops.slice_scatter(around, x, starts=starts, stops=stops, steps=ones)


# ---- other orders of the elements ---------------------------------------------------------------


@numpy_names
def flip(x: Any, *each: Any, dims: Any = None) -> Tensor:
    """A copy with the elements in reverse order along the dims: `flip(x, 0, 1)` or
    `flip(x, (0, 1))`, and all of them by default."""
    x = as_tensor("flip", x)
    axes = normalize_axes("flip", dims_of(each) if each else dims, x.ndim)
    starts = tuple(n - 1 if a in axes else 0 for a, n in enumerate(x.shape))
    stops = tuple(-1 if a in axes else n for a, n in enumerate(x.shape))
    steps = tuple(-1 if a in axes else 1 for a in range(x.ndim))
    return ops.copy(ops.slice(x, starts=starts, stops=stops, steps=steps))


@numpy_names
def roll(x: Any, shifts: Any, dims: Any = None) -> Tensor:
    """A copy with the elements moved by `shifts` along `dims` (flattened, for None), those that
    fall off at the end coming in at the start."""
    x = as_tensor("roll", x)
    if dims is None:
        flat = roll(reshaped(x, (x.size,)), shifts, 0)
        return ops.reshape(flat, shape=x.shape)
    amounts, axes = several(shifts), several(dims)
    if len(amounts) != len(axes):
        raise ShapeError(f"roll: {len(amounts)} shifts for {len(axes)} dims; give one for each dim")
    rolled = ops.copy(x)
    for amount, dim in zip(amounts, axes):
        axis = real_axis("roll", x, dim)
        size = x.shape[axis]
        cut = -as_int("roll", amount, "shift") % size if size else 0
        if cut:
            tail = ops.slice_axis(rolled, axis, cut, size)
            rolled = ops.concat(tail, ops.slice_axis(rolled, axis, 0, cut), axis=axis)
    return rolled


def tril(x: Any, diagonal: int = 0) -> Tensor:
    """x on and below a diagonal of the last two dims, 0 above it."""
    return _triangle("tril", x, diagonal, ops.ge)


def triu(x: Any, diagonal: int = 0) -> Tensor:
    """x on and above a diagonal of the last two dims, 0 below it."""
    return _triangle("triu", x, diagonal, ops.le)


def _triangle(op: str, x: Any, diagonal: int, keeps: Any) -> Tensor:
    x = as_tensor(op, x)
    if x.ndim < 2:
        raise ShapeError(f"{op}: needs at least two dims, got shape {x.shape}")
    rows, columns = x.shape[-2:]
    row = ops.reshape(ops.iota(size=rows, dtype=int64), shape=(rows, 1))
    column = ops.iota(size=columns, dtype=int64)
    kept = keeps(ops.add(row, as_int(op, diagonal, "diagonal")), column)
    return ops.where(kept, x, as_scalar(op, 0, x.dtype))


# ---- copies and dtypes --------------------------------------------------------------------------


def clone(x: Any) -> Tensor:
    """A copy in C order, on the tape."""
    return ops.copy(as_tensor("clone", x))


def contiguous(x: Any) -> Tensor:
    """x itself when its elements lie in C order, otherwise a copy."""
    x = as_tensor("contiguous", x)
    return x if x.is_contiguous() else ops.copy(x)
