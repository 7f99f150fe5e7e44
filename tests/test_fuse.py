"""The stages from layout to plan for code that is printed as loops: what they decide, and that a
Program is all that they need."""

from __future__ import annotations

import numpy as np
import pytest

import tinyaot as ta
from tinyaot.backends import cpu
from tinyaot.errors import BackendError
from tinyaot.interpret import interpret
from tinyaot.ir import Program
from tinyaot.memory import planned_peak
from tinyaot.passes import assign_layouts, fuse, pipeline, plan, schedule
from tinyaot.passes.fuse import flatten, fusion_of
from tinyaot.record import Decision
from tinyaot.text import parse
from tinyaot.verify import verify

needs_compiler = pytest.mark.skipif(cpu.unavailable() is not None, reason="no C compiler")
TO_PARTITION = "functionalize,autodiff,simplify,partition"


def step(x: ta.Tensor, w: ta.Tensor) -> ta.Tensor:
    h = (x @ w).tanh()
    loss = (h - h.mean(1, keepdim=True)).square().sum()
    (g,) = ta.grad(loss, [w])
    with ta.no_grad():
        w -= 0.1 * g
    return loss


def partitioned(fn=step, *args: ta.Tensor) -> Program:
    args = args or (ta.randn(48, 24), ta.randn(24, 16, requires_grad=True))
    return pipeline(TO_PARTITION)(ta.trace(fn, *args))


def arrays_for(program: Program) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    types = [i.value.type for i in program.inputs]
    return [np.asarray(rng.standard_normal(t.shape), t.dtype.numpy) for t in types]


def assert_same(a: Program, b: Program) -> None:
    given = arrays_for(a)
    for x, y in zip(interpret(a, *given), interpret(b, *given), strict=True):
        np.testing.assert_array_equal(x, y)  # the same ops in the same order


def test_every_stage_obeys_round_trips_and_keeps_values() -> None:
    before = partitioned()
    program = before
    for run in (assign_layouts, fuse, schedule, plan):
        program = run(program)
        verify(program)
        assert parse(str(program)) == program
        assert_same(before, program)
    assert program.is_fused and len(program.nodes) < len(before.nodes)


def test_halves_have_regions_of_their_own() -> None:
    def f(x: ta.Tensor) -> ta.Tensor:
        return (x.exp() * x.sin()).sum()

    program = pipeline("layout,fuse,schedule,plan")(partitioned(f, ta.randn(8, requires_grad=True)))
    verify(program)
    assert {n.phase for n in program.nodes} == {"forward", "backward"}
    saved = {o.value.id for o in program.outputs_of("saved")}
    made = {r.id for n in program.nodes if n.phase == "forward" for r in n.results}
    assert saved <= made


def test_a_copy_is_a_decision_with_its_bytes_and_reason() -> None:
    log: list[Decision] = []
    assign_layouts(partitioned(lambda x: x.T, ta.randn(3, 2)), log=log)
    assert log == []  # the caller's view is made from the argument itself: nothing is computed
    program = parse(
        """
        program f @ partition
          input %0: f32[2,3] argument "x"
          %1: f32[3,2] = permute(%0) {perm=[1,0]} forward
          output user %1
        """
    )
    after = assign_layouts(program, log=log)
    (copy,) = log
    assert (copy.kind, copy.choice, copy.reason) == ("layout", "copy", "given back")
    assert copy.numbers == {"bytes": 24} and after.computed[copy.subject or 0].op == "copy"


def test_every_region_and_refusal_is_a_decision() -> None:
    log: list[Decision] = []
    fused = fuse(assign_layouts(partitioned()), log=log)
    names = {n.attrs["name"] for n in fused.nodes}
    assert {d.choice for d in log if d.numbers} == names
    assert all(d.choice.removeprefix("not in ") in names for d in log)


def test_a_parsed_program_is_fused_anew() -> None:
    """What fuse leaves in the notes is not in the text, and not needed."""
    program = pipeline("layout,fuse")(partitioned())
    parsed = parse(str(program))
    assert parsed.notes is None
    again = plan(schedule(parsed))
    verify(again)
    assert_same(program, again)
    assert planned_peak(again) <= planned_peak(plan(schedule(program)))


def test_notes_belong_to_their_nodes() -> None:
    program = pipeline("layout,fuse")(partitioned())
    fewer = program.replace(nodes=program.nodes[:1], outputs=())
    assert fusion_of(fewer) is not program.notes


def test_a_flat_program_is_the_fused_one_without_loops() -> None:
    program = assign_layouts(partitioned())
    flat = flatten(fuse(program))
    assert not flat.is_fused and sorted(flat.values) == sorted(
        {i.value.id for i in program.inputs} | fuse(program).computed.keys()
    )
    assert_same(program, flat)


@needs_compiler
def test_what_runs_is_what_was_planned() -> None:
    """The C backend takes the regions as they stand, from text too."""
    program = pipeline("layout,fuse{threads=2},schedule,plan")(partitioned())
    given = arrays_for(program)
    wanted = interpret(program, *given)
    for p in (program, parse(str(program))):
        executable = cpu.Executable(p, poison=True)
        got = executable.run("step", [x.copy() for x in given])
        for x, y in zip(wanted, got, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
    kernels = [k.name for k in cpu.Executable(program).kernels]
    assert kernels == [n.attrs["name"] for n in program.nodes]


@needs_compiler
def test_the_record_speaks_of_the_code_that_runs() -> None:
    x, w = ta.randn(48, 24), ta.randn(24, 16, requires_grad=True)
    record = ta.compile(step, backend="c").explain(x, w)
    planned = record.program("plan")
    assert planned.is_fused and planned.plan is not None
    (update,) = [d for d in record.decisions if d.kind == "in-place"]
    (output,) = planned.outputs_of("mutated")
    assert (update.subject, update.choice) == (output.value.id, f"%{output.of}")
    assert not any(d.kind == "copy" for d in record.decisions)
    inside = next(i for i in planned.computed if i not in planned.values)
    assert "kernel: " in record.why(inside)
    assert ta.Record.from_json(record.to_json()).program("plan") == planned


@needs_compiler
def test_auto_takes_c_where_a_compiler_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TINYAOT_BACKEND", raising=False)
    compiled = ta.compile(lambda x: x.exp().sum())
    assert compiled.explain(ta.randn(3)).backend == "c"


@needs_compiler
def test_auto_takes_numpy_for_what_c_refuses_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TINYAOT_BACKEND", raising=False)

    def refuse(*args: object, **options: object) -> None:
        raise BackendError("the compiler is gone")

    monkeypatch.setattr(cpu, "Executable", refuse)
    compiled = ta.compile(lambda x: x.exp().sum())
    with pytest.warns(UserWarning, match="runs on numpy: the compiler is gone"):
        record = compiled.explain(ta.tensor([1.0]))
    assert record.backend == "numpy" and not record.program("plan").is_fused
