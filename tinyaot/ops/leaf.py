"""Leaves: values made from nothing. Masks, ramps and eyes are maps of `iota`."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinyaot.errors import DTypeError, ShapeError
from tinyaot.ops.core import Operand, declare
from tinyaot.shapes import DType, Shape, TensorType

_BLOCK = 8192  # elements written at a time, so that `iota` needs no second array of its size


def _full_type(value: bool | int | float, shape: Shape, dtype: DType) -> TensorType:
    if not isinstance(value, (bool, int, float)):
        raise DTypeError(f"full: the value must be a Python number, got {type(value).__name__}")
    if any(n < 0 for n in shape):
        raise ShapeError(f"full: {shape} is not a shape: sizes must not be negative")
    if dtype.kind == "int":
        limits = np.iinfo(dtype.numpy)
        if not limits.min <= value <= limits.max:  # infinity and NaN too
            raise DTypeError(f"full: {value} does not fit in {dtype.name}")
    return TensorType(dtype, tuple(shape))


def _full(value: bool | int | float, shape: Shape, dtype: DType) -> np.ndarray:
    return np.full(shape, value, dtype.numpy)


def _full_into(out: np.ndarray, value: bool | int | float, shape: Shape, dtype: DType) -> None:
    out.fill(value)


full = declare(
    "full",
    "leaf",
    _full_type,
    _full,
    _full_into,
    vjp=(),
    doc="`value` everywhere.",
)


def _iota_type(size: int, dtype: DType) -> TensorType:
    if dtype.kind == "bool":
        raise DTypeError("iota is not defined for bool; compare an integer iota instead")
    if size < 0:
        raise ShapeError(f"iota: {size} is not a size")
    return TensorType(dtype, (size,))


def _iota(size: int, dtype: DType) -> np.ndarray:
    return np.arange(size).astype(dtype.numpy, copy=False)


def _iota_into(out: np.ndarray, size: int, dtype: DType) -> None:
    block = np.arange(min(size, _BLOCK))
    for start in range(0, size, _BLOCK):
        if start:
            block += _BLOCK
        part = out[start : start + _BLOCK]
        np.copyto(part, block[: part.size], casting="unsafe")


iota = declare(
    "iota",
    "leaf",
    _iota_type,
    _iota,
    _iota_into,
    vjp=(),
    doc="0, 1, ... size - 1.",
    # the block, and the 8 bytes of a step where there are several
    scratch=lambda ins, out, attrs: 8 * min(out.size, _BLOCK) + 8 * (out.size > _BLOCK),
)


def zeros_like(x: Operand) -> Any:
    """A zero tensor of x's shape and dtype: a constant, so nothing of x is kept for it."""
    value = {"bool": False, "int": 0, "float": 0.0}[x.dtype.kind]
    return full(value=value, shape=tuple(x.shape), dtype=x.dtype)
