"""Gather and scatter: elements chosen by integer tensors.

`gather` and `scatter` index chosen axes by tensors that broadcast together (NumPy's advanced
indexing, with the indexed axes always in front); `take_along` and `put_along` give every element
an index of its own along one axis (torch.gather and torch.scatter). Negative indices count from
the end. Of several writes to one place the last wins, and alone gets the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tinyaot.errors import DTypeError, IndexingError, ShapeError
from tinyaot.ops.check import check_ranges
from tinyaot.ops.core import (
    Attrs,
    Primitive,
    Rule,
    allocating,
    declare,
    is_half,
    same_buffer,
    same_dtype,
)
from tinyaot.ops.elementwise import eq, where
from tinyaot.ops.leaf import full, iota, zeros_like
from tinyaot.ops.reduce import check_axis
from tinyaot.ops.views import reshape
from tinyaot.shapes import Geometry, Shape, TensorType, broadcast_shapes, int64

_BLOCK = 1 << 16  # elements added at a time: bounds the memory that offsets take


def _check_index(op: str, index: TensorType) -> None:
    if index.dtype.kind != "int":
        raise IndexingError(
            f"{op}: indices must be integers, got {index.dtype.name}"
            + ("; use where, or nonzero first" if index.dtype.kind == "bool" else "; cast first")
        )


def _check_empty(x: TensorType, index: TensorType, axis: int) -> None:
    """Of an axis without elements every index is out of range, whatever its value."""
    if index.size and not x.shape[axis]:
        raise IndexingError(
            "index: out of range for a dim of size 0: there is nothing to choose from"
        )


def _check_mode(op: str, mode: str) -> None:
    if mode not in ("set", "add"):
        raise DTypeError(f"{op}: mode must be 'set' or 'add', got {mode!r}")


def _front(ndim: int, axes: Shape) -> Shape:
    """The permutation that brings `axes` to the front."""
    return (*axes, *(a for a in range(ndim) if a not in axes))


# ---- gather -------------------------------------------------------------------------------------


def _gather_type(x: TensorType, *indices: TensorType, axes: Shape) -> TensorType:
    return x.with_shape(_gather_shape("gather", x, indices, axes))


def _gather_shape(op: str, x: TensorType, indices: Sequence[TensorType], axes: Shape) -> Shape:
    if len(axes) != len(indices) or not axes:
        raise IndexingError(f"{op}: {len(indices)} indices for {len(axes)} axes")
    if len(set(axes)) != len(axes) or any(not 0 <= a < x.ndim for a in axes):
        raise IndexingError(f"{op}: {tuple(axes)} are not distinct axes of shape {x.shape}")
    for index, axis in zip(indices, axes, strict=True):
        _check_index(op, index)
        _check_empty(x, index, axis)
    common = broadcast_shapes(op, *(i.shape for i in indices))
    return common + tuple(n for a, n in enumerate(x.shape) if a not in axes)


def _gather(x: np.ndarray, *indices: np.ndarray, axes: Shape) -> np.ndarray:
    front = x if axes == _leading(axes) else x.transpose(_front(x.ndim, axes))
    try:
        result = front[indices]
    except IndexError:
        check_ranges(indices, x.shape, axes)
        raise
    return np.asarray(result, order="C")


def _in_order(index: np.ndarray) -> np.ndarray:
    """In C order: NumPy assigns in the order of the index's memory, and the last must win."""
    return np.asarray(index, order="C")


def _leading(axes: Shape) -> Shape:
    return tuple(range(len(axes)))


def _gather_into(out: np.ndarray, x: np.ndarray, *indices: np.ndarray, axes: Shape) -> None:
    if axes == (0,) and x.flags.c_contiguous and x.shape[0] > 0:
        # Copies nothing besides, but "raise" would buffer all of `out`, so look at bounds first.
        check_ranges(indices, x.shape, axes)
        np.take(x, indices[0], axis=0, out=out, mode="wrap")
    else:
        np.copyto(out, _gather(x, *indices, axes=axes))


def _gather_scratch(ins: Sequence[TensorType], out: TensorType, attrs: Attrs) -> int:
    elsewhere = 0 if attrs["axes"] == (0,) else out.nbytes
    return elsewhere + sum(_cast_bytes(i) for i in ins[1:])


def _gather_rule(operand: int) -> Rule | None:
    if operand:
        return None
    return lambda g, y, x, *indices, axes: scatter(
        zeros_like(x), g, *indices, axes=axes, mode="add"
    )


gather: Primitive = declare(
    "gather",
    "gather",
    _gather_type,
    _gather,
    _gather_into,
    _gather_rule,
    doc="x at the indices: their common shape, then x's other axes.",
    scratch=_gather_scratch,
)

# ---- scatter ------------------------------------------------------------------------------------


def _scatter_type(
    base: TensorType, src: TensorType, *indices: TensorType, axes: Shape, mode: str
) -> TensorType:
    same_dtype("scatter", (base, src))
    _check_mode("scatter", mode)
    place = _gather_shape("scatter", base, indices, axes)
    if src.shape != place:
        raise ShapeError(
            f"scatter: the value has shape {src.shape} but its place has shape {place}; broadcast "
            f"or reshape the value first"
        )
    return base


def _scatter_into(
    out: np.ndarray,
    base: np.ndarray,
    src: np.ndarray,
    *indices: np.ndarray,
    axes: Shape,
    mode: str,
) -> None:
    check_ranges(indices, base.shape, axes)
    if not same_buffer(out, base):
        np.copyto(out, base)
    if mode == "set":
        out.transpose(_front(out.ndim, axes))[tuple(map(_in_order, indices))] = src
        return
    # Where each element of src goes, as an offset into out's buffer.
    steps = _steps(out.shape)
    places = np.zeros(np.broadcast_shapes(*(i.shape for i in indices)), np.int64)
    _add_offsets(places, indices, out.shape, axes)
    inner = np.zeros((), np.int64)
    for axis in (a for a in range(out.ndim) if a not in axes):
        inner = inner[..., None] + np.arange(out.shape[axis]) * steps[axis]
    _add_at(out, places.reshape(-1), inner.reshape(-1), src)


def _steps(shape: Shape) -> list[int]:
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def _add_offsets(
    places: np.ndarray, indices: Sequence[np.ndarray], shape: Shape, axes: Sequence[int]
) -> None:
    """Add to `places` how far from the first element of a buffer the indices of some axes are."""
    steps, part = _steps(shape), np.empty(places.shape, np.int64)
    for index, axis in zip(indices, axes, strict=True):
        size = np.int64(max(shape[axis], 1))
        np.remainder(index, size, out=part, dtype=np.int64, casting="unsafe")
        np.multiply(part, steps[axis], out=part)
        np.add(places, part, out=places)


def _add_at(out: np.ndarray, outer: np.ndarray, inner: np.ndarray, src: np.ndarray) -> None:
    """out.flat[outer_i + inner_j] += src.flat[i, j], in order, a block of rows at a time.

    One-dimensional offsets are what NumPy's `add.at` is fast at.
    """
    flat = out.reshape(-1)  # a view: out is in C order
    wide = flat.astype(np.float32) if is_half(out.dtype) else flat
    # Of a view in another order only a block is copied at a time.
    elements: Any = src.reshape(-1) if src.flags.c_contiguous else src.flat
    block = min(max(1, _BLOCK // max(inner.size, 1)), outer.size)
    offsets = np.empty((block, inner.size), np.int64)
    for start in range(0, outer.size, max(block, 1)):
        part = outer[start : start + block, None]
        here = np.add(part, inner, out=offsets[: len(part)]).reshape(-1)
        first = start * inner.size
        np.add.at(wide, here, elements[first : first + here.size].astype(wide.dtype, copy=False))
    if wide is not flat:
        np.copyto(flat, wide, casting="same_kind")


def _scatter_scratch(ins: Sequence[TensorType], out: TensorType, attrs: Attrs) -> int:
    if attrs["mode"] == "set":
        return sum(_cast_bytes(i) for i in ins[2:])
    inner = math.prod(n for axis, n in enumerate(out.shape) if axis not in attrs["axes"])
    return _add_scratch(ins[1].size, out, inner)


def _add_scratch(size: int, out: TensorType, inner: int, copied: bool = False) -> int:
    """Of `size` elements to add, in rows of `inner`; `copied`: a block at a time."""
    rows = size // max(inner, 1)
    block = min(max(_BLOCK // max(inner, 1), 1), rows) * inner
    each = 8 + 4 * is_half(out.dtype.numpy) + copied * out.dtype.itemsize
    wide = 4 * out.size if is_half(out.dtype.numpy) else 0
    return 8 * rows + max(8 * rows + 16, 8 * inner + each * block + wide)


def _cast_bytes(index: TensorType) -> int:
    return 0 if index.dtype is int64 else 8 * index.size


def _scatter_strided(
    views: Sequence[Geometry], ins: Sequence[TensorType], out: TensorType, attrs: Attrs
) -> int:
    if attrs["mode"] == "set":
        return _scatter_scratch(ins, out, attrs)
    inner = math.prod(n for axis, n in enumerate(out.shape) if axis not in attrs["axes"])
    return _add_scratch(ins[1].size, out, inner, not views[1].is_contiguous)


def _scatter_base(
    g: Any, y: Any, base: Any, src: Any, *indices: Any, axes: Shape, mode: str
) -> Any:
    if mode == "add":
        return g
    return scatter(g, zeros_like(src), *indices, axes=axes, mode="set")


def _scatter_src(g: Any, y: Any, base: Any, src: Any, *indices: Any, axes: Shape, mode: str) -> Any:
    mine = gather(g, *indices, axes=axes)
    if mode == "add":
        return mine
    # Each place remembers the number of its last write: the winner.
    sizes = tuple(base.shape[a] for a in axes)
    common = tuple(src.shape[: src.ndim - (base.ndim - len(axes))])
    numbers = _numbers(common)
    front = _leading(axes)
    blank = full(value=0, shape=sizes, dtype=int64)
    last = scatter(blank, numbers, *indices, axes=front, mode="set")
    wins = eq(gather(last, *indices, axes=front), numbers)
    return where(reshape(wins, shape=common + (1,) * (src.ndim - len(common))), mine, 0.0)


def _numbers(shape: Shape) -> Any:
    """0, 1, ... in row-major order."""
    return reshape(iota(size=math.prod(shape), dtype=int64), shape=shape)


def _scatter_rule(operand: int) -> Rule | None:
    return (_scatter_base, _scatter_src)[operand] if operand < 2 else None


scatter: Primitive = declare(
    "scatter",
    "scatter",
    _scatter_type,
    allocating(_scatter_into),
    _scatter_into,
    _scatter_rule,
    flops=lambda ins, out, attrs: ins[1].size if attrs["mode"] == "add" else 0,
    doc="base with src set, or added, where `gather` with the same indices would read.",
    scratch=_scatter_scratch,
    strided=_scatter_strided,
)

# ---- take_along, put_along ----------------------------------------------------------------------


def _along_shape(op: str, x: TensorType, index: TensorType, axis: int) -> Shape:
    _check_index(op, index)
    check_axis(op, x, axis)
    _check_empty(x, index, axis)
    if index.ndim != x.ndim or any(
        m > n for a, (m, n) in enumerate(zip(index.shape, x.shape)) if a != axis
    ):
        raise ShapeError(
            f"{op}: an index of shape {index.shape} does not fit {x.shape}: it needs as many axes, "
            f"and sizes no greater except along axis {axis}"
        )
    return index.shape


def _mesh(index: np.ndarray, axis: int) -> tuple[Any, ...]:
    """Indices of all axes: `index` along `axis`, open ranges along the others."""
    lead = range(index.ndim - 1, -1, -1)
    return tuple(
        index if a == axis else np.arange(n).reshape(n, *(1,) * more)
        for a, (n, more) in enumerate(zip(index.shape, lead))
    )


def _mesh_bytes(index: TensorType, axis: int) -> int:
    return 8 * (sum(index.shape) - index.shape[axis])


def _take_along(x: np.ndarray, index: np.ndarray, axis: int) -> np.ndarray:
    try:
        result = x[_mesh(index, axis)]
    except IndexError:
        check_ranges([index], x.shape, [axis])
        raise
    return np.asarray(result, order="C")


def _take_along_into(out: np.ndarray, x: np.ndarray, index: np.ndarray, axis: int) -> None:
    np.copyto(out, _take_along(x, index, axis))


take_along: Primitive = declare(
    "take_along",
    "gather",
    lambda x, index, axis: x.with_shape(_along_shape("take_along", x, index, axis)),
    _take_along,
    _take_along_into,
    (
        lambda g, y, x, index, axis: put_along(zeros_like(x), g, index, axis=axis, mode="add"),
        None,
    ),
    doc="x at `index` along one axis, each element of the result with an index of its own.",
    scratch=lambda ins, out, attrs: (
        out.nbytes + _cast_bytes(ins[1]) + _mesh_bytes(ins[1], attrs["axis"])
    ),
)


def _put_along_type(
    base: TensorType, src: TensorType, index: TensorType, axis: int, mode: str
) -> TensorType:
    same_dtype("put_along", (base, src))
    _check_mode("put_along", mode)
    place = _along_shape("put_along", base, index, axis)
    if src.shape != place:
        raise ShapeError(
            f"put_along: the value has shape {src.shape} but the index has shape {place}; they "
            f"must be equal"
        )
    return base


def _put_along_into(
    out: np.ndarray, base: np.ndarray, src: np.ndarray, index: np.ndarray, axis: int, mode: str
) -> None:
    check_ranges([index], base.shape, [axis])
    if not same_buffer(out, base):
        np.copyto(out, base)
    if mode == "set":
        out[_mesh(_in_order(index), axis)] = src
        return
    offsets = np.zeros(index.shape, np.int64)
    for a, (n, step) in enumerate(zip(index.shape, _steps(out.shape))):
        if a != axis:
            along = np.arange(0, n * step, step).reshape(n, *(1,) * (index.ndim - 1 - a))
            np.add(offsets, along, out=offsets)
            del along
    _add_offsets(offsets, [index], out.shape, [axis])
    _add_at(out, offsets.reshape(-1), np.zeros(1, np.int64), src)


def _put_along_scratch(ins: Sequence[TensorType], out: TensorType, attrs: Attrs) -> int:
    if attrs["mode"] == "set":
        return _cast_bytes(ins[2]) + _mesh_bytes(ins[2], attrs["axis"])
    return _add_scratch(ins[1].size, out, 1)


def _put_along_strided(
    views: Sequence[Geometry], ins: Sequence[TensorType], out: TensorType, attrs: Attrs
) -> int:
    if attrs["mode"] == "set":
        return _put_along_scratch(ins, out, attrs)
    return _add_scratch(ins[1].size, out, 1, not views[1].is_contiguous)


def _put_along_base(g: Any, y: Any, base: Any, src: Any, index: Any, axis: int, mode: str) -> Any:
    if mode == "add":
        return g
    return put_along(g, zeros_like(src), index, axis=axis, mode="set")


def _put_along_src(g: Any, y: Any, base: Any, src: Any, index: Any, axis: int, mode: str) -> Any:
    mine = take_along(g, index, axis=axis)
    if mode == "add":
        return mine
    numbers = _numbers(tuple(src.shape))
    blank = full(value=0, shape=tuple(base.shape), dtype=int64)
    last = put_along(blank, numbers, index, axis=axis, mode="set")
    return where(eq(take_along(last, index, axis=axis), numbers), mine, 0.0)


put_along: Primitive = declare(
    "put_along",
    "scatter",
    _put_along_type,
    allocating(_put_along_into),
    _put_along_into,
    (_put_along_base, _put_along_src, None),
    flops=lambda ins, out, attrs: ins[1].size if attrs["mode"] == "add" else 0,
    doc="base with src set, or added, where `take_along` with the same index would read.",
    scratch=_put_along_scratch,
    strided=_put_along_strided,
)
