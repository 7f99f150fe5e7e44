"""Losses against closed formulas, their gradients against differences."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import special

import tinyaot as ta
from tests.numeric import check_gradients, close, numbers, ops_of
from tinyaot.errors import ArgumentError, DTypeError, IndexingError, ShapeError
from tinyaot.nn import functional as F


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    return special.softmax(x, axis=axis)


def nll(log_p: np.ndarray, y: np.ndarray, w: np.ndarray, ignore: int = -100) -> tuple[Any, Any]:
    """Losses and weights of each row, zero where ignored; classes on axis 1."""
    rows = np.moveaxis(log_p, 1, -1).reshape(-1, log_p.shape[1])
    flat = y.reshape(-1)
    losses, weights = np.zeros(flat.size), np.zeros(flat.size)
    for i, target in enumerate(flat):
        if target != ignore:
            losses[i], weights[i] = -w[target] * rows[i, target], w[target]
    return losses.reshape(y.shape), weights.reshape(y.shape)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("tail", [(), (2,), (2, 3)])
def test_cross_entropy(tail: tuple[int, ...], weighted: bool) -> None:
    rng = np.random.default_rng(0)
    x, y = 3 * numbers(5, 4, *tail), rng.integers(0, 4, (5, *tail))
    y.flat[1] = -100
    w = rng.uniform(0.5, 2, 4) if weighted else np.ones(4)
    weight = ta.tensor(w) if weighted else None
    losses, weights = nll(special.log_softmax(x, axis=1), y, w)
    target = ta.tensor(y)
    for reduction, want in (
        ("none", losses),
        ("sum", losses.sum()),
        ("mean", losses.sum() / weights.sum()),
    ):
        close(F.cross_entropy(ta.tensor(x), target, weight, reduction=reduction), want)
        log_p = ta.tensor(special.log_softmax(x, axis=1))
        close(F.nll_loss(log_p, target, weight, reduction=reduction), want)
    check_gradients(lambda t: F.cross_entropy(t, target, weight), x)
    check_gradients(lambda t: F.nll_loss(t, target, weight, reduction="none"), x)


@pytest.mark.parametrize("weighted", [False, True])
def test_label_smoothing(weighted: bool) -> None:
    x, y, s = 3 * numbers(5, 4), np.array([0, 3, 1, -100, 2]), 0.2
    w = np.array([0.5, 1.0, 2.0, 1.5]) if weighted else np.ones(4)
    weight = ta.tensor(w) if weighted else None
    log_p = special.log_softmax(x, axis=1)
    losses, weights = nll(log_p, y, w)
    spread = np.where(y == -100, 0, -(log_p * w).sum(1))
    both = (1 - s) * losses + s / 4 * spread
    options: dict[str, Any] = {"weight": weight, "label_smoothing": s}
    close(F.cross_entropy(ta.tensor(x), ta.tensor(y), reduction="none", **options), both)
    got = F.cross_entropy(ta.tensor(x), ta.tensor(y), **options)
    close(got, both.sum() / weights.sum())
    check_gradients(lambda t: F.cross_entropy(t, ta.tensor(y), **options), x)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_with_probabilities(smoothing: float) -> None:
    x, p, w = numbers(5, 4, 2), softmax(numbers(5, 4, 2, seed=1), 1), np.array([1.0, 2, 3, 4])
    q = p * (1 - smoothing) + smoothing / 4
    terms = -(special.log_softmax(x, axis=1) * q * w[:, None]).sum(1)

    def loss(t: Any, u: Any) -> Any:
        return F.cross_entropy(t, u, ta.tensor(w), label_smoothing=smoothing)

    close(loss(ta.tensor(x), ta.tensor(p)), terms.mean())
    check_gradients(loss, x, p)


def test_cross_entropy_of_one_row() -> None:
    x = numbers(4)
    got = F.cross_entropy(ta.tensor(x), ta.tensor(2))
    assert got.shape == ()
    close(got, -special.log_softmax(x)[2])


def test_cross_entropy_keeps_its_range() -> None:
    x = ta.tensor(np.array([[1e4, 0.0, -1e4], [-np.inf, 3.0, 3.0]]), requires_grad=True)
    loss = F.cross_entropy(x, ta.tensor([2, 1]), reduction="none")
    close(loss, [2e4, np.log(2)])
    loss.sum().backward()
    close(x.grad, [[1, 0, -1], [0, -0.5, 0.5]])


def test_cross_entropy_of_nothing_that_counts_is_nan() -> None:
    assert math.isnan(F.cross_entropy(ta.zeros(2, 3), ta.tensor([-100, -100])).item())
    assert F.cross_entropy(ta.zeros(2, 3), ta.tensor([-100, -100]), reduction="sum").item() == 0


def test_cross_entropy_errors() -> None:
    x = ta.zeros(2, 3)
    for wrong in ([0, 3], [-1, 0]):
        with pytest.raises(IndexingError, match=r"target (3|-1) is out of range.*0 \.\. 2"):
            F.cross_entropy(x, ta.tensor(wrong))
    F.cross_entropy(x, ta.tensor([0, 3]), ignore_index=3)
    with pytest.raises(ShapeError, match=r"\(2, 3\) needs targets of shape \(2,\)"):
        F.cross_entropy(x, ta.tensor([[0, 1]]))
    with pytest.raises(DTypeError, match="integers"):
        F.cross_entropy(x, ta.tensor([True, False]))
    with pytest.raises(ShapeError, match="one for each class"):
        F.cross_entropy(x, ta.tensor([0, 1]), ta.ones(2))
    with pytest.raises(ArgumentError, match="'none', 'sum' or 'mean'"):
        F.cross_entropy(x, ta.tensor([0, 1]), reduction="avg")


def test_traced_loss_of_a_wrong_target_raises() -> None:
    x, y = ta.zeros(2, 3), ta.tensor([0, 1])
    program = ta.trace(lambda a, b: F.cross_entropy(a, b), x, y)
    (good,) = ta.interpret(program, x.numpy(), y.numpy())
    close(good, np.log(3), rtol=1e-6)
    with pytest.raises(IndexingError, match=r"cross_entropy: target 3 .* 0 \.\. 2"):
        ta.interpret(program, x.numpy(), np.array([0, 3]))


def test_mse_loss() -> None:
    x, y = numbers(3, 4), numbers(3, 4, seed=1)
    close(F.mse_loss(ta.tensor(x), ta.tensor(y)), ((x - y) ** 2).mean())
    close(F.mse_loss(ta.tensor(x), ta.tensor(y), reduction="none"), (x - y) ** 2)
    check_gradients(F.mse_loss, x, y)
    with pytest.warns(UserWarning, match=r"\(3, 4\) and target \(4,\)"):
        F.mse_loss(ta.tensor(x), ta.tensor(y[0]))


def test_binary_cross_entropy_with_logits() -> None:
    x, y = 3 * numbers(3, 4), np.random.default_rng(1).uniform(0, 1, (3, 4))
    w, pos = np.array([1.0, 2, 3, 4]), np.array([0.5, 2, 1, 3])
    log_p, log_q = special.log_expit(x), special.log_expit(-x)
    name = F.binary_cross_entropy_with_logits
    close(name(ta.tensor(x), ta.tensor(y)), -(y * log_p + (1 - y) * log_q).mean())
    full = -w * (pos * y * log_p + (1 - y) * log_q)

    def weighted(t: Any, u: Any) -> Any:
        return name(t, u, ta.tensor(w), pos_weight=ta.tensor(pos), reduction="none")

    close(weighted(ta.tensor(x), ta.tensor(y)), full)
    check_gradients(weighted, x, y)
    with pytest.raises(ShapeError, match=r"\(4,\) must have input's shape \(3, 4\)"):
        name(ta.tensor(x), ta.tensor(y[0]))


def test_binary_cross_entropy_at_its_corners() -> None:
    x = ta.tensor(np.array([-1e3, 0.0, 1e3]), requires_grad=True)
    y = ta.tensor(np.array([1.0, 1.0, 0.0]))
    loss = F.binary_cross_entropy_with_logits(x, y, reduction="none")
    close(loss, [1e3, np.log(2), 1e3])
    loss.sum().backward()
    close(x.grad, [-1, -0.5, 1])


def test_cross_entropy_gathers_nothing() -> None:
    ops = ops_of(lambda x, y: F.cross_entropy(x, y), ta.zeros(4, 3), ta.tensor([0, 1, 2, 0]))
    assert "gather" not in ops and "take_along" not in ops
    assert ops.count("iota") == 1
