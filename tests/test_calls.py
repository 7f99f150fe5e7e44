"""What only calls is not optimised; what touches elements is."""

from __future__ import annotations

import re

import pytest

import tinyaot as ta
from tests.trainer import Trainer
from tinyaot.backends import cpu
from tinyaot.codegen.alike import fold
from tinyaot.codegen.calls import MARK, mark_calls
from tinyaot.codegen.split import HIDDEN

c = pytest.mark.skipif(cpu.unavailable() is not None, reason="no C compiler")
HEAD = "void f_region_0(void **b, int64_t *error{})"


def function(body: str, storage: str = "static", more: str = "") -> str:
    return f"{storage} {HEAD.format(more)} {{\n{body}\n}}\n"


def is_marked(source: str) -> bool:
    marked = mark_calls(source).removeprefix(MARK)
    assert marked in (source, f"CALLS {source}")
    return marked != source


@pytest.mark.parametrize(
    "body",
    [
        "  kernel_0((float *)b[3] + b1 * 64L, (float *)(arena + 64), error + 1);",
        "  kernel_0((float *)b[at[2]] + at[10], (float *)(arena + at[3]), error);",
        "  for (int64_t tile = 0; tile < 4; tile++) {\n    rt->gemm_f32(8, (float *)b[0L]);\n  }",
        "  memset((float *)(scratch + 0), 0, 10 * sizeof(float));",
    ],
    ids=["kernel", "numbers of a table", "product in tiles", "clearing"],
)
def test_calls_are_marked(body: str) -> None:
    assert is_marked(function(body))
    assert is_marked(function(body, HIDDEN)), "of a part among several"
    assert is_marked(function(body, more=", const int64_t *at")), "of a group"


@pytest.mark.parametrize(
    "body",
    [
        "  for (int64_t z = 0; z < 10; z++) ((float *)b[1])[z] = -INFINITY;",
        "  {\n    float *__restrict__ y = (float *)b[2];\n    y[at] = total;\n  }",
    ],
    ids=["filling", "an op without tiles"],
)
def test_loops_over_elements_are_not(body: str) -> None:
    assert not is_marked(function(body))


def test_declarations_and_kernels_are_as_they_were() -> None:
    source = f"{HIDDEN} {HEAD.format('')};\nstatic void kernel_0(float *p) {{\n  p[0] = 1;\n}}\n"
    assert mark_calls(source) == MARK + source


@c
def test_a_step_is_marked_but_for_its_kernels_and_ops_without_tiles() -> None:
    source = fold(Trainer(2).source())
    regions = re.findall(r"^static void \w+_region_\d+\(", source, re.M)
    marked = mark_calls(source).removeprefix(MARK)
    assert marked.count("CALLS static void step_region") == len(regions) >= 3
    assert marked.count("CALLS static void step_step(") == 1
    assert marked.replace("CALLS ", "") == source

    scan = ta.compile(lambda x: x.cumsum(0), backend="c")
    [kernel] = scan.explain(ta.ones(64, 3)).kernels
    assert "for (int64_t j" in kernel.source
    assert mark_calls(f"{kernel.source}\n") == f"{MARK}{kernel.source}\n"
