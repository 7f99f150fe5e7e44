"""The engine that writes IR: what autodiff, functionalize and the tracer emit nodes with.

Under `using(builder)` a primitive's call appends a node and returns a `Sym`, an IR value that
a vjp rule can use like a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tinyaot.errors import DTypeError
from tinyaot.ir import Node, Origin, Phase, Value
from tinyaot.location import Loc
from tinyaot.ops.core import Primitive
from tinyaot.shapes import DType, Shape, TensorType


class Sym:
    """An IR value under construction, as a primitive's operand."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value

    @property
    def shape(self) -> Shape:
        return self.value.type.shape

    @property
    def dtype(self) -> DType:
        return self.value.type.dtype

    @property
    def ndim(self) -> int:
        return len(self.value.type.shape)

    def __repr__(self) -> str:
        return f"{self.value}: {self.value.type}"


class Builder:
    """Collects nodes. `phase`, `loc`, `origin` and `checkpoint` are stamped on every node emitted
    next."""

    def __init__(self, next_id: int) -> None:
        self.next_id = next_id
        self.nodes: list[Node] = []
        self.phase: Phase | None = None
        self.loc: Loc | None = None
        self.origin: tuple[Origin, ...] = ()
        self.checkpoint: tuple[int, ...] = ()

    def fresh(self, type_: TensorType) -> Value:
        """A new value, with the next id."""
        value = Value(self.next_id, type_)
        self.next_id += 1
        return value

    def emit(
        self,
        op: str,
        inputs: Sequence[Value],
        types: Sequence[TensorType],
        attrs: dict[str, Any] | None = None,
    ) -> Node:
        """Append a node with fresh results of the given types."""
        if op == "full" and attrs is not None and attrs["value"] != attrs["value"]:
            attrs = {**attrs, "value": math.nan}  # the one NaN, so that equal programs are equal
        results = tuple(self.fresh(t) for t in types)
        stamp = self.phase, self.loc, self.origin, None, self.checkpoint
        node = Node(op, tuple(inputs), results, attrs or {}, *stamp)
        self.nodes.append(node)
        return node

    def bind(self, primitive: Primitive, operands: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
        """Append the primitive's node; Python scalars become `full` nodes first."""
        values = self.values_of(primitive, operands)
        out = primitive.infer([v.type for v in values], attrs)
        if primitive.kind == "mutate":
            self.emit(primitive.name, values, (), attrs)
            return None
        return Sym(self.emit(primitive.name, values, (out,), attrs).result)

    def values_of(self, primitive: Primitive, operands: tuple[Any, ...]) -> list[Value]:
        """The operands' Values; a scalar takes the dtype of the last operand that has one
        (so that `where(c, 0.0, g)` takes g's, not the condition's)."""
        dtype = next((x.dtype for x in reversed(operands) if isinstance(x, Sym)), None)
        values = []
        for x in operands:
            if isinstance(x, Sym):
                values.append(x.value)
            elif isinstance(x, (bool, int, float)) and dtype is not None:
                values.append(self.scalar(x, dtype))
            else:
                raise DTypeError(f"{primitive.name}: {type(x).__name__} is not an operand")
        return values

    def scalar(self, x: bool | int | float, dtype: DType) -> Value:
        """A 0-d constant."""
        python = {"bool": bool, "int": int, "float": float}[dtype.kind]
        attrs = {"value": python(x), "shape": (), "dtype": dtype}
        return self.emit("full", (), (TensorType(dtype, ()),), attrs).result
