"""torch's optimizers beside ours: ten steps by the same gradients, in both modes; clipping."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tinyaot as ta
from tests.numeric import numbers

Make = Callable[[Any, Any], Any]
OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda optim, p: optim.SGD(p, 0.1),
    "SGD default": lambda optim, p: optim.SGD(p),
    "SGD momentum": lambda optim, p: optim.SGD(p, 0.1, 0.9, 0.3, 0.2),
    "SGD nesterov": lambda optim, p: optim.SGD(p, 0.1, 0.9, nesterov=True, weight_decay=0.1),
    "SGD maximize": lambda optim, p: optim.SGD(p, 0.1, momentum=0.5, maximize=True),
    "Adam": lambda optim, p: optim.Adam(p),
    "Adam all": lambda optim, p: optim.Adam(p, 0.1, (0.8, 0.9), 1e-3, 0.2, True),
    "Adam maximize": lambda optim, p: optim.Adam(p, 0.1, maximize=True),
    "AdamW": lambda optim, p: optim.AdamW(p, 0.1),
    "AdamW all": lambda optim, p: optim.AdamW(p, 0.1, (0.8, 0.9), 1e-3, 0.2, True),
    "groups": lambda optim, p: optim.AdamW(
        [{"params": p[:1], "weight_decay": 0.0}, {"params": p[1:], "lr": 0.3}], 0.1
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_ten_steps_are_torchs(name: str, compiled: bool) -> None:
    start = [numbers(3, 4), numbers(5, seed=1)]
    mine = [ta.nn.Parameter(ta.tensor(p)) for p in start]
    other = [torch.nn.Parameter(torch.tensor(p)) for p in start]
    ours, theirs = OPTIMIZERS[name](ta.optim, mine), OPTIMIZERS[name](torch.optim, other)

    def step(*coefficients: Any) -> Any:
        ours.zero_grad()
        loss = sum((p * p * c).sum() for p, c in zip(mine, coefficients))
        loss.backward()
        ours.step()
        return loss

    run = ta.compile(step, backend="numpy") if compiled else step
    for t in range(10):
        coefficients = [numbers(*p.shape, seed=10 * t + i) for i, p in enumerate(start)]
        run(*map(ta.tensor, coefficients))
        theirs.zero_grad()
        sum((p * p * torch.tensor(c)).sum() for p, c in zip(other, coefficients)).backward()
        theirs.step()
        for p, q in zip(mine, other):
            np.testing.assert_allclose(p.numpy(), q.detach().numpy(), rtol=1e-9, atol=1e-12)
    state, want = ours.state_dict(), theirs.state_dict()
    for number, tensors in want["state"].items():
        for key, value in tensors.items():
            if value is not None:
                got = state["state"][number][key].numpy()
                np.testing.assert_allclose(got, value.numpy(), rtol=1e-9, atol=1e-12)
    for group, theirs_group in zip(state["param_groups"], want["param_groups"], strict=True):
        assert group.items() <= theirs_group.items()


@pytest.mark.parametrize("p", [2.0, 1.0, math.inf])
@pytest.mark.parametrize("bound", [0.5, 100.0])
def test_clipping_is_torchs(p: float, bound: float) -> None:
    grads = [numbers(3, 4), numbers(5, seed=1)]
    mine = [ta.nn.Parameter(ta.zeros(*g.shape, dtype=ta.float64)) for g in grads]
    other = [torch.nn.Parameter(torch.zeros(g.shape, dtype=torch.float64)) for g in grads]
    for a, b, g in zip(mine, other, grads):
        a.grad, b.grad = ta.tensor(g), torch.tensor(g)
    got = ta.nn.clip_grad_norm_(mine, bound, p)
    want = torch.nn.utils.clip_grad_norm_(other, bound, p)
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-12)
    for a, b in zip(mine, other):
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-12)


def test_schedules_are_torchs() -> None:
    ours = ta.optim.SGD([ta.nn.Parameter(ta.zeros(1))], 0.3)
    theirs = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.3)
    mine = ta.optim.WarmupLR(ours, 4, after=ta.optim.CosineLR(ours, 6, min_lr=0.01))
    other = torch.optim.lr_scheduler.SequentialLR(
        theirs,
        [
            torch.optim.lr_scheduler.LinearLR(theirs, 0.25, 1.0, 3),
            torch.optim.lr_scheduler.CosineAnnealingLR(theirs, 6, 0.01),
        ],
        [4],
    )
    for _ in range(10):
        np.testing.assert_allclose(ours.lr, theirs.param_groups[0]["lr"], rtol=1e-9)
        theirs.step()
        mine.step()
        other.step()
