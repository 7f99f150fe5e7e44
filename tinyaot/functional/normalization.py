"""Normalisations: subtract a mean, divide by a deviation. Statistics in float32 or wider."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tinyaot import ops
from tinyaot.errors import ArgumentError, ShapeError
from tinyaot.functional.common import mean_over, quietly, to_dtype, wide
from tinyaot.functions.operands import mutate, need_floating
from tinyaot.shapes import Shape
from tinyaot.tape import no_grad
from tinyaot.tensor import Tensor


@quietly
def layer_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Each trailing slice of `normalized_shape` brought to mean 0 and variance 1 (Ba et al., 2016).

    weight and bias, of that shape, then scale and shift. Raises ShapeError where input does not end
    in `normalized_shape`.
    """
    input = need_floating("layer_norm", input)
    x = wide(input)
    axes = _trailing_axes("layer_norm", x, normalized_shape, weight, bias)
    centred = ops.sub(x, mean_over(x, axes))
    variance = mean_over(ops.mul(centred, centred), axes)
    y = ops.mul(centred, ops.rsqrt(ops.add(variance, float(eps))))
    return to_dtype(_scaled(y, weight, bias), input.dtype)


@quietly
def rms_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """Each trailing slice of `normalized_shape` over its root mean square (Zhang and Sennrich,
    2019), times weight. `eps=None` is the machine epsilon of the dtype it is computed in."""
    input = need_floating("rms_norm", input)
    x = wide(input)
    axes = _trailing_axes("rms_norm", x, normalized_shape, weight, None)
    small = float(np.finfo(x.dtype.numpy).eps) if eps is None else float(eps)
    square = mean_over(ops.mul(x, x), axes)
    y = ops.mul(x, ops.rsqrt(ops.add(square, small)))
    return to_dtype(_scaled(y, weight, None), input.dtype)


@quietly
def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: Any = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Each channel (dim 1) brought to mean 0 and variance 1 (Ioffe and Szegedy, 2015).

    In training, by the statistics of the batch, which also move running_mean and running_var (the
    latter unbiased) by `momentum`, in place and outside autograd; else by the running ones. weight
    and bias are [channels]. Raises ShapeError for a training batch of one value a channel.
    """
    input = need_floating("batch_norm", input)
    x = wide(input)
    if x.ndim < 2:
        raise ShapeError(f"batch_norm: input must be [n, channels, ...], got shape {x.shape}")
    channels = x.shape[1]
    for name, t in (
        ("running_mean", running_mean),
        ("running_var", running_var),
        ("weight", weight),
        ("bias", bias),
    ):
        if t is not None and t.shape != (channels,):
            raise ShapeError(f"batch_norm: {name} must have shape ({channels},), got {t.shape}")
    shape = (1, channels, *[1] * (x.ndim - 2))

    def along(t: Tensor) -> Any:
        return ops.reshape(to_dtype(t, x.dtype), shape=shape)

    if training:
        axes = tuple(a for a in range(x.ndim) if a != 1)
        count = math.prod(x.shape[a] for a in axes)
        if count <= 1:
            raise ShapeError(
                f"batch_norm: training needs more than one value a channel, got input {x.shape}; "
                f"use a larger batch or call eval()"
            )
        mean = mean_over(x, axes)
        centred = ops.sub(x, mean)
        variance = mean_over(ops.mul(centred, centred), axes)
        with no_grad():
            unbiased = ops.mul(variance, count / (count - 1))
            _move(running_mean, mean, momentum)
            _move(running_var, unbiased, momentum)
    elif running_mean is None or running_var is None:
        raise ArgumentError("batch_norm: without training, running_mean and running_var are needed")
    else:
        centred = ops.sub(x, along(running_mean))
        variance = along(running_var)
    y = ops.mul(centred, ops.rsqrt(ops.add(variance, float(eps))))
    if weight is not None:
        y = ops.mul(y, along(weight))
    if bias is not None:
        y = ops.add(y, along(bias))
    return to_dtype(y, input.dtype)


def _move(running: Tensor | None, statistic: Tensor, momentum: Any) -> None:
    """running becomes (1 - momentum) * running + momentum * statistic, in place."""
    if running is None:
        return
    new = to_dtype(ops.reshape(statistic, shape=running.shape), running.dtype)
    if isinstance(momentum, Tensor):
        momentum = to_dtype(momentum, running.dtype)
        old_part = ops.mul(running, ops.sub(1.0, momentum))
    else:
        old_part = ops.mul(running, 1.0 - momentum)
    mutate("batch_norm", running, ops.add(old_part, ops.mul(new, momentum)))


def _trailing_axes(
    op: str,
    x: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
) -> Shape:
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not shape or x.shape[-len(shape) :] != shape:
        raise ShapeError(f"{op}: an input of shape {x.shape} does not end in {shape}")
    for name, t in (("weight", weight), ("bias", bias)):
        if t is not None and t.shape != shape:
            raise ShapeError(f"{op}: {name} must have shape {shape}, got {t.shape}")
    return tuple(range(x.ndim - len(shape), x.ndim))


def _scaled(y: Any, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    if weight is not None:
        y = ops.mul(y, to_dtype(weight, y.dtype))
    if bias is not None:
        y = ops.add(y, to_dtype(bias, y.dtype))
    return y
