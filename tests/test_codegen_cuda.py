"""CUDA text: kept as it is, compiled by NVIDIA's compiler where there is one, and run on the CPU by
`tests/cuda/host.h`, where threads and blocks come in three orders."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import tinyaot as ta
from tests.cuda.host import COMPILER, FORWARD, REVERSED, SHUFFLED, Host
from tests.cuda.programs import PROGRAMS, path, program, tensor, text
from tests.random_steps import random_arrays, random_step
from tinyaot.codegen.c import header
from tinyaot.codegen.cuda import Launch, Product, emit_cuda
from tinyaot.errors import BackendError
from tinyaot.interpret import interpret
from tinyaot.ir import Program
from tinyaot.nn import functional as F
from tinyaot.shapes import float16, int64
from tinyaot.tensor import Tensor

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
ORDERS = (FORWARD, REVERSED, SHUFFLED)


@pytest.mark.parametrize("name", PROGRAMS)
def test_text_is_as_kept(name: str) -> None:
    """`python -m tests.cuda` writes it anew."""
    assert text(name) == path(name).read_text(encoding="utf-8")


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_kept_text_compiles(tmp_path: Path) -> None:
    kernels = [re.sub(r"\bkernel_", f"{name}_", path(name).read_text()) for name in PROGRAMS]
    source = tmp_path / "all.cu"
    source.write_text("\n".join([*map(header, ("vmath.h", "sort.h", "team.h")), *kernels]))
    command = ["nvcc", "-arch=sm_90", "-fmad=false", "-c", source, "-o", tmp_path / "all.o"]
    made = subprocess.run(command, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr


def agree(step: Program, arrays: list[np.ndarray]) -> None:
    """The CPU's run of the text gives the interpreter's values, with the same bits in any order."""
    expected = interpret(step, *arrays)
    host = Host(step)
    runs = [host.run([np.array(a, order="C") for a in arrays], order) for order in ORDERS]
    for output, a, *found in zip(step.outputs, expected, *runs, strict=True):
        assert len({x.tobytes() for x in found}) == 1, f"{output.value} depends on the order"
        assert (a.shape, a.dtype) == (found[0].shape, found[0].dtype)
        if a.dtype.kind == "f":
            scale = np.abs(a[np.isfinite(a)]).max(initial=1.0)
            near = np.isclose(found[0], a, rtol=2e-3, atol=2e-4 * scale, equal_nan=True)
            assert (near | (np.abs(a) > 1e30)).all(), f"{output.role} {output.value}"
        else:
            assert np.array_equal(a, found[0]), f"{output.role} {output.value}"


@needs_compiler
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_of_kept_programs(name: str) -> None:
    step = PROGRAMS[name]()
    arrays = [abs(a) % 10 if a.dtype == np.int64 else a for a in random_arrays(step, 0)]
    agree(step, arrays)


@needs_compiler
@pytest.mark.parametrize("seed", [1, 4, 5, 10, 12, 19])
def test_values_of_random_steps(seed: int) -> None:
    step = random_step(seed)
    agree(step, random_arrays(step, seed))


@needs_compiler
def test_a_missing_barrier_is_noticed() -> None:
    step = PROGRAMS["normalization"]()
    arrays = random_arrays(step, 0)
    host = Host(step, lambda source: source.replace("  __syncthreads();\n", "", 1))
    runs = [host.run([a.copy() for a in arrays], order) for order in ORDERS]
    assert any(len({x.tobytes() for x in found}) > 1 for found in zip(*runs))


@needs_compiler
def test_a_barrier_that_some_threads_miss_is_an_error() -> None:
    program = PROGRAMS["normalization"]()
    arrays = random_arrays(program, 0)
    some = "if (threadIdx.x < 7) __syncthreads();\n"
    host = Host(program, lambda source: source.replace("__syncthreads();\n", some, 1))
    with pytest.raises(AssertionError, match="barrier"):
        host.run([a.copy() for a in arrays])


def wide(x: Tensor) -> Tensor:
    return F.softmax(F.softmax(x, -1).tanh() * x.sin(), -1)


@needs_compiler
def test_rows_too_long_for_shared_memory_are_computed_again() -> None:
    step = program(wide, tensor(2, 7000))
    agree(step, random_arrays(step, 0))
    assert "row0" not in emit_cuda(step).source
    assert "row0" in emit_cuda(program(wide, tensor(2, 700))).source


@needs_compiler
def test_tiles_too_large_for_shared_memory_have_scratch() -> None:
    def run(x: Tensor) -> Tensor:
        return F.softmax(F.softmax(x, -1).transpose(1, 2) * 2.0, -1)

    step = program(run, tensor(3, 90, 95))
    agree(step, random_arrays(step, 0))
    (launch,) = emit_cuda(step).steps
    assert isinstance(launch, Launch)
    assert launch.scratch >= 90 * 95 * 4


def test_a_map_has_a_thread_an_element() -> None:
    (launch,) = emit_cuda(PROGRAMS["maps"]()).steps
    assert isinstance(launch, Launch)
    assert launch.blocks * launch.threads >= 600 > (launch.blocks - 1) * launch.threads


def test_products_are_left_to_the_library() -> None:
    for seed in range(20):
        steps = emit_cuda(random_step(seed)).steps
        dots = sum(isinstance(step, Product) for step in steps)
        alone = [s for s in steps if any(op.form == "dot" for op in s.region.members)]
        assert len(alone) == dots
        assert all(len(s.region.members) == 1 for s in alone)


def test_equal_layers_share_kernels() -> None:
    def run(depth: int) -> int:
        def deep(x: Tensor, w: Tensor) -> Tensor:
            for _ in range(depth):
                x = F.softmax(x @ w, -1)
            return x

        return len(emit_cuda(program(deep, tensor(64, 64), tensor(64, 64))).kernels)

    assert run(6) == run(2)


def test_half_precision_is_refused_by_name() -> None:
    with pytest.raises(BackendError, match="float16"):
        emit_cuda(program(lambda x: x * 2, tensor(4).to(float16)))


@needs_compiler
def test_an_index_out_of_range_is_reported() -> None:
    step = program(lambda x, at: (x + 1.0)[at], tensor(5, 3), ta.zeros(4, dtype=int64))
    host = Host(step)
    x, at = np.zeros((5, 3), np.float32), np.array([0, -5, 4, 1])
    (y,) = host.run([x, at])
    assert np.array_equal(y, np.ones((4, 3), np.float32)) and not host.errors.any()
    host.run([x, np.array([0, 7, 4, 1])])
    assert host.errors[: len(host.module.checks)].tolist() == [8]  # the index, and one
