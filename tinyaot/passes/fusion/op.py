"""An op of the fused program: what `forms` brings every node to, and all of fusion works on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tinyaot.ir import Node, Phase
from tinyaot.location import Loc
from tinyaot.ops.core import Attrs
from tinyaot.shapes import DType, TensorType

Form = Literal[
    "input",  # a leaf with memory
    "const",  # one scalar, whatever its shape
    "iota",
    "map",  # an expression an element
    "random",  # a map of the element's index
    "reduce",
    "dot",
    "view",  # strides, no code
    "gather",  # a map that reads at a computed place
    "scatter",  # adds to zeros at computed places
    "concat",  # no code: the parts are stored in their slots
    "fallback",
]

LEAVES = ("input", "const", "iota")
LANES = ("cumsum", "cumprod", "argmax", "argmin", "argsort")  # fallbacks along lanes of an axis


@dataclass(eq=False, slots=True)
class Op:
    """A node of the fusion graph. `value` is the id of the IR value that it computes (-1: made
    here). `like` names the read whose gradient this is: (reader, operand). `after`: the
    gradients that it waits for, or it would be made beside the forward and kept. `reason`: of a
    copy, why there is one."""

    form: Form
    name: str
    ins: tuple[Op, ...]
    type: TensorType
    attrs: Attrs = field(default_factory=dict)
    value: int = -1
    node: Node | None = None
    like: tuple[Op, int] | None = None
    after: tuple[Op, ...] = ()
    id: int = -1  # topological position
    reason: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def phase(self) -> Phase:
        return self.node.phase or "forward" if self.node else "forward"

    @property
    def loc(self) -> Loc | None:
        return self.node.loc if self.node else None

    @property
    def goes_along_lanes(self) -> bool:
        """Whether threads can share it although it has no tile: each has some of the lanes."""
        return self.form == "fallback" and self.name in LANES

    @property
    def indexed(self) -> tuple[int, ...]:
        """The axes along which a gather reads, or a scatter writes, at computed places."""
        axes: tuple[int, ...] = self.attrs.get("axes") or (self.attrs["axis"],)
        return axes

    def __repr__(self) -> str:
        return f"%{self.value}={self.name}:{self.type}"
