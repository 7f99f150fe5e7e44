"""The estimate of a choice's peak: by hand on a small step, and beside planned peaks."""

from __future__ import annotations

from dataclasses import replace

from tests.test_budget import search_of
from tinyaot.cost import NUMPY_RATES, Rates
from tinyaot.passes.estimate import Estimate
from tinyaot.passes.splitgraph import SplitGraph
from tinyaot.text import parse

STEP = """
program step @ simplify
  input %0: f32[4] argument "x"
  %1: f32[4] = exp(%0) forward
  %2: f32[4] = sin(%1) forward
  %3: f32[4] = tanh(%2) forward
  %4: f32[1] = sum(%3) {axes=[0]} forward
  %5: f32[4] = mul(%3, %0) backward
  %6: f32[4] = mul(%5, %2) backward
  %7: f32[4] = mul(%6, %1) backward
  output user %4
  output gradient %7
"""


def estimates(rates: Rates, *choices: set[int]) -> list[int]:
    graph = SplitGraph(parse(STEP), "time", rates)
    return [Estimate(graph)(graph.choice(saved)) for saved in choices]


def test_bytes_alive_by_hand() -> None:
    """Of 16 bytes each. Saved: %1 to %3 while %5 is made. Computed again, %3 needs the others."""
    fused = replace(NUMPY_RATES, inline=1e-30)
    assert estimates(NUMPY_RATES, {1, 2, 3}, {1, 2}, {2, 3}, set()) == [64, 64, 48, 64]
    assert estimates(fused, {1, 2, 3}, {1}, {2, 3}, set()) == [48, 32, 32, 24]


def test_the_estimate_orders_choices_as_their_plans_do() -> None:
    for model in ("perceptron", "transformer"):
        search = search_of(model)
        rungs, estimate = search.rungs(), Estimate(search.graph)
        assert len(rungs) > 4
        values = [estimate(c.choice) for c in rungs]
        assert values == sorted(values, reverse=True)
        peaks = [c.peak for c in rungs]
        assert peaks == sorted(peaks, reverse=True)
