"""Making tensors, and moving them between dtypes and devices.

Constants are made by the leaf primitives `full` and `iota` and maps of them, in eager and traced
code alike: a program then holds how they are made, not their bytes.
"""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np

from tinyaot import ops
from tinyaot.errors import DTypeError, ShapeError, TraceError
from tinyaot.functions.operands import (
    as_array,
    as_scalar,
    as_tensor,
    cast,
    check_device,
    constant,
    dims_of,
    is_scalar,
    is_tracing,
)
from tinyaot.shapes import (
    DType,
    Shape,
    as_int,
    dtype_of,
    float32,
    float64,
    int64,
    scalar_dtype,
)
from tinyaot.tensor import Tensor, engine

# ---- from data ----------------------------------------------------------------------------------


def tensor(data: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A new tensor with a copy of `data`: a number, nested lists, an array or a tensor.

    Python floats become float32, ints int64, bools bool; arrays keep their dtype.
    Raises DTypeError for data of another kind, ShapeError for ragged lists.
    """
    check_device("tensor", device)
    wanted = None if dtype is None else dtype_of(dtype)
    if isinstance(data, Tensor):
        made = cast(ops.copy(ops.detach(data)), wanted or data.dtype)
    elif is_scalar(data) and is_tracing():  # part of the program, not an input of it
        own = dtype_of(data.dtype) if isinstance(data, np.generic) else scalar_dtype(data)
        made = constant(as_scalar("tensor", data, wanted or own), wanted or own)
    elif isinstance(data, np.ndarray) and is_tracing():  # one in reach is an input
        made = engine().literal(as_array("tensor", data))
        made = made if wanted is None else cast(made, wanted)
    else:
        made = engine().literal(np.array(as_array("tensor", data, wanted), order="C"))
    return made.requires_grad_() if requires_grad else made


def sizes_of(op: str, size: tuple[Any, ...]) -> Shape:
    """The shape in `zeros(2, 3)` or `zeros((2, 3))`; sizes are ints from 0 up."""
    shape = tuple(as_int(op, n) for n in dims_of(size))
    if any(n < 0 for n in shape):
        raise ShapeError(f"{op}: {shape} is not a shape: sizes must not be negative")
    return shape


def made(x: Tensor, requires_grad: bool) -> Tensor:
    """A new leaf, asking for a gradient if wanted."""
    return x.requires_grad_() if requires_grad else x


# ---- filled -------------------------------------------------------------------------------------


def full(
    size: Any,
    fill_value: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """`fill_value` (a number) everywhere, of shape `size`, in the number's dtype or `dtype`."""
    check_device("full", device)
    shape = sizes_of("full", (size,))
    if not is_scalar(fill_value):
        value = as_tensor("full", fill_value)
        if value.ndim:
            raise ShapeError(f"full: the value must be a number, got a tensor of {value.shape}")
        value = cast(value, value.dtype if dtype is None else dtype_of(dtype))
        return made(ops.copy(ops.broadcast(value, shape=shape)), requires_grad)
    chosen = scalar_dtype(fill_value) if dtype is None else dtype_of(dtype)
    return made(constant(as_scalar("full", fill_value, chosen), chosen, shape), requires_grad)


def _filled(
    op: str, value: float, size: tuple[Any, ...], dtype: Any, device: Any, requires_grad: bool
) -> Tensor:
    check_device(op, device)
    chosen = float32 if dtype is None else dtype_of(dtype)
    return made(constant(as_scalar(op, value, chosen), chosen, sizes_of(op, size)), requires_grad)


def zeros(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Zeros of shape `size` (ints, or one tuple); float32 by default."""
    return _filled("zeros", 0, size, dtype, device, requires_grad)


def ones(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Ones of shape `size` (ints, or one tuple); float32 by default."""
    return _filled("ones", 1, size, dtype, device, requires_grad)


def empty(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor whose values nobody may rely on: zeros, and NaN under TINYAOT_POISON=1."""
    chosen = float32 if dtype is None else dtype_of(dtype)
    poisoned = chosen.is_floating and os.environ.get("TINYAOT_POISON") == "1"
    value = math.nan if poisoned else 0
    return _filled("empty", value, size, chosen, device, requires_grad)


def zeros_like(x: Any, *, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """Zeros with x's shape and dtype."""
    shape, dtype = _like("zeros_like", x, dtype)
    return zeros(shape, dtype=dtype, requires_grad=requires_grad)


def ones_like(x: Any, *, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """Ones with x's shape and dtype."""
    shape, dtype = _like("ones_like", x, dtype)
    return ones(shape, dtype=dtype, requires_grad=requires_grad)


def empty_like(x: Any, *, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """`empty` with x's shape and dtype."""
    shape, dtype = _like("empty_like", x, dtype)
    return empty(shape, dtype=dtype, requires_grad=requires_grad)


def full_like(x: Any, fill_value: Any, *, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """`fill_value` everywhere, with x's shape and dtype."""
    shape, dtype = _like("full_like", x, dtype)
    return full(shape, fill_value, dtype=dtype, requires_grad=requires_grad)


def _like(op: str, x: Any, dtype: Any) -> tuple[Shape, DType]:
    x = as_tensor(op, x)
    return x.shape, x.dtype if dtype is None else dtype_of(dtype)


# ---- ramps --------------------------------------------------------------------------------------


def arange(
    start: Any,
    end: Any = None,
    step: Any = 1,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """start, start + step, ... below `end`, 1-d; `arange(end)` starts at 0.

    int64 for ints, float32 as soon as one number is a float. ShapeError for a step of 0 or of the
    wrong sign.
    """
    check_device("arange", device)
    if end is None:
        start, end = 0, start
    start, end, step = (_known(v) for v in (start, end, step))
    whole = not any(scalar_dtype(v).is_floating for v in (start, end, step))
    if step == 0 or (end - start) / step < 0:
        raise ShapeError(f"arange: a step of {step} does not lead from {start} to {end}")
    size = -((start - end) // step) if whole else math.ceil((end - start) / step)
    chosen = dtype_of(dtype) if dtype is not None else int64 if whole else float32
    ramp = ops.iota(size=int(size), dtype=int64 if whole else float64)
    kind = int if whole else float
    if step != 1:
        ramp = ops.mul(ramp, kind(step))
    if start != 0:
        ramp = ops.add(ramp, kind(start))
    return made(cast(ramp, chosen), requires_grad)


def _known(value: Any) -> Any:
    """A number of arange, which may be in a tensor."""
    if isinstance(value, Tensor) and value.size == 1:
        if is_tracing():
            raise TraceError(
                f"arange: a number that depends on data ({value.type}) is not known in a trace; "
                f"compute it outside the compiled function, or from shapes alone"
            )
        value = value.item()
    if not is_scalar(value):
        raise DTypeError(f"arange: start, end and step must be numbers, got {value!r}")
    return value


def eye(
    n: int,
    m: int | None = None,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """`[n, m]` (m = n by default): 1 on the diagonal, 0 elsewhere."""
    check_device("eye", device)
    rows, columns = sizes_of("eye", (n, n if m is None else m))
    row = ops.reshape(ops.iota(size=rows, dtype=int64), shape=(rows, 1))
    on = ops.eq(row, ops.iota(size=columns, dtype=int64))
    return made(cast(on, float32 if dtype is None else dtype_of(dtype)), requires_grad)


# ---- dtypes and devices -------------------------------------------------------------------------


def to(x: Tensor, *where: Any, dtype: Any = None, device: Any = None, copy: bool = False) -> Tensor:
    """x in a dtype, on a device, or in both as another tensor has them: x itself if it is so.

    BackendError for a device that cannot hold eager tensors.
    """
    for item in where:
        if isinstance(item, Tensor):
            dtype, device = item.dtype, item.device
        elif isinstance(item, str) and item.partition(":")[0] in ("cpu", "cuda"):
            device = item
        else:
            dtype = item
    check_device("to", device)
    y = x if dtype is None else cast(x, dtype_of(dtype))
    return ops.copy(x) if copy and y is x else y


def cpu(x: Tensor) -> Tensor:
    """x itself: eager tensors live on the CPU."""
    return x


def cuda(x: Tensor) -> Tensor:
    """Raises BackendError: eager tensors live on the CPU so far."""
    check_device("cuda", "cuda")
    return x
