"""Random tensors, as functions of random bits.

The engine hands out uint32 words by a counter (see `tinyaot.ops.random`), which a compiled program
does too: masks compare the words as integers, so they are equal bit for bit in every mode; deviates
are maps of them. A tensor takes one draw, or two (float64, normal deviates, wide integer ranges).
"""

from __future__ import annotations

import math
from typing import Any

from tinyaot import ops
from tinyaot.errors import ArgumentError
from tinyaot.functions.create import made, sizes_of
from tinyaot.functions.operands import (
    as_tensor,
    cast,
    check_device,
    dims_of,
    mutate,
    need_floating,
)
from tinyaot.shapes import DType, Shape, as_int, dtype_of, float16, float32, float64, int64
from tinyaot.tensor import Tensor, engine

_WORD = 2**32  # values of a random word


def mask(shape: Shape, probability: float) -> Tensor:
    """bool of `shape`: each element True with `probability`, a number from 0 to 1. One draw."""
    if not 0.0 <= probability <= 1.0:
        raise ArgumentError(f"bernoulli: a probability lies between 0 and 1, got {probability}")
    bits = engine().random_bits(shape)
    bound = round(probability * _WORD)
    return ops.lt(bits, bound) if bound < _WORD else ops.le(bits, _WORD - 1)


def bernoulli(x: Any, p: float | None = None) -> Tensor:
    """1 with the probability that is x's element (or with probability p), else 0, in x's dtype."""
    x = as_tensor("bernoulli", x)
    if p is not None:
        return cast(mask(x.shape, float(p)), x.dtype)
    x = need_floating("bernoulli", x)
    bits = ops.cast(engine().random_bits(x.shape), dtype=int64)
    bound = ops.round(ops.mul(ops.cast(ops.detach(x), dtype=float64), float(_WORD)))
    return cast(ops.lt(bits, ops.cast(bound, dtype=int64)), x.dtype)


# ---- real numbers -------------------------------------------------------------------------------


def uniform_bits(shape: Shape, dtype: DType) -> Tensor:
    """Evenly distributed over [0, 1): multiples of 2^-24 (float64: of 2^-53, two draws)."""
    if dtype is float64:
        high = ops.floordiv(engine().random_bits(shape), 1 << 5)  # 27 bits
        low = ops.floordiv(engine().random_bits(shape), 1 << 6)  # 26 bits
        upper = ops.mul(ops.cast(high, dtype=float64), float(1 << 26))
        return ops.mul(ops.add(upper, ops.cast(low, dtype=float64)), 2.0**-53)
    top = ops.floordiv(engine().random_bits(shape), 1 << 8)
    return ops.mul(ops.cast(top, dtype=float32), 2.0**-24)


def _uniform(shape: Shape, dtype: DType) -> Tensor:
    if dtype.itemsize >= 4:
        return uniform_bits(shape, dtype)
    # Rounding 24 bits to a half could reach 1: take only as many bits as its significand holds.
    bits = 11 if dtype is float16 else 8
    top = ops.floordiv(engine().random_bits(shape), 1 << (32 - bits))
    return ops.cast(ops.mul(ops.cast(top, dtype=float32), 2.0**-bits), dtype=dtype)


def _normal(shape: Shape, dtype: DType) -> Tensor:
    # Box and Muller, "A note on the generation of random normal deviates" (1958); the radius is
    # that of 1 - u, which lies in (0, 1], so its logarithm is finite.
    work = float64 if dtype is float64 else float32
    radius = ops.sqrt(ops.mul(ops.log(ops.sub(1.0, uniform_bits(shape, work))), -2.0))
    angle = ops.mul(uniform_bits(shape, work), 2 * math.pi)
    return cast(ops.mul(radius, ops.cos(angle)), dtype)


def _floating(op: str, dtype: Any) -> DType:
    chosen = float32 if dtype is None else dtype_of(dtype)
    if not chosen.is_floating:
        raise ArgumentError(
            f"{op}: random reals need a floating dtype, not {chosen.name}; see randint"
        )
    return chosen


def rand(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Evenly distributed over [0, 1), of shape `size`; float32 by default."""
    check_device("rand", device)
    return made(_uniform(sizes_of("rand", size), _floating("rand", dtype)), requires_grad)


def randn(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Normal deviates of mean 0 and variance 1, of shape `size`; float32 by default."""
    check_device("randn", device)
    return made(_normal(sizes_of("randn", size), _floating("randn", dtype)), requires_grad)


def rand_like(x: Any, *, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """`rand` with x's shape and dtype."""
    x = as_tensor("rand_like", x)
    return rand(x.shape, dtype=x.dtype if dtype is None else dtype, requires_grad=requires_grad)


def randn_like(x: Any, *, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """`randn` with x's shape and dtype."""
    x = as_tensor("randn_like", x)
    return randn(x.shape, dtype=x.dtype if dtype is None else dtype, requires_grad=requires_grad)


def uniform_(x: Tensor, a: float = 0.0, b: float = 1.0) -> Tensor:
    """Fill x, of a floating dtype, with numbers evenly distributed over [a, b)."""
    need_floating("uniform_", x)
    drawn = _uniform(x.shape, x.dtype)
    if b != 1 or a != 0:
        drawn = ops.mul(drawn, float(b) - float(a))
        drawn = ops.add(drawn, float(a)) if a != 0 else drawn
    return mutate("uniform_", x, drawn)


def normal_(x: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Fill x, of a floating dtype, with normal deviates of the mean and standard deviation."""
    need_floating("normal_", x)
    drawn = _normal(x.shape, x.dtype)
    drawn = ops.mul(drawn, float(std)) if std != 1 else drawn
    return mutate("normal_", x, ops.add(drawn, float(mean)) if mean != 0 else drawn)


# ---- whole numbers ------------------------------------------------------------------------------


def randint(
    low: int,
    high: Any = None,
    size: Any = None,
    *,
    dtype: Any = None,
    device: Any = None,
) -> Tensor:
    """Evenly distributed ints from `low` to `high - 1`, of shape `size`: `randint(low, high, size)`
    or `randint(high, size)`; int64 by default. At most 2^31 different numbers."""
    check_device("randint", device)
    if size is None:  # randint(high, size)
        low, high, size = 0, low, high
    if size is None:
        raise ArgumentError("randint: give a size, such as randint(0, 10, (2, 3))")
    low, high = (as_int("randint", n, what) for n, what in ((low, "low"), (high, "high")))
    span = high - low
    if not 0 < span <= 2**31:
        raise ArgumentError(f"randint: low ({low}) must be below high ({high}), by 2^31 at most")
    shape = sizes_of("randint", dims_of((size,)))
    bits = ops.cast(engine().random_bits(shape), dtype=int64)
    scaled = ops.floordiv(ops.mul(bits, span), _WORD)
    return cast(ops.add(scaled, low), int64 if dtype is None else dtype_of(dtype))
