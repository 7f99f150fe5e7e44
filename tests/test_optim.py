"""Optimizers against their published formulas in NumPy, in both modes; schedules; state."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinyaot as ta
from tinyaot import nn, optim
from tinyaot.errors import ArgumentError, DTypeError, ShapeError


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


# ---- formulas, one parameter, written as in the papers and torch's documentation ----------------


def sgd(
    p: Any,
    grads: list[Any],
    lr: Any,
    mu: float = 0,
    damp: float = 0,
    wd: float = 0,
    nes: bool = False,
) -> Any:
    b = None
    for t, g in enumerate(grads):
        g = g + wd * p
        if mu:
            b = g if b is None else mu * b + (1 - damp) * g
            g = g + mu * b if nes else b
        p = p - lr(t) * g
    return p


def adam(
    p: Any,
    grads: list[Any],
    lr: Any,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    wd: float = 0,
    decoupled: bool = False,
    amsgrad: bool = False,
) -> Any:
    m = v = top = 0.0
    for t, g in enumerate(grads):
        if decoupled:
            p = p * (1 - lr(t) * wd)
        else:
            g = g + wd * p
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g * g
        top = np.maximum(top, v) if amsgrad else v
        m_hat, v_hat = m / (1 - betas[0] ** (t + 1)), top / (1 - betas[1] ** (t + 1))
        p = p - lr(t) * m_hat / (np.sqrt(v_hat) + eps)
    return p


Make = Callable[[Any], optim.Optimizer]
CASES: dict[str, tuple[Make, Callable[..., Any]]] = {
    "SGD": (lambda p: optim.SGD(p, 0.1), sgd),
    "SGD momentum": (
        lambda p: optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.2),
        lambda *a: sgd(*a, mu=0.9, wd=0.2),
    ),
    "SGD nesterov": (
        lambda p: optim.SGD(p, 0.1, 0.9, nesterov=True),
        lambda *a: sgd(*a, mu=0.9, nes=True),
    ),
    "SGD dampening": (
        lambda p: optim.SGD(p, 0.1, 0.8, 0.5),
        lambda *a: sgd(*a, mu=0.8, damp=0.5),
    ),
    "Adam": (lambda p: optim.Adam(p, 0.1), adam),
    "Adam options": (
        lambda p: optim.Adam(p, 0.1, (0.8, 0.9), 1e-3, 0.2),
        lambda *a: adam(*a, (0.8, 0.9), 1e-3, 0.2),
    ),
    "Adam amsgrad": (
        lambda p: optim.Adam(p, 0.1, (0.5, 0.6), amsgrad=True),
        lambda *a: adam(*a, (0.5, 0.6), amsgrad=True),
    ),
    "AdamW": (lambda p: optim.AdamW(p, 0.1), lambda *a: adam(*a, wd=1e-2, decoupled=True)),
    "AdamW decay": (
        lambda p: optim.AdamW(p, 0.1, weight_decay=0.3),
        lambda *a: adam(*a, wd=0.3, decoupled=True),
    ),
}


def rate(t: int) -> float:
    return 0.1 if t < 3 else 0.02


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_steps_follow_the_formula(name: str, compiled: bool) -> None:
    make, formula = CASES[name]
    start = [numbers(3, 4), numbers(5, seed=1)]
    grads = [[numbers(*p.shape, seed=10 * t + i) for t in range(6)] for i, p in enumerate(start)]
    params = [nn.Parameter(ta.tensor(p)) for p in start]
    optimizer = make(params)

    def step(*coefficients: Any) -> Any:
        optimizer.zero_grad()
        loss = sum((p * c).sum() for p, c in zip(params, coefficients))
        loss.backward()
        optimizer.step()
        return loss

    run = ta.compile(step, backend="numpy") if compiled else step
    for t in range(6):
        optimizer.lr = rate(t)
        run(*(ta.tensor(g[t]) for g in grads))
    for param, p, g in zip(params, start, grads):
        np.testing.assert_allclose(param.numpy(), formula(p, g, rate), rtol=1e-12)
    if compiled:
        assert len(run.records) == 1  # a new learning rate needs no new program


@pytest.mark.parametrize("name", CASES)
def test_maximize_is_descent_of_the_negative(name: str) -> None:
    make, _ = CASES[name]
    down, up = (nn.Parameter(ta.tensor(numbers(4))) for _ in range(2))
    descend, climb = make([down]), make([up])
    climb.param_groups[0]["maximize"] = True
    for t in range(3):
        down.grad, up.grad = ta.tensor(numbers(4, seed=t)), ta.tensor(-numbers(4, seed=t))
        descend.step()
        climb.step()
    np.testing.assert_array_equal(down.numpy(), up.numpy())


def test_parameters_without_a_gradient_stand_still() -> None:
    a, b = nn.Parameter(ta.ones(2)), nn.Parameter(ta.ones(2))
    optimizer = optim.Adam([a, b], 0.1)
    a.grad = ta.ones(2)
    optimizer.step()
    np.testing.assert_array_equal(b.numpy(), np.ones(2))
    assert optimizer.state[a]["step"].item() == 1 and optimizer.state[b]["step"].item() == 0
    assert (a.numpy() < 1).all()


def test_state_is_allocated_at_construction() -> None:
    p = nn.Parameter(ta.ones(2, 3))
    for optimizer, names in (
        (optim.SGD([p]), set()),
        (optim.SGD([p], momentum=0.9), {"momentum_buffer"}),
        (optim.AdamW([p]), {"step", "exp_avg", "exp_avg_sq"}),
    ):
        assert optimizer.state[p].keys() == names
        before = dict(optimizer.state[p])
        p.grad = ta.ones(2, 3)
        optimizer.step()
        assert all(optimizer.state[p][k] is before[k] for k in names)
    assert before["step"].shape == () and before["exp_avg"].shape == (2, 3)


@pytest.mark.parametrize("dtype", [ta.float16, ta.bfloat16])
def test_half_precision_is_computed_in_float32(dtype: Any) -> None:
    p = nn.Parameter(ta.ones(3, dtype=dtype))
    optimizer = optim.Adam([p], 0.25, eps=1e-8)  # eps would be zero in float16
    p.grad = ta.zeros(3, dtype=dtype)
    optimizer.step()
    np.testing.assert_array_equal(p.float().numpy(), np.ones(3))
    p.grad = ta.ones(3, dtype=dtype)
    optimizer.step()
    assert (
        p.dtype is dtype and np.isfinite(p.float().numpy()).all() and (p.float().numpy() < 1).all()
    )


def test_groups_have_options_of_their_own() -> None:
    a, b = nn.Parameter(ta.ones(1)), nn.Parameter(ta.ones(1))
    optimizer = optim.SGD([{"params": [a]}, {"params": b, "lr": 0.5}], lr=0.1)
    a.grad = b.grad = ta.ones(1)
    optimizer.step()
    np.testing.assert_allclose([a.item(), b.item()], [0.9, 0.5], rtol=1e-6)
    assert optimizer.lr == 0.1 and optimizer.param_groups[1]["lr"] == 0.5
    optimizer.lr = 0.2
    assert [g.lr for g in optimizer.param_groups] == [0.2, 0.2]
    optimizer.add_param_group({"params": [nn.Parameter(ta.ones(1))], "momentum": 0.9})
    assert list(optimizer.param_groups[2].state[0]) == ["momentum_buffer"]


def test_zero_grad_and_closure() -> None:
    p = nn.Parameter(ta.ones(2))
    optimizer = optim.SGD([p], 0.5)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 2
    np.testing.assert_array_equal(p.numpy(), np.zeros(2))
    grad = p.grad
    optimizer.zero_grad(set_to_none=False)
    assert p.grad is grad and (grad.numpy() == 0).all()
    optimizer.zero_grad()
    assert p.grad is None


def test_bad_arguments() -> None:
    p = nn.Parameter(ta.ones(2))
    for make, message in (
        (lambda: optim.SGD([]), "empty"),
        (lambda: optim.SGD([p], lr=-1), "lr must not be negative"),
        (lambda: optim.SGD([p], nesterov=True), "nesterov needs momentum"),
        (lambda: optim.SGD([p, p]), "given twice"),
        (lambda: optim.SGD([p * 2]), "no leaf"),
        (lambda: optim.SGD([{"params": [p], "beta": 1}]), "no option 'beta'"),
        (lambda: optim.Adam([p], betas=(0.9, 1.0)), "betas must be"),
    ):
        with pytest.raises(ArgumentError, match=message):
            make()
    with pytest.raises(DTypeError, match="put it in a list"):
        optim.SGD(p)
    with pytest.raises(DTypeError, match="moves tensors, got float"):
        optim.SGD([1.0])


# ---- state --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_a_restored_optimizer_goes_on_the_same(name: str) -> None:
    make, _ = CASES[name]

    def run(optimizer: optim.Optimizer, p: Any, steps: range) -> None:
        for t in steps:
            p.grad = ta.tensor(numbers(3, seed=t))
            optimizer.step()

    p = nn.Parameter(ta.tensor(numbers(3)))
    first = make([p])
    run(first, p, range(3))
    q = nn.Parameter(ta.tensor(p.numpy()))
    second = make([q])
    second.load_state_dict(first.state_dict())
    run(first, p, range(3, 6))
    run(second, q, range(3, 6))
    np.testing.assert_array_equal(p.numpy(), q.numpy())


def test_load_state_dict_checks_before_it_copies() -> None:
    p = nn.Parameter(ta.ones(2))
    optimizer = optim.Adam([p], 0.1)
    good = optimizer.state_dict()
    assert good["param_groups"][0]["params"] == [0] and good["param_groups"][0]["betas"] == (
        0.9,
        0.999,
    )
    with pytest.raises(ArgumentError, match=r"groups of \[1\] parameters, but the state has \[2\]"):
        other = optim.Adam([nn.Parameter(ta.ones(2)), nn.Parameter(ta.ones(2))])
        optimizer.load_state_dict(other.state_dict())
    with pytest.raises(ArgumentError, match="has state"):
        optimizer.load_state_dict(optim.SGD([nn.Parameter(ta.ones(2))]).state_dict())
    with pytest.raises(ShapeError, match="exp_avg of parameter 0"):
        optimizer.load_state_dict(optim.Adam([nn.Parameter(ta.ones(3))], 9.0).state_dict())
    assert optimizer.lr == 0.1


# ---- schedules ----------------------------------------------------------------------------------


def rates(scheduler: optim.Scheduler, steps: int) -> list[float]:
    found = []
    for _ in range(steps):
        found.append(scheduler.optimizer.lr)
        scheduler.step()
    return found


def make_optimizer() -> optim.Optimizer:
    return optim.SGD([nn.Parameter(ta.ones(1))], lr=0.4)


def test_cosine() -> None:
    want = [0.1 + 0.3 * (1 + math.cos(math.pi * min(t, 4) / 4)) / 2 for t in range(7)]
    np.testing.assert_allclose(rates(optim.CosineLR(make_optimizer(), 4, 0.1), 7), want)


def test_warmup() -> None:
    np.testing.assert_allclose(
        rates(optim.WarmupLR(make_optimizer(), 4), 6), [0.1, 0.2, 0.3, 0.4, 0.4, 0.4]
    )
    optimizer = make_optimizer()
    both = optim.WarmupLR(optimizer, 2, after=optim.CosineLR(optimizer, 2))
    np.testing.assert_allclose(rates(both, 5), [0.2, 0.4, 0.4, 0.2, 0], atol=1e-15)


def test_schedules_keep_the_ratio_of_groups_and_can_be_saved() -> None:
    params = [nn.Parameter(ta.ones(1)) for _ in range(2)]
    optimizer = optim.SGD([{"params": params[0]}, {"params": params[1], "lr": 1.0}], lr=0.5)
    scheduler = optim.CosineLR(optimizer, 10)
    for _ in range(5):
        scheduler.step()
    assert scheduler.get_last_lr() == [g.lr for g in optimizer.param_groups]
    np.testing.assert_allclose(scheduler.get_last_lr(), [0.25, 0.5])
    other = optim.CosineLR(optim.SGD([{"params": p} for p in params], lr=0.1), 10)
    other.load_state_dict(scheduler.state_dict())
    assert other.get_last_lr() == scheduler.get_last_lr()
    for wrong in (lambda: optim.CosineLR(optimizer, 0), lambda: optim.WarmupLR(optimizer, 0)):
        with pytest.raises(ArgumentError, match="must be positive"):
            wrong()
    with pytest.raises(ArgumentError, match="same optimizer"):
        optim.WarmupLR(make_optimizer(), 2, after=scheduler)
