"""The table of primitives. Everything that a program does is one of these rows.

Each primitive is here under its own name (`ops.abs`, `ops.pow`, `ops.slice` ...); TABLE has them
all by name, those that are declared later, too. Calling one hands it to the engine in force (see
`core`).
"""

from tinyaot.ops.check import within
from tinyaot.ops.core import TABLE, Engine, Operand, Primitive, mode, using
from tinyaot.ops.dot import dot
from tinyaot.ops.elementwise import (
    abs_ as abs,
)
from tinyaot.ops.elementwise import (
    add,
    atan2,
    cast,
    ceil,
    cos,
    declare_map,
    div,
    eq,
    erf,
    exp,
    expm1,
    floor,
    floordiv,
    ge,
    gt,
    isfinite,
    isnan,
    le,
    log,
    log1p,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    lt,
    maximum,
    minimum,
    mul,
    ne,
    neg,
    relu,
    remainder,
    rsqrt,
    sigmoid,
    sign,
    sin,
    sqrt,
    sub,
    tan,
    tanh,
    where,
)
from tinyaot.ops.elementwise import (
    pow_ as pow,
)
from tinyaot.ops.elementwise import (
    round_ as round,
)
from tinyaot.ops.index import gather, put_along, scatter, take_along
from tinyaot.ops.leaf import full, iota, zeros_like
from tinyaot.ops.mutate import copy, set_value, write
from tinyaot.ops.random import philox, random_bits
from tinyaot.ops.reduce import (
    amax,
    amin,
    argmax,
    argmin,
    argsort,
    broadcast,
    cumprod,
    cumsum,
    prod,
    unbroadcast,
)
from tinyaot.ops.reduce import (
    sum_ as sum,
)
from tinyaot.ops.views import (
    concat,
    detach,
    diagonal,
    diagonal_scatter,
    flip,
    permute,
    replay,
    reshape,
    scatter_back,
    slice_axis,
    slice_scatter,
)
from tinyaot.ops.views import (
    slice_ as slice,
)


def __getattr__(name: str) -> Primitive:
    """A primitive that is not listed here."""
    try:
        return TABLE[name]
    except KeyError:
        raise AttributeError(f"module 'tinyaot.ops' has no attribute {name!r}") from None


__all__ = [
    "TABLE",
    "Engine",
    "Operand",
    "Primitive",
    "abs",
    "add",
    "amax",
    "amin",
    "argmax",
    "argmin",
    "argsort",
    "atan2",
    "broadcast",
    "cast",
    "ceil",
    "concat",
    "copy",
    "cos",
    "cumprod",
    "cumsum",
    "declare_map",
    "detach",
    "diagonal",
    "diagonal_scatter",
    "div",
    "dot",
    "eq",
    "erf",
    "exp",
    "expm1",
    "flip",
    "floor",
    "floordiv",
    "full",
    "gather",
    "ge",
    "gt",
    "iota",
    "isfinite",
    "isnan",
    "le",
    "log",
    "log1p",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "lt",
    "maximum",
    "minimum",
    "mode",
    "mul",
    "ne",
    "neg",
    "permute",
    "philox",
    "pow",
    "prod",
    "put_along",
    "random_bits",
    "relu",
    "remainder",
    "replay",
    "reshape",
    "round",
    "rsqrt",
    "scatter",
    "scatter_back",
    "set_value",
    "sigmoid",
    "sign",
    "sin",
    "slice",
    "slice_axis",
    "slice_scatter",
    "sqrt",
    "sub",
    "sum",
    "take_along",
    "tan",
    "tanh",
    "unbroadcast",
    "using",
    "where",
    "within",
    "write",
    "zeros_like",
]
