"""Dtypes, shapes, promotion, broadcasting and strides. Every type rule goes through here.

Promotion is torch's: by category (bool < integer < float), where an operand with dimensions
outranks a 0-d tensor, and a 0-d tensor outranks a Python scalar, unless the lower rank brings a
higher category (torch docs, "Type promotion").
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from tinyaot.errors import DTypeError, ShapeError, TraceError

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """An element type. `short` is its name in IR text, `kind` its promotion category."""

    name: str
    short: str
    kind: str  # "bool", "int", "float"
    numpy: np.dtype[Any]
    order: int  # promotion order inside its category

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return int(self.numpy.itemsize)

    @property
    def is_floating(self) -> bool:
        return self.kind == "float"

    def __repr__(self) -> str:
        return f"tinyaot.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return dtype_of, (self.name,)


bool_ = DType("bool", "bool", "bool", np.dtype(np.bool_), 0)
uint8 = DType("uint8", "u8", "int", np.dtype(np.uint8), 0)
int8 = DType("int8", "i8", "int", np.dtype(np.int8), 1)
int16 = DType("int16", "i16", "int", np.dtype(np.int16), 2)
int32 = DType("int32", "i32", "int", np.dtype(np.int32), 3)
uint32 = DType("uint32", "u32", "int", np.dtype(np.uint32), 4)  # random bits; not a user's dtype
int64 = DType("int64", "i64", "int", np.dtype(np.int64), 5)
float16 = DType("float16", "f16", "float", np.dtype(np.float16), 0)
bfloat16 = DType("bfloat16", "bf16", "float", np.dtype(ml_dtypes.bfloat16), 1)
float32 = DType("float32", "f32", "float", np.dtype(np.float32), 2)
float64 = DType("float64", "f64", "float", np.dtype(np.float64), 3)

DTYPES = (
    bool_,
    uint8,
    int8,
    int16,
    int32,
    uint32,
    int64,
    float16,
    bfloat16,
    float32,
    float64,
)
_BY_NAME = {d.name: d for d in DTYPES} | {d.short: d for d in DTYPES}
_BY_NUMPY = {d.numpy: d for d in DTYPES}
_KINDS = ("bool", "int", "float")


def dtype_of(x: Any) -> DType:
    """The DType named or carried by `x`: a DType, its name, a NumPy dtype, or bool/int/float.

    Raises DTypeError for anything tinyaot has no dtype for (complex, object, strings ...).
    """
    if isinstance(x, DType):
        return x
    if isinstance(x, str) and x in _BY_NAME:
        return _BY_NAME[x]
    if x is float:
        return float32
    if x is int:
        return int64
    if x is bool:
        return bool_
    try:
        found = _BY_NUMPY.get(np.dtype(x))
    except TypeError:
        found = None
    if found is None:
        names = ", ".join(d.name for d in DTYPES if d is not uint32)
        raise DTypeError(f"no such dtype: {x!r}; there are {names}")
    return found


def numpy_to_dtype(dtype: np.dtype[Any]) -> DType:
    """`dtype_of` for a NumPy dtype, the fast path of eager mode."""
    found = _BY_NUMPY.get(dtype)
    return found if found is not None else dtype_of(dtype)


@cache
def promote(a: DType, b: DType) -> DType:
    """The dtype of a binary op on operands of equal rank (torch.promote_types)."""
    if a is b:
        return a
    low, high = sorted((a, b), key=lambda d: (_KINDS.index(d.kind), d.order))
    if low.kind != high.kind:
        return high
    if (low, high) == (float16, bfloat16):
        return float32
    if low is uint8:
        return int16 if high is int8 else high
    return high


@dataclass(frozen=True, slots=True)
class TensorType:
    """The type of a value: dtype and static shape; prints as `f32[32,128]`."""

    dtype: DType
    shape: Shape

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, stored densely."""
        return self.size * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype.short}[{','.join(map(str, self.shape))}]"

    def with_shape(self, shape: Sequence[int]) -> TensorType:
        return TensorType(self.dtype, tuple(shape))

    def with_dtype(self, dtype: DType) -> TensorType:
        return TensorType(dtype, self.shape)


def scalar_dtype(x: bool | int | float) -> DType:
    """The dtype a Python scalar has when alone (torch: bool, int64, float32)."""
    if isinstance(x, (bool, np.bool_)):
        return bool_
    return int64 if isinstance(x, (int, np.integer)) else float32


def result_type(tensors: Iterable[tuple[DType, int]], scalars: Iterable[Any] = ()) -> DType:
    """torch.result_type of tensors given as (dtype, ndim) and of Python scalars."""
    best: list[DType | None] = [None, None, None]  # dimensioned, 0-d, Python scalars
    for dtype, ndim in tensors:
        rank = 0 if ndim else 1
        have = best[rank]
        best[rank] = dtype if have is None else promote(have, dtype)
    for s in scalars:
        d, have = scalar_dtype(s), best[2]
        best[2] = d if have is None else promote(have, d)
    result: DType | None = None
    for candidate in best:
        if candidate is None:
            continue
        if result is None or _KINDS.index(candidate.kind) > _KINDS.index(result.kind):
            result = candidate if result is None else promote(result, candidate)
    if result is None:
        raise DTypeError("result_type needs at least one operand")
    return result


# ---- shapes -------------------------------------------------------------------------------------


def broadcast_shapes(op: str, *shapes: Shape) -> Shape:
    """The common shape under NumPy broadcasting; ShapeError names `op` and the shapes."""
    if shapes and shapes.count(shapes[0]) == len(shapes):
        return shapes[0]
    rank = max(map(len, shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for axis, size in enumerate(shape, rank - len(shape)):
            if size != 1 and result[axis] != size:
                if result[axis] != 1:
                    listed = " and ".join(str(s) for s in shapes)
                    raise ShapeError(
                        f"{op}: shapes {listed} do not broadcast: sizes {result[axis]} and {size} "
                        f"meet at axis {axis - rank}. Aligned from the right, sizes must be equal "
                        f"or 1; reshape or unsqueeze one operand"
                    )
                result[axis] = size
    return tuple(result)


def as_int(op: str, value: Any, what: str = "size") -> int:
    """A size, a count, a dim ... as an int; DTypeError for anything else, and TraceError for an
    element of a traced tensor."""
    try:
        return operator.index(value)
    except TraceError:
        raise TraceError(
            f"{op}: {what} depends on data, and is not known in a trace; compute it outside the "
            f"compiled function, or from shapes alone"
        ) from None
    except TypeError:
        raise DTypeError(f"{op}: {what} must be an int, got {brief(value)}") from None


def brief(value: Any) -> str:
    """What a wrong value is, in a few words."""
    text = repr(value)
    return text if len(text) <= 40 and "\n" not in text else f"a {type(value).__name__}"


def normalize_axis(op: str, axis: int, ndim: int) -> int:
    """`axis` counted from 0; ShapeError (an IndexError too, as in torch) when out of range."""
    axis = as_int(op, axis, "dim")
    bound = max(ndim, 1)
    if not -bound <= axis < bound:
        raise AxisError(
            f"{op}: dim {axis} is out of range for a tensor of {ndim} dims; it must lie in "
            f"{-bound} .. {bound - 1}"
        )
    return axis % bound


class AxisError(ShapeError, IndexError):
    """A dim out of range."""


def normalize_axes(op: str, axes: Any, ndim: int) -> tuple[int, ...]:
    """A dim, several, or None (all) as a sorted tuple of distinct axes from 0."""
    if axes is None:
        return tuple(range(ndim))
    if not isinstance(axes, (tuple, list)):
        axes = (axes,)
    found = [normalize_axis(op, a, ndim) for a in axes]
    if len(set(found)) != len(found):
        raise ShapeError(f"{op}: dims {tuple(axes)} name an axis twice")
    return tuple(sorted(a for a in found if a < ndim))


def normalize_shape(op: str, shape: Sequence[Any], size: int) -> Shape:
    """`shape` with at most one -1 replaced so that it holds `size` elements (reshape's rule)."""
    dims = [as_int(op, s) for s in shape]
    if dims.count(-1) > 1 or any(s < -1 for s in dims):
        raise ShapeError(
            f"{op}: {tuple(dims)} is not a shape: at most one -1, and no other negative"
        )
    if -1 in dims:
        known = math.prod(s for s in dims if s != -1)
        if known == 0 or size % known:
            raise ShapeError(f"{op}: {size} elements cannot be viewed as {tuple(dims)}")
        dims[dims.index(-1)] = size // known
    if math.prod(dims) != size:
        raise ShapeError(
            f"{op}: {size} elements cannot be viewed as {tuple(dims)} ({math.prod(dims)} elements)"
        )
    return tuple(dims)


# ---- strides of views ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Geometry:
    """How a view sees a storage: shape, strides and offset, in elements."""

    shape: Shape
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def is_contiguous(self) -> bool:
        """C order without gaps (axes of size 1 and empty tensors have any stride)."""
        if 0 in self.shape:
            return True
        pairs = zip(self.shape, self.strides, contiguous_strides(self.shape), strict=True)
        return all(size == 1 or have == want for size, have, want in pairs)


def contiguous_strides(shape: Shape) -> tuple[int, ...]:
    """C order strides, in elements."""
    strides, step = [0] * len(shape), 1
    for axis in range(len(shape) - 1, -1, -1):
        strides[axis] = step
        step *= max(shape[axis], 1)
    return tuple(strides)


def contiguous(shape: Shape) -> Geometry:
    return Geometry(shape, contiguous_strides(shape))


def slice_geometry(g: Geometry, starts: Shape, stops: Shape, steps: Shape) -> Geometry:
    """Basic slicing; starts, stops and steps are already normalised (see `slice_sizes`)."""
    sizes = slice_sizes(starts, stops, steps)
    offset = g.offset + sum(
        st * a for st, a, n in zip(g.strides, starts, g.shape, strict=True) if n
    )
    strides = tuple(st * k for st, k in zip(g.strides, steps, strict=True))
    return Geometry(sizes, strides, offset)


def slice_sizes(starts: Shape, stops: Shape, steps: Shape) -> Shape:
    """Elements in each `range(start, stop, step)`; a stop of -1 under a negative step is 'before
    the first element', as `slice.indices` gives it."""
    return tuple(len(range(a, b, k)) for a, b, k in zip(starts, stops, steps, strict=True))


def permute_geometry(g: Geometry, perm: Shape) -> Geometry:
    return Geometry(tuple(g.shape[p] for p in perm), tuple(g.strides[p] for p in perm), g.offset)


def broadcast_geometry(g: Geometry, shape: Shape) -> Geometry:
    """Expanded axes get stride 0."""
    lead = len(shape) - len(g.shape)
    strides = [0] * lead + [
        0 if have == 1 and want != 1 else st
        for have, want, st in zip(g.shape, shape[lead:], g.strides, strict=True)
    ]
    return Geometry(shape, tuple(strides), g.offset)


def diagonal_geometry(g: Geometry, offset: int, axis1: int, axis2: int) -> Geometry:
    """The diagonal becomes the last axis (numpy.diagonal)."""
    s1, s2 = g.strides[axis1], g.strides[axis2]
    start = g.offset + (s2 * offset if offset >= 0 else -s1 * offset)
    n = diagonal_size(g.shape[axis1], g.shape[axis2], offset)
    rest = [a for a in range(len(g.shape)) if a not in (axis1, axis2)]
    shape = (*(g.shape[a] for a in rest), n)
    return Geometry(shape, (*(g.strides[a] for a in rest), s1 + s2), start if n else g.offset)


def diagonal_size(rows: int, cols: int, offset: int) -> int:
    return max(0, min(rows, cols - offset) if offset >= 0 else min(rows + offset, cols))


def reshape_geometry(g: Geometry, shape: Shape) -> Geometry | None:
    """The reshaped view, or None when strides do not allow one (torch's computeStride)."""
    if math.prod(shape) != math.prod(g.shape):
        return None
    if 0 in shape:
        return Geometry(shape, contiguous_strides(shape), g.offset)
    # Merge old axes into runs that are dense inside, then cut each run into new axes.
    axes = [(n, st) for n, st in zip(g.shape, g.strides, strict=True) if n != 1]
    runs: list[tuple[int, int]] = []  # (elements, innermost stride)
    for size, stride in axes:
        if runs and runs[-1][1] == size * stride:
            runs[-1] = (runs[-1][0] * size, stride)
        else:
            runs.append((size, stride))
    strides = [0] * len(shape)
    run, left = len(runs) - 1, runs[-1][0] if runs else 1
    step = runs[-1][1] if runs else 1
    for axis in range(len(shape) - 1, -1, -1):
        size = shape[axis]
        if size == 1:
            strides[axis] = step
            continue
        if left == 1:
            run -= 1
            left, step = runs[run]
        if left % size:
            return None
        strides[axis] = step
        left //= size
        step *= size
    return Geometry(shape, tuple(strides), g.offset)


def overlaps_itself(g: Geometry) -> bool:
    """Whether two indices may name one element: exact for views made by slicing, permuting,
    reshaping, expanding and diagonals (strides nest, sorted by size); never False wrongly."""
    axes = sorted((abs(st), n) for n, st in zip(g.shape, g.strides, strict=True) if n > 1)
    if 0 in g.shape:
        return False
    reach = 0
    for stride, n in axes:
        if stride <= reach:
            return True
        reach += stride * (n - 1)
    return False
