"""Functions of one element at a time: unary, binary, comparisons, logicals, and choices.

All operands broadcast as NumPy's do and are promoted by torch's categories; integers that meet a
function of reals become float32. Each is one primitive wherever there is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tinyaot import ops
from tinyaot.errors import ArgumentError, DTypeError
from tinyaot.functions.operands import (
    as_scalar,
    as_tensor,
    cast,
    constant,
    floating,
    is_scalar,
    named,
    promoted,
    truth,
)
from tinyaot.ops.core import Primitive
from tinyaot.shapes import bool_, broadcast_shapes, int64
from tinyaot.tensor import Tensor

Unary = Callable[[Any], Tensor]
Binary = Callable[[Any, Any], Tensor]


# ---- one operand --------------------------------------------------------------------------------


def _real(name: str, primitive: Primitive, doc: str) -> Unary:
    """A function of real numbers: integers and bools are cast to float32 first."""

    def function(x: Any) -> Tensor:
        if isinstance(x, Tensor) and x.dtype.is_floating:
            return primitive(x)
        return primitive(floating(name, x))

    return named(function, name, doc)


def _number(name: str, primitive: Primitive, doc: str) -> Unary:
    """A function of numbers that keeps integers; bools raise DTypeError."""

    def function(x: Any) -> Tensor:
        x = as_tensor(name, x)
        if x.dtype is bool_:
            raise DTypeError(f"{name} is not defined for bool; use logical_not, or cast first")
        return primitive(x)

    return named(function, name, doc)


def _integral(name: str, primitive: Primitive, doc: str) -> Unary:
    """A rounding: of an integer, a copy."""

    def function(x: Any) -> Tensor:
        x = as_tensor(name, x)
        return primitive(x) if x.dtype.is_floating else ops.copy(x)

    return named(function, name, doc)


neg = _number("neg", ops.neg, "-x.")
abs = _number("abs", ops.abs, "The absolute value; its gradient at 0 is 0.")
sign = _number("sign", ops.sign, "-1, 0 or 1, in x's dtype.")
relu = _number("relu", ops.relu, "x where positive, else 0; its gradient at 0 is 0.")
exp = _real("exp", ops.exp, "e to the power x.")
expm1 = _real("expm1", ops.expm1, "exp(x) - 1, exact near 0.")
log = _real("log", ops.log, "The natural logarithm; -inf at 0, NaN below.")
log1p = _real("log1p", ops.log1p, "log(1 + x), exact near 0.")
sqrt = _real("sqrt", ops.sqrt, "The square root; its gradient at 0 is infinite.")
rsqrt = _real("rsqrt", ops.rsqrt, "1 / sqrt(x).")
sin = _real("sin", ops.sin, "The sine of x in radians.")
cos = _real("cos", ops.cos, "The cosine of x in radians.")
tan = _real("tan", ops.tan, "The tangent of x in radians.")
tanh = _real("tanh", ops.tanh, "The hyperbolic tangent.")
sigmoid = _real("sigmoid", ops.sigmoid, "1 / (1 + exp(-x)).")
erf = _real("erf", ops.erf, "The error function.")
floor = _integral("floor", ops.floor, "The greatest whole number that is at most x.")
ceil = _integral("ceil", ops.ceil, "The least whole number that is at least x.")


def round(x: Any, decimals: int = 0) -> Tensor:
    """The nearest number of `decimals` digits after the point; halves go to the even one."""
    x = as_tensor("round", x)
    if not x.dtype.is_floating:
        return ops.copy(x)
    if decimals == 0:
        return ops.round(x)
    return ops.div(ops.round(ops.mul(x, 10.0**decimals)), 10.0**decimals)


def square(x: Any) -> Tensor:
    """x * x; of bools, as integers."""
    x = as_tensor("square", x)
    x = cast(x, int64) if x.dtype is bool_ else x
    return mul(x, x)


def reciprocal(x: Any) -> Tensor:
    """1 / x, in a floating dtype."""
    return ops.div(1.0, floating("reciprocal", x))


def isnan(x: Any) -> Tensor:
    """bool: where x is not a number."""
    x = as_tensor("isnan", x)
    return ops.isnan(x) if x.dtype.is_floating else ops.ne(x, x)


def isfinite(x: Any) -> Tensor:
    """bool: where x is neither infinite nor NaN."""
    x = as_tensor("isfinite", x)
    return ops.isfinite(x) if x.dtype.is_floating else ops.eq(x, x)


def isinf(x: Any) -> Tensor:
    """bool: where x is plus or minus infinity."""
    x = as_tensor("isinf", x)
    return ops.eq(ops.abs(x), math.inf) if x.dtype.is_floating else ops.ne(x, x)


# ---- two operands -------------------------------------------------------------------------------


def _binary(
    name: str,
    primitive: Primitive,
    doc: str,
    need: str = "bool",
    for_bool: Primitive | None = None,
    weak: bool = True,
) -> Binary:
    """A function of two operands in their common dtype, of at least the category `need`.

    `for_bool` is what it means for two bools (None: DTypeError). `weak`: a Python scalar may reach
    the primitive as it is (else as a 0-d tensor: vjp rules that compute with one operand alone).
    """

    def function(a: Any, b: Any) -> Tensor:
        if isinstance(a, Tensor):  # the common cases first: nothing to promote
            dtype = a.dtype
            if dtype.is_floating:
                if isinstance(b, Tensor):
                    if b.dtype is dtype:
                        return primitive(a, b)
                elif weak and type(b) in (float, int):
                    return primitive(a, float(b))
        elif weak and type(a) in (float, int) and isinstance(b, Tensor) and b.dtype.is_floating:
            return primitive(float(a), b)
        a, b = promoted(name, a, b, need=need)
        dtype = a.dtype if isinstance(a, Tensor) else b.dtype
        if dtype is bool_:
            if for_bool is None:
                raise DTypeError(f"{name} is not defined for two bools; cast one to a number first")
            return for_bool(a, b)
        if not weak:
            a, b = (x if isinstance(x, Tensor) else constant(x, dtype) for x in (a, b))
        return primitive(a, b)

    return named(function, name, doc)


_add = _binary("add", ops.add, "a + b.", for_bool=ops.logical_or)
_sub = _binary("sub", ops.sub, "a - b.")
mul = _binary("mul", ops.mul, "a * b; of bools, their conjunction.", for_bool=ops.logical_and)
_div = _binary("div", ops.div, "a / b, never an integer.", need="float")
maximum = _binary(
    "maximum",
    ops.maximum,
    "The greater of a and b; NaN if one is. A tie shares the gradient.",
    for_bool=ops.logical_or,
)
minimum = _binary(
    "minimum",
    ops.minimum,
    "The lesser of a and b; NaN if one is. A tie shares the gradient.",
    for_bool=ops.logical_and,
)
atan2 = _binary("atan2", ops.atan2, "The angle of (b, a) in radians.", need="float", weak=False)
_pow = _binary("pow", ops.pow, "a to the power b.", need="int", weak=False)
_floordiv = _binary("floordiv", ops.floordiv, "floor(a / b).", need="int")
_remainder = _binary("remainder", ops.remainder, "a - b * floor(a / b).", need="int")


def add(a: Any, b: Any, *, alpha: Any = 1) -> Tensor:
    """a + alpha * b; of bools, their disjunction."""
    return _add(a, _scaled(b, alpha))


def sub(a: Any, b: Any, *, alpha: Any = 1) -> Tensor:
    """a - alpha * b. Two bools raise DTypeError."""
    return _sub(a, _scaled(b, alpha))


def _scaled(b: Any, alpha: Any) -> Any:
    # alpha may be a tensor (a traced hyperparameter), which has no truth
    return b if is_scalar(alpha) and alpha == 1 else mul(b, alpha)


def div(a: Any, b: Any, *, rounding_mode: str | None = None) -> Tensor:
    """a / b in a floating dtype; `rounding_mode` "floor" or "trunc" rounds the quotient."""
    if rounding_mode is None:
        return _div(a, b)
    if rounding_mode == "floor":
        return floordiv(a, b)
    if rounding_mode != "trunc":
        raise ArgumentError(
            f"div: rounding_mode must be None, 'floor' or 'trunc', got {rounding_mode!r}"
        )
    quotient = _div(a, b)
    down = ops.where(ops.lt(quotient, 0.0), ops.ceil(quotient), ops.floor(quotient))
    a, b = promoted("div", a, b)
    return cast(down, a.dtype if isinstance(a, Tensor) else b.dtype)


def floordiv(a: Any, b: Any) -> Tensor:
    """floor(a / b), as Python's //. DTypeError for integers divided by the number 0."""
    return _floordiv(a, _not_zero("floordiv", a, b))


def remainder(a: Any, b: Any) -> Tensor:
    """a - b * floor(a / b): it has b's sign, as Python's %."""
    return _remainder(a, _not_zero("remainder", a, b))


def _not_zero(op: str, a: Any, b: Any) -> Any:
    if isinstance(b, int) and b == 0 and isinstance(a, Tensor) and not a.dtype.is_floating:
        raise DTypeError(f"{op}: integers have no division by zero; cast {a.type} to float first")
    return b


def pow(a: Any, b: Any) -> Tensor:
    """a to the power b. An integer to a negative power raises DTypeError.

    The powers 2, 3, 1/2 and -1 are products, a root and a quotient.
    """
    if is_scalar(b) and isinstance(a, Tensor):
        if a.dtype.is_floating:
            if b == 2:
                return ops.mul(a, a)
            if b == 0.5:
                return ops.sqrt(a)
            if b == 3:
                return ops.mul(ops.mul(a, a), a)
            if b == -1:
                return ops.div(1.0, a)
        elif b < 0 and not isinstance(b, float):
            raise DTypeError(f"pow: an integer to the power {b} is not an integer; use {float(b)}")
    return _pow(a, b)


# ---- comparisons and logicals -------------------------------------------------------------------


def _comparison(name: str, primitive: Primitive, doc: str) -> Binary:
    def function(a: Any, b: Any) -> Tensor:
        if isinstance(a, Tensor) and isinstance(b, Tensor) and a.dtype is b.dtype:
            return primitive(a, b)
        return primitive(*promoted(name, a, b))

    return named(function, name, doc)


eq = _comparison("eq", ops.eq, "bool: a == b, element by element.")
ne = _comparison("ne", ops.ne, "bool: a != b, element by element.")
lt = _comparison("lt", ops.lt, "bool: a < b, element by element.")
le = _comparison("le", ops.le, "bool: a <= b, element by element.")
gt = _comparison("gt", ops.gt, "bool: a > b, element by element.")
ge = _comparison("ge", ops.ge, "bool: a >= b, element by element.")


def _logical(name: str, primitive: Primitive, doc: str) -> Binary:
    def function(a: Any, b: Any) -> Tensor:
        return primitive(truth(name, a), truth(name, b))

    return named(function, name, doc)


logical_and = _logical("logical_and", ops.logical_and, "bool: both are nonzero.")
logical_or = _logical("logical_or", ops.logical_or, "bool: one or both are nonzero.")
logical_xor = _logical("logical_xor", ops.logical_xor, "bool: exactly one is nonzero.")


def logical_not(x: Any) -> Tensor:
    """bool: x is zero."""
    return ops.logical_not(truth("logical_not", x))


def _on_bools(name: str, function: Binary, sign: str) -> Binary:
    """The operators & | ^, which tinyaot has for bools only."""

    def operator(a: Any, b: Any) -> Tensor:
        a, b = promoted(name, a, b)
        dtype = a.dtype if isinstance(a, Tensor) else b.dtype
        if dtype is not bool_:
            raise DTypeError(
                f"{sign}: {dtype.name} operands; it takes bools (use {name}, or compare)"
            )
        return function(a, b)

    return named(operator, name, f"{sign} of bools.")


bool_and = _on_bools("logical_and", logical_and, "&")
bool_or = _on_bools("logical_or", logical_or, "|")
bool_xor = _on_bools("logical_xor", logical_xor, "^")


def bool_not(x: Tensor) -> Tensor:
    """~x of bools."""
    if x.dtype is not bool_:
        raise DTypeError(f"~: {x.dtype.name} operand; it takes bools (use logical_not, or compare)")
    return ops.logical_not(x)


# ---- choices and mixtures -----------------------------------------------------------------------


def where(condition: Any, a: Any, b: Any) -> Tensor:
    """a where the condition (bool) is True, else b; the three broadcast.

    The branch not taken gets cotangent 0, which does not mask an infinite or NaN derivative of its
    own (as in torch).
    """
    condition = as_tensor("where", condition)
    if condition.dtype is not bool_:
        raise DTypeError(
            f"where: the condition must be bool, got {condition.dtype.name}; compare it first "
            f"(condition != 0)"
        )
    if isinstance(a, Tensor) and isinstance(b, Tensor) and a.dtype is b.dtype:
        return ops.where(condition, a, b)
    return ops.where(condition, *promoted("where", a, b))


def masked_fill(x: Any, mask: Any, value: Any) -> Tensor:
    """x with `value` (a number or a 0-d tensor, cast to x's dtype) where `mask` is True."""
    x, mask = as_tensor("masked_fill", x), as_tensor("masked_fill", mask)
    if mask.dtype is not bool_:
        raise DTypeError(
            f"masked_fill: the mask must be bool, got {mask.dtype.name}; compare first"
        )
    broadcast_shapes("masked_fill", x.shape, mask.shape)
    if is_scalar(value):
        if isinstance(value, float) and not (x.dtype.is_floating or value.is_integer()):
            raise DTypeError(f"masked_fill: {value} cannot be stored in {x.type}; cast x first")
        return ops.where(mask, as_scalar("masked_fill", value, x.dtype), x)
    value = as_tensor("masked_fill", value)
    if value.ndim:
        raise DTypeError(f"masked_fill: the value must be 0-d, got {value.type}; use where")
    return ops.where(mask, cast(value, x.dtype), x)


def clamp(x: Any, min: Any = None, max: Any = None) -> Tensor:
    """x raised to at least `min` and lowered to at most `max` (numbers or tensors, or None).

    NaN passes. The gradient reaches x wherever it was not changed: at an edge it is 1.
    """
    if min is None and max is None:
        raise ArgumentError("clamp: give min, max or both")
    given = [b for b in (min, max) if b is not None]
    x, *bounds = promoted("clamp", as_tensor("clamp", x), *given, need="int")
    broadcast_shapes("clamp", x.shape, *(b.shape for b in bounds if isinstance(b, Tensor)))
    if min is not None:
        x = ops.where(ops.lt(x, bounds[0]), bounds[0], x)
    if max is not None:
        x = ops.where(ops.gt(x, bounds[-1]), bounds[-1], x)
    return x


def lerp(start: Any, end: Any, weight: Any) -> Tensor:
    """start + weight * (end - start)."""
    start = as_tensor("lerp", start)
    return _add(start, mul(weight, _sub(end, start)))


def addcmul(x: Any, a: Any, b: Any, *, value: Any = 1) -> Tensor:
    """x + value * a * b."""
    return add(x, mul(a, b), alpha=value)


def addcdiv(x: Any, a: Any, b: Any, *, value: Any = 1) -> Tensor:
    """x + value * a / b."""
    return add(x, _div(a, b), alpha=value)
