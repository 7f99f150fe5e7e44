"""Picking and placing along one dim by index tensors; sorting; classes as vectors.

Names and argument order are torch's. An index out of range raises IndexingError when the op runs,
and so does a negative one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tinyaot import ops
from tinyaot.errors import ArgumentError, DTypeError, ShapeError, TraceError
from tinyaot.functions.operands import (
    as_scalar,
    as_tensor,
    cast,
    constant,
    is_scalar,
    is_tracing,
    mutate,
    numpy_names,
)
from tinyaot.functions.reduce import ValuesIndices
from tinyaot.functions.views import reshaped
from tinyaot.shapes import Shape, as_int, broadcast_shapes, int64, normalize_axis
from tinyaot.tensor import Tensor


def index_tensor(op: str, index: Any, order: str = "") -> Tensor:
    """An index as a Tensor; DTypeError unless it holds integers. `order`: of the arguments."""
    index = as_tensor(op, index)
    if index.dtype.kind != "int":
        raise DTypeError(
            f"{op}: the index must hold integers, got {index.type}; cast it to int64{order}"
        )
    return index


def _row_major(x: Tensor, order: Shape) -> Tensor:
    return x if order == tuple(range(x.ndim)) else ops.copy(ops.permute(x, perm=order))


# ---- gather and scatter -------------------------------------------------------------------------


def _along(op: str, x: Any, dim: int, index: Any) -> tuple[Tensor, int, Tensor]:
    """Checked operands: the index has x's rank, and is no larger beside `dim`."""
    x, index = as_tensor(op, x), index_tensor(op, index)
    axis = normalize_axis(op, dim, x.ndim)
    fits = x.ndim == index.ndim and all(
        a == axis or n <= m for a, (n, m) in enumerate(zip(index.shape, x.shape))
    )
    if not fits:
        raise ShapeError(
            f"{op}: an index of shape {index.shape} does not go with shape {x.shape}: it needs as "
            f"many dims, each but dim {axis} at most as large"
        )
    return x, axis, chosen(op, index, x.shape[axis] if x.ndim else 1)


def chosen(op: str, index: Tensor, size: int, what: str = "index") -> Tensor:
    """An index that is 0 .. size - 1: as in torch, a negative one does not count from the end."""
    return ops.within(index, what=f"{op}: {what}", size=size, ignored=0) if size else index


def gather(x: Any, dim: int, index: Any) -> Tensor:
    """`out[i][j][k] = x[i][index[i][j][k]][k]` for dim 1; the result has the index's shape."""
    x, axis, index = _along("gather", x, dim, index)
    if x.ndim == 0:
        return _picked_from_scalar(x, index)
    return ops.take_along(x, index, axis=axis)


def _picked_from_scalar(x: Tensor, index: Tensor) -> Tensor:
    row = ops.reshape(x, shape=(1,))
    return ops.reshape(ops.take_along(row, ops.reshape(index, shape=(1,)), axis=0), shape=())


def scatter(x: Any, dim: int, index: Any, src: Any) -> Tensor:
    """A copy of x with `x[i][index[i][j][k]][k] = src[i][j][k]` for dim 1; the last one wins.

    `src` is a number or a tensor of x's dtype, at least as large as the index.
    """
    return _scattered("scatter", x, dim, index, src, "set")


def scatter_add(x: Any, dim: int, index: Any, src: Any) -> Tensor:
    """A copy of x with `x[i][index[i][j][k]][k] += src[i][j][k]` for dim 1."""
    return _scattered("scatter_add", x, dim, index, src, "add")


def _scattered(op: str, x: Any, dim: int, index: Any, src: Any, mode: str) -> Tensor:
    x, axis, index = _along(op, x, dim, index)
    if is_scalar(src):
        src = constant(as_scalar(op, src, x.dtype), x.dtype, index.shape)
    else:
        src = as_tensor(op, src)
        if src.dtype is not x.dtype:
            raise DTypeError(f"{op}: src is {src.type} but x is {x.type}; cast one of them")
        if src.ndim != index.ndim or any(n > m for n, m in zip(index.shape, src.shape)):
            raise ShapeError(
                f"{op}: src of shape {src.shape} must have the dims of the index, whose shape is "
                f"{index.shape}, and be at least as large"
            )
        for a, n in enumerate(index.shape):
            src = ops.slice_axis(src, a, 0, n) if src.shape[a] != n else src
    if x.ndim == 0:
        row = [ops.reshape(t, shape=(1,)) for t in (x, src, index)]
        return ops.reshape(ops.put_along(*row, axis=0, mode=mode), shape=())
    return ops.put_along(x, src, index, axis=axis, mode=mode)


def scatter_(x: Tensor, dim: int, index: Any, src: Any) -> Tensor:
    """`scatter` in place."""
    return mutate("scatter_", x, scatter(x, dim, index, src))


def scatter_add_(x: Tensor, dim: int, index: Any, src: Any) -> Tensor:
    """`scatter_add` in place."""
    return mutate("scatter_add_", x, scatter_add(x, dim, index, src))


def index_select(x: Any, dim: int, index: Any) -> Tensor:
    """The entries of x along `dim` at the positions in the 1-d `index`."""
    x, index = as_tensor("index_select", x), index_tensor("index_select", index)
    axis = normalize_axis("index_select", dim, x.ndim)
    if index.ndim > 1 or x.ndim == 0:
        raise ShapeError(
            f"index_select: needs a 1-d index, got shape {index.shape} for {x.shape}; use x[index]"
        )
    index = chosen("index_select", index, x.shape[axis])
    index = index if index.ndim else ops.reshape(index, shape=(1,))
    picked = ops.gather(x, index, axes=(axis,))
    return _row_major(picked, (*range(1, axis + 1), 0, *range(axis + 1, x.ndim)))


@numpy_names
def take_along_dim(x: Any, indices: Any, dim: int | None = None) -> Tensor:
    """The entries of x along `dim` at `indices`, which broadcast against x beside `dim`; in the
    flattened tensor for None."""
    x, indices = as_tensor("take_along_dim", x), index_tensor("take_along_dim", indices)
    if dim is None:
        x, indices, dim = reshaped(x, (x.size,)), reshaped(indices, (indices.size,)), 0
    axis = normalize_axis("take_along_dim", dim, x.ndim)
    if x.ndim != indices.ndim or x.ndim == 0:
        raise ShapeError(
            f"take_along_dim: indices of shape {indices.shape} need as many dims as x, of shape "
            f"{x.shape}; unsqueeze them"
        )
    indices = chosen("take_along_dim", indices, x.shape[axis])
    without = [(*t.shape[:axis], 1, *t.shape[axis + 1 :]) for t in (x, indices)]
    common = broadcast_shapes("take_along_dim", *without)
    return ops.take_along(_spread(x, common, axis), _spread(indices, common, axis), axis=axis)


def _spread(x: Tensor, common: Shape, axis: int) -> Tensor:
    """x broadcast to `common` but along `axis`."""
    shape = (*common[:axis], x.shape[axis], *common[axis + 1 :])
    return x if x.shape == shape else ops.broadcast(x, shape=shape)


# ---- tables and classes -------------------------------------------------------------------------


def embedding(ids: Any, table: Any) -> Tensor:
    """Rows of the table `[classes, features]` at `ids` (integers of any shape): ids' shape and
    then features. IndexingError for an id that is no row."""
    order = "; the order is embedding(ids, table)"
    ids, table = index_tensor("embedding", ids, order), as_tensor("embedding", table)
    if table.ndim != 2:
        raise ShapeError(
            f"embedding: the table must have 2 dims (classes, features), got {table.shape}{order}"
        )
    return ops.gather(table, chosen("embedding", ids, table.shape[0], "id"), axes=(0,))


def one_hot(x: Any, num_classes: int = -1) -> Tensor:
    """int64 vectors with 1 at the class in x (integers of any shape), `[..., num_classes]`.

    -1 finds the number of classes from the greatest class: not in a trace. Raises IndexingError for
    a class out of range.
    """
    x, num_classes = index_tensor("one_hot", x), as_int("one_hot", num_classes, "num_classes")
    if num_classes < 0:
        if is_tracing():
            raise TraceError(
                f"one_hot: the number of classes of {x.type} depends on data, which is not "
                f"known in a trace; pass num_classes"
            )
        num_classes = max(int(x._data.max()) + 1, 1) if x.size else 0
    if not num_classes and x.size:
        raise ArgumentError(f"one_hot: num_classes must be positive for {x.type}, got 0")
    column = ops.reshape(chosen("one_hot", x, num_classes, "class"), shape=(*x.shape, 1))
    classes = ops.iota(size=num_classes, dtype=int64)
    return ops.cast(ops.eq(cast(column, int64), classes), dtype=int64)


# ---- sorting ------------------------------------------------------------------------------------


@numpy_names
def sort(x: Any, dim: int = -1, descending: bool = False, stable: bool = True) -> ValuesIndices:
    """(values, indices) in order along `dim`. Always stable; NaN counts as the greatest."""
    x = as_tensor("sort", x)
    axis = normalize_axis("sort", dim, x.ndim)
    if x.ndim == 0:
        return ValuesIndices(ops.copy(x), constant(0, int64))
    indices = ops.argsort(x, axis=axis, descending=bool(descending))
    return ValuesIndices(ops.take_along(x, indices, axis=axis), indices)


@numpy_names
def argsort(x: Any, dim: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """int64 positions of the elements of x in order along `dim`."""
    return sort(x, dim, descending)[1]


@numpy_names
def topk(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> ValuesIndices:
    """(values, indices) of the k greatest (or least) along `dim`, in order."""
    x, k = as_tensor("topk", x), as_int("topk", k, "k")
    axis = normalize_axis("topk", dim, x.ndim)
    if x.ndim == 0:
        row = topk(ops.reshape(x, shape=(1,)), k, 0, largest)
        return ValuesIndices(*(ops.reshape(t, shape=()) for t in row)) if k == 1 else row
    if not 0 <= k <= x.shape[axis]:
        raise ShapeError(
            f"topk: cannot take {k} of the {x.shape[axis]} elements along dim {dim} of {x.shape}"
        )
    order = ops.argsort(x, axis=axis, descending=bool(largest))
    indices = ops.copy(ops.slice_axis(order, axis, 0, k))
    return ValuesIndices(ops.take_along(x, indices, axis=axis), indices)


# ---- where values decide the shape --------------------------------------------------------------


def nonzero(x: Any, as_tuple: bool = False) -> Any:
    """int64 `[count, dims]`: the indices of nonzero elements (or one tensor a dim). Eager only."""
    x = as_tensor("nonzero", x)
    if is_tracing():
        raise TraceError(
            f"nonzero: how many elements of {x.type} are nonzero is not known in a trace; use "
            f"where(mask, a, b) or masked_fill, which keep the shape"
        )
    found = np.nonzero(x._data) if x.ndim else ()
    if as_tuple:
        return tuple(Tensor(i) for i in found)
    if x.ndim == 0:
        return Tensor(np.zeros((int(bool(x._data)), 0), np.int64))
    return Tensor(np.stack(found, axis=1))
