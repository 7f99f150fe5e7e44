"""The table of primitives. Everything that a program does is one of these rows.

Each primitive is here under its own name (`ops.abs`, `ops.pow`, `ops.slice` ...), those that are
declared later, too; TABLE has them all. Calling one hands it to the engine in force (see `core`).
Beside them stand the helpers that rules are written with.
"""

from tinyaot.ops import check, index, mutate  # noqa: F401  declare their rows, as the others do
from tinyaot.ops.core import TABLE, Engine, Operand, Primitive, mode, using
from tinyaot.ops.dot import dot
from tinyaot.ops.elementwise import declare_map
from tinyaot.ops.leaf import zeros_like
from tinyaot.ops.random import philox
from tinyaot.ops.reduce import pull, unbroadcast
from tinyaot.ops.views import flip, replay, scatter_back, slice_axis

globals().update(TABLE)  # eager finds these at every call: __getattr__ alone would be slower


def __getattr__(name: str) -> Primitive:
    """A primitive that is declared later."""
    try:
        return TABLE[name]
    except KeyError:
        raise AttributeError(f"module 'tinyaot.ops' has no attribute {name!r}") from None


__all__ = [
    "TABLE",
    "Engine",
    "Operand",
    "Primitive",
    "declare_map",
    "dot",
    "flip",
    "mode",
    "philox",
    "pull",
    "replay",
    "scatter_back",
    "slice_axis",
    "unbroadcast",
    "using",
    "zeros_like",
]
