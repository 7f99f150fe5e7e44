"""In-place methods, with a trailing underscore: compute, then write into the tensor itself.

The write goes through the engine, which keeps what a backward still needs, records it, and refuses
what has no meaning (a leaf that requires grad, a view that repeats elements).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tinyaot.errors import ShapeError
from tinyaot.functions import elementwise, shape, views
from tinyaot.functions.operands import (
    as_scalar,
    as_tensor,
    cast,
    constant,
    is_scalar,
    mutate,
    named,
)
from tinyaot.tensor import Tensor, engine

InPlace = Callable[..., Tensor]


def in_place(name: str, function: Callable[..., Tensor]) -> InPlace:
    """The method `name` that writes function(x, ...) into x and returns x.

    Raises ShapeError or DTypeError if the result has not x's shape or category of dtype.
    """

    def method(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return mutate(name, x, function(x, *args, **kwargs))

    doc = f"{function.__name__} in place: write the result into this tensor."
    return named(method, name, doc)


def _filled(op: str, x: Tensor, value: Any) -> Tensor:
    """Write a number, or a tensor broadcast, into all of x; it is cast to x's dtype."""
    if is_scalar(value):
        filling = constant(as_scalar(op, value, x.dtype), x.dtype, x.shape)
    else:
        filling = cast(as_tensor(op, value), x.dtype)
        if filling.shape != x.shape:
            filling = views.expanded(op, filling, x.shape)
    engine().write(x, filling)
    return x


def copy_(x: Tensor, source: Any) -> Tensor:
    """Write `source`, cast and broadcast, into this tensor."""
    return _filled("copy_", x, source)


def fill_(x: Tensor, value: Any) -> Tensor:
    """Write a number or a 0-d tensor everywhere."""
    if isinstance(value, Tensor) and value.ndim:
        raise ShapeError(
            f"fill_: needs a number or a 0-d tensor, got shape {value.shape}; use copy_"
        )
    return _filled("fill_", x, value)


def zero_(x: Tensor) -> Tensor:
    """Write 0 everywhere."""
    return _filled("zero_", x, 0)


IN_PLACE: dict[str, InPlace] = {
    f"{name}_": in_place(f"{name}_", getattr(elementwise, name))
    for name in (
        *("add", "sub", "mul", "div", "floordiv", "remainder", "pow", "neg", "abs", "exp", "log"),
        *("sqrt", "rsqrt", "square", "reciprocal", "sin", "cos", "tanh", "sigmoid", "relu"),
        *("floor", "ceil", "round", "clamp", "masked_fill", "addcmul", "addcdiv", "lerp"),
        *("logical_and", "logical_or", "logical_xor", "logical_not", "maximum", "minimum"),
    )
} | {
    "tril_": in_place("tril_", shape.tril),
    "triu_": in_place("triu_", shape.triu),
    "copy_": copy_,
    "fill_": fill_,
    "zero_": zero_,
}

# What &=, |= and ^= do: of bools alone.
and_ = in_place("logical_and_", elementwise.bool_and)
or_ = in_place("logical_or_", elementwise.bool_or)
xor_ = in_place("logical_xor_", elementwise.bool_xor)
