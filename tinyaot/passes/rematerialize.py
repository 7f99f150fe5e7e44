"""Rewrite a program to a choice of what to save: the backward gets clones of the rest.

A clone stands just before the first node that reads it, has the phase `backward` and the origin
`recompute-of`, and the attributes of the original: a random node draws the same numbers again.

Of a value inside nested checkpoint regions the backward of each region gets a clone of its own, so
that the inner region's values are not kept while the outer one's are.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile
from typing import TypeAlias

from tinyaot.ir import Node, Origin, Output, Program, Value, live_nodes
from tinyaot.passes.splitgraph import Choice, SplitGraph
from tinyaot.passes.storage import is_constant

Context: TypeAlias = tuple[int, ...]  # the checkpoint regions whose backward reads a clone


def rematerialize(graph: SplitGraph, choice: Choice) -> Program:
    """The program in which the backward reads what is saved and computes the rest again.

    The backward half of a joint program reads inputs, cotangents and saved outputs, so it also
    gets clones of views and constants, which cost nothing, and the forward half gives `saved`
    outputs.
    """
    work = _Rewrite(graph, choice)
    for node in graph.program.nodes:
        work.take(node)
    return work.finish()


class _Rewrite:
    def __init__(self, graph: SplitGraph, choice: Choice) -> None:
        self.graph, self.choice = graph, choice
        self.root = graph.storages.root
        self.next_id = graph.program.next_id
        self.nodes: list[Node] = []
        self.copies: list[Node] = []
        # a forward value and a context -> what the backward reads in its stead there
        self.new: dict[tuple[int, Context], Value] = {}
        self.saved: dict[int, Value] = {}  # outputs of a joint program's forward half
        for entry in graph.program.inputs:
            if entry.value.id in choice.saved:
                self._keep_old_value(entry.value)

    def _fresh(self, old: Value) -> Value:
        self.next_id += 1
        return Value(self.next_id - 1, old.type)

    def _keep_old_value(self, value: Value) -> None:
        """An input that will be overwritten cannot be saved by reference."""
        copy = self._fresh(value)
        self.copies.append(Node("copy", (value,), (copy,), {}, "forward"))
        self.new[value.id, ()] = self.saved[copy.id] = copy

    def take(self, node: Node) -> None:
        """The next node of the program."""
        if node.phase not in (None, "forward"):
            inputs = tuple(self._at_hand(v) for v in node.inputs)
            if inputs != node.inputs:
                node = replace(node, inputs=inputs)
        self.nodes.append(node)

    def _is_at_hand(self, value: Value) -> bool:
        """Whether the backward can read the value itself."""
        graph = self.graph
        if value.id not in graph.forward:
            return True
        id_ = self.root[value.id]
        if id_ in graph.inside:
            return False
        if graph.joint:
            stays = value.id == id_ and (id_ in self.choice.saved or id_ in graph.free)
            if stays and not is_constant(graph.forward[id_]):
                self.saved[id_] = value
                return True
            return False
        if id_ in graph.behind:  # a map that loops make anew, if what is behind it is at hand
            return all(s in self.choice.saved for s in graph.behind[id_])
        if id_ in self.choice.saved or id_ in graph.free:
            return True
        node = graph.forward.get(id_)
        return node is None or is_constant(node)

    def _context(self, value: Value, reader: Context | None) -> Context:
        """Where a value is read: in the regions that it shares with its reader, in all of its own
        if that is a node of the backward (None)."""
        node = self.graph.forward.get(value.id)
        if node is None or self.root[value.id] not in self.graph.inside:
            return ()
        own = node.checkpoint
        if reader is None:
            return own
        shared = takewhile(lambda pair: pair[0] == pair[1], zip(own, reader, strict=False))
        return tuple(region for region, _ in shared)

    def _at_hand(self, value: Value) -> Value:
        """What the backward reads for `value`; clones what is missing, operands first."""
        start = value, self._context(value, None)
        stack = [start]
        while stack:
            top, context = stack[-1]
            if (top.id, context) in self.new or self._is_at_hand(top):
                stack.pop()
                continue
            node = self.graph.forward[top.id]
            needs = [(v, self._context(v, context)) for v in node.inputs]
            missing = [
                (v, c) for v, c in needs if not ((v.id, c) in self.new or self._is_at_hand(v))
            ]
            if missing:
                stack += reversed(missing)
            else:
                stack.pop()
                self._clone(node, context)
        return self.new.get((value.id, start[1]), value)

    def _clone(self, node: Node, context: Context) -> None:
        results = tuple(self._fresh(r) for r in node.results)
        origin = Origin("recompute-of", node.results[0].id)
        inputs = (self.new.get((v.id, self._context(v, context)), v) for v in node.inputs)
        self.nodes.append(
            replace(
                node,
                inputs=tuple(inputs),
                results=results,
                phase="backward",
                origin=(*node.origin, origin),
            )
        )
        for r, clone in zip(node.results, results, strict=True):
            self.new[r.id, context] = clone

    def finish(self) -> Program:
        outputs = [
            replace(o, value=self._at_hand(o.value)) if o.role == "gradient" else o
            for o in self.graph.program.outputs
        ]
        outputs += [Output(v, "saved") for v in sorted(self.saved.values(), key=lambda v: v.id)]
        nodes = live_nodes([*self.copies, *self.nodes], [o.value for o in outputs])
        return self.graph.program.replace(
            stage="partition",
            nodes=tuple(nodes),
            outputs=tuple(outputs),
            next_id=self.next_id,
        )
