"""What a write is. Programs are pure from functionalization on, so `write` exists only before.

`copy` gives a value memory of its own; `set_value` is a write that autograd does not see (under
`no_grad`, or into a detached alias), once programs are pure.
"""

from __future__ import annotations

import numpy as np

from tinyaot.errors import ShapeError
from tinyaot.ops.core import declare, same_dtype
from tinyaot.shapes import TensorType


def _same_type(op: str, old: TensorType, new: TensorType) -> TensorType:
    same_dtype(op, (old, new))
    if old.shape != new.shape:
        raise ShapeError(
            f"{op}: a value of shape {new.shape} cannot take the place of one of shape "
            f"{old.shape}; broadcast or reshape it first"
        )
    return old


copy = declare(
    "copy",
    "map",
    lambda x: x,
    lambda x: np.array(x, order="C"),
    np.copyto,
    (lambda g, y, x: g,),
    expr="{0}",
    doc="The same value in memory of its own.",
)


set_value = declare(
    "set_value",
    "map",
    lambda old, new: _same_type("set_value", old, new),
    lambda old, new: np.array(new, order="C"),
    lambda out, old, new: np.copyto(out, new),
    (lambda g, y, old, new: g, None),
    expr="{1}",
    doc="The value of `new` with the derivative of `old`: a write hidden from autograd.",
)


def _write(dst: np.ndarray, src: np.ndarray) -> np.ndarray:
    np.copyto(dst, src)
    return dst


write = declare(
    "write",
    "mutate",
    lambda dst, src: _same_type("write", dst, src),
    _write,
    doc="The bytes of dst, which may be a view, become src. No result.",
)
