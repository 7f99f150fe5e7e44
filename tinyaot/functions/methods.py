"""What a Tensor can do: the table of its methods and operators.

The functions stand in their own files and know nothing of this; importing the package attaches
them. An operator returns NotImplemented for what is no operand, so that Python can try the other
side (and `x == None` is False), but for builtin objects, whose side is known to refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tinyaot import shapes
from tinyaot.errors import DTypeError
from tinyaot.functions import (
    create,
    elementwise,
    index,
    linalg,
    reduce,
    sample,
    select,
    shape,
    views,
)
from tinyaot.functions.inplace import IN_PLACE, and_, or_, xor_
from tinyaot.functions.operands import cast, is_operand
from tinyaot.tensor import Tensor

Method = Callable[..., Any]

# ---- the table ----------------------------------------------------------------------------------

_NAMES: dict[Any, str] = {
    elementwise: """
        neg abs sign exp log log1p expm1 sqrt rsqrt square reciprocal sin cos tan tanh sigmoid relu
        erf floor ceil round isnan isinf isfinite logical_not clamp add sub mul div floordiv
        remainder pow maximum minimum atan2 where masked_fill lerp addcmul addcdiv eq ne lt le gt ge
        logical_and logical_or logical_xor""",
    reduce: """
        sum mean max min amax amin argmax argmin prod var std norm logsumexp any all cumsum cumprod
        softmax log_softmax""",
    views: """
        reshape view flatten squeeze unsqueeze transpose permute movedim broadcast_to expand split
        chunk unbind diagonal""",
    shape: "repeat flip roll tril triu clone contiguous",
    select: """
        gather scatter scatter_ scatter_add scatter_add_ index_select take_along_dim sort argsort
        topk nonzero""",
    linalg: "matmul dot outer",
    sample: "bernoulli uniform_ normal_",
    create: "to cpu cuda",
}
_DTYPES = {
    "float": shapes.float32,
    "double": shapes.float64,
    "half": shapes.float16,
    "bfloat16": shapes.bfloat16,
    "int": shapes.int32,
    "long": shapes.int64,
    "bool": shapes.bool_,
}


def _where(x: Tensor, condition: Any, other: Any) -> Tensor:
    """x where the condition is True, else `other`."""
    return elementwise.where(condition, x, other)


def _to_dtype(dtype: shapes.DType) -> Method:
    def method(x: Tensor) -> Tensor:
        return cast(x, dtype)

    method.__doc__ = f"This tensor in {dtype.name}: itself if it has it."
    return method


# ---- operators ----------------------------------------------------------------------------------


def _operator(function: Callable[[Any, Any], Any], equality: bool = False) -> Method:
    def method(x: Tensor, other: Any) -> Any:
        if isinstance(other, Tensor) or is_operand(other) or (_is_hopeless(other) and not equality):
            return function(x, other)
        return NotImplemented

    return method


def _reflected(function: Callable[[Any, Any], Any]) -> Method:
    def method(x: Tensor, other: Any) -> Any:
        return function(other, x) if is_operand(other) or _is_hopeless(other) else NotImplemented

    return method


def _is_hopeless(x: Any) -> bool:
    """Whether Python's other side will not take a tensor, either: then the function says why."""
    return type(x).__module__ == "builtins"


_ARITHMETIC: dict[str, tuple[Callable[[Any, Any], Any], Method | None]] = {
    "add": (elementwise.add, IN_PLACE["add_"]),
    "sub": (elementwise.sub, IN_PLACE["sub_"]),
    "mul": (elementwise.mul, IN_PLACE["mul_"]),
    "truediv": (elementwise.div, IN_PLACE["div_"]),
    "floordiv": (elementwise.floordiv, IN_PLACE["floordiv_"]),
    "mod": (elementwise.remainder, IN_PLACE["remainder_"]),
    "pow": (elementwise.pow, IN_PLACE["pow_"]),
    "matmul": (linalg.matmul, None),
    "and": (elementwise.bool_and, and_),
    "or": (elementwise.bool_or, or_),
    "xor": (elementwise.bool_xor, xor_),
}


def _operators() -> dict[str, Method]:
    found: dict[str, Method] = {}
    for name, (function, in_place) in _ARITHMETIC.items():
        found[f"__{name}__"] = _operator(function)
        found[f"__r{name}__"] = _reflected(function)
        if in_place is not None:
            found[f"__i{name}__"] = _operator(in_place)
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        found[f"__{name}__"] = _operator(getattr(elementwise, name), name in ("eq", "ne"))
    return found


def _len(x: Tensor) -> int:
    if x.ndim == 0:
        raise DTypeError("len: a tensor without dims has no length; its size is 1")
    return x.shape[0]


def _iter(x: Tensor) -> Iterator[Tensor]:
    if x.ndim == 0:
        raise DTypeError("iter: a tensor without dims cannot be iterated over; use item()")
    return iter(views.unbind(x))


def _contains(x: Tensor, value: Any) -> bool:
    return bool(reduce.any(elementwise.eq(x, value)))


_ELSEWHERE = {  # what others call it
    "data": "detach()",
    "dim": "ndim",
    "nelement": "size, the number of elements",
    "numel": "size, the number of elements",
    "t": "T",
    "mm": "x @ y",
    "bmm": "x @ y",
    "astype": "to(dtype)",
    "type": "dtype, or to(dtype)",
    "type_as": "to(y.dtype)",
    "view_as": "view(y.shape)",
    "expand_as": "expand(y.shape)",
    "swapaxes": "transpose",
    "narrow": "a slice",
    "masked_select": "x[mask]",
    "copy": "clone()",
    "ravel": "flatten()",
    "concat": "ta.cat",
    "new_zeros": "ta.zeros",
    "new_ones": "ta.ones",
}


def _missing(x: Tensor, name: str) -> Any:
    hint = f"; use {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
    raise AttributeError(f"a Tensor has no attribute {name!r}{hint}", name=name, obj=x)


def _positive(x: Tensor) -> Tensor:
    return x


# ---- attaching ----------------------------------------------------------------------------------


def methods() -> dict[str, Any]:
    """Every attribute that the functions give to Tensor, by name."""
    table: dict[str, Any] = {
        name: getattr(module, name) for module, names in _NAMES.items() for name in names.split()
    }
    table |= IN_PLACE
    table |= {name: _to_dtype(dtype) for name, dtype in _DTYPES.items()}
    table |= _operators()
    table |= {
        "where": _where,
        "__neg__": elementwise.neg,
        "__pos__": _positive,
        "__abs__": elementwise.abs,
        "__invert__": elementwise.bool_not,
        "__round__": elementwise.round,
        "__getitem__": index.getitem,
        "__setitem__": index.setitem,
        "__len__": _len,
        "__iter__": _iter,
        "__contains__": _contains,
        "__getattr__": _missing,
        "T": property(views.reversed_dims, doc="A view with the dims in reverse order."),
        "mT": property(views.matrix_transpose, doc="A view with the last two dims exchanged."),
    }
    return table


def attach() -> None:
    """Give Tensor its methods and operators."""
    for name, method in methods().items():
        setattr(Tensor, name, method)
