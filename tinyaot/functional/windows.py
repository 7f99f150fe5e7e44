"""Convolution and pooling: what slides a window over an image.

A window is taken apart by position: for each place in the kernel one strided slice holds what all
windows see there. A convolution stacks the slices and is then one product (im2col, Chellapilla et
al., 2006); a pooling combines them with maps. Images are [n, channels, height, width] or without n.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from tinyaot import ops
from tinyaot.errors import ArgumentError, DTypeError, ShapeError
from tinyaot.functional.common import need_same_dtype, pair, quietly, to_dtype, unsqueezed, wide
from tinyaot.functions.operands import as_tensor, need_floating
from tinyaot.functions.shape import pad as constant_pad
from tinyaot.shapes import int64
from tinyaot.tensor import Tensor


class Axis(NamedTuple):
    """How windows lie along one axis of an image of `size`."""

    size: int
    kernel: int
    stride: int
    before: int  # padding
    after: int
    dilation: int
    windows: int  # how many

    @property
    def reach(self) -> int:
        """Padding that the last window needs after the image."""
        end = (self.windows - 1) * self.stride + self.dilation * (self.kernel - 1) + 1
        return max(end - self.before - self.size, 0)


def _axis(
    op: str,
    size: int,
    kernel: int,
    stride: int,
    before: int,
    after: int,
    dilation: int = 1,
    ceil_mode: bool = False,
) -> Axis:
    if kernel < 1 or stride < 1 or dilation < 1 or before < 0 or after < 0:
        raise ArgumentError(
            f"{op}: kernel {kernel}, stride {stride} and dilation {dilation} must be positive, "
            f"padding {before} not negative"
        )
    room = size + before + after - dilation * (kernel - 1) - 1
    count = (-(-room // stride) if ceil_mode else room // stride) + 1
    if ceil_mode and (count - 1) * stride >= size + before:
        count -= 1  # the last window must start inside the image or its padding before
    if count < 1 or size == 0:
        raise ShapeError(
            f"{op}: a window of {dilation * (kernel - 1) + 1} does not fit an axis of size {size} "
            f"with padding {before} and {after}"
        )
    return Axis(size, kernel, stride, before, after, dilation, count)


def _slices(x: Tensor, rows: Axis, columns: Axis, value: float) -> list[Any]:
    """For each place in the kernel, row by row, what all the windows see there: [n, c, y, x]."""
    around = (columns.before, columns.reach, rows.before, rows.reach)
    if any(around):
        x = constant_pad(x, around, value=value)
    found = []
    for i in range(rows.kernel):
        for j in range(columns.kernel):
            top, left = i * rows.dilation, j * columns.dilation
            bottom = top + (rows.windows - 1) * rows.stride + 1
            right = left + (columns.windows - 1) * columns.stride + 1
            found.append(
                ops.slice(
                    x,
                    starts=(0, 0, top, left),
                    stops=(*x.shape[:2], bottom, right),
                    steps=(1, 1, rows.stride, columns.stride),
                )
            )
    return found


def _batched(op: str, input: Tensor) -> tuple[Tensor, bool]:
    """The image with a batch dim, and whether that had to be put in."""
    if input.ndim not in (3, 4):
        raise ShapeError(f"{op}: input must be [n, c, h, w] or [c, h, w], got {input.shape}")
    return (unsqueezed(input, 0), True) if input.ndim == 3 else (input, False)


def _unbatched(y: Tensor, alone: bool) -> Tensor:
    return ops.reshape(y, shape=y.shape[1:]) if alone else y


# ---- convolution --------------------------------------------------------------------------------


@quietly
def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Cross-correlation of images [n, in, h, w] with kernels [out, in / groups, kh, kw].

    bias [out]; padding an int, a pair, "valid" or "same" (stride 1). Gives [n, out, h', w'] with
    h' = (h + 2 padding - dilation (kh - 1) - 1) // stride + 1. Raises ShapeError where the channels
    do not fit.
    """
    x, alone = _batched("conv2d", need_floating("conv2d", input))
    need_same_dtype("conv2d", x, weight, bias)
    if weight.ndim != 4:
        raise ShapeError(f"conv2d: weight must be [out, in, kh, kw], got shape {weight.shape}")
    out_channels, in_channels, kh, kw = weight.shape
    if x.shape[1] != in_channels * groups or out_channels % groups:
        raise ShapeError(
            f"conv2d: an input of {x.shape[1]} channels does not fit a weight of shape "
            f"{weight.shape} in {groups} group(s)"
        )
    strides, dilations = pair("conv2d", "stride", stride), pair("conv2d", "dilation", dilation)
    before, after = _padding(padding, strides, dilations, (kh, kw))
    rows, columns = (
        _axis("conv2d", x.shape[2 + a], (kh, kw)[a], strides[a], before[a], after[a], dilations[a])
        for a in (0, 1)
    )
    slices = [unsqueezed(s, 2) for s in _slices(x, rows, columns, 0.0)]
    seen = slices[0] if len(slices) == 1 else ops.concat(*slices, axis=2)
    n, image = x.shape[0], (rows.windows, columns.windows)
    # n: image, g: group, o: channel out, i: channel in, k: place in the kernel, y and x: window
    if groups == 1:
        kernel = ops.reshape(weight, shape=(out_channels, in_channels, kh * kw))
        y = ops.dot(seen, kernel, spec="nikyx,oik->noyx")
    else:
        seen = ops.reshape(seen, shape=(n, groups, in_channels, kh * kw, *image))
        grouped = (groups, out_channels // groups, in_channels, kh * kw)
        y = ops.dot(seen, ops.reshape(weight, shape=grouped), spec="ngikyx,goik->ngoyx")
        y = ops.reshape(y, shape=(n, out_channels, *image))
    if bias is not None:
        y = ops.add(y, ops.reshape(bias, shape=(1, out_channels, 1, 1)))
    return _unbatched(y, alone)


def _padding(
    padding: Any, strides: tuple[int, int], dilations: tuple[int, int], kernel: tuple[int, int]
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Padding before and after, for rows and columns."""
    if padding == "valid":
        padding = 0
    if padding == "same":
        if strides != (1, 1):
            raise ArgumentError("conv2d: padding='same' needs stride 1")
        total = [d * (k - 1) for d, k in zip(dilations, kernel)]
        return (total[0] // 2, total[1] // 2), (
            total[0] - total[0] // 2,
            total[1] - total[1] // 2,
        )
    if isinstance(padding, str):
        raise ArgumentError(
            f"conv2d: padding must be an int, a pair, 'same' or 'valid': {padding!r}"
        )
    both = pair("conv2d", "padding", padding)
    return both, both


# ---- pooling ------------------------------------------------------------------------------------


def _pool_axes(
    op: str,
    x: Tensor,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
) -> tuple[Axis, Axis]:
    kernel = pair(op, "kernel_size", kernel_size)
    steps = kernel if stride is None else pair(op, "stride", stride)
    around, apart = pair(op, "padding", padding), pair(op, "dilation", dilation)
    if any(2 * p > k for p, k in zip(around, kernel)):
        raise ArgumentError(f"{op}: padding {around} is more than half of the window {kernel}")
    rows, columns = (
        _axis(op, x.shape[2 + a], kernel[a], steps[a], around[a], around[a], apart[a], ceil_mode)
        for a in (0, 1)
    )
    return rows, columns


@quietly
def max_pool2d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """The greatest element of each window; padding counts as -inf, NaN wins.

    `stride` is kernel_size by default. Of equal elements the first, row by row, gets the gradient.
    """
    x, alone = _batched("max_pool2d", as_tensor("max_pool2d", input))
    if x.dtype.kind == "bool":
        raise DTypeError("max_pool2d is not defined for bool; cast to a number first")
    axes = _pool_axes("max_pool2d", x, kernel_size, stride, padding, dilation, ceil_mode)
    floating = x.dtype.is_floating
    lowest = -math.inf if floating else int(np.iinfo(x.dtype.numpy).min)

    def greater(best: Any, other: Any) -> Any:
        wins = ops.gt(other, best)
        if floating:
            wins = ops.logical_or(wins, ops.isnan(other))
        return ops.where(wins, other, best)

    return _unbatched(functools.reduce(greater, _slices(x, *axes, lowest)), alone)


@quietly
def avg_pool2d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The mean of each window. `stride` is kernel_size by default.

    Padding counts as zeros, or not at all without `count_include_pad`; `divisor_override` divides
    the sums in place of the number of elements.
    """
    input = need_floating("avg_pool2d", input)
    x, alone = _batched("avg_pool2d", input)
    rows, columns = _pool_axes("avg_pool2d", x, kernel_size, stride, padding, 1, ceil_mode)
    total = functools.reduce(ops.add, _slices(wide(x), rows, columns, 0.0))
    divisor: Any
    if divisor_override is not None:
        if divisor_override == 0:
            raise ArgumentError("avg_pool2d: divisor_override must not be 0")
        divisor = float(divisor_override)
    elif all(_is_inside(a, count_include_pad) for a in (rows, columns)):
        divisor = float(rows.kernel * columns.kernel)
    else:
        heights, widths = (_extents(a, count_include_pad) for a in (rows, columns))
        area = ops.mul(ops.reshape(heights, shape=(rows.windows, 1)), widths)
        divisor = ops.cast(area, dtype=total.dtype)
    return _unbatched(to_dtype(ops.div(total, divisor), input.dtype), alone)


def _is_inside(axis: Axis, with_padding: bool) -> bool:
    """Whether every window counts all of its elements."""
    return axis.reach <= axis.after if with_padding else axis.before == axis.reach == 0


def _extents(axis: Axis, with_padding: bool) -> Any:
    """How many elements each window counts along an axis: int64[windows]."""
    start = ops.sub(ops.mul(ops.iota(size=axis.windows, dtype=int64), axis.stride), axis.before)
    stop = ops.minimum(ops.add(start, axis.kernel), axis.size + axis.after)
    if not with_padding:
        start, stop = ops.maximum(start, 0), ops.minimum(stop, axis.size)
    return ops.sub(stop, start)
