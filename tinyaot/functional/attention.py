"""Scaled dot-product attention (Vaswani et al., 2017): two products with a softmax between.

The sum of the softmax divides the result, not the weights: the same value with fewer divisions,
and the form whose gradient needs no pass over the weights for their normalisation.
"""

from __future__ import annotations

import math
from typing import Any

from tinyaot import ops
from tinyaot.errors import ArgumentError, DTypeError, ShapeError
from tinyaot.functional.activations import dropout
from tinyaot.functional.common import need_same_dtype, positions, quietly, to_dtype, wide
from tinyaot.functions.operands import need_floating
from tinyaot.shapes import Shape, broadcast_shapes
from tinyaot.tensor import Tensor

_OP = "scaled_dot_product_attention"
_BATCH = "abcdfghijkmnopqrtuwxyz"  # letters of leading dims; l, e, s and v are taken


@quietly
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(query @ key.T * scale + mask) @ value, over the last two dims.

    query [..., L, E], key [..., S, E], value [..., S, V] give [..., L, V]; leading dims broadcast.
    attn_mask broadcasts to [..., L, S]: a bool one is True where the query attends, a float one is
    added. A query that attends to nothing gives zeros. `is_causal`: query i attends to keys 0 to i
    (no attn_mask then). dropout_p applies always; pass 0.0 in evaluation. `scale` is 1 / sqrt(E) by
    default. `enable_gqa`: groups of query heads (dim -3) share a head of key and value.
    Raises ShapeError where the shapes do not fit.
    """
    if enable_gqa:
        return _grouped(query, key, value, attn_mask, dropout_p, is_causal, scale)
    need_same_dtype(_OP, query, key, value)
    weights, total = attention_weights(query, key, attn_mask, is_causal, scale)
    if dropout_p:
        weights = dropout(weights, dropout_p)
    return weighted_values(weights, total, value)


def attention_weights(
    query: Tensor, key: Tensor, attn_mask: Tensor | None, is_causal: bool, scale: float | None
) -> tuple[Tensor, Tensor]:
    """exp(scores - their greatest) [..., L, S], and its sum over keys [..., L, 1] (1 where 0)."""
    query, key = need_floating(_OP, query), need_floating(_OP, key)
    if query.ndim < 2 or key.ndim < 2 or query.shape[-1] != key.shape[-1]:
        raise ShapeError(
            f"{_OP}: query {query.shape} and key {key.shape} must be [..., L, E] and [..., S, E]"
        )
    if is_causal and attn_mask is not None:
        raise ArgumentError(f"{_OP}: give attn_mask or is_causal=True, not both")
    if scale is None:
        scale = 1.0 / math.sqrt(query.shape[-1]) if query.shape[-1] else 1.0
    scores = wide(_batched("le,se->ls", ops.mul(query, float(scale)), key))
    if is_causal:
        rows, columns = positions(scores, scores.ndim - 2), positions(scores, scores.ndim - 1)
        scores = ops.where(ops.le(columns, rows), scores, -math.inf)
    elif attn_mask is not None:
        scores = _masked(scores, attn_mask)
    greatest = ops.detach(ops.amax(scores, axes=(scores.ndim - 1,)))
    if attn_mask is not None:  # a row may be masked whole
        greatest = ops.where(ops.eq(greatest, -math.inf), 0.0, greatest)
    weights = ops.exp(ops.sub(scores, greatest))
    total = ops.sum(weights, axes=(scores.ndim - 1,))
    if attn_mask is not None:
        total = ops.where(ops.eq(total, 0.0), 1.0, total)
    return weights, total


def weighted_values(weights: Tensor, total: Tensor, value: Tensor) -> Tensor:
    """weights @ value / total, in value's dtype."""
    if value.ndim < 2 or value.shape[-2] != weights.shape[-1]:
        raise ShapeError(
            f"{_OP}: value {value.shape} must be [..., S, V] with {weights.shape[-1]} keys"
        )
    y = wide(_batched("ls,sv->lv", to_dtype(weights, value.dtype), value))
    return to_dtype(ops.div(y, total), value.dtype)


def _masked(scores: Tensor, mask: Tensor) -> Tensor:
    shape = broadcast_shapes(f"{_OP} attn_mask", scores.shape, mask.shape)
    if shape != scores.shape:
        raise ShapeError(
            f"{_OP}: attn_mask of shape {mask.shape} does not broadcast to {scores.shape}"
        )
    if mask.dtype.kind == "bool":
        return ops.where(mask, scores, -math.inf)
    if mask.dtype.is_floating:
        return ops.add(scores, to_dtype(mask, scores.dtype))
    raise DTypeError(f"{_OP}: attn_mask must be bool or floating, got {mask.dtype.name}")


def _batched(spec: str, a: Tensor, b: Tensor) -> Tensor:
    """A product of matrices, with the leading dims as batch letters; those of size 1 broadcast."""
    batch = broadcast_shapes(_OP, a.shape[:-2], b.shape[:-2])
    letters = _BATCH[: len(batch)]
    left, rest = spec.split(",")
    right, out = rest.split("->")
    spec = f"{letters}{left},{letters}{right}->{letters}{out}"
    return ops.dot(_expanded(a, batch), _expanded(b, batch), spec=spec)


def _expanded(x: Tensor, batch: Shape) -> Any:
    shape = batch + x.shape[-2:]
    return x if x.shape == shape else ops.broadcast(x, shape=shape)


def _grouped(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> Tensor:
    """Grouped-query attention: query heads [H] as [H / groups, groups], keys with one head each."""
    heads = query.shape[-3] if query.ndim > 2 else 1
    shared = key.shape[-3] if key.ndim > 2 else 1
    if heads % shared or value.ndim != key.ndim or value.shape[-3] != shared:
        raise ShapeError(
            f"{_OP}: {heads} query heads of {query.shape} cannot share the heads of key "
            f"{key.shape} and value {value.shape}"
        )

    def split(x: Tensor, first: int, second: int) -> Tensor:
        return ops.reshape(x, shape=(*x.shape[:-3], first, second, *x.shape[-2:]))

    if attn_mask is not None and attn_mask.ndim > 2:
        per_head = attn_mask.shape[-3] == heads and heads > 1
        attn_mask = split(attn_mask, *((shared, heads // shared) if per_head else (1, 1)))
    y = scaled_dot_product_attention(
        split(query, shared, heads // shared),
        split(key, shared, 1),
        split(value, shared, 1),
        attn_mask,
        dropout_p,
        is_causal,
        scale,
    )
    return ops.reshape(y, shape=(*y.shape[:-4], heads, *y.shape[-2:]))
