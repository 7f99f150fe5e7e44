"""A source as text: what only calls is not optimised; what touches elements is."""

from __future__ import annotations

import re

import pytest

import tinyaot as ta
from tests.trainer import Trainer
from tinyaot.backends import cpu
from tinyaot.codegen.alike import fold
from tinyaot.codegen.source import HIDDEN, MARK, Call, Function

c = pytest.mark.skipif(cpu.unavailable() is not None, reason="no C compiler")
REGION = Function("f_region_0", "/* one */", "  kernel_0(error + 0);", frozenset({"kernel_0"}))


def test_a_region_is_a_function_with_its_comment() -> None:
    assert REGION.text().splitlines() == [
        "/* one */",
        "static void f_region_0(void **b, int share, int64_t *error) {",
        "  kernel_0(error + 0);",
        "}",
    ]


def test_a_call_names_its_row_and_what_times_it() -> None:
    assert Call("f").text() == "    f(f->b, share, f->error);"
    assert Call("f", 2).text() == "    f(f->b, share, f->error, f_at[2]);"
    timed = Call("f", lap="laps[3]").text().splitlines()
    assert timed[1] == Call("f").text()
    assert [timed[0], timed[2]] == [f"    laps[3] {sign}= tinyaot_clock();" for sign in ("-", "+")]


@c
def test_a_step_is_marked_but_for_its_kernels_and_ops_without_tiles() -> None:
    code = fold(Trainer(2).code())
    text, marked = code.text(), code.text(marked=True)
    assert marked.startswith(MARK) and HIDDEN not in marked
    marked = marked.removeprefix(MARK)
    regions = re.findall(r"^static void \w+_region_\d+\(", text, re.M)
    assert marked.count("CALLS static void step_region") == len(regions) >= 3
    assert marked.count("CALLS static void step_step(") == 1
    assert marked.replace("CALLS ", "") == text


@c
@pytest.mark.parametrize(
    ("function", "line"),
    [
        (lambda x: x.cumsum(0), "for (int64_t j"),
        (lambda x: x.amax(0), ")[z] = -INFINITY;"),
    ],
    ids=["an op without tiles", "filling"],
)
def test_loops_over_elements_are_optimised(function: object, line: str) -> None:
    step = ta.compile(function, backend="c")
    kernels = step.explain(ta.ones(64, 300)).kernels
    code = step._specializations[-1].executable.compiled.code
    [region] = [r for r in code.regions if line in r.body]
    assert region.text() in [k.source for k in kernels]
    assert region.text(marked=True) == region.text(), "nothing calls it only"
