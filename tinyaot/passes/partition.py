"""Partition forward from backward: what to save, what to compute again, by minimum cuts.

The backward reads values of the forward. Each of them either stays in memory until then or is
computed again from what does. Both have a price: bytes kept, and the cost of every node that has to
run twice, chains included. The cheapest choice for `cost + price_per_byte * bytes` is a minimum cut
of the forward's graph with every value split in two; sweeping the price gives the lower convex hull
of all choices (bytes against cost). torch's AOTAutograd has the same split graph with infinite
prices where it forbids recomputation (He and Chen's min-cut rematerialization, 2022); finite
prices make it the Lagrangian of the exact problem.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from tinyaot.cost import TWO_CORES, Cost, Rates, is_recomputed, node_cost, total_cost
from tinyaot.errors import BudgetError
from tinyaot.ir import Node, Origin, Output, Program, Value, live_nodes
from tinyaot.passes.mincut import INFINITY, FlowNetwork
from tinyaot.passes.plan import plan, planned_peak
from tinyaot.passes.schedule import schedule
from tinyaot.passes.storage import is_constant, is_joint, storages_of
from tinyaot.record import Decision

Strategy = Literal["min_cut", "save_all", "recompute_all"] | Callable[[Program], Iterable[int]]


def partition(
    program: Program,
    *,
    strategy: Strategy = "min_cut",
    memory_budget: int | float | None = None,
    cost: Literal["time", "flops"] = "time",
    time_slack: float = 0.05,
    rates: Rates = TWO_CORES,
    log: list[Decision] | None = None,
) -> Program:
    graph = SplitGraph(program, cost, rates)
    if strategy == "save_all":
        saved = set(graph.read)
    elif strategy == "recompute_all":
        saved = graph.cut(None)
    elif callable(strategy):
        roots = {graph.storages.root[i] for i in strategy(program)}
        saved = roots & set(graph.nodes)
    else:
        saved = graph.cut(1e-9)
    return rewrite(graph, saved)


class SplitGraph:
    """The forward storages that the backward may want, with their prices.

    `nodes`: root id -> the node that computes it, in program order, for every storage that the
    backward reads or would have to read to compute another one again. `None`: an input that is
    overwritten before the backward runs (its old value can only be saved). Storages that are alive
    anyway, or constant, are free: they do not occur.
    """

    def __init__(self, program: Program, cost: str, rates: Rates) -> None:
        self.program, self.rates = program, rates
        self.storages = storages_of(program)
        self.joint = is_joint(program)
        self.forward = {
            r.id: n for n in program.nodes if n.phase in (None, "forward") for r in n.results
        }
        self.inputs = {i.value.id for i in program.inputs}
        root = self.storages.root
        overwritten = {o.of for o in program.outputs_of("mutated")} if self.joint else set()
        self.free = (self.inputs - overwritten) | {
            root[o.value.id] for o in program.outputs_of("user", "mutated")
        }
        self.free -= overwritten & self.inputs
        self.read: dict[int, None] = {}
        for node in program.nodes:
            if node.phase not in (None, "forward"):
                for v in node.inputs:
                    self._want(v, self.read)
        for output in program.outputs_of("gradient"):
            self._want(output.value, self.read)
        self.needs: dict[int, list[int]] = {}
        stack = list(self.read)
        while stack:
            id_ = stack.pop()
            if id_ in self.needs:
                continue
            wanted: dict[int, None] = {}
            if id_ in self.forward:
                for v in self.forward[id_].inputs:
                    self._want(v, wanted)
            self.needs[id_] = list(wanted)
            stack += wanted
        order = [*(i.value.id for i in program.inputs), *self.forward]
        self.nodes: dict[int, Node | None] = {
            id_: self.forward.get(id_) for id_ in order if id_ in self.needs
        }
        required = {
            r.id
            for n in live_nodes(
                self.program.nodes, [o.value for o in program.outputs_of("user", "mutated")]
            )
            for r in n.results
        }
        self.cost: dict[int, Cost] = {}
        self.price: dict[int, float] = {}
        self.size: dict[int, int] = {}
        for id_, node in self.nodes.items():
            self.size[id_] = program.values[id_].type.nbytes
            self.cost[id_] = node_cost(node, rates) if node else Cost()
            price = self.cost[id_].seconds if cost == "time" else float(self.cost[id_].flops)
            self.price[id_] = price if node else INFINITY

    def _want(self, value: Value, wanted: dict[int, None]) -> None:
        """Note that `value` is read: its storage, unless that is at hand anyway."""
        id_ = self.storages.root[value.id]
        node = self.forward.get(id_)
        if id_ in self.free or (node is None and id_ not in self.inputs):
            return
        if node is not None and is_constant(node):
            return
        wanted[id_] = None

    def cut(self, price_per_byte: float | None) -> set[int]:
        """The storages to save at a price (None: whatever it costs, as few bytes as can be)."""
        index = {id_: 2 * at for at, id_ in enumerate(self.nodes)}
        source, sink = 2 * len(index), 2 * len(index) + 1
        network = FlowNetwork(sink + 1)
        finite = [p for p in self.price.values() if p != INFINITY]
        if price_per_byte is None:
            total = sum(self.size.values())
            price_per_byte = 1e6 * (sum(finite) or 1.0) / max(total, 1)
        for id_, at in index.items():
            network.add_edge(source, at, self.price[id_])
            network.add_edge(at, at + 1, price_per_byte * self.size[id_])
            if id_ in self.read:
                network.add_edge(at + 1, sink, INFINITY)
            for need in self.needs[id_]:
                network.add_edge(index[need] + 1, at, INFINITY)
        network.maximum_flow(source, sink)
        side = network.source_side(source)
        return {id_ for id_, at in index.items() if side[at] and not side[at + 1]}


def rewrite(graph: SplitGraph, saved: set[int]) -> Program:
    """The program in which the backward reads `saved` and computes the rest again."""
    program, joint = graph.program, graph.joint
    root, forward = graph.storages.root, graph.forward
    next_id = program.next_id
    ahead: list[Node] = []
    later: list[Node] = []
    new: dict[int, Value] = {}
    kept: dict[int, Value] = {}  # what the backward half of a joint program reads of the forward

    for entry in program.inputs:
        if entry.value.id in saved:
            # The backward wants the value from before the overwriting.
            copy = Value(next_id, entry.value.type)
            next_id += 1
            ahead.append(Node("copy", (entry.value,), (copy,), {}, "forward"))
            new[entry.value.id] = copy
            kept[copy.id] = copy

    def at_hand(value: Value) -> bool:
        id_ = root[value.id]
        if value.id not in forward:
            return True
        if id_ in saved or id_ in graph.free:
            if not joint:
                return True
            if value.id == id_:
                kept[id_] = value
                return True
            return False
        return not joint and is_constant(forward[id_])

    def fetch(value: Value) -> Value:
        nonlocal next_id
        stack = [value]
        while stack:
            top = stack[-1]
            if top.id in new or at_hand(top):
                stack.pop()
                continue
            node = forward[top.id]
            missing = [v for v in node.inputs if v.id not in new and not at_hand(v)]
            if missing:
                stack += reversed(missing)
                continue
            stack.pop()
            results = tuple(Value(next_id + i, r.type) for i, r in enumerate(node.results))
            next_id += len(results)
            later.append(
                replace(
                    node,
                    inputs=tuple(new.get(v.id, v) for v in node.inputs),
                    results=results,
                    phase="backward",
                    origin=(*node.origin, Origin("recompute-of", node.results[0].id)),
                )
            )
            new.update((old.id, r) for old, r in zip(node.results, results, strict=True))
        return new.get(value.id, value)

    for node in program.nodes:
        if node.phase in (None, "forward"):
            (later if later else ahead).append(node)
            continue
        inputs = tuple(fetch(v) for v in node.inputs)
        later.append(node if inputs == node.inputs else replace(node, inputs=inputs))
    outputs = [
        replace(o, value=fetch(o.value)) if o.role == "gradient" else o for o in program.outputs
    ]
    outputs += [Output(v, "saved") for v in sorted(kept.values(), key=lambda v: v.id)]
    nodes = live_nodes([*ahead, *later], [o.value for o in outputs])
    return program.replace(
        stage="partition", nodes=tuple(nodes), outputs=tuple(outputs), next_id=next_id
    )
