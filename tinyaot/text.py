"""Programs as text: a printer and a parser, each the exact inverse of the other at every stage.

One statement a line, in the manner of MLIR's generic form: what a line does not say, the Program
does not hold. The parser knows the grammar and nothing else: laws are `verify`'s business, so that
a program that breaks one can still be read, printed and looked at. It never evaluates text.

    program loss @ autodiff next=%6
      input %0: f32[4,3] argument "x" grad
      %1: f32[4,3] = exp(%0) forward @"train.py":12 <traced %1>
      %2: f32[1,1] = sum(%1) {axes=[0,1]} forward
      output user %2 grad

A region's line ends in `body`; the Program inside follows, and a line `end`.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, TypeVar, get_args, get_type_hints

from tinyaot.errors import DTypeError, ParseError
from tinyaot.ir import (
    PHASES,
    STAGES,
    Input,
    InputRole,
    Node,
    Origin,
    Output,
    OutputRole,
    Place,
    Plan,
    Program,
    Relation,
    Value,
)
from tinyaot.location import Loc
from tinyaot.shapes import DTYPES, DType, TensorType, brief

# ---- printing -----------------------------------------------------------------------------------

_NAN_BITS = struct.pack(">d", math.nan)


def print_program(program: Program) -> str:
    """The Program as text; `parse` gives it back, equal field by field.

    Raises TypeError for an attribute that is not plain data.
    """
    name = program.name if _WORD.fullmatch(program.name) else json.dumps(program.name)
    lines = [f"program {name} @ {program.stage} next=%{program.next_id}"]
    lines += [f"  {_input_text(i)}" for i in program.inputs]
    for n in program.nodes:
        lines.append(f"  {print_node(n)}{'' if n.body is None else ' body'}")
        if n.body is not None:
            lines += [f"    {line}" for line in print_program(n.body).split("\n")]
            lines.append("  end")
    lines += [f"  {_output_text(o)}" for o in program.outputs]
    if program.plan is not None:
        scratch = f" scratch={program.plan.scratch}" if program.plan.scratch else ""
        lines.append(f"  plan arena={program.plan.arena}{scratch}")
        lines += [f"  {_place_text(id_, p)}" for id_, p in program.plan.places.items()]
    return "\n".join(lines)


def print_node(node: Node) -> str:
    """One node's line, without indentation (of a region, without its body)."""
    results = ", ".join(f"{r}: {r.type}" for r in node.results)
    text = f"{results} = " if results else ""
    text += f"{node.op}({', '.join(map(str, node.inputs))})"
    if node.attrs:
        text += " {" + ", ".join(f"{k}={_attribute(v)}" for k, v in node.attrs.items()) + "}"
    if node.phase is not None:
        text += f" {node.phase}"
    if node.checkpoint:
        text += f" checkpoint={_attribute(node.checkpoint)}"
    if node.loc is not None:
        text += f" @{json.dumps(node.loc.file)}:{node.loc.line}"
    if node.origin:
        text += f" <{', '.join(map(_origin_text, node.origin))}>"
    return text


def _input_text(i: Input) -> str:
    name = f" {json.dumps(i.name)}" if i.name else ""
    return f"input {i.value}: {i.value.type} {i.role}{name}{' grad' if i.requires_grad else ''}"


def _output_text(o: Output) -> str:
    of = f" of %{o.of}" if o.of is not None else ""
    name = f" {json.dumps(o.name)}" if o.name else ""
    return f"output {o.role} {o.value}{of}{name}{' grad' if o.requires_grad else ''}"


def _origin_text(o: Origin) -> str:
    operand = f" operand {o.operand}" if o.operand is not None else ""
    return f"{o.relation} %{o.id}{operand}"


def _place_text(id_: int, p: Place) -> str:
    where = f"offset={p.offset} bytes={p.nbytes} root=%{p.root}"
    return f"place %{id_} {p.space} {where} live={p.first}..{p.last}"


def _attribute(x: Any) -> str:
    if isinstance(x, bool):
        return "true" if x else "false"
    if isinstance(x, int):
        return int.__repr__(x)
    if isinstance(x, float):
        # NaNs other than Python's own (another sign or payload) are given by their bits.
        bits = struct.pack(">d", x)
        return f"nan(0x{bits.hex()})" if x != x and bits != _NAN_BITS else float.__repr__(x)
    if isinstance(x, str):
        return json.dumps(x)
    if isinstance(x, DType):
        return x.short
    if isinstance(x, tuple):
        return f"[{','.join(map(_attribute, x))}]"
    raise TypeError(f"attribute {x!r} is not plain data ({type(x).__name__})")


# ---- tokens -------------------------------------------------------------------------------------

_WORD = re.compile(r"[A-Za-z_][\w.]*(?:-[A-Za-z]\w*)*", re.ASCII)
_TOKEN = re.compile(
    r"[ \t\r]*(?:"
    r"(?P<end>\#.*|$)"
    r'|(?P<string>"(?:[^"\\]|\\.)*")'
    r"|(?P<id>%\d{1,18})"
    r"|(?P<number>-inf|nan\(0x[0-9a-f]{16}\)|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)"
    rf"|(?P<word>{_WORD.pattern})"
    r"|(?P<mark>\.\.|[@:=,(){}\[\]<>]))",
    re.ASCII,
)
_DTYPE = {d.short: d for d in DTYPES}
_SPACES = get_args(get_type_hints(Place)["space"])
_DEEPEST = 8  # levels of nested tuples
Item = TypeVar("Item")


class _Line:
    """The tokens of one line, read from left to right."""

    def __init__(self, number: int, text: str) -> None:
        self.number, self.text, self.at = number, text, 0
        self.tokens: list[tuple[str, str]] = []
        at = 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                self.tokens.append(("unknown", text[at:].strip()))
                break
            kind = match.lastgroup or ""
            if kind != "end":
                self.tokens.append((kind, match[kind]))
            at = match.end()

    def peek(self, ahead: int = 0) -> tuple[str, str]:
        at = self.at + ahead
        return self.tokens[at] if at < len(self.tokens) else ("end", "")

    def fail(self, expected: str) -> NoReturn:
        """Raise what is wrong at the next token."""
        kind, token = self.peek()
        found = "the end of the line" if kind == "end" else repr(token)
        where = f" in: {self.text.strip()}" if self.text else ""
        raise ParseError(f"line {self.number}: expected {expected}, found {found}{where}")

    def accept(self, token: str) -> bool:
        """Step over the token if it is next (a string that reads the same is not it)."""
        if self.peek()[1] != token:
            return False
        self.at += 1
        return True

    def expect(self, token: str) -> None:
        if not self.accept(token):
            self.fail(repr(token))

    def take(self, kind: str, expected: str) -> str:
        if self.peek()[0] != kind:
            self.fail(expected)
        self.at += 1
        return self.tokens[self.at - 1][1]

    def one_of(self, choices: Sequence[str], what: str) -> Any:
        """The next word, which must be one of `choices`."""
        if self.peek()[1] not in choices:
            self.fail(f"{what}: {', '.join(choices)}")
        return self.take("word", what)

    def list_of(self, item: Callable[[], Any], close: str) -> list[Any]:
        """Items between commas, up to the closing mark; the opening one is taken already."""
        found: list[Any] = []
        while not self.accept(close):
            if found:
                self.expect(",")
            found.append(item())
        return found

    # ---- the small parts of the grammar ----

    def id(self) -> int:
        return int(self.take("id", "a value such as %3")[1:])

    def integer(self, what: str = "a whole number") -> int:
        if not re.fullmatch(r"-?\d{1,400}", self.peek()[1]):
            self.fail(what)
        return int(self.take("number", what))

    def string(self) -> str:
        token = self.take("string", 'a string in "quotes"')
        try:
            return str(json.loads(token))
        except ValueError:
            self.at -= 1
            self.fail("a string with JSON's escapes")

    def optional_string(self) -> str:
        return self.string() if self.peek()[0] == "string" else ""

    def value(self) -> Value:
        """`%3: f32[2,4]`, a definition."""
        id_ = self.id()
        self.expect(":")
        dtype = _DTYPE[self.one_of(tuple(_DTYPE), "a dtype")]
        return Value(id_, TensorType(dtype, self.integers()))

    def attribute(self, depth: int = 0) -> Any:
        kind, token = self.peek()
        if kind == "string":
            return self.string()
        if kind == "mark" and token == "[" and depth < _DEEPEST:
            self.at += 1
            return tuple(self.list_of(lambda: self.attribute(depth + 1), "]"))
        if kind == "word" and token in _CONSTANTS:
            self.at += 1
            return _CONSTANTS[token]
        if kind != "number":
            self.fail("an attribute: a number, true, false, a string, a dtype or a [tuple]")
        if not any(c in token for c in ".en"):
            return self.integer()
        self.at += 1
        if token.startswith("nan"):
            return struct.unpack(">d", bytes.fromhex(token[6:-1]))[0]
        return float(token)

    def integers(self) -> tuple[int, ...]:
        """`[1,2]`."""
        self.expect("[")
        return tuple(self.list_of(self.integer, "]"))

    def field(self, name: str, item: Callable[[], Item]) -> Item:
        """`name=` and an item."""
        self.expect(name)
        self.expect("=")
        return item()

    def pair(self) -> tuple[str, Any]:
        key = self.take("word", "an attribute's name")
        self.expect("=")
        return key, self.attribute()

    def origin(self) -> Origin:
        relation = self.one_of(get_args(Relation), "a relation")
        id_ = self.id()
        return Origin(relation, id_, self.integer() if self.accept("operand") else None)


_CONSTANTS: dict[str, Any] = {
    "true": True,
    "false": False,
    "inf": math.inf,
    "nan": math.nan,
    **_DTYPE,
}

# ---- parsing ------------------------------------------------------------------------------------


def parse(text: str) -> Program:
    """The Program that `text` describes. Everything after a `#` on a line is a comment.

    `next=` may be left out: ids then go on after the greatest one used. Raises ParseError with the
    line's number and what was expected there; laws beyond the grammar are not checked (`verify`).
    """
    if not isinstance(text, str):
        raise DTypeError(f"parse: needs IR text, got {brief(text)}")
    numbered = (_Line(n, line) for n, line in enumerate(text.split("\n"), 1))
    return _Parser(line for line in numbered if line.tokens).program


class _Parser:
    """Collects statements; operands are resolved last, since a line may name a later value."""

    def __init__(self, lines: Iterable[_Line], depth: int = 0) -> None:
        self.depth, self.closed = depth, False
        self.inputs: list[Input] = []
        self.nodes: list[tuple[_Line, str, list[int], tuple[Any, ...]]] = []
        self.outputs: list[tuple[_Line, int, tuple[Any, ...]]] = []
        self.values: dict[int, Value] = {}
        self.arena: int | None = None
        self.scratch = 0
        self.places: dict[int, Place] = {}
        self.lines = iter(lines)
        name, stage, next_id = self.header(next(self.lines, _Line(1, "")))
        statements = {
            "input": self.input,
            "output": self.output,
            "plan": self.plan,
            "place": self.place,
        }
        for line in self.lines:
            if self.depth and line.peek() == ("word", "end") and line.peek(1)[0] == "end":
                self.closed = True
                break
            # A mutating op has no results, so that its line begins with its name: `write(`.
            if line.peek()[1] == "program":
                line.fail("the end: a second program begins here, and parse takes one")
            is_node = line.peek()[0] != "word" or line.peek(1)[1] == "("
            statement = None if is_node else statements.get(line.peek()[1])
            (statement or self.node)(line)
            if line.peek()[0] != "end":
                line.fail("the end of the line")
        self.program = Program(
            name,
            stage,
            tuple(self.inputs),
            tuple(
                Node(op, tuple(self.resolve(line, i) for i in ids), *rest)
                for line, op, ids, rest in self.nodes
            ),
            tuple(Output(self.resolve(line, id_), *rest) for line, id_, rest in self.outputs),
            max(self.values, default=-1) + 1 if next_id is None else next_id,
            None if self.arena is None else Plan(self.arena, self.places, self.scratch),
        )

    def resolve(self, line: _Line, id_: int) -> Value:
        if id_ not in self.values:
            raise ParseError(
                f"line {line.number}: expected a value that some line defines, found %{id_} in: "
                f"{line.text.strip()}"
            )
        return self.values[id_]

    def define(self, line: _Line) -> Value:
        value = line.value()
        self.values.setdefault(value.id, value)
        return value

    def header(self, line: _Line) -> tuple[str, str, int | None]:
        line.expect("program")
        quoted = line.peek()[0] == "string"
        name = line.string() if quoted else line.take("word", "the program's name")
        line.expect("@")
        stage = line.one_of(STAGES, "a stage")
        next_id = line.field("next", line.id) if line.peek()[1] == "next" else None
        if line.peek()[0] != "end":
            line.fail("the end of the line")
        return name, stage, next_id

    def input(self, line: _Line) -> None:
        line.expect("input")
        value = self.define(line)
        role = line.one_of(get_args(InputRole), "a role")
        self.inputs.append(Input(value, role, line.optional_string(), line.accept("grad")))

    def output(self, line: _Line) -> None:
        line.expect("output")
        role = line.one_of(get_args(OutputRole), "a role")
        id_ = line.id()
        of = line.id() if line.accept("of") else None
        self.outputs.append((line, id_, (role, of, line.optional_string(), line.accept("grad"))))

    def node(self, line: _Line) -> None:
        results = []
        while line.peek()[0] == "id":
            results.append(self.define(line))
            if not line.accept(","):
                line.expect("=")
                break
        op = line.take("word", "an input, an output or a node")
        line.expect("(")
        ids = line.list_of(line.id, ")")
        attrs = dict(line.list_of(line.pair, "}")) if line.accept("{") else {}
        is_phase = line.peek()[0] == "word" and line.peek()[1] not in ("checkpoint", "body")
        phase = line.one_of(PHASES, "a phase") if is_phase else None
        checkpoint = (
            line.field("checkpoint", line.integers) if line.peek()[1] == "checkpoint" else ()
        )
        loc = None
        if line.accept("@"):
            file = line.string()
            line.expect(":")
            loc = Loc(file, line.integer("a line number"))
        origin = tuple(line.list_of(line.origin, ">")) if line.accept("<") else ()
        body = None
        if line.accept("body"):
            body = self.body(line)
        self.nodes.append(
            (line, op, ids, (tuple(results), attrs, phase, loc, origin, body, checkpoint))
        )

    def body(self, line: _Line) -> Program:
        """The Program on the next lines, up to `end`."""
        if self.depth == _DEEPEST:
            line.fail("fewer bodies in bodies")
        inner = _Parser(self.lines, self.depth + 1)
        if not inner.closed:
            raise ParseError(f"line {line.number}: expected a line 'end' after this body")
        return inner.program

    def plan(self, line: _Line) -> None:
        line.expect("plan")
        self.arena = line.field("arena", line.integer)
        self.scratch = line.field("scratch", line.integer) if line.peek()[1] == "scratch" else 0

    def place(self, line: _Line) -> None:
        line.expect("place")
        if self.arena is None:
            line.fail("a plan line above")
        id_ = line.id()
        space = line.one_of(_SPACES, "a space")
        offset = line.field("offset", line.integer)
        nbytes = line.field("bytes", line.integer)
        root = line.field("root", line.id)
        first = line.field("live", line.integer)
        line.expect("..")
        self.places[id_] = Place(space, offset, nbytes, root, first, line.integer())


# ir.py knows nothing of text, so that printing a Program is attached to it from here.
Program.__str__ = print_program  # type: ignore[method-assign, assignment]
Node.__str__ = print_node  # type: ignore[method-assign, assignment]
