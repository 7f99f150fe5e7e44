"""Reductions along dimensions, scans, and what follows from them: moments, norms, softmax.

The primitives keep a reduced axis with size 1; here it is dropped unless `keepdim`. `dim` is an
int, a tuple or None (all); sums of half precision are made in float32.
"""

from __future__ import annotations

import builtins
import math
from typing import Any, NamedTuple

from tinyaot import ops
from tinyaot.errors import ArgumentError, DTypeError, ShapeError
from tinyaot.functions.elementwise import maximum, minimum
from tinyaot.functions.operands import (
    as_tensor,
    cast,
    constant,
    floating,
    named,
    need_floating,
    numpy_names,
    quietly,
    truth,
    wide,
)
from tinyaot.functions.views import reshaped
from tinyaot.ops.core import Primitive
from tinyaot.shapes import (
    DType,
    Shape,
    bool_,
    dtype_of,
    int64,
    normalize_axes,
    normalize_axis,
    uint8,
)
from tinyaot.tensor import Tensor


class ValuesIndices(NamedTuple):
    """What `max(dim)`, `min(dim)`, `sort` and `topk` return: values, and their places (int64)."""

    values: Tensor
    indices: Tensor


# ---- the shared steps ---------------------------------------------------------------------------


def axes_of(op: str, dim: Any, ndim: int) -> Shape:
    """The axes a reduction goes over: all for None, and (as torch) for an empty tuple."""
    if type(dim) is int and -ndim <= dim < ndim:
        return (dim % ndim,)
    if dim is None or (isinstance(dim, (tuple, list)) and not dim):
        return tuple(range(ndim))
    return normalize_axes(op, dim, ndim)


def dropped(y: Tensor, axes: Shape, keepdim: bool) -> Tensor:
    """`y` without its reduced axes, which have size 1, unless they are kept."""
    if keepdim or not axes:
        return y
    return ops.reshape(y, shape=tuple(n for a, n in enumerate(y.shape) if a not in axes))


def kept_shape(x: Tensor, axes: Shape) -> Shape:
    """x's shape with the reduced axes at size 1."""
    return tuple(1 if a in axes else n for a, n in enumerate(x.shape))


def count(x: Tensor, axes: Shape) -> int:
    """How many elements each result is made of."""
    return math.prod(x.shape[a] for a in axes)


def need_elements(op: str, x: Tensor, axes: Shape) -> None:
    """ShapeError when a reduction without a neutral element is over nothing."""
    if x.size == 0 and builtins.any(x.shape[a] == 0 for a in axes):
        raise ShapeError(
            f"{op}: no elements along dim {axes if len(axes) > 1 else axes[0]} of shape {x.shape}; "
            f"it has no value there"
        )


def _totalled(x: Tensor, dtype: Any) -> Tensor:
    """x as it is summed or multiplied: integers and bools in int64, or `dtype`."""
    if dtype is not None:
        return cast(x, dtype_of(dtype))
    return x if x.dtype.is_floating else cast(x, int64)


# ---- sums and products --------------------------------------------------------------------------


@numpy_names
def sum(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The sum along `dim`; of integers and bools, int64. Over nothing it is 0."""
    x = _totalled(as_tensor("sum", x), dtype)
    axes = axes_of("sum", dim, x.ndim)
    return dropped(ops.sum(x, axes=axes), axes, keepdim)


@numpy_names
def prod(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The product along `dim`; of integers and bools, int64. Over nothing it is 1."""
    x = _totalled(as_tensor("prod", x), dtype)
    axes = axes_of("prod", dim, x.ndim)
    return dropped(ops.prod(x, axes=axes), axes, keepdim)


@numpy_names
@quietly
def mean(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The mean along `dim`. DTypeError for integers (as torch); NaN over nothing."""
    x = as_tensor("mean", x)
    x = need_floating("mean", x if dtype is None else cast(x, dtype_of(dtype)))
    axes = axes_of("mean", dim, x.ndim)
    return dropped(_mean(x, axes), axes, keepdim)


def _mean(x: Tensor, axes: Shape) -> Tensor:
    return cast(ops.div(ops.sum(wide(x), axes=axes), float(count(x, axes))), x.dtype)


@numpy_names
@quietly
def var(
    x: Any,
    dim: Any = None,
    unbiased: bool = True,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Tensor:
    """The variance along `dim`: squared deviations from the mean over `n - correction`.

    `correction` is 1 by default (0 if not `unbiased`). DTypeError for integers.
    """
    if isinstance(dim, bool):  # torch's var(unbiased)
        dim, unbiased = None, dim
    x = need_floating("var", x)
    axes = axes_of("var", dim, x.ndim)
    correction = float(unbiased) if correction is None else float(correction)
    return dropped(cast(_var(wide(x), axes, correction), x.dtype), axes, keepdim)


def _var(x: Tensor, axes: Shape, correction: float) -> Tensor:
    # Two passes: the one-pass formula E[x^2] - E[x]^2 cancels.
    deviation = ops.sub(x, _mean(x, axes))
    total = ops.sum(ops.mul(deviation, deviation), axes=axes)
    freedom = count(x, axes) - correction
    return ops.div(total, freedom if freedom > 0 else 0.0)


@numpy_names
@quietly
def std(
    x: Any,
    dim: Any = None,
    unbiased: bool = True,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Tensor:
    """The square root of `var`; its gradient is 0 where it is 0."""
    x = need_floating("std", x)
    variance = var(wide(x), dim, unbiased, keepdim, correction=correction)
    return cast(_safe_power(variance, ops.sqrt), x.dtype)


@numpy_names
@quietly
def norm(x: Any, p: Any = 2, dim: Any = None, keepdim: bool = False) -> Tensor:
    """The p-norm along `dim`, of all elements by default; its gradient at 0 is 0.

    `p` may be any number, infinity, or "fro" (2). DTypeError for integers.
    """
    x = need_floating("norm", x)
    axes = axes_of("norm", dim, x.ndim)
    p = 2.0 if p == "fro" or p is None else float(p)
    size, dtype = ops.abs(wide(x)) if p != 2 else wide(x), x.dtype
    if math.isinf(p):
        need_elements("norm", x, axes)
        y = ops.amax(size, axes=axes) if p > 0 else ops.amin(size, axes=axes)
    elif p == 0:
        # by the sign, whose derivative is 0: a result that depends on x, as for every other p
        y = ops.sum(ops.where(ops.isnan(size), 1.0, ops.sign(size)), axes=axes)
    elif p == 1:
        y = ops.sum(size, axes=axes)
    elif p == 2:
        y = _safe_power(ops.sum(ops.mul(size, size), axes=axes), ops.sqrt)
    else:
        powers = _safe_power(size, lambda s: ops.pow(s, constant(p, s.dtype)))
        total = ops.sum(powers, axes=axes)
        y = _safe_power(total, lambda s: ops.pow(s, constant(1 / p, s.dtype)))
    return dropped(cast(y, dtype), axes, keepdim)


def _safe_power(x: Tensor, power: Any) -> Tensor:
    """`power(x)` with 0 at 0, and gradient 0 there: the power itself is never taken at 0."""
    zero = ops.eq(x, 0.0)
    return ops.where(zero, 0.0, power(ops.where(zero, 1.0, x)))


# ---- greatest and least -------------------------------------------------------------------------


def _extreme(name: str, primitive: Primitive, doc: str) -> Any:
    def function(x: Any, dim: Any = None, keepdim: bool = False) -> Tensor:
        x = as_tensor(name, x)
        axes = axes_of(name, dim, x.ndim)
        need_elements(name, x, axes)
        return dropped(primitive(x, axes=axes), axes, keepdim)

    return numpy_names(named(function, name, doc))


amax = _extreme("amax", ops.amax, "The greatest along `dim`; equal ones share the gradient.")
amin = _extreme("amin", ops.amin, "The least along `dim`; equal ones share the gradient.")


@numpy_names
def max(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """`max(x)`: the greatest of all, ties sharing the gradient. `max(x, dim)`: (values, indices) of
    the first greatest along one dim, which alone gets the gradient. `max(x, other)`: `maximum`."""
    return _max_or_min("max", x, dim, keepdim)


@numpy_names
def min(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """`min(x)`: the least of all, ties sharing the gradient. `min(x, dim)`: (values, indices) of
    the first least along one dim, which alone gets the gradient. `min(x, other)`: `minimum`."""
    return _max_or_min("min", x, dim, keepdim)


def _max_or_min(op: str, x: Any, dim: Any, keepdim: bool) -> Any:
    if dim is None:
        return amax(x) if op == "max" else amin(x)
    if isinstance(dim, Tensor):
        return maximum(x, dim) if op == "max" else minimum(x, dim)
    if isinstance(dim, (tuple, list)):
        raise DTypeError(f"{op}: dim must be one int, got {tuple(dim)}; use a{op} for several dims")
    x = as_tensor(op, x)
    axis = normalize_axis(op, dim, x.ndim)
    indices = _arg(op, x, axis)
    values = ops.take_along(_at_least_1d(x), indices, axis=axis)
    if x.ndim == 0:
        return ValuesIndices(ops.reshape(values, shape=()), ops.reshape(indices, shape=()))
    return ValuesIndices(dropped(values, (axis,), keepdim), dropped(indices, (axis,), keepdim))


def _at_least_1d(x: Tensor) -> Tensor:
    return x if x.ndim else ops.reshape(x, shape=(1,))


def _arg(op: str, x: Tensor, axis: int) -> Tensor:
    """Index of the greatest (or least) along an axis, which stays with size 1."""
    x = _at_least_1d(x)
    need_elements(op, x, (axis,))
    x = cast(x, uint8) if x.dtype is bool_ else x
    return ops.argmax(x, axis=axis) if op.endswith("max") else ops.argmin(x, axis=axis)


def _arg_function(op: str, x: Any, dim: Any, keepdim: bool) -> Tensor:
    x = as_tensor(op, x)
    if dim is None:
        flat = _arg(op, reshaped(x, (x.size,)), 0)
        return ops.reshape(flat, shape=(1,) * x.ndim if keepdim else ())
    if isinstance(dim, (tuple, list)):
        raise DTypeError(f"{op}: dim must be one int or None, got {tuple(dim)}")
    axis = normalize_axis(op, dim, x.ndim)
    y = _arg(op, x, axis)
    return ops.reshape(y, shape=()) if x.ndim == 0 else dropped(y, (axis,), keepdim)


@numpy_names
def argmax(x: Any, dim: Any = None, keepdim: bool = False) -> Tensor:
    """int64: index of the first greatest along `dim`, or in the flattened tensor (None)."""
    return _arg_function("argmax", x, dim, keepdim)


@numpy_names
def argmin(x: Any, dim: Any = None, keepdim: bool = False) -> Tensor:
    """int64: index of the first least along `dim`, or in the flattened tensor (None)."""
    return _arg_function("argmin", x, dim, keepdim)


@numpy_names
def any(x: Any, dim: Any = None, keepdim: bool = False) -> Tensor:
    """bool: whether some element along `dim` is nonzero."""
    return _some_or_every("any", ops.amax, x, dim, keepdim)


@numpy_names
def all(x: Any, dim: Any = None, keepdim: bool = False) -> Tensor:
    """bool: whether every element along `dim` is nonzero."""
    return _some_or_every("all", ops.amin, x, dim, keepdim)


def _some_or_every(op: str, primitive: Primitive, x: Any, dim: Any, keepdim: bool) -> Tensor:
    x = truth(op, x)
    axes = axes_of(op, dim, x.ndim)
    if count(x, axes) == 0:
        return dropped(constant(op == "all", bool_, kept_shape(x, axes)), axes, keepdim)
    return dropped(primitive(x, axes=axes), axes, keepdim)


# ---- scans --------------------------------------------------------------------------------------


@numpy_names
def cumsum(x: Any, dim: int, *, dtype: Any = None) -> Tensor:
    """Sums of the elements up to each, along one dim; of integers and bools, int64."""
    return _scan("cumsum", ops.cumsum, x, dim, dtype)


@numpy_names
def cumprod(x: Any, dim: int, *, dtype: Any = None) -> Tensor:
    """Products of the elements up to each, along one dim; of integers and bools, int64."""
    return _scan("cumprod", ops.cumprod, x, dim, dtype)


def _scan(op: str, primitive: Primitive, x: Any, dim: int, dtype: Any) -> Tensor:
    x = _totalled(as_tensor(op, x), dtype)
    axis = normalize_axis(op, dim, x.ndim)
    return primitive(x, axis=axis) if x.ndim else ops.copy(x)


# ---- exponentials, kept in range ----------------------------------------------------------------


def _exponents(op: str, x: Any, dim: Any, dtype: Any) -> tuple[Tensor, Shape, DType]:
    x = as_tensor(op, x)
    x = floating(op, x if dtype is None else cast(x, dtype_of(dtype)))
    return wide(x), axes_of(op, dim, x.ndim), x.dtype


def _shifted(x: Tensor, axes: Shape) -> Tensor:
    """x minus its greatest along the axes, which the result of a softmax does not depend on."""
    return ops.sub(x, ops.detach(ops.amax(x, axes=axes)))


@numpy_names
@quietly
def softmax(x: Any, dim: Any = None, dtype: Any = None) -> Tensor:
    """exp(x) over its sum along `dim`; a slice of -inf only gives NaN."""
    x, axes, result = _exponents("softmax", x, _need_dim("softmax", dim), dtype)
    if x.size == 0:
        return cast(ops.exp(x), result)
    e = ops.exp(_shifted(x, axes))
    return cast(ops.div(e, ops.sum(e, axes=axes)), result)


@numpy_names
@quietly
def log_softmax(x: Any, dim: Any = None, dtype: Any = None) -> Tensor:
    """log(softmax(x)) along `dim`, exact for small probabilities."""
    x, axes, result = _exponents("log_softmax", x, _need_dim("log_softmax", dim), dtype)
    if x.size == 0:
        return cast(ops.exp(x), result)
    z = _shifted(x, axes)
    return cast(ops.sub(z, ops.log(ops.sum(ops.exp(z), axes=axes))), result)


def _need_dim(op: str, dim: Any) -> Any:
    if dim is None:
        raise ArgumentError(f"{op}: give the dim to normalise along, such as dim=-1")
    return dim


@numpy_names
@quietly
def logsumexp(x: Any, dim: Any = None, keepdim: bool = False) -> Tensor:
    """log of the sum of exp(x) along `dim`. A slice of -inf gives -inf with gradient 0."""
    x, axes, result = _exponents("logsumexp", x, dim, None)
    if count(x, axes) == 0:
        return dropped(constant(-math.inf, result, kept_shape(x, axes)), axes, keepdim)
    top = ops.detach(ops.amax(x, axes=axes))
    top = ops.where(ops.isfinite(top), top, 0.0)
    total = ops.sum(ops.exp(ops.sub(x, top)), axes=axes)
    nothing = ops.eq(total, 0.0)
    y = ops.add(ops.log(ops.where(nothing, 1.0, total)), ops.where(nothing, -math.inf, top))
    return dropped(cast(y, result), axes, keepdim)
