"""Text is an exact inverse of itself, and the parser says where text is no Program."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyaot.errors import ParseError
from tinyaot.ir import PHASES, STAGES, Input, Node, Origin, Output, Place, Plan, Program, Value
from tinyaot.location import Loc
from tinyaot.shapes import DTYPES, TensorType, float32
from tinyaot.text import parse, print_program

STEP = """\
program step @ plan next=%30
  input %0: f32[64,32] argument "x" grad
  input %1: f64[] hyper "SGD.lr"
  input %2: i64[] random
  %4: f32[64,10] = dot(%0, %0) {spec="ij,jk->ik"} forward @"train.py":12 <traced %4>
  %5: f32[], %6: i64[0] = pair(%4) {value=-0.0, axes=[0,-1], dtype=bf16, on=true, of=[]}
  %7: f32[64,10] = neg(%4) backward checkpoint=[1,3] <recompute-of %4, vjp-of %4 operand 1>
  write(%7, %4)
  output user %5 "loss" grad
  output mutated %7 of %0 "x"
  plan arena=4096
  place %4 arena offset=64 bytes=2560 root=%4 live=0..3
  place %0 input offset=0 bytes=8192 root=%0 live=-1..4"""


def test_text_is_kept_as_written() -> None:
    assert str(parse(STEP)) == STEP


def test_every_field_is_read() -> None:
    p = parse(STEP)
    assert (p.name, p.stage, p.next_id) == ("step", "plan", 30)
    x = Value(0, TensorType(float32, (64, 32)))
    assert p.inputs[0] == Input(x, "argument", "x", True)
    assert p.nodes[0].loc == Loc("train.py", 12)
    assert p.nodes[0].origin == (Origin("traced", 4),)
    assert p.nodes[1].attrs["axes"] == (0, -1) and p.nodes[1].attrs["of"] == ()
    assert math.copysign(1, p.nodes[1].attrs["value"]) == -1
    assert p.nodes[2].phase == "backward" and p.nodes[2].origin[1] == Origin("vjp-of", 4, 1)
    assert p.nodes[2].checkpoint == (1, 3) and p.nodes[0].checkpoint == ()
    assert p.nodes[3].results == () and p.nodes[3].inputs == (p.nodes[2].result, p.nodes[0].result)
    assert p.outputs[1] == Output(p.nodes[2].result, "mutated", 0, "x")
    assert p.plan == Plan(
        4096,
        {4: Place("arena", 64, 2560, 4, 0, 3), 0: Place("input", 0, 8192, 0, -1, 4)},
    )


def test_handwriting_is_forgiven() -> None:
    """Comments, blank lines, any indentation; `next=` follows the greatest id."""
    p = parse(
        "\n# a case\nprogram f @ trace\n\n"
        '\tinput %7:f32[2]argument"#x" # the input\n output user %7'
    )
    assert p.next_id == 8 and p.inputs[0].name == "#x"


def test_a_later_value_is_left_to_verify() -> None:
    p = parse("program f @ trace\n%1: f32[] = neg(%2)\n%2: f32[] = neg(%1)\noutput user %1")
    assert p.nodes[0].inputs == (p.nodes[1].result,)


# ---- any Program round-trips --------------------------------------------------------------------

ids = st.integers(0, 40)
types = st.builds(
    TensorType, st.sampled_from(DTYPES), st.lists(st.integers(0, 9), max_size=3).map(tuple)
)
texts = st.one_of(st.text(max_size=6), st.sampled_from(["grad", "a b", '"', "\\", "\n#", "\ud800"]))
plain = st.recursive(
    st.one_of(
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False),
        texts,
        st.sampled_from(DTYPES),
    ),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=5,
)
relations = st.sampled_from(["traced", "vjp-of", "recompute-of", "fused-into"])
origins = st.builds(Origin, relations, ids, st.none() | st.integers(0, 5))
words = st.sampled_from(["add", "input", "output", "plan", "place", "grad", "x_1", "inf", "f32"])


@st.composite
def programs(draw: st.DrawFn) -> Program:
    values = [
        Value(i, draw(types)) for i in draw(st.lists(ids, min_size=1, max_size=8, unique=True))
    ]
    inputs, made = values[: len(values) // 2], values[len(values) // 2 :]
    some = st.lists(st.sampled_from(values), max_size=3).map(tuple)
    loc = st.none() | st.builds(Loc, texts, st.integers(0, 999))
    phase = st.none() | st.sampled_from(PHASES)
    nodes = []
    for count in draw(st.lists(st.integers(0, 2), max_size=4)):
        results, made = tuple(made[:count]), made[count:]
        attrs = draw(st.dictionaries(words, plain | st.floats(), max_size=3))
        origin = draw(st.lists(origins, max_size=2).map(tuple))
        nodes.append(Node(draw(words), draw(some), results, attrs, draw(phase), draw(loc), origin))
    nodes.append(Node("rest", (), tuple(made)))
    roles = st.sampled_from(["argument", "state", "hyper", "constant", "random", "cotangent"])
    outputs = st.builds(
        Output,
        st.sampled_from(values),
        st.sampled_from(["user", "mutated", "saved", "gradient"]),
        st.none() | ids,
        texts,
        st.booleans(),
    )
    spaces = st.sampled_from(["arena", "output", "saved", "input", "literal"])
    n = st.integers(-2, 10**12)
    places = st.dictionaries(ids, st.builds(Place, spaces, n, n, ids, n, n), max_size=3)
    return Program(
        draw(texts),
        draw(st.sampled_from(STAGES)),
        tuple(Input(v, draw(roles), draw(texts), draw(st.booleans())) for v in inputs),
        tuple(nodes),
        tuple(draw(st.lists(outputs, max_size=3))),
        draw(st.integers(0, 99)),
        draw(st.none() | st.builds(Plan, n, places)),
    )


@settings(max_examples=150, deadline=None, derandomize=True)
@given(programs())
def test_parse_is_the_inverse_of_print(p: Program) -> None:
    again = parse(str(p))
    assert again == p
    # == takes 1, 1.0 and True for one another, and -0.0 for 0.0; the text does not.
    assert str(again) == str(p)


@pytest.mark.parametrize(
    "bits", [0x7FF8000000000000, 0xFFF8000000000000, 0x7FF0000000000001, 0x8000000000000000, 1]
)
def test_floats_keep_their_bits(bits: int) -> None:
    number = struct.unpack(">d", struct.pack(">Q", bits))[0]
    v = Value(0, TensorType(float32, ()))
    p = Program("f", "trace", (), (Node("full", (), (v,), {"value": number}),), (), 1)
    again = parse(str(p))
    assert again == p  # a NaN, too
    back = again.nodes[0].attrs["value"]
    assert struct.unpack(">Q", struct.pack(">d", back))[0] == bits


# ---- what the parser refuses --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("", 1, "'program'"),
        ("program", 1, "the program's name"),
        ("program f", 1, "'@'"),
        ("program f @ nowhere", 1, "a stage"),
        ("program f @ trace next=5", 1, "a value such as %3"),
        ("program f @ trace\ninput %0: f33[2] argument", 2, "a dtype"),
        ("program f @ trace\ninput %0: f32[2 argument", 2, "','"),
        ("program f @ trace\ninput %0: f32[1.5] argument", 2, "a whole number"),
        ("program f @ trace\n\ninput %0: f32[2] guest", 3, "a role"),
        ("program f @ trace\ninput %0: f32[2] argument gradd", 2, "the end of the line"),
        ("program f @ trace\n%1: f32[] = neg(%0)", 2, "a value that some line defines"),
        ("program f @ trace\noutput user %3", 2, "a value that some line defines"),
        ("program f @ trace\n%1: f32[] = neg %0", 2, "'('"),
        ("program f @ trace\n%1 = neg()", 2, "':'"),
        ("program f @ trace\n%1: f32[] = neg() {a=__import__}", 2, "an attribute"),
        ("program f @ trace\n%1: f32[] = neg() {a=2**9}", 2, "','"),
        ("program f @ trace\n%1: f32[] = neg() {a=" + "[" * 2000 + "}", 2, "an attribute"),
        ("program f @ trace\n%1: f32[] = neg() {a=" + "9" * 5000 + "}", 2, "a whole number"),
        ('program f @ trace\n%1: f32[] = neg() {a="\\q"}', 2, "JSON's escapes"),
        ('program f @ trace\n%1: f32[] = neg() {a="}', 2, "an attribute"),
        ("program f @ trace\n%1: f32[] = neg() sideways", 2, "a phase"),
        ("program f @ trace\n%1: f32[] = neg() <made-by %0>", 2, "a relation"),
        ("program f @ plan\nplace %0 arena", 2, "a plan line above"),
        ("program f @ plan\nplan arena=0\nplace %0 attic", 3, "a space"),
        ("program f @ trace\n!", 2, "an input, an output or a node"),
    ],
)
def test_errors_say_the_line_and_what_was_expected(text: str, line: int, expected: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse(text)
    message = str(caught.value)
    assert message.startswith(f"line {line}: expected ")
    assert expected in message.splitlines()[0]


def test_printing_refuses_what_it_could_not_read_back() -> None:
    v = Value(0, TensorType(float32, ()))
    p = Program("f", "trace", (), (Node("full", (), (v,), {"value": [1]}),), (), 1)
    with pytest.raises(TypeError, match="plain data"):
        print_program(p)
