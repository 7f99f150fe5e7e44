"""Random steps compiled to C agree with the interpreter, on poisoned memory and 1 to 8 threads."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import numpy as np
import pytest

from tests.any_plan import any_plan
from tests.random_programs import random_program
from tests.random_steps import random_arrays, random_step
from tinyaot import passes
from tinyaot.backends import cpu
from tinyaot.backends import numpy as numpy_backend
from tinyaot.interpret import interpret
from tinyaot.ir import Program
from tinyaot.passes.fusion import plan as fusion_plan

pytestmark = pytest.mark.skipif(cpu.unavailable() is not None, reason="no C compiler")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A cache of this run's own: many small programs."""
    monkeypatch.setenv("TINYAOT_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def on_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take the plan for as many threads as are asked for, although it is dearer."""

    def plan(program: Program, threads: int, machine: cpu.Machine) -> fusion_plan.FusionPlan:
        return fusion_plan.plan_among(program, (threads,), machine)

    monkeypatch.setattr(importlib.import_module("tinyaot.passes.fuse"), "plan_fusion", plan)
    yield


def agree(program: Program, threads: int, seed: int) -> None:
    arrays = random_arrays(program, seed)
    expected = interpret(program, *arrays)
    executable = cpu.Executable(program, poison=True, threads=threads)
    got = executable.run("step", [a.copy() for a in arrays])
    sorts = any(n.op == "argsort" for n in program.nodes)
    for output, a, b in zip(program.outputs, expected, got, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if a.dtype.kind == "f":
            scale = np.abs(a[np.isfinite(a)]).max(initial=1.0)
            large = np.abs(a) > 1e30
            near = np.isclose(a, b, rtol=2e-3, atol=2e-4 * scale, equal_nan=True)
            assert (near | large).all(), f"seed {seed}: {output.role} {output.value}"
        elif not sorts:  # near ties may be ordered either way
            assert np.array_equal(a, b), f"seed {seed}: {output.role} {output.value}"


@pytest.mark.parametrize("seed", range(12))
def test_steps_on_two_threads(seed: int, on_threads: None) -> None:
    agree(random_step(seed), 2, seed)


@pytest.mark.parametrize("threads", [3, 8])
def test_whoever_runs_a_share_the_bits_are_the_same(threads: int, on_threads: None) -> None:
    program = random_step(threads)
    arrays = random_arrays(program, threads)
    executable = cpu.Executable(program, threads=threads)
    first = executable.run("step", [a.copy() for a in arrays])
    for _ in range(40):
        again = executable.run("step", [a.copy() for a in arrays])
        assert all(a.tobytes() == b.tobytes() for a, b in zip(first, again, strict=True))
    agree(program, threads, threads)


@pytest.mark.parametrize("seed", range(50, 66))
def test_steps_with_any_plan(seed: int) -> None:
    with any_plan():
        agree(random_step(seed), 3, seed)


@pytest.mark.parametrize("seed", range(12, 18))
def test_steps_on_one_thread(seed: int) -> None:
    agree(random_step(seed), 1, seed)


@pytest.mark.parametrize("seed", range(6))
def test_halves_agree_with_the_numpy_backend(seed: int, on_threads: None) -> None:
    program = passes.partition(passes.simplify(random_program(seed, joint=True)))
    program = passes.plan(passes.schedule(program))
    reference = numpy_backend.Executable(program)
    compiled = cpu.Executable(program, poison=True, threads=2)
    rng = np.random.default_rng(seed)
    given: dict[int, np.ndarray] = {}
    for half in ("forward", "backward"):
        takes = reference.inputs(half)
        assert takes == compiled.inputs(half)
        assert reference.outputs(half) == compiled.outputs(half)
        for v in takes:
            if v.id not in given:
                made = rng.integers(0, 9, v.type.shape)
                if v.type.dtype.is_floating:
                    made = rng.standard_normal(v.type.shape)
                given[v.id] = np.asarray(made, v.type.dtype.numpy)
        results = []
        for executable in (reference, compiled):
            arrays = [given[v.id].copy() for v in takes]
            results.append(executable.run(half, arrays))
        for output, a, b in zip(reference.outputs(half), *results, strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-3, atol=1e-3)
            if output.role == "saved":
                given[output.value.id] = a
