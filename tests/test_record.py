"""The record is plain data: it goes to JSON and back, and tells the life of a value."""

from __future__ import annotations

import json
import math

import pytest

from tests.random_programs import random_program
from tinyaot.memory import planned_peak
from tinyaot.passes import partition, plan, schedule, simplify
from tinyaot.record import Decision, Kernel, Record, Stage


def record(seed: int = 1, *, joint: bool = True, budget: float | None = None) -> Record:
    decisions: list[Decision] = []
    program = random_program(seed, joint=joint)
    stages = [Stage("autodiff", program, 0.25)]
    for name, run in (
        ("simplify", lambda p: simplify(p, log=decisions)),
        ("partition", lambda p: partition(p, memory_budget=budget, log=decisions)),
        ("schedule", lambda p: schedule(p, log=decisions)),
        ("plan", lambda p: plan(p, log=decisions)),
    ):
        program = run(program)
        stages.append(Stage(name, program, 0.1))
    found = Record.of("f", "numpy", stages, decisions)
    found.kernels = [Kernel("add", "add(v1, v2, v3)", (3,), 48, 4)]
    return found


@pytest.mark.parametrize("joint", [False, True])
def test_json_round_trip(joint: bool) -> None:
    for seed in range(5):
        before = record(seed, joint=joint, budget=0.5)
        text = before.to_json()
        after = Record.from_json(text)
        assert after == before
        assert after.to_json() == text
        assert json.loads(text)["stages"][0]["text"].startswith("program ")


def test_what_it_holds() -> None:
    r = record()
    program = r.program("plan")
    assert r.memory["planned_peak"] == planned_peak(program)
    assert r.memory["lower_bound"] <= r.memory["planned_peak"]  # type: ignore[operator]
    assert set(r.flops) == {"forward", "backward", "recompute", "update"}
    assert {b.id for b in r.buffers} == {p.root for p in program.plan.places.values()}  # type: ignore[union-attr]
    assert sum(s.bytes for s in r.saved) == r.memory["saved_bytes"]
    assert [p.chosen for p in r.pareto].count(True) == 1
    assert all(s.cost_to_recompute >= 0 and "[" in s.type for s in r.saved)
    with pytest.raises(KeyError, match="simplify"):
        r.program("nowhere")


def test_the_life_of_a_value() -> None:
    r = record(budget=0.0)
    for stage in r.stages:
        for id_ in stage.program.values:
            assert r.why(id_).startswith(f"%{id_}: ")
    if r.saved:
        story = r.why(r.saved[0].id)
        assert "save: save (budget)" in story and "memory: " in story
    again = [d.subject for d in r.decisions if d.kind == "recompute"]
    assert again and "recompute: recompute (" in r.why(again[0])  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="%99999"):
        r.why(99999)


def test_measuring_needs_the_compiled_function() -> None:
    r = record()
    r.measurer = lambda *args: {"measured_peak": 7}
    assert r.measure().memory["measured_peak"] == 7
    with pytest.raises(RuntimeError, match="not attached"):
        Record.from_json(r.to_json()).measure()


def test_text_that_is_no_record() -> None:
    for text in ("{}", "[]", '{"format": 99}', "nonsense"):
        with pytest.raises(ValueError):
            Record.from_json(text)


def test_decisions_print() -> None:
    d = Decision("save", 3, "save", "least-peak", {"bytes": 64, "seconds": 2.5e-6})
    assert str(d) == "save: save (least-peak): bytes 64, seconds 2.5 us"
    assert math.isclose(d.numbers["seconds"], 2.5e-6)
