"""Which values are views of which, and when each storage is alive. Read by partition, schedule
and plan, so that all three mean the same bytes.

A view has no code and no memory: it is its operand's storage seen through other strides. Only a
reshape whose strides do not exist (of a permuted value, say) is a copy with a storage of its own;
`Geometry` decides, as NumPy would.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache

from tinyaot.ir import Node, Program, Value
from tinyaot.ops.check import CHECKED
from tinyaot.ops.core import TABLE
from tinyaot.shapes import Geometry, contiguous


@dataclass(frozen=True)
class Storages:
    """`root[id]` is the id of the value that owns the bytes of value `id` (its own id, if it is
    no view); `geometry[id]` is how it sees them, in elements of the root; `whole` are the values
    that see all of theirs in C order."""

    root: Mapping[int, int]
    geometry: Mapping[int, Geometry]
    whole: Set[int]

    def is_root(self, value: Value) -> bool:
        return self.root[value.id] == value.id

    def is_view(self, node: Node) -> bool:
        """Whether a node only looks at its operand's storage: it needs no code."""
        return len(node.results) == 1 and self.root[node.results[0].id] != node.results[0].id

    def with_root(self, value: Value) -> Storages:
        """These, and a value with a storage of its own."""
        return Storages(
            {**self.root, value.id: value.id},
            {**self.geometry, value.id: contiguous(value.type.shape)},
            self.whole | {value.id},
        )


def storages_of(program: Program) -> Storages:
    """The storage and the geometry of every value of a functional program."""
    root: dict[int, int] = {}
    geometry: dict[int, Geometry] = {}
    whole: set[int] = set()

    def own(value: Value) -> None:
        root[value.id] = value.id
        geometry[value.id] = _in_c_order(value.type.shape)
        whole.add(value.id)

    for entry in program.inputs:
        own(entry.value)
    for node in program.nodes:
        seen = None
        look = _look(node)
        if look is not None:
            source = node.inputs[0].id
            seen = look(geometry[source], **node.attrs)
        if seen is None:
            for result in node.results:
                own(result)
            continue
        id_ = node.results[0].id
        root[id_], geometry[id_] = root[source], seen
        base = geometry[root[id_]].shape
        if math.prod(seen.shape) == math.prod(base) and not seen.offset and seen.is_contiguous:
            whole.add(id_)
    return Storages(root, geometry, whole)


def beside(node: Node, storages: Storages, constants: Set[int] = frozenset()) -> int:
    """Bytes that a node allocates beside its results while it runs. `constants`: ids of values that
    are one element seen everywhere."""
    if storages.is_view(node):
        return 0
    primitive, types = TABLE[node.op], [v.type for v in node.inputs]
    views = [
        Geometry(v.type.shape, (0,) * v.type.ndim)
        if storages.root[v.id] in constants
        else storages.geometry[v.id]
        for v in node.inputs
    ]
    if primitive.strided and not all(v.is_contiguous for v in views):
        return max(primitive.strided(views, types, r.type, node.attrs) for r in node.results)
    return max((primitive.scratch(types, r.type, node.attrs) for r in node.results), default=0)


def storage_of(program: Program, value: Value) -> tuple[int, Geometry]:
    """The root and the geometry of one value, where the others do not matter."""
    looks: list[tuple[Node, Callable[..., Geometry | None]]] = []
    node = program.producers.get(value.id)
    while node is not None and (look := _look(node)) is not None:
        looks.append((node, look))
        value = node.inputs[0]
        node = program.producers.get(value.id)
    root, geometry = value.id, _in_c_order(value.type.shape)
    for node, look in reversed(looks):
        seen = look(geometry, **node.attrs)
        if seen is None:
            root, seen = node.result.id, _in_c_order(node.result.type.shape)
        geometry = seen
    return root, geometry


def _look(node: Node) -> Callable[..., Geometry | None] | None:
    """What says how a node's result lies in its operand's bytes, for ops that may be views."""
    primitive = TABLE.get(node.op)
    return primitive.geometry if primitive is not None else None


_in_c_order = lru_cache(4096)(contiguous)


def raising(nodes: Sequence[Node]) -> list[int]:
    """Positions of the nodes that may raise for what is in their operands: a bad index. One that is
    the vjp of another of these, or computes it again, repeats what that has checked."""
    checks = [(at, n) for at, n in enumerate(nodes) if n.op in CHECKED]
    again: dict[int, list[int]] = {at: [] for at, _ in checks}
    known = {n.result.id for _, n in checks}  # also by the ids that they had before
    for at, n in checks:
        for o in n.origin:
            if o.relation in ("vjp-of", "recompute-of"):
                again[at].append(o.id)
            else:
                known.add(o.id)
    return [at for at, ids in again.items() if known.isdisjoint(ids)]


def is_constant(node: Node) -> bool:
    """Whether the node is one scalar seen in some shape: it takes no memory unless it is given
    back to the caller."""
    return node.op == "full"
