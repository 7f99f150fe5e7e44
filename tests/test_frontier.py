"""Cuts, the hull and what lies between its corners, against every saved set of random graphs."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import pytest

from tests.saved_sets import all_choices, best_of_each, lower_hull, random_case
from tinyaot.cost import NUMPY_RATES
from tinyaot.passes import exact
from tinyaot.passes.exact import least_price
from tinyaot.passes.frontier import Component, Frontier
from tinyaot.passes.splitgraph import SplitGraph

BLOCKS, EACH = 10, 50


def frontier_of(seed: int) -> Frontier:
    return Frontier(SplitGraph(random_case(seed).program, "time", NUMPY_RATES))


@pytest.mark.parametrize("block", range(BLOCKS))
def test_all_saved_sets_of_500_random_graphs(block: int) -> None:
    for seed in range(EACH * block, EACH * (block + 1)):
        case = random_case(seed)
        frontier = frontier_of(seed)
        points = all_choices(case)
        best = best_of_each(points)
        assert frontier.corners == lower_hull(best), seed
        for at, corner in enumerate(frontier.corners):
            choice = frontier.choice(at)
            assert (choice.bytes, choice.price) == corner, seed
            row = sum(1 << bit for bit, v in enumerate(case.values) if v in choice.saved)
            assert tuple(points[row]) == corner, seed
        _check_prices(frontier, best, seed)
        _check_budgets(frontier, best, seed)


def _check_prices(frontier: Frontier, best: list[tuple[int, int]], seed: int) -> None:
    most_bytes = sum(frontier.graph.size.values()) or 1
    for factor in (1e-3, 0.03, 0.3, 1.0, 3.0, 30.0, 1e3):
        price = Fraction(factor * (best[0][1] or 1) / most_bytes)
        choice = frontier.cut(price)
        assert choice.price + price * choice.bytes == min(p + price * b for b, p in best), seed


def _check_budgets(frontier: Frontier, best: list[tuple[int, int]], seed: int) -> None:
    """At every number of bytes where the answer changes, and just below."""
    for at, (nbytes, price) in enumerate(best):
        for most, least in ((nbytes, price), (nbytes - 1, best[at - 1][1] if at else None)):
            found = least_price(frontier, most)
            if least is None:
                assert found is None
                continue
            assert found is not None
            assert (found.choice.price, found.gap) == (least, 0), (seed, most)
            assert found.choice.bytes <= most


def test_the_random_graphs_are_of_every_kind() -> None:
    """Trees that fold, and components that take a flow; outputs among the values; views."""
    frontiers = [frontier_of(seed) for seed in range(BLOCKS * EACH)]
    cores = [len(c.core) for f in frontiers for c in f.components if not c.is_tree]
    folded = [len(c.folded) for f in frontiers for c in f.components]
    assert len(cores) > 25 and max(cores) >= 5 and max(folded) >= 4
    between = sum(len(best_of_each(all_choices(random_case(s)))) for s in range(BLOCKS * EACH))
    assert between > sum(len(f.corners) for f in frontiers) + 100
    assert max(len(random_case(s).values) for s in range(BLOCKS * EACH)) >= 9


@pytest.mark.parametrize("seed", range(60))
def test_a_flow_proves_its_cut(seed: int) -> None:
    """Its capacities are kept, nothing is lost on the way, and it is as much as the cut weighs."""
    for component in frontier_of(seed).components:
        for per_price, per_byte in ((1, 1), (3, 500), (1, 10**6), (10**6, 1)):
            _check_flow(component, per_price, per_byte)


def _check_flow(component: Component, per_price: int, per_byte: int) -> None:
    graph, cut = component.graph, component.cut(per_price, per_byte)
    assert sum(cut.flow[v] for v in component.read) == cut.weight
    for v in component.nodes:
        behind = sum(cut.flow_to.get((n, v), 0) for n in component.needs[v])
        own = cut.flow[v] - behind
        assert 0 <= own <= per_price * graph.price[v]
        assert cut.flow[v] <= per_byte * graph.size[v]
        if v not in graph.read:
            assert cut.flow[v] == sum(cut.flow_to.get((v, u), 0) for u in graph.users[v])


def test_with_too_many_labels_the_gap_is_certified(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that gives up still says how far it may be from the best."""
    monkeypatch.setattr(exact, "LABELS", 1)
    gaps = 0
    for seed in range(150):
        best = best_of_each(all_choices(random_case(seed)))
        frontier = frontier_of(seed)
        for nbytes, price in best:
            found = least_price(frontier, nbytes)
            assert found is not None and found.choice.bytes <= nbytes
            assert found.least_price <= price <= found.choice.price
            gaps += found.gap > 0
    assert gaps > 5


@pytest.mark.parametrize("seed", range(40))
def test_what_may_not_be_saved_is_not(seed: int) -> None:
    case = random_case(seed)
    graph = SplitGraph(case.program, "time", NUMPY_RATES)
    never = set(case.values[:: 1 + seed % 3])
    graph.never_saved |= never
    rows = [
        row
        for row in range(1 << len(case.values))
        if not any(row >> bit & 1 and v in never for bit, v in enumerate(case.values))
    ]
    best = best_of_each(all_choices(case)[rows])
    frontier = Frontier(graph)
    assert frontier.corners == lower_hull(best)
    for nbytes, price in best:
        found = least_price(frontier, nbytes)
        assert found is not None and found.choice.price == price and found.gap == 0
        assert never.isdisjoint(found.choice.saved)


@pytest.mark.parametrize("seed", range(40))
def test_what_a_flip_costs(seed: int) -> None:
    graph = SplitGraph(random_case(seed).program, "time", NUMPY_RATES)
    total = sum(p for p in graph.price.values() if p < math.inf)
    choice = Frontier(graph).cut(Fraction(int(total) or 1, sum(graph.size.values()) or 1))
    for id_ in choice.saved:
        flipped = graph.choice(choice.saved - {id_})
        added = flipped.cost.seconds - choice.cost.seconds
        kept_on = flipped.saved == choice.saved - {id_}  # flipping may make others useless
        if kept_on:
            assert graph.cost_of_recomputing(choice, id_).seconds == pytest.approx(added)
    for id_ in choice.recomputed:
        flipped = graph.choice(choice.saved | {id_})
        gone = choice.cost.seconds - flipped.cost.seconds
        assert graph.cost_of_saving(choice, id_).seconds == pytest.approx(gone, abs=1e-15)


def test_the_price_of_a_byte_makes_a_corner_the_best() -> None:
    for seed in range(60):
        frontier = frontier_of(seed)
        for nbytes, price in frontier.corners:
            choice = frontier.cut(frontier.byte_price(nbytes))
            assert (choice.bytes, choice.price) == (nbytes, price)
        last = frontier.corners[-1][0]
        assert frontier.byte_price(last + 1) == frontier.byte_price(last)
        for (a, _), (b, _) in pairwise(frontier.corners):
            if b - a > 1:  # in between both are
                slope = frontier.byte_price(b - 1)
                weights = {p + slope * n for n, p in frontier.corners}
                assert min(weights) == frontier.cut(slope).price + slope * frontier.cut(slope).bytes
