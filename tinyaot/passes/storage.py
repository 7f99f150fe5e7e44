"""Which values are views of which, and when each storage is alive. Read by partition, schedule
and plan, so that all three mean the same bytes.

A view has no code and no memory: it is its operand's storage seen through other strides. Only a
reshape whose strides do not exist (of a permuted value, say) is a copy with a storage of its own;
`Geometry` decides, as NumPy would.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tinyaot.ir import Node, Program, Value
from tinyaot.ops.core import TABLE
from tinyaot.shapes import (
    Geometry,
    broadcast_geometry,
    contiguous,
    diagonal_geometry,
    permute_geometry,
    reshape_geometry,
    slice_geometry,
)

_VIEWS: dict[str, Callable[[Geometry, Mapping[str, Any]], Geometry | None]] = {
    "reshape": lambda g, a: reshape_geometry(g, a["shape"]),
    "permute": lambda g, a: permute_geometry(g, a["perm"]),
    "broadcast": lambda g, a: broadcast_geometry(g, a["shape"]),
    "slice": lambda g, a: slice_geometry(g, a["starts"], a["stops"], a["steps"]),
    "diagonal": lambda g, a: diagonal_geometry(g, a["offset"], a["axis1"], a["axis2"]),
    "detach": lambda g, a: g,
}


@dataclass(frozen=True)
class Storages:
    """`root[id]` is the id of the value that owns the bytes of value `id` (its own id, if it is
    no view); `geometry[id]` is how it sees them, in elements of the root."""

    root: Mapping[int, int]
    geometry: Mapping[int, Geometry]

    def is_root(self, value: Value) -> bool:
        return self.root[value.id] == value.id

    def is_view(self, node: Node) -> bool:
        """Whether a node only looks at its operand's storage: it needs no code."""
        return len(node.results) == 1 and self.root[node.results[0].id] != node.results[0].id


def storages_of(program: Program) -> Storages:
    """The storage and the geometry of every value of a functional program."""
    root: dict[int, int] = {}
    geometry: dict[int, Geometry] = {}
    for entry in program.inputs:
        root[entry.value.id] = entry.value.id
        geometry[entry.value.id] = contiguous(entry.value.type.shape)
    for node in program.nodes:
        seen = None
        primitive = TABLE.get(node.op)
        if primitive is not None and primitive.may_alias:
            source = node.inputs[0].id
            seen = _VIEWS[node.op](geometry[source], node.attrs)
        for result in node.results:
            root[result.id] = result.id if seen is None else root[source]
            geometry[result.id] = contiguous(result.type.shape) if seen is None else seen
    return Storages(root, geometry)


def is_constant(node: Node) -> bool:
    """Whether the node is one scalar seen in some shape: it takes no memory unless it is given
    back to the caller."""
    return node.op == "full"


def is_joint(program: Program) -> bool:
    """Whether the program is the two halves of an ahead-of-time compiled function."""
    return any(i.role == "cotangent" for i in program.inputs)
