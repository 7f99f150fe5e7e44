"""Multi-head attention: projections around `scaled_dot_product_attention`."""

from __future__ import annotations

import math
from typing import Any

from tinyaot import functional as F
from tinyaot import ops
from tinyaot.errors import ArgumentError, DTypeError, ShapeError
from tinyaot.functional.attention import attention_weights, weighted_values
from tinyaot.functional.common import mean_over, squeezed, to_dtype, unsqueezed
from tinyaot.nn import init
from tinyaot.nn.layers import Linear, empty
from tinyaot.nn.module import Module
from tinyaot.shapes import bool_, int64
from tinyaot.tensor import Tensor


class MultiHeadAttention(Module):
    """Attention of `num_heads` heads, each on embed_dim / num_heads features.

    The parameters have the names and initial values of torch's `MultiheadAttention`, and `forward`
    its arguments. One thing differs: a boolean `attn_mask` is True where a query attends, as in
    `scaled_dot_product_attention` (torch's layer has it the other way round).
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if num_heads < 1 or embed_dim % num_heads:
            raise ArgumentError(
                f"MultiHeadAttention: {num_heads} heads do not divide {embed_dim} features"
            )
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.dropout = dropout
        self.batch_first = batch_first
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        one_width = self.kdim == self.vdim == embed_dim
        e = embed_dim
        kind: dict[str, Any] = {"device": device, "dtype": dtype}
        self.in_proj_weight = empty(3 * e, e, **kind) if one_width else None
        self.q_proj_weight = None if one_width else empty(e, e, **kind)
        self.k_proj_weight = None if one_width else empty(e, self.kdim, **kind)
        self.v_proj_weight = None if one_width else empty(e, self.vdim, **kind)
        self.in_proj_bias = empty(3 * e, **kind) if bias else None
        self.out_proj = Linear(e, e, bias=bias, **kind)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new values: Glorot's for the projections in, biases zero."""
        for weight in (
            self.in_proj_weight,
            self.q_proj_weight,
            self.k_proj_weight,
            self.v_proj_weight,
        ):
            if weight is not None:
                init.xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            init.constant_(self.in_proj_bias, 0.0)
        if self.out_proj.bias is not None:
            init.constant_(self.out_proj.bias, 0.0)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The attended values, and the weights (None without `need_weights`).

        query [L, n, E], key and value [S, n, E]; n first with `batch_first`; or without n.
        key_padding_mask [n, S]: True where a key is padding and not attended (or floats, added).
        attn_mask [L, S] or [n * heads, L, S]: True where a query attends (or floats, added).
        The weights are [n, L, S], the mean over the heads, or [n, heads, L, S] without
        `average_attn_weights`.
        """
        alone = query.ndim == 2
        if query.ndim not in (2, 3) or key.ndim != query.ndim or value.ndim != query.ndim:
            raise ShapeError(
                f"MultiHeadAttention: query {query.shape}, key {key.shape} and value {value.shape} "
                f"must all be 3-d, or all 2-d without a batch"
            )
        q, k, v = self._projected(query, key, value)
        mask = self._mask(q, k, key_padding_mask, attn_mask)
        if mask is not None and is_causal:
            mask, is_causal = _causal_too(q, k, mask), False
        weights, total = attention_weights(q, k, mask, is_causal, 1.0 / math.sqrt(self.head_dim))
        if self.training and self.dropout:
            weights = F.dropout(weights, self.dropout)
        heads = weighted_values(weights, total, v)  # [n, heads, L, head_dim]
        n, _, length, _ = heads.shape
        together = ops.reshape(
            ops.permute(heads, perm=(0, 2, 1, 3)), shape=(n, length, self.embed_dim)
        )
        y = self.out_proj(together)
        if alone:
            y = squeezed(y, 0)
        elif not self.batch_first:
            y = ops.permute(y, perm=(1, 0, 2))
        if not need_weights:
            return y, None
        shares = to_dtype(ops.div(weights, total), query.dtype)
        if average_attn_weights:
            shares = squeezed(mean_over(shares, (1,)), 1)
        return y, squeezed(shares, 0) if alone else shares

    def _projected(
        self, query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of every head: [n, heads, length, head_dim]."""
        e = self.embed_dim
        if self.in_proj_weight is not None and query is key is value:
            y = F.linear(self._batch_first(query), self.in_proj_weight, self.in_proj_bias)
            n, length, _ = y.shape
            y = ops.reshape(y, shape=(n, length, 3, self.num_heads, self.head_dim))
            y = ops.permute(y, perm=(2, 0, 3, 1, 4))
            q, k, v = (squeezed(ops.slice_axis(y, 0, i, i + 1), 0) for i in range(3))
            return q, k, v
        found = []
        weights: list[Any] = [self.q_proj_weight, self.k_proj_weight, self.v_proj_weight]
        for i, x in enumerate((query, key, value)):
            weight, bias = weights[i], None
            if self.in_proj_weight is not None:
                weight = ops.slice_axis(self.in_proj_weight, 0, i * e, (i + 1) * e)
            if self.in_proj_bias is not None:
                bias = ops.slice_axis(self.in_proj_bias, 0, i * e, (i + 1) * e)
            y = F.linear(self._batch_first(x), weight, bias)
            split = ops.reshape(y, shape=(*y.shape[:2], self.num_heads, self.head_dim))
            found.append(ops.permute(split, perm=(0, 2, 1, 3)))
        return found[0], found[1], found[2]

    def _batch_first(self, x: Tensor) -> Tensor:
        if x.ndim == 2:
            return unsqueezed(x, 0)
        return x if self.batch_first else ops.permute(x, perm=(1, 0, 2))

    def _mask(
        self, q: Tensor, k: Tensor, key_padding_mask: Tensor | None, attn_mask: Tensor | None
    ) -> Tensor | None:
        """Both masks as one that broadcasts to [n, heads, L, S]."""
        n, length, keys = q.shape[0], q.shape[2], k.shape[2]
        mask = attn_mask
        if mask is not None and mask.ndim == 3:
            if mask.shape[0] != n * self.num_heads:
                raise ShapeError(
                    f"MultiHeadAttention: attn_mask of shape {mask.shape} must be [L, S] or "
                    f"[n * heads, L, S] = {(n * self.num_heads, length, keys)}"
                )
            mask = ops.reshape(mask, shape=(n, self.num_heads, *mask.shape[1:]))
        if key_padding_mask is None:
            return mask
        if key_padding_mask.shape not in ((n, keys), (keys,)):
            raise ShapeError(
                f"MultiHeadAttention: key_padding_mask must have shape {(n, keys)}, got "
                f"{key_padding_mask.shape}"
            )
        padding = ops.reshape(key_padding_mask, shape=(*key_padding_mask.shape[:-1], 1, 1, keys))
        if padding.dtype is bool_:
            padding = ops.logical_not(padding)
        elif not padding.dtype.is_floating:
            raise DTypeError("MultiHeadAttention: key_padding_mask must be bool or floating")
        return padding if mask is None else _both(mask, padding)


def _both(a: Tensor, b: Tensor) -> Any:
    """Two masks as one: bool ones by `and`, otherwise added as floats."""
    if a.dtype is bool_ and b.dtype is bool_:
        return ops.logical_and(a, b)
    dtype = b.dtype if a.dtype is bool_ else a.dtype
    return ops.add(_as_floats(a, dtype), _as_floats(b, dtype))


def _as_floats(mask: Tensor, dtype: Any) -> Any:
    if mask.dtype is not bool_:
        return to_dtype(mask, dtype)
    return ops.where(mask, ops.full(value=0.0, shape=(), dtype=dtype), -math.inf)


def _causal_too(q: Tensor, k: Tensor, mask: Tensor) -> Any:
    scores = (q.shape[2], k.shape[2])
    rows = ops.reshape(ops.iota(size=scores[0], dtype=int64), shape=(scores[0], 1))
    return _both(mask, ops.le(ops.iota(size=scores[1], dtype=int64), rows))
