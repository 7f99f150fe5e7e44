"""What the composites share. They are plain Python over primitives: no compiler pass knows them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from tinyaot import ops
from tinyaot.errors import ArgumentError, DTypeError, GradError, ShapeError
from tinyaot.functions.operands import cast as to_dtype
from tinyaot.functions.operands import mutate, quietly, wide
from tinyaot.shapes import Shape, as_int, int64
from tinyaot.tape import no_grad
from tinyaot.tensor import Tensor


def need_same_dtype(op: str, first: Tensor, *others: Tensor | None) -> None:
    """DTypeError unless all have the dtype of the first: here nothing is promoted, as in torch."""
    for t in others:
        if t is not None and t.dtype is not first.dtype:
            better = t.dtype if not first.dtype.is_floating else first.dtype
            raise DTypeError(
                f"{op}: an input of {first.dtype.name} does not fit one of {t.dtype.name}; cast "
                f"one of them first, as in x.to(ta.{better.name})"
            )


def positions(x: Tensor, axis: int, start: int = 0) -> Tensor:
    """0, 1, 2, ... along `axis` of x, with size 1 elsewhere: int64, to compare indices with."""
    shape = tuple(n if a == axis else 1 for a, n in enumerate(x.shape))
    index = ops.reshape(ops.iota(size=x.shape[axis], dtype=int64), shape=shape)
    return ops.add(index, start) if start else index


def unsqueezed(x: Tensor, axis: int) -> Tensor:
    """x with an axis of size 1 put in at `axis`."""
    return ops.reshape(x, shape=(*x.shape[:axis], 1, *x.shape[axis:]))


def squeezed(x: Tensor, axis: int) -> Tensor:
    """x without its `axis`, which has size 1."""
    return ops.reshape(x, shape=x.shape[:axis] + x.shape[axis + 1 :])


def mean_over(x: Tensor, axes: Shape) -> Tensor:
    """The mean along `axes`, which stay with size 1."""
    count = math.prod(x.shape[a] for a in axes)
    # NaN over nothing; a division, since the reciprocal of a count is not exact.
    return ops.div(ops.sum(x, axes=axes), float(count))


def reduced(op: str, loss: Tensor, reduction: str) -> Tensor:
    """The losses themselves ("none"), their sum, or their mean."""
    if reduction == "none":
        return loss
    axes = tuple(range(loss.ndim))
    if reduction == "sum":
        return ops.reshape(ops.sum(loss, axes=axes), shape=())
    if reduction == "mean":
        return ops.reshape(mean_over(loss, axes), shape=())
    raise ArgumentError(f"{op}: reduction must be 'none', 'sum' or 'mean', got {reduction!r}")


def pair(op: str, name: str, value: Any) -> tuple[int, int]:
    """An int or two of them, for the two dimensions of an image."""
    sizes = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    if len(sizes) == 1:
        sizes = sizes * 2
    if len(sizes) != 2:
        raise ShapeError(f"{op}: {name} must be an int or two, got {value!r}")
    return as_int(op, sizes[0], name), as_int(op, sizes[1], name)


def forget_gradients(parameters: Iterable[Tensor], set_to_none: bool) -> None:
    """Take the gradients away, or write zeros to them: also to one that a compiled step did not
    keep, since it is zero now, whatever it was."""
    for p in parameters:
        if set_to_none:
            p.grad = None
            continue
        with no_grad():
            try:
                grad = p.grad
            except GradError:
                p.grad = ops.zeros_like(p)
            else:
                if grad is not None:
                    mutate("zero_", grad, ops.zeros_like(grad))


__all__ = [
    "forget_gradients",
    "mean_over",
    "need_same_dtype",
    "pair",
    "positions",
    "quietly",
    "reduced",
    "squeezed",
    "to_dtype",
    "unsqueezed",
    "wide",
]
