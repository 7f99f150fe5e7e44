"""Narrow: the backward half alone, for a backward that starts from some of the outputs.

A cotangent that is not there is not zeros: eager never visits the ops that it would flow through,
and 0 * inf is not 0. So what only missing cotangents reach is left out, by structure (symbolic
zeros, as in JAX's transpose).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tinyaot.ir import Input, Node, Output, Program, Value, live_nodes, substitute
from tinyaot.passes.storage import storages_of


def narrow(program: Program, used: Iterable[int]) -> Program:
    """The backward half of a partitioned joint program for some of its cotangents.

    What it does: takes the nodes of the backward; what the program had as inputs and saved values
    become arguments, and the gradients outputs, each named by the id of the input that it is of. A
    value that only cotangents which are not `used` (positions among them) flow to is a structural
    zero: its node is left out, a sum with it is the other summand, and a gradient that is one is no
    output.

        input %1: f32[2] cotangent "a"             input %1: f32[2] argument "a"
        input %2: f32[2] cotangent "b"
        %4: f32[2] = mul(%2, %3) backward
        %5: f32[2] = add(%1, %4) backward
        output gradient %5 of %0                   output user %1 "0"

    What to look at: with `used` = [0], nothing of `b` is computed.
    """
    work = _Narrow(program, frozenset(used))
    for node in program.nodes:
        if node.phase == "backward":
            work.step(node)
    outputs = [
        Output(work.new.get(o.value.id, o.value), "user", None, str(o.of))
        for o in program.outputs_of("gradient")
        if o.value.id not in work.zero
    ]
    nodes = live_nodes(work.nodes, (o.value for o in outputs))
    values = [
        *(i.value for i in program.inputs if i.value.id not in work.zero),
        *(o.value for o in program.outputs_of("saved")),
    ]
    read = {v.id for n in nodes for v in n.inputs} | {o.value.id for o in outputs}
    return _apart(
        program.replace(
            inputs=tuple(Input(v, "argument", f"a{v.id}") for v in values if v.id in read),
            nodes=tuple(nodes),
            outputs=tuple(outputs),
            next_id=work.next_id,
        )
    )


def linear(program: Program, names: Mapping[int, str]) -> Program:
    """The part of a joint program's backward that gives the gradients of some inputs (by id), where
    that reads cotangents alone, as a program like that of `narrow`; `names` of its outputs."""
    outputs = [
        Output(o.value, "user", None, names[o.of])
        for o in program.outputs_of("gradient")
        if o.of is not None and o.of in names
    ]
    nodes = live_nodes(program.nodes, (o.value for o in outputs))
    return _apart(
        program.replace(
            inputs=tuple(
                Input(i.value, "argument", i.name) for i in program.inputs_of("cotangent")
            ),
            nodes=tuple(replace(n, phase="forward") for n in nodes),
            outputs=tuple(outputs),
        )
    )


def _apart(program: Program) -> Program:
    """A gradient is accumulated in place later on: one that shares its storage, or sees only a part
    of it, becomes a copy."""
    storages = storages_of(program)
    taken: set[int] = set()
    nodes, outputs = list(program.nodes), list(program.outputs)
    next_id = program.next_id
    for at, output in enumerate(outputs):
        value = output.value
        root = storages.root[value.id]
        if root in taken or value.id not in storages.whole:
            copied = Value(next_id, value.type)
            next_id += 1
            nodes.append(Node("copy", (value,), (copied,), {}, "forward"))
            outputs[at] = replace(output, value=copied)
        taken.add(root)
    return program.replace(nodes=tuple(nodes), outputs=tuple(outputs), next_id=next_id)


class _Narrow:
    """The nodes so far. `zero` are structural zeros, `carried` what a used cotangent reaches, `new`
    what stands for a sum with a zero."""

    def __init__(self, program: Program, used: frozenset[int]) -> None:
        seeds = [i.value.id for i in program.inputs_of("cotangent")]
        self.zero = {v for k, v in enumerate(seeds) if k not in used}
        self.carried = {v for k, v in enumerate(seeds) if k in used}
        self.new: dict[int, Value] = {}
        self.nodes: list[Node] = []
        self.next_id = program.next_id

    def step(self, node: Node) -> None:
        zeros = [v for v in node.inputs if v.id in self.zero]
        carried = [v for v in node.inputs if v.id in self.carried]
        made = {r.id for r in node.results}
        if zeros and not carried:
            self.zero |= made
            return
        if carried:
            self.carried |= made
        if zeros and node.op == "add":
            other = next(v for v in node.inputs if v.id not in self.zero)
            if other.type == node.result.type:
                self.new[node.result.id] = self.new.get(other.id, other)
                return
        filled = {v.id: self._zeros(node, v) for v in zeros}
        node = substitute(substitute(node, filled), self.new)
        self.nodes.append(replace(node, phase="forward"))

    def _zeros(self, node: Node, like: Value) -> Value:
        """Zeros where a structural zero has to be an operand."""
        made = Value(self.next_id, like.type)
        self.next_id += 1
        attrs = {"value": 0.0, "shape": like.type.shape, "dtype": like.type.dtype}
        self.nodes.append(
            replace(node, op="full", inputs=(), results=(made,), attrs=attrs, phase="forward")
        )
        return made
