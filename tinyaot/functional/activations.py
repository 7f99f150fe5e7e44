"""Activations, the linear map, dropout and table look-ups.

Half precision is widened to float32 inside each of them, and rounded once at the end.
"""

from __future__ import annotations

import math
from string import ascii_lowercase

from tinyaot import ops
from tinyaot.errors import ArgumentError, DTypeError, ShapeError
from tinyaot.functional.common import need_same_dtype, quietly, to_dtype, unsqueezed, wide
from tinyaot.functions import select
from tinyaot.functions.operands import as_tensor, floating, mutate, need_floating
from tinyaot.shapes import brief, normalize_axis
from tinyaot.tensor import Tensor, engine

# ---- the linear map -----------------------------------------------------------------------------


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`input @ weight.T + bias`: input [..., in], weight [out, in] (or [in]), bias [out].

    One product, with the weight read as it lies. Raises ShapeError unless the last sizes agree, and
    DTypeError for mixed dtypes.
    """
    x = as_tensor("linear", input)
    if x.ndim == 0 or weight.ndim not in (1, 2) or x.shape[-1] != weight.shape[-1]:
        raise ShapeError(
            f"linear: an input of shape {x.shape} does not fit a weight of shape "
            f"{weight.shape}; it takes [..., in] and [out, in] with the same `in`"
        )
    need_same_dtype("linear", x, weight, bias)
    rows = ascii_lowercase[: x.ndim - 1]
    spec = f"{rows}y,zy->{rows}z" if weight.ndim == 2 else f"{rows}y,y->{rows}"
    y = ops.dot(x, weight, spec=spec)
    return y if bias is None else ops.add(y, bias)


# ---- activations --------------------------------------------------------------------------------


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """max(input, 0), with derivative 0 at 0."""
    return _maybe_inplace("relu_", input, ops.relu(as_tensor("relu", input)), inplace)


def sigmoid(input: Tensor) -> Tensor:
    """1 / (1 + exp(-input))."""
    return ops.sigmoid(floating("sigmoid", input))


def tanh(input: Tensor) -> Tensor:
    """The hyperbolic tangent."""
    return ops.tanh(floating("tanh", input))


@quietly
def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """input * sigmoid(input), also known as swish."""
    input = need_floating("silu", input)
    x = wide(input)
    return _maybe_inplace(
        "silu_", input, to_dtype(ops.mul(x, ops.sigmoid(x)), input.dtype), inplace
    )


@quietly
def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """input * P(Z <= input) for a standard normal Z (Hendrycks and Gimpel, 2016).

    `approximate`: "none" computes it with erf, "tanh" by the cubic formula of the paper.
    """
    input = need_floating("gelu", input)
    x = wide(input)
    half = ops.mul(x, 0.5)
    if approximate == "none":
        y = ops.mul(half, ops.add(ops.erf(ops.mul(x, math.sqrt(0.5))), 1.0))
    elif approximate == "tanh":
        cubic = ops.add(x, ops.mul(ops.mul(ops.mul(x, x), x), 0.044715))
        y = ops.mul(half, ops.add(ops.tanh(ops.mul(cubic, math.sqrt(2.0 / math.pi))), 1.0))
    else:
        raise ArgumentError(f"gelu: approximate must be 'none' or 'tanh', got {approximate!r}")
    return to_dtype(y, input.dtype)


@quietly
def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta * input)) / beta; input itself where beta * input > threshold."""
    input = need_floating("softplus", input)
    x = wide(input)
    scaled = x if beta == 1.0 else ops.mul(x, float(beta))
    linear_there = ops.gt(scaled, float(threshold))
    # The branch not taken must stay finite, or its derivative 0 * inf would be NaN.
    y = ops.log1p(ops.exp(ops.where(linear_there, 0.0, scaled)))
    if beta != 1.0:
        y = ops.div(y, float(beta))
    return to_dtype(ops.where(linear_there, x, y), input.dtype)


def softplus_exact(x: Tensor) -> Tensor:
    """log(1 + exp(x)) without a threshold: exact, finite and with the right slope everywhere.

    max(x, 0) + log1p(exp(-|x|)), where both are written as one choice of sign: their own slopes at
    0 would not add up to 1/2.
    """
    positive = ops.gt(x, 0.0)
    tail = ops.log1p(ops.exp(ops.where(positive, ops.neg(x), x)))
    return ops.add(ops.where(positive, x, 0.0), tail)


def _maybe_inplace(op: str, x: Tensor, value: Tensor, inplace: bool) -> Tensor:
    return mutate(op, x, value) if inplace else value


# ---- dropout ------------------------------------------------------------------------------------


@quietly
def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Zero each element with probability `p` and scale the others by 1 / (1 - p).

    The choice compares random integers with a threshold, so it is the same bit for bit in eager and
    compiled code. Without `training` it is the input itself. Raises ArgumentError unless
    0 <= p <= 1.
    """
    if not isinstance(p, (int, float)):
        raise DTypeError(f"dropout: p must be a number between 0 and 1, got {brief(p)}")
    if not 0.0 <= p <= 1.0:
        raise ArgumentError(f"dropout: p must be between 0 and 1, got {p}")
    if not training or p == 0.0:
        return input
    if p == 1.0:
        return _maybe_inplace("dropout_", input, ops.mul(input, 0), inplace)
    x = need_floating("dropout", input)
    bits = engine().random_bits(x.shape)
    kept = ops.ge(bits, min(round(p * 2**32), 2**32 - 1))
    return _maybe_inplace(
        "dropout_", input, ops.where(kept, ops.mul(x, 1.0 / (1.0 - p)), 0.0), inplace
    )


# ---- tables -------------------------------------------------------------------------------------


def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """Rows of a table: indices [...] and weight [n, d] give [..., d].

    The row `padding_idx` gets no gradient. Raises IndexingError for an index out of range.
    """
    rows = select.embedding(input, weight)
    if padding_idx is not None:
        padding = normalize_axis("embedding padding_idx", padding_idx, weight.shape[0])
        is_padding = unsqueezed(ops.eq(as_tensor("embedding", input), padding), rows.ndim - 1)
        rows = ops.where(is_padding, ops.detach(rows), rows)
    return rows


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """int64[..., num_classes] with 1 at each index and 0 elsewhere.

    `num_classes=-1` takes one more than the greatest index, which needs values: it raises
    TraceError in compiled code. Raises IndexingError for an index that is no class.
    """
    return select.one_hot(tensor, num_classes)
