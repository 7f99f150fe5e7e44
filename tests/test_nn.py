"""Modules: registration, modes, state, containers."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import tinyaot as ta
from tests.numeric import near, numbers, tensor
from tinyaot import nn
from tinyaot.errors import (
    ArgumentError,
    BackendError,
    DTypeError,
    GradError,
    IndexingError,
    TinyaotError,
)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(ta.ones(3))
        self.fc = nn.Linear(3, 3)
        self.register_buffer("count", ta.zeros(1))
        self.register_buffer("cache", ta.zeros(2), persistent=False)
        self.constant = ta.zeros(4)  # neither parameter nor buffer

    def forward(self, x: Any) -> Any:
        return self.fc(x) * self.scale


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(3, 2, bias=False)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


BLOCK_NAMES = ["scale", "fc.weight", "fc.bias"]


# ---- registration -------------------------------------------------------------------------------


def test_parts_are_found_by_name_and_in_order() -> None:
    m = Model()
    names = [f"blocks.{i}.{n}" for i in (0, 1) for n in BLOCK_NAMES] + ["head.weight"]
    assert [n for n, _ in m.named_parameters()] == names
    assert [n for n, _ in m.named_buffers()] == [
        f"blocks.{i}.{n}" for i in (0, 1) for n in ("count", "cache")
    ]
    assert [n for n, _ in m.named_modules()] == [
        "",
        "blocks",
        "blocks.0",
        "blocks.0.fc",
        "blocks.1",
        "blocks.1.fc",
        "head",
    ]
    assert [n for n, _ in m.named_children()] == ["blocks", "head"]
    assert m.get_submodule("blocks.1.fc") is m.blocks[1].fc
    assert len(list(m.parameters(recurse=False))) == 0
    with pytest.raises(ArgumentError, match=r"no submodule 'blocks\.2'"):
        m.get_submodule("blocks.2")


def test_shared_parameters_are_given_once_but_saved_twice() -> None:
    m = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    m[1].weight = m[0].weight
    assert [n for n, _ in m.named_parameters()] == ["0.weight", "0.bias", "1.bias"]
    assert list(m.state_dict()) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert len(list(nn.ModuleList([m, m]).modules())) == 4


def test_a_parameter_is_not_replaced_by_a_tensor() -> None:
    layer = nn.Linear(2, 2)
    with pytest.raises(DTypeError, match="cannot assign a Tensor as the parameter 'weight'"):
        layer.weight = ta.zeros(2, 2)
    layer.weight = nn.Parameter(ta.zeros(2, 2))
    layer.bias = None
    assert list(layer.state_dict()) == ["weight"]


def test_registering_by_name() -> None:
    m = nn.Module()
    m.add_module("part", nn.Linear(1, 1))
    m.register_parameter("none", None)
    m.register_buffer("table", ta.zeros(2))
    assert list(m.state_dict()) == ["table", "part.weight", "part.bias"]
    for name in ("a.b", "", "forward"):
        with pytest.raises(ArgumentError):
            m.register_buffer(name, ta.zeros(1))
    m.table = ta.ones(3)  # still the buffer
    assert m.state_dict()["table"].shape == (3,)


def test_parameter() -> None:
    data = ta.zeros(3)
    p = nn.Parameter(data)
    assert isinstance(p, ta.Tensor) and p.requires_grad and p.is_leaf
    with ta.no_grad():
        p += 1.0
    near(data, np.ones(3))  # shared memory
    assert not nn.Parameter(ta.zeros(1), requires_grad=False).requires_grad
    assert type(p * 2) is ta.Tensor
    assert "Parameter" in repr(p)
    with pytest.raises((GradError, DTypeError)):
        nn.Parameter(ta.tensor([1, 2]))


def test_a_gradient_survives_a_write_to_the_memory_it_shares() -> None:
    data = ta.tensor([2.0, 3.0])
    p = nn.Parameter(data)
    y = (p * p).sum()
    data.mul_(10.0)
    y.backward()
    near(p.grad, [4, 6])


def test_forward_must_be_written() -> None:
    with pytest.raises(NotImplementedError, match="Module has no forward"):
        nn.Module()(1)


def test_deepcopy_is_apart() -> None:
    m = Model()
    other = copy.deepcopy(m)
    with ta.no_grad():
        other.head.weight.zero_()
    assert (m.head.weight.numpy() != 0).all()
    assert isinstance(other.head.weight, nn.Parameter)
    assert list(other.state_dict()) == list(m.state_dict())


def test_repr() -> None:
    lines = repr(nn.Sequential(nn.Linear(2, 3), nn.ModuleList([nn.ReLU()]))).splitlines()
    assert lines == [
        "Sequential(",
        "  (0): Linear(in_features=2, out_features=3, bias=True)",
        "  (1): ModuleList(",
        "    (0): ReLU()",
        "  )",
        ")",
    ]


# ---- modes, dtypes, gradients -------------------------------------------------------------------


def test_train_and_eval_reach_everything() -> None:
    m = Model()
    assert m.eval() is m and not any(part.training for part in m.modules())
    assert all(part.training for part in m.train().modules())


def test_requires_grad_and_zero_grad() -> None:
    m = nn.Linear(2, 2)
    m(tensor(3, 2)).sum().backward()
    m.zero_grad(set_to_none=False)
    near(m.weight.grad, np.zeros((2, 2)))
    m.zero_grad()
    assert m.weight.grad is None
    m.requires_grad_(False)
    assert not m(tensor(3, 2)).requires_grad


def test_to_casts_in_place() -> None:
    m = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    weight = m[0].weight
    optimizer_sees = list(m.parameters())
    m(tensor(4, 2)).sum().backward()
    assert m.to(ta.float64) is m
    assert m[0].weight is weight and weight.dtype is ta.float64 and weight.requires_grad
    assert weight.grad is not None and weight.grad.dtype is ta.float64
    assert all(a is b for a, b in zip(optimizer_sees, m.parameters()))
    assert m[1].running_mean.dtype is ta.float64
    assert m[1].num_batches_tracked.dtype is ta.int64
    assert m(ta.tensor(numbers(4, 2))).dtype is ta.float64
    assert m.to("cpu") is m and m.float()[0].weight.dtype is ta.float32
    assert m.to("bfloat16")[0].weight.dtype is ta.bfloat16
    with pytest.raises(BackendError):
        m.to("cuda")
    with pytest.raises(DTypeError, match="floating dtypes only"):
        m.to(ta.int64)


def test_apply_calls_children_first() -> None:
    seen: list[str] = []
    nn.Sequential(nn.ReLU(), nn.GELU()).apply(lambda part: seen.append(type(part).__name__))
    assert seen == ["ReLU", "GELU", "Sequential"]


# ---- state --------------------------------------------------------------------------------------


def test_state_is_detached_and_shares_memory() -> None:
    m = Model()
    state = m.state_dict()
    names = [f"blocks.{i}.{n}" for i in (0, 1) for n in ("scale", "count", "fc.weight", "fc.bias")]
    assert list(state) == [*names, "head.weight"]  # and no cache
    assert not any(t.requires_grad for t in state.values())
    with ta.no_grad():
        m.head.weight.zero_()
    near(state["head.weight"], np.zeros((2, 3)))


def test_parameters_come_before_buffers_in_a_state() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", ta.zeros(2))
            self.weight = nn.Parameter(ta.ones(2))
            self.inner = nn.Linear(1, 1)

    assert list(Net().state_dict()) == ["weight", "mean", "inner.weight", "inner.bias"]


def test_load_state_dict_copies() -> None:
    ta.manual_seed(0)
    a, b = Model(), Model()
    weight = b.head.weight
    assert b.load_state_dict(a.state_dict()) == ([], [])
    assert b.head.weight is weight
    near(weight, a.head.weight, rtol=0, atol=0)
    x = tensor(4, 3)
    np.testing.assert_array_equal(a(x).numpy(), b(x).numpy())
    b.load_state_dict({k: v.numpy().astype(np.float64) for k, v in a.state_dict().items()})
    assert weight.dtype is ta.float32


def test_load_state_dict_says_all_that_is_wrong_and_copies_nothing() -> None:
    m = nn.Linear(2, 3)
    before = m.bias.numpy().copy()
    state = {"weight": ta.zeros(3, 4), "bias": ta.zeros(3), "other": ta.zeros(1)}
    with pytest.raises(TinyaotError) as caught:
        m.load_state_dict(state)
    for part in ("unexpected keys: other", r"weight: the state has shape (3, 4)", "(3, 2)"):
        assert part in str(caught.value)
    with pytest.raises(TinyaotError, match="missing keys: weight, bias"):
        m.load_state_dict({})
    np.testing.assert_array_equal(m.bias.numpy(), before)
    result = m.load_state_dict({"bias": ta.ones(3), "other": ta.zeros(1)}, strict=False)
    assert result.missing_keys == ["weight"] and result.unexpected_keys == ["other"]
    near(m.bias, np.ones(3))
    with pytest.raises(TinyaotError, match="size mismatch"):
        m.load_state_dict({"bias": ta.ones(4)}, strict=False)


# ---- containers ---------------------------------------------------------------------------------


def test_sequential() -> None:
    m = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    x = tensor(4, 2)
    near(m(x), m[2](m[1](m[0](x))))
    assert len(m) == 3 and m[-1] is m[2] and [type(p).__name__ for p in m[:2]] == ["Linear", "ReLU"]
    assert isinstance(m[1:], nn.Sequential)
    m.append(nn.Tanh())
    assert len(m) == 4
    named = nn.Sequential({"first": nn.Linear(2, 2), "act": nn.ReLU()})
    assert list(named.state_dict()) == ["first.weight", "first.bias"] and named[1] is named.act


def test_a_compiled_module_is_a_part_like_any_other() -> None:
    block = ta.compile(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)), backend="numpy")
    net = nn.Sequential(block, nn.Linear(2, 1))
    assert list(net.state_dict()) == ["0.0.weight", "0.0.bias", "1.weight", "1.bias"]
    assert net[0] is block and net(ta.ones(1, 2)).shape == (1, 1) and len(block.records) == 1
    net.eval()
    assert not block.get_submodule("1").training
    net.block = ta.compile(net[1], backend="numpy")
    net.itself = ta.compile(net, backend="numpy")  # no part of itself
    net.apply(lambda m: None)
    assert len(list(net.parameters())) == 4 and net.get_submodule("0.1").p == 0.5


def test_module_list() -> None:
    a, b, c, d = (nn.Linear(i + 1, 1) for i in range(4))
    parts = nn.ModuleList([a, b])
    parts.append(c)
    parts.insert(1, d)
    assert list(parts) == [a, d, b, c]
    del parts[0]
    assert list(parts) == [d, b, c] and [n for n, _ in parts.named_children()] == ["0", "1", "2"]
    parts[-1] = a
    assert list(parts) == [d, b, a]
    parts.extend([c])
    assert parts[3] is c
    with pytest.raises(IndexingError, match="4 modules"):
        parts[4]
    with pytest.raises(DTypeError, match="cannot hold a int"):
        parts.append(3)
