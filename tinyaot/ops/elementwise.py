"""Maps: one scalar expression an element, operands broadcast against each other.

Expressions are written with the operators of C and with functions that every printer knows: abs
sign exp expm1 log log1p sqrt rsqrt sin cos tan tanh sigmoid erf relu floor ceil rint isnan isfinite
floordiv remainder pow maximum minimum atan2, and cast (to the attribute `dtype`). As in NumPy,
maximum, minimum, relu and sign give NaN for NaN; rint rounds halves to even; floordiv rounds down
and remainder has the divisor's sign, both 0 for integers divided by 0; integers wrap.

Subgradients follow torch: relu(0) and abs(0) give 0, a tie of maximum or minimum is shared
equally, sqrt(0) gives infinity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from tinyaot.errors import DTypeError
from tinyaot.ops.core import Attrs, Primitive, Rule, declare, elements, is_half, same_dtype
from tinyaot.ops.leaf import zeros_like
from tinyaot.shapes import DType, TensorType, bool_, broadcast_shapes

Scratch = Callable[[Sequence[TensorType], TensorType, Attrs], int]

CHEAP, DIVIDE, TRANSCENDENTAL = 0.02, 0.1, 0.13  # ns an element, one vector core (measured)

FLOAT, NUMBER, ANY = ("float",), ("int", "float"), ("bool", "int", "float")


def declare_map(
    name: str,
    array: Callable[..., Any],
    vjp: tuple[Rule | None, ...] | None,
    expr: str,
    weight: float = CHEAP,
    kinds: tuple[str, ...] = NUMBER,
    result: DType | None = None,
    scratch: Scratch = lambda ins, out, attrs: 0,
) -> Primitive:
    """Declare a map whose operands share one dtype of `kinds`; the result has it too, or `result`.

    array:  its meaning, which takes `out=`, as NumPy's ufuncs do.
    vjp:    for each operand `(cotangent, result, *operands) -> cotangent`, over `ops` alone.
    expr:   the scalar expression, in the words above.
    weight: ns an element, see CHEAP.
    """

    def type_rule(*types: TensorType) -> TensorType:
        dtype = same_dtype(name, types)
        if dtype.kind not in kinds:
            raise DTypeError(
                f"{name} is not defined for {dtype.name} (it takes {' or '.join(kinds)}); "
                f"cast first"
            )
        return TensorType(result or dtype, broadcast_shapes(name, *(t.shape for t in types)))

    def in_c_order(*arrays: np.ndarray) -> Any:
        result = array(*arrays)  # in the order of its operands; asking for "C" would be slower
        return result if result.flags.c_contiguous else np.array(result, order="C")

    def into(out: np.ndarray, *arrays: np.ndarray) -> None:
        array(*arrays, out=out)

    return declare(
        name,
        "map",
        type_rule,
        in_c_order,
        into,
        vjp,
        elements,
        weight,
        expr,
        scratch=scratch,
        ufunc=array if isinstance(array, np.ufunc) else None,
    )


_map = declare_map  # in the table below


def _in_steps(function: Callable[[np.ndarray, np.ndarray], Any]) -> Callable[..., Any]:
    """A map that NumPy has not in one call, from `function(x, out)`; halves go by float32."""

    def array(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        if out is None:
            out = np.empty(x.shape, x.dtype)
        if is_half(x.dtype):
            wide = x.astype(np.float32)
            function(wide, wide)
            np.copyto(out, wide, casting="same_kind")
        else:
            function(x, out)
        return out

    return array


@cache
def _scipy_erf() -> Callable[..., Any]:
    from scipy.special import erf  # takes longer to import than all of tinyaot: when first used

    return erf  # type: ignore[no-any-return]


def _erf(x: np.ndarray, out: np.ndarray) -> None:
    _scipy_erf()(x, out)


def _half_scratch(ins: Sequence[TensorType], out: TensorType, attrs: Attrs) -> int:
    return 4 * out.size if is_half(out.dtype.numpy) else 0


def _sigmoid(x: np.ndarray, out: np.ndarray) -> None:
    # 1 / (1 + exp(-x)); exp(-x) may overflow to infinity, which gives the right 0.
    np.negative(x, out=out)
    np.exp(out, out=out)
    np.add(out, _one(x.dtype), out=out)
    np.reciprocal(out, out=out)


def _rsqrt(x: np.ndarray, out: np.ndarray) -> None:
    np.sqrt(x, out=out)
    np.reciprocal(out, out=out)


@cache
def _zero(dtype: np.dtype[Any]) -> np.ndarray:
    return np.zeros((), dtype)


@cache
def _one(dtype: np.dtype[Any]) -> np.ndarray:
    return np.ones((), dtype)


def _relu(x: np.ndarray, out: np.ndarray | None = None) -> Any:
    return np.maximum(x, _zero(x.dtype), out=out)


def _power(a: np.ndarray, b: np.ndarray, out: np.ndarray | None = None) -> Any:
    if not isinstance(b, np.ndarray):  # a Python number takes the dtype of the other operand
        b = a.dtype.type(b)
    elif not isinstance(a, np.ndarray):
        a = b.dtype.type(a)
    if b.dtype.kind != "i" or b.size == 0 or b.min() >= 0:
        return np.power(a, b, out=out)
    # Integers to negative powers, which NumPy refuses: 1 over the power, cut to an integer (torch).
    # Only 1 and -1 give more than 0.
    units = np.where(np.abs(a) == 1, np.power(a, b & 1), 0)
    result = np.where(b >= 0, np.power(a, np.maximum(b, 0)), units).astype(a.dtype, copy=False)
    if out is None:
        return result
    np.copyto(out, result)
    return out


# ---- one operand --------------------------------------------------------------------------------
# A rule is (g, y, *operands): g the cotangent of the result y. Where operands broadcast, `pull`,
# which calls the rules, sums what they give.

neg: Primitive = _map("neg", np.negative, (lambda g, y, x: neg(g),), "-{0}")
abs_: Primitive = _map("abs", np.abs, (lambda g, y, x: mul(g, sign(x)),), "abs({0})")
sign: Primitive = _map("sign", np.sign, (lambda g, y, x: zeros_like(g),), "sign({0})")
exp: Primitive = _map(
    "exp", np.exp, (lambda g, y, x: mul(g, y),), "exp({0})", TRANSCENDENTAL, FLOAT
)
expm1: Primitive = _map(
    "expm1", np.expm1, (lambda g, y, x: mul(g, add(y, 1.0)),), "expm1({0})", TRANSCENDENTAL, FLOAT
)
log: Primitive = _map(
    "log", np.log, (lambda g, y, x: div(g, x),), "log({0})", TRANSCENDENTAL, FLOAT
)
log1p: Primitive = _map(
    "log1p", np.log1p, (lambda g, y, x: div(g, add(x, 1.0)),), "log1p({0})", TRANSCENDENTAL, FLOAT
)
sqrt: Primitive = _map(
    "sqrt", np.sqrt, (lambda g, y, x: div(g, mul(y, 2.0)),), "sqrt({0})", DIVIDE, FLOAT
)
rsqrt: Primitive = _map(
    "rsqrt",
    _in_steps(_rsqrt),
    (lambda g, y, x: mul(g, mul(mul(y, mul(y, y)), -0.5)),),
    "rsqrt({0})",
    DIVIDE,
    FLOAT,
    scratch=_half_scratch,
)
sin: Primitive = _map(
    "sin", np.sin, (lambda g, y, x: mul(g, cos(x)),), "sin({0})", TRANSCENDENTAL, FLOAT
)
cos: Primitive = _map(
    "cos", np.cos, (lambda g, y, x: neg(mul(g, sin(x))),), "cos({0})", TRANSCENDENTAL, FLOAT
)
tan: Primitive = _map(
    "tan", np.tan, (lambda g, y, x: mul(g, add(mul(y, y), 1.0)),), "tan({0})", TRANSCENDENTAL, FLOAT
)
tanh: Primitive = _map(
    "tanh",
    np.tanh,
    (lambda g, y, x: mul(g, sub(1.0, mul(y, y))),),
    "tanh({0})",
    TRANSCENDENTAL,
    FLOAT,
)
sigmoid: Primitive = _map(
    "sigmoid",
    _in_steps(_sigmoid),
    (lambda g, y, x: mul(g, mul(y, sub(1.0, y))),),
    "sigmoid({0})",
    TRANSCENDENTAL,
    FLOAT,
    scratch=_half_scratch,
)
erf: Primitive = _map(
    "erf",
    _in_steps(_erf),
    (lambda g, y, x: mul(g, mul(exp(neg(mul(x, x))), 2.0 / math.sqrt(math.pi))),),
    "erf({0})",
    TRANSCENDENTAL,
    FLOAT,
    scratch=_half_scratch,
)
relu: Primitive = _map("relu", _relu, (lambda g, y, x: where(gt(y, 0), g, 0.0),), "relu({0})")
floor: Primitive = _map(
    "floor", np.floor, (lambda g, y, x: zeros_like(g),), "floor({0})", kinds=FLOAT
)
ceil: Primitive = _map("ceil", np.ceil, (lambda g, y, x: zeros_like(g),), "ceil({0})", kinds=FLOAT)
round_: Primitive = _map(
    "round", np.rint, (lambda g, y, x: zeros_like(g),), "rint({0})", kinds=FLOAT
)
isnan: Primitive = _map("isnan", np.isnan, None, "isnan({0})", kinds=FLOAT, result=bool_)
isfinite: Primitive = _map(
    "isfinite", np.isfinite, None, "isfinite({0})", kinds=FLOAT, result=bool_
)
logical_not: Primitive = _map("logical_not", np.logical_not, None, "!{0}", kinds=("bool",))

# ---- two operands -------------------------------------------------------------------------------

add: Primitive = _map("add", np.add, (lambda g, y, a, b: g, lambda g, y, a, b: g), "{0} + {1}")
sub: Primitive = _map(
    "sub", np.subtract, (lambda g, y, a, b: g, lambda g, y, a, b: neg(g)), "{0} - {1}"
)
mul: Primitive = _map(
    "mul", np.multiply, (lambda g, y, a, b: mul(g, b), lambda g, y, a, b: mul(g, a)), "{0} * {1}"
)
div: Primitive = _map(
    "div",
    np.divide,
    (lambda g, y, a, b: div(g, b), lambda g, y, a, b: neg(div(mul(g, y), b))),
    "{0} / {1}",
    DIVIDE,
    FLOAT,
)
floordiv: Primitive = _map(
    "floordiv",
    np.floor_divide,
    (lambda g, y, a, b: zeros_like(g), lambda g, y, a, b: zeros_like(g)),
    "floordiv({0}, {1})",
    DIVIDE,
)
remainder: Primitive = _map(
    "remainder",
    np.remainder,
    (lambda g, y, a, b: g, lambda g, y, a, b: neg(mul(g, floordiv(a, b)))),
    "remainder({0}, {1})",
    DIVIDE,
)


def _pow_base(g: Any, y: Any, a: Any, b: Any) -> Any:
    # b * a^(b - 1), and 0 where b is 0, whatever a is.
    return where(eq(b, 0.0), 0.0, mul(g, mul(b, pow_(a, sub(b, 1.0)))))


def _pow_exponent(g: Any, y: Any, a: Any, b: Any) -> Any:
    # y * log(a), and 0 at a = 0 with b >= 0, where y does not move.
    flat = logical_and(eq(a, 0.0), ge(b, 0.0))
    return where(flat, 0.0, mul(g, mul(y, log(a))))


pow_: Primitive = _map(
    "pow", _power, (_pow_base, _pow_exponent), "pow({0}, {1})", 4 * TRANSCENDENTAL
)


def _half_of_ties(g: Any, mine: Any, other: Any, wins: Primitive) -> Any:
    share = where(eq(mine, other), mul(g, 0.5), g)
    return where(wins(other, mine), 0.0, share)


maximum: Primitive = _map(
    "maximum",
    np.maximum,
    (
        lambda g, y, a, b: _half_of_ties(g, a, b, gt),
        lambda g, y, a, b: _half_of_ties(g, b, a, gt),
    ),
    "maximum({0}, {1})",
)
minimum: Primitive = _map(
    "minimum",
    np.minimum,
    (
        lambda g, y, a, b: _half_of_ties(g, a, b, lt),
        lambda g, y, a, b: _half_of_ties(g, b, a, lt),
    ),
    "minimum({0}, {1})",
)


def _squares(a: Any, b: Any) -> Any:
    # a^2 + b^2, and 1 at the origin: the gradient there is 0, not 0 / 0.
    total = add(mul(a, a), mul(b, b))
    return where(eq(total, 0.0), 1.0, total)


atan2: Primitive = _map(
    "atan2",
    np.arctan2,
    (
        lambda g, y, a, b: div(mul(g, b), _squares(a, b)),
        lambda g, y, a, b: neg(div(mul(g, a), _squares(a, b))),
    ),
    "atan2({0}, {1})",
    2 * TRANSCENDENTAL,
    FLOAT,
)

eq: Primitive = _map("eq", np.equal, None, "{0} == {1}", kinds=ANY, result=bool_)
ne: Primitive = _map("ne", np.not_equal, None, "{0} != {1}", kinds=ANY, result=bool_)
lt: Primitive = _map("lt", np.less, None, "{0} < {1}", kinds=ANY, result=bool_)
le: Primitive = _map("le", np.less_equal, None, "{0} <= {1}", kinds=ANY, result=bool_)
gt: Primitive = _map("gt", np.greater, None, "{0} > {1}", kinds=ANY, result=bool_)
ge: Primitive = _map("ge", np.greater_equal, None, "{0} >= {1}", kinds=ANY, result=bool_)
logical_and: Primitive = _map("logical_and", np.logical_and, None, "{0} && {1}", kinds=("bool",))
logical_or: Primitive = _map("logical_or", np.logical_or, None, "{0} || {1}", kinds=("bool",))
logical_xor: Primitive = _map("logical_xor", np.logical_xor, None, "{0} != {1}", kinds=("bool",))

# ---- mixed dtypes -------------------------------------------------------------------------------


def _where_type(c: TensorType, a: TensorType, b: TensorType) -> TensorType:
    if c.dtype is not bool_:
        raise DTypeError(f"where: the condition must be bool, got {c.dtype.name}; compare first")
    dtype = same_dtype("where", (a, b))
    return TensorType(dtype, broadcast_shapes("where", c.shape, a.shape, b.shape))


def _where(c: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    result = np.where(c, a, b)
    return result if result.flags.c_contiguous else np.array(result, order="C")


def _where_into(out: np.ndarray, c: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    if np.may_share_memory(out, a) or np.may_share_memory(out, c):
        np.copyto(out, np.where(c, a, b))  # writing b first would lose the other
    else:
        np.copyto(out, b)
        np.copyto(out, a, where=c)


where: Primitive = declare(
    "where",
    "map",
    _where_type,
    _where,
    _where_into,
    (
        None,
        lambda g, y, c, a, b: where(c, g, 0.0),
        lambda g, y, c, a, b: where(c, 0.0, g),
    ),
    elements,
    CHEAP,
    "{0} ? {1} : {2}",
    destroys=(2,),
)


cast: Primitive = declare(
    "cast",
    "map",
    lambda x, dtype: TensorType(dtype, x.shape),
    lambda x, dtype: x.astype(dtype.numpy, order="C"),
    lambda out, x, dtype: np.copyto(out, x, casting="unsafe"),
    (lambda g, y, x, dtype: cast(g, dtype=x.dtype) if x.dtype.is_floating else None,),
    elements,
    CHEAP,
    "cast({0})",
)
