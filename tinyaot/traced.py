"""What a tensor is inside a trace: an IR value on a storage; and inputs lifted from outside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tinyaot import ops
from tinyaot.errors import TraceError
from tinyaot.ir import InputRole, Node, Value
from tinyaot.recorder import Recorder, eager
from tinyaot.shapes import Geometry, Shape
from tinyaot.tape import TapeNode, edge_key, enable_grad
from tinyaot.tensor import Chain, History, Tensor


@dataclass(slots=True, eq=False)
class Root:
    """A storage inside the trace: an input's, or that of an intermediate value."""

    tensor: Tensor | None = None  # the base tensor, set right after it is made
    input: Lifted | None = None
    written: bool = False
    filled: bool = False  # the last write put the same constant everywhere

    def wrote(self, dst: Traced, nodes: list[Node]) -> None:
        """Note a write, the last of the nodes."""
        assert self.tensor is not None
        source = nodes[-1].inputs[1]
        full = len(nodes) > 1 and nodes[-2].op == "full" and nodes[-2].results == (source,)
        self.written, self.filled = True, full and dst.geometry == self.tensor._data.geometry


@dataclass(slots=True, eq=False)
class Lifted:
    """An input of the Program: which tensor from outside it is, and what it is to the function."""

    value: Value
    role: InputRole
    source: Any  # the Tensor; or (owner, name) of a number that a call reads
    shadow: Tensor | None = None
    name: str = ""
    requires_grad: bool = False
    outer: OuterNode | None = None  # stands for the history that the tensor brings along


@dataclass(slots=True, eq=False)
class Hyper:
    """A hyperparameter that the trace came across, as it was then. One that the function `read` as
    a number is guarded, one that it `assigned` is a constant from there on."""

    owner: Any
    name: str
    before: Any
    read: bool = False
    assigned: bool = False
    shadow: Tensor | None = None  # the input for it


@dataclass(slots=True, eq=False)
class Traced:
    """What stands in `Tensor._data` inside a trace: an IR value and how it sees its storage."""

    engine: Recorder
    value: Value
    geometry: Geometry
    root: Root
    path: Chain = ()  # views from the root, detach included

    @property
    def shape(self) -> Shape:
        return self.value.type.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.value.type.dtype.numpy

    @property
    def size(self) -> int:
        return self.value.type.size


class NeedBases(BaseException):
    """The trace has to start over, with `bases` lifted in place of their views."""

    def __init__(self, bases: dict[History, Tensor]) -> None:
        super().__init__()
        self.bases = bases


class NeedDepth(BaseException):
    """The trace has to start over, with calls of functions by their own fwd written down by their
    rules, `depth` deep."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.depth = depth


class OuterNode(TapeNode):
    """On the tracer's tape: the history that an argument brings from outside the function."""

    __slots__ = ()
    name = "outside"


_NUMBER = "keep it a tensor; a 0-d tensor works wherever a number does"
_HINTS = {
    "bool()": "a branch on a tensor's value cannot be compiled: use where(condition, a, b)",
    "item()": _NUMBER,
    "float()": _NUMBER,
    "int()": "sizes and bounds of slices cannot depend on data: compute it outside the compiled "
    "function, or from shapes alone; to pick elements, index with the tensor",
}


def no_value(tensor: Tensor, what: str) -> TraceError:
    """The error for a use that needs the value of a traced tensor, such as "item()"."""
    hint = _HINTS.get(what, "use functions of tensors instead, or return it and do this outside")
    return TraceError(f"{what} of {tensor.type} inside a compiled function: {hint}")


def replay_again(tensor: Tensor, shadow: Tensor, made: dict[Any, Tensor]) -> Tensor:
    """The views that make a tensor from outside of its base, taken of what stands for the base.

    Views that were taken one of another outside are so inside: the tape tells which (`made` keeps
    them by edge), and a gradient by the one includes what flows through the other.
    """
    edge, keys = eager().edge(tensor), []
    for _ in tensor._chain:
        keys.append(edge_key(edge))
        edge = edge[0].edges[0] if isinstance(edge, tuple) else None
    with enable_grad():
        for key, link in zip(reversed(keys), tensor._chain, strict=True):
            if key is None or key not in made:
                shadow = ops.replay(shadow, (link,))
            else:
                shadow = made[key]
            if key is not None:
                made[key] = shadow
    return shadow


def renew(view: Tensor, base: Tensor) -> None:
    """Make a view one of what its base is after `detach_`."""
    path = base._data.path
    if view._data.path[: len(path)] != path:
        with enable_grad():
            now = ops.replay(base, view._chain)
        view._data, view._edge, view._version = now._data, now._edge, now._version


def views_a_leaf(tensor: Tensor) -> bool:
    """A view of a leaf that requires grad: as untouchable as the leaf."""
    history = tensor._history
    return bool(tensor._chain) and history.edge is None and history.requires_grad
