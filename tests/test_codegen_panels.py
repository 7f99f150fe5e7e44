"""What all tiles of a region multiply by is packed once, before the loop over them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tinyaot import ops
from tinyaot.backends import cpu
from tinyaot.builder import Builder, Sym
from tinyaot.interpret import interpret
from tinyaot.ir import Input, Output, Program
from tinyaot.ops.core import using
from tinyaot.passes.fusion.machine import Machine
from tinyaot.shapes import DType, TensorType, float32, float64

pytestmark = pytest.mark.skipif(cpu.unavailable() is not None, reason="no C compiler")

CALL = "rt->panels_"


def program(
    shapes: list[tuple[int, ...]], body: Callable[..., Sym], dtype: DType = float32
) -> Program:
    builder = Builder(0)
    given = [builder.fresh(TensorType(dtype, s)) for s in shapes]
    with using(builder):
        made = body(*map(Sym, given))
    inputs = tuple(Input(v, "argument", f"x{i}") for i, v in enumerate(given))
    outputs = (Output(made.value, name="y"),)
    return Program("test", "fuse", inputs, tuple(builder.nodes), outputs, builder.next_id)


def packed(p: Program, threads: int = 1) -> list[str]:
    """The calls that pack ahead, where the results are the interpreter's."""
    rng = np.random.default_rng(0)
    types = [i.value.type for i in p.inputs]
    arrays = [rng.standard_normal(t.shape).astype(t.dtype.numpy) for t in types]
    executable = cpu.Executable(p, poison=True, threads=threads)
    expected = interpret(p, *arrays)
    for _ in range(2):
        for made, right in zip(executable.run("step", arrays), expected, strict=True):
            np.testing.assert_allclose(made, right, rtol=1e-4, atol=1e-4)
    return [line.strip() for line in executable.compiled.source.splitlines() if CALL in line]


def two_layers(rows: int, a: int, b: int, c: int, dtype: DType = float32) -> Program:
    def body(x: Sym, w: Sym, v: Sym) -> Sym:
        return ops.dot(ops.relu(ops.dot(x, w, spec="ij,jk->ik")), v, spec="ij,jk->ik")

    return program([(rows, a), (a, b), (b, c)], body, dtype)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [float32, float64])
@pytest.mark.parametrize("sizes", [(8192, 64, 96, 80), (8191, 61, 97, 33), (12289, 330, 17, 1)])
def test_weights_under_tiles_of_rows(
    sizes: tuple[int, int, int, int], dtype: DType, threads: int
) -> None:
    calls = packed(two_layers(*sizes, dtype), threads)
    assert [c for c in calls if f"({sizes[2]}, {sizes[1]}, " in c]
    assert all(c.startswith(f"{CALL}{dtype.short}(") for c in calls)


def test_the_transpose_of_a_result() -> None:
    """Rows of the result are columns in memory: it is the left operand that is packed."""
    p = program([(64, 96), (8192, 64)], lambda w, x: ops.dot(w, x, spec="jk,ij->ik"))
    (call,) = packed(p)
    assert call.startswith(f"{CALL}f32(96, 64, (float *)b[0], 96, 1, ")  # columns, terms, strides


def test_a_weight_of_each_head() -> None:
    p = program([(8192, 64), (3, 64, 40)], lambda x, w: ops.dot(x, w, spec="ij,hjk->ihk"))
    calls = packed(p)
    assert len(calls) == 1 and calls[0].count("+ i") == 2  # its slice, and where that goes


def test_few_tiles_pack_for_themselves() -> None:
    assert not packed(two_layers(128, 64, 96, 80))


def test_no_more_than_stays_in_cache() -> None:
    p = two_layers(8192, 64, 96, 80)
    plenty, little = (cpu.compile_program(p, 1, Machine(l3=n << 10)) for n in (1 << 15, 100))
    both, one = plenty.source.count(CALL), little.source.count(CALL)
    assert (both, one) == (2, 1)
    assert plenty.memory["scratch"] > little.memory["scratch"]


def test_what_a_tile_makes_is_packed_in_it() -> None:
    """Keys and values of a sequence are no constants of its tiles."""

    def body(q: Sym, k: Sym) -> Sym:
        return ops.dot(q, ops.relu(k), spec="btd,bsd->bts")

    assert not packed(program([(32, 16, 24), (32, 16, 24)], body))
