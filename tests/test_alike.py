"""Like regions as one function: what differs is in its table, and the step stays what it was."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.trainer import Trainer
from tinyaot.backends import cpu
from tinyaot.codegen.alike import fold
from tinyaot.codegen.source import Call, Function, Source, Step

c = pytest.mark.skipif(cpu.unavailable() is not None, reason="no C compiler")


def source(*bodies: str, own: bool = False) -> Source:
    regions = [Function(f"f_region_{i}", "", x, frozenset(), own=own) for i, x in enumerate(bodies)]
    calls = [Call(r.name) for r in regions]
    return Source("", "", {}, (Step("f", tuple(regions), tuple(calls), ""),))


LOOP = """  for (int64_t b{0} = 0; b{0} < 4; b{0}++)
    kernel_{2}((float *)b[{1}] + b{0} * 3L, 3L, {1}, error + 0);"""


def test_what_differs_is_in_the_table() -> None:
    made = fold(source(LOOP.format(7, 12, 0), LOOP.format(31, 5, 0), LOOP.format(7, 12, 1)))
    first, other = made.regions
    assert [first.name, other.name] == ["f_region_0", "f_region_2"]
    assert first.table == (("12",), ("5",)), "equal columns are one"
    assert "static const int64_t f_region_0_at[2][1] = {\n  {12},\n  {5}\n};" in first.text()
    assert "kernel_0((float *)b[at[0]] + b0 * 3L, 3L, at[0], error + 0L);" in first.body
    assert other.body == LOOP.format(7, 12, 1)
    [step] = made.steps
    assert step.levels == (
        Call("f_region_0", 0),
        Call("f_region_0", 1),
        Call("f_region_2"),
    )


def test_equal_regions_have_a_table_of_no_numbers() -> None:
    [one] = fold(source("  memset(p);", "  memset(p);")).regions
    assert one.table == ((), ()) and "_at[2][1] = {\n  {0},\n  {0}\n};" in one.text()


def test_nothing_alike_stays_as_it_is() -> None:
    alone = source(LOOP.format(7, 12, 0), LOOP.format(31, 5, 0).replace("b[5]", "b[5] + 1"))
    assert fold(alone) == alone


def test_exponents_are_no_numbers() -> None:
    code = source("*(double *)b[0] = 1e-05;", "*(double *)b[0] = 1e-06;")
    assert fold(code) == code


def test_loops_of_an_op_have_constant_extents() -> None:
    bodies = [f"for (int64_t j = 0; j < {n}; j++) y[j] = 0.0f;" for n in (5, 6)]
    assert fold(source(*bodies, own=True)) == source(*bodies, own=True)
    assert fold(source(*bodies)) != source(*bodies)


@c
def test_a_deeper_step_has_no_more_functions_of_parameters() -> None:
    count = [
        [
            len(re.findall(r"^static void step_region", code.text(), re.M))
            for code in (plain, fold(plain))
        ]
        for plain in (Trainer(4).code(), Trainer(8).code())
    ]
    assert count[1][0] >= count[0][0] + 8, "regions: one or more a parameter"
    assert count[1][1] == count[0][1]


@c
def test_a_folded_step_is_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINYAOT_CACHE", "0")
    folded, plain = Trainer(3), Trainer(3)
    losses = [[folded.step().item() for _ in range(5)]]
    monkeypatch.setattr(cpu, "fold", lambda source: source)
    losses.append([plain.step().item() for _ in range(5)])
    assert losses[0] == losses[1]
    for p, q in zip(folded.net.parameters(), plain.net.parameters(), strict=True):
        np.testing.assert_array_equal(p.numpy(), q.numpy())
