"""What a gradient depends on, known from the tape without computing it.

A gradient depends on what rules read on the way to it: the cotangent of an operand depends on what
the cotangent it was made of did (if the rule uses that) and on the operands and results that the
rule reads. So the gradient of a product by one factor depends on the other, and that of a sum, or
of a floor, on nothing: it cannot be differentiated again.
"""

from __future__ import annotations

from collections.abc import Sequence

from tinyaot.shapes import TensorType
from tinyaot.tape import PrimitiveNode, TapeNode, Unread, WriteNode, reachable, rule_reads
from tinyaot.tensor import Edge, Tensor

Key = tuple[int, int]


def gradient_edges(roots: Sequence[tuple[Edge, Edge]], targets: Sequence[Edge]) -> list[list[Edge]]:
    """For each target the edges of what its gradient depends on; none: it is a constant. `roots`:
    the edge of each output, and that of its cotangent (None: a constant)."""
    walk = _Walk()
    for edge, cotangent in roots:
        walk.arrive(edge, walk.bit(cotangent))
    for node in reversed(reachable([edge for edge, _ in roots])[1]):
        walk.visit(node)
    return [walk.edges_of(t) for t in targets]


def _key(edge: Edge) -> Key | None:
    if edge is None:
        return None
    return (id(edge), -1) if isinstance(edge, Tensor) else (edge[0].seq, edge[1])


class _Walk:
    """Sets of edges, as bits of an integer, at every cotangent on the way back."""

    def __init__(self) -> None:
        self.bits: dict[Key, int] = {}
        self.edges: list[Edge] = []
        self.depends: dict[Key, int] = {}  # of the cotangent of a node's result, or of a leaf

    def bit(self, edge: Edge) -> int:
        key = _key(edge)
        if key is None:
            return 0
        if key not in self.bits:
            self.bits[key] = 1 << len(self.edges)
            self.edges.append(edge)
        return self.bits[key]

    def arrive(self, edge: Edge, depends: int) -> None:
        key = _key(edge)
        if key is not None:
            self.depends[key] = self.depends.get(key, 0) | depends

    def edges_of(self, target: Edge) -> list[Edge]:
        key = _key(target)
        mask = self.depends.get(key, 0) if key is not None else 0
        return [e for i, e in enumerate(self.edges) if mask >> i & 1]

    def visit(self, node: TapeNode) -> None:
        """Hand on from the cotangents of a node's results to those of its operands."""
        arrived = [self.depends.get((node.seq, k)) for k in range(node.outputs)]
        if all(d is None for d in arrived):
            return
        given = 0
        for d in arrived:
            given |= d or 0
        for i, edge in enumerate(node.edges):
            if edge is not None:
                self.arrive(edge, self._operand(node, i, given))

    def _operand(self, node: TapeNode, operand: int, given: int) -> int:
        if isinstance(node, WriteNode):
            return given
        if not isinstance(node, PrimitiveNode) or (node.freed and node.saves):
            # Gradients of gradients, and what was freed: all that there is.
            for edge in node.edges:
                given |= self.bit(edge)
            return given
        needed = tuple(i == operand for i in range(len(node.edges)))
        reads = rule_reads(node.primitive, needed, lambda: _types(node), node.attrs)
        depends = given if reads.cotangent else 0
        for i in reads.operands:
            depends |= self.bit(node.edges[i])
        return depends | (self.bit((node, 0)) if reads.result else 0)


def _types(node: PrimitiveNode) -> tuple[list[TensorType], TensorType]:
    result: Unread = node.result
    scalar = TensorType(result.dtype, ())
    operands = [
        TensorType(x.dtype, x.shape) if isinstance(x, Unread) else scalar for x in node.operands
    ]
    return operands, TensorType(result.dtype, result.shape)
