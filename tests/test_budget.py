"""Budgets on whole training steps: kept, used, and never a larger peak for a smaller one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest

import tinyaot as ta
from tinyaot import nn, passes
from tinyaot.backends.measure import measure_peak
from tinyaot.capture import capture
from tinyaot.cost import NUMPY_RATES
from tinyaot.errors import BudgetError
from tinyaot.ir import Program
from tinyaot.memory import planned_peak
from tinyaot.nn import functional as F
from tinyaot.passes.candidates import Candidate, Search, bisect
from tinyaot.passes.splitgraph import SplitGraph

FIXED_BLOCKS = 1024  # bytes that ops may allocate beside their planned scratch

Step = tuple[Callable[..., Any], tuple[Any, ...]]


def training(net: nn.Module, batch: tuple[Any, ...], classes: int) -> Step:
    opt = ta.optim.AdamW(net.parameters(), lr=1e-3)

    def step(x: Any, y: Any) -> Any:
        opt.zero_grad()
        loss = F.cross_entropy(net(x).reshape(-1, classes), y.reshape(-1))
        loss.backward()
        opt.step()
        return loss

    return step, batch


def perceptron() -> Step:
    layers = []
    for width_in, width in ((16, 48), (48, 48), (48, 48)):
        layers += [nn.Linear(width_in, width), nn.LayerNorm(width), nn.GELU(), nn.Dropout(0.1)]
    net = nn.Sequential(*layers, nn.Linear(48, 5))
    return training(net, (ta.randn(96, 16), ta.randint(0, 5, (96,))), 5)


class Block(nn.Module):
    """Pre-norm, causal, two heads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Any) -> Any:
        b, t, d = x.shape
        qkv = self.qkv(self.norms[0](x)).reshape(b, t, 3, 2, d // 2).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(*qkv.unbind(0), is_causal=True)
        x = x + self.drop(self.out(a.transpose(1, 2).reshape(b, t, d)))
        return x + self.drop(self.down(F.gelu(self.up(self.norms[1](x)))))


def transformer(blocks: int = 2) -> Step:
    layers = [Block(16) for _ in range(blocks)]
    net = nn.Sequential(nn.Embedding(11, 16), *layers, nn.Linear(16, 11))
    return training(net, (ta.randint(0, 11, (4, 24)), ta.randint(0, 11, (4, 24))), 11)


MODELS: dict[str, Callable[[], Step]] = {"perceptron": perceptron, "transformer": transformer}


@cache
def simplified(name: str) -> tuple[Program, tuple[np.ndarray, ...]]:
    """The model's step as partition gets it, and arrays for its inputs."""
    ta.manual_seed(0)
    step, batch = MODELS[name]()
    captured = capture(step, batch, {})
    arrays = [
        np.array(x.source._data)
        if isinstance(x.source, ta.Tensor)
        else np.array(getattr(*x.source), x.value.type.dtype.numpy)
        for x in captured.inputs
    ]
    program = passes.differentiate(passes.functionalize(captured.program), joint=False)
    return passes.simplify(program), tuple(arrays)


@cache
def search_of(name: str) -> Search:
    """One search for all budgets: what it finds does not depend on the budgets asked before."""
    return Search(SplitGraph(simplified(name)[0], "time", NUMPY_RATES))


@cache
def chosen_for(name: str, budget: int | float) -> Candidate:
    return search_of(name).within(budget).chosen


@cache
def planned_of(chosen: Candidate) -> Program:
    return passes.plan(passes.schedule(chosen.program))


def planned(name: str, budget: int | float) -> tuple[Program, Candidate]:
    chosen = chosen_for(name, budget)
    return planned_of(chosen), chosen


@pytest.mark.parametrize("name", MODELS)
def test_21_budgets(name: str) -> None:
    """The peak never rises as the budget falls, and is never above it; nor does time fall. What is
    saved is the best for as many bytes. A measured peak is the planned one."""
    found = [planned(name, i / 20) for i in range(21)]
    peaks = [planned_peak(p) for p, _ in found]
    assert peaks == [c.peak for _, c in found]
    assert peaks == sorted(peaks) and len(set(peaks)) > 5
    for i, peak in enumerate(peaks):
        assert peak <= peaks[0] + i / 20 * (peaks[-1] - peaks[0]) + 1e-9
    seconds = [c.choice.cost.seconds for _, c in found]
    assert seconds == sorted(seconds, reverse=True) and seconds[0] > 0 == seconds[-1]
    assert not any(c.gap for _, c in found)
    for step in (0, 10, 20):
        program, measured = found[step][0], measure_peak(found[step][0], simplified(name)[1])
        assert program.plan is not None and measured.arena == program.plan.arena
        assert 0 <= measured.peak - peaks[step] <= FIXED_BLOCKS


@pytest.mark.parametrize("name", MODELS)
def test_a_budget_in_bytes_finds_what_a_fraction_finds(name: str) -> None:
    least, most = (planned(name, x)[1].peak for x in (0.0, 1.0))
    for share in (0.0, 0.3, 0.8):
        limit = int(least + share * (most - least))
        assert planned(name, limit)[1] is planned(name, share)[1]
    with pytest.raises(BudgetError, match=rf"least planned peak found is {least} bytes"):
        planned(name, least - 1)


def test_the_order_of_asking_does_not_matter() -> None:
    program, _ = simplified("perceptron")
    for budget in (0.7, 0.2):
        fresh = Search(SplitGraph(program, "time", NUMPY_RATES)).within(budget).chosen
        assert fresh.choice == search_of("perceptron").within(budget).chosen.choice


@pytest.mark.parametrize("name", MODELS)
def test_between_corners_a_budget_is_used(name: str) -> None:
    """Some budgets are answered by a choice that no minimum cut gives."""
    corners = {nbytes for nbytes, _ in search_of(name).frontier.corners}
    chosen = [chosen_for(name, i / 20) for i in range(21)]
    assert any(c.choice.bytes not in corners for c in chosen)
    assert all(c.gap == 0 for c in chosen)


def test_every_budget_trains_the_same() -> None:
    """Bit for bit on NumPy, masks included: the products have the same shapes."""
    losses = []
    for budget in (None, 0.0, 0.4, 1.0):
        ta.manual_seed(0)
        step, batch = transformer(1)
        compiled = ta.compile(step, backend="numpy", memory_budget=budget)
        losses.append([float(compiled(*batch)) for _ in range(3)])
    assert losses[0] == losses[1] == losses[2] == losses[3]


def test_the_callers_peak_decides() -> None:
    """A backend's own plan is what the budget binds, and few of its plans are made."""
    program, _ = simplified("perceptron")
    looked: list[int] = []

    def peak_of(candidate: Program) -> int:
        looked.append(10_000 - 10 * len(candidate.nodes))  # more to compute again: less
        return looked[-1]

    save_all = passes.partition(program, strategy="save_all")
    for budget in (0.0, 0.3, 0.6, 1.0):
        looked.clear()
        chosen = passes.partition(program, memory_budget=budget, peak_of=peak_of)
        most, least = peak_of(save_all), min(looked)
        assert peak_of(chosen) <= least + budget * (most - least) and len(looked) <= 6
    looked.clear()
    with pytest.raises(BudgetError) as refused:
        passes.partition(program, memory_budget=1, peak_of=peak_of)
    assert f"found is {min(looked)} bytes" in str(refused.value)


def test_a_corner_that_the_estimate_overlooks_is_found_for_a_number_of_bytes() -> None:
    program, _ = simplified("perceptron")
    save_all = passes.partition(program, strategy="save_all")

    def peak_of(candidate: Program) -> int:
        return 1 if len(candidate.nodes) == most_nodes else 2

    most_nodes = len(passes.partition(program, strategy="recompute_all").nodes)
    rungs = Search(SplitGraph(program, "time", NUMPY_RATES), peak_of).rungs()
    assert most_nodes not in {len(c.program.nodes) for c in rungs}
    assert len(passes.partition(program, memory_budget=1, peak_of=peak_of).nodes) == most_nodes
    assert len(save_all.nodes) < most_nodes


@dataclass(frozen=True)
class Rung:
    peak: int


def test_bisection_never_takes_a_larger_peak_for_a_smaller_limit() -> None:
    """Whatever the peaks of the rungs are."""
    random = Random(0)
    for _ in range(300):
        rungs: Any = [Rung(random.randrange(9)) for _ in range(random.randrange(1, 9))]
        found = [bisect(rungs, limit) for limit in range(10)]
        peaks = [c.peak for c in found if c]
        assert peaks == sorted(peaks) and all(c.peak <= i for i, c in enumerate(found) if c)
        assert found[-1] and found[max(rungs[-1].peak, 0)]
