"""Checkpoints: the same bits as without, from less memory, in both modes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tinyaot as ta
from tests import agree
from tests.agree import f32
from tests.random_programs import random_arrays, random_program
from tinyaot import Tensor
from tinyaot.cost import NUMPY_RATES
from tinyaot.interpret import interpret
from tinyaot.ir import Program
from tinyaot.nn import functional as F
from tinyaot.passes.partition import partition
from tinyaot.passes.simplify import simplify
from tinyaot.passes.storage import storages_of
from tinyaot.verify import verify

X = f32(np.linspace(-1, 1, 12).reshape(4, 3))
W = f32(np.linspace(-0.5, 1, 9).reshape(3, 3))
Wrap = Callable[..., Any]  # ta.checkpoint, or a plain call


def plainly(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return fn(*args, **kwargs)


# ---- programs -----------------------------------------------------------------------------------


def block(h: Tensor, w: Tensor, p: float = 0.5) -> Tensor:
    a = F.gelu(h @ w)
    return h + F.dropout(a, p, True) @ w.T


def chain(wrap: Wrap, x: Tensor, w: Tensor) -> Tensor:
    for _ in range(3):
        x = wrap(block, x, w)
    return x


def closure(wrap: Wrap, x: Tensor, w: Tensor) -> Tensor:
    """Gradients to what the function reaches otherwise, used outside, too."""
    y = wrap(lambda t: (t @ w).tanh() @ w, x)
    return y * w.sum() + wrap(lambda: (w * w).sin()).sum()


def nested(wrap: Wrap, x: Tensor, w: Tensor) -> Any:
    def outer(h: Tensor) -> Any:
        a = wrap(block, h, w)
        b = wrap(lambda t: wrap(block, t, w, p=0.2).sin(), a)
        return {"b": (b.tanh() * a, 3)}

    return wrap(outer, x)["b"][0] * wrap(outer, x)["b"][1]


def writes_inside(wrap: Wrap, x: Tensor, w: Tensor) -> Tensor:
    """Values saved, then overwritten; views of what was made inside."""

    def inside(x: Tensor) -> Tensor:
        y = x.exp()
        z = y.sin()
        y[1:] *= 2.0
        y[0] = z[1] * y[2]
        y.T[0] += 1.0
        return z * y.cos() @ w

    return wrap(inside, x * 2)


def writes_outside(wrap: Wrap, x: Tensor, w: Tensor) -> Any:
    """A running statistic is updated once; an argument is overwritten inside, and after."""
    mean = ta.zeros(3)
    y = x * 1

    def inside(y: Tensor) -> Tensor:
        with ta.no_grad():
            mean.add_(y.mean(0))
        a = y.sigmoid() * mean
        y *= 3.0
        return a.exp() + y * y + (mean * y).sin()

    out = wrap(inside, y)
    before = mean.clone()
    y *= 0.0
    mean.zero_()
    return out @ w, before, y


def views_out(wrap: Wrap, x: Tensor, w: Tensor) -> Any:
    """Results that are the argument, views of it, and views of one another."""

    def inside(x: Tensor) -> Any:
        y = (x @ w).exp()
        return x, x[1], y, y.T, None

    same, row, y, turned, _ = wrap(inside, x * 1)
    return same * row, y * 2, turned.sin()


def detached(wrap: Wrap, x: Tensor, w: Tensor) -> Any:
    def inside(x: Tensor) -> Any:
        with ta.no_grad():
            scale = x.abs().amax()
        return (x / scale) * x.detach().exp() @ w, scale

    return wrap(inside, x)


def differentiates(wrap: Wrap, x: Tensor, w: Tensor) -> Tensor:
    """A gradient inside, differentiated again outside."""

    def force(x: Tensor) -> Tensor:
        x = x * 1
        energy = ((x @ w).tanh() * x).sum()
        (f,) = ta.grad(energy, x, create_graph=True)
        return f * x

    return wrap(force, x) * 2


def unused(wrap: Wrap, x: Tensor, w: Tensor) -> Any:
    a, b = wrap(lambda x: ((x @ w).exp(), (x @ w.T).sin()), x)
    wrap(block, x, w)
    return a, b.detach()


PROGRAMS = (
    *(chain, closure, nested, writes_inside, writes_outside, views_out),
    *(detached, differentiates, unused),
)


@pytest.mark.parametrize("program", PROGRAMS)
def test_eager_gives_the_same_bits(program: Any) -> None:
    a, b = (
        agree.run(lambda x, w, wrap=wrap: program(wrap, x, w), [X, W])
        for wrap in (plainly, ta.checkpoint)
    )
    assert a.flags == b.flags
    for old, new in zip(
        [*a.values, *a.gradients, *a.inputs], [*b.values, *b.gradients, *b.inputs], strict=True
    ):
        assert (old is None) == (new is None)
        assert old is None or np.array_equal(old, new, equal_nan=True)


@pytest.mark.parametrize("program", PROGRAMS)
def test_both_modes_agree(program: Any, backend: str) -> None:
    agree.check(lambda x, w: program(ta.checkpoint, x, w), X, W)


@pytest.mark.parametrize("program", [chain, closure, nested, writes_inside, detached])
def test_second_derivatives(program: Any, backend: str) -> None:
    def second(wrap: Wrap) -> Any:
        def fn(x: Tensor, w: Tensor) -> Any:
            x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
            out = program(wrap, x, w)
            out = out if isinstance(out, Tensor) else out[0]
            found = ta.grad((out * out).sum(), [x, w], create_graph=True)
            return ta.grad(sum((g * g).sum() for g in found), [x, w])

        return fn

    results = []
    for fn in (second(plainly), second(ta.checkpoint), agree.build(second(ta.checkpoint))):
        ta.manual_seed(3)
        results.append([g.numpy() for g in fn(ta.tensor(X), ta.tensor(W))])
    for plain, eager, compiled in zip(*results, strict=True):
        assert np.array_equal(plain, eager)
        np.testing.assert_allclose(plain, compiled, rtol=1e-3, atol=1e-4)


# ---- random numbers -----------------------------------------------------------------------------


def test_draws_are_repeated_and_none_is_taken_twice(backend: str) -> None:
    def masked(wrap: Wrap, x: Tensor) -> Any:
        y = wrap(lambda t: F.dropout(t * 1, 0.5, True) * F.dropout(t * 1, 0.5, True), x)
        return y + F.dropout(x, 0.5, True)

    rows = []
    for fn in (
        lambda x: masked(plainly, x),
        lambda x: masked(ta.checkpoint, x),
        agree.build(lambda x: masked(ta.checkpoint, x)),
    ):
        ta.manual_seed(11)
        x = ta.ones(64, requires_grad=True)
        y = fn(x)
        after = ta.rand(4).numpy()
        y.sum().backward()
        rows.append((y.detach().numpy(), x.grad.numpy(), after, ta.rand(4).numpy()))
    for row in rows[1:]:
        for a, b in zip(rows[0], row, strict=True):
            assert np.array_equal(a, b)
    assert set(np.unique(rows[0][0])) > {0.0, 4.0}


# ---- eager: what is kept ------------------------------------------------------------------------


def peak_of(wrap: Wrap, n: int = 6) -> int:
    w = ta.rand(64, 64, requires_grad=True)
    x = ta.rand(512, 64)

    def deep(h: Tensor) -> Tensor:
        for _ in range(4):
            h = (h @ w).tanh().exp().sin()
        return h

    tracemalloc.start()
    for _ in range(n):
        x = wrap(deep, x)
    x.sum().backward()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_eager_needs_less_memory() -> None:
    peak_of(plainly, 1)  # what is made once
    saved, again = peak_of(plainly), peak_of(ta.checkpoint)
    # 24 layers of four saved values against 6 inputs and one region's 16
    assert again < 0.4 * saved


def test_a_region_is_freed_with_its_graph() -> None:
    import gc
    import weakref

    x = ta.rand(8, requires_grad=True)
    gc.disable()
    try:
        y = ta.checkpoint(lambda t: t.exp().sin(), x)
        node = weakref.ref(y.grad_fn)
        y.sum().backward(retain_graph=True)
        y.sum().backward()
        with pytest.raises(ta.errors.GradError, match="second time"):
            y.sum().backward()
        del y
        assert node() is None
    finally:
        gc.enable()


def test_what_was_read_is_what_counts() -> None:
    """Parameters updated, and attributes assigned, between forward and backward change nothing."""

    class Box:
        w = ta.tensor(W, requires_grad=True)

    box = Box()

    def run(wrap: Wrap) -> Any:
        box.w = ta.tensor(W, requires_grad=True)
        w, x = box.w, ta.tensor(X, requires_grad=True)
        y = wrap(lambda t: (t @ box.w).exp() @ box.w, x)
        with ta.no_grad():
            w.mul_(100.0)
            x.zero_()
        box.w = ta.zeros(3, 3)
        y.sum().backward()
        return x.grad.numpy(), w.grad.numpy()

    for a, b in zip(run(plainly), run(ta.checkpoint), strict=True):
        assert np.array_equal(a, b)


def test_foreign_memory_is_read_once() -> None:
    array = W.copy()
    x = ta.tensor(X, requires_grad=True)
    y = ta.checkpoint(lambda t: (t @ ta.from_numpy(array)).exp(), x)
    array[:] = 0.0
    y.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), np.exp(X @ W) @ W.T, rtol=1e-5)


def test_user_code_runs_once_and_under_no_grad_plainly() -> None:
    calls = []

    def fn(x: Tensor, *, k: int) -> Tensor:
        calls.append(k)
        return x.exp() * k

    x = ta.tensor(X, requires_grad=True)
    ta.checkpoint(fn, x, k=2).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * np.exp(X), rtol=1e-6)
    with ta.no_grad():
        assert not ta.checkpoint(fn, x, k=3).requires_grad
    assert calls == [2, 3]
    with pytest.raises(ZeroDivisionError):
        ta.checkpoint(lambda: 1 / 0)
    assert (x * 2).grad_fn is not None


def test_a_compiled_function_inside_is_inlined() -> None:
    inner = ta.compile(lambda t, w: (t @ w).exp(), backend="numpy")
    a, b = (
        agree.run(lambda x, w, wrap=wrap: wrap(lambda t: inner(t, w).sin(), x), [X, W])
        for wrap in (plainly, ta.checkpoint)
    )
    agree.agree(a, b)


# ---- compiled: what is kept ---------------------------------------------------------------------


def inside_of(program: Program) -> set[int]:
    """Forward values that a checkpoint computes and that nothing outside it reads."""
    found = set()
    root = storages_of(program).root
    given = {o.value.id for o in program.outputs_of("user", "mutated")}
    for n in program.nodes:
        own = n.phase == "forward" and root[n.result.id] == n.result.id
        if n.checkpoint and own and n.op != "full":
            users = [u for u in program.users[n.result.id] if u.phase != "backward"]
            if users and n.result.id not in given:
                if all(u.checkpoint[:1] == n.checkpoint[:1] for u in users):
                    found.add(n.result.id)
    return found


def wide(wrap: Wrap, x: Tensor, *weights: Tensor) -> Tensor:
    def layer(h: Tensor, w: Tensor) -> Tensor:
        return h + F.dropout(F.gelu(h @ w), 0.1, True) @ w.T

    for w in weights:
        x = wrap(layer, x, w)
    return (x * x).mean()


def wide_step(wrap: Wrap) -> Any:
    def step(x: Tensor, *weights: Tensor) -> Any:
        loss = wide(wrap, x, *weights)
        return loss.detach(), ta.grad(loss, weights)

    return step


def wide_inputs() -> list[Tensor]:
    ta.manual_seed(0)
    weights = [(ta.randn(16, 64) * 0.1).requires_grad_() for _ in range(8)]
    return [ta.randn(128, 16), *weights]


@pytest.mark.parametrize("strategy", ["min_cut", "save_all", "recompute_all", lambda p: p.values])
@pytest.mark.parametrize("joint", [False, True])
def test_no_strategy_saves_what_is_inside(strategy: Any, joint: bool, backend: str) -> None:
    args = wide_inputs()
    fn = (lambda *a: wide(ta.checkpoint, *a)) if joint else wide_step(ta.checkpoint)
    record = agree.build(fn, partition=strategy).explain(*args)
    inside = inside_of(record.program("simplify"))
    assert len(inside) > 8 * 5
    assert inside.isdisjoint(s.id for s in record.saved)
    again = {r.id: r.reason for r in record.recomputed}
    assert {again[i] for i in inside if i in again} == {"checkpoint"}
    partitioned = record.program("partition")
    for n in partitioned.nodes:
        if n.phase == "backward":
            assert inside.isdisjoint(v.id for v in n.inputs), n
    # what the layers give is saved, as many bytes as the input each
    assert {s.reason for s in record.saved} == {"checkpoint"}
    assert sum(s.bytes for s in record.saved) == 8 * args[0].nbytes
    verify(partitioned)


@pytest.mark.parametrize("strategy", ["save_all", "min_cut"])
def test_the_planned_peak_falls(strategy: str, backend: str) -> None:
    args = wide_inputs()
    plain, ours = (
        agree.build(wide_step(wrap), partition=strategy).explain(*args)
        for wrap in (plainly, ta.checkpoint)
    )
    assert ours.memory["planned_peak"] < plain.memory["planned_peak"]
    if strategy == "save_all":
        assert ours.memory["saved_bytes"] < plain.memory["saved_bytes"]
        # One product a layer is made again (what the second gives is outside).
        assert plain.flops["recompute"] == 0
        assert ours.flops["recompute"] > 8 * 2 * 128 * 16 * 64


def test_nested_regions_keep_less_at_a_time() -> None:
    """Of an inner region nothing is kept while the outer one is computed again."""

    def step(x: Tensor, *weights: Tensor) -> Any:
        def all_of(h: Tensor) -> Tensor:
            for w in weights:
                h = ta.checkpoint(lambda h, w=w: (h @ w).sin().exp().sin() @ w.T, h)
            return h

        loss = (ta.checkpoint(all_of, x) ** 2).mean()
        return ta.grad(loss, weights)

    def flat(x: Tensor, *weights: Tensor) -> Any:
        def all_of(h: Tensor) -> Tensor:
            for w in weights:
                h = (h @ w).sin().exp().sin() @ w.T
            return h

        loss = (ta.checkpoint(all_of, x) ** 2).mean()
        return ta.grad(loss, weights)

    args = wide_inputs()
    inner, outer = (
        ta.compile(fn, backend="numpy", partition="save_all").explain(*args) for fn in (step, flat)
    )
    assert inner.memory["planned_peak"] < 0.7 * outer.memory["planned_peak"]
    for fn in (step, flat):
        for a, b in zip(fn(*args), ta.compile(fn, backend="numpy")(*args), strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-5)


def test_equal_values_of_two_regions_stay_two() -> None:
    """Or one would be kept for the other. What is there outside is not computed again."""

    def fn(x: Tensor) -> Tensor:
        y = x.sin()
        a = ta.checkpoint(lambda t: (t.exp() * t.sin()).cos(), x)
        b = ta.checkpoint(lambda t: (t.exp() * t.sin()).tanh(), x)
        return y * a * b

    record = ta.compile(fn, backend="numpy").explain(ta.tensor(X, requires_grad=True))
    names = [n.op for n in record.program("simplify").nodes if n.phase == "forward"]
    assert (names.count("exp"), names.count("sin")) == (2, 1)


def test_regions_survive_every_stage(backend: str) -> None:
    record = agree.build(wide_step(ta.checkpoint)).explain(*wide_inputs())
    for stage in record.stages:
        regions = {n.checkpoint for n in stage.program.all_nodes if n.phase in (None, "forward")}
        assert {(k,) for k in range(1, 9)} <= regions, stage.name
        assert ta.parse(str(stage.program)) == stage.program
    assert "checkpoint=[1] @" in str(record.program("trace"))


@pytest.mark.parametrize("shape", [(0, 3), (2, 2)])
def test_a_view_of_what_a_region_gives_is_an_output(shape: tuple[int, ...], backend: str) -> None:
    """The view is a node of the backward, and the caller's: it keeps the value that it sees."""

    def both(x: ta.Tensor) -> tuple[ta.Tensor, ta.Tensor]:
        kept = ta.checkpoint(lambda v: ta.tanh(ta.exp(v)), x)
        view = ta.value_and_grad(lambda t: (t * kept).sum())(kept)[1].reshape(-1)
        ones = ta.ones_like(kept)
        return view, ta.vjp(lambda t: ta.sin(t) * kept, view.reshape(shape))[1](ones)

    x = ta.ones(shape)
    for got, want in zip(ta.compile(both, backend=backend)(x), both(x), strict=True):
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-6)  # 8 ulp: exp in tanh


# ---- random programs ----------------------------------------------------------------------------


def with_regions(program: Program, seed: int) -> Program:
    """The forward of a program cut into regions, some nested, some not."""
    rng = np.random.default_rng(seed)
    region: tuple[int, ...] = ()
    count, nodes = 0, []
    for node in program.nodes:
        if node.phase == "forward" and rng.random() < 0.4:
            count += 1
            region = [(), (count,), (*region[:1], count)][int(rng.integers(3))]
        forward = node.phase == "forward"
        nodes.append(replace(node, checkpoint=region if forward else ()))
    return program.replace(nodes=tuple(nodes))


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("seed", range(60))
def test_random_programs_with_regions(seed: int, joint: bool) -> None:
    program = simplify(with_regions(random_program(seed, joint=joint), seed))
    verify(program)
    arrays = random_arrays(program, seed)
    want = interpret(program, *arrays)
    for strategy in ("min_cut", "save_all", "recompute_all"):
        found = partition(program, strategy=strategy, rates=NUMPY_RATES)  # type: ignore[arg-type]
        verify(found)
        got = interpret(found, *arrays)
        for o, a, b in zip(program.outputs, want, got, strict=False):
            np.testing.assert_array_equal(a, b, err_msg=str(o))
