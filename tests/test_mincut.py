"""Minimum cuts against the definition: the cheapest of all sets that hold the source."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from tinyaot.passes.mincut import INFINITY, FlowNetwork

Edges = list[tuple[int, int, float]]


def network_of(nodes: int, edges: Edges) -> FlowNetwork:
    network = FlowNetwork(nodes)
    for tail, head, capacity in edges:
        network.add_edge(tail, head, capacity)
    return network


def capacity_out(side: set[int], edges: Edges) -> float:
    return sum(c for tail, head, c in edges if tail in side and head not in side)


def cheapest_cut(nodes: int, edges: Edges) -> float:
    """By trying every set; node 0 is the source, node 1 the sink."""
    others = range(2, nodes)
    sets = itertools.chain.from_iterable(
        itertools.combinations(others, k) for k in range(nodes - 1)
    )
    return min(capacity_out({0, *s}, edges) for s in sets)


@pytest.mark.parametrize("seed", range(150))
def test_against_all_cuts(seed: int) -> None:
    rng = random.Random(seed)
    nodes = rng.randint(2, 9)
    capacities = (0.0, 0.25, 1.0, 1 / 3, 1e-6, 1e6, rng.random(), rng.random())
    edges = [
        (rng.randrange(nodes), rng.randrange(nodes), rng.choice(capacities))
        for _ in range(rng.randint(0, 4 * nodes))
    ]
    network = network_of(nodes, edges)
    flow = network.maximum_flow(0, 1)
    assert flow == pytest.approx(cheapest_cut(nodes, edges), rel=1e-9, abs=1e-5)
    side = {at for at, inside in enumerate(network.source_side(0)) if inside}
    assert 0 in side and 1 not in side
    assert capacity_out(side, edges) == pytest.approx(flow, rel=1e-9, abs=1e-5)


@pytest.mark.parametrize("seed", range(50))
def test_infinite_edges_are_never_cut(seed: int) -> None:
    rng = random.Random(seed)
    nodes = 8
    edges = [
        (rng.randrange(nodes), rng.randrange(nodes), rng.choice((INFINITY, rng.random(), 1.0)))
        for _ in range(16)
    ]
    network = network_of(nodes, edges)
    flow = network.maximum_flow(0, 1)
    assert flow == pytest.approx(cheapest_cut(nodes, edges))
    if flow < INFINITY:
        side = {at for at, inside in enumerate(network.source_side(0)) if inside}
        assert capacity_out(side, edges) < INFINITY


def test_flow_goes_back_on_itself() -> None:
    # The shortest path takes the middle edge; the second one has to undo that.
    edges = [(0, 2, 1.0), (0, 3, 1.0), (2, 3, 1.0), (2, 1, 1.0), (3, 1, 1.0)]
    assert network_of(4, edges).maximum_flow(0, 1) == 2.0
    # Two paths take it one after the other, and both are undone.
    edges = [(0, 2, 1.0), (0, 2, 1.0), (2, 3, 2.0), (3, 1, 2.0)]
    edges += [(0, 4, 2.0), (4, 6, 2.0), (6, 3, 2.0), (2, 5, 2.0), (5, 7, 2.0), (7, 1, 2.0)]
    assert network_of(8, edges).maximum_flow(0, 1) == 4.0


def test_capacities_change_between_flows() -> None:
    network = FlowNetwork(2)
    edge = network.add_edge(0, 1, 1.0)
    assert network.maximum_flow(0, 1) == 1.0
    network.set_capacity(edge, 2.5)
    assert network.maximum_flow(0, 1) == 2.5


def test_unconnected() -> None:
    network = FlowNetwork(3)
    network.add_edge(0, 2, 5.0)
    assert network.maximum_flow(0, 1) == 0.0
    assert network.source_side(0) == [True, False, True]


@pytest.mark.parametrize("capacity", [-1.0, math.nan])
def test_no_capacity(capacity: float) -> None:
    with pytest.raises(ValueError, match="capacity"):
        FlowNetwork(2).add_edge(0, 1, capacity)


@pytest.mark.parametrize("width", [1, 50])
def test_thousands_of_nodes(width: int) -> None:
    """A chain, and a ladder of 50 rails, 2,500 values each: recursion would not survive it."""
    count = 2500
    rng = random.Random(0)
    network = FlowNetwork(2 * count + 2)
    source, sink = 2 * count, 2 * count + 1
    for at in range(count):
        network.add_edge(source, 2 * at, rng.random())
        network.add_edge(2 * at, 2 * at + 1, rng.random())
        for before in {at - 1, at - width}:
            if before >= 0:
                network.add_edge(2 * before + 1, 2 * at, INFINITY)
    network.add_edge(2 * count - 1, sink, INFINITY)
    flow = network.maximum_flow(source, sink)
    side = network.source_side(source)
    cut = sum(
        network.capacity[edge]
        for tail in range(2 * count + 2)
        for edge in network.edges_of[tail]
        if side[tail] and not side[network.head[edge]]
    )
    assert cut == pytest.approx(flow)
