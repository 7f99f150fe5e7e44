"""Composites: plain Python over primitives, decomposed so that a compiler can fuse them.

Reachable as `ta.nn.functional`, with torch's names, arguments and defaults. Nothing below this
package knows any of these names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinyaot.functional.activations import (
    dropout,
    embedding,
    gelu,
    linear,
    one_hot,
    relu,
    sigmoid,
    silu,
    softplus,
    tanh,
)
from tinyaot.functional.attention import scaled_dot_product_attention
from tinyaot.functional.losses import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    mse_loss,
    nll_loss,
)
from tinyaot.functional.normalization import batch_norm, layer_norm, rms_norm
from tinyaot.functional.windows import avg_pool2d, conv2d, max_pool2d
from tinyaot.functions import reduce as _reduce
from tinyaot.functions import shape as _shape
from tinyaot.tensor import Tensor


def softmax(input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """exp(input) over its sum along `dim`."""
    return _reduce.softmax(input, dim, dtype)


def log_softmax(input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """log(softmax(input, dim)), exact for small probabilities."""
    return _reduce.log_softmax(input, dim, dtype)


def pad(
    input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Tensor:
    """input with `value` (0 by default) around it: pad is (left, right) of the last dim, then of
    the one before, and so on. A negative amount crops."""
    return _shape.pad(input, pad, mode, 0 if value is None else value)


__all__ = [
    "avg_pool2d",
    "batch_norm",
    "binary_cross_entropy_with_logits",
    "conv2d",
    "cross_entropy",
    "dropout",
    "embedding",
    "gelu",
    "layer_norm",
    "linear",
    "log_softmax",
    "max_pool2d",
    "mse_loss",
    "nll_loss",
    "one_hot",
    "pad",
    "relu",
    "rms_norm",
    "scaled_dot_product_attention",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "tanh",
]
