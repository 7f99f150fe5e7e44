"""A steady call: what it does, which is little, and that it is what the general way does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinyaot as ta
from tests.agree import BACKENDS
from tinyaot.backends.measure import Allocations
from tinyaot.errors import GradError
from tinyaot.guards import MISS
from tinyaot.nn import functional as F
from tinyaot.specialization import Specialization, never
from tinyaot.steady import guard_of


@pytest.fixture(autouse=True)
def _usual_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poisoning and tracing again take the general way."""
    monkeypatch.delenv("TINYAOT_POISON", raising=False)
    monkeypatch.delenv("TINYAOT_RETRACE", raising=False)


class Net(ta.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = ta.nn.Linear(12, 16), ta.nn.Linear(16, 4)
        self.scale = 1.0

    def forward(self, x: Any) -> Any:
        return self.second(F.relu(self.first(x))) * self.scale


class Trainer:
    """Data of its own, and a step that takes a batch of it."""

    def __init__(self, backend: str | None, dropout: float = 0.0) -> None:
        ta.manual_seed(0)
        self.net = Net()
        self.optimizer = ta.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        rng = np.random.default_rng(1)
        self.x = rng.standard_normal((8, 5, 12)).astype(np.float32)
        self.y = rng.integers(0, 4, (8, 5))

        def step(x: Any, y: Any) -> Any:
            self.optimizer.zero_grad()
            loss = F.cross_entropy(F.dropout(self.net(x), dropout), y)
            loss.backward()
            self.optimizer.step()
            return loss

        self.step: Any = ta.compile(step, backend=backend) if backend else step

    def train(self, number: int) -> ta.Tensor:
        k = number % 8
        loss: ta.Tensor = self.step(ta.tensor(self.x[k]), ta.tensor(self.y[k]))
        return loss

    @property
    def found(self) -> Specialization:
        made: Specialization = self.step._specializations[-1]
        return made


def calls_of(run: Callable[[], Any]) -> tuple[list[str], list[str]]:
    """Names of the Python functions and of the built-in ones that a call enters."""
    python: list[str] = []
    builtin: list[str] = []

    def watch(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            python.append(frame.f_code.co_qualname)
        elif event == "c_call":
            builtin.append(argument.__name__)

    sys.setprofile(watch)
    try:
        run()
    finally:
        sys.setprofile(None)
    return python[1:], builtin[:-1]  # less `run` itself, and setprofile


@pytest.mark.skipif("c" not in BACKENDS, reason="no C compiler")
def test_a_steady_step_on_c_is_one_foreign_call_and_no_numpy_computation() -> None:
    trainer = Trainer("c")
    trainer.train(0)
    found, foreign = trainer.found, []
    binding = found.executable.entries["step"]  # type: ignore[attr-defined]
    function = binding.function
    binding.function = lambda address: foreign.append(address) or function(address)
    found.steady, found.steady_tries = never, 0  # made again, with the counting one
    trainer.train(1), trainer.train(2)
    x, y = ta.tensor(trainer.x[2]), ta.tensor(trainer.y[2])
    losses = []

    def run() -> None:
        losses.append(trainer.step(x, y))

    with Allocations() as allocations:
        run()
    assert allocations.peak == 4  # bytes: the loss
    foreign.clear()
    python, builtin = calls_of(run)
    assert foreign == [binding.address]
    counted = ["<lambda>" if "<lambda>" in name else name for name in python]
    assert counted == [
        *("Compiled.__call__", "make.<locals>.call", "<lambda>"),
        *("Tensor.__init__", "History.__init__"),
    ]
    assert set(builtin) <= {"len", "getattr", "id", "empty", "append", "__exit__", "__enter__"}
    assert builtin.count("empty") == 1
    assert losses[0].item() > losses[1].item() > 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_steady_calls_train_as_eager_does(backend: str) -> None:
    compiled, eager = Trainer(backend, dropout=0.3), Trainer(None, dropout=0.3)
    losses: list[list[float]] = []
    for trainer in (compiled, eager):
        ta.manual_seed(7)
        found = []
        for number in range(12):
            if number == 6:
                trainer.optimizer.lr = 0.02
            found.append(trainer.train(number).item())
        losses.append(found)
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert compiled.found.steady is not never and len(compiled.step.records) == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_results_of_steady_calls_are_their_own(backend: str) -> None:
    trainer = Trainer(backend)
    trainer.train(0)
    losses = [trainer.train(k) for k in range(4)]
    values = [t.item() for t in losses]
    trainer.train(5)
    assert [t.item() for t in losses] == values and len(set(values)) == 4
    for loss in losses:
        assert loss.requires_grad and not loss.is_leaf
        with pytest.raises(GradError):
            loss.backward()
    with pytest.raises(GradError, match="keep_grads"):
        _ = trainer.net.first.weight.grad


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_steady_call_moves_what_was_saved_before_it_writes(backend: str) -> None:
    trainer = Trainer(backend)
    trainer.train(0), trainer.train(1)
    weight = trainer.net.second.weight
    before, x = weight.numpy().copy(), ta.ones(2, 4, requires_grad=True)
    out = (x @ weight.detach()).sum()
    trainer.train(2)
    out.backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), np.tile(before.sum(1), (2, 1)), rtol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_steady_call_is_not_made_when_something_changed(backend: str) -> None:
    trainer = Trainer(backend)
    trainer.train(0)
    x, y = ta.tensor(trainer.x[0]), ta.tensor(trainer.y[0])
    check = guard_of(trainer.found, (x, y), {}, trainer.step._find((x, y), {})[1])
    assert check is not None
    assert check((x, y), {}) is True
    for args in ((x, x), (y, y), (x.float()[:4], y), (x, y.to(ta.int32)), (x,), (x.T, y)):
        assert check(args, {}) is MISS
    assert check((x, y), {"z": 1}) is MISS
    assert check((x.detach().requires_grad_(), y), {}) is MISS
    with ta.no_grad():
        assert check((x, y), {}) is MISS
    trainer.net.scale = 2.0
    assert check((x, y), {}) is MISS
    trainer.net.scale = 1.0
    del trainer.net.first.weight
    assert check((x, y), {}) is MISS


@pytest.mark.parametrize("backend", BACKENDS)
def test_general_and_steady_calls_take_turns(backend: str) -> None:
    """What one bound, the other does not take for its own."""
    a, b = Trainer(backend), Trainer(backend)
    for trainer, general in ((a, True), (b, False)):
        for k in range(6):
            if k % 3 == 2 and general:
                trainer.found.steady, trainer.found.steady_tries = never, 99
            trainer.train(k)
            if general:
                trainer.found.steady_tries = 0
    for p, q in zip(a.net.parameters(), b.net.parameters(), strict=True):
        np.testing.assert_array_equal(p.numpy(), q.numpy())
