"""Budgets on the C backend bind the memory that the C code takes: its own plan, with threads'
scratch and parts, measured."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tinyaot as ta
from tests.test_budget import MODELS, simplified
from tinyaot import passes
from tinyaot.backends import cpu
from tinyaot.errors import BudgetError
from tinyaot.ir import Program
from tinyaot.passes.candidates import Search
from tinyaot.passes.splitgraph import SplitGraph

pytestmark = pytest.mark.skipif(cpu.unavailable() is not None, reason="no C compiler")


def compiled(model: str, budget: int | float | None, partition: str = "min_cut") -> ta.Record:
    ta.manual_seed(0)
    step, batch = MODELS[model]()
    step = ta.compile(step, backend="c", memory_budget=budget, partition=partition)
    return step.explain(*batch).measure(*batch)


def test_21_budgets_of_a_transformer() -> None:
    """The planned peak keeps every budget and never rises as the budget falls; each plan that any
    of them leads to is measured."""
    program, _ = simplified("transformer")

    def peak_of(candidate: Program) -> int:
        return cpu.planned_peak(passes.fuse(passes.assign_layouts(candidate), **cpu.loops()))

    search = Search(SplitGraph(program, "time", cpu.rates()), peak_of)
    chosen = [search.within(i / 20).chosen for i in range(21)]
    peaks, least, most = [c.peak for c in chosen], search.rungs()[-1].peak, search.save_all.peak
    assert peaks == sorted(peaks) and peaks[0] < most
    for i, peak in enumerate(peaks):
        assert peak <= least + i / 20 * (most - least) + 1e-9
    for candidate in dict.fromkeys(chosen):
        memory = compiled("transformer", chosen.index(candidate) / 20).memory
        assert memory["measured_peak"] == memory["planned_peak"] == candidate.peak


def test_bytes_are_a_hard_bound_on_what_c_takes() -> None:
    with pytest.raises(BudgetError, match="least planned peak found is") as refused:
        compiled("perceptron", 1000)
    found = re.search(r"found is (\d+) bytes .saving everything takes (\d+)", str(refused.value))
    assert found
    least, most = map(int, found.groups())
    for limit in (least, (least + most) // 2):
        record = compiled("perceptron", limit)
        assert record.memory["measured_peak"] == (record.memory["planned_peak"] or 0) <= limit
        (point,) = (p for p in record.pareto if p.chosen)
        assert point.is_exact and point.planned_peak == record.memory["planned_peak"]


def test_the_plan_that_was_looked_at_is_the_one_that_runs() -> None:
    """It is not made a second time, and the record shows it as any other."""
    with_budget, without = compiled("perceptron", 1.0), compiled("perceptron", None)
    stages = [s.name for s in with_budget.stages]
    assert stages == [s.name for s in without.stages]
    kinds = {d.kind for d in with_budget.decisions}
    assert kinds >= {d.kind for d in without.decisions}
    assert len(with_budget.kernels) == len(with_budget.program("fuse").nodes)


def test_losses_and_masks_are_those_without_a_budget() -> None:
    curves = []
    for budget in (None, 0.0, 0.5):
        ta.manual_seed(0)
        step, batch = MODELS["transformer"]()
        step = ta.compile(step, backend="c", memory_budget=budget)
        curves.append([step(*batch).item() for _ in range(5)])
    for curve in curves[1:]:
        np.testing.assert_allclose(curve, curves[0], rtol=1e-6)  # products may have other shapes


@pytest.mark.parametrize("options", [{}, {"partition": "recompute_all"}, {"memory_budget": 0.0}])
def test_what_is_tested_for_equality_is_no_sum_made_again(options: dict[str, Any]) -> None:
    """The gradient of amax looks for the greatest of a row among what it was taken from; the writes
    cut the backward's loops in two, which add in another order."""

    def f(x: ta.Tensor, w: ta.Tensor) -> Any:
        h = x @ w
        h[:, :2] = h[:, 1:3] * 0.5
        h = h - h.mean(-1, keepdims=True)
        m = h.amax(-1)
        h = h - h.amax(-1, keepdims=True)
        h[:, :2] = h[:, 1:3] * 0.5
        loss = (h * h).mean() + (h * 0.3).sum() * 0.01 + m.sum() * 0.1
        return ta.grad(loss, [x, w])

    rng = np.random.default_rng(7)
    x = ta.tensor(rng.standard_normal((64, 8)).astype(np.float32), requires_grad=True)
    w = ta.tensor(rng.standard_normal((8, 8)).astype(np.float32), requires_grad=True)
    compiled = ta.compile(f, backend="c", **options)
    for got, want in zip(compiled(x, w), f(x, w), strict=True):
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-4, atol=1e-5)
    saved = [d for d in compiled.records[0].decisions if d.kind == "save"]
    assert "compared" in {d.reason for d in saved}
