"""Measuring a call: the figures, and that it leaves no trace."""

from __future__ import annotations

import types

import numpy as np
import pytest

import tinyaot as ta
from tests.agree import BACKENDS
from tinyaot.models import BUILTIN


def test_a_step_is_measured_and_undone() -> None:
    weight = ta.ones(50, requires_grad=True)
    optimizer = ta.optim.SGD([weight], lr=0.5, momentum=0.9)

    def step(x: ta.Tensor) -> ta.Tensor:
        optimizer.zero_grad()
        loss = (weight * ta.rand(50) * x).sum()
        loss.backward()
        optimizer.step()
        return loss

    x = ta.ones(50)
    compiled = ta.compile(step)
    compiled(x)
    before, state = weight.numpy().copy(), ta.random.generator.get_state()
    memory = compiled.records[-1].measure(x).memory
    assert np.array_equal(weight.numpy(), before)
    assert ta.random.generator.get_state() == state
    assert memory["measured_peak"] and memory["eager_peak"]
    compiled(x)
    assert not np.array_equal(weight.numpy(), before)
    assert len(compiled.records) == 1  # measuring broke no guard


def test_what_a_call_assigns_is_put_back() -> None:
    box = types.SimpleNamespace(calls=3, mode="test")

    def step(x: ta.Tensor, *, scale: float) -> ta.Tensor:
        box.calls += 1
        box.mode = "train"
        box.last = x * scale
        box.size = x.shape
        return box.last.sum()

    x, compiled = ta.ones(5), ta.compile(step)
    record = compiled.explain(x, scale=2.0).measure(x, scale=2.0).time(x, scale=2.0)
    assert record.memory["measured_peak"] and record.times["compiled"] > 0
    assert vars(box) == {"calls": 3, "mode": "test"}
    assert compiled(x, scale=2.0).item() == 10 and len(compiled.records) == 1
    assert (box.calls, box.mode, box.size, box.last.tolist()) == (4, "train", (5,), [2.0] * 5)


def test_a_function_is_measured_with_its_backward() -> None:
    def f(x: ta.Tensor) -> ta.Tensor:
        x *= 2
        return (x * x).sum()

    leaf = ta.ones(1000, requires_grad=True)
    x = leaf.clone()
    memory = ta.compile(f).explain(x).measure(x).memory
    assert memory["measured_peak"] == memory["planned_peak"]
    assert memory["eager_peak"] is not None and memory["eager_peak"] >= 8000
    assert float(x.sum().item()) == 1000.0 and leaf.grad is None


def test_no_gradient_no_backward() -> None:
    x = ta.ones(1000)
    memory = ta.compile(lambda x: (x + 1).exp()).explain(x).measure(x).memory
    assert memory["eager_peak"] == 8000  # the sum and its exponential
    assert memory["measured_peak"] == 4000  # in place


@pytest.mark.skipif("c" not in BACKENDS, reason="no C compiler")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_small_model_takes_less_on_c_than_eagerly(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads' parts of a sum, and what products pack into, are memory, too."""
    monkeypatch.setenv("TINYAOT_THREADS", str(threads))
    training = BUILTIN["mlp"](0)
    record = ta.compile(training.step, backend="c").explain(*training.batch(0))
    memory = record.measure(*training.batch(0)).memory
    measured, planned, eager = (memory[f"{x}_peak"] for x in ("measured", "planned", "eager"))
    assert measured is not None and planned is not None and eager is not None
    assert measured == planned < eager
