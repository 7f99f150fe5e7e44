"""Text cases: what a pass makes of a small program, in files that a learner can read.

A file of `tests/ir/` holds one or more cases:

    # run: functionalize,simplify
    # A write through a view becomes a scatter into its base.
    program f @ trace
      ...
    # ---- gives
    program f @ simplify next=%9
      ...

The passes run one after another. Every stage must obey its laws, round-trip through text, and keep
all values, which is seen by interpreting it on random inputs; where a pass adds gradients, the tape
says what they are. Then the text must be as written. With TINYAOT_UPDATE=1 in the environment the
expectations are written anew: read the diff before you commit it.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from tinyaot.interpret import interpret
from tinyaot.ir import Input, Node, Output, Program, Value
from tinyaot.passes import pipeline
from tinyaot.text import parse
from tinyaot.verify import verify

FOLDER = Path(__file__).parent / "ir"
RUN, GIVES = "# run:", "# ---- gives"


@dataclass(frozen=True)
class Case:
    """One case of a file: its passes, the lines of its input (comments too) and what it gives."""

    file: Path
    index: int
    passes: str
    before: str
    after: str

    @property
    def id(self) -> str:
        return f"{self.file.stem}-{self.index + 1}"


def read_cases(file: Path) -> list[Case]:
    found = []
    for index, block in enumerate(re.split(rf"^{RUN}", file.read_text(), flags=re.M)[1:]):
        passes, _, rest = block.partition("\n")
        before, _, after = rest.partition(GIVES)
        found.append(Case(file, index, passes.strip(), before.strip("\n"), after.strip()))
    return found


CASES = [case for file in sorted(FOLDER.glob("*.ir")) for case in read_cases(file)]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_case(case: Case) -> None:
    run_case(case, update=os.environ.get("TINYAOT_UPDATE") == "1")


def run_case(case: Case, update: bool = False) -> None:
    def after_each(name: str, before: Program, after: Program, seconds: float) -> None:
        check(after)
        for seed in (0, 1):
            assert_same_values(before, after, np.random.default_rng(seed), special=seed == 1)

    program = parse(case.before)
    check(program)
    found = str(pipeline(case.passes, after_each)(program))
    if found == case.after:
        return
    if update:
        write_expectation(case, found)
        return
    diff = difflib.unified_diff(
        case.after.splitlines(), found.splitlines(), "expected", "found", lineterm="", n=20
    )
    pytest.fail(f"{case.id}: {case.passes}\n" + "\n".join(diff), pytrace=False)


def check(program: Program) -> None:
    verify(program)
    assert parse(str(program)) == program


def write_expectation(case: Case, found: str) -> None:
    """Replace the expectation of one case in its file."""
    text = case.file.read_text().partition(RUN)[0]
    for c in read_cases(case.file):
        after = found if c.index == case.index else c.after
        text += f"{RUN} {c.passes}\n{c.before}\n{GIVES}\n{after}\n\n"
    case.file.write_text(text.rstrip("\n") + "\n")


# ---- values -------------------------------------------------------------------------------------


def assert_same_values(
    before: Program, after: Program, rng: np.random.Generator, special: bool
) -> None:
    """Both programs give the same outputs, bit for bit; gradients that only `after` gives are
    those of the tape."""
    if len(after.inputs) > len(before.inputs):
        before = with_gradients(before, after)
    arrays = [random_array(i, rng, special) for i in after.inputs]
    wanted = zip(before.outputs, interpret(before, *arrays), strict=True)
    given = zip(after.outputs, interpret(after, *arrays), strict=True)
    pairs = list(zip(kept(wanted), kept(given), strict=True))
    for (old, x), (new, y) in pairs:
        assert (old.name, old.of) == (new.name, new.of)
        assert same_bits(x, y), f"{after.stage}: output {new.value}\n{y}\nis, before it,\n{x}"


def kept(outputs: Iterator[tuple[Output, np.ndarray]]) -> list[tuple[Output, np.ndarray]]:
    return [(o, x) for o, x in outputs if o.role != "saved"]


def with_gradients(before: Program, joint: Program) -> Program:
    """`before` with the cotangent inputs and gradient outputs of `joint`, by a `grad` node."""
    seeds = joint.inputs[len(before.inputs) :]
    sources = iter([o.value for o in before.outputs if o.requires_grad])
    outputs = [next(v for v in sources if v.type == s.value.type) for s in seeds]
    inputs = {i.value.id: i.value for i in before.inputs}
    gradients = joint.outputs_of("gradient")
    wrt = [inputs[o.of] for o in gradients if o.of is not None]
    results = [Value(joint.next_id + at, v.type) for at, v in enumerate(wrt)]
    grad = Node(
        "grad",
        (*outputs, *(s.value for s in seeds), *wrt),
        tuple(results),
        {"outputs": len(outputs), "cotangents": True, "wrt": len(wrt)},
    )
    given = (Output(r, "gradient", o.of, o.name) for r, o in zip(results, gradients, strict=True))
    return before.replace(
        inputs=before.inputs + seeds,
        nodes=(*before.nodes, grad),
        outputs=(*before.outputs, *given),
        next_id=joint.next_id + len(wrt),
    )


def random_array(i: Input, rng: np.random.Generator, special: bool) -> np.ndarray:
    """Numbers for an input; integers are 0 or 1, since they may be indices. `special`: with
    signed zeros, infinities and NaN among them."""
    shape, dtype = i.value.type.shape, i.value.type.dtype
    if not dtype.is_floating:
        return rng.integers(0, 2, shape).astype(dtype.numpy)
    x = rng.standard_normal(shape)
    if special:
        odd = rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan], shape)
        x = np.where(rng.random(shape) < 0.3, odd, x)
    return x.astype(dtype.numpy)


def same_bits(x: np.ndarray, y: np.ndarray) -> bool:
    """Equal, signs of zeros too; one NaN is like another."""
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    if x.dtype.kind in "biu":
        return np.array_equal(x, y)
    x, y = x.astype(np.float64), y.astype(np.float64)
    equal = (x == y) & (np.signbit(x) == np.signbit(y))
    return bool(np.all(equal | (np.isnan(x) & np.isnan(y))))


# ---- the framework itself -----------------------------------------------------------------------

SAMPLE = """\
# Two cases.

# run: functionalize
# A write of all of a value replaces it.
program f @ trace
  input %0: f32[2] argument "x"
  %1: f32[2] = exp(%0)
  %2: f32[2] = neg(%0)
  write(%1, %2)
  output user %1
# ---- gives
program f @ functionalize next=%3
  input %0: f32[2] argument "x"
  %1: f32[2] = exp(%0)
  output user %1

# run: functionalize
# A pure program stays as it is.
program f @ trace
  input %0: f32[2] argument "x"
  %1: f32[2] = exp(%0)
  output user %1
# ---- gives
"""


def test_a_failure_shows_the_difference_and_an_update_mends_it(tmp_path: Path) -> None:
    file = tmp_path / "sample.ir"
    file.write_text(SAMPLE)
    first, second = read_cases(file)
    assert (first.id, first.passes) == ("sample-1", "functionalize")
    with pytest.raises(pytest.fail.Exception, match=r"(?s)-  %1.*exp.*\+  %2.*neg"):
        run_case(first)
    run_case(first, update=True)
    run_case(second, update=True)
    text = file.read_text()
    assert text.startswith("# Two cases.\n\n# run: functionalize\n# A write of all")
    for case in read_cases(file):
        run_case(case)


def test_a_pass_that_changes_a_value_or_a_sign_is_caught() -> None:
    before = parse(
        "program f @ simplify\ninput %0: f32[64] argument\n%1: f32[64] = neg(%0)\n"
        "%2: f32[64] = neg(%1)\noutput user %2"
    )
    x = before.inputs[0].value
    zero = Node(
        "full", (), (Value(5, x.type),), {"value": 0.0, "shape": (64,), "dtype": x.type.dtype}
    )
    plus = Node("add", (x, zero.result), (before.outputs[0].value,))
    rng = np.random.default_rng
    same = before.replace(nodes=(), outputs=(Output(x),))
    assert_same_values(before, same, rng(1), special=True)
    sign = before.replace(nodes=(zero, plus), next_id=6)  # x + 0.0 is not x for -0.0
    assert_same_values(before, sign, rng(0), special=False)
    with pytest.raises(AssertionError, match="output %2"):
        assert_same_values(before, sign, rng(1), special=True)


def test_gradients_are_compared_with_the_tape() -> None:
    before = parse(
        'program f @ functionalize\ninput %0: f32[3] argument "x" grad\n'
        '%1: f32[3] = exp(%0)\noutput user %1 "y" grad'
    )
    after = pipeline("autodiff")(before)
    assert [o.role for o in after.outputs] == ["user", "gradient"]
    assert_same_values(before, after, np.random.default_rng(0), special=False)
    wrong = after.replace(
        outputs=(after.outputs[0], replace(after.outputs[1], value=after.inputs[1].value))
    )
    with pytest.raises(AssertionError, match="output %2"):
        assert_same_values(before, wrong, np.random.default_rng(0), special=False)
