"""Minimum cuts: Dinic's algorithm, exact for whole capacities.

Dinic, "Algorithm for solution of a problem of maximum flow in networks with power estimation"
(1970): repeat a breadth-first search that gives every node its distance from the source, and fill
the network of shortest paths by depth-first search, until the sink is out of reach. What the
source still reaches then is one side of a minimum cut.
"""

from __future__ import annotations

import math

INFINITY = math.inf


class FlowNetwork:
    """A directed network on nodes 0..n-1. Edge `e` and its reverse `e ^ 1` are stored side by side,
    so that pushing flow along one frees capacity on the other."""

    def __init__(self, nodes: int) -> None:
        self.edges_of: list[list[int]] = [[] for _ in range(nodes)]
        self.head: list[int] = []
        self.residual: list[float] = []
        self.capacity: list[float] = []

    def add_edge(self, tail: int, head: int, capacity: float) -> int:
        """Add an edge of a capacity >= 0 (infinity allowed); returns its number."""
        if not capacity >= 0:
            raise ValueError(f"a capacity is a number >= 0, got {capacity!r}")
        number = len(self.head)
        self.head += (head, tail)
        self.residual += (capacity, 0)
        self.capacity += (capacity, 0)
        self.edges_of[tail].append(number)
        self.edges_of[head].append(number + 1)
        return number

    def set_capacity(self, edge: int, capacity: float) -> None:
        """Change an edge's capacity, for the next `maximum_flow`."""
        self.capacity[edge] = capacity

    def maximum_flow(self, source: int, sink: int) -> float:
        """The value of a maximum flow, infinity if a path of infinite capacity exists."""
        self.residual = self.capacity.copy()
        finite = [c for c in self.capacity if c != INFINITY]
        # Below this a residual is rounding error: it must not open another path.
        whole = all(isinstance(c, int) for c in finite)
        self.tolerance = 0 if whole else 1e-12 * max(finite, default=0.0)
        total: float = 0
        while self._measure_distances(source, sink):
            pushed = self._fill_shortest_paths(source, sink)
            if pushed == INFINITY:
                return INFINITY
            total += pushed
        return total

    def source_side(self, source: int) -> list[bool]:
        """After `maximum_flow`: for each node, whether it is on the source's side of the cut."""
        self._measure_distances(source, -1)
        return [d >= 0 for d in self.distance]

    def _measure_distances(self, source: int, sink: int) -> bool:
        """Breadth-first distances over edges with residual capacity; whether the sink is reached
        (the search stops at its layer)."""
        distance = [-1] * len(self.edges_of)
        distance[source] = 0
        layer, depth = [source], 0
        head, residual, tolerance = self.head, self.residual, self.tolerance
        while layer and (sink < 0 or distance[sink] < 0):
            depth += 1
            following: list[int] = []
            for node in layer:
                for edge in self.edges_of[node]:
                    to = head[edge]
                    if distance[to] < 0 and residual[edge] > tolerance:
                        distance[to] = depth
                        following.append(to)
            layer = following
        self.distance = distance
        return sink >= 0 and distance[sink] >= 0

    def _fill_shortest_paths(self, source: int, sink: int) -> float:
        """A blocking flow: depth-first search from the source along edges one layer further. Each
        node keeps a pointer to its next untried edge, so that no dead end is entered twice."""
        head, residual, distance, tolerance = (
            self.head,
            self.residual,
            self.distance,
            self.tolerance,
        )
        untried = [len(edges) for edges in self.edges_of]
        path: list[int] = []  # the edges from the source to `node`
        node = source
        total: float = 0
        while True:
            if node == sink:
                pushed = min([residual[e] for e in path])
                if pushed == INFINITY:
                    return INFINITY
                total += pushed
                keep = len(path)
                for at, edge in enumerate(path):
                    residual[edge] -= pushed
                    residual[edge ^ 1] += pushed
                    if residual[edge] <= tolerance and at < keep:
                        keep = at  # go back to the tail of the first edge that is now full
                node = head[path[keep] ^ 1]
                del path[keep:]
                continue
            edges, further = self.edges_of[node], distance[node] + 1
            left = untried[node]
            while left:
                edge = edges[left - 1]
                if distance[head[edge]] == further and residual[edge] > tolerance:
                    break
                left -= 1
            untried[node] = left
            if left:
                path.append(edge)
                node = head[edge]
            elif path:
                node = head[path.pop() ^ 1]
                untried[node] -= 1
            else:
                return total
