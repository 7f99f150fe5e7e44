"""Loops that end where a mask does: which, what part of them runs, and that none is kept whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tinyaot as ta
from tests.test_codegen_fusion import MACHINE, needs_compiler, program
from tinyaot import ops
from tinyaot.backends import cpu
from tinyaot.builder import Sym
from tinyaot.capture import capture
from tinyaot.ir import Node, Program
from tinyaot.passes import fuse, partition, pipeline
from tinyaot.passes.frontier import Frontier
from tinyaot.passes.fusion.figures import region_flops
from tinyaot.passes.fusion.forms import to_forms
from tinyaot.passes.fusion.graph import build
from tinyaot.passes.fusion.limits import short_loops
from tinyaot.passes.fusion.plan import plan_among
from tinyaot.passes.fusion.shares import ROWS, WHOLE, shares_of
from tinyaot.passes.splitgraph import SplitGraph
from tinyaot.record import Decision
from tinyaot.shapes import float32, int64

T, HEADS, WIDTH = 512, 2, 64
RATES = replace(cpu.rates(), product=65e9, saved=2 / 12e9)


def step_of(causal: bool = True, length: int = T) -> tuple[Program, Any]:
    """The loss of masked weighted means of projected values, and its gradient; not partitioned."""
    ta.manual_seed(0)
    w = ta.randn(16, 3 * HEADS * WIDTH) * 0.1
    w.requires_grad = True
    x = ta.randn(length, 16)

    def step(x: ta.Tensor) -> tuple[ta.Tensor, ta.Tensor]:
        q, k, v = (x @ w).reshape(length, 3, HEADS, WIDTH).permute(1, 2, 0, 3).unbind(0)
        s = q @ k.transpose(1, 2)
        if causal:
            at = ta.arange(length)
            s = ta.where(at <= at.reshape(length, 1), s, -1e30)
        e = ta.exp(s - s.amax(axis=2, keepdims=True).detach())
        loss = ((e / e.sum(axis=2, keepdims=True)) @ v).tanh().sum()
        (g,) = ta.grad(loss, [w])
        return loss, g

    captured = capture(step, (x,), {})
    return pipeline("functionalize,autodiff,simplify")(captured.program), captured


def dots(p: Program) -> list[Node]:
    return [n for n in p.nodes if n.op == "dot"]


def is_square(n: Node, length: int = T) -> bool:
    return n.results[0].type.shape[-2:] == (length, length)


def test_products_behind_a_mask_run_about_half() -> None:
    """All that read or give the scores or their gradients, and no projection."""
    p, _ = step_of()
    shares = shares_of(p)
    made = {r.id: n for n in p.nodes for r in n.results}
    for n in dots(p):
        near = is_square(n) or any(v.type.shape[-2:] == (T, T) for v in n.inputs)
        share = shares.run.get(n.results[0].id, 1.0)
        assert share == ((T + ROWS) / (2 * T) if near else 1.0)
    assert len([i for i in shares.run if made[i].op == "dot"]) == 6  # two forward, four backward
    assert shares.wide and all(is_square(made[i]) for i in shares.wide)


@pytest.mark.parametrize(("causal", "length"), [(False, T), (True, 2 * ROWS)])
def test_what_no_mask_cuts_runs_whole(causal: bool, length: int) -> None:
    p, _ = step_of(causal, length)
    assert not shares_of(p).run and not shares_of(p).wide
    assert causal or shares_of(p) is WHOLE


def test_scores_that_are_given_back_run_whole() -> None:
    shape = (float32, (2, T, 8))

    def body(q: Sym, k: Sym, v: Sym) -> dict[str, Sym]:
        s = ops.dot(q, k, spec="htd,hsd->hts")
        at = ops.iota(size=T, dtype=int64)
        e = ops.where(ops.le(at, ops.reshape(at, shape=(T, 1))), s, 0.0)
        return {"s": s, "o": ops.dot(e, v, spec="hts,hsd->htd")}

    p = program({"q": shape, "k": shape, "v": shape}, body)
    short = {n.op: shares_of(p).run.get(n.results[0].id, 1.0) for n in p.nodes}
    assert short["dot"] < 1 and short["where"] < 1  # the last one: the mean
    assert shares_of(p).run.get(dots(p)[0].results[0].id) is None


def test_a_sum_of_what_is_not_masked_to_zero_runs_whole() -> None:
    def body(x: Sym) -> dict[str, Sym]:
        at = ops.iota(size=T, dtype=int64)
        kept = ops.where(ops.le(at, ops.reshape(at, shape=(T, 1))), x, 1.0)
        return {"y": ops.sum(kept, axes=(1,))}

    assert not shares_of(program({"x": (float32, (T, T))}, body)).run


def test_the_regions_end_the_loops_that_were_told() -> None:
    """Of the partition chosen; and the FLOPs of their products are as many as are run."""
    p, _ = step_of()
    plan = plan_among(partition(p, rates=RATES), (2,), MACHINE)
    short = short_loops(plan.graph)
    ended = [r for r in plan.regions if r.limits]
    told = {op for op in plan.graph.work if op in short and op.form == "dot"}
    assert len(told) == 7 and told <= {op for r in ended for op in r.members}  # scores twice
    for r in ended:
        (s,) = r.limits
        b = r.block[r.limits[s]]
        assert r.share(s) == pytest.approx((T + b) / (2 * T), rel=0.1)
        products = [op for op in r.members if op in told]
        dense = 2 * T * T * HEADS * WIDTH * len(products)
        alone = replace(r, members=products)
        assert region_flops(plan.graph, alone) == round(dense * r.share(s))


def test_what_a_masked_product_costs() -> None:
    """The part that is run, of the scores; the projection what it is."""
    p, _ = step_of()
    graph, dense = SplitGraph(p, "time", RATES), SplitGraph(p, "time", replace(RATES, inline=0.0))
    scores, project = (next(n for n in dots(p) if is_square(n) == x) for x in (True, False))
    share = (T + ROWS) / (2 * T)
    at, other = scores.results[0].id, project.results[0].id
    assert graph.price[at] == pytest.approx(share * dense.price[at], rel=1e-6)
    assert graph.cost[at].flops == round(share * 2 * HEADS * T * T * WIDTH)
    assert graph.price[other] == dense.price[other]
    assert graph.step.flops < dense.step.flops


def test_no_cut_keeps_what_a_mask_cuts_off() -> None:
    """However little a saved byte costs: to keep it takes the part beyond the mask, too."""
    p, _ = step_of()
    graph = SplitGraph(p, "time", RATES)
    scores = next(n for n in dots(p) if is_square(n)).results[0].id
    for byte_price in (0, 1, RATES.saved * 1e12):
        kept = Frontier(graph).cut(byte_price).saved
        assert kept and kept.isdisjoint(graph.shares.wide) and scores in graph.shares.wide
    log: list[Decision] = []
    made = partition(p, rates=RATES, log=log)
    assert sum(map(is_square, dots(made))) == 3  # scores, again, and their cotangents
    assert not any(d.subject in graph.shares.wide for d in log if d.kind == "save")
    everything = graph.save_all()
    assert scores in everything.saved
    assert everything.cost.flops >= 2 * HEADS * T * T * WIDTH - graph.cost[scores].flops > 0


def test_a_sum_pays_for_the_maps_that_its_loop_makes() -> None:
    """An exp has no place of its own, and costs more than adding it up."""
    p, _ = step_of(causal=False)
    graph = SplitGraph(p, "time", RATES)
    exp = next(n for n in p.nodes if n.op == "exp")
    total = next(n for n in p.nodes if n.op == "sum" and n.inputs[0].id == exp.results[0].id)
    elements = HEADS * T * T
    assert exp.results[0].id in graph.behind
    assert graph.cost[total.results[0].id].flops == 3 * elements  # sub, exp, sum
    assert graph.cost[total.results[0].id].seconds > 2 * elements * 0.02e-9 / RATES.element


def largest(length: int) -> int:
    """Bytes of the largest value of the gradient's step that has memory."""
    p, _ = step_of(length=length)
    plan = plan_among(partition(p, rates=RATES), (2,), MACHINE)
    homes = plan.storage.homes
    return max(op.type.nbytes for op in homes if homes[op].space in ("arena", "output"))


def test_gradients_of_masked_means_keep_nothing_square() -> None:
    """Products that add to a result from each tile are priced at what they run, so they stay in the
    loop, and what they read has no memory."""
    assert largest(2 * T) == 2 * largest(T) and largest(T) < 4 * T * T


def test_axes_that_read_one_range_have_nothing_in_common() -> None:
    """Places in a table as long as the sequence are no keys."""
    shape = (float32, (2, T, 8))

    def body(q: Sym, k: Sym, v: Sym, x: Sym) -> dict[str, Sym]:
        at = ops.iota(size=T, dtype=int64)
        s = ops.dot(q, k, spec="htd,hsd->hts")
        e = ops.where(ops.le(at, ops.reshape(at, shape=(T, 1))), s, 0.0)
        y = ops.mul(x, ops.cast(at, dtype=float32))
        return {"o": ops.dot(e, v, spec="hts,hsd->htd"), "y": y}

    inputs = {"q": shape, "k": shape, "v": shape, "x": (float32, (3, T))}
    g = build(to_forms(program(inputs, body)), MACHINE)
    first = next(op for op in g.work if op.form == "dot")
    other = next(op for op in g.work if op.name == "mul" and op in g.outputs)
    assert set(g.flat[first]).isdisjoint(g.flat[other])


@needs_compiler
@pytest.mark.parametrize("length", [100, 257])
def test_gradients_of_masked_means_are_right(length: int) -> None:
    p, captured = step_of(length=length)
    arrays = [np.array(i.source._data) for i in captured.inputs]
    made = fuse(partition(p, rates=RATES), machine=MACHINE, threads=2)
    expected = ta.interpret(p, *arrays)
    found = cpu.Executable(made, poison=True, threads=2).run("step", [a.copy() for a in arrays])
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-3, atol=1e-4)
