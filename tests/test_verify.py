"""Each law catches the corruption it is there for: small edits of good programs, by stage."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tinyaot.errors import VerifyError
from tinyaot.ir import Node, Output, Program, Value
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
  place %0 input offset=0 bytes=48 root=%0 live=-1..7
  place %1 input offset=0 bytes=24 root=%1 live=-1..10
  place %3 arena offset=0 bytes=32 root=%3 live=0..7
  place %4 arena offset=0 bytes=32 root=%3 live=0..7
  place %5 output offset=0 bytes=4 root=%5 live=2..10
  place %6 literal offset=0 bytes=0 root=%6 live=3..5
  place %7 literal offset=0 bytes=0 root=%6 live=3..5
  place %8 arena offset=0 bytes=32 root=%3 live=0..7
  place %9 arena offset=0 bytes=32 root=%3 live=0..7
  place %10 arena offset=64 bytes=24 root=%10 live=7..9
  place %11 arena offset=64 bytes=24 root=%10 live=7..9
  place %12 input offset=0 bytes=24 root=%1 live=-1..10
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
  place %0 input offset=0 bytes=16 root=%0 live=-1..0
  place %1 input offset=0 bytes=16 root=%1 live=-1..4
  place %2 saved offset=0 bytes=16 root=%2 live=0..6
  place %3 saved offset=64 bytes=16 root=%3 live=1..6
  place %4 output offset=0 bytes=16 root=%4 live=2..6
  place %5 arena offset=0 bytes=16 root=%5 live=3..5
  place %6 arena offset=0 bytes=16 root=%5 live=3..5
  place %7 output offset=0 bytes=16 root=%7 live=5..6
"""

GOOD = {
    "trace": TRACE,
    "pure": PURE,
    "step": STEP,
    "joint": JOINT,
    "step plan": STEP_PLAN,
    "joint plan": JOINT_PLAN,
}


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD.keys())
def test_good_programs_pass(text: str) -> None:
    verify(parse(text))


def edit(text: str, *edits: str) -> str:
    """`text` with edits "old -> new" made; each old text must occur once."""
    for e in edits:
        old, new = e.split(" -> ")
        assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times"
        text = text.replace(old, new.replace("\\n", "\n"))
    return text


CORRUPTIONS = [
    # ---- values and nodes
    ("trace", "ids are below next", "next=%11 -> next=%10"),
    ("trace", "defined once", "write(%4, %5) -> write(%4, %5)\\n%5: f32[2] = neg(%4)"),
    ("trace", "defined once", "write(%4, %5) -> write(%4, %5)\\n%0: f32[4] = neg(%3)"),
    ("trace", "defined before use", "mul(%0, %1) -> mul(%0, %9)"),
    ("trace", "ops are declared", "exp(%4) -> expo(%4)"),
    ("trace", "results follow the type rule", "%5: f32[2] -> %5: f32[1]"),
    ("trace", "results follow the type rule", "mul(%0, %1) -> mul(%0, %2)"),
    ("trace", "results follow the type rule", " {axes=[0]}\\n  %7 -> \\n  %7"),
    ("trace", "results follow the type rule", "write(%4, %5) -> write(%4, %3)"),
    ("trace", "results follow the type rule", "write(%4, %5) -> %20: f32[2] = write(%4, %5)"),
    ("trace", "results follow the type rule", "stops=[4] -> stops=[5]"),
    ("trace", "origins are known", "exp(%4) -> exp(%4) <traced %11>"),
    # ---- grad nodes
    ("trace", "grad nodes are well formed", "wrt=1 -> wrt=2"),
    ("trace", "grad nodes are well formed", "outputs=1 -> outputs=0"),
    ("trace", "grad nodes are well formed", "grad(%6, %1) -> grad(%3, %1)"),
    ("trace", "grad nodes are well formed", "grad(%6, %1) -> grad(%6, %0, %1)"),
    ("pure", "grad nodes are well formed", "cotangents=true -> cotangents=1"),
    ("pure", "grad nodes are well formed", "%4: f32[4], %5: f32[4] = -> %4: f32[4] ="),
    # ---- inputs and outputs
    ("trace", "roles are legal", '%0: f32[4] argument -> %0: f32[4] cotangent'),
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
    ("step", "nodes have a phase", 'forward @"train.py":7 -> @"train.py":7'),
    ("joint", "nodes have a phase", "ik,ij->jk\"} backward -> ik,ij->jk\"} update"),
    ("step", "phases run forward", "backward <vjp -> update <vjp", "sub(%1, %3) update -> sub(%1, %3) backward"),
    ("step", "phases run forward", "backward <vjp -> forward <vjp", "forward @ -> backward @"),
    ("joint", "phases run forward", "tanh(%3) forward -> tanh(%2) forward"),
    ("joint", "the forward gives its outputs", "output user %4 -> output user %5"),
    ("joint", "the forward gives its outputs", "output saved %3 -> output saved %3\\noutput saved %6"),
    ("joint", "the backward reads what is saved", "output saved %3 -> output saved %4"),
    ("joint", "the backward reads what is saved", "mul(%2, %5) -> mul(%2, %4)"),
    ("joint", "saved values are made", "output saved %3 -> output saved %3\\noutput saved %3"),
    ("joint", "saved values are made", "output saved %3 -> output saved %3\\noutput saved %0"),
    # ---- plans
    ("step", "plans come last", 'of %1 "w" -> of %1 "w"\\nplan arena=0'),
    ("step plan", "every value has a place", "  place %5 output offset=0 bytes=4 root=%5 live=2..10\n -> "),
    ("step plan", "every value has a place", "plan arena=88 -> plan arena=88\\nplace %30 arena offset=0 bytes=4 root=%30 live=0..0"),
    ("step plan", "roots own their bytes", "%4 arena offset=0 -> %4 arena offset=32"),
    ("step plan", "roots own their bytes", "%8 arena offset=0 bytes=32 root=%3 -> %8 arena offset=0 bytes=32 root=%4"),
    ("step plan", "views share their storage", "%9 arena offset=0 bytes=32 root=%3 live=0..7 -> %9 arena offset=0 bytes=32 root=%9 live=6..7"),
    ("step plan", "places hold their values", "arena=88 -> arena=87"),
    ("step plan", "places hold their values", "%5 output offset=0 bytes=4 -> %5 output offset=0 bytes=2"),
    ("step plan", "places hold their values", "%5 output offset=0 -> %5 output offset=2"),
    ("step plan", "places hold their values", "%5 output offset=0 bytes=4 -> %5 literal offset=0 bytes=0"),
    ("step plan", "live ranges are right", "root=%5 live=2..10 -> root=%5 live=2..9"),
    ("joint plan", "live ranges are right", "root=%1 live=-1..4 -> root=%1 live=-1..3"),
    ("joint plan", "outputs outlive the call", "%4 output -> %4 arena", "arena=16 -> arena=80", "%4 arena offset=0 -> %4 arena offset=64"),
    ("joint plan", "live buffers are apart", "%3 saved offset=64 -> %3 saved offset=12"),
    ("joint plan", "inputs keep their buffers", "%1 input -> %1 arena", "arena=16 -> arena=80", "%1 arena offset=0 -> %1 arena offset=64"),
]  # fmt: skip


@pytest.mark.parametrize(
    "corruption", CORRUPTIONS, ids=[f"{n}-{c[1]}" for n, c in enumerate(CORRUPTIONS)]
)
def test_corruptions_are_caught(corruption: tuple[str, ...]) -> None:
    name, law, *edits = corruption
    broken_law(parse(edit(GOOD[name], *edits)), law)


def broken_law(program: Program, law: str) -> str:
    assert law in LAWS
    with pytest.raises(VerifyError) as caught:
        verify(program)
    message = str(caught.value)
    assert f"'{law}'" in message
    return message


def replan(text: str, edits: list[str], places: str) -> Program:
    """A planned program with nodes edited, and places given in full: `%2 arena 0 +16 root=%2 0..3`
    a line."""
    body, _, _ = edit(text, *edits).partition("  plan arena")
    lines = []
    for place in places.strip().splitlines():
        id_, space, offset, nbytes, root, live = place.split()
        lines.append(f"place {id_} {space} offset={offset} bytes={nbytes} root={root} live={live}")
    return parse(body + "plan arena=64\n" + "\n".join(lines))


BODY = """
program f @ plan
  input %0: f32[2,2] argument "x"
  input %1: f32[2,2] state "s"
  %2: f32[2,2] = exp(%0) forward
  %3: f32[2,2] = permute(%2) {perm=[1,0]} forward
  %4: f32[2,2] = mul(%2, %2) forward
  %5: f32[2,2] = add(%4, %1) forward
  output user %5 "y"
  output mutated %4 of %1 "s"
  plan arena=0
"""
GOOD_PLACES = """
%0 input 0 16 %0 -1..0
%1 input 0 16 %1 -1..3
%2 arena 0 16 %2 0..2
%3 arena 0 16 %2 0..2
%4 arena 16 16 %4 2..4
%5 output 0 16 %5 3..4
"""


def test_an_input_is_overwritten_after_its_last_read() -> None:
    """%4 is the new value of %1, whose old value %5 reads after it."""
    places = edit(
        GOOD_PLACES,
        "%1 input 0 16 %1 -1..3 -> %1 input 0 16 %1 -1..4",
        "%4 arena 16 16 %4 2..4 -> %4 input 0 16 %1 -1..4",
    )
    message = broken_law(replan(BODY, [], places), "overwritten values are dead")
    assert "overwrites %1" in message and "%5" in message
    # Read by the node that writes it, element by element, it may be.
    verify(
        replan(
            BODY,
            ["mul(%2, %2) -> mul(%2, %1)", "add(%4, %1) -> add(%4, %4)"],
            places,
        )
    )


IN_PLACE = """
%0 input 0 16 %0 -1..0
%1 input 0 16 %1 -1..4
%2 arena 0 16 %2 0..3
%3 arena 0 16 %2 0..3
%4 input 0 16 %1 -1..4
%5 arena 0 16 %2 0..3
"""


@pytest.mark.parametrize(
    ("node", "fine"),
    [
        ("add(%2, %2)", True),
        ("add(%2, %3)", False),  # reads the bytes in another order
        ("maximum(%4, %2)", True),
        ('dot(%2, %2) {spec="ij,jk->ik"}', False),
        ("cumsum(%2) {axis=0}", None),
        ("where(%6, %2, %4)", None),
    ],
)
def test_in_place_needs_an_op_that_may(node: str, fine: bool | None) -> None:
    """The buffer of %2 passes to the node that reads it last, if the op's declaration allows it."""
    from tinyaot.ops import TABLE

    if fine is None:
        fine = TABLE[node.partition("(")[0]].may_overwrite(1 if node.startswith("where") else 0)
    text = edit(
        BODY,
        f"add(%4, %1) -> {node}",
        "output user %5 -> output user %7",
        "  output user -> %7: f32[2,2] = copy(%5) forward\\n  output user",
        "  %2: f32[2,2] = exp -> %6: bool[2,2] = ne(%0, %0) forward\\n  %2: f32[2,2] = exp",
        "mul(%2, %2) -> mul(%0, %0)",
    )
    places = """
        %0 input 0 16 %0 -1..3
        %1 input 0 16 %1 -1..6
        %6 arena 32 4 %6 LAST
        %2 arena 0 16 %2 1..5
        %3 arena 0 16 %2 1..5
        %4 input 0 16 %1 -1..6
        %5 arena 0 16 %2 1..5
        %7 output 0 16 %7 5..6
    """.replace("LAST", "0..4" if "%6" in node else "0..0")
    program = replan(text, [], places)
    if fine:
        verify(program)
    else:
        message = broken_law(program, "overwritten values are dead")
        assert "cannot write over %2" in message


def test_an_input_that_is_not_mutated_is_not_written() -> None:
    places = edit(GOOD_PLACES, "%2 arena 0 16 %2 0..2 -> %2 input 0 16 %0 -1..2",
                  "%3 arena 0 16 %2 0..2 -> %3 input 0 16 %0 -1..2",
                  "%0 input 0 16 %0 -1..0 -> %0 input 0 16 %0 -1..2")  # fmt: skip
    message = broken_law(replan(BODY, [], places), "inputs keep their buffers")
    assert "input %0's buffer ends with the value of %2" in message


def test_a_mutated_value_ends_in_its_input() -> None:
    message = broken_law(replan(BODY, [], GOOD_PLACES), "inputs keep their buffers")
    assert "%4 of input %1 is not in its buffer" in message


def test_buffers_of_the_arena_are_apart() -> None:
    places = edit(GOOD_PLACES, "%4 arena 16 -> %4 arena 12")
    message = broken_law(replan(BODY, [], places), "live buffers are apart")
    assert "%2 and %4 overlap" in message


def test_the_arena_does_not_join_the_halves() -> None:
    text = edit(JOINT_PLAN, "%2 saved offset=0 bytes -> %2 arena offset=64 bytes",
                "arena=16 -> arena=80", "  output saved %2\n -> ", "%7: f32[4] = mul(%2 -> %7: f32[4] = mul(%0",
                "root=%0 live=-1..0 -> root=%0 live=-1..5", "root=%2 live=0..6 -> root=%2 live=0..1")  # fmt: skip
    verify(parse(text))
    text = edit(text, "  output saved %3\n -> ", "  output user %4 -> output saved %3\\n  output user %4",
                "%3 saved offset=64 bytes=16 root=%3 live=1..6 -> %3 arena offset=0 bytes=16 root=%3 live=1..6")  # fmt: skip
    broken_law(parse(text), "live buffers are apart")


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
    source = open(__file__).read()
    assert [name for name in LAWS if f'"{name}"' not in source] == []
