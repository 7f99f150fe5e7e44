"""Ops as nodes again: how layout, fuse and schedule write down what they decided.

Fusion works on ops (see `forms`); everything else reads Programs. An op keeps the id of the IR
value that it computes; what fusion made itself, and a second op of one id, gets a fresh one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tinyaot.ir import PHASES, Input, Node, Origin, Output, Phase, Program, Value
from tinyaot.passes.fusion.forms import Forms
from tinyaot.passes.fusion.op import Op
from tinyaot.passes.fusion.plan import FusionPlan
from tinyaot.passes.fusion.regions import Region
from tinyaot.shapes import TensorType


class Exporter:
    """Names the ops of one entry point, and writes them as nodes. `taken` are ids that stand
    elsewhere in the program already; `phase` is given to nodes that fusion made."""

    def __init__(
        self, forms: Forms, taken: set[int], fresh: Iterator[int], phase: Phase = "forward"
    ) -> None:
        self.taken, self.fresh, self.phase = taken, fresh, phase
        self.value_of: dict[Op, Value] = {op: Value(op.value, op.type) for op in forms.inputs}
        self.others: dict[tuple[Any, ...], Value] = {}
        self.given: dict[int, tuple[Op, Value]] = {}  # by output: its op, and its value
        self.reshaped: dict[Op, Value] = {}  # an output that sees its op's bytes in another shape
        # saved values first: the other half knows them by their ids
        for op, o in sorted(forms.outputs, key=lambda pair: pair[1].role != "saved"):
            value = Value(o.value.id if o.value.id not in taken else next(fresh), o.value.type)
            taken.add(value.id)
            self.given[id(o)] = op, value
            if op.type == o.value.type:
                self.value_of[op], op.value = value, value.id
            else:
                self.reshaped[op] = value

    def name(self, op: Op) -> Value:
        """The value of an op."""
        if op not in self.value_of:
            id_ = op.value if op.value >= 0 and op.value not in self.taken else next(self.fresh)
            self.taken.add(id_)
            made = op.node.result if op.node else None
            same = made is not None and made.id == id_ and made.type == op.type
            self.value_of[op] = made if made is not None and same else Value(id_, op.type)
            op.value = id_
        return self.value_of[op]

    def other(self, type_: TensorType, *key: Any) -> Value:
        """A value that no op has: the same one for the same key."""
        if key not in self.others:
            self.others[key] = Value(next(self.fresh), type_)
        return self.others[key]

    def nodes(self, op: Op, operands: Sequence[Value], result: Value | None = None) -> list[Node]:
        """The node of an op, after the zeros that it scatters into, if it does. An op that is as it
        was keeps its node."""
        result = result or self.name(op)
        if op.node is not None and is_still(op, op.node, operands, result):
            return [op.node]
        made: list[Node] = []
        phase = op.phase if op.node else self.phase
        origin: tuple[Origin, ...] = ()
        if op.node is not None:
            of = op.node.result.id
            origin = op.node.origin if of == result.id else (Origin("simplified", of),)
        if op.form == "scatter":
            zeros = self.other(op.type, "zeros", op)
            made.append(Node("full", (), (zeros,), constant(0, op.type), phase, op.loc))
            operands = [zeros, *operands]
        attrs = attributes(op)
        node = Node(op.name, tuple(operands), (result,), attrs, phase, op.loc, origin)
        if op.node is not None and op.node.checkpoint:
            node = replace(node, checkpoint=op.node.checkpoint)
        return [*made, node]

    def in_its_shape(self, op: Op, source: Value, value: Value) -> Node:
        """An output that sees an op's bytes in another shape."""
        phase = op.phase if op.node else self.phase
        return Node("reshape", (source,), (value,), {"shape": value.type.shape}, phase, op.loc)

    def outputs(self, program: Program, nodes: list[Node]) -> dict[int, Output]:
        """The outputs of `program` by their old objects' identity. What has no op (an empty value,
        an input that keeps its value) stays, as a constant among `nodes` if need be."""
        known = {i.value.id for i in program.inputs}
        found: dict[int, Output] = {}
        for o in program.outputs:
            value = o.value
            if id(o) in self.given:
                value = self.given[id(o)][1]
            elif value.id not in known:
                nodes.append(Node("full", (), (value,), constant(0, value.type), self.phase))
                known.add(value.id)
            found[id(o)] = Output(value, o.role, o.of, o.name, o.requires_grad)
        return found


def is_still(op: Op, node: Node, operands: Sequence[Value], result: Value) -> bool:
    """Whether the node of an op says what it is now."""
    return (
        op.name == node.op
        and op.form != "scatter"
        and node.phase is not None
        and node.inputs == tuple(operands)
        and node.results == (result,)
        and node.attrs == attributes(op)
    )


def constant(value: Any, type_: TensorType) -> Mapping[str, Any]:
    """The attributes of a `full`, whose value is of its dtype's kind."""
    kind = {"bool": bool, "int": int, "float": float}[type_.dtype.kind]
    return {"value": kind(value), "shape": type_.shape, "dtype": type_.dtype}


def attributes(op: Op) -> Mapping[str, Any]:
    """The attributes of an op's node."""
    match op.name:
        case "full":
            return constant(op.attrs["value"], op.type)
        case "iota":
            return {"size": op.type.shape[0], "dtype": op.dtype}
        case "reshape":
            return {"shape": op.type.shape}
    return dict(op.attrs)


def flat_nodes(forms: Forms, to: Exporter) -> list[Node]:
    """All ops of an entry point in a row."""
    nodes: list[Node] = []
    for op in forms.ops:
        if op.form != "input":
            nodes += to.nodes(op, [to.name(x) for x in op.ins])
    for op, value in to.given.values():
        if value is not to.name(op):
            nodes.append(to.in_its_shape(op, to.name(op), value))
    return nodes


# ---- regions ------------------------------------------------------------------------------------


def region_nodes(entry: str, plan: FusionPlan, to: Exporter) -> list[Node]:
    """The regions of an entry point, in the order they run, each body in that of its statements."""
    made: list[Node] = []
    for number, region in enumerate(plan.regions):
        name = f"{entry}_region_{number}"
        attrs: dict[str, Any] = {
            "name": name,
            "tile": tuple(a.size for a in region.tile),
            "block": tuple(region.block[a] for a in region.tile),
        }
        body = _Body(plan, region, to)
        body.write([op for s in plan.schedule.statements[region] for op in s.ops])
        nodes = tuple(body.nodes)
        inputs = tuple(body.captures.values())
        results = tuple(body.results())
        made.append(
            Node(
                "region",
                inputs,
                results,
                attrs,
                max((n.phase or "forward" for n in nodes), key=PHASES.index),
                next((op.loc for op in region.members if op.loc), None),
                body=Program(
                    name,
                    "fuse",
                    tuple(Input(v) for v in inputs),
                    (*nodes, *body.reshapes),
                    tuple(Output(v) for v in results),
                    0,
                ),
            )
        )
    return made


class _Body:
    """What one region computes: its members, and what it computes anew. Values that other regions
    keep are captured."""

    def __init__(self, plan: FusionPlan, region: Region, to: Exporter) -> None:
        self.plan, self.region, self.to, self.g = plan, region, to, plan.graph
        self.nodes: list[Node] = []
        self.reshapes: list[Node] = []
        self.captures: dict[int, Value] = {}
        self.local: dict[tuple[Op, int], Value] = {}

    def write(self, order: Sequence[Op]) -> None:
        for op in order:
            if op in self.plan.schedule.where:
                self.value(op)

    def value(self, op: Op) -> Value:
        """The op's value here: captured, or computed at its first use."""
        stored = op in self.g.stored and self.plan.schedule.where[op][0] is not self.region
        if op.form == "input" or stored:
            value = self.to.name(op)
            self.captures[value.id] = value
            return value
        key = op, -1
        if key not in self.local:
            operands = [self.operand(op, i) for i in range(len(op.ins))]
            self.local[key] = self.to.name(op)
            self.nodes += self.to.nodes(op, operands)
        return self.local[key]

    def operand(self, op: Op, i: int) -> Value:
        """Operand i through its views. Threads' partial results are read from their sum, where
        there is one."""
        views, x = [], op.ins[i]
        while x.form == "view":
            views.append(x)
            x = x.ins[0]
        root = self.g.reads[op][i].root
        value = self.value(root)
        for view in reversed(views):
            key = view, value.id
            if key not in self.local:
                natural = root is x
                seen = self.to.name(view) if natural else self.to.other(view.type, view, value.id)
                self.nodes += self.to.nodes(view, [value], seen)
                self.local[key] = seen
            value = self.local[key]
        return value

    def has_parts_elsewhere(self, op: Op) -> bool:
        """Whether another region writes into a concatenation's memory."""
        where = self.plan.schedule.where
        return any(where[a.root][0] is not self.region for a in self.g.reads[op])

    def results(self) -> list[Value]:
        """What the rest of the program reads, what is given back, and what others write into."""
        found: list[Value] = []
        reshaped = self.to.reshaped
        for op in self.region.members:
            readers = self.plan.schedule.readers.get(op, ())
            elsewhere = any(r is not None and r is not self.region for r, _ in readers)
            elsewhere |= op.form == "concat" and self.has_parts_elsewhere(op)
            given = op in self.g.outputs
            if op in self.plan.schedule.where and (elsewhere or (given and op not in reshaped)):
                found.append(self.to.name(op))
            if op in reshaped:
                value = reshaped[op]
                self.reshapes.append(self.to.in_its_shape(op, self.to.name(op), value))
                found.append(value)
        return found
