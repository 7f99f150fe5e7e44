"""Views: other shapes of the same memory.

A view is a chain of the primitives slice, permute, reshape, broadcast and diagonal; a write through
it reaches the tensor it was taken of. Whether a reshape can be a view depends on strides alone
(`reshape_geometry`), in eager and traced code alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tinyaot import ops
from tinyaot.errors import ShapeError
from tinyaot.functions.operands import as_tensor, dims_of, numpy_names
from tinyaot.shapes import (
    Shape,
    as_int,
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
    return reshaped(x, _target("reshape", x, shape))


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
    sizes = tuple(as_int(op, n) for n in sizes)
    if math.prod(sizes) == x.size and min(sizes, default=0) >= 0:
        return sizes
    try:
        return normalize_shape(op, sizes, x.size)
    except ShapeError:
        raise ShapeError(
            f"{op}: a tensor of shape {x.shape} ({x.size} elements) does not fit into {sizes}; the "
            f"product of the sizes must stay the same, and one may be -1"
        ) from None


def reshaped(x: Tensor, shape: Shape) -> Tensor:
    """x in a shape known to fit, as a view or through a copy."""
    if not _is_dense(x) and reshape_geometry(x._geometry, shape) is None:
        x = ops.copy(x)
    return ops.reshape(x, shape=shape)


def _is_dense(x: Tensor) -> bool:
    """Whether x is in C order, so that any reshape is a view; asked of NumPy, in eager mode."""
    data = x._data
    return type(data) is np.ndarray and data.flags.c_contiguous


def flatten(x: Any, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """The dims from `start_dim` to `end_dim` as one; a view where strides allow."""
    x = as_tensor("flatten", x)
    first = normalize_axis("flatten", start_dim, x.ndim)
    last = normalize_axis("flatten", end_dim, x.ndim)
    if first > last:
        raise ShapeError(
            f"flatten: start_dim {start_dim} lies after end_dim {end_dim} in {x.shape}"
        )
    middle = math.prod(x.shape[first : last + 1])
    return reshaped(x, (*x.shape[:first], middle, *x.shape[last + 1 :]))


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


@numpy_names
def permute(x: Any, *each: Any, dims: Any = ()) -> Tensor:
    """A view with the dims in the order given: `permute(x, 1, 0)` or `permute(x, (1, 0))`."""
    x = as_tensor("permute", x)
    order = dims_of(each) if each else tuple(dims)
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
    from_ = [normalize_axis("movedim", d, x.ndim) for d in several(source)]
    to = [normalize_axis("movedim", d, x.ndim) for d in several(destination)]
    if len(from_) != len(to) or len(set(from_)) != len(from_) or len(set(to)) != len(to):
        raise ShapeError(f"movedim: {source} to {destination} is not a one-to-one move")
    perm = [a for a in range(x.ndim) if a not in from_]
    for position, axis in sorted(zip(to, from_)):
        perm.insert(position, axis)
    return ops.permute(x, perm=tuple(perm))


def several(dim: Any) -> Sequence[Any]:
    """One dim, or several, as a sequence."""
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
    return expanded("broadcast_to", as_tensor("broadcast_to", x), dims_of(shape))


def expand(x: Any, *sizes: Any) -> Tensor:
    """`broadcast_to`, where a size of -1 keeps x's own."""
    x, sizes = as_tensor("expand", x), tuple(as_int("expand", n) for n in dims_of(sizes))
    lead = len(sizes) - x.ndim
    kept = tuple(x.shape[a - lead] if n == -1 and a >= lead else n for a, n in enumerate(sizes))
    return expanded("expand", x, kept)


def expanded(op: str, x: Tensor, shape: tuple[Any, ...]) -> Tensor:
    """x broadcast to `shape`; ShapeError if it does not."""
    shape = tuple(as_int(op, n) for n in shape)
    lead = len(shape) - x.ndim
    fits = lead >= 0 and all(have in (1, want) for have, want in zip(x.shape, shape[lead:]))
    if not fits or any(n < 0 for n in shape):
        raise ShapeError(
            f"{op}: shape {x.shape} does not broadcast to {shape}: aligned from the right, each "
            f"size must be equal or 1; unsqueeze or reshape it first"
        )
    if x.shape == shape[lead:] and all(n == 1 for n in shape[:lead]):
        return ops.reshape(x, shape=shape)  # nothing repeats, so it can be written to
    return ops.broadcast(x, shape=shape)


# ---- parts --------------------------------------------------------------------------------------


@numpy_names
def split(x: Any, split_size: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Views of consecutive parts along `dim`: of `split_size` elements each (the last may be
    smaller), or of the sizes in a list, whose sum must be the dim's size."""
    x = as_tensor("split", x)
    axis = real_axis("split", x, dim)
    size = x.shape[axis]
    if isinstance(split_size, (tuple, list)):
        sizes = [as_int("split", n) for n in split_size]
        if sum(sizes) != size or any(n < 0 for n in sizes):
            raise ShapeError(
                f"split: sizes {tuple(sizes)} do not add up to {size}, the size of dim {dim} of "
                f"shape {x.shape}"
            )
    else:
        step = as_int("split", split_size)
        if step <= 0:
            raise ShapeError(f"split: the size of a part must be positive, got {step}")
        sizes = [min(step, size - at) for at in range(0, size, step)] or [0]
    parts, at = [], 0
    for n in sizes:
        parts.append(ops.slice_axis(x, axis, at, at + n))
        at += n
    return tuple(parts)


@numpy_names
def chunk(x: Any, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most `chunks` views of equal size along `dim` (the last may be smaller)."""
    x, chunks = as_tensor("chunk", x), as_int("chunk", chunks, "the number of chunks")
    if chunks <= 0:
        raise ShapeError(f"chunk: the number of chunks must be positive, got {chunks}")
    size = x.shape[real_axis("chunk", x, dim)]
    return split(x, -(-size // chunks) or 1, dim)


@numpy_names
def unbind(x: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """A view of each element along `dim`, without that dim."""
    x = as_tensor("unbind", x)
    axis = real_axis("unbind", x, dim)
    shape = x.shape[:axis] + x.shape[axis + 1 :]
    rows = (ops.slice_axis(x, axis, i, i + 1) for i in range(x.shape[axis]))
    return tuple(ops.reshape(row, shape=shape) for row in rows)


def real_axis(op: str, x: Tensor, dim: Any) -> int:
    """`dim` as an axis from 0; ShapeError for a tensor without dims."""
    if x.ndim == 0:
        raise ShapeError(f"{op}: a tensor without dims has no parts; reshape it to (1,) first")
    return normalize_axis(op, dim, x.ndim)


def diagonal(x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """A view of the diagonal of two dims, as the last dim; `offset` > 0 lies above it."""
    x = as_tensor("diagonal", x)
    a, b = normalize_axis("diagonal", dim1, x.ndim), normalize_axis("diagonal", dim2, x.ndim)
    if a == b or x.ndim < 2:
        raise ShapeError(f"diagonal: needs two different dims of {x.shape}, got {dim1} and {dim2}")
    return ops.diagonal(x, offset=as_int("diagonal", offset, "offset"), axis1=a, axis2=b)
