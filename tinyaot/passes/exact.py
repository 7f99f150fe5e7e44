"""The best choice under a bound on the bytes saved, also between corners of the hull.

This is a knapsack of components. Nemhauser and Ullmann ("Discrete dynamic programming and capital
allocation", 1969) join them one by one and keep the partial choices, `labels`, that no other beats
in bytes and price at once. A minimum cut at the slope of the hull's edge over the bound says of
every label what its best completion weighs at least: no less than the cut, and more by the cut's
`flow` that it leaves unused. A label whose completions all weigh more than the best choice found is
dropped; few remain.

Within a component the storages are decided from the last to the first, so a label is also told from
others by what it still has to have at hand.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from tinyaot.passes.frontier import Component, Cut, Frontier
from tinyaot.passes.mincut import INFINITY
from tinyaot.passes.splitgraph import Choice

LABELS = 2000  # kept at a time; beyond, those with the heaviest completions are given up
LABEL_STORAGES = 200_000  # and times the storages of a component
Saved = tuple[Any, ...]  # nested tuples of storages: quick to join


@dataclass(frozen=True)
class Best:
    """A choice, and a price that no choice within its bound can be below: the price itself, if it
    is proved to be the least."""

    choice: Choice
    least_price: int

    @property
    def gap(self) -> int:
        return self.choice.price - self.least_price


@dataclass(frozen=True, slots=True)
class Label:
    """A partial choice. `excess`: by how much its best completion outweighs the cut, at least;
    `wants`: the storages, not decided yet, that it has to have at hand."""

    bytes: int
    price: int
    excess: int
    saved: Saved
    wants: frozenset[int] = frozenset()


def least_price(frontier: Frontier, most_bytes: int) -> Best | None:
    """The choice of the least price that saves at most so many bytes; None if there is none."""
    if most_bytes < frontier.corners[0][0]:
        return None
    at = bisect_right(frontier.corners, most_bytes, key=lambda corner: corner[0]) - 1
    corner = frontier.choice(at)
    while corner.bytes > most_bytes:  # a better one, that the search for the hull left out
        at -= 1
        corner = frontier.choice(at)
    if corner.bytes == most_bytes or at == len(frontier.edges):
        return Best(corner, corner.price)
    return _Knapsack(frontier, most_bytes, corner, frontier.edges[at]).solve()


class _Knapsack:
    def __init__(
        self, frontier: Frontier, most_bytes: int, corner: Choice, edge: tuple[int, int]
    ) -> None:
        self.graph, self.most_bytes = frontier.graph, most_bytes
        self.price = corner.price
        self.saved: Saved = (*corner.saved,)
        self.per_price, self.per_byte = edge
        self.cuts = [(c, c.cut(*edge)) for c in frontier.components]
        self.weight = sum(cut.weight for _, cut in self.cuts)
        self.given_up: int | None = None  # the least excess of a label that was

    @property
    def room(self) -> int:
        """The excess that a choice better than the best found has at most."""
        most = self.per_price * (self.price - 1) + self.per_byte * self.most_bytes
        return most - self.weight

    def solve(self) -> Best:
        parts = [self._choices_of(component, cut) for component, cut in self.cuts]
        if all(parts):
            self._join(parts)
        return Best(self.graph.choice(_unlinked(self.saved)), self._least())

    def _join(self, parts: list[list[Label]]) -> None:
        """Look for a better choice than the best found, in one of each component's."""
        # Large ones first: the small ones then fill what is left.
        parts.sort(key=lambda labels: labels[0].bytes - labels[-1].bytes)
        labels = [Label(0, 0, 0, ())]
        rest = [_sums(parts, lambda x: x.bytes), _sums(parts, lambda x: x.excess)]
        for at, part in enumerate(parts):
            labels = self._keep(_joined(a, b) for a in labels for b in part)
            for completions in rest:
                done = completions[at + 1]
                for label in labels:
                    if label.price + done.price >= self.price:
                        continue
                    if label.bytes + done.bytes <= self.most_bytes:
                        self.price = label.price + done.price
                        self.saved = (label.saved, done.saved)

    def _least(self) -> int:
        """What the search has proved that no choice is below."""
        if self.given_up is None or self.given_up > self.room:
            return self.price
        weight = self.weight + self.given_up
        return -((self.per_byte * self.most_bytes - weight) // self.per_price)

    def _keep(self, labels: Iterable[Label], storages: int = 1) -> list[Label]:
        """Those that may become the best, by bytes; fewer where there are many storages."""
        room, most = self.room, self.most_bytes
        able = [x for x in labels if x.excess <= room and x.bytes <= most]
        able.sort(key=lambda x: (x.bytes, x.price))
        cheapest: dict[frozenset[int], int] = {}
        kept = []
        for label in able:
            price = cheapest.get(label.wants)
            if price is None or label.price < price:
                cheapest[label.wants] = label.price
                kept.append(label)
        limit = min(LABELS, LABEL_STORAGES // storages)
        if len(kept) > limit:
            by_excess = sorted(kept, key=lambda x: x.excess)
            least = by_excess[limit].excess
            self.given_up = least if self.given_up is None else min(self.given_up, least)
            chosen = {id(x) for x in by_excess[:limit]}
            kept = [x for x in kept if id(x) in chosen]
        return kept

    def _choices_of(self, component: Component, cut: Cut) -> list[Label]:
        """The choices of one component that may be part of the best."""
        graph, needs_of, flow, flow_to = self.graph, component.needs, cut.flow, cut.flow_to
        arrived: dict[int, int] = {}  # what goes on from a storage to those already decided
        labels = [Label(0, 0, 0, ())]
        for v in reversed(component.nodes):
            needs, made = needs_of[v], []
            size, price = component.bytes_of[v], graph.price[v]
            for x in labels:
                unused = sum(flow_to.get((n, v), 0) for n in needs if n in x.wants)
                if v not in x.wants and v not in graph.read:
                    made.append(replace(x, excess=x.excess + unused) if unused else x)
                    continue
                wants, excess = x.wants - {v}, x.excess - flow[v]
                if size != INFINITY:
                    more = self.per_byte * int(size) + unused
                    nbytes, saved = x.bytes + int(size), (v, x.saved)
                    made.append(Label(nbytes, x.price, excess + more, saved, wants))
                if price != INFINITY:
                    more = self.per_price * int(price) + sum(flow_to.get((n, v), 0) for n in needs)
                    more += sum(arrived.get(n, 0) for n in needs if n not in wants)
                    total = x.price + int(price)
                    made.append(Label(x.bytes, total, excess + more, x.saved, wants.union(needs)))
            for n in needs:
                arrived[n] = arrived.get(n, 0) + flow_to.get((n, v), 0)
            labels = self._keep(made, len(component.nodes))
        return labels


def _joined(a: Label, b: Label) -> Label:
    saved = (a.saved, b.saved) if b.saved else a.saved
    return Label(a.bytes + b.bytes, a.price + b.price, a.excess + b.excess, saved)


def _sums(parts: list[list[Label]], key: Callable[[Label], int]) -> list[Label]:
    """For each position: the choices from there on that are least by `key`, joined."""
    sums = [Label(0, 0, 0, ())]
    for labels in reversed(parts):
        sums.append(_joined(sums[-1], min(labels, key=key)))
    return sums[::-1]


def _unlinked(saved: Saved) -> list[int]:
    found, stack = [], list(saved)
    while stack:
        top = stack.pop()
        if isinstance(top, tuple):
            stack += top
        else:
            found.append(top)
    return found
