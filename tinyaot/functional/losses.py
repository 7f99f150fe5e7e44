"""Losses. The class of a target is found by comparing it with an index, so that a whole loss is
maps and sums over one row: a gather of one element a row would be an op of its own.
"""

from __future__ import annotations

import warnings

from tinyaot import ops
from tinyaot.errors import DTypeError, ShapeError
from tinyaot.functional.activations import softplus_exact
from tinyaot.functional.common import (
    positions,
    quietly,
    reduced,
    squeezed,
    to_dtype,
    unsqueezed,
    wide,
)
from tinyaot.functions.operands import as_tensor, need_floating, promoted
from tinyaot.shapes import broadcast_shapes, int64
from tinyaot.tensor import Tensor


@quietly
def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """The negative log likelihood of `target` under softmax(input) over the classes.

    input: logits [classes], [n, classes] or [n, classes, ...]. target: class indices (integers, of
    input's shape without the classes) or probabilities (of input's shape). weight: [classes], a
    factor for each. Targets equal to `ignore_index` count for nothing; "mean" divides by the sum of
    the weights of those that count. Raises IndexingError for a target that is no class.
    """
    input = need_floating("cross_entropy", input)
    x = wide(input)
    axis = _class_axis("cross_entropy", x)
    shifted = ops.sub(x, ops.detach(ops.amax(x, axes=(axis,))))
    log_total = ops.log(ops.sum(ops.exp(shifted), axes=(axis,)))
    target = as_tensor("cross_entropy", target)
    if target.dtype.is_floating:
        loss = _against_probabilities(
            ops.sub(shifted, log_total), target, weight, axis, reduction, label_smoothing
        )
        return to_dtype(loss, input.dtype)
    index = _class_index("cross_entropy", x, target, axis)
    hit = ops.eq(positions(x, axis), index)
    loss = ops.sub(log_total, _at(hit, shifted, axis))
    scale = None if weight is None else _along(weight, x, axis)
    chosen = None if scale is None else _at(hit, scale, axis)
    if chosen is not None:
        loss = ops.mul(loss, chosen)
    if label_smoothing:
        losses = ops.sub(log_total, shifted)  # had each class been the target
        if scale is not None:
            losses = ops.mul(losses, scale)
        spread = ops.mul(ops.sum(losses, axes=(axis,)), label_smoothing / x.shape[axis])
        loss = ops.add(ops.mul(loss, 1.0 - label_smoothing), spread)
    loss = _over_rows("cross_entropy", loss, x, index, chosen, axis, ignore_index, reduction)
    return to_dtype(loss, input.dtype)


@quietly
def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """The negative of each row's log probability `input` at its `target` class.

    Shapes, weight, ignore_index and errors as in `cross_entropy`, of which this is the last part.
    """
    input = need_floating("nll_loss", input)
    x = wide(input)
    axis = _class_axis("nll_loss", x)
    index = _class_index("nll_loss", x, as_tensor("nll_loss", target), axis)
    hit = ops.eq(positions(x, axis), index)
    loss = ops.neg(_at(hit, x, axis))
    chosen = None if weight is None else _at(hit, _along(weight, x, axis), axis)
    if chosen is not None:
        loss = ops.mul(loss, chosen)
    loss = _over_rows("nll_loss", loss, x, index, chosen, axis, ignore_index, reduction)
    return to_dtype(loss, input.dtype)


@quietly
def mse_loss(input: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """(input - target) squared. Shapes that differ broadcast, with a warning."""
    x, y = promoted("mse_loss", input, target, need="float")
    if x.shape != y.shape:
        broadcast_shapes("mse_loss", x.shape, y.shape)
        warnings.warn(
            f"mse_loss: input {x.shape} and target {y.shape} differ in shape and are broadcast; "
            f"make them equal unless that is meant",
            stacklevel=3,
        )
    difference = ops.sub(wide(x), wide(y))
    loss = reduced("mse_loss", ops.mul(difference, difference), reduction)
    return to_dtype(loss, x.dtype)


@quietly
def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """-log sigmoid(input) where target is 1, -log(1 - sigmoid(input)) where it is 0, and between.

    target has input's shape; weight scales each loss, pos_weight the part of the positives (both
    broadcast). Raises ShapeError where the shapes differ.
    """
    name = "binary_cross_entropy_with_logits"
    x, y = promoted(name, input, target, need="float")
    if x.shape != y.shape:
        raise ShapeError(f"{name}: target of shape {y.shape} must have input's shape {x.shape}")
    result = x.dtype
    x, y = wide(x), wide(y)
    loss = softplus_exact(ops.neg(x))
    if pos_weight is not None:
        factor = to_dtype(as_tensor(name, pos_weight), x.dtype)
        loss = ops.mul(loss, ops.add(ops.mul(ops.sub(factor, 1.0), y), 1.0))
    loss = ops.add(ops.mul(ops.sub(1.0, y), x), loss)
    if weight is not None:
        loss = ops.mul(loss, to_dtype(as_tensor(name, weight), x.dtype))
    return to_dtype(reduced(name, loss, reduction), result)


# ---- class indices ------------------------------------------------------------------------------


def _class_axis(op: str, x: Tensor) -> int:
    if x.ndim == 0:
        raise ShapeError(f"{op}: input must have a dim of classes, got a 0-d tensor")
    return 0 if x.ndim == 1 else 1


def _class_index(op: str, x: Tensor, target: Tensor, axis: int) -> Tensor:
    """The targets with an axis for the classes: int64."""
    if target.dtype.kind != "int":
        raise DTypeError(f"{op}: class targets must be integers, got {target.dtype.name}")
    rows = x.shape[:axis] + x.shape[axis + 1 :]
    if target.shape != rows:
        raise ShapeError(
            f"{op}: an input of shape {x.shape} needs targets of shape {rows} (class indices) or "
            f"{x.shape} (floating probabilities), got {target.shape}"
        )
    return unsqueezed(to_dtype(target, int64), axis)


def _at(hit: Tensor, values: Tensor, axis: int) -> Tensor:
    """Of each row, the value where `hit` holds: once, or nowhere."""
    return ops.sum(ops.where(hit, values, 0.0), axes=(axis,))


def _along(weight: Tensor, x: Tensor, axis: int) -> Tensor:
    if weight.shape != (x.shape[axis],):
        raise ShapeError(
            f"weight must have shape ({x.shape[axis]},), one for each class, got {weight.shape}"
        )
    shape = tuple(n if a == axis else 1 for a, n in enumerate(x.shape))
    return ops.reshape(to_dtype(weight, x.dtype), shape=shape)


def _over_rows(
    op: str,
    loss: Tensor,
    x: Tensor,
    index: Tensor,
    chosen: Tensor | None,
    axis: int,
    ignore_index: int,
    reduction: str,
) -> Tensor:
    """Drop the ignored rows and reduce the others; `chosen` are their weights, for the mean.
    IndexingError for a target that is no class.

    The class axis of loss, index and weights has size 1.
    """
    # Checked where no loop over the classes reads it, in the forward or in the backward.
    known = ops.within(index, what=f"{op}: target", size=x.shape[axis], ignored=ignore_index)
    mean = reduction == "mean"
    loss = ops.where(ops.ne(index if mean else known, ignore_index), loss, 0.0)
    if not mean:
        return reduced(op, squeezed(loss, axis), reduction)
    weights = ops.cast(ops.ne(known, ignore_index), dtype=loss.dtype)
    if chosen is not None:
        weights = ops.mul(weights, chosen)
    axes = tuple(range(loss.ndim))
    total = ops.div(ops.sum(loss, axes=axes), ops.sum(weights, axes=axes))
    return ops.reshape(total, shape=())


# ---- probabilities ------------------------------------------------------------------------------


def _against_probabilities(
    log_p: Tensor,
    target: Tensor,
    weight: Tensor | None,
    axis: int,
    reduction: str,
    smoothing: float,
) -> Tensor:
    """-sum(target * log_p) over the classes; "mean" divides by the number of rows."""
    if target.shape != log_p.shape:
        raise ShapeError(
            f"cross_entropy: target probabilities of shape {target.shape} must have input's shape "
            f"{log_p.shape}"
        )
    classes = log_p.shape[axis]
    target = to_dtype(target, log_p.dtype)
    if smoothing:
        target = ops.add(ops.mul(target, 1.0 - smoothing), smoothing / classes)
    terms = ops.mul(log_p, target)
    if weight is not None:
        terms = ops.mul(terms, _along(weight, log_p, axis))
    loss = squeezed(ops.neg(ops.sum(terms, axes=(axis,))), axis)
    return reduced("cross_entropy", loss, reduction)
