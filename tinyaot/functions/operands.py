"""What the functions accept: Tensors, Python scalars, NumPy arrays and lists, brought to one dtype.

Primitives are strict, users are not. Here lies the border: torch's promotion by category (a Python
scalar is weak: it never raises the precision of a tensor), NumPy's habit of passing arrays and
lists as operands, and the two spellings of a dimension (`dim` / `axis`, `keepdim` / `keepdims`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from tinyaot import ops
from tinyaot.errors import ArgumentError, BackendError, DTypeError, ShapeError
from tinyaot.ops.core import mode
from tinyaot.shapes import (
    DType,
    Shape,
    bool_,
    brief,
    dtype_of,
    float32,
    int64,
    result_type,
    scalar_dtype,
)
from tinyaot.tape import quiet
from tinyaot.tensor import Tensor, engine, from_numpy

Scalar = bool | int | float
Function = TypeVar("Function", bound=Callable[..., Any])

_PYTHON_NUMBERS = (bool, int, float)
_CATEGORY = {"bool": 0, "int": 1, "float": 2}


def is_tracing() -> bool:
    """Whether ops are being captured, so that values are not there to be read."""
    return mode.engine is not mode.default


def is_scalar(x: Any) -> bool:
    """Whether `x` is a number with weak dtype: Python's, or a NumPy scalar."""
    return isinstance(x, (bool, int, float, np.generic))


def is_operand(x: Any) -> bool:
    """Whether an operator may take `x` (else it returns NotImplemented)."""
    return isinstance(x, (Tensor, bool, int, float, np.generic, np.ndarray, list, tuple))


# ---- values to tensors --------------------------------------------------------------------------


def as_tensor(op: str, x: Any) -> Tensor:
    """`x` itself if a Tensor; a number becomes 0-d, an array or nested list a constant.

    Python floats become float32, ints int64, bools bool; arrays keep their dtype (and memory).
    Raises DTypeError for anything else, and ShapeError for ragged lists.
    """
    if isinstance(x, Tensor):
        return x
    if isinstance(x, _PYTHON_NUMBERS) and not isinstance(x, np.generic):
        return constant(x, scalar_dtype(x))
    array = as_array(op, x)
    return from_numpy(array) if isinstance(x, np.ndarray) else Tensor(array)


def as_array(op: str, data: Any, dtype: DType | None = None) -> np.ndarray:
    """Array of nested lists, numbers or an array, in `dtype` or the one the data implies."""
    if isinstance(data, np.ndarray):
        array = data
    elif isinstance(data, (bool, int, float, np.generic, list, tuple, range)) or hasattr(
        data, "__array__"
    ):
        try:
            array = np.asarray(data)
        except ValueError:
            raise ShapeError(
                f"{op}: nested lists must have equal lengths at every level; pad them, or keep a "
                f"list of tensors"
            ) from None
        if dtype is None and array.dtype == np.float64 and _is_python_number(data):
            array = array.astype(np.float32)
    else:
        raise DTypeError(
            f"{op}: {brief(data)} is not a tensor; pass a Tensor, a number, an array or a list of "
            f"numbers"
        )
    try:
        return array.astype((dtype or dtype_of(array.dtype)).numpy, copy=False)
    except DTypeError:
        raise DTypeError(
            f"{op}: {brief(data)} of dtype {array.dtype} has no tensor type; convert it to numbers "
            f"or bools"
        ) from None


def _is_python_number(data: Any) -> bool:
    """Whether the first leaf of nested lists is Python's own number (or there is none)."""
    while isinstance(data, (list, tuple)) and data:
        data = data[0]
    return not isinstance(data, (np.generic, np.ndarray, Tensor))


def constant(value: Scalar, dtype: DType, shape: Shape = ()) -> Tensor:
    """A tensor filled with `value`."""
    return ops.full(value=value, shape=shape, dtype=dtype)


def as_scalar(op: str, x: Any, dtype: DType) -> Scalar:
    """A number as the Python number that `dtype` holds; DTypeError where it does not fit."""
    value = x.item() if isinstance(x, np.generic) else x
    if dtype.kind == "float":
        return float(value)
    if dtype.kind == "bool":
        return bool(value)
    try:
        whole = int(value)
    except (ValueError, OverflowError):  # NaN, infinity
        raise DTypeError(
            f"{op}: {value} cannot be stored as {dtype.name}; cast the tensor to float"
        ) from None
    bounds = np.iinfo(dtype.numpy)
    if not bounds.min <= whole <= bounds.max:
        raise DTypeError(
            f"{op}: {whole} does not fit {dtype.name} ({bounds.min} to {bounds.max}); "
            f"cast the tensor to a wider dtype first"
        )
    return whole


# ---- dtypes -------------------------------------------------------------------------------------


def cast(x: Tensor, dtype: DType) -> Tensor:
    """`x` in `dtype`, itself when it has it."""
    return x if x.dtype is dtype else ops.cast(x, dtype=dtype)


def floating(op: str, x: Any) -> Tensor:
    """`x` as a Tensor of a floating dtype: integers and bools become float32."""
    x = as_tensor(op, x)
    return x if x.dtype.is_floating else ops.cast(x, dtype=float32)


def need_floating(op: str, x: Any) -> Tensor:
    """`x` as a Tensor; DTypeError unless its dtype is floating (torch refuses to guess here)."""
    x = as_tensor(op, x)
    if not x.dtype.is_floating:
        raise DTypeError(f"{op} needs a floating dtype, got {x.dtype.name}; call .float() first")
    return x


def truth(op: str, x: Any) -> Tensor:
    """`x` as a bool Tensor: nonzero is True."""
    x = as_tensor(op, x)
    return x if x.dtype is bool_ else ops.ne(x, as_scalar(op, 0, x.dtype))


def wide(x: Tensor) -> Tensor:
    """Half precision widened to float32, in which sums of many terms are computed."""
    return ops.cast(x, dtype=float32) if x.dtype.is_floating and x.dtype.itemsize < 4 else x


def promoted(op: str, *operands: Any, need: str = "bool") -> list[Any]:
    """The operands in their common dtype (torch.result_type), ready for a primitive.

    Tensors are cast where needed; Python scalars stay scalars, but at least one result is a Tensor.
    `need` is the least category of the common dtype: "float" turns integers into float32.
    """
    tensors: list[tuple[DType, int]] = []
    scalars: list[Any] = []
    found: list[Any] = []
    for x in operands:
        if is_scalar(x):
            scalars.append(x.item() if isinstance(x, np.generic) else x)
        else:
            x = as_tensor(op, x)
            tensors.append((x.dtype, x.ndim))
        found.append(x)
    dtype = result_type(tensors, scalars)
    if _CATEGORY[dtype.kind] < _CATEGORY[need]:
        dtype = float32 if need == "float" else int64
    mixed: list[Any] = [
        cast(x, dtype) if isinstance(x, Tensor) else as_scalar(op, x, dtype) for x in found
    ]
    if not tensors:
        mixed[0] = constant(as_scalar(op, scalars[0], dtype), dtype)
    return mixed


# ---- writing in place ---------------------------------------------------------------------------


def mutate(op: str, x: Tensor, value: Tensor) -> Tensor:
    """Write `value` into `x` (in-place `op`) and return `x`.

    The write must change neither shape (ShapeError) nor the category of the dtype (DTypeError);
    inside a category the value is cast, as torch does.
    """
    if value.shape != x.shape:
        raise ShapeError(
            f"{op}: the result has shape {value.shape}, which does not fit into the tensor of "
            f"shape {x.shape}; an in-place op cannot grow a tensor, so write x = x.{op[:-1]}(...)"
        )
    if value.dtype is not x.dtype:
        if _CATEGORY[value.dtype.kind] > _CATEGORY[x.dtype.kind]:
            raise DTypeError(
                f"{op}: the result is {value.dtype.name}, which cannot be stored in a tensor of "
                f"{x.dtype.name}; cast the tensor first or write x = x.{op[:-1]}(...)"
            )
        value = ops.cast(value, dtype=x.dtype)
    engine().write(x, value)
    return x


# ---- arguments ----------------------------------------------------------------------------------


def dims_of(sizes: tuple[Any, ...]) -> tuple[Any, ...]:
    """The ints of `f(2, 3)` or of `f((2, 3))`."""
    if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
        return tuple(sizes[0])
    return sizes


def named(function: Function, name: str, doc: str) -> Function:
    """The function, made by another one, under a name and with a docstring of its own."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


def numpy_names(function: Function) -> Function:
    """Decorator: `axis` and `keepdims` mean `dim` (or `dims`) and `keepdim`."""
    dims = "dims" if "dims" in inspect.signature(function).parameters else "dim"
    renamed = {"axis": dims, "axes": dims, "keepdims": "keepdim"}

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        for old in kwargs.keys() & renamed if kwargs else ():
            if renamed[old] in kwargs:
                raise ArgumentError(
                    f"{function.__name__}: {old} and {renamed[old]} are the same thing; give one"
                )
            kwargs[renamed[old]] = kwargs.pop(old)
        return function(*args, **kwargs)

    return wrapper  # type: ignore[return-value]


def quietly(function: Function) -> Function:
    """Decorator: a composite enters quiet mode once for all its primitives."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with quiet():
            return function(*args, **kwargs)

    return wrapper  # type: ignore[return-value]


def check_device(op: str, device: Any) -> None:
    """Only the CPU holds eager tensors; BackendError for another device."""
    if device is None or str(device) == "cpu":
        return
    if str(device).startswith("cuda"):
        raise BackendError(
            f"{op}: device {str(device)!r}: eager tensors live on the CPU; a compiled program uses "
            f"a GPU by ta.compile(fn, backend='cupy'), which needs CuPy and an NVIDIA driver"
        )
    raise BackendError(f"{op}: no such device or dtype: {device!r}; devices are 'cpu' and 'cuda'")
