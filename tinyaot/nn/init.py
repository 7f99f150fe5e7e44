"""Initial values of parameters, written in place and outside autograd; torch's formulas."""

from __future__ import annotations

import math

from tinyaot import ops
from tinyaot.errors import ShapeError
from tinyaot.functional.common import engine
from tinyaot.functions.operands import cast, mutate
from tinyaot.shapes import float32, float64
from tinyaot.tape import no_grad
from tinyaot.tensor import Tensor


def _unit(tensor: Tensor) -> Tensor:
    """Uniform on [0, 1) in steps of 2**-24, of the tensor's shape: float64."""
    bits = engine().random_bits(tensor.shape)
    return ops.mul(ops.cast(ops.floordiv(bits, 2**8), dtype=float64), 2.0**-24)  # type: ignore[no-any-return]


@no_grad()
def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0) -> Tensor:
    """U(a, b)."""
    value = ops.add(ops.mul(_unit(tensor), b - a), a)
    return mutate("uniform_", tensor, cast(value, tensor.dtype))


@no_grad()
def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """N(mean, std**2), by Box and Muller's transform of two uniform draws."""
    radius = ops.sqrt(ops.mul(ops.log(ops.sub(1.0, _unit(tensor))), -2.0))
    z = ops.mul(radius, ops.cos(ops.mul(_unit(tensor), 2.0 * math.pi)))
    value = ops.add(ops.mul(z, std), mean)
    return mutate("normal_", tensor, cast(value, tensor.dtype))


@no_grad()
def constant_(tensor: Tensor, value: float) -> Tensor:
    """One value everywhere."""
    filled = ops.full(value=float(value), shape=tensor.shape, dtype=float32)
    return mutate("constant_", tensor, cast(filled, tensor.dtype))
