"""Functions of shape. Views share their input's memory; joins and repeats make new memory.

A view is a chain of the primitives slice, permute, reshape, broadcast and diagonal. Whether a
reshape can be a view depends on strides alone (`reshape_geometry`), in eager and traced code alike.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Sequence
from typing import Any

from tinyaot import ops
from tinyaot.errors import ArgumentError, DTypeError, ShapeError
from tinyaot.functions.operands import (
    as_scalar,
    as_tensor,
    constant,
    dims_of,
    numpy_names,
    promoted,
)
from tinyaot.shapes import (
    Shape,
    int64,
    normalize_axes,
    normalize_axis,
    normalize_shape,
    reshape_geometry,
)
from tinyaot.tensor import Tensor

# ---- the same elements in another shape ---------------------------------------------------------


def reshape(x: Any, *shape: Any) -> Tensor:
    """x's elements, in row-major order, in `shape` (one size may be -1).

    A view where x's strides allow one, otherwise a copy. ShapeError if the sizes do not fit.
    """
    x = as_tensor("reshape", x)
    return _reshape(x, _target("reshape", x, shape))


def view(x: Any, *shape: Any) -> Tensor:
    """`reshape` that is always a view; ShapeError where the strides forbid one."""
    x = as_tensor("view", x)
    target = _target("view", x, shape)
    if reshape_geometry(x._geometry, target) is None:
        raise ShapeError(
            f"view: shape {x.shape} with these strides cannot be seen as {target} without a copy; "
            f"use reshape, or contiguous() first"
        )
    return ops.reshape(x, shape=target)


def _target(op: str, x: Tensor, shape: tuple[Any, ...]) -> Shape:
    sizes = dims_of(shape)
    try:
        sizes = tuple(operator.index(n) for n in sizes)
    except TypeError:
        raise DTypeError(f"{op}: sizes must be ints, got {sizes}") from None
    try:
        return normalize_shape(op, sizes, x.size)
    except ShapeError:
        raise ShapeError(
            f"{op}: a tensor of shape {x.shape} ({x.size} elements) does not fit into {sizes}; the "
            f"product of the sizes must stay the same, and one may be -1"
        ) from None


def _reshape(x: Tensor, shape: Shape) -> Tensor:
    if reshape_geometry(x._geometry, shape) is None:
        x = ops.copy(x)
    return ops.reshape(x, shape=shape)


def flatten(x: Any, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """The dims from `start_dim` to `end_dim` as one; a view where strides allow."""
    x = as_tensor("flatten", x)
    first = normalize_axis("flatten", start_dim, x.ndim)
    last = normalize_axis("flatten", end_dim, x.ndim)
    if first > last:
        raise ShapeError(f"flatten: start_dim {start_dim} lies after end_dim {end_dim} in {x.shape}")
    middle = math.prod(x.shape[first : last + 1])
    return _reshape(x, (*x.shape[:first], middle, *x.shape[last + 1 :]))


@numpy_names
def squeeze(x: Any, dim: Any = None) -> Tensor:
    """A view without the dims of size 1: all of them, or those in `dim` that have size 1."""
    x = as_tensor("squeeze", x)
    axes = normalize_axes("squeeze", dim, x.ndim)
    return ops.reshape(x, shape=tuple(n for a, n in enumerate(x.shape) if n != 1 or a not in axes))


@numpy_names
def unsqueeze(x: Any, dim: int) -> Tensor:
    """A view with a new dim of size 1 at position `dim`."""
    x = as_tensor("unsqueeze", x)
    axis = normalize_axis("unsqueeze", dim, x.ndim + 1)
    return ops.reshape(x, shape=(*x.shape[:axis], 1, *x.shape[axis:]))


# ---- order of the dims --------------------------------------------------------------------------


def transpose(x: Any, dim0: int, dim1: int) -> Tensor:
    """A view with two dims exchanged."""
    x = as_tensor("transpose", x)
    a = normalize_axis("transpose", dim0, x.ndim)
    b = normalize_axis("transpose", dim1, x.ndim)
    perm = list(range(x.ndim))
    if perm:
        perm[a], perm[b] = b, a
    return ops.permute(x, perm=tuple(perm))


def permute(x: Any, *dims: Any) -> Tensor:
    """A view with the dims in the order given."""
    x = as_tensor("permute", x)
    order = dims_of(dims)
    perm = tuple(normalize_axis("permute", d, x.ndim) for d in order)
    if sorted(perm) != list(range(x.ndim)):
        raise ShapeError(
            f"permute: {order} does not name each of the {x.ndim} dims of {x.shape} exactly once"
        )
    return ops.permute(x, perm=perm)


@numpy_names
def movedim(x: Any, source: Any, destination: Any) -> Tensor:
    """A view with the dims `source` (an int or several) moved to `destination`."""
    x = as_tensor("movedim", x)
    from_ = [normalize_axis("movedim", d, x.ndim) for d in _several(source)]
    to = [normalize_axis("movedim", d, x.ndim) for d in _several(destination)]
    if len(from_) != len(to) or len(set(from_)) != len(from_) or len(set(to)) != len(to):
        raise ShapeError(f"movedim: {source} to {destination} is no one-to-one move")
    perm = [a for a in range(x.ndim) if a not in from_]
    for position, axis in sorted(zip(to, from_)):
        perm.insert(position, axis)
    return ops.permute(x, perm=tuple(perm))


def _several(dim: Any) -> Sequence[Any]:
    return dim if isinstance(dim, (tuple, list)) else (dim,)


def reversed_dims(x: Tensor) -> Tensor:
    """A view with the dims in reverse order: `.T`."""
    return ops.permute(x, perm=tuple(range(x.ndim))[::-1])


def matrix_transpose(x: Tensor) -> Tensor:
    """A view with the last two dims exchanged: `.mT`."""
    if x.ndim < 2:
        raise ShapeError(f"mT: shape {x.shape} has no two dims to exchange")
    return transpose(x, -2, -1)


# ---- repeated elements --------------------------------------------------------------------------


def broadcast_to(x: Any, *shape: Any) -> Tensor:
    """A view of `shape` in which dims of size 1, and new leading ones, repeat x (stride 0).

    It cannot be written to where it repeats. ShapeError if x does not broadcast to `shape`.
    """
    return _expanded("broadcast_to", as_tensor("broadcast_to", x), dims_of(shape))


def expand(x: Any, *sizes: Any) -> Tensor:
    """`broadcast_to`, where a size of -1 keeps x's own."""
    x, sizes = as_tensor("expand", x), dims_of(sizes)
    lead = len(sizes) - x.ndim
    kept = tuple(
        x.shape[a - lead] if n == -1 and a >= lead else n for a, n in enumerate(sizes)
    )
    return _expanded("expand", x, kept)


def _expanded(op: str, x: Tensor, shape: tuple[Any, ...]) -> Tensor:
    shape = tuple(operator.index(n) for n in shape)
    lead = len(shape) - x.ndim
    fits = lead >= 0 and builtins.all(
        have in (1, want) for have, want in zip(x.shape, shape[lead:])
    )
    if not fits or builtins.any(n < 0 for n in shape):
        raise ShapeError(
            f"{op}: shape {x.shape} does not broadcast to {shape}: aligned from the right, each "
            f"size must be equal or 1; unsqueeze or reshape it first"
        )
    if x.shape == shape[lead:] and builtins.all(n == 1 for n in shape[:lead]):
        return ops.reshape(x, shape=shape)  # nothing repeats, so it can be written to
    return ops.broadcast(x, shape=shape)


def repeat(x: Any, *sizes: Any) -> Tensor:
    """x repeated `sizes[i]` times along each dim, as tiles (torch's repeat, NumPy's tile)."""
    x, times = as_tensor("repeat", x), dims_of(sizes)
    if len(times) < x.ndim:
        raise ShapeError(f"repeat: {times} must give a count for each of the dims of {x.shape}")
    if builtins.any(n < 0 for n in times):
        raise ShapeError(f"repeat: counts must not be negative, got {times}")
    own = (1,) * (len(times) - x.ndim) + x.shape
    paired = [size for n, m in zip(times, own) for size in (n, m)]
    apart = ops.reshape(x, shape=tuple(size for m in own for size in (1, m)))
    tiles = ops.copy(ops.broadcast(apart, shape=tuple(paired)))
    return ops.reshape(tiles, shape=tuple(n * m for n, m in zip(times, own)))


# ---- parts --------------------------------------------------------------------------------------


def part(x: Tensor, axis: int, start: int, stop: int, step: int = 1) -> Tensor:
    """A view of some of the elements along an axis, normalised as `slice.indices` gives it."""
    starts, stops, steps = [0] * x.ndim, list(x.shape), [1] * x.ndim
    starts[axis], stops[axis], steps[axis] = start, stop, step
    return ops.slice(x, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))


@numpy_names
def split(x: Any, split_size: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Views of consecutive parts along `dim`: of `split_size` elements each (the last may be
    smaller), or of the sizes in a list, whose sum must be the dim's size."""
    x = as_tensor("split", x)
    axis = _real_axis("split", x, dim)
    size = x.shape[axis]
    if isinstance(split_size, (tuple, list)):
        sizes = [operator.index(n) for n in split_size]
        if builtins.sum(sizes) != size or builtins.any(n < 0 for n in sizes):
            raise ShapeError(
                f"split: sizes {tuple(sizes)} do not add up to {size}, the size of dim {dim} of "
                f"shape {x.shape}"
            )
    else:
        step = operator.index(split_size)
        if step <= 0:
            raise ShapeError(f"split: the size of a part must be positive, got {step}")
        sizes = [builtins.min(step, size - at) for at in range(0, size, step)] or [0]
    parts, at = [], 0
    for n in sizes:
        parts.append(part(x, axis, at, at + n))
        at += n
    return tuple(parts)


@numpy_names
def chunk(x: Any, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most `chunks` views of equal size along `dim` (the last may be smaller)."""
    x = as_tensor("chunk", x)
    if chunks <= 0:
        raise ShapeError(f"chunk: the number of chunks must be positive, got {chunks}")
    size = x.shape[_real_axis("chunk", x, dim)]
    return split(x, -(-size // chunks) or 1, dim)


@numpy_names
def unbind(x: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """A view of each element along `dim`, without that dim."""
    x = as_tensor("unbind", x)
    axis = _real_axis("unbind", x, dim)
    shape = x.shape[:axis] + x.shape[axis + 1 :]
    return tuple(
        ops.reshape(part(x, axis, i, i + 1), shape=shape) for i in range(x.shape[axis])
    )


def _real_axis(op: str, x: Tensor, dim: Any) -> int:
    if x.ndim == 0:
        raise ShapeError(f"{op}: a tensor without dims has no parts; reshape it to (1,) first")
    return normalize_axis(op, dim, x.ndim)


def diagonal(x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """A view of the diagonal of two dims, as the last dim; `offset` > 0 lies above it."""
    x = as_tensor("diagonal", x)
    a, b = normalize_axis("diagonal", dim1, x.ndim), normalize_axis("diagonal", dim2, x.ndim)
    if a == b or x.ndim < 2:
        raise ShapeError(f"diagonal: needs two different dims of {x.shape}, got {dim1} and {dim2}")
    return ops.diagonal(x, offset=operator.index(offset), axis1=a, axis2=b)


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
    axis = _real_axis(op, tensors[0], dim)
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


def pad(x: Any, pad: Sequence[int], mode: str = "constant", value: Any = 0) -> Tensor:
    """x with `value` around it: `pad` is (left, right) of the last dim, then of the one before ...

    A negative amount crops. Only mode "constant".
    """
    x = as_tensor("pad", x)
    if mode != "constant":
        raise ArgumentError(f"pad: mode must be 'constant', got {mode!r}; cat makes other borders")
    amounts = [operator.index(n) for n in pad]
    if len(amounts) % 2 or len(amounts) > 2 * x.ndim:
        raise ShapeError(
            f"pad: {tuple(amounts)} must hold a pair (before, after) for at most each of the "
            f"{x.ndim} dims of {x.shape}, the last dim first"
        )
    before, after = [0] * x.ndim, [0] * x.ndim
    for i in range(len(amounts) // 2):
        before[x.ndim - 1 - i], after[x.ndim - 1 - i] = amounts[2 * i], amounts[2 * i + 1]
    if builtins.any(n + b + a < 0 for n, b, a in zip(x.shape, before, after)):
        raise ShapeError(f"pad: {tuple(amounts)} crops more than there is of shape {x.shape}")
    ones = (1,) * x.ndim
    if builtins.min(amounts, default=0) < 0:
        lows = tuple(builtins.max(-b, 0) for b in before)
        highs = tuple(n - builtins.max(-a, 0) for n, a in zip(x.shape, after))
        x = ops.slice(x, starts=lows, stops=highs, steps=ones)
    starts = tuple(builtins.max(b, 0) for b in before)
    shape = tuple(s + n + builtins.max(a, 0) for s, n, a in zip(starts, x.shape, after))
    if shape == x.shape:
        return ops.copy(x)
    around = constant(as_scalar("pad", value, x.dtype), x.dtype, shape)
    stops = tuple(s + n for s, n in zip(starts, x.shape))
    return ops.slice_scatter(around, x, starts=starts, stops=stops, steps=ones)


# ---- other orders of the elements ---------------------------------------------------------------


def flip(x: Any, *dims: Any) -> Tensor:
    """A copy with the elements in reverse order along `dims`."""
    x = as_tensor("flip", x)
    axes = normalize_axes("flip", dims_of(dims), x.ndim)
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
        flat = roll(_reshape(x, (x.size,)), shifts, 0)
        return ops.reshape(flat, shape=x.shape)
    amounts, axes = _several(shifts), _several(dims)
    if len(amounts) != len(axes):
        raise ShapeError(f"roll: {len(amounts)} shifts for {len(axes)} dims; give one for each dim")
    rolled = ops.copy(x)
    for amount, dim in zip(amounts, axes):
        axis = _real_axis("roll", x, dim)
        size = x.shape[axis]
        cut = -operator.index(amount) % size if size else 0
        if cut:
            tail, head = part(rolled, axis, cut, size), part(rolled, axis, 0, cut)
            rolled = ops.concat(tail, head, axis=axis)
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
    kept = keeps(ops.add(row, operator.index(diagonal)), column)
    return ops.where(kept, x, as_scalar(op, 0, x.dtype))


# ---- copies and dtypes --------------------------------------------------------------------------


def clone(x: Any) -> Tensor:
    """A copy in C order, on the tape."""
    return ops.copy(as_tensor("clone", x))


def contiguous(x: Any) -> Tensor:
    """x itself when its elements lie in C order, otherwise a copy."""
    x = as_tensor("contiguous", x)
    return x if x.is_contiguous() else ops.copy(x)
