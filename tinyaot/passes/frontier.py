"""The best choices of what to save: minimum cuts, and the whole lower hull of bytes and price.

In the flow network of a choice every storage v is an edge `v_in -> v_out`:

    source --price of computing v again--> v_in --price of a byte * bytes--> v_out --inf--> u_in
                                                                             v_out --inf--> sink

`v_out -> u_in` if u is computed from v, `v_out -> sink` if the backward reads v. What is on the
sink's side is at hand in the backward, so a cut edge `v_in -> v_out` saves v, and a cut edge
`source -> v_in` computes it again, which its infinite edges allow only if all that it is computed
from is at hand too. A minimum cut is the cheapest choice for `price + price of a byte * bytes`.

torch's AOTAutograd has the same graph with infinite prices where it forbids recomputation (Horace
He, "Min-cut optimal(*) recomputation (i.e. activation checkpointing) with AOTAutograd", 2022);
finite prices make it the Lagrangian of the exact problem, chains included.

The network falls apart, since what the backward reads is at hand in any choice: it can be cut at
every such value. Nor does a tree need a flow: a value that one other alone is computed from costs
the less of its bytes and of what lies behind it. What is left, values that several others want and
the backward does not, is cut by Dinic's algorithm, component by component; and the hull of a sum is
the sum of hulls, their edges sorted by slope.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise

from tinyaot.passes.mincut import INFINITY, FlowNetwork
from tinyaot.passes.splitgraph import Choice, SplitGraph

Corner = tuple[int, int]  # bytes, price
Edge = tuple[int, int]  # more bytes, less price: from one corner to the next
CUTS = 64  # minimum cuts for the hull of one component
CUT_STORAGES = 20_000  # and storages in all of them: a component of thousands gets a coarser hull


@dataclass(frozen=True)
class Cut:
    """A best choice for `per_price * price + per_byte * bytes`, its `weight`, in one component.

    `flow[v]`: how much of the weight the minimum flow brings to storage v, and `flow_to[v, u]` how
    much of that goes on to u, which is computed from v. They prove that no choice weighs less."""

    saved: frozenset[int]
    bytes: int
    price: int
    weight: int
    flow: dict[int, int]
    flow_to: dict[tuple[int, int], int]


class Component:
    """Storages that are decided together.

    `nodes`: their ids in program order. `needs`, `users`: among them. `folded`: those that nothing
    but one other is computed from, and all that lies behind them."""

    def __init__(self, graph: SplitGraph, nodes: list[int], folded: set[int]) -> None:
        self.graph, self.nodes, self.folded = graph, nodes, folded
        mine, read = set(nodes), graph.read
        self.read = [v for v in nodes if v in read]
        self.needs = {v: [n for n in graph.needs[v] if n in mine and n not in read] for v in nodes}
        self.bytes_of = {v: INFINITY if v in graph.never_saved else graph.size[v] for v in nodes}
        self.core = [v for v in nodes if v not in folded]
        self.is_tree = len(self.core) == 1
        if not self.is_tree:
            self._make_network()

    def _make_network(self) -> None:
        """The network of the core, without capacities. A storage that the backward reads has the
        sink as its `out`."""
        source, sink = 0, 1
        self.network = FlowNetwork(2 + 2 * len(self.core))
        ins = {v: 2 + 2 * at for at, v in enumerate(self.core)}
        self.ends = {v: (a, sink if v in self.graph.read else a + 1) for v, a in ins.items()}
        self.again, self.keep, self.from_need = {}, {}, {}
        for v, (v_in, v_out) in self.ends.items():
            self.again[v] = self.network.add_edge(source, v_in, 0)
            self.keep[v] = self.network.add_edge(v_in, v_out, 0)
            for need in self.needs[v]:
                if need not in self.folded:
                    edge = self.network.add_edge(self.ends[need][1], v_in, INFINITY)
                    self.from_need[need, v] = edge

    # ---- one cut ----

    def cut(self, per_price: int, per_byte: int) -> Cut:
        """A choice of the least weight."""
        graph = self.graph
        least: dict[int, float] = {}  # of a folded storage: what having it at hand weighs
        again: dict[int, float] = {}  # what computing v again weighs, with the tree behind it
        keep: dict[int, float] = {}
        for v in self.nodes:
            again[v] = per_price * graph.price[v]
            again[v] += sum(least[n] for n in self.needs[v] if n in self.folded)
            keep[v] = per_byte * self.bytes_of[v]
            if v in self.folded:
                least[v] = min(again[v], keep[v])
        if self.is_tree:
            root = self.core[0]
            flow = {root: min(again[root], keep[root])}
            flow_to: dict[tuple[int, int], float] = {}
            is_saved = {root: keep[root] <= again[root]}
        else:
            flow, flow_to, is_saved = self._flow(again, keep)
        for v in reversed(self.nodes):  # share out what flows to the root of a tree
            needs = self.needs[v]
            left = flow[v] - sum(flow_to.get((n, v), 0) for n in needs)
            left -= min(left, per_price * graph.price[v])
            for need in needs:
                if need in self.folded:
                    flow[need] = flow_to[need, v] = min(left, least[need])
                    left -= flow[need]
                    is_saved[need] = keep[need] <= again[need]
        saved, nbytes, price = self._follow(is_saved)
        weight = per_price * price + per_byte * nbytes
        return Cut(saved, nbytes, price, weight, flow, flow_to)  # type: ignore[arg-type]

    def _flow(
        self, again: dict[int, float], keep: dict[int, float]
    ) -> tuple[dict[int, float], dict[tuple[int, int], float], dict[int, bool]]:
        """The core's maximum flow, and which of its edges `in -> out` are cut."""
        network = self.network
        for v in self.core:
            network.set_capacity(self.again[v], again[v])
            network.set_capacity(self.keep[v], keep[v])
        network.maximum_flow(0, 1)
        side = network.source_side(0)
        flow = {v: network.residual[e ^ 1] for v, e in self.keep.items()}
        flow_to = {pair: network.residual[e ^ 1] for pair, e in self.from_need.items()}
        return flow, flow_to, {v: side[a] and not side[b] for v, (a, b) in self.ends.items()}

    def _follow(self, is_saved: dict[int, bool]) -> tuple[frozenset[int], int, int]:
        """What is saved of it, in bytes, and the price of what is computed again."""
        saved, again, stack = set(), set(), list(self.read)
        while stack:
            v = stack.pop()
            if is_saved[v]:
                saved.add(v)
            elif v not in again:
                again.add(v)
                stack += self.needs[v]
        nbytes = sum(self.graph.size[v] for v in saved)
        return frozenset(saved), nbytes, sum(int(self.graph.price[v]) for v in again)

    # ---- the hull ----

    @cached_property
    def hull(self) -> tuple[Corner, list[Edge]]:
        """The corner of the fewest bytes, and the edges from there, steepest first."""
        return _tree_hull(self) if self.is_tree else self._searched_hull()

    def _searched_hull(self) -> tuple[Corner, list[Edge]]:
        """Between two corners a cut at the price of their line either finds one below it or shows
        that there is none."""
        all_bytes = sum(self.graph.size[v] for v in self.nodes)
        all_price = sum(int(p) for v in self.nodes if (p := self.graph.price[v]) != INFINITY)
        first, last = self.cut(1, all_price + 1), self.cut(all_bytes + 1, 1)
        corners = [(first.bytes, first.price), (last.bytes, last.price)]
        todo = [(corners[0], corners[1])]
        cuts = min(CUTS, CUT_STORAGES // len(self.core))
        while todo and cuts:
            # The widest stretch first, so that a small number of cuts shows the whole curve.
            todo.sort(key=lambda s: (s[1][0] - s[0][0]) * (s[0][1] - s[1][1]))
            left, right = todo.pop()
            more, less = right[0] - left[0], left[1] - right[1]
            if more and less:
                cuts -= 1
                found = self.cut(more, less)
                if found.weight < more * left[1] + less * left[0]:
                    corner = found.bytes, found.price
                    corners.append(corner)
                    todo += [(left, corner), (corner, right)]
        corners = sorted(set(corners))
        return corners[0], [(b[0] - a[0], a[1] - b[1]) for a, b in pairwise(corners)]


def _tree_hull(tree: Component) -> tuple[Corner, list[Edge]]:
    """Of a tree, from its leaves: the hull of having v at hand is that of the sum of what it is
    computed from, dearer by its price, and then the point that saves v."""
    hulls: dict[int, tuple[int, int, int, int, list[Edge]]] = {}  # first corner, last, edges
    for v in tree.nodes:
        size, price = tree.bytes_of[v], tree.graph.price[v]
        if price == INFINITY:
            hulls[v] = (tree.graph.size[v], 0, tree.graph.size[v], 0, [])
            continue
        behind = [hulls.pop(n) for n in tree.needs[v]]
        edges = behind[0][4] if behind else []
        if len(behind) > 1:
            edges = sorted((e for h in behind for e in h[4]), key=_steepness, reverse=True)
        b0, p0 = sum(h[0] for h in behind), sum(h[1] for h in behind) + int(price)
        b1, p1 = sum(h[2] for h in behind), sum(h[3] for h in behind) + int(price)
        while edges and b1 >= size:
            more, less = edges.pop()
            b1, p1 = b1 - more, p1 + less
        if b1 >= size:
            b0, p0, b1, p1 = int(size), 0, int(size), 0
        elif p1 and size != INFINITY:
            while edges:
                more, less = edges[-1]
                if less * (size - b1) > p1 * more:
                    break
                edges.pop()
                b1, p1 = b1 - more, p1 + less
            edges.append((int(size) - b1, p1))
            b1, p1 = int(size), 0
        hulls[v] = (b0, p0, b1, p1, edges)
    b0, p0, _, _, edges = hulls[tree.core[0]]
    return (b0, p0), edges


def _steepness(edge: Edge) -> float:
    return edge[1] / edge[0]


# ---- all of it ----------------------------------------------------------------------------------


class Frontier:
    """The lower hull of (bytes, price) over all choices of a graph, from the fewest bytes on."""

    def __init__(self, graph: SplitGraph) -> None:
        self.graph = graph
        self.components = list(_components(graph))
        hulls = [component.hull for component in self.components]
        first = sum(corner[0] for corner, _ in hulls), sum(corner[1] for corner, _ in hulls)
        self.edges: list[Edge] = []
        self.corners: list[Corner] = [first]
        for more, less in sorted((e for _, mine in hulls for e in mine), key=_steepness)[::-1]:
            if self.edges and self.edges[-1][1] * more == less * self.edges[-1][0]:
                same = self.edges.pop()
                more, less = more + same[0], less + same[1]
                self.corners.pop()
            nbytes, price = self.corners[-1]
            self.edges.append((more, less))
            self.corners.append((nbytes + more, price - less))

    def cut(self, byte_price: Fraction | float) -> Choice:
        """The best choice when a saved byte costs this much, in the objective's unit."""
        price = Fraction(byte_price)
        return self._choice(price.denominator, price.numerator)

    def _choice(self, per_price: int, per_byte: int) -> Choice:
        cuts = (c.cut(per_price, per_byte) for c in self.components)
        return self.graph.choice(frozenset().union(*(c.saved for c in cuts)))

    def choice(self, corner: int) -> Choice:
        """The choice at a corner: the best one at a slope between those of its two edges."""
        more, less = map(sum, zip(*self._edges_at(corner)))
        return self._choice(more, less)

    def _edges_at(self, corner: int) -> list[Edge]:
        before = self.edges[corner - 1] if corner else (1, 2 * self._price + 1)
        after = self.edges[corner] if corner < len(self.edges) else (2 * self._bytes + 1, 1)
        return [before, after]

    def byte_price(self, nbytes: int) -> Fraction:
        """What a saved byte costs where a choice that saves so many is the best, or next to it."""
        at = bisect_left(self.corners, nbytes, key=lambda corner: corner[0])
        at = min(at, len(self.edges))  # more bytes than any best choice saves
        if self.corners[at][0] <= nbytes:
            more, less = map(sum, zip(*self._edges_at(at)))
            return Fraction(less, more)
        more, less = self._edges_at(at)[0]
        return Fraction(less, more)

    @cached_property
    def _price(self) -> int:
        return sum(int(p) for p in self.graph.price.values() if p != INFINITY)

    @cached_property
    def _bytes(self) -> int:
        return sum(self.graph.size.values())


def _components(graph: SplitGraph) -> Iterator[Component]:
    """The graph cut at what the backward reads, with its trees folded."""
    folded: set[int] = set()
    root_of: dict[int, int] = {}  # union-find: two that are decided together have one root

    def root(v: int) -> int:
        while root_of[v] != v:
            root_of[v] = v = root_of[root_of[v]]
        return v

    for v in graph.nodes:
        root_of[v] = v
        wanted = [n for n in graph.needs[v] if n not in graph.read]
        for n in wanted:
            root_of[root(n)] = root(v)
        if v not in graph.read and len(graph.users[v]) == 1 and folded.issuperset(wanted):
            folded.add(v)
    members: dict[int, list[int]] = {}
    for v in graph.nodes:
        members.setdefault(root(v), []).append(v)
    for nodes in members.values():
        yield Component(graph, nodes, folded.intersection(nodes))
