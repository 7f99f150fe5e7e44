"""A quick figure for the peak of a choice: the bytes that it has alive at once in the backward.

A saved storage is alive from the forward on, a recomputed one from the first node that wants it, or
wants what is computed from it, to the last. A plan of single nodes peaks about there. Where loops
are fused, much of what is computed again lives in no memory but a loop's own, and the plan peaks
between this and the bytes saved. Either orders choices well enough to look at few of their plans.
"""

from __future__ import annotations

from itertools import accumulate

from tinyaot.passes.splitgraph import Choice, SplitGraph


class Estimate:
    """Of one graph; `estimate(choice)`: bytes."""

    def __init__(self, graph: SplitGraph) -> None:
        self.graph = graph
        self.is_fused = bool(graph.rates.inline)
        self.first: dict[int, int] = {}  # of each storage read: where the backward does so
        self.last: dict[int, int] = {}
        self.backward = [n for n in graph.program.nodes if n.phase not in (None, "forward")]
        for at, node in enumerate(self.backward):
            for id_ in graph.wanted(node.inputs):
                self.first.setdefault(id_, at)
                self.last[id_] = at
        end = len(self.backward)
        for id_ in graph.read - self.first.keys():  # a gradient that is a forward value
            self.first[id_] = self.last[id_] = end
        self.change = [0] * (end + 2)  # of the bytes alive at each node
        if not self.is_fused:
            self._add_own()

    def _add_own(self) -> None:
        """What the backward makes itself, until it is given back."""
        root, position = self.graph.storages.root, {}
        given = {root[o.value.id] for o in self.graph.program.outputs}
        last: dict[int, int] = {}
        for at, node in enumerate(self.backward):
            for r in node.results:
                position[r.id] = at
            for v in (*node.inputs, *node.results):
                last[root[v.id]] = at
        for id_, at in position.items():
            if root[id_] == id_ and id_ not in given:
                self._add(self.change, id_, at, last[id_])

    def _add(self, change: list[int], id_: int, first: int, last: int) -> None:
        nbytes = self.graph.program.values[id_].type.nbytes
        change[first] += nbytes
        change[last + 1] -= nbytes

    def __call__(self, choice: Choice) -> int:
        graph, change = self.graph, list(self.change)
        again = set(choice.recomputed)
        born: dict[int, int] = {}
        for id_ in reversed(graph.nodes):  # users come before what they are computed from
            if id_ not in again and id_ not in choice.saved:
                continue
            uses = [born[u] for u in graph.users[id_] if u in again]
            if id_ in graph.read:
                uses += (self.first[id_], self.last[id_])
            if not uses:
                continue
            born[id_] = min(uses)
            if id_ in choice.saved:
                self._add(change, id_, 0, max(uses))
            elif id_ in graph.read or max(uses) > born[id_]:
                self._add(change, id_, born[id_], max(uses))
        alive = max(accumulate(change))
        return (alive + choice.bytes) // 2 if self.is_fused else alive
