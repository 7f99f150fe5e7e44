"""A steady call: what it does, which is little, and that it is what the general way does."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinyaot as ta
from tests.agree import BACKENDS
from tinyaot.backends.measure import Allocations
from tinyaot.errors import GradError, IndexingError
from tinyaot.guards import MISS
from tinyaot.nn import functional as F
from tinyaot.specialization import Specialization, never
from tinyaot.steady import guard_of


@pytest.fixture(autouse=True)
def _usual_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poisoning and tracing again take the general way."""
    monkeypatch.delenv("TINYAOT_POISON", raising=False)
    monkeypatch.delenv("TINYAOT_RETRACE", raising=False)


GAIN = 1.0


class Net(ta.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = ta.nn.Linear(12, 16), ta.nn.Linear(16, 4)
        self.scale = 1.0

    def forward(self, x: Any) -> Any:
        return self.second(F.relu(self.first(x))) * self.scale * GAIN


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
    assert python == [
        *("Compiled.__call__", "make.<locals>.call"),
        *("Tensor.__init__", "History.__init__"),
    ]
    assert set(builtin) <= {"len", "getattr", "empty", "step", "append", "__exit__", "__enter__"}
    assert builtin.count("empty") == builtin.count("step") == 1
    assert foreign == []  # `step` is the foreign one
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


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_no_batch_is_kept(backend: str, joint: bool) -> None:
    """A compiled function remembers what its arguments are like; none but the last at most."""
    trainer = Trainer(backend)
    step = ta.compile(trainer.net, backend=backend) if joint else trainer.step
    batches = []
    for k in range(4):
        x = ta.tensor(trainer.x[k])
        step(*((x,) if joint else (x, ta.tensor(trainer.y[k]))))
        batches.append(weakref.ref(x._data))
    del x
    gc.collect()
    kept = [ref() is not None for ref in batches]
    assert not any(kept[:-1]) and (joint or not kept[-1])


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
def test_what_was_saved_does_not_end_steady_calls(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is moved, and the call goes on; also when it cannot be moved away, nor has to be."""
    trainer = Trainer(backend)
    trainer.train(0), trainer.train(1)
    weight = trainer.net.second.weight
    monkeypatch.setattr(Specialization, "bind", None)  # the general way
    storage = weight._history.get_storage()
    apart = storage.save(np.ones(3, np.float32), None)  # as if the weight had more bytes
    handle = storage.save(weight._data, None)
    before = weight.numpy().copy()
    for k in range(2, 5):
        trainer.train(k)
    np.testing.assert_array_equal(handle.array, before)
    assert apart.storage is storage and not np.array_equal(weight.numpy(), before)


def batch(trainer: Trainer) -> tuple[Any, ...]:
    return ta.tensor(trainer.x[0]), ta.tensor(trainer.y[0])


def check_of(trainer: Trainer, args: tuple[Any, ...]) -> Callable[..., Any]:
    trainer.train(0)
    check = guard_of(trainer.found, args, {}, trainer.step._find(args, {})[1])
    assert check is not None and check(args, {}) is True
    return check


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_steady_call_is_not_made_for_other_arguments(backend: str) -> None:
    trainer = Trainer(backend)
    x, y = batch(trainer)
    check = check_of(trainer, (x, y))
    weight = trainer.net.second.weight.detach()
    columns = ta.tensor(np.stack([trainer.x[0]] * 2, axis=-1))[..., 0].detach()
    assert columns.type == x.type and not columns.is_contiguous()
    others: list[tuple[Any, ...]] = [
        *((x, x), (y, y), (x.float()[:4], y), (x, y.to(ta.int32)), (x,), (x, y, y), (x.T, y)),
        *((x.double(), y), (columns, y), (x.reshape(5, 12), y), (x.numpy(), y), (x, 1)),
        *((ta.nn.Parameter(x.clone(), requires_grad=False), y), (x * x.requires_grad_(), y)),
    ]
    for args in others:
        assert check(args, {}) is MISS
    x.requires_grad_(False)
    assert check((x, y), {}) is True
    assert check((x, y), {"z": 1}) is MISS
    with ta.no_grad():
        assert check((x, y), {}) is MISS
    square = ta.nn.Linear(12, 12)
    step = ta.compile(lambda x: _descend(square, x), backend=backend)
    data = ta.ones(12, 12)
    step(data), step(data)
    found = step._specializations[-1]
    check_shared = guard_of(found, (data,), {}, step._find((data,), {})[1])
    assert check_shared is not None and check_shared((data,), {}) is True
    assert check_shared((square.weight.detach(),), {}) is MISS  # which the step writes
    assert weight.shape == (4, 16)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_steady_call_knows_which_argument_is_a_tensor_of_the_state(backend: str) -> None:
    state = ta.tensor([4.0])
    functions: list[Callable[[Any], Any]] = [
        lambda x: x * state,
        lambda x: x * 3 if x is state else x * 5,
        lambda x: x * 3 if x is state else x * state,
    ]
    for fn in functions:
        for given in (lambda: ta.tensor([1.0]), lambda: state):  # what calls become steady with
            step = ta.compile(fn, backend=backend)
            for x in (given(), given(), given(), state, ta.tensor([2.0]), state):
                assert step(x).item() == fn(x).item()


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_passed_may_be_held_in_reach(backend: str) -> None:
    """A trainer passes its own batch: its calls are steady, as long as it passes that one."""

    holder = ta.nn.Module()
    holder.batch = ta.tensor([4.0])
    step = ta.compile(lambda x: holder.batch * x, backend=backend)
    for _ in range(3):
        assert step(holder.batch).item() == 16.0
    args = (holder.batch,)
    found = step._specializations[-1]
    check = guard_of(found, args, {}, step._find(args, {})[1])
    assert check is not None and check(args, {}) is True
    assert check((ta.tensor([5.0]),), {}) is MISS
    assert step(ta.tensor([5.0])).item() == 20.0
    holder.batch = ta.tensor([3.0])
    assert step(holder.batch).item() == 9.0
    assert step(*args).item() == 12.0


def _descend(layer: Any, x: Any) -> Any:
    loss = layer(x).square().mean()
    (gradient,) = ta.grad(loss, [layer.weight])
    with ta.no_grad():
        layer.weight.sub_(gradient)
    return loss


def _other_attributes(t: Trainer) -> None:
    t.net.__dict__ = {**vars(t.net), "scale": 2.0}


def _group(t: Trainer) -> Any:
    return t.optimizer.param_groups[0]


CHANGES: dict[str, Callable[[Trainer], Any]] = {
    "number": lambda t: setattr(t.net, "scale", 2.0),
    "equal number of another type": lambda t: setattr(t.net, "scale", 1),
    "number behind setattr": lambda t: vars(t.net).update(scale=2.0),
    "another __dict__": _other_attributes,
    "attribute more": lambda t: setattr(t.net, "more", 1.0),
    "attribute less": lambda t: delattr(t.net, "scale"),
    "module": lambda t: setattr(t.net, "second", ta.nn.Linear(16, 4)),
    "mode": lambda t: t.net.eval(),
    "mode of a layer": lambda t: t.net.first.eval(),
    "model": lambda t: setattr(t, "net", Net()),
    "optimizer": lambda t: setattr(t, "optimizer", ta.optim.SGD(t.net.parameters(), lr=0.1)),
    "parameter": lambda t: setattr(t.net.first, "bias", ta.nn.Parameter(ta.zeros(16))),
    "parameter deleted": lambda t: delattr(t.net.first, "weight"),
    "parameter of another dtype": lambda t: t.net.double(),
    "parameter frozen": lambda t: t.net.first.bias.requires_grad_(False),
    "momentum that requires grad": lambda t: t.optimizer.state[t.net.first.bias][
        "momentum_buffer"
    ].requires_grad_(),
    "parameter of the optimizer": lambda t: _group(t).params.__setitem__(0, t.net.first.bias),
    "parameter more of the optimizer": lambda t: _group(t).params.append(ta.zeros(1)),
    "parameter less of the optimizer": lambda t: _group(t).params.pop(),
    "group": lambda t: t.optimizer.param_groups.__setitem__(0, None),
    "state": lambda t: _group(t).state.__setitem__(0, {}),
    "tensor of the state": lambda t: _group(t).state[0].update(momentum_buffer=ta.zeros(16, 12)),
    "tensor more in the state": lambda t: _group(t).state[0].update(more=ta.zeros(1)),
    "tensor less in the state": lambda t: _group(t).state[0].clear(),
    "hyperparameter": lambda t: _group(t).__setitem__("momentum", 0.5),
    "global": lambda t: globals().update(GAIN=2.0),
    "order of a dict": lambda t: t.optimizer.defaults.update(lr=t.optimizer.defaults.pop("lr")),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_steady_call_is_not_made_when_something_changed(
    backend: str, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "GAIN", 1.0)  # and again at the end
    trainer = Trainer(backend)
    args = batch(trainer)
    check = check_of(trainer, args)
    trainer.optimizer.lr = 0.05  # an input
    with ta.no_grad():
        trainer.net.first.weight.mul_(2.0)
    assert check(args, {}) is True
    CHANGES[change](trainer)
    assert check(args, {}) is MISS


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_error_in_a_steady_call(backend: str) -> None:
    trainer = Trainer(backend)
    trainer.train(0), trainer.train(1)
    x, y = batch(trainer)
    for _ in range(2):
        with pytest.raises(IndexingError, match="out of range"):
            trainer.step(x, y + 9)
    assert trainer.train(2).item() > 0


@pytest.mark.skipif("c" not in BACKENDS, reason="no C compiler")
def test_what_c_looks_at_lives_as_long_as_it_looks() -> None:
    trainer = Trainer("c")
    args = batch(trainer)
    check = check_of(trainer, args)
    objects: list[Any] = [trainer.found, trainer.optimizer, trainer.net]
    gone = [weakref.ref(x) for x in objects]
    del trainer, objects
    gc.collect()
    assert check(args, {}) is True
    del check
    gc.collect()
    assert [ref() for ref in gone] == [None] * 3


@pytest.mark.skipif("c" not in BACKENDS, reason="no C compiler")
def test_without_c_looking_at_guards(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a Python that it does not know."""
    a, b = Trainer("c"), Trainer("c")
    losses = [a.train(k).item() for k in range(4)]
    monkeypatch.setattr("tinyaot.backends.cpu.can_watch", lambda: False)
    assert losses == [b.train(k).item() for k in range(4)]
    assert a.found.steady is not never and b.found.steady is not never


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
