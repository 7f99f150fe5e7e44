"""The partitioner: what it may never do, and what it decides (see `test_frontier` for how well)."""

from __future__ import annotations

import math

import numpy as np
import pytest

import tinyaot as ta
from tests.bench.chain import chain as chain_of_the_lesson
from tests.random_programs import random_arrays, random_program
from tinyaot import ops
from tinyaot.builder import Builder, Sym
from tinyaot.capture import capture
from tinyaot.cost import NUMPY_RATES, Rates
from tinyaot.errors import BudgetError
from tinyaot.interpret import interpret
from tinyaot.ir import Input, Output, Program, Value
from tinyaot.memory import planned_peak
from tinyaot.ops.core import TABLE, using
from tinyaot.passes import differentiate, functionalize, partition, plan, schedule, simplify
from tinyaot.passes.exact import least_price
from tinyaot.passes.frontier import Frontier
from tinyaot.passes.splitgraph import SplitGraph
from tinyaot.record import Decision, Split
from tinyaot.shapes import TensorType, bool_, float32, int64, uint32
from tinyaot.verify import verify

# ---- values and stages --------------------------------------------------------------------------


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("strategy", ["save_all", "recompute_all", "min_cut"])
def test_values_are_kept(joint: bool, strategy: str) -> None:
    for seed in range(12):
        program = random_program(seed, joint=joint)
        after = partition(program, strategy=strategy)  # type: ignore[arg-type]
        verify(after)
        arrays = random_arrays(program, seed)
        given = zip(after.outputs, interpret(after, *arrays), strict=True)
        found = [x for o, x in given if o.role != "saved"]
        for x, y in zip(found, interpret(program, *arrays), strict=True):
            np.testing.assert_array_equal(x, y)


def chain(joint: bool = True, depth: int = 6) -> Program:
    """x -> tanh(x * w) ..., differentiated."""
    builder = Builder(2)
    x, w = (Value(i, TensorType(float32, (16, 16))) for i in range(2))
    with using(builder):
        h = Sym(x)
        for _ in range(depth):
            h = ops.tanh(ops.mul(h, Sym(w)))
        outputs = [Output(h.value, requires_grad=joint)]
        if not joint:
            loss = ops.sum(h, axes=(0, 1))
            attrs = {"outputs": 1, "cotangents": False, "wrt": 1}
            node = builder.emit("grad", [loss.value, w], [w.type], attrs)
            new = ops.sub(Sym(w), Sym(node.result))
            outputs = [Output(loss.value), Output(new.value, "mutated", 1)]
    inputs = (Input(x, "argument", "x"), Input(w, "state", "w", True))
    nodes = tuple(builder.nodes)
    return differentiate(
        Program("chain", "functionalize", inputs, nodes, tuple(outputs), builder.next_id)
    )


def test_save_all_computes_nothing_twice() -> None:
    program = chain()
    after = partition(program, strategy="save_all")
    assert not any(o.relation == "recompute-of" for n in _works(after) for o in n.origin)
    assert len(_works(after)) == len(_works(program))
    assert len(after.outputs_of("saved")) == 6  # five inner tanhs, and the last, which is given


def _works(program: Program) -> list:  # type: ignore[type-arg]
    return [n for n in program.nodes if TABLE[n.op].kind == "map"]


def test_recompute_all_saves_what_the_caller_has_anyway() -> None:
    after = partition(chain(), strategy="recompute_all")
    assert [o.value for o in after.outputs_of("saved")] == [after.outputs[0].value]


def test_clones_come_just_in_time() -> None:
    after = partition(chain(joint=False), strategy="recompute_all")
    position = {r.id: at for at, n in enumerate(after.nodes) for r in n.results}
    clones = [n for n in after.nodes if any(o.relation == "recompute-of" for o in n.origin)]
    assert clones
    for clone in clones:
        assert clone.phase == "backward"
        first = min(position[r.id] for u in after.users[clone.result.id] for r in u.results)
        between = after.nodes[position[clone.result.id] + 1 : first]
        assert all(any(o.relation == "recompute-of" for o in n.origin) for n in between)


def test_an_overwritten_input_is_saved_as_a_copy() -> None:
    """Row 15 of the semantics: the backward needs the value from before the overwriting."""
    builder = Builder(2)
    x, w = (Value(i, TensorType(float32, (4,))) for i in range(2))
    with using(builder):
        y = ops.mul(ops.sin(Sym(x)), Sym(w))
        new = ops.mul(Sym(x), 2.0)
    program = differentiate(
        Program(
            "f",
            "functionalize",
            (Input(x, "argument", "x", True), Input(w, "argument", "w", True)),
            tuple(builder.nodes),
            (Output(y.value, requires_grad=True), Output(new.value, "mutated", 0)),
            builder.next_id,
        )
    )
    for strategy in ("save_all", "recompute_all", "min_cut"):
        after = partition(program, strategy=strategy)  # type: ignore[arg-type]
        verify(after)
        readers = [n for n in after.users[0] if n.phase == "backward"]
        assert not readers, "the backward half reads x after its overwriting"
    copies = [n for n in partition(program, strategy="recompute_all").nodes if n.op == "copy"]
    assert [n.inputs[0].id for n in copies] == [0]


def test_a_recomputed_mask_is_the_same_mask() -> None:
    builder = Builder(4)
    x, w = (Value(i, TensorType(float32, (64, 64))) for i in range(2))
    seed, base = (Value(i, TensorType(int64, ())) for i in (2, 3))
    with using(builder):
        bits = ops.random_bits(Sym(seed), Sym(base), ordinal=3, shape=(64, 64))
        keep = ops.lt(bits, ops.full(value=2**31, shape=(), dtype=uint32))
        y = ops.where(keep, ops.mul(Sym(x), Sym(w)), 0.0)
    program = differentiate(
        Program(
            "f",
            "functionalize",
            (
                Input(x, "argument", "x"),
                Input(w, "argument", "w", True),
                Input(seed, "random", "seed"),
                Input(base, "random", "draw"),
            ),
            tuple(builder.nodes),
            (Output(y.value, requires_grad=True),),
            builder.next_id,
        )
    )
    after = partition(program, strategy="recompute_all")
    draws = [n for n in after.nodes if n.op == "random_bits"]
    assert [n.phase for n in draws] == ["forward", "backward"]
    assert draws[0].attrs == draws[1].attrs and draws[0].inputs == draws[1].inputs
    arrays = random_arrays(program)
    given = zip(after.outputs, interpret(after, *arrays), strict=True)
    by_role = {o.role: x for o, x in given}
    assert ((by_role["user"] == 0) == (by_role["gradient"] == 0)).all()


def test_a_function_chooses() -> None:
    program = chain()
    tanhs = [n.result.id for n in program.nodes if n.op == "tanh"]
    after = partition(program, strategy=lambda p: {tanhs[2]})
    saved = {o.value.id for o in after.outputs_of("saved")}
    assert saved == {tanhs[2], tanhs[-1]}
    with pytest.raises(ValueError, match="999"):
        partition(program, strategy=lambda p: {999})


def test_without_a_backward_nothing_happens() -> None:
    program = chain().replace(outputs=chain().outputs[:1])
    forward = program.replace(
        nodes=tuple(n for n in program.nodes if n.phase == "forward"), inputs=program.inputs[:2]
    )
    assert partition(forward) == forward.replace(stage="partition")


# ---- budgets ------------------------------------------------------------------------------------


def deep() -> Program:
    """Wide maps between products: worth recomputing, and with something to keep."""
    builder = Builder(0)
    inputs: list[Input] = []

    def given(shape: tuple[int, ...], role: str, grad: bool = False) -> Sym:
        value = builder.fresh(TensorType(float32, shape))
        inputs.append(Input(value, role, f"in{value.id}", grad))  # type: ignore[arg-type]
        return Sym(value)

    with using(builder):
        h = given((64, 32), "argument")
        weights = []
        for _ in range(4):
            weights += [given((32, 128), "state", True), given((128, 32), "state", True)]
            wide = ops.dot(h, weights[-2], spec="ij,jk->ik")
            wide = ops.mul(ops.sigmoid(wide), ops.sin(wide))
            h = ops.add(h, ops.dot(wide, weights[-1], spec="ij,jk->ik"))
        loss = ops.sum(ops.mul(h, h), axes=(0, 1))
        wrt = [w.value for w in weights]
        attrs = {"outputs": 1, "cotangents": False, "wrt": len(wrt)}
        grad = builder.emit("grad", [loss.value, *wrt], [v.type for v in wrt], attrs)
        outputs = [Output(loss.value)]
        for w, g in zip(weights, grad.results, strict=True):
            new = ops.sub(w, ops.mul(Sym(g), 0.1))
            outputs.append(Output(new.value, "mutated", w.value.id))
    return differentiate(
        Program(
            "deep",
            "functionalize",
            tuple(inputs),
            tuple(builder.nodes),
            tuple(outputs),
            builder.next_id,
        )
    )


def peak(program: Program) -> int:
    return planned_peak(plan(schedule(program)))


def test_budgets_are_kept_and_peaks_fall_with_them() -> None:
    program = deep()
    most = peak(partition(program, strategy="save_all"))
    peaks = [peak(partition(program, memory_budget=i / 10)) for i in range(11)]
    assert peaks == sorted(peaks) and peaks[-1] <= most and peaks[0] < most
    least = peaks[0]
    for fraction, found in zip(range(11), peaks, strict=True):
        assert found <= least + fraction / 10 * (most - least)
    budget = (least + most) // 2
    assert peak(partition(program, memory_budget=budget)) <= budget
    assert peak(partition(program, memory_budget=least)) == least


def test_the_whole_budget_is_used() -> None:
    """With room for everything nothing is computed twice; with less the fastest that fits is."""
    program = deep()
    most = peak(partition(program, strategy="save_all"))
    extra = []
    for budget in (most, 0.9, 0.5, 0.0):
        log: list[Decision] = []
        partition(program, memory_budget=budget, log=log)
        (summary,) = (d for d in log if d.kind == "partition")
        extra.append(summary.numbers["extra_seconds"])
    assert extra[0] == 0 < extra[1] and extra == sorted(extra)


def test_the_fraction_0_is_the_least_that_a_number_of_bytes_finds() -> None:
    """Also where the least plan is not among those that look the least before scheduling."""
    model = ta.nn.Sequential(ta.nn.Linear(8, 16), ta.nn.GELU(), ta.nn.Linear(16, 4))
    optimizer = ta.optim.SGD(model.parameters(), lr=0.1)

    def step(x: ta.Tensor, y: ta.Tensor) -> ta.Tensor:
        optimizer.zero_grad()
        loss = ta.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    def planned(budget: float) -> int:
        compiled = ta.compile(step, backend="numpy", memory_budget=budget)
        batch = ta.rand(32, 8), ta.arange(32) % 4
        return int(compiled.explain(*batch).memory["planned_peak"])

    least = planned(0.0)
    assert planned(least) == least
    with pytest.raises(BudgetError, match=rf"least planned peak found is {least} bytes"):
        planned(least - 1)


def test_a_budget_that_no_plan_keeps() -> None:
    program = deep()
    least = peak(partition(program, memory_budget=0.0))
    with pytest.raises(BudgetError, match=rf"least planned peak found is {least} bytes"):
        partition(program, memory_budget=least - 1)


@pytest.mark.parametrize(
    "budget", [math.nan, math.inf, -math.inf, -1, -0.5, 1.5, True, "1 MB", b"1", [1], 1j]
)
def test_no_budget(budget: object) -> None:
    with pytest.raises(ValueError, match="memory_budget"):
        partition(chain(), memory_budget=budget)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("option", "value"),
    [("cost", "bytes"), ("strategy", "all"), ("time_slack", math.nan), ("time_slack", -1)],
)
def test_no_such_option(option: str, value: object) -> None:
    with pytest.raises(ValueError, match=option):
        partition(chain(), **{option: value})  # type: ignore[arg-type]


def test_the_default_plan_is_within_the_slack() -> None:
    program = deep()
    for slack in (0.0, 0.05, 0.5):
        log: list[Decision] = []
        partition(program, time_slack=slack, log=log)
        (summary,) = (d for d in log if d.kind == "partition")
        fastest = min(a["extra_seconds"] for a in summary.alternatives)
        base = summary.numbers["step_seconds"] - summary.numbers["extra_seconds"]
        assert summary.numbers["extra_seconds"] - fastest <= slack * base * (1 + 1e-9)
        least = min(a["planned_peak"] for a in summary.alternatives)
        assert summary.numbers["planned_peak"] == least
    assert summary.numbers["planned_peak"] < summary.alternatives[0]["planned_peak"]


def test_every_value_has_its_decision() -> None:
    log: list[Decision] = []
    program = deep()
    partition(program, memory_budget=0.3, log=log)
    graph = SplitGraph(program, "time", NUMPY_RATES)
    decided = {d.subject for d in log if d.kind in ("save", "recompute")}
    assert decided >= graph.read
    for d in log:
        if d.kind == "save":
            assert d.numbers["bytes"] > 0 and d.numbers["seconds"] > 0
        if d.kind == "recompute":
            assert d.numbers["flip_bytes"] > 0 and d.numbers["flip_seconds"] <= 0


# ---- the record ---------------------------------------------------------------------------------


@pytest.mark.parametrize("cost", ["time", "flops"])
@pytest.mark.parametrize("budget", [None, 0.0, 0.4])
def test_the_network_and_its_cut(cost: str, budget: float | None) -> None:
    """What the cut edges may carry is the objective, and no path leaves the source uncut."""
    program, log = deep(), list[Decision]()
    partition(program, memory_budget=budget, cost=cost, log=log)  # type: ignore[arg-type]
    (summary,) = (d for d in log if d.kind == "partition")
    (network,) = (d for d in log if d.kind == "network")
    rows = {row["id"]: row for row in network.alternatives}
    saved = {d.subject for d in log if d.kind == "save"}
    assert {v for v, row in rows.items() if row["cut"] == "keep"} == saved
    again = sum(row["again"] for row in rows.values() if row["cut"] == "again")
    unit = 1e-12 if cost == "time" else 1
    assert again * unit == pytest.approx(summary.numbers[f"extra_{NAMES[cost]}"], abs=1e-9)
    kept = sum(row["keep"] for row in rows.values() if row["cut"] == "keep")
    assert kept == pytest.approx(network.numbers["byte_price"] * summary.numbers["saved_bytes"])
    assert summary.numbers[f"gap_{NAMES[cost]}"] == 0
    for row in rows.values():
        if row["read"]:
            assert row["cut"] != "neither"
        for user in row["users"]:  # at hand where it is needed
            assert rows[user]["cut"] != "again" or row["cut"] != "neither"
    assert str(Split(**rows[min(saved)])).startswith("source -") and "sink" in str(
        Split(**next(row for row in rows.values() if row["read"]))
    )


NAMES = {"time": "seconds", "flops": "flops"}


def test_one_table_of_all_ways() -> None:
    program = deep()
    tanhs = [n.result.id for n in program.nodes if n.op == "sigmoid"]
    for strategy in ("save_all", "recompute_all", "min_cut", lambda p: tanhs):
        log: list[Decision] = []
        partition(program, strategy=strategy, log=log)  # type: ignore[arg-type]
        (summary,) = (d for d in log if d.kind == "partition")
        names = [p["name"] for p in summary.alternatives]
        assert {"save_all", "recompute_all"} <= {*names}
        assert ("min_cut" in names) >= (strategy not in ("save_all", "recompute_all"))
        assert ("function" in names) == callable(strategy)
        (chosen,) = (p for p in summary.alternatives if p["chosen"])
        assert chosen["is_exact"] and chosen["planned_peak"] == summary.numbers["planned_peak"]
        assert summary.numbers["gap_seconds"] >= 0
        best = [p for p in summary.alternatives if p["name"] == "min_cut"]
        if callable(strategy):  # the best with as many bytes is beside it, and no dearer
            assert min(p["extra_seconds"] for p in best) <= chosen["extra_seconds"]
            spare = chosen["extra_seconds"] - min(p["extra_seconds"] for p in best)
            assert summary.numbers["gap_seconds"] == pytest.approx(spare, abs=1e-11)


def test_a_preset_must_keep_a_budget_of_bytes() -> None:
    program = deep()
    most = peak(partition(program, strategy="save_all"))
    with pytest.raises(BudgetError, match=f"'save_all' takes {most} bytes"):
        partition(program, strategy="save_all", memory_budget=most - 1)


# ---- known shapes -------------------------------------------------------------------------------


FUSED = Rates(100e9, 1.0, math.inf, 0.0, "a test: fused code", saved=1e-10, inline=0.9e-9)


def test_the_chain_of_the_lesson() -> None:
    """x -> matmul -> gelu -> dropout -> matmul -> norm -> loss: the matmul outputs are saved, and
    gelu and dropout computed again."""
    step, batch = chain_of_the_lesson()
    program = differentiate(functionalize(capture(step, batch, {}).program), joint=False)
    program = simplify(program)
    lines = {i: n.loc.source.strip() for i, n in program.producers.items() if n.loc is not None}
    for options in ({"rates": FUSED}, {"cost": "flops"}):
        graph = SplitGraph(program, options.get("cost", "time"), options.get("rates", NUMPY_RATES))  # type: ignore[arg-type]
        frontier = Frontier(graph)
        products = [i for i in graph.nodes if program.producers[i].op == "dot"]
        able = [frontier.choice(at) for at in range(len(frontier.corners))]
        choice = next(c for c in able if not any(p in c.recomputed for p in products))
        saved = {lines[i] for i in choice.saved}
        made_again = {lines[i] for i in (*choice.recomputed, *graph.behind)}
        assert {"product = up(x)"} <= saved
        assert {"active = F.gelu(product)", "dropped = F.dropout(active, 0.1)"} <= made_again
        assert not any("gelu" in line for line in saved)
        types = {program.values[i].type.dtype for i in choice.saved if "dropout" in lines[i]}
        assert types <= {bool_}  # at most the mask, a byte an element


def test_long_attention_keeps_no_square() -> None:
    """At T = 1024: below T x T x 4 bytes a head nothing of T x T is saved, and the default says
    what each square costs both ways."""
    length, heads, width = 1024, 2, 8

    def attend(q: ta.Tensor, k: ta.Tensor, v: ta.Tensor) -> ta.Tensor:
        return ta.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    given = [ta.randn(1, heads, length, width, requires_grad=True) for _ in range(3)]
    captured = capture(attend, tuple(given), {})
    program = simplify(differentiate(functionalize(captured.program)))
    square = heads * length * length
    frontier = Frontier(SplitGraph(program, "time", NUMPY_RATES))
    least = frontier.corners[0][0]
    for budget in (least, least + 4 * length, square // 2, square, 4 * square - 1):
        best = least_price(frontier, budget)
        assert best is not None and best.gap == 0
        sizes = [program.values[i].type.size for i in best.choice.saved]
        if budget < square:  # bytes: less than one of them as bool
            assert max(sizes, default=0) < square
        wide = [i for i in best.choice.saved if program.values[i].type.nbytes >= 4 * square]
        assert not wide
    log: list[Decision] = []
    partition(program, log=log)
    told = [d for d in log if d.kind in ("save", "recompute") and d.numbers["bytes"] >= 4 * square]
    assert told
    for d in told:
        price = d.numbers["seconds"] if d.kind == "save" else d.numbers["flip_bytes"]
        assert price > 0 and d.reason
