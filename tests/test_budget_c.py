"""Budgets on the C backend bind the memory that the C code takes: its own plan, with threads'
scratch and parts, measured."""

from __future__ import annotations

import numpy as np
import pytest

import tinyaot as ta
from tests.test_budget import MODELS
from tinyaot.backends import cpu
from tinyaot.errors import BudgetError

pytestmark = pytest.mark.skipif(cpu.unavailable() is not None, reason="no C compiler")


def compiled(model: str, budget: int | float | None, partition: str = "min_cut") -> ta.Record:
    ta.manual_seed(0)
    step, batch = MODELS[model]()
    step = ta.compile(step, backend="c", memory_budget=budget, partition=partition)
    return step.explain(*batch).measure(*batch)


@pytest.mark.parametrize("model", MODELS)
def test_planned_is_measured_and_never_rises_as_the_budget_falls(model: str) -> None:
    peaks = []
    for budget in (0.0, 0.25, 0.5, 0.75, 1.0):
        memory = compiled(model, budget).memory
        assert memory["measured_peak"] == memory["planned_peak"]
        peaks.append(memory["planned_peak"])
    assert peaks == sorted(peaks)
    if model == "perceptron":  # the small transformer's peak is its weights' gradients
        assert peaks[0] < peaks[-1]


def test_bytes_are_a_hard_bound_on_what_c_takes() -> None:
    least, most = (compiled("perceptron", b).memory["planned_peak"] or 0 for b in (0.0, 1.0))
    middle = (least + most) // 2
    record = compiled("perceptron", middle)
    assert (record.memory["planned_peak"] or 0) <= middle
    (chosen,) = (p for p in record.pareto if p.chosen)
    assert chosen.is_exact and chosen.planned_peak == record.memory["planned_peak"]
    with pytest.raises(BudgetError, match=str(least)):
        compiled("perceptron", least - 1)


@pytest.mark.parametrize("budget", [0.0, 0.5])
def test_losses_and_masks_are_those_without_a_budget(budget: float) -> None:
    curves = []
    for b in (None, budget):
        ta.manual_seed(0)
        step, batch = MODELS["transformer"]()
        step = ta.compile(step, backend="c", memory_budget=b)
        curves.append([step(*batch).item() for _ in range(5)])
    np.testing.assert_allclose(*curves, rtol=1e-6)  # products may have other shapes
