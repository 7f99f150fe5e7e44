"""How long the whole hull of (bytes, price) takes on large graphs.

    python -m tests.bench.hull

A chain of 5,000 values and a ladder of 50 x 100, in which each value is computed from two of the
row before; sizes and prices are random, so that nearly every value makes a corner. The backward
reads all of them, or a share: the fewer it reads, the larger the parts that are decided together.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tinyaot.cost import FREE
from tinyaot.passes.frontier import Frontier
from tinyaot.passes.splitgraph import Choice

SHARES = (1.0, 0.9, 0.5, 0.2)


@dataclass
class Graph:
    """What `Frontier` reads of a SplitGraph."""

    needs: dict[int, list[int]]
    read: set[int]
    size: dict[int, int]
    price: dict[int, int]
    users: dict[int, list[int]] = field(default_factory=dict)
    never_saved: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.nodes = self.needs
        self.users = {v: [] for v in self.needs}
        for user, needs in self.needs.items():
            for need in needs:
                self.users[need].append(user)

    def choice(self, saved: Iterable[int]) -> Choice:
        """As `SplitGraph.choice`: those that nobody would read are left out."""
        allowed, kept, again = set(saved), set[int](), dict[int, None]()
        stack = list(self.read)
        while stack:
            v = stack.pop()
            if v in allowed:
                kept.add(v)
            elif v not in again:
                again[v] = None
                stack += self.needs[v]
        flops = sum(self.price[v] for v in again)
        nbytes = sum(self.size[v] for v in kept)
        return Choice(frozenset(kept), tuple(again), nbytes, FREE, flops)


def chain(length: int = 5000) -> dict[int, list[int]]:
    return {v: [v - 1] if v else [] for v in range(length)}


def ladder(width: int = 50, rows: int = 100) -> dict[int, list[int]]:
    """Each value from the one above, and from the one above and to the left."""
    needs: dict[int, list[int]] = {v: [] for v in range(width)}
    for v in range(width, width * rows):
        needs[v] = [v - width] if v % width == 0 else [v - width, v - width - 1]
    return needs


def graph(needs: dict[int, list[int]], share: float, last: int) -> Graph:
    """The backward reads a share of the values, and the `last` ones."""
    rng = random.Random(0)
    read = {v for v in needs if rng.random() < share} | set(list(needs)[-last:])
    sizes = {v: 4 * rng.randint(1, 100_000) for v in needs}
    return Graph(needs, read, sizes, {v: rng.randint(1, 10**9) for v in needs})


def main() -> None:
    shapes: dict[str, tuple[Callable[[], dict[int, list[int]]], int]] = {
        "chain of 5,000": (chain, 1),
        "ladder 50 x 100": (ladder, 50),
    }
    print(f"{'graph':18} {'read':>6} {'seconds':>9} {'corners':>9} {'largest part':>13}")
    for name, (make, last) in shapes.items():
        for share in SHARES:
            given = graph(make(), share, last)
            began = time.perf_counter()
            frontier = Frontier(given)  # type: ignore[arg-type]
            seconds = time.perf_counter() - began
            largest = max(len(c.core) for c in frontier.components)
            corners = len(frontier.corners)
            print(f"{name:18} {share:6.0%} {seconds:9.2f} {corners:9,} {largest:13,}", flush=True)


if __name__ == "__main__":
    main()
