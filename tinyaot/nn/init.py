"""Initial values of parameters, written in place and outside autograd; torch's formulas."""

from __future__ import annotations

import math

from tinyaot import ops
from tinyaot.errors import ShapeError
from tinyaot.functions import sample
from tinyaot.functions.operands import cast, mutate
from tinyaot.shapes import float32
from tinyaot.tape import no_grad
from tinyaot.tensor import Tensor


@no_grad()
def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0) -> Tensor:
    """U(a, b)."""
    return sample.uniform_(tensor, a, b)


@no_grad()
def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """N(mean, std**2)."""
    return sample.normal_(tensor, mean, std)


@no_grad()
def constant_(tensor: Tensor, value: float) -> Tensor:
    """One value everywhere."""
    filled = ops.full(value=float(value), shape=tensor.shape, dtype=float32)
    return mutate("constant_", tensor, cast(filled, tensor.dtype))


def fan_in_and_out(tensor: Tensor) -> tuple[int, int]:
    """Inputs of one output, and outputs of one input, of a weight [out, in, ...].

    Raises ShapeError for fewer than 2 dims.
    """
    if tensor.ndim < 2:
        raise ShapeError(f"a weight must be [out, in, ...] to have a fan, got shape {tensor.shape}")
    field = math.prod(tensor.shape[2:])
    return tensor.shape[1] * field, tensor.shape[0] * field


def kaiming_uniform_(tensor: Tensor, a: float = 0.0) -> Tensor:
    """U(-b, b) with b = sqrt(6 / ((1 + a**2) fan_in)), which keeps the variance through a leaky
    relu of slope `a` (He et al., 2015)."""
    fan_in, _ = fan_in_and_out(tensor)
    bound = math.sqrt(6.0 / ((1.0 + a * a) * fan_in)) if fan_in else 0.0
    return uniform_(tensor, -bound, bound)


def xavier_uniform_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """U(-b, b) with b = gain sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio, 2010)."""
    fan_in, fan_out = fan_in_and_out(tensor)
    bound = gain * math.sqrt(6.0 / (fan_in + fan_out)) if fan_in + fan_out else 0.0
    return uniform_(tensor, -bound, bound)


def fan_in_uniform_(tensor: Tensor, fan_in: int) -> Tensor:
    """U(-b, b) with b = 1 / sqrt(fan_in), the start of linear maps and convolutions: what
    kaiming_uniform_ gives for a = sqrt(5)."""
    bound = 1.0 / math.sqrt(fan_in) if fan_in else 0.0
    return uniform_(tensor, -bound, bound)
