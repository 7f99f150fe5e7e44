"""What a compiled function assigns to places in reach, each call assigns, as eager does."""

from __future__ import annotations

import copy
import dataclasses
import random
import types
from collections import deque
from typing import Any

import numpy as np
import pytest

import tinyaot as ta
from tests.agree import build
from tinyaot import nn
from tinyaot.guards import MISS
from tinyaot.tree import leaves

pytestmark = pytest.mark.usefixtures("backend")


def test_a_mode_set_in_a_step_is_set_by_each_call() -> None:
    def make() -> tuple[Any, Any, Any]:
        ta.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))
        opt = ta.optim.SGD(net.parameters(), lr=0.1)

        def train(x: Any) -> Any:
            net.train()
            opt.zero_grad()
            loss = (net(x) ** 2).mean()
            loss.backward()
            opt.step()
            return loss

        def test(x: Any) -> Any:
            net.eval()
            with ta.no_grad():
                return (net(x) ** 2).mean()

        return net, train, test

    net, train, test = make()
    other, other_train, other_test = make()
    fast, fast_test = build(other_train), build(other_test)
    x = ta.randn(2, 4)
    fast_test.explain(x)
    assert other.training  # explain runs nothing
    for call in range(4):
        for a, b in ((train, fast), (test, fast_test)):
            ta.manual_seed(call)
            want = a(x).item()
            ta.manual_seed(call)
            np.testing.assert_allclose(b(x).item(), want, rtol=1e-5)
            assert other.training == net.training
    assert len(fast.records) == 2 and len(fast_test.records) == 1


def test_numbers_that_a_function_sets() -> None:
    box = types.SimpleNamespace(calls=0, shape=None)
    marks = {"last": 0}
    total = 0

    def fn(x: Any) -> Any:
        nonlocal total
        box.calls += 1
        box.shape = x.shape
        box.fresh = "made here"
        marks["last"] = 10 * box.calls
        total += 2
        fn.calls = getattr(fn, "calls", 0) + 1  # type: ignore[attr-defined]
        return x * box.calls

    g = build(fn)
    for call in (1, 2, 3):
        assert g(ta.ones(1)).item() == call
        assert (box.calls, marks["last"], total) == (call, 10 * call, 2 * call)
        assert (box.shape, box.fresh, vars(fn)["calls"]) == ((1,), "made here", call)


class Kept:
    """Places of every kind."""

    def __init__(self) -> None:
        self.list, self.dict, self.set = [1.5], {"a": 1.5, "b": 2.5}, {1}
        self.deque = deque([1, 2])
        self.inner: Any = ([],)
        self.value: Any = None


def _shrink(k: Kept, x: Any) -> None:
    del k.dict["a"]
    k.list.pop()


CANNOT_BE_DONE_AGAIN: dict[str, tuple[Any, str]] = {
    "append": (lambda k, x: k.list.append(1), "changes what it reaches: k.list"),
    "less": (_shrink, "changes what it reaches: k.dict"),
    "order": (lambda k, x: k.dict.update(a=k.dict.pop("a")), "changes what it reaches: k.dict"),
    "member": (lambda k, x: k.set.add(2), "changes what it reaches: k.set"),
    "deque": (lambda k, x: k.deque.append(3), "changes what it reaches: k.deque"),
    "object": (lambda k, x: vars(k).update(value=object()), "changes what it reaches: k.value"),
    "attribute": (lambda k, x: setattr(k, "new", object()), "changes what it reaches: new"),
    "tensor": (lambda k, x: k.list.append(x * 2), r"k.list\[1\] is a traced tensor .* in a list"),
    "tensor in a tuple": (
        lambda k, x: k.inner[0].append((x * 2, 1)),
        r"k.inner\[0\]\[0\]\[0\] is a traced tensor",
    ),
    "tensor in an object": (
        lambda k, x: vars(k).update(value=types.SimpleNamespace(y=x * 2)),
        "k.value.y is a traced tensor",
    ),
    "tensor in a new attribute": (
        lambda k, x: setattr(k, "new", [x * 2]),
        r"new\[0\] is a traced tensor",
    ),
}


@pytest.mark.parametrize("way", CANNOT_BE_DONE_AGAIN)
def test_what_a_call_cannot_do_again_raises_and_leaves_no_mark(way: str) -> None:
    change, message = CANNOT_BE_DONE_AGAIN[way]
    k = Kept()

    def fn(x: Any, wrong: bool) -> Any:
        change(k, x)
        return x.reshape(7) if wrong else x * 2

    before = repr(vars(k)), list(k.deque), id(k.list), id(k.inner[0])
    for _ in range(2):
        with pytest.raises(ta.errors.ShapeError):
            build(fn)(ta.ones(1), True)
        with pytest.raises(ta.errors.TraceError, match=message):
            build(fn)(ta.ones(1), False)
        assert (repr(vars(k)), list(k.deque), id(k.list), id(k.inner[0])) == before


def test_what_python_keeps_in_a_class_may_change() -> None:
    class Plain:
        k = 2.0

    box = Plain()
    g = build(lambda x: x * copy.copy(box).k)
    for _ in range(2):
        assert g(ta.ones(1)).item() == 2 and len(g.records) == 1
    assert "__slotnames__" in vars(Plain)


RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: random.random(), "drew random numbers"),
        (lambda: np.random.rand(), "drew random numbers"),
        (lambda: RNG.normal(), "drew random numbers"),
        (lambda: ta.manual_seed(0) and 1.0, "seeded inside"),
    ],
)
def test_random_numbers_that_each_call_would_repeat(draw: Any, message: str) -> None:
    ta.manual_seed(0)
    with pytest.raises(ta.errors.TraceError, match=message):
        build(lambda x: x * draw())(ta.ones(1))


@pytest.mark.parametrize("name", ["set", "set_from_an_argument", "read", "scheduled", "item"])
def test_a_learning_rate_that_the_step_itself_reads_or_sets(name: str) -> None:
    def make(compiled: bool) -> list[Any]:
        w = nn.Parameter(ta.ones(1))
        opt = ta.optim.SGD([w], lr=0.5)
        schedule = ta.optim.CosineLR(opt, 8)

        def step(x: Any, lr: float) -> Any:
            opt.zero_grad()
            loss = (w * x).sum()
            loss.backward()
            if name == "set_from_an_argument":
                opt.lr = lr
            elif name == "item":
                for group in opt.param_groups:
                    group["lr"] = 0.25 if group["lr"] > 0.3 else 0.75
            opt.step()
            if name == "set":
                opt.lr *= 0.5
            elif name == "scheduled":
                schedule.step()
            return (loss.detach() * opt.lr, opt.lr) if name == "read" else loss.detach()

        run = build(step) if compiled else step
        seen = []
        for call in range(5):
            result = run(ta.ones(1), 0.1 * (call % 2))
            seen += [x.item() if isinstance(x, ta.Tensor) else x for _, x in leaves(result)]
            seen += [w.item(), opt.lr]
            if name in ("read", "set_from_an_argument") and call == 2:
                opt.lr = 0.125
        return seen

    np.testing.assert_allclose(make(True), make(False), rtol=1e-6)


def _forget() -> None:
    for name in ("made", "kept"):
        globals().pop(name, None)
        if name in vars(Board):
            delattr(Board, name)


class Board:
    """A class that functions write on."""


def _on_globals(x: Any) -> Any:
    global made, kept
    try:
        made += 1  # type: ignore[name-defined]
    except NameError:
        made = 1
    kept = x * made  # type: ignore[name-defined]
    return kept + 1


def _on_a_class(x: Any) -> Any:
    Board.made = getattr(Board, "made", 0) + 1  # type: ignore[attr-defined]
    Board.kept = x * Board.made  # type: ignore[attr-defined]
    return Board.kept + 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("fn", [_on_globals, _on_a_class])
def test_globals_and_class_attributes_that_a_function_makes(fn: Any) -> None:
    place = globals() if fn is _on_globals else vars(Board)
    g = build(fn)
    try:
        g.explain(ta.ones(1))
        assert "made" not in place and "kept" not in place
        for call in (1, 2, 3):
            assert g(ta.full((1,), 2.0)).item() == 2 * call + 1
            assert place["made"] == call and place["kept"].item() == 2 * call
        _forget()
        assert g(ta.ones(1)).item() == 2
    finally:
        _forget()


def test_a_global_that_is_set_elsewhere_costs_no_steady_call() -> None:
    def fn(x: Any, first: bool = False) -> Any:
        global made
        if first:
            made = 1
        return x * 2

    g = build(fn)
    for _ in range(3):
        g(ta.ones(1))
    assert g._specializations[0].steady((ta.ones(1),), {}) is not MISS
    try:
        globals()["made"] = 5
        assert g._specializations[0].steady((ta.ones(1),), {}) is MISS
    finally:
        _forget()


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    count: int = 0


def test_a_field_that_only_object_sets() -> None:
    box = Frozen()

    def fn(x: Any) -> Any:
        object.__setattr__(box, "count", box.count + 1)
        return x * box.count

    g = build(fn)
    for call in (1, 2, 3):
        assert g(ta.ones(1)).item() == call == box.count
