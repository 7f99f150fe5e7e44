"""Short rows side by side: what becomes of a loop, when it pays, and that nothing else changes."""

from __future__ import annotations

from textwrap import dedent

import numpy as np
import pytest

import tinyaot as ta
from tests.test_codegen_fusion import MACHINE, program
from tinyaot import ops
from tinyaot.backends import cpu
from tinyaot.builder import Sym
from tinyaot.codegen.across import side_by_side
from tinyaot.codegen.c import Emitter
from tinyaot.codegen.loops import Fold, Index, Let, Load, Loop, Report, Start, Store, Var
from tinyaot.codegen.printer import C, Printer
from tinyaot.errors import IndexingError
from tinyaot.interpret import interpret
from tinyaot.ir import Program
from tinyaot.nn import functional as F
from tinyaot.passes.fusion.plan import plan_among
from tinyaot.shapes import DType, float32, float64, int64

needs_compiler = pytest.mark.skipif(cpu.unavailable() is not None, reason="no C compiler")


def shares(x: Sym, b: Sym) -> dict[str, Sym]:
    """Exponentials as shares of a row's sum, with totals over the rows and over everything."""
    t = ops.add(x, b)
    top = ops.amax(t, axes=(1,))
    e = ops.exp(ops.sub(t, top))
    s = ops.sum(e, axes=(1,))
    share = ops.div(e, s)
    return {
        "share": share,
        "of the columns": ops.sum(share, axes=(0,)),
        "all": ops.sum(ops.log(s), axes=(0, 1)),
        "top": ops.amax(top, axes=(0,)),
        "is a number": ops.eq(top, top),
    }


def relu(x: Sym, b: Sym) -> dict[str, Sym]:
    return {"y": ops.relu(ops.add(x, b))}


def alone(x: Sym, b: Sym) -> dict[str, Sym]:
    return {"y": ops.exp(x)}


def on(rows: int, columns: int, dtype: DType = float32) -> dict[str, tuple[DType, tuple[int, ...]]]:
    return {"x": (dtype, (rows, columns)), "b": (dtype, (columns,))}


def is_across(p: Program) -> bool:
    emitter = Emitter()
    emitter.entry("step", plan_among(p, (1,), MACHINE))
    return "s[i0]" in emitter.source().text()  # an array with an element for each row


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "body", "across"),
    [
        (32, 10, float32, shares, True),
        (61, 3, float32, shares, True),
        (1000, 21, float32, shares, True),
        (32, 8, float32, shares, False),  # a vector
        (32, 16, float32, shares, False),  # two
        (32, 100, float32, shares, False),
        (3, 10, float32, shares, False),  # no vector of rows
        (32, 10, float32, relu, False),  # moves more than it computes
        (32, 10, float32, alone, False),  # one loop over everything
        (32, 10, float64, shares, False),  # calls libm
    ],
)
def test_when_it_pays(rows: int, columns: int, dtype: DType, body: object, across: bool) -> None:
    assert callable(body)
    assert is_across(program(on(rows, columns, dtype), body)) == across


@needs_compiler
@pytest.mark.parametrize("columns", [3, 10, 21])
@pytest.mark.parametrize("rows", [8, 61, 64, 257])
def test_agrees(rows: int, columns: int) -> None:
    p = program(on(rows, columns), shares)
    assert is_across(p)
    rng = np.random.default_rng(0)
    x, b = (rng.standard_normal(s).astype(np.float32) for s in ((rows, columns), (columns,)))
    x[3, 1], x[5, 0], x[6, 2] = np.nan, np.inf, -np.inf
    for threads in (1, 2):
        found = cpu.Executable(p, poison=True, threads=threads).run("step", [x, b])
        for have, want in zip(found, interpret(p, x, b), strict=True):
            np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-5)


@needs_compiler
def test_an_index_is_checked() -> None:
    x, y = ta.randn(32, 10), np.arange(32) % 10
    loss = ta.compile(lambda x, y: F.cross_entropy(x, y), backend="c")
    loss(x, ta.tensor(y))
    y[7] = 10
    with pytest.raises(IndexingError, match="10 is out of range"):
        loss(x, ta.tensor(y))


def test_text() -> None:
    """Scalars that a later loop reads are arrays, sums over rows are folds of the vector loop."""
    row, place = Index(0, ((1, "i0"),)), Index(0, ((3, "i0"), (1, "i1")))
    columns = Loop(
        "i1",
        3,
        (
            Let("v3", float32, Load("p1", place)),
            Fold("v2", float32, "amax", Var("v3")),
            Store("p2", Index(0, ((1, "i1"),)), Var("v3"), float32, "sum"),
        ),
        vector=True,
    )
    loop = Loop(
        "i0",
        5,
        (
            Let("v1", int64, Load("p0", row)),
            Report("v1", "!=", 0),
            Start("v2", float32, "amax"),
            columns,
            Let("v4", float32, Var("v2")),
            Store("p3", row, Var("v4"), float32),
        ),
    )
    made = side_by_side(loop, 5, lambda: "t")
    text = "\n".join(line for s in made for line in Printer(C).stmt(s, ""))
    assert text == dedent(
        """\
        float v2s[5] __attribute__((aligned(64)));
        int64_t v1s[5] __attribute__((aligned(64)));
        #pragma omp simd
        for (int64_t i0 = 0; i0 < 5; i0++) {
          int64_t v1 = p0[i0];
          v1s[i0] = v1;
          v2s[i0] = -INFINITY;
        }
        for (int64_t i0 = 0; i0 < 5; i0++) {
          int64_t v1 = v1s[i0];
          if (v1 != 0) error[0] = v1;
        }
        for (int64_t i1 = 0; i1 < 3; i1++) {
          float t = 0.0f;
          #pragma omp simd reduction(+: t)
          for (int64_t i0 = 0; i0 < 5; i0++) {
            float v3 = p1[i0 * 3 + i1];
            v2s[i0] = maximum_f32(v2s[i0], v3);
            t += v3;
          }
          p2[i1] += t;
        }
        #pragma omp simd
        for (int64_t i0 = 0; i0 < 5; i0++) {
          float v2 = v2s[i0];
          float v4 = v2;
          p3[i0] = v4;
        }"""
    )


@needs_compiler
@pytest.mark.parametrize("seed", range(3))
def test_a_row_that_is_computed_again_has_the_same_sum(seed: int) -> None:
    """A gradient finds the places of a row's largest by comparing what is computed again with what
    was stored: a sum in another order would find none, and divide by their number."""

    def step(x: ta.Tensor, b: ta.Tensor, w: ta.Tensor) -> tuple[ta.Tensor, ...]:
        h = x * 1.0
        h[:, :2] = h[:, 1:3] * 0.5
        h = F.softmax(h, -1)
        largest = h.amax(-1)
        h = h - h.amax(-1, keepdims=True)
        loss = (h * h).mean() + (h * b * w).sum() * 0.01 + largest.sum() * 0.1
        return (loss, h, largest, *ta.grad(loss, [x, b, w]))

    ta.manual_seed(seed)
    arguments = [ta.randn(*shape, requires_grad=True) for shape in ((8, 17), (17,), (8, 1))]
    found = ta.compile(step, backend="c")(*arguments)
    for have, want in zip(found, step(*arguments), strict=True):
        np.testing.assert_allclose(have.numpy(), want.numpy(), rtol=1e-4, atol=1e-5)
