"""Seconds of a call and of its kernels: measured without a trace, for every kernel."""

from __future__ import annotations

import numpy as np
import pytest

import tinyaot as ta
from tests.agree import BACKENDS
from tinyaot.backends.clock import c_with_laps, python_with_laps
from tinyaot.codegen.source import Call, Function, Source, Step
from tinyaot.nn import functional as F
from tinyaot.record import Record


class Model:
    """A step with state of every kind: parameters, momentum, and a counter in Python."""

    def __init__(self) -> None:
        ta.manual_seed(3)
        self.layer = ta.nn.Linear(40, 40)
        self.optimizer = ta.optim.SGD(self.layer.parameters(), lr=0.1, momentum=0.9)
        self.x = ta.randn(32, 40)

    def step(self) -> ta.Tensor:
        self.optimizer.zero_grad()
        loss = F.dropout(self.layer(self.x).tanh()).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_is_timed_and_nothing_changes(backend: str) -> None:
    timed, other = Model(), Model()
    before = other.layer.weight.numpy().copy()
    step = ta.compile(timed.step, backend=backend)
    record = step.explain()
    assert record.times == {} and all(k.seconds is None for k in record.kernels)
    assert record.time() is record
    besides = {"guards", "overhead"} if backend == "c" else {"guards"}
    assert set(record.times) == {"eager", "compiled"} | besides
    assert min(record.times.values()) > 0
    seconds = [k.seconds for k in record.kernels]
    assert all(s is not None and 0 <= s < 1 for s in seconds)
    assert sum(s for s in seconds if s) > 0
    assert np.array_equal(timed.layer.weight.numpy(), before)
    ta.manual_seed(5)
    a = [step().item() for _ in range(3)]
    ta.manual_seed(5)
    b = [other.step().item() for _ in range(3)]
    np.testing.assert_allclose(a, b, rtol=1e-5)  # dropout's masks included


@pytest.mark.parametrize("backend", BACKENDS)
def test_both_halves_of_a_function_are_timed(backend: str) -> None:
    x = ta.ones(64, 64, requires_grad=True)
    record = ta.compile(lambda x: (x.exp() * x).sum(), backend=backend).explain(x)
    record.time(x)
    program = record.stages[-1].program
    for phase in ("forward", "backward"):
        found = [
            k.seconds
            for k in record.kernels
            if any(program.computed[i].phase == phase for i in k.members)
        ]
        assert found and all(s is not None for s in found) and max(s or 0 for s in found) > 0
    assert x.grad is None
    again = Record.from_json(record.to_json())
    assert again.times == record.times and again.kernels == record.kernels
    with pytest.raises(RuntimeError, match="not attached"):
        again.time(x)


@pytest.mark.parametrize("backend", BACKENDS)
def test_buffers_in_use_together_do_not_overlap(backend: str) -> None:
    model = Model()
    record = ta.compile(model.step, backend=backend).explain()
    arena = [b for b in record.buffers if b.space == "arena"]
    size = record.memory["arena"]
    assert arena and size is not None and all(b.offset + b.nbytes <= size for b in arena)
    last = len(record.kernels if record.clock == "kernel" else record.stages[-1].program.nodes)
    for i, a in enumerate(arena):
        assert 0 <= a.first <= a.last <= last
        for b in arena[:i]:
            together = a.first <= b.last and b.first <= a.last
            apart = a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset
            assert apart or not together


def test_clocks_stand_between_kernels() -> None:
    python = (
        "def step(x):\n    y = empty(3)\n    add(x, x, out=y)\n    neg(y, out=y)\n    return [y]\n"
    )
    assert python_with_laps(python, ["add(x, x, out=y)", "neg(y, out=y)"]).splitlines() == [
        "def step(x):",
        "    y = empty(3)",
        "    laps.clear()",
        "    lap()",
        "    add(x, x, out=y)",
        "    lap()",
        "    neg(y, out=y)",
        "    lap()",
        "    return [y]",
    ]
    regions = tuple(Function(name, "", "", frozenset()) for name in ("one", "two"))
    levels = ("  case 0:", Call("one"), "  case 1:", Call("two"))
    c = Source("", "", {}, (Step("step", regions, levels, ""),))
    text = c_with_laps(c, shares=4).text()
    assert "tinyaot_laps[4][2]" in text and text.count("tinyaot_clock();") == 4
    first, second = text.index("  one(f->b"), text.index("  two(f->b")
    assert text.index("[share][0] +=") < text.index("case 1") < text.index("[share][1] -=")
    assert text.index("[share][0] -=") < first < second < text.index("[share][1] +=")
