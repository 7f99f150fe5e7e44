"""State between two calls: whatever a function reaches and somebody changes, no call is stale.

Each case makes a function and a way to change what it reaches. The compiled function is called,
the state is changed, and it is called again: both times it has to give what eager gives.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import enum
import functools
import gc
import logging
import pathlib
import random
import sys
import types
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest

import tinyaot as ta
import tinyaot.nn.functional as F
from tests.agree import build
from tinyaot import nn
from tinyaot.errors import GradError, MutationError
from tinyaot.guards import MISS

pytestmark = pytest.mark.usefixtures("backend")

X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
Case = tuple[Callable[[Any], Any], Callable[[], Any]]
CASES: dict[str, Callable[[], Case]] = {}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    CASES[make.__name__] = make
    return make


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 3)
        self.layers = nn.ModuleList([nn.Linear(3, 3)])
        self.dropout = nn.Dropout(0.5)
        self.scale = 2.0

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return self.dropout(x) * self.scale


@case
def parameter_written_in_place() -> Case:
    net = Net().eval()

    def change() -> None:
        with ta.no_grad():
            net.first.weight.mul_(2.0)

    return net, change


@case
def parameter_rebound() -> Case:
    net = Net().eval()
    return net, lambda: setattr(net.first, "weight", nn.Parameter(ta.ones(3, 4)))


@case
def submodule_rebound() -> Case:
    net = Net().eval()
    return net, lambda: setattr(net, "first", nn.Linear(4, 3))


@case
def list_of_layers_grown() -> Case:
    net = Net().eval()
    return net, lambda: net.layers.append(nn.Linear(3, 3))


@case
def layer_replaced_in_a_list() -> Case:
    net = Net().eval()

    def change() -> None:
        net.layers[0] = nn.Linear(3, 3)

    return net, change


@case
def train_to_eval() -> Case:
    net = Net()
    return net, lambda: net.eval()


@case
def number_of_a_module() -> Case:
    net = Net().eval()
    return net, lambda: setattr(net, "scale", 3.0)


@case
def dropout_probability() -> Case:
    net = Net()
    return net, lambda: setattr(net.dropout, "p", 0.9)


@case
def parameter_of_another_dtype() -> Case:
    net = Net().eval()
    x = ta.ones(2, 4, dtype=ta.float64)

    def fn(_: Any) -> Any:
        return net(x if net.first.weight.dtype is ta.float64 else x.float())

    return fn, lambda: net.double()


@case
def parameter_stops_requiring_grad() -> Case:
    net = Net().eval()
    return net, lambda: net.first.weight.requires_grad_(False)


@case
def captured_tensor_written() -> Case:
    w = ta.ones(4)
    return lambda x: x * w, lambda: w.fill_(5.0)


@case
def captured_tensor_rebound() -> Case:
    w = ta.ones(4)

    def fn(x: Any) -> Any:
        return x * w

    def change() -> None:
        nonlocal w
        w = ta.full((4,), 7.0)

    return fn, change


@case
def captured_tensor_stops_requiring_grad() -> Case:
    w = ta.ones(4, requires_grad=True)
    return lambda x: x * w, lambda: w.requires_grad_(False)


@case
def one_of_two_places_rebound() -> Case:
    w = ta.ones(4)
    box = types.SimpleNamespace(a=w, b=w)
    return lambda x: x * box.a + box.b, lambda: setattr(box, "b", ta.zeros(4))


@case
def gradient_that_was_none() -> Case:
    w = ta.ones(4, requires_grad=True)

    def fn(x: Any) -> Any:
        return x * 2 if w.grad is None else x + w.grad

    return fn, lambda: (w * 3).sum().backward()


@case
def captured_tensor_of_another_shape() -> Case:
    w = ta.ones(4)

    def fn(x: Any) -> Any:
        return x * w

    def change() -> None:
        nonlocal w
        w = ta.full((2, 4), 7.0)

    return fn, change


@case
def captured_number() -> Case:
    n = 2

    def fn(x: Any) -> Any:
        return x * n

    def change() -> None:
        nonlocal n
        n = 3

    return fn, change


@case
def captured_number_of_another_type() -> Case:
    n: Any = 1

    def fn(x: Any) -> Any:
        return ta.tensor([1, 2]) * n

    def change() -> None:
        nonlocal n
        n = 1.0

    return fn, change


@case
def negative_zero() -> Case:
    n = 0.0

    def fn(x: Any) -> Any:
        return 1.0 / (x * 0 + n)

    def change() -> None:
        nonlocal n
        n = -0.0

    return fn, change


GLOBAL = 2.0
GLOBAL_TENSOR = ta.ones(4)
MODULE: Any = None


def _use_global(x: Any) -> Any:
    return x * GLOBAL + GLOBAL_TENSOR


@case
def global_number() -> Case:
    globals()["GLOBAL"] = 2.0
    return lambda x: _use_global(x), lambda: globals().__setitem__("GLOBAL", 4.0)


@case
def global_tensor_rebound() -> Case:
    globals()["GLOBAL_TENSOR"] = ta.ones(4)
    return _use_global, lambda: globals().__setitem__("GLOBAL_TENSOR", ta.zeros(4))


def _helper(x: Any) -> Any:
    return x + 1


@case
def helper_function_replaced() -> Case:
    box = types.SimpleNamespace(helper=_helper)
    return lambda x: box.helper(x), lambda: setattr(box, "helper", lambda x: x - 1)


@case
def value_in_a_dict() -> Case:
    config = {"k": 2.0, "w": ta.ones(4)}
    return lambda x: x * config["k"] + config["w"], lambda: config.update(k=9.0)


@case
def tensor_in_a_dict() -> Case:
    config = {"k": 2.0, "w": ta.ones(4)}
    return lambda x: x * config["k"] + config["w"], lambda: config.update(w=ta.zeros(4))


@case
def new_key_in_a_dict() -> Case:
    config = {"a": ta.ones(4)}
    return lambda x: x + sum(config.values()), lambda: config.update(b=ta.ones(4))


@case
def element_of_a_list() -> Case:
    weights = [1.0, 2.0]
    return lambda x: x * weights[0] + weights[1], lambda: weights.__setitem__(1, 5.0)


@case
def longer_list() -> Case:
    weights = [1.0, 2.0]
    return lambda x: x * sum(weights), lambda: weights.append(4.0)


@dataclasses.dataclass
class Config:
    gain: float = 2.0
    steps: int = 2


@case
def field_of_a_dataclass() -> Case:
    config = Config()

    def fn(x: Any) -> Any:
        for _ in range(config.steps):
            x = x * config.gain
        return x

    return fn, lambda: setattr(config, "steps", 3)


class Mode(enum.Enum):
    UP = 1
    DOWN = 2


@case
def enum_member() -> Case:
    box = types.SimpleNamespace(mode=Mode.UP)
    return (
        lambda x: x + 1 if box.mode is Mode.UP else x - 1,
        lambda: setattr(box, "mode", Mode.DOWN),
    )


class Method:
    factor = 2.0

    def __init__(self) -> None:
        self.w = ta.ones(4)

    def run(self, x: Any) -> Any:
        return x * self.w * self.factor


@case
def bound_method() -> Case:
    obj = Method()
    return obj.run, lambda: setattr(obj, "w", ta.full((4,), 3.0))


@case
def class_attribute() -> Case:
    obj = Method()
    Method.factor = 2.0
    return obj.run, lambda: setattr(Method, "factor", 5.0)


@case
def default_argument() -> Case:
    def fn(x: Any, k: float = 2.0) -> Any:
        return x * k

    return fn, lambda: setattr(fn, "__defaults__", (3.0,))


@case
def default_by_keyword() -> Case:
    def fn(x: Any, *, k: float = 2.0) -> Any:
        return x * k

    return fn, lambda: setattr(fn, "__kwdefaults__", {"k": 3.0})


@case
def global_of_a_function_inside() -> Case:
    globals()["GLOBAL"] = 2.0
    return (
        lambda x: sum(map(lambda y: y * GLOBAL, [x])),  # noqa: C417
        lambda: globals().__setitem__("GLOBAL", 4.0),
    )


@case
def captured_numpy_array() -> Case:
    w = np.ones(4, np.float32)
    return lambda x: x * w, lambda: w.fill(3.0)


@case
def captured_numpy_array_rebound() -> Case:
    box = types.SimpleNamespace(w=np.ones(4, np.float32))
    return lambda x: x * box.w, lambda: setattr(box, "w", np.full(4, 3.0, np.float32))


@case
def tensor_held_twice_and_given_up_once() -> Case:
    w = ta.full((4,), 2.0)
    box = types.SimpleNamespace(a=w, b=w)
    return lambda x: x * 1 if box.a is None else x * box.a * box.b, lambda: setattr(box, "a", None)


@case
def attribute_of_a_function() -> Case:
    def fn(x: Any) -> Any:
        return x * fn.k  # type: ignore[attr-defined]

    fn.k = 2.0  # type: ignore[attr-defined]
    return fn, lambda: setattr(fn, "k", 3.0)


class Shared:
    sizes: ClassVar[list[int]] = [1, 2]
    weight = ta.ones(4)
    pair = (1.0, 2.0)


@case
def list_of_a_class() -> Case:
    Shared.sizes = [1, 2]
    return lambda x: x * Shared.sizes[0], lambda: Shared.sizes.__setitem__(0, 7)


@case
def method_replaced() -> Case:
    class Scale:
        def apply(self, x: Any) -> Any:
            return self.inner(x)

        def inner(self, x: Any) -> Any:
            return x * 2.0

    box = Scale()
    return box.apply, lambda: setattr(Scale, "inner", lambda self, x: x * 3.0)


@case
def static_method_and_property_replaced() -> Case:
    class Scale:
        @staticmethod
        def twice(x: Any) -> Any:
            return x * 2.0

        @property
        def gain(self) -> float:
            return 2.0

    box = Scale()

    def change() -> None:
        Scale.twice = staticmethod(lambda x: x * 3.0)  # type: ignore[method-assign]
        Scale.gain = property(lambda self: 5.0)  # type: ignore[assignment, method-assign]

    return lambda x: box.twice(x) * box.gain, change


@case
def code_of_a_function_replaced() -> Case:
    def helper(x: Any) -> Any:
        return x * 2.0

    def other(x: Any) -> Any:
        return x * 3.0

    def change() -> None:  # as tools do that load an edited module again
        helper.__code__ = other.__code__

    return lambda x: helper(x), change


@case
def code_of_a_decorated_function_replaced() -> Case:
    def doubled(fn: Any) -> Any:
        @functools.wraps(fn)
        def wrapper(x: Any) -> Any:
            return fn(x) * 2.0

        return wrapper

    def tripled(fn: Any) -> Any:
        def wrapper(x: Any) -> Any:
            return fn(x) * 3.0

        return wrapper

    helper = doubled(lambda x: x + 1)
    return lambda x: helper(x), lambda: setattr(helper, "__code__", tripled(None).__code__)


@case
def code_of_a_function_in_a_dict_replaced() -> Case:
    def twice(x: Any) -> Any:
        return x * 2.0

    def thrice(x: Any) -> Any:
        return x * 3.0

    table = {"apply": twice}
    return lambda x: table["apply"](x), lambda: setattr(twice, "__code__", thrice.__code__)


@case
def method_that_a_function_of_another_name_calls() -> Case:
    def helper(self: Any, x: Any) -> Any:
        return self.inner(x)

    class Scale:
        apply = helper

        def inner(self, x: Any) -> Any:
            return x * 2.0

    box = Scale()
    return lambda x: box.apply(x), lambda: setattr(Scale, "inner", lambda self, x: x * 3.0)


@case
def method_that_is_looked_up_replaced() -> Case:
    class Scale:
        def times_2(self, x: Any) -> Any:
            return x * 2.0

    box, two = Scale(), 2
    return (
        lambda x: getattr(box, f"times_{two}")(x),
        lambda: setattr(Scale, "times_2", lambda self, x: x * 3.0),
    )


@case
def method_that_python_calls_replaced() -> Case:
    class Scale:
        def __call__(self, x: Any) -> Any:
            return x * 2.0

    box = Scale()
    return lambda x: box(x), lambda: setattr(Scale, "__call__", lambda self, x: x * 3.0)


@case
def method_that_our_code_calls_replaced() -> Case:
    class Plain(ta.optim.Optimizer):
        def update(self, param: Any, grad: Any, state: Any, group: Any, lr: Any) -> None:
            ta.optim.optimizer.assign(param, param - grad)

    w = nn.Parameter(ta.ones(4))
    optimizer = Plain([w], {"lr": 0.1})

    def step(x: Any) -> Any:
        with ta.no_grad():
            w.fill_(1.0)
        optimizer.zero_grad()
        (x * w).sum().backward()
        optimizer.step()
        return w.detach() * 1.0

    def change() -> None:
        def update(self: Any, param: Any, grad: Any, state: Any, group: Any, lr: Any) -> None:
            ta.optim.optimizer.assign(param, param + grad)

        Plain.update = update  # type: ignore[method-assign]

    return step, change


@case
def constructor_replaced() -> Case:
    class Scale:
        def __init__(self) -> None:
            self.k = 2.0

    def init(self: Any) -> None:
        self.k = 3.0

    return lambda x: x * Scale().k, lambda: setattr(Scale, "__init__", init)


def _set_global() -> None:
    globals()["GLOBAL"] = 4.0


@case
def global_of_a_cached_property() -> Case:
    globals()["GLOBAL"] = 2.0

    class Scale:
        @functools.cached_property
        def gain(self) -> float:
            return GLOBAL

    return lambda x: x * Scale().gain, _set_global


@case
def global_of_a_setter() -> Case:
    globals()["GLOBAL"] = 2.0

    class Scale:
        @property
        def gain(self) -> float:
            return self.k

        @gain.setter
        def gain(self, value: float) -> None:
            self.k = value * GLOBAL

    def fn(x: Any) -> Any:
        box = Scale()
        box.gain = 3.0
        return x * box.gain

    return fn, _set_global


@case
def global_of_a_compiled_method_called_by_another() -> Case:
    globals()["GLOBAL"] = 2.0

    class Scale:
        @ta.compile
        def inner(self, x: Any) -> Any:
            return x * GLOBAL

        def apply(self, x: Any) -> Any:
            return self.inner(x) + 1

    return Scale().apply, _set_global


@case
def tensor_of_a_descriptor() -> Case:
    class Scale:
        def __init__(self) -> None:
            self.weight = ta.ones(4)

        def __get__(self, instance: Any, owner: type) -> Any:
            return self.weight

    scale = Scale()

    class Scaled:
        weight = scale

    box = Scaled()
    return lambda x: x * box.weight, lambda: setattr(scale, "weight", ta.full((4,), 5.0))


def _module(**names: Any) -> types.ModuleType:
    made = types.ModuleType("settings")
    made.__file__ = __file__
    vars(made).update(names)
    return made


@case
def number_of_a_module_in_a_module() -> Case:
    globals()["MODULE"] = _module(inner=_module(GAIN=2.0))
    return lambda x: x * MODULE.inner.GAIN, lambda: setattr(MODULE.inner, "GAIN", 3.0)


@case
def another_module_of_the_name() -> Case:
    globals()["MODULE"] = _module(GAIN=2.0)
    other = _module(GAIN=3.0)
    return lambda x: x * MODULE.GAIN, lambda: globals().__setitem__("MODULE", other)


@case
def another_class_of_an_object() -> Case:
    class Twice:
        def apply(self, x: Any) -> Any:
            return x * 2.0

    class Thrice(Twice):
        def apply(self, x: Any) -> Any:
            return x * 3.0

    box = Twice()
    return lambda x: box.apply(x), lambda: setattr(box, "__class__", Thrice)


@case
def another_dict_of_an_object() -> Case:
    class Plain:
        pass

    box = Plain()
    return (
        lambda x: x * getattr(box, "gain", 2.0),
        lambda: setattr(box, "__dict__", {"gain": 3.0}),
    )


@case
def attribute_that_a_class_has_not() -> Case:
    class Plain:
        pass

    class Derived(Plain):
        pass

    box = Derived()
    return lambda x: x * getattr(box, "gain", 1.0), lambda: setattr(Plain, "gain", 3.0)


def test_what_python_keeps_in_a_class_is_not_guarded() -> None:
    class Plain:
        pass

    box = Plain()
    g = build(lambda x: x * getattr(box, "gain", 2.0))
    for _ in range(3):
        g(ta.ones(1))
    copy.copy(box)
    assert "__slotnames__" in vars(Plain)
    assert g(ta.ones(1)).item() == 2 and len(g.records) == 1
    assert g._specializations[0].steady((ta.ones(1),), {}) is not MISS


@case
def tensor_of_a_class_rebound() -> Case:
    Shared.weight = ta.ones(4)
    return lambda x: x * Shared.weight, lambda: setattr(Shared, "weight", ta.full((4,), 5.0))


@case
def tuple_of_a_class_rebound() -> Case:
    Shared.pair = (1.0, 2.0)
    return lambda x: x * Shared.pair[0], lambda: setattr(Shared, "pair", (4.0, 5.0))


@case
def a_set_grown() -> Case:
    members = {1, 2}
    return lambda x: x * len(members), lambda: members.add(3)


@case
def a_deque_that_turns() -> Case:
    window = deque([ta.ones(4)], maxlen=2)
    return lambda x: x * window[0], lambda: window.appendleft(ta.full((4,), 5.0))


@case
def attribute_of_a_list() -> Case:
    class Scaled(list[float]):
        scale = 1.0

    held = Scaled([2.0])
    held.scale = 3.0
    return lambda x: x * held[0] * held.scale, lambda: setattr(held, "scale", 4.0)


@case
def dict_read_by_attributes() -> Case:
    class Options(dict[str, Any]):
        __getattr__ = dict.__getitem__

    held = Options(inner=Options(b=3.0))
    return lambda x: x * held.inner.b, lambda: held.inner.__setitem__("b", 5.0)


@case
def numpy_array_read_as_a_number() -> Case:
    a = np.ones(4, np.float32)
    return lambda x: x * float(a[0]), lambda: a.fill(3.0)


@case
def numpy_array_made_a_tensor() -> Case:
    a = np.ones(4, np.float32)
    return lambda x: x * ta.tensor(a), lambda: a.fill(3.0)


def results(fn: Callable[..., Any], x: Any) -> tuple[np.ndarray, bool]:
    ta.manual_seed(7)
    out = fn(x)
    return np.array(out.numpy()), out.requires_grad


@pytest.mark.parametrize("before", [1, 3])  # calls: compiled only, and seen by the fast check, too
@pytest.mark.parametrize("name", CASES)
def test_no_call_is_stale(name: str, before: int) -> None:
    fn, change = CASES[name]()
    compiled = build(fn)
    x = ta.tensor(X)
    for call in range(before + 1):
        if call == before:
            change()
        got, want = results(compiled, x), results(fn, x)
        np.testing.assert_array_equal(got[0], want[0])
        assert got[1] == want[1]


def test_what_python_s_library_does_for_itself_is_not_guarded() -> None:
    class Scale:
        def __init__(self) -> None:
            self.log, self.path = logging.getLogger("tests.state"), pathlib.Path("here")
            self.random, self.gain = random.Random(0), 2.0

        @contextlib.contextmanager
        def noted(self, x: Any) -> Any:
            self.log.debug("a call on %s", x.shape)
            yield self.gain * GLOBAL

        def apply(self, x: Any) -> Any:
            with self.noted(x) as gain:
                return x * gain

    globals()["GLOBAL"] = 2.0
    box = Scale()
    g = build(box.apply)
    for _ in range(3):
        assert g(ta.ones(1)).item() == 4
    logging.getLogger("tests.state.another")
    assert g._specializations[0].steady((ta.ones(1),), {}) is not MISS
    reach = g._specializations[0].captured.reach
    assert len(reach.identities) + len(reach.scalars) < 25
    globals()["GLOBAL"] = 3.0
    assert g(ta.ones(1)).item() == 6
    box.path = pathlib.Path("there")
    assert g(ta.ones(1)).item() == 6 and len(g.records) == 3


def test_strides_are_guarded() -> None:
    """A reshape is a view of the one argument, and a copy of the other."""

    def f(v: Any) -> Any:
        v.reshape(-1).mul_(2.0)
        return v * 1

    g = build(f)
    for turn in (False, True):
        a, b = (ta.tensor([[1.0, 2.0], [3.0, 4.0]]) for _ in "ab")
        if turn:
            a, b = a.T.detach(), b.T.detach()
        assert g(a).tolist() == f(b).tolist()


def test_grad_mode_is_guarded() -> None:
    g = build(lambda x: x * 2)
    x = ta.ones(2, requires_grad=True)
    for _ in range(3):
        assert g(x).requires_grad
        with ta.no_grad():
            assert not g(x).requires_grad
    assert len(g.records) == 2


@pytest.mark.parametrize("whole_step", [False, True])
def test_a_write_spares_what_eager_saved(whole_step: bool) -> None:
    w = ta.tensor([2.0, 3.0], requires_grad=True)

    def f(x: Any) -> Any:
        with ta.no_grad():
            w.mul_(x)
        return x.detach() if whole_step else w * x

    y = w * w
    build(f)(ta.tensor([10.0, 10.0]))
    y.sum().backward()
    assert w.tolist() == [20, 30] and w.grad.tolist() == [4, 6]


def test_an_argument_that_shares_memory_with_state() -> None:
    w = ta.ones(4)

    def f(x: Any) -> Any:
        w.mul_(2.0)
        return x + w

    g = build(f)
    for _ in range(3):
        g(ta.ones(4))
    with pytest.raises(ta.errors.MutationError, match="share memory"):
        g(w.detach())


@pytest.mark.parametrize("way", ["one buffer", "part of an array on a buffer", "array and buffer"])
def test_an_argument_on_memory_that_no_array_owns(way: str) -> None:
    """What a file, another library or a buffer lends has no array at its end to compare."""
    memory = np.zeros(8, np.float32) if way == "array and buffer" else bytearray(32)
    whole = np.frombuffer(memory, np.float32)
    part = np.frombuffer(memory, np.float32) if way == "one buffer" else whole
    part = memory if isinstance(memory, np.ndarray) else part
    w = ta.from_numpy(whole)

    def f(x: Any) -> Any:
        w.mul_(2.0)
        return x * 1.0

    g = build(f)
    for _ in range(3):
        g(ta.ones(4))
    with pytest.raises(ta.errors.MutationError, match="share memory"):
        g(ta.from_numpy(part[:4]))
    w = ta.ones(8)
    for _ in range(3):
        g(ta.from_numpy(part[:4]))
    assert len(g.records) == 1


def test_the_gradient_of_an_argument_is_that_of_the_argument_given() -> None:
    def update(parameters: list[Any], x: Any) -> Any:
        with ta.no_grad():
            for p in parameters:
                p.sub_(p.grad)
                p.grad.zero_()
        return x.grad * 2

    g = build(update)
    w = ta.nn.Parameter(ta.ones(1))
    for k, want in ((1.0, 0.0), (2.0, -2.0), (3.0, -5.0), (4.0, -9.0)):
        x = ta.ones(1)
        x.grad = ta.full((1,), k)
        w.grad = None
        (w * k).sum().backward()
        assert g([w], x).item() == 2 * k
        assert w.item() == want and w.grad is not None and w.grad.item() == 0
    assert len(g.records) == 1
    assert "x.grad" in str(g.records[0].stages[0].program)
    x.grad = None
    with pytest.raises(TypeError, match="NoneType"):
        g([w], x)


@pytest.mark.parametrize("place", ["argument", "state"])
def test_a_tensor_and_the_gradient_that_is_the_same(place: str) -> None:
    w = ta.ones(1)
    box = types.SimpleNamespace(gradient=ta.ones(1))

    def f(x: Any, g: Any) -> Any:
        return x.grad + (g if place == "argument" else box.gradient) * 10

    fast = build(f)
    for k in range(6):
        x = ta.ones(1) if place == "argument" else w
        x.grad = ta.full((1,), 2.0)
        box.gradient = g = x.grad if k < 3 else ta.ones(1)
        assert fast(x, g).item() == f(x, g).item()
    assert len(fast.records) == 2


def test_gradients_that_add_up_have_steady_calls() -> None:
    w = ta.ones(1, requires_grad=True)

    def f(x: Any) -> Any:
        (x * w).sum().backward()
        return x * 2

    g = build(f)
    for k in range(1, 5):
        g(ta.ones(1))
        assert w.grad is not None and w.grad.item() == k
    assert g._specializations[-1].steady((ta.ones(1),), {}) is not MISS
    assert w.grad is not None and w.grad.item() == 5
    w.grad = ta.zeros(1)
    g(ta.ones(1))
    assert w.grad.item() == 1 and len(g.records) == 2


def _length_of_mask(box: Any) -> int:
    def length() -> int:
        return len(box.mask)

    return length()


UNREAD: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "presence": (lambda b: b.mask is None, None),
    "shape": (lambda b: b.mask.shape[0] == 3, ta.ones(5)),
    "length": (lambda b: len(b.mask) == 3, ta.ones(5)),
    "dtype": (lambda b: b.mask.dtype is ta.float32, ta.ones(3, dtype=ta.float64)),
    "class": (lambda b: isinstance(b.mask, ta.Tensor), 3.0),
    "length, inside": (lambda b: _length_of_mask(b) == 3, ta.ones(5)),
}


@pytest.mark.parametrize("name", UNREAD)
def test_a_tensor_whose_values_are_not_read_is_guarded(name: str) -> None:
    test, other = UNREAD[name]
    box = types.SimpleNamespace(mask=ta.ones(3))
    fn = lambda x: x * 2 if test(box) else x * 3  # noqa: E731
    g = build(fn)
    before = g(ta.ones(1)).item()
    for value in (ta.zeros(3), ta.zeros(3), ta.zeros(3)):
        assert g(ta.ones(1)).item() == before
        box.mask = value
    assert len(g.records) == 1
    box.mask = other
    assert g(ta.ones(1)).item() == 5 - before
    assert g(ta.ones(1)).item() == 5 - before
    box.mask, g = ta.ones(3), build(fn)
    for _ in range(3):
        g(ta.ones(1))
    box.mask._data = np.zeros(5, np.float64)  # as Module.double does
    assert g(ta.ones(1)).item() == (before if name in ("presence", "class") else 3)


IS: dict[str, tuple[Callable[[Any, Any], bool], Callable[[Any, Any], Any]]] = {
    "two that are one": (lambda b, x: b.a is b.c, lambda b, x: vars(b).update(c=ta.ones(1))),
    "two that become one": (lambda b, x: b.a is b.b, lambda b, x: vars(b).update(b=b.a)),
    "an input": (lambda b, x: b.w is b.b, lambda b, x: vars(b).update(b=b.w)),
    "the argument becomes one": (lambda b, x: x is b.b, lambda b, x: vars(b).update(b=x)),
    "the argument is one": (lambda b, x: x is b.b, lambda b, x: b.b),
}


@pytest.mark.parametrize("before", [1, 3])
@pytest.mark.parametrize("name", IS)
def test_whether_two_tensors_are_one_is_guarded(name: str, before: int) -> None:
    test, change = IS[name]
    a = ta.ones(1)
    box = types.SimpleNamespace(a=a, b=ta.ones(1), c=a, w=ta.full((1,), 5.0))

    def fn(x: Any) -> Any:
        return x * box.w if test(box, x) else x * 3

    g, x = build(fn), ta.ones(1)
    for _ in range(before):
        assert g(x).item() == fn(x).item()
    x = change(box, x) or x
    for _ in range(3):
        assert g(x).item() == fn(x).item()
    assert len(g.records) == 2


def test_what_a_step_assigns_and_does_not_read_costs_no_compile() -> None:
    box = types.SimpleNamespace(last=ta.zeros(()))

    def f(x: Any) -> Any:
        box.last = x.sum()
        return x * 2

    g = build(f)
    for k in range(4):
        g(ta.full((2,), float(k)))
        assert box.last.item() == 2 * k
    assert len(g.records) == 1


def test_whether_an_argument_has_a_gradient_is_guarded() -> None:
    def f(x: Any) -> Any:
        return x * 2 if x.grad is None else x * 3

    g = build(f)
    for _ in range(3):
        assert g(ta.ones(1)).item() == 2
    x = ta.ones(1)
    x.grad = ta.ones(1)
    assert g(x).item() == 3


def test_the_learning_rate_is_an_input() -> None:
    def make() -> tuple[Any, Any, Any]:
        ta.manual_seed(0)
        net = nn.Linear(4, 3)
        opt = ta.optim.AdamW(net.parameters(), lr=0.1)

        def step(x: Any) -> Any:
            opt.zero_grad()
            loss = F.mse_loss(net(x), x[:, :3])
            loss.backward()
            opt.step()
            return loss

        return net, opt, step

    net, opt, step = make()
    other, other_opt, other_step = make()
    compiled = build(other_step)
    x = ta.tensor(X)
    for lr in (0.1, 0.01, 0.01, 0.5):
        opt.lr = other_opt.lr = lr
        np.testing.assert_allclose(step(x).item(), compiled(x).item(), rtol=1e-6)
    np.testing.assert_allclose(net.weight.numpy(), other.weight.numpy(), rtol=1e-6)
    assert len(compiled.records) == 1


@pytest.mark.parametrize("calls", [1, 3])
@pytest.mark.parametrize("other", [None, "0.1", ta.tensor(0.25)])
def test_a_learning_rate_that_is_no_number(calls: int, other: Any) -> None:
    w = nn.Parameter(ta.ones(1))
    opt = ta.optim.SGD([w], lr=0.5)

    def step(x: Any) -> Any:
        opt.zero_grad()
        (w * x).sum().backward()
        opt.step()
        return x

    g = build(step)
    for _ in range(calls):
        g(ta.ones(1))
    before = w.item()
    opt.lr = other
    if isinstance(other, ta.Tensor):
        g(ta.ones(1))
        assert w.item() == before - 0.25
        return
    with pytest.raises(ta.errors.DTypeError, match="is not an operand"):
        g(ta.ones(1))
    opt.lr = np.float32(0.5)
    g(ta.ones(1))
    assert w.item() == before - 0.5


def test_each_group_has_a_learning_rate_of_its_own() -> None:
    a, b = (nn.Parameter(ta.ones(1)) for _ in "ab")
    opt = ta.optim.SGD([{"params": [a]}, {"params": [b], "lr": 0.5}], lr=0.25)

    def step(x: Any) -> Any:
        opt.zero_grad()
        loss = (a * x + b * x).sum()
        loss.backward()
        opt.step()
        return loss

    build(step)(ta.ones(1))
    assert (a.item(), b.item()) == (0.75, 0.5)


def test_a_new_argument_shape_or_dtype_compiles_again() -> None:
    g = build(lambda x: x * 2)
    for x in (ta.ones(2), ta.ones(3), ta.ones(3, dtype=ta.float64), ta.ones(2, 3).T, ta.ones(2)):
        np.testing.assert_array_equal(g(x).numpy(), 2 * x.numpy())
    assert len(g.records) == 4
    assert "f32[3]" in (g.records[1].recompiled_because or "")


def test_an_attribute_assigned_in_a_step_is_rebound() -> None:
    class Cell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden = ta.zeros(4)

        def forward(self, x: Any) -> Any:
            self.hidden = ta.tanh(self.hidden + x)
            return self.hidden * 2

    cell, other = Cell(), Cell()
    g = build(other)
    x = ta.tensor(X[0])
    for _ in range(3):
        np.testing.assert_allclose(cell(x).numpy(), g(x).numpy(), rtol=1e-6)
        np.testing.assert_allclose(cell.hidden.numpy(), other.hidden.numpy(), rtol=1e-6)
    assert not other.hidden.is_traced


def test_any_other_escape_raises() -> None:
    kept: list[Any] = []

    def f(x: Any) -> Any:
        y = x * 2
        kept.append(y)
        return y

    with pytest.raises(ta.errors.TraceError, match="stored in a list"):
        build(f)(ta.ones(2))


def summing() -> tuple[nn.Linear, ta.optim.SGD, Callable[[Any], Any]]:
    """A module, its optimizer, and a training step."""
    net = nn.Linear(4, 3)
    opt = ta.optim.SGD(net.parameters(), lr=0.1)

    def step(x: Any) -> Any:
        opt.zero_grad()
        loss = net(x).sum()
        loss.backward()
        opt.step()
        return loss

    return net, opt, step


def test_gradients_are_not_kept_and_say_so() -> None:
    net, _, step = summing()
    build(step)(ta.tensor(X))
    with pytest.raises(ta.errors.GradError, match="keep_grads"):
        _ = net.weight.grad
    build(step, keep_grads=True)(ta.tensor(X))
    np.testing.assert_allclose(net.weight.grad.numpy(), np.tile(X.sum(0), (3, 1)), rtol=1e-6)


def test_nothing_is_added_to_a_gradient_that_was_not_kept() -> None:
    net, opt, step = summing()
    build(step)(ta.tensor(X))
    with pytest.raises(ta.errors.GradError, match="zero_grad"):
        net(ta.tensor(X)).sum().backward()
    opt.zero_grad(set_to_none=False)  # whatever it was, it is zero now
    net(ta.tensor(X)).sum().backward()
    np.testing.assert_allclose(net.weight.grad.numpy(), np.tile(X.sum(0), (3, 1)), rtol=1e-6)


@pytest.mark.parametrize("way", ["by hand", "before", "after"])
def test_gradients_that_are_set_to_zero(way: str) -> None:
    def make() -> tuple[Any, Any]:
        w = nn.Parameter(ta.ones(4))
        opt = ta.optim.SGD([w], lr=0.5)

        def step(x: Any) -> Any:
            if way == "before":
                opt.zero_grad(set_to_none=False)
            loss = (w * w * x).sum()
            loss.backward()
            if way == "by hand":
                with ta.no_grad():
                    w.sub_(0.5 * w.grad)
                    w.grad.zero_()
            else:
                opt.step()
                if way == "after":
                    opt.zero_grad(set_to_none=False)
            return loss.detach()

        return w, step

    (w, step), (other, other_step) = make(), make()
    fast = build(other_step)
    for call in range(4):
        x = ta.full((4,), 0.1 * (call + 1))
        np.testing.assert_allclose(fast(x).item(), step(x).item(), rtol=1e-6)
        np.testing.assert_allclose(other.numpy(), w.numpy(), rtol=1e-6)
    if way != "before":
        assert other.grad.tolist() == w.grad.tolist() == [0, 0, 0, 0]


def test_gradients_add_up_over_calls() -> None:
    w = ta.ones(2, requires_grad=True)

    def f(x: Any) -> Any:
        loss = (w * x).sum()
        loss.backward()
        return loss

    g = build(f)  # nothing in it updates w, so there is no kernel that its gradient ends in
    for call in (1.0, 2.0, 3.0):
        g(ta.tensor([1.0, 10.0]))
        assert w.grad.tolist() == [call, 10 * call]
    ta.optim.SGD([w], lr=1.0).step()
    assert w.tolist() == [-2.0, -29.0]


def test_recompiling_again_and_again_says_so_once() -> None:
    count = 0

    def f(x: Any) -> Any:
        return x * count

    g = build(f)
    with pytest.warns(UserWarning, match="compiled 8 times") as seen:
        for count in range(12):
            assert g(ta.ones(1)).item() == count
    assert len(seen) == 1


def test_ten_thousand_steps_do_not_grow() -> None:
    net = ta.nn.Linear(3, 2)
    opt = ta.optim.AdamW(net.parameters())

    @ta.compile(backend="numpy")
    def step(x: Any) -> Any:
        opt.zero_grad()
        loss = (net(x) ** 2).sum()
        loss.backward()
        opt.step()
        return loss

    x = ta.ones(4, 3)
    gc.collect()
    gc.disable()
    try:
        blocks = []
        for _ in range(3):
            for _ in range(5000):
                step(x)
            blocks.append(sys.getallocatedblocks())
    finally:
        gc.enable()
    assert blocks[2] - blocks[0] < 100


def test_retrace_finds_what_lies_outside_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINYAOT_RETRACE", "1")
    import itertools

    ticks = itertools.count(1)  # no attribute, no item: nothing that a guard could look at

    def f(x: Any) -> Any:
        return x * next(ticks)

    g = build(f)
    with pytest.raises(ta.errors.TraceError, match="another program"):
        g(ta.ones(1))
    h = build(lambda x: x * 2)
    assert h(h(ta.ones(1))).item() == 4


def test_detach_of_an_argument_that_becomes_a_view(backend: str) -> None:
    """Without history it is no work, and of a view an error: which of them, each call finds out."""

    def f(x: ta.Tensor) -> ta.Tensor:
        x.detach_()
        return x * 2

    compiled = ta.compile(f, backend=backend)
    whole = ta.ones(2, 2)
    for given in (whole, whole.T, whole, whole.T):
        for run in (f, compiled):
            if given is whole:
                assert run(given).tolist() == [[2, 2], [2, 2]]
                continue
            with pytest.raises(GradError, match="this is a view"):
                run(given)


@pytest.mark.parametrize("twice", [False, True])
def test_a_view_of_a_leaf_where_the_leaf_was(twice: bool, backend: str) -> None:
    """The leaf's own `.grad` gets the gradient, as in eager, however often it is passed."""

    def step(x: ta.Tensor, y: ta.Tensor) -> None:
        (x * x).sum().backward()
        if twice:
            y.sum().backward()

    def gradients(run: Callable[..., Any]) -> list[Any]:
        leaf, found = ta.ones(3, requires_grad=True), []
        for given in (leaf, leaf[:], leaf[1:], leaf):
            run(given, leaf[:] if twice else None)
            found.append((leaf.grad.tolist(), given is leaf or given.grad is None))
        return found

    compiled = ta.compile(step, backend=backend, keep_grads=True)
    assert gradients(compiled) == gradients(step)


def test_a_gradient_of_none_is_assigned_to_a_view(backend: str) -> None:
    w = ta.ones(3, requires_grad=True)

    def step(x: ta.Tensor) -> None:
        x.grad = None
        (w * w).sum().backward()

    compiled = ta.compile(step, backend=backend)
    for given in (ta.ones(2, 2).T, ta.ones(2, 2).T, ta.ones(2, 2)):
        compiled(given)
        assert given.grad is None


def test_a_leaf_where_a_tensor_with_history_was_written(backend: str) -> None:
    """A leaf that requires grad cannot be written, whatever was traced."""

    def f(x: ta.Tensor) -> ta.Tensor:
        x.mul_(2)
        return x * 3

    compiled = ta.compile(f, backend=backend)
    for shape in ((2,), (0,)):
        leaf = ta.ones(*shape, requires_grad=True)
        compiled(leaf * 1)
        for run in (f, compiled):
            with pytest.raises(MutationError, match="a leaf tensor that requires grad"):
                run(leaf)
        assert leaf.is_leaf and leaf.tolist() == [1] * shape[0]
        compiled(leaf * 1)


def test_a_tensor_with_history_that_becomes_a_leaf(backend: str) -> None:
    h = ta.ones(2, requires_grad=True) * 1

    def f(x: ta.Tensor) -> ta.Tensor:
        h.mul_(x)
        return x * 3

    compiled = ta.compile(f, backend=backend)
    for _ in range(3):
        compiled(ta.ones(2))
    assert compiled._specializations[0].steady((ta.ones(2),), {}) is not MISS
    h.detach_().requires_grad_()
    for run in (f, compiled):
        with pytest.raises(MutationError, match="a leaf tensor that requires grad"):
            run(ta.ones(2))
