"""Budgets on whole training steps: kept, used, and never a larger peak for a smaller one."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

import tinyaot as ta
from tinyaot import nn, passes
from tinyaot.backends.measure import measure_peak
from tinyaot.capture import capture
from tinyaot.errors import BudgetError
from tinyaot.ir import Program
from tinyaot.memory import planned_peak
from tinyaot.nn import functional as F
from tinyaot.record import Decision

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


def transformer() -> Step:
    net = nn.Sequential(nn.Embedding(11, 16), Block(16), Block(16), nn.Linear(16, 11))
    return training(net, (ta.randint(0, 11, (4, 24)), ta.randint(0, 11, (4, 24))), 11)


MODELS = {"perceptron": perceptron, "transformer": transformer}


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


def planned(program: Program, budget: int | float) -> tuple[Program, Decision]:
    log: list[Decision] = []
    found = passes.partition(program, memory_budget=budget, log=log)
    (summary,) = (d for d in log if d.kind == "partition")
    return passes.plan(passes.schedule(found)), summary


@pytest.mark.parametrize("name", MODELS)
def test_21_budgets(name: str) -> None:
    """The peak never rises as the budget falls, is never above it, and nor does time fall; what is
    saved is the best for as many bytes."""
    program, arrays = simplified(name)
    found = [planned(program, i / 20) for i in range(21)]
    peaks = [planned_peak(p) for p, _ in found]
    assert peaks == sorted(peaks) and len(set(peaks)) > 5
    for i, peak in enumerate(peaks):
        assert peak <= peaks[0] + i / 20 * (peaks[-1] - peaks[0]) + 1e-9
    seconds = [d.numbers["extra_seconds"] for _, d in found]
    assert seconds == sorted(seconds, reverse=True) and seconds[0] > 0 == seconds[-1]
    assert not any(d.numbers["gap_seconds"] for _, d in found)
    for step in (0, 7, 14, 20):
        assert measure_peak(found[step][0], arrays).peak == peaks[step]


@pytest.mark.parametrize("name", MODELS)
def test_a_budget_in_bytes_finds_what_a_fraction_finds(name: str) -> None:
    program, _ = simplified(name)
    least, most = (planned_peak(planned(program, x)[0]) for x in (0.0, 1.0))
    for share in (0.0, 0.3, 0.8):
        limit = least + share * (most - least)
        as_fraction, as_bytes = planned(program, share), planned(program, int(limit))
        assert as_fraction[1].numbers["saved_bytes"] == as_bytes[1].numbers["saved_bytes"]
        assert planned_peak(as_bytes[0]) <= limit
    with pytest.raises(BudgetError, match=rf"least planned peak found is {least} bytes"):
        planned(program, least - 1)


def test_between_corners_a_budget_is_used() -> None:
    """Some budgets are answered by a choice that no minimum cut gives."""
    program, _ = simplified("transformer")
    between = 0
    for i in range(1, 20):
        _, summary = planned(program, i / 20)
        limit = summary.numbers["planned_peak"]
        fitting = [p for p in summary.alternatives if p["planned_peak"] <= limit]
        assert min(p["extra_seconds"] for p in fitting) == summary.numbers["extra_seconds"]
        corners = planned(program, 1.0)[1].alternatives
        between += all(p["saved_bytes"] != summary.numbers["saved_bytes"] for p in corners)
    assert between >= 3


def test_every_budget_trains_the_same() -> None:
    """Bit for bit on NumPy, masks included: the products have the same shapes."""
    losses = []
    for budget in (None, 0.0, 0.4, 1.0):
        ta.manual_seed(0)
        step, batch = transformer()
        compiled = ta.compile(step, backend="numpy", memory_budget=budget)
        losses.append([float(compiled(*batch)) for _ in range(3)])
    assert losses[0] == losses[1] == losses[2] == losses[3]


def test_the_callers_peak_decides() -> None:
    """A backend's own plan, here one of nothing but saved bytes, is what the budget binds."""
    program, _ = simplified("perceptron")
    looked: list[int] = []

    def peak_of(candidate: Program) -> int:
        looked.append(sum(1 for n in candidate.nodes if n.phase == "backward"))
        return 10 * len(candidate.nodes)  # more to compute again: more

    least = passes.partition(program, memory_budget=0.0, peak_of=peak_of)
    save_all = passes.partition(program, strategy="save_all")
    assert len(least.nodes) == len(save_all.nodes) and 1 < len(looked) < 20
    with pytest.raises(BudgetError, match=str(10 * len(save_all.nodes))):
        passes.partition(program, memory_budget=1000, peak_of=peak_of)
