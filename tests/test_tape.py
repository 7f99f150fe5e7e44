"""The eager tape: what it saves, when it frees, and what a write does to it."""

from __future__ import annotations

import gc
import threading
import tracemalloc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinyaot as ta
import tinyaot.nn.functional as F
from tinyaot.tensor import Storage


def test_diamonds_are_visited_once() -> None:
    x = ta.tensor([3.0], requires_grad=True)
    b = x + x
    c = b + b
    for _ in range(20):
        c = c + c  # 2^20 paths
    c.backward()
    assert x.grad.item() == 4 * 2**20


def test_gradients_accumulate_in_place() -> None:
    x = ta.tensor([1.0, 2.0], requires_grad=True)
    (x * x).sum().backward()
    held = x.grad
    (x * 3).sum().backward()
    assert x.grad is held and held.tolist() == [5, 7]


def test_each_grad_has_bytes_of_its_own() -> None:
    a, b = (ta.tensor([1.0, 2.0], requires_grad=True) for _ in "ab")
    seed = ta.tensor([1.0, 1.0])
    (a + b).backward(seed)
    a.grad.mul_(10)
    assert b.grad.tolist() == [1, 1] and seed.tolist() == [1, 1]


def test_the_tape_has_no_cycles() -> None:
    gc.collect()
    gc.disable()
    try:
        x = ta.tensor(np.ones(4, np.float32), requires_grad=True)
        y = ta.exp(x * 2)
        z = F.softmax(y[1:] * y[:-1], dim=0).sum()
        dead = [weakref.ref(y), weakref.ref(z)]
        nodes = [weakref.ref(t.grad_fn) for t in (y, z)]
        del y, z
        assert all(r() is None for r in dead + nodes)
    finally:
        gc.enable()


def test_a_long_tape_is_freed_without_recursion() -> None:
    x = ta.tensor([1.0], requires_grad=True)
    y = x
    for _ in range(20_000):
        y = y * 1.0
    y.backward()
    del y
    assert x.grad.item() == 1


def test_saved_values_are_freed_node_by_node() -> None:
    x = ta.tensor(np.ones(8, np.float32), requires_grad=True)
    y = ta.exp(x)
    node = y.grad_fn
    assert node.result.array is y._data
    y.sum().backward()
    assert node.freed and node.result is None


def test_only_what_a_rule_reads_is_saved() -> None:
    a, b = (ta.tensor(np.ones(4, np.float32), requires_grad=True) for _ in "ab")
    kinds = [type(s).__name__ for s in (a + b).grad_fn.operands]
    assert kinds == ["Unread", "Unread"]
    kinds = [type(s).__name__ for s in (a * b).grad_fn.operands]
    assert kinds == ["SavedHandle", "SavedHandle"]
    kinds = [type(s).__name__ for s in (a * b.detach()).grad_fn.operands]
    assert kinds == ["Unread", "SavedHandle"]


def test_a_write_snapshots_what_was_saved_once() -> None:
    x = ta.tensor(np.arange(4, dtype=np.float32), requires_grad=True)
    w = ta.tensor(np.arange(4, dtype=np.float32))
    y, z = x * w, x * w  # both save w
    before = Storage.snapshot_bytes
    w[1:3] = 100.0
    w += 1
    assert Storage.snapshot_bytes - before == w.nbytes
    (y + z).sum().backward()
    assert x.grad.tolist() == [0, 2, 4, 6]


def test_a_write_elsewhere_in_the_storage_copies_nothing() -> None:
    x = ta.tensor(np.ones(2, np.float32), requires_grad=True)
    w = ta.tensor(np.ones(8, np.float32))
    y = x * w[:2]
    before = Storage.snapshot_bytes
    w[4:] = 5.0
    assert Storage.snapshot_bytes == before
    y.sum().backward()


def test_foreign_memory_is_copied_when_saved() -> None:
    array = np.ones(3, np.float32)
    w = ta.from_numpy(array)
    x = ta.tensor(np.ones(3, np.float32), requires_grad=True)
    y = x * w
    array[:] = 9
    assert w.tolist() == [9, 9, 9]
    y.sum().backward()
    assert x.grad.tolist() == [1, 1, 1]


def test_an_optimizer_step_between_forward_and_backward() -> None:
    x = ta.tensor([2.0], requires_grad=True)
    y = x * x * x
    with ta.no_grad():
        x.fill_(100.0)
    y.backward()
    assert x.grad.item() == 12


def test_numpy_views_are_read_only() -> None:
    x = ta.tensor([1.0], requires_grad=True)
    with pytest.raises(ValueError, match="read-only"):
        x.numpy()[0] = 2


def test_after_an_error_no_tensor_has_a_new_gradient() -> None:
    x = ta.tensor([1.0, 2.0], requires_grad=True)
    used = x.exp()
    used.sum().backward()
    before = x.grad.numpy().copy()
    y = x * 2
    z = y * used  # newer than what was used up: its gradient is there when the walk stops
    for t in (y, z):
        t.retain_grad()
    with pytest.raises(ta.errors.GradError, match="second time"):
        z.sum().backward()
    assert y.grad is None and z.grad is None
    np.testing.assert_array_equal(x.grad.numpy(), before)


def test_retain_grad() -> None:
    x = ta.tensor([2.0], requires_grad=True)
    y = x * x
    y.retain_grad()
    (y * 3).sum().backward()
    assert y.grad.item() == 3 and x.grad.item() == 12


def test_leaves_that_require_grad_cannot_be_written() -> None:
    x = ta.tensor([1.0, 2.0], requires_grad=True)
    for write in (lambda: x.add_(1), lambda: x[0:1].zero_()):
        with pytest.raises(ta.errors.MutationError, match="no_grad"):
            write()
    with ta.no_grad():
        x.add_(1)
    assert x.tolist() == [2, 3] and x.is_leaf


def test_create_graph_to_third_order() -> None:
    x = ta.tensor([2.0], requires_grad=True)
    y = x**4
    for want in (32.0, 48.0, 48.0):
        (y,) = ta.grad(y.sum(), x, create_graph=True)
        assert y.item() == pytest.approx(want)


def test_grad_names_what_is_wrong() -> None:
    x, y = ta.tensor([1.0], requires_grad=True), ta.tensor([1.0], requires_grad=True)
    with pytest.raises(ta.errors.GradError, match="allow_unused"):
        ta.grad((x * 2).sum(), y)
    with pytest.raises(ta.errors.GradError, match="does not require grad"):
        ta.tensor([1.0]).sum().backward()
    with pytest.raises(ta.errors.GradError, match="cotangent"):
        (ta.ones(3).requires_grad_() * 2).backward()


def test_modes_are_per_thread() -> None:
    seen: list[bool] = []

    def work() -> None:
        seen.append((ta.ones(1).requires_grad_() * 2).requires_grad)

    with ta.no_grad():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert not (ta.ones(1).requires_grad_() * 2).requires_grad
    assert seen == [True]


def test_no_grad_as_a_decorator() -> None:
    @ta.no_grad()
    def f(x: Any) -> Any:
        return x * 2

    assert not f(ta.ones(1).requires_grad_()).requires_grad


@pytest.mark.parametrize("compiled", [False, True])
def test_many_steps_do_not_grow_memory(compiled: bool) -> None:
    net = ta.nn.Sequential(ta.nn.Linear(4, 8), ta.nn.GELU(), ta.nn.Dropout(0.1), ta.nn.Linear(8, 2))
    opt = ta.optim.AdamW(net.parameters(), lr=1e-3)

    def step(x: Any) -> Any:
        opt.zero_grad()
        loss = (net(x) ** 2).mean()
        loss.backward()
        opt.step()
        return loss

    run = ta.compile(step, backend="numpy") if compiled else step
    x = ta.tensor(np.ones((3, 4), np.float32))
    run(x)
    gc.collect()
    gc.disable()
    try:
        tracemalloc.start()
        for _ in range(500):  # fills NumPy's caches of small blocks
            run(x)
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(500):
            run(x)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
        gc.enable()
    assert grown < 4096


@pytest.mark.parametrize("stop", [lambda x: x.detach_(), lambda x: x.requires_grad_(False)])
def test_a_leaf_that_stopped_to_require_grad_gets_none(stop: Callable[[Any], Any]) -> None:
    """Between the forward and the backward, as in torch; compiled, too."""

    def f() -> Any:
        x, w = (ta.ones(3, requires_grad=True) for _ in range(2))
        y = (x * w).sum()
        stop(x)
        y.backward()
        return x.grad, w.grad

    for run in (f, ta.compile(f, backend="numpy")):
        assert run()[0] is None and run()[1].tolist() == [1, 1, 1]
