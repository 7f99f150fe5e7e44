"""Pictures, tables and plots: what they show, and that no text breaks them."""

from __future__ import annotations

import io
import math
import random
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import tinyaot as ta
from tinyaot.builder import Builder
from tinyaot.ir import Input, Origin, Output, Place, Plan, Program, Value
from tinyaot.location import Loc
from tinyaot.record import Buffer, Decision, Kernel, Point, Record, Saved, Stage
from tinyaot.shapes import TensorType, bool_, float32
from tinyaot.viz import render as rendering
from tinyaot.viz.boxes import boxes_of, is_inlined
from tinyaot.viz.dot import draw
from tinyaot.viz.kernels import show_kernels, show_values
from tinyaot.viz.labels import RED
from tinyaot.viz.memory import positions, show_memory
from tinyaot.viz.network import draw_network
from tinyaot.viz.plot import bar, curves, scatter
from tinyaot.viz.report import show_record
from tinyaot.viz.units import bytes_text, count_text, seconds_text


def f32(*shape: int) -> TensorType:
    return TensorType(float32, shape)


@pytest.fixture
def source(tmp_path: Path) -> str:
    """A user's file with a line that would break a careless label."""
    file = tmp_path / "user.py"
    file.write_text('h = relu(x @ w)  # "a" < b & [c]\nloss = h.sum()\nw -= rate * grad\n')
    return str(file)


def training_step(file: str, stage: str = "partition", plan: bool = False) -> Program:
    """relu(x @ w).sum(), its gradient with the mask computed again, and the update of w."""
    x, w, rate = Value(0, f32(4, 3)), Value(1, f32(3, 2)), Value(2, f32())
    b = Builder(3)

    def emit(op: str, operands: tuple[Value, ...], type_: TensorType, **attrs: object) -> Value:
        return b.emit(op, operands, (type_,), attrs).result

    b.phase, b.loc = "forward", Loc(file, 1)
    z = emit("dot", (x, w), f32(4, 2), spec="ij,jk->ik")
    h = emit("relu", (z,), f32(4, 2))
    b.loc = Loc(file, 2)
    total = emit("sum", (h,), f32(1, 1), axes=(0, 1))
    loss = emit("reshape", (total,), f32(), shape=())
    b.phase, b.loc = "backward", Loc(file, 1)
    zero, one = b.scalar(0.0, float32), b.scalar(1.0, float32)
    b.origin = (Origin("recompute-of", h.id),)
    again = emit("relu", (z,), f32(4, 2))
    b.origin = (Origin("vjp-of", h.id, 0),)
    mask = emit("gt", (again, zero), TensorType(bool_, (4, 2)))
    g = emit("where", (mask, one, zero), f32(4, 2))
    gw = emit("dot", (x, g), f32(3, 2), spec="ij,ik->jk")
    b.phase, b.loc, b.origin = "update", Loc(file, 3), ()
    new = emit("sub", (w, emit("mul", (gw, rate), f32(3, 2))), f32(3, 2))
    places = {z.id: Place("arena", 64, 32, z.id, 0, 6), h.id: Place("arena", 64, 32, z.id, 0, 6)}
    return Program(
        "step",
        stage,
        (
            Input(x, "argument", "x"),
            Input(w, "state", "model.w", True),
            Input(rate, "hyper", "optimizer.lr"),
        ),
        tuple(b.nodes),
        (Output(loss), Output(new, "mutated", w.id)),
        b.next_id,
        Plan(96, places) if plan else None,
    )


# ---- boxes --------------------------------------------------------------------------------------


def test_ops_of_one_line_share_a_box(source: str) -> None:
    boxes = boxes_of(training_step(source))
    assert [[n.op for n in b.nodes] for b in boxes] == [
        ["dot", "relu"],
        ["sum", "reshape"],
        ["relu"],
        ["gt", "where", "dot"],
        ["mul", "sub"],
    ]
    assert [b.recomputed for b in boxes] == [False, False, True, False, False]


def test_a_box_takes_no_op_that_would_close_a_circle(source: str) -> None:
    """a (line 1) -> b (line 2) -> c (line 1): c may not join a's box, which b needs."""
    builder = Builder(1)
    x = Value(0, f32(2))
    values = [x]
    for line in (1, 2, 1):
        builder.loc = Loc(source, line)
        values.append(builder.emit("exp", (values[-1],), (f32(2),)).result)
    last = builder.emit("add", (values[1], values[3]), (f32(2),)).result
    program = Program("f", "trace", (Input(x),), tuple(builder.nodes), (Output(last),), 5)
    assert [len(b.nodes) for b in boxes_of(program)] == [1, 1, 2]


@pytest.mark.parametrize("seed", range(5))
def test_boxes_never_need_each_other(source: str, seed: int) -> None:
    pick = random.Random(seed)
    builder = Builder(1)
    values = [Value(0, f32(2))]
    for _ in range(60):
        builder.loc = Loc(source, pick.randint(1, 3))
        operands = (pick.choice(values[-8:]), pick.choice(values[-8:]))
        values.append(builder.emit("add", operands, (f32(2),)).result)
    program = Program(
        "f", "trace", (Input(values[0]),), tuple(builder.nodes), (Output(values[-1]),), 61
    )
    boxes = boxes_of(program)
    assert sum(len(b.nodes) for b in boxes) == 60
    assert len(boxes) < 60  # it does group
    done: set[int] = set()
    waiting = list(boxes)
    while waiting:
        ready = [b for b in waiting if b.needs <= done]
        assert ready, "boxes need each other"
        done.update(b.number for b in ready)
        waiting = [b for b in waiting if b.number not in done]


def test_a_step_written_on_one_line_is_drawn_whole() -> None:
    net = ta.nn.Linear(3, 4)
    opt = ta.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    # fmt: off
    def step(x: ta.Tensor) -> ta.Tensor:
        loss = (net(x) ** 2).sum(); opt.zero_grad(); loss.backward(); opt.step(); return loss  # noqa
    # fmt: on

    for stage in ta.compile(step, backend="numpy").explain(ta.ones(4, 3)).stages:
        boxes = boxes_of(stage.program)
        drawn = [id(n) for b in boxes for n in b.nodes]
        wanted = [n for n in stage.program.nodes if not is_inlined(stage.program, n)]
        assert len(drawn) == len(set(drawn)) == len(wanted)
        assert all(b.needs < set(range(len(boxes))) for b in boxes)


def test_by_op_gives_every_op_a_box(source: str) -> None:
    program = training_step(source)
    drawn = [n for n in program.nodes if n.op != "full"]
    assert draw(program, by="op").source.count("\tb") >= len(drawn)
    assert len(boxes_of(program, 1)) == len(drawn)


# ---- graphs -------------------------------------------------------------------------------------


def test_the_visual_language(source: str) -> None:
    dot = draw(training_step(source)).source
    for phase in ("forward", "backward", "update"):
        assert f"subgraph cluster_{phase}" in dot and f"id=phase_{phase}" in dot
    (saved,) = [line for line in dot.splitlines() if "id=e0_2" in line]
    assert "#c8102e" in saved and "%3  32 B" in saved  # the 4x2 product, read by the recomputation
    assert "ROUNDED,DASHED" in dot and "recomputed: user.py:1" in dot
    assert "style=dashed" in next(line for line in dot.splitlines() if "id=r0_2" in line)
    assert "overwrites model.w" in dot and "returned" in dot
    assert "gradient of user.py:1" in dot
    assert "(%11, optimizer.lr)" in dot or "optimizer.lr)" in dot  # a scalar input, by name
    assert "<B>full</B>" not in dot and ", 1, 0)" in dot  # constants, in their reader's row


def test_before_the_split_nothing_is_called_saved(source: str) -> None:
    dot = draw(training_step(source, stage="autodiff")).source
    assert not [line for line in dot.splitlines() if "->" in line and "#c8102e" in line]


def test_a_plan_shows_places(source: str) -> None:
    dot = draw(training_step(source, stage="plan", plan=True)).source
    assert "arena +64" in dot and "in %3" in dot and "arena 96 B" in dot


def test_text_of_the_user_is_escaped(source: str) -> None:
    dot = draw(training_step(source)).source
    assert "&quot;a&quot; &lt; b &amp; [c]" in dot
    labels = re.findall(r"label=<(<TABLE.*?</TABLE>)>[ \]]", dot)
    assert len(labels) > 5
    for label in labels:
        ElementTree.fromstring(label)  # well formed


def test_writes_are_ordered_before_later_reads() -> None:
    """In a trace nothing but order says that a value was overwritten."""
    x, b = Value(0, f32(2)), Builder(1)
    b.loc = Loc("nowhere.py", 1)
    y = b.emit("exp", (x,), (f32(2),)).result
    b.loc = Loc("nowhere.py", 2)
    b.emit("write", (y, x), ())
    b.loc = Loc("nowhere.py", 3)
    z = b.emit("neg", (y,), (f32(2),)).result
    program = Program("f", "trace", (Input(x),), tuple(b.nodes), (Output(z),), 3)
    assert "b1 -> b2 [style=dotted" in draw(program).source.replace("\t", "")


def test_an_input_given_back_is_drawn() -> None:
    x = Value(0, f32(2))
    dot = draw(Program("f", "trace", (Input(x, name="x"),), (), (Output(x),), 1)).source
    assert "x → returned as it is" in dot


# ---- pictures -----------------------------------------------------------------------------------


def test_svg_has_the_ids(source: str) -> None:
    if rendering.renderer() is None:
        pytest.skip("no Graphviz here")
    svg = rendering.render(draw(training_step(source)).source, "svg")
    assert svg is not None
    ids = {e.get("id") for e in ElementTree.fromstring(svg).iter()}
    assert {"b0", "a_v3", "e0_2", "phase_forward", "phase_backward", "phase_update"} <= ids


def test_png(source: str) -> None:
    if rendering.renderer() is None:
        pytest.skip("no Graphviz here")
    png = rendering.render(draw(training_step(source)).source, "png")
    assert png is not None and png.startswith(b"\x89PNG")


def test_without_a_renderer_the_text_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendering, "renderer", lambda: None)
    assert rendering.render("digraph {}", "svg") is None
    written = rendering.write("digraph {}", tmp_path / "a", "svg")
    assert written == tmp_path / "a.dot" and written.read_text() == "digraph {}"


@pytest.mark.parametrize("tool", ["dot", "pygraphviz"])
def test_a_renderer_that_fails_is_one_line(
    tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tool == "pygraphviz":
        pytest.importorskip("pygraphviz")
    else:  # a dot command that always fails
        command = tmp_path / "dot"
        command.write_text("#!/bin/sh\necho 'syntax error' >&2\nexit 1\n")
        command.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(rendering, "renderer", lambda: tool)
    with pytest.raises(rendering.RenderError) as caught:
        rendering.write("this is { no graph", tmp_path / "a", "svg")
    assert tool in str(caught.value) and "\n" not in str(caught.value)
    assert (tmp_path / "a.dot").exists()


# ---- reports ------------------------------------------------------------------------------------


def a_record(source: str, clock: str = "node") -> Record:
    """Of the step above: five nodes of the forward and the constants share an arena of 96 bytes."""
    program = training_step(source, "plan")
    found = Record("step", "numpy", [Stage("plan", program, 0.5)], clock=clock)
    found.memory = {"planned_peak": 96, "measured_peak": None, "eager_peak": None}
    found.flops = {"forward": 10, "backward": 30}
    found.kernels = [
        Kernel("first", "f()", (3, 4), 100, 48, 1e-6),
        Kernel("last", "l()", (13, 14, 15), 60, 24, 2e-6),
    ]
    found.buffers = [
        Buffer(3, "arena", 0, 32, 0, 1, (3, 4)),
        Buffer(4, "arena", 32, 64, 1, 1, (5,)),
        Buffer(0, "input", 0, 1000, -1, 9, (0,)),
    ]
    found.decisions = [
        Decision("fusion", 3, "first", "shared", {"kept inside": 2048}),
        Decision("fusion", 13, "not in first", "labels differ"),
    ]
    found.saved = [Saved(3, "f32[4,2]", 32, "cheap-to-keep", 1e-6)]
    found.pareto = [
        Point("save_all", 64, 96, 0, 0.0, True, True),
        Point("less", 32, 80, 10, 1e-6, False, False),
        Point("worse", 64, 100, 10, 1e-6, False, True),
    ]
    return found


def test_the_flow_network_and_its_cut() -> None:
    def f(x: ta.Tensor, w: ta.Tensor) -> ta.Tensor:
        return ((x @ w).exp().sin() @ w).tanh().sum()

    given = [ta.ones(8, 8, requires_grad=True) for _ in range(2)]
    record = ta.compile(f, backend="numpy", memory_budget=0.5).explain(*given)
    dot = draw_network(record).source
    kept = [s for s in record.network if s.cut == "keep"]
    again = [s for s in record.network if s.cut == "again"]
    assert kept and {s.id for s in kept} == {s.id for s in record.saved}
    assert {s.id for s in again} == {r.id for r in record.recomputed}
    boxes = [line for line in dot.splitlines() if f'color="{RED}"' in line]
    assert len(boxes) == len(kept) and dot.count("style=dashed") == len(again)
    assert dot.count("source -> ") == len(record.network)
    assert dot.count("-> sink") == sum(s.read for s in record.network)


def test_points_are_plotted_where_they_are() -> None:
    lines = scatter([(0.0, 10.0, False), (5.0, 4.0, True), (10.0, 2.0, False)], width=11, height=5)
    rows = [line.partition("|")[2] for line in lines[:5]]
    assert rows[0][0] == "o" and rows[-1][10] == "o" and rows[3][5] == "#"


def printed(record: Record, show: Callable[[Console, Record], None] = show_record) -> str:
    out = Console(file=io.StringIO(), width=110, highlight=False, markup=False)
    show(out, record)
    return out.file.getvalue()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("clock", ["node", "kernel"])
def test_memory_over_the_step_is_the_buffers(source: str, clock: str) -> None:
    record = a_record(source, clock)
    alive = [p.alive for p in positions(record)]
    assert alive[:3] == ([32, 96, 0] if clock == "node" else [32, 96])
    assert len(alive) == (len(record.program("plan").nodes) if clock == "node" else 2)
    text = printed(record, show_memory)
    assert f"{clock}s" in text and "at most 96 B" in text
    (peak,) = [line for line in text.splitlines() if line.rstrip().endswith(" peak")]
    assert "#" * 40 in peak and ("user.py:1" if clock == "node" else "update") in peak


def test_bars_of_a_real_plan_reach_its_lower_bound() -> None:
    def f(x: ta.Tensor) -> ta.Tensor:
        return (x.exp() * x.tanh()).sum()

    x = ta.ones(64, 64, requires_grad=True)
    record = ta.compile(f, backend="numpy").explain(x)
    bound, scratch = record.memory["lower_bound"], record.memory["scratch"]
    assert bound is not None and scratch is not None
    # outputs and saved values are the caller's to the end; the plan counts them from the start
    most = max(p.alive for p in positions(record))
    assert 0.5 * bound <= most <= bound - scratch


def test_kernels_are_in_order_of_their_time(source: str) -> None:
    record = a_record(source)
    text = printed(record, show_kernels)
    assert text.index("last") < text.index("first")  # by what is expected
    assert "Kernels: 2, 160 B moved, 2 KiB kept inside" in text and "dot, relu" in text
    assert "labels differ" in text and "67%" in text
    record.kernels = [replace(k, seconds=s) for k, s in zip(record.kernels, (3e-3, 1e-3))]
    text = printed(record, show_kernels)
    assert text.index("first") < text.index("last") and "75%" in text and "3 ms" in text


def test_values_say_what_became_of_them(source: str) -> None:
    lines = printed(a_record(source), show_values).splitlines()
    row = {line.split()[0]: line for line in lines if line.startswith(("%", " %"))}
    assert "saved: cheap-to-keep" in row["%3"] and "arena +0" in row["%3"]
    assert "first" in row["%4"] and "last" in row["%14"]


def test_a_report_has_every_part(source: str) -> None:
    text = printed(a_record(source))
    for words in ("Stages of step, for the backend numpy", "Memory over the step", "FLOPs of a",
                  "Saved from forward to backward: 32", "chosen", "beaten by another",
                  "<= 80 B", "Planned peak (KiB)"):  # fmt: skip
        assert words in text
    assert "One call, measured" not in text  # nothing was
    record = a_record(source)
    record.times = {"eager": 3e-3, "compiled": 1e-3}
    record.memory |= {"measured_peak": 100, "eager_peak": 200}
    text = printed(record)
    assert "3.00x faster" in text and "0.50 of eager's" in text


# ---- plots and numbers --------------------------------------------------------------------------


def test_curves_that_agree_are_drawn_as_one() -> None:
    falling = [math.exp(-i / 20) for i in range(100)]
    lines = curves({"eager": falling, "compiled": falling}, width=40, height=6)
    body = "".join(lines[:6])
    assert "#" in body and "o" not in body and "x" not in body
    assert lines[0].strip().startswith("0.97") and "logarithmic" in lines[-1]
    assert max(map(len, lines[:6])) <= 10 + 40


def test_curves_that_differ_are_told_apart() -> None:
    lines = curves({"eager": [1.0, 1.0], "compiled": [2.0, 2.0]}, height=4)
    assert "xx" in lines[0] and "oo" in lines[3]


@pytest.mark.parametrize("values", [[], [math.nan], [math.inf, math.nan]])
def test_nothing_to_plot(values: list[float]) -> None:
    assert curves({"eager": values}) == ["(nothing to plot)"]


@pytest.mark.parametrize("values", [[0.0], [5.0], [1.0, math.nan, 3.0], [-1.0, 0.0, 1e9]])
def test_any_finite_values_plot(values: list[float]) -> None:
    assert any("o" in line for line in curves({"a": values})[:-2])


def test_units() -> None:
    assert [bytes_text(n) for n in (0, 512, 1536, 3 << 20, None)] == [
        "0 B",
        "512 B",
        "1.5 KiB",
        "3 MiB",
        "-",
    ]
    assert [count_text(n) for n in (7, 1250, 2_000_000)] == ["7", "1.25 k", "2 M"]
    assert [seconds_text(s) for s in (2.5, 0.0125, 125e-6, 4e-9, 0.0)] == [
        "2.5 s",
        "12.5 ms",
        "125 us",
        "4 ns",
        "0 ns",
    ]
    assert (bar(0.5, 10), bar(-1, 10), bar(9, 10)) == ("#####", "", "#" * 10)
