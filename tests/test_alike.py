"""Like regions as one function: what differs is in its table, and the step stays what it was."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.trainer import Trainer
from tinyaot.backends import cpu
from tinyaot.codegen.alike import fold

c = pytest.mark.skipif(cpu.unavailable() is not None, reason="no C compiler")

SOURCE = """static void kernel_0(float *p0) {
}

/* one */
static void f_region_0(void **b, int64_t *error) {
  for (int64_t b7 = 0; b7 < 4; b7++)
    kernel_0((float *)b[12] + b7 * 3L, 3L, 12, error + 0);
}

/* two */
static void f_region_1(void **b, int64_t *error) {
  for (int64_t b31 = 0; b31 < 4; b31++)
    kernel_0((float *)b[5] + b31 * 3L, 3L, 5, error + 0);
}

/* another kernel */
static void f_region_2(void **b, int64_t *error) {
  for (int64_t b7 = 0; b7 < 4; b7++)
    kernel_1((float *)b[12] + b7 * 3L, 3L, 12, error + 0);
}

/* memory of its own */
static void f_region_3(void **b, int64_t *error) {
  static float z[3];
}

/* the same, larger */
static void f_region_4(void **b, int64_t *error) {
  static float z[4];
}

static void f_step(struct f_frame *f) {
  f_region_0(f->b, f->error);
  f_region_1(f->b, f->error);
  f_region_2(f->b, f->error);
  f_region_3(f->b, f->error);
  f_region_4(f->b, f->error);
}
"""


def test_what_differs_is_in_the_table() -> None:
    text = fold(SOURCE)
    assert re.findall(r"static void (f_region_\d)\(", text) == [
        f"f_region_{i}" for i in (0, 2, 3, 4)
    ]
    assert "f_region_0_at[2][1] = {\n  {12},\n  {5}\n};" in text, "equal columns are one"
    assert "kernel_0((float *)b[at[0]] + b0 * 3L, 3L, at[0], error + 0L);" in text
    assert "  f_region_0(f->b, f->error, f_region_0_at[0]);\n" in text
    assert "  f_region_0(f->b, f->error, f_region_0_at[1]);\n" in text
    assert "  f_region_2(f->b, f->error);\n" in text
    assert "/* two */" not in text and "/* another kernel */" in text


def test_nothing_alike_stays_as_it_is() -> None:
    alone = SOURCE.replace("b[5]", "b[5] + 1")
    assert fold(alone) == alone


def region(number: int, body: str) -> str:
    return f"static void f_region_{number}(void **b, int64_t *error) {{\n  {body}\n}}\n\n"


@pytest.mark.parametrize(
    "body",
    [
        "*(double *)b[0] = 1e-0{};",
        "float *__restrict__ y = b[0]; for (int64_t j = 0; j < {}; j++) y[j] = 0.0f;",
    ],
    ids=["exponents are no numbers", "loops of an op have constant extents"],
)
def test_what_is_not_folded(body: str) -> None:
    source = region(0, body.format(5)) + region(1, body.format(6))
    assert fold(source) == source


@c
def test_a_deeper_step_has_no_more_functions_of_parameters() -> None:
    count = [
        [
            len(re.findall(r"^static void step_region", text, re.M))
            for text in (source, fold(source))
        ]
        for source in (Trainer(4).source(), Trainer(8).source())
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
