"""Each law catches the corruption it is there for: small edits of good programs, by stage."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tinyaot.errors import VerifyError
from tinyaot.interpret import interpret
from tinyaot.ir import Node, Output, Program, Value
from tinyaot.ops import TABLE
from tinyaot.shapes import TensorType, float32, float64
from tinyaot.text import parse
from tinyaot.verify import LAWS, verify

TRACE = """
program step @ trace next=%11
  input %0: f32[4] argument "x"
  input %1: f32[4] state "w" grad
  input %2: i64[2] argument "i"
  %3: f32[4] = mul(%0, %1)
  %4: f32[2] = slice(%3) {starts=[0], stops=[4], steps=[2]}
  %5: f32[2] = exp(%4)
  write(%4, %5)
  %6: f32[1] = sum(%3) {axes=[0]}
  %7: f32[4] = grad(%6, %1) {outputs=1, cotangents=false, wrt=1}
  %8: f32[4] = detach(%1)
  %9: f32[4] = sub(%8, %7)
  write(%8, %9)
  %10: f32[2] = gather(%3, %2) {axes=[0]}
  output user %6 "loss"
  output user %10
  output mutated %1 of %1 "w"
"""

PURE = """
program step @ functionalize
  input %0: f32[4] argument "x"
  input %1: f32[4] state "w" grad
  %2: f32[4] = mul(%0, %1)
  %3: f32[4] = detach(%2)
  %4: f32[4], %5: f32[4] = grad(%2, %0, %1, %0) {outputs=1, cotangents=true, wrt=2}
  %6: f32[4] = set_value(%1, %4)
  output user %2
  output mutated %6 of %1 "w"
"""

STEP = """
program step @ autodiff
  input %0: f32[4] argument "x"
  input %1: f32[4] state "w" grad
  %2: f32[4] = mul(%0, %1) forward @"train.py":7
  %3: f32[4] = mul(%0, %2) backward <vjp-of %2 operand 1>
  %4: f32[4] = sub(%1, %3) update
  output user %2 "loss"
  output mutated %4 of %1 "w"
"""

JOINT = """
program f @ partition
  input %0: f32[4,3] argument "x" grad
  input %1: f32[3,2] argument "w" grad
  input %2: f32[4,2] cotangent "y"
  %3: f32[4,2] = dot(%0, %1) {spec="ij,jk->ik"} forward
  %4: f32[4,2] = tanh(%3) forward
  %5: f32[4,2] = tanh(%3) backward <recompute-of %4>
  %6: f32[4,2] = mul(%2, %5) backward <vjp-of %4 operand 0>
  %7: f32[4,3] = dot(%6, %1) {spec="ik,jk->ij"} backward
  %8: f32[3,2] = dot(%6, %0) {spec="ik,ij->jk"} backward
  output user %4 "y" grad
  output gradient %7 of %0 "x"
  output gradient %8 of %1 "w"
  output saved %3
"""

STEP_PLAN = """
program step @ plan
  input %0: f32[4,3] argument "x"
  input %1: f32[3,2] state "w" grad
  %3: f32[4,2] = dot(%0, %1) {spec="ij,jk->ik"} forward
  %4: f32[4,2] = tanh(%3) forward
  %5: f32[1,1] = sum(%4) {axes=[0,1]} forward
  %6: f32[1,1] = full() {value=1.0, shape=[1,1], dtype=f32} backward
  %7: f32[4,2] = broadcast(%6) {shape=[4,2]} backward
  %8: f32[4,2] = mul(%4, %7) backward
  %9: f32[2,4] = permute(%8) {perm=[1,0]} backward
  %10: f32[2,3] = dot(%9, %0) {spec="ij,jk->ik"} backward
  %11: f32[3,2] = permute(%10) {perm=[1,0]} update
  %12: f32[3,2] = sub(%1, %11) update
  output user %5 "loss"
  output mutated %12 of %1 "w"
  plan arena=88
  %0 input 0 48 %0 -1..7
  %1 input 0 24 %1 -1..10
  %3 arena 0 32 %3 0..7
  %4 arena 0 32 %3 0..7
  %5 output 0 4 %5 2..10
  %6 literal 0 0 %6 3..5
  %7 literal 0 0 %6 3..5
  %8 arena 0 32 %3 0..7
  %9 arena 0 32 %3 0..7
  %10 arena 64 24 %10 7..9
  %11 arena 64 24 %10 7..9
  %12 input 0 24 %1 -1..10
"""

JOINT_PLAN = """
program f @ plan
  input %0: f32[4] argument "x" grad
  input %1: f32[4] cotangent "y"
  %2: f32[4] = exp(%0) forward
  %3: f32[4] = neg(%2) forward
  %4: f32[4] = sin(%3) forward
  %5: f32[4] = cos(%3) backward
  %6: f32[4] = mul(%1, %5) backward
  %7: f32[4] = mul(%2, %6) backward
  output user %4 "y" grad
  output gradient %7 of %0 "x"
  output saved %2
  output saved %3
  plan arena=16
  %0 input 0 16 %0 -1..0
  %1 input 0 16 %1 -1..4
  %2 saved 0 16 %2 0..6
  %3 saved 64 16 %3 1..6
  %4 output 0 16 %4 2..6
  %5 arena 0 16 %5 3..5
  %6 arena 0 16 %5 3..5
  %7 output 0 16 %7 5..6
"""

RULE = """
program f @ functionalize
  input %0: f32[3] argument "x" grad
  %1: f32[3] = sin(%0)
  %2: f32[3] = cos(%0)
  %3: f32[3] = cotangent()
  %4: f32[3] = mul(%3, %2)
  %5: f32[3] = custom_vjp(%1, %3, %0, %4) {outputs=1, wrt=1}
  output user %5 grad
"""

REGION = """
program step @ partition
  input %0: f32[4] argument "x"
  input %1: f32[4] state "w" grad
  %2: f32[4] = mul(%0, %1) forward checkpoint=[1]
  %3: f32[2,2] = reshape(%2) {shape=[2,2]} forward checkpoint=[1]
  %4: f32[4] = sin(%2) forward checkpoint=[1]
  %5: f32[4] = exp(%4) forward
  %6: f32[4] = mul(%0, %1) backward checkpoint=[1] <recompute-of %2>
  %7: f32[4] = cos(%6) backward
  %8: f32[4] = mul(%7, %4) backward
  %9: f32[4] = mul(%8, %1) update
  output user %5 "loss"
  output mutated %9 of %1 "w"
"""

GOOD = {
    "trace": TRACE,
    "pure": PURE,
    "step": STEP,
    "joint": JOINT,
    "rule": RULE,
    "region": REGION,
    "step plan": STEP_PLAN,
    "joint plan": JOINT_PLAN,
}


def read(text: str) -> Program:
    """Parse, with places in short: `%2 arena 0 16 %3 0..4` is space, offset, bytes, root, life."""
    short = r"^\s*(%\d+) (\w+) (\d+) (\d+) (%\d+) (\S+)$"
    full = r"place \1 \2 offset=\3 bytes=\4 root=\5 live=\6"
    return parse(re.sub(short, full, text, flags=re.M))


def edit(text: str, *edits: str) -> str:
    """`text` with edits "old -> new" made; each old text must occur once."""
    for e in edits:
        old, new = (part.replace("|", "\n") for part in e.split(" -> "))
        assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times"
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD.keys())
def test_good_programs_pass(text: str) -> None:
    verify(read(text))


# Program, law, edits ("|" is a new line).
CORRUPTIONS = [
    # ---- values and nodes
    ("trace", "ids are below next", "next=%11 -> next=%10"),
    ("trace", "defined once", "write(%4, %5) -> write(%4, %5)|%5: f32[2] = neg(%4)"),
    ("trace", "defined once", "write(%4, %5) -> write(%4, %5)|%0: f32[4] = neg(%3)"),
    ("trace", "defined before use", "mul(%0, %1) -> mul(%0, %9)"),
    ("trace", "ops are declared", "exp(%4) -> expo(%4)"),
    ("trace", "results follow the type rule", "%5: f32[2] -> %5: f32[1]"),
    ("trace", "results follow the type rule", "mul(%0, %1) -> mul(%0, %2)"),
    ("trace", "results follow the type rule", "sum(%3) {axes=[0]} -> sum(%3)"),
    ("trace", "results follow the type rule", "write(%4, %5) -> write(%4, %3)"),
    ("pure", "results follow the type rule", "set_value(%1, %4) -> write(%1, %4)"),
    ("trace", "results follow the type rule", "stops=[4] -> stops=[5]"),
    ("trace", "origins are known", "exp(%4) -> exp(%4) <traced %11>"),
    # ---- grad nodes
    ("trace", "grad nodes are well formed", "wrt=1 -> wrt=2"),
    ("trace", "grad nodes are well formed", "outputs=1 -> outputs=0"),
    ("trace", "grad nodes are well formed", "grad(%6, %1) -> grad(%3, %1)"),
    ("trace", "grad nodes are well formed", "grad(%6, %1) -> grad(%6, %0, %1)"),
    ("pure", "grad nodes are well formed", "cotangents=true -> cotangents=1"),
    ("pure", "grad nodes are well formed", "%4: f32[4], %5: f32[4] = -> %4: f32[4] ="),
    # ---- custom rules
    ("rule", "custom rules are well formed", "outputs=1 -> outputs=2"),
    ("rule", "custom rules are well formed", "wrt=1 -> wrt=true"),
    ("rule", "custom rules are well formed", "custom_vjp(%1, %3, -> custom_vjp(%1, %2,"),
    ("rule", "custom rules are well formed", "custom_vjp(%1, %3, -> custom_vjp(%4, %3,"),
    ("rule", "custom rules are well formed", "output user %5 -> output user %4"),
    ("rule", "custom rules are well formed", "cotangent() -> cotangent(%0)"),
    ("rule", "custom rules are well formed", "%5: f32[3] = -> %5: f32[4] ="),
    ("rule", "markers are gone", "@ functionalize -> @ autodiff"),
    # ---- checkpoints
    ("region", "checkpoints keep to themselves", "cos(%6) -> cos(%2)"),
    ("region", "checkpoints keep to themselves", "exp(%4) forward -> exp(%0) forward"),
    ("region", "checkpoints are numbered", "exp(%4) forward -> exp(%4) forward checkpoint=[0]"),
    ("region", "checkpoints are numbered", "exp(%4) forward -> exp(%4) forward checkpoint=[2,1]"),
    # ---- inputs and outputs
    ("trace", "roles are legal", "%0: f32[4] argument -> %0: f32[4] cotangent"),
    ("trace", "roles are legal", 'argument "i" -> argument "i" grad'),
    ("trace", "roles are legal", "output user %10 -> output saved %10"),
    ("step", "roles are legal", "output user %2 -> output gradient %2 of %0"),
    ("trace", "outputs of inputs", "mutated %1 of %1 -> mutated %1 of %2"),
    ("trace", "outputs of inputs", "mutated %1 of %1 -> mutated %1"),
    ("trace", "outputs of inputs", "output user %10 -> output user %10 of %2"),
    ("trace", "outputs of inputs", "output user %10 -> output mutated %1 of %1"),
    ("joint", "cotangents are of outputs", '"y" grad -> "y"'),
    ("trace", "written inputs are outputs", "output mutated %1 of %1 -> output user %1"),
    # ---- what a stage leaves behind
    ("trace", "writes are gone", "@ trace -> @ functionalize"),
    ("pure", "markers are gone", "@ functionalize -> @ autodiff"),
    ("step", "markers are gone", "sub(%1, %3) update -> set_value(%1, %3) update"),
    ("step", "nodes have a phase", "forward @ -> @"),
    (
        "joint",
        "nodes have a phase",
        '%0) {spec="ik,ij->jk"} backward -> %0) {spec="ik,ij->jk"} update',
    ),
    ("step", "phases run forward", "backward -> update", "update| -> backward|"),
    ("step", "phases run forward", "forward @ -> update @"),
    ("joint", "phases run forward", "tanh(%3) forward -> tanh(%2) forward"),
    ("joint", "the forward gives its outputs", "output user %4 -> output user %5"),
    ("joint", "the forward gives its outputs", "saved %3 -> saved %3|output saved %6"),
    ("joint", "the backward reads what is saved", "output saved %3 -> output saved %4"),
    ("joint", "the backward reads what is saved", "mul(%2, %5) -> mul(%2, %4)"),
    ("joint", "saved values are made", "saved %3 -> saved %3|output saved %3"),
    ("joint", "saved values are made", "saved %3 -> saved %3|output saved %0"),
    # ---- plans
    ("step", "plans come last", 'of %1 "w" -> of %1 "w"|plan arena=0'),
    ("step plan", "every value has a place", "  %5 output 0 4 %5 2..10| -> "),
    ("step plan", "every value has a place", "arena=88 -> arena=88|%30 arena 0 4 %30 0..0"),
    ("step plan", "roots own their bytes", "%4 arena 0 32 -> %4 arena 32 32"),
    ("step plan", "roots own their bytes", "%8 arena 0 32 %3 -> %8 arena 0 32 %4"),
    ("step plan", "views share their storage", "%9 arena 0 32 %3 0..7 -> %9 arena 0 32 %9 6..7"),
    ("step plan", "places hold their values", "arena=88 -> arena=87"),
    ("step plan", "places hold their values", "%5 output 0 4 -> %5 output 0 2"),
    ("step plan", "places hold their values", "%5 output 0 4 -> %5 output 2 4"),
    ("step plan", "places hold their values", "%5 output 0 4 -> %5 literal 0 0"),
    ("step plan", "live ranges are right", "%5 2..10 -> %5 2..9"),
    ("joint plan", "live ranges are right", "%1 -1..4 -> %1 -1..3"),
    ("joint plan", "live buffers are apart", "%3 saved 64 16 -> %3 saved 12 16"),
    (
        "joint plan",
        "inputs keep their buffers",
        "%1 input 0 -> %1 arena 64",
        "arena=16 -> arena=80",
    ),
    (
        "joint plan",
        "outputs outlive the call",
        "%4 output 0 -> %4 arena 64",
        "arena=16 -> arena=80",
    ),
]


@pytest.mark.parametrize(
    "corruption", CORRUPTIONS, ids=[f"{n}-{c[1]}" for n, c in enumerate(CORRUPTIONS)]
)
def test_corruptions_are_caught(corruption: tuple[str, ...]) -> None:
    name, law, *edits = corruption
    broken_law(read(edit(GOOD[name], *edits)), law)


def broken_law(program: Program, law: str) -> str:
    assert law in LAWS
    with pytest.raises(VerifyError) as caught:
        verify(program)
    message = str(caught.value)
    assert f"'{law}'" in message
    return message


# ---- overwriting --------------------------------------------------------------------------------

UPDATE = """
program f @ plan
  input %0: f32[2,2] argument "x"
  input %1: f32[2,2] state "s"
  %2: f32[2,2] = exp(%0) forward
  %3: f32[2,2] = permute(%2) {perm=[1,0]} forward
  %4: f32[2,2] = mul(%2, %1) forward
  %5: f32[2,2] = add(%4, %2) forward
  output user %5 "y"
  output mutated %4 of %1 "s"
  plan arena=32
  %0 input 0 16 %0 -1..0
  %1 input 0 16 %1 -1..4
  %2 arena 0 16 %2 0..3
  %3 arena 0 16 %2 0..3
  %4 input 0 16 %1 -1..4
  %5 output 0 16 %5 3..4
"""


def test_an_input_is_overwritten_after_its_last_read() -> None:
    verify(read(UPDATE))  # by a node that reads it, element by element
    verify(read(edit(UPDATE, "mul(%2, %1) -> mul(%2, %2)")))
    message = broken_law(
        read(edit(UPDATE, "add(%4, %2) -> add(%4, %1)", "0 16 %2 0..3|  %3 -> 0 16 %2 0..2|  %3",
                  "%3 arena 0 16 %2 0..3 -> %3 arena 0 16 %2 0..2")),
        "overwritten values are dead",
    )  # fmt: skip
    assert "%4: f32[2,2] = mul(%2, %1) forward overwrites %1" in message
    assert "read later, by %5: f32[2,2] = add(%4, %1)" in message


def test_an_output_is_not_overwritten() -> None:
    text = edit(UPDATE, "output user %5 -> output user %5|output user %0", "%0 -1..0 -> %0 -1..4")
    broken_law(read(text), "outputs outlive the call")
    text = edit(text, "%2 arena 0 16 %2 0..3 -> %2 input 0 16 %0 -1..4",
                "%3 arena 0 16 %2 0..3 -> %3 input 0 16 %0 -1..4")  # fmt: skip
    assert "by an output" in broken_law(read(text), "overwritten values are dead")


def test_an_input_that_is_not_mutated_is_not_written() -> None:
    text = edit(UPDATE, "%0 -1..0 -> %0 -1..3", "%2 arena 0 16 %2 0..3 -> %2 input 0 16 %0 -1..3",
                "%3 arena 0 16 %2 0..3 -> %3 input 0 16 %0 -1..3")  # fmt: skip
    message = broken_law(read(text), "inputs keep their buffers")
    assert "input %0's buffer ends with the value of %2" in message


def test_a_mutated_value_ends_in_its_input() -> None:
    text = edit(
        UPDATE, "%1 -1..4|  %2 -> %1 -1..2|  %2", "%4 input 0 16 %1 -1..4 -> %4 arena 16 16 %4 2..4"
    )
    broken_law(read(text), "inputs keep their buffers")


@pytest.mark.parametrize(
    ("node", "fine"),
    [
        ("add(%2, %2)", True),
        ("add(%2, %3)", False),  # reads the bytes in another order
        ("maximum(%4, %2)", True),
        ('dot(%2, %2) {spec="ij,jk->ik"}', False),
        ("where(%6, %2, %4)", TABLE["where"].may_overwrite(1)),
        ("slice_scatter(%2, %4) {starts=[0,0], stops=[2,2], steps=[1,1]}", True),
        ("slice_scatter(%4, %2) {starts=[0,0], stops=[2,2], steps=[1,1]}", False),
    ],
)
def test_in_place_needs_an_op_that_may(node: str, fine: bool) -> None:
    """The buffer of %2 passes to the node that reads it last, if the op's declaration allows it."""
    program = read(
        f"""
        program f @ plan
          input %0: f32[2,2] argument "x"
          input %6: bool[2,2] argument "c"
          %2: f32[2,2] = exp(%0) forward
          %3: f32[2,2] = permute(%2) {{perm=[1,0]}} forward
          %4: f32[2,2] = neg(%0) forward
          %5: f32[2,2] = {node} forward
          %7: f32[2,2] = maximum(%5, %4) forward
          output user %7
          plan arena=32
          %0 input 0 16 %0 -1..2
          %6 input 0 4 %6 -1..{3 if "%6" in node else -1}
          %2 arena 0 16 %2 0..4
          %3 arena 0 16 %2 0..4
          %4 arena 16 16 %4 2..4
          %5 arena 0 16 %2 0..4
          %7 output 0 16 %7 4..5
        """
    )
    if fine:
        verify(program)
    else:
        assert "cannot write over %2" in broken_law(program, "overwritten values are dead")


def test_buffers_of_the_arena_are_apart() -> None:
    text = edit(
        STEP_PLAN,
        "%10 arena 64 24 %10 -> %10 arena 28 24 %10",
        "%11 arena 64 24 -> %11 arena 28 24",
    )
    assert "overlap at node 7 of the arena" in broken_law(read(text), "live buffers are apart")


def test_the_arena_does_not_join_the_halves() -> None:
    """%3, a view of %2, is saved: %2 itself must not be in the arena."""
    text = """
        program f @ plan
          input %0: f32[4] argument "x" grad
          input %1: f32[4] cotangent "y"
          %6: f32[2,2] = reshape(%0) {shape=[2,2]} forward
          %2: f32[2,2] = exp(%6) forward
          %3: f32[4] = reshape(%2) {shape=[4]} forward
          %4: f32[4] = sin(%3) forward
          %5: f32[4] = mul(%1, %3) backward
          output user %4 "y" grad
          output gradient %5 of %0 "x"
          output saved %3
          plan arena=0
          %0 input 0 16 %0 -1..1
          %1 input 0 16 %1 -1..4
          %6 input 0 16 %0 -1..1
          %2 saved 0 16 %2 1..5
          %3 saved 0 16 %2 1..5
          %4 output 0 16 %4 3..5
          %5 output 0 16 %5 4..5
        """
    verify(read(text))
    text = edit(text, "%2 saved 0 -> %2 arena 0", "%3 saved 0 -> %3 arena 0", "arena=0 -> arena=16")
    broken_law(read(text), "outputs outlive the call")


# ---- regions ------------------------------------------------------------------------------------

FUSED = """
program step @ plan
  input %0: f32[4] argument "x"
  input %1: f32[4] state "w"
  %2: f32[4], %3: f32[4] = region(%0, %1) {name="r0", tile=[4], block=[4], level=1} forward body
    program step_region_0 @ plan next=%9
      input %0: f32[4] argument
      input %1: f32[4] argument
      %2: f32[4] = mul(%0, %1) forward
      %3: f32[4] = exp(%2) forward
      output user %2
      output user %3
  end
  %5: f32[1] = region(%3) {name="step_region_1", tile=[4], block=[4], level=2} forward body
    program step_region_1 @ plan next=%9
      input %3: f32[4] argument
      %4: f32[4] = sin(%3) forward
      %5: f32[1] = sum(%4) {axes=[0]} forward
      output user %5
  end
  %6: f32[4] = region(%2, %3) {name="step_region_2", tile=[4], block=[4], level=3} update body
    program step_region_2 @ plan next=%9
      input %2: f32[4] argument
      input %3: f32[4] argument
      %4: f32[4] = sin(%3) forward
      %6: f32[4] = sub(%2, %4) update
      output user %6
  end
  output user %5 "loss"
  output mutated %6 of %1 "w"
  plan arena=80 scratch=64
  place %0 input offset=0 bytes=16 root=%0 live=-1..0
  place %1 input offset=0 bytes=16 root=%1 live=-1..3
  place %2 arena offset=0 bytes=16 root=%2 live=0..2
  place %3 arena offset=64 bytes=16 root=%3 live=0..2
  place %5 output offset=0 bytes=4 root=%5 live=1..3
  place %6 input offset=0 bytes=16 root=%1 live=-1..3
"""


def test_fused_programs_round_trip_and_obey() -> None:
    program = parse(FUSED)
    verify(program)
    assert parse(str(program)) == program
    assert program.is_fused and len(program.nodes) == 3 and len(program.computed) == 5
    x, w = (np.arange(4, dtype=np.float32) + k for k in (0, 1))
    loss, new = interpret(program, x, w)
    np.testing.assert_allclose(loss, [np.sin(np.exp(x * w)).sum()], rtol=1e-5)
    np.testing.assert_allclose(new, x * w - np.sin(np.exp(x * w)), rtol=1e-5)


@pytest.mark.parametrize(
    "change, law",
    [
        ("region(%2, %3) -> region(%3, %2)", "bodies fit their regions"),
        ("%2: f32[4], %3: f32[4] = -> %3: f32[4], %2: f32[4] =", "bodies fit their regions"),
        ("step_region_1 @ plan -> step_region_1 @ fuse", "bodies fit their regions"),
        ("sub(%2, %4) -> sub(%2, %3)", None),
        ("block=[4], level=2 -> block=[4], level=1", "levels follow reads"),
        ("level=3} update -> level=2} update", None),
        ("place %3 arena offset=64 -> place %3 arena offset=8", "region buffers are apart"),
        ("arena=80 -> arena=72", "region values have places"),
        ("root=%2 live=0..2 -> root=%2 live=0..1", "region lives are right"),
        ("place %5 output -> place %5 arena", "region lives are right"),
        ("place %6 input offset=0 bytes=16 root=%1 -> place %6 output offset=0 bytes=16 root=%6",
         "region outputs outlive the call"),
    ],
)  # fmt: skip
def test_corrupted_regions(change: str, law: str | None) -> None:
    program = parse(edit(FUSED, change))
    if law is None:
        verify(program)
    else:
        broken_law(program, law)


def test_one_id_is_one_computation() -> None:
    at = FUSED.rindex("sin(%3)")
    broken_law(parse(FUSED[:at] + "cos(%3)" + FUSED[at + 7 :]), "one computation an id")


def test_a_region_has_a_body_and_only_it() -> None:
    good = parse(FUSED)
    broken_law(change(good, 0, body=None), "ops are declared")
    broken_law(good.replace(stage="layout", plan=None), "ops are declared")


# ---- what text cannot say -----------------------------------------------------------------------


def change(program: Program, at: int, **changes: object) -> Program:
    nodes = list(program.nodes)
    nodes[at] = replace(nodes[at], **changes)  # type: ignore[arg-type]
    return program.replace(nodes=tuple(nodes))


def test_corruptions_that_have_no_text() -> None:
    good = parse(TRACE)
    mul, x = good.nodes[0], good.inputs[0].value
    wrong = Value(0, TensorType(float64, (4,)))
    broken_law(change(good, 0, inputs=(wrong, mul.inputs[1])), "one type a value")
    broken_law(good.replace(outputs=(Output(wrong),)), "one type a value")
    broken_law(good.replace(outputs=(Output(Value(77, x.type)),)), "defined before use")
    broken_law(change(good, 1, attrs={"starts": [0]}), "attributes are plain")
    broken_law(change(good, 4, attrs={"axes": (np.int64(0),)}), "attributes are plain")
    broken_law(change(good, 0, phase="sideways"), "origins are known")
    broken_law(change(good, 0, results=(Value(3, TensorType(float32, (-1,))),)), "types are types")
    broken_law(change(good, 0, results=()), "defined before use")
    broken_law(
        good.replace(inputs=(replace(good.inputs[0], role="guest"), *good.inputs[1:])),  # type: ignore[arg-type]
        "roles are legal",
    )
    with pytest.raises(VerifyError, match="no stage 'attic'"):
        verify(good.replace(stage="attic"))


def test_a_node_is_asked_once() -> None:
    """What holds for a node alone is asked of new nodes; what a later stage asks, of all."""
    good = read(GOOD["pure"])
    asked: list[Node] = []
    rule = LAWS["attributes are plain"]

    def note(program: Program) -> list[str]:
        asked.extend(program.nodes)
        return list(rule.check(program))

    LAWS["attributes are plain"] = replace(rule, check=note)
    try:
        verify(good)
        assert asked == list(good.nodes)
        asked.clear()
        new = change(good, 0, attrs={"new": 1})
        with pytest.raises(VerifyError, match="type rule"):
            verify(new, good)
        assert asked == [new.nodes[0]]
        asked.clear()
        verify(good.replace(), good)
        assert not asked
    finally:
        LAWS["attributes are plain"] = rule
    traced = read(GOOD["trace"])
    with pytest.raises(VerifyError, match="writes are gone"):
        verify(traced.replace(stage="functionalize"), traced)


def test_a_scheduled_joint_program_runs_its_forward_first() -> None:
    good = parse(edit(JOINT, "@ partition -> @ schedule"))
    verify(good)
    late = Node(
        "neg", (good.inputs[0].value,), (Value(9, TensorType(float32, (4, 3))),), {}, "forward"
    )
    message = broken_law(
        good.replace(nodes=(*good.nodes, late), next_id=10), "the forward runs first"
    )
    assert "%9 = neg(%0)" in message


def test_the_message_names_the_node_its_line_and_the_law() -> None:
    text = edit(STEP, "mul(%0, %1) forward -> mul(%0, %3) forward")
    text = edit(text, "mul(%0, %2) backward -> mul(%0, %0) backward")
    lines = text.splitlines()
    lines[4], lines[5] = lines[5], lines[4]
    message = broken_law(parse("\n".join(lines)), "phases run forward")
    assert "%2 = mul(%0, %3) (at train.py:7), forward, reads %3, which is backward" in message
    assert LAWS["phases run forward"].statement in message


def test_every_law_states_itself_and_has_a_corruption() -> None:
    assert all(rule.statement.endswith(".") for rule in LAWS.values())
    source = Path(__file__).read_text()
    assert [name for name in LAWS if f'"{name}"' not in source] == []
