"""The identities that `simplify` knows: each exact, for every bit pattern.

A rule looks at one node, through the producers of its operands, and gives another node for the
same result, or the value that the result equals, or None. "Exact" means the same bits from every
operand: NaN, infinity and -0.0 included (the sign and payload of a NaN apart). So x * 1 and
x - 0.0 are x, but x * 0 is not 0 (infinity), x - x is not 0 (NaN), and x + 0.0 is not x (-0.0).
Sums are not reordered. Each rule says why it holds. (One thing is beyond bits: a library's product
may round differently when its operand, a view no longer, comes with other strides.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from tinyaot.ir import Node, Value
from tinyaot.ops.core import TABLE
from tinyaot.shapes import DType, broadcast_shapes

Number: TypeAlias = bool | int | float
Rewritten: TypeAlias = Node | Value | None


class Graph(Protocol):
    """What a rule may ask for, and `notes` on values for other rules."""

    notes: dict[int, object]

    def producer(self, value: Value) -> Node | None:
        """The node that makes a value; None for inputs, and for values to be taken as given."""

    def make(self, op: str, *operands: Value, **attrs: Any) -> Value:
        """A new value, simplified."""


class Rule(NamedTuple):
    group: str
    name: str
    apply: Callable[[Node, Graph], Rewritten]


GROUPS = ("fold", "algebra", "casts", "views", "pieces")
RULES: dict[str, list[Rule]] = {op: [] for op in TABLE}


def rule(group: str, *ops: str) -> Callable[[Callable[[Node, Graph], Rewritten]], Any]:
    """Enter a function in the table of rules, for the named ops or kinds of op ("any map")."""

    def enter(function: Callable[[Node, Graph], Rewritten]) -> Any:
        entry = Rule(group, function.__name__.replace("_", "-"), function)
        for name, primitive in TABLE.items():
            if name in ops or f"any {primitive.kind}" in ops:
                RULES[name].append(entry)
        return function

    return enter


# ---- looking ------------------------------------------------------------------------------------


def constant(value: Value, graph: Graph) -> Number | None:
    """The number that fills a value, if it is a `full`."""
    node = graph.producer(value)
    return node.attrs["value"] if node is not None and node.op == "full" else None


def is_constant(value: Value, graph: Graph, number: float) -> bool:
    """Whether a value is filled with exactly this number, sign of zero included."""
    x = constant(value, graph)
    return x is not None and x == number and math.copysign(1, x) == math.copysign(1, number)


def operand_of(value: Value, graph: Graph, op: str) -> Value | None:
    """x, where the value is op(x)."""
    node = graph.producer(value)
    return node.inputs[0] if node is not None and node.op == op else None


def scalar(graph: Graph, number: Number, dtype: DType) -> Value:
    return graph.make("full", value=number, shape=(), dtype=dtype)


def remake(node: Node, op: str, *inputs: Value, **attrs: Any) -> Node:
    """Another op with the same result."""
    return replace(node, op=op, inputs=inputs, attrs=attrs)


def same(node: Node, x: Value) -> Node | Value:
    """The result is x, broadcast to the result's shape."""
    shape = node.result.type.shape
    return x if x.type.shape == shape else remake(node, "broadcast", x, shape=shape)


def never_negative_zero(value: Value, graph: Graph) -> bool:
    """Whether no element can be -0.0, in round-to-nearest: sums start from +0.0, and only
    -0.0 + -0.0 is -0.0."""
    if not value.type.dtype.is_floating:
        return True
    node = graph.producer(value)
    if node is None:
        return False
    if node.op in ("sum", "exp", "sigmoid", "abs", "iota"):
        return True
    if node.op == "full":
        return not is_constant(value, graph, -0.0)
    if node.op in ("reshape", "permute", "broadcast", "slice", "copy"):
        return never_negative_zero(node.inputs[0], graph)
    if node.op == "concat":
        return all(never_negative_zero(v, graph) for v in node.inputs)
    if node.op == "mul":
        return node.inputs[0].id == node.inputs[1].id
    return node.op == "add" and any(is_constant(v, graph, 0.0) for v in node.inputs)


# ---- constants ----------------------------------------------------------------------------------


@rule("fold", "any map")
def fold_constants(node: Node, graph: Graph) -> Rewritten:
    """A map of constants is a constant: what the op itself gives for one element."""
    if not node.inputs or node.op == "set_value":
        return None
    numbers = [constant(v, graph) for v in node.inputs]
    if any(x is None for x in numbers):
        return None
    arrays = [
        np.full((), x, v.type.dtype.numpy)  # type: ignore[call-overload]
        for x, v in zip(numbers, node.inputs, strict=True)
    ]
    out = node.result.type
    with np.errstate(all="ignore"):
        number = np.asarray(TABLE[node.op].array(*arrays, **node.attrs))
    python = {"bool": bool, "int": int, "float": float}[out.dtype.kind]
    return remake(node, "full", value=python(number[()]), shape=out.shape, dtype=out.dtype)


@rule("fold", "any view")
def view_of_constant(node: Node, graph: Graph) -> Rewritten:
    """A view of a constant is the constant in another shape."""
    number = constant(node.inputs[0], graph)
    if number is None or node.op == "detach":
        return None
    out = node.result.type
    return remake(node, "full", value=number, shape=out.shape, dtype=out.dtype)


@rule("fold", "any map")
def small_operands(node: Node, graph: Graph) -> Rewritten:
    """Maps broadcast by themselves: they read a constant as a scalar, and what a broadcast
    repeats before it is repeated. Where that leaves a smaller result, it is repeated instead."""
    if node.op in ("set_value", "copy"):
        return None
    small = [_unrepeated(v, graph) for v in node.inputs]
    if all(s is v for s, v in zip(small, node.inputs, strict=True)):
        return None
    result = node.result.type.shape
    shape = broadcast_shapes(node.op, *(v.type.shape for v in small))
    if shape == result:
        return replace(node, inputs=tuple(small))
    return same(node, graph.make(node.op, *small, **node.attrs))


def _unrepeated(value: Value, graph: Graph) -> Value:
    node = graph.producer(value)
    if node is not None and node.op == "full" and value.type.shape:
        return scalar(graph, node.attrs["value"], value.type.dtype)
    return node.inputs[0] if node is not None and node.op == "broadcast" else value


# ---- algebra ------------------------------------------------------------------------------------


@rule("algebra", "copy")
def copy_is_its_operand(node: Node, graph: Graph) -> Rewritten:
    """Values are pure; who needs bytes of their own are outputs (see `apart`)."""
    return node.inputs[0]


@rule("algebra", "add", "sub", "mul", "div", "pow")
def neutral_operand(node: Node, graph: Graph) -> Rewritten:
    """x * 1, x / 1, x ** 1, x - 0.0, x + -0.0: IEEE gives x itself. (x + 0.0 turns -0.0 into 0.0,
    so it is x only where -0.0 cannot be.)"""
    a, b = node.inputs
    float_ = a.type.dtype.is_floating
    unit = {"add": -0.0 if float_ else 0, "sub": 0}.get(node.op, 1)
    if is_constant(b, graph, unit):
        return same(node, a)
    if node.op in ("add", "mul") and is_constant(a, graph, unit):
        return same(node, b)
    if node.op == "add" and float_:
        for x, zero in ((a, b), (b, a)):
            if is_constant(zero, graph, 0.0) and never_negative_zero(x, graph):
                return same(node, x)
    return None


@rule("algebra", "mul", "div")
def negate_by_one(node: Node, graph: Graph) -> Rewritten:
    """x * -1 and x / -1 change the sign and nothing else, as neg does."""
    a, b = node.inputs
    if is_constant(b, graph, -1):
        return same(node, graph.make("neg", a))
    if node.op == "mul" and is_constant(a, graph, -1):
        return same(node, graph.make("neg", b))
    return None


@rule("algebra", "div")
def divide_by_power_of_two(node: Node, graph: Graph) -> Rewritten:
    """x / c = x * (1/c) where 1/c is a float, too: both round the same real number."""
    x, dtype = constant(node.inputs[1], graph), node.result.type.dtype
    if x is None or not math.isfinite(x) or abs(math.frexp(x)[0]) != 0.5:
        return None
    inverse = 1.0 / float(x)
    info = np.finfo(np.float32 if dtype.itemsize < 4 else dtype.numpy)
    if not info.tiny <= abs(inverse) <= info.max or float(dtype.numpy.type(inverse)) != inverse:
        return None
    return remake(node, "mul", node.inputs[0], scalar(graph, inverse, dtype))


@rule("algebra", "add", "sub")
def add_of_negation(node: Node, graph: Graph) -> Rewritten:
    """x + -y = x - y and x - -y = x + y: IEEE defines the one by the other."""
    a, b = node.inputs
    y = operand_of(b, graph, "neg")
    if y is not None:
        return remake(node, "sub" if node.op == "add" else "add", a, y)
    y = operand_of(a, graph, "neg")
    return remake(node, "sub", b, y) if y is not None and node.op == "add" else None


@rule("algebra", "mul", "div")
def signs_of_a_product(node: Node, graph: Graph) -> Rewritten:
    """-a * -b = a * b and -a * c = a * -c: the sign of a product is apart from its size."""
    a, b = node.inputs
    x, y = operand_of(a, graph, "neg"), operand_of(b, graph, "neg")
    if x is not None and y is not None:
        return remake(node, node.op, x, y)
    for negated, other, first in ((x, b, True), (y, a, False)):
        number = constant(other, graph)
        if negated is not None and number is not None and other.type.dtype.is_floating:
            minus = scalar(graph, -number, other.type.dtype)
            return remake(node, node.op, *((negated, minus) if first else (minus, negated)))
    return None


@rule("algebra", "neg")
def negation(node: Node, graph: Graph) -> Rewritten:
    """neg neg x = x, and -(x * c) = x * -c."""
    inner = graph.producer(node.inputs[0])
    if inner is None:
        return None
    if inner.op == "neg":
        return inner.inputs[0]
    if inner.op in ("mul", "div") and node.result.type.dtype.is_floating:
        a, b = inner.inputs
        for at, value in enumerate((a, b)):
            number = constant(value, graph)
            if number is not None:
                minus = scalar(graph, -number, value.type.dtype)
                return remake(node, inner.op, *((minus, b) if at == 0 else (a, minus)))
    return None


@rule("algebra", "abs", "relu", "floor", "ceil", "round", "sign")
def idempotent(node: Node, graph: Graph) -> Rewritten:
    """f(f(x)) = f(x); abs(-x) = abs(x)."""
    x = node.inputs[0]
    if operand_of(x, graph, node.op) is not None:
        return x
    y = operand_of(x, graph, "neg") if node.op == "abs" else None
    return remake(node, "abs", y) if y is not None else None


@rule("algebra", "pow")
def small_powers(node: Node, graph: Graph) -> Rewritten:
    """x ** 2 = x * x, x ** 0.5 = sqrt(x), x ** -1 = 1 / x, correctly rounded: NumPy's power gives
    these for a scalar exponent (its half precision does not: there sqrt(-inf) is NaN)."""
    x, exponent = node.inputs
    number = constant(exponent, graph)
    if number == 2:
        return same(node, graph.make("mul", x, x))
    if x.type.dtype.name not in ("float32", "float64"):
        return None
    if number == 0.5:
        return same(node, graph.make("sqrt", x))
    return remake(node, "div", scalar(graph, 1.0, x.type.dtype), x) if number == -1 else None


@rule("algebra", "where")
def choice_without_a_choice(node: Node, graph: Graph) -> Rewritten:
    """A constant condition, or twice the same branch; where(not c, a, b) = where(c, b, a)."""
    c, a, b = node.inputs
    number = constant(c, graph)
    if number is not None:
        return same(node, a if number else b)
    if a.id == b.id:
        return same(node, a)
    opposite = operand_of(c, graph, "logical_not")
    return remake(node, "where", opposite, b, a) if opposite is not None else None


@rule("algebra", "logical_not", "logical_and", "logical_or", "logical_xor")
def logic(node: Node, graph: Graph) -> Rewritten:
    """not not x, x and true, x or false, x xor false; x and false, x or true."""
    if node.op == "logical_not":
        return operand_of(node.inputs[0], graph, "logical_not")
    for x, other in (node.inputs, node.inputs[::-1]):
        number = constant(other, graph)
        if number is not None and bool(number) is (node.op == "logical_and"):
            return same(node, x)
        if number is not None and node.op != "logical_xor":
            return same(node, other)
    return None


@rule("algebra", "sum", "prod", "amax", "amin")
def reduce_unit_axes(node: Node, graph: Graph) -> Rewritten:
    """Over one element a product, maximum or minimum is that element. A sum is 0.0 + x, which
    is x but for -0.0."""
    x = node.inputs[0]
    axes = tuple(a for a in node.attrs["axes"] if x.type.shape[a] != 1)
    if axes:
        return remake(node, node.op, x, axes=axes) if axes != node.attrs["axes"] else None
    if x.type != node.result.type:
        return None
    if node.op == "sum" and not never_negative_zero(x, graph):
        return remake(node, "add", x, scalar(graph, 0.0, x.type.dtype))
    return x


@rule("algebra", "sum")
def sum_of_negation(node: Node, graph: Graph) -> Rewritten:
    """sum(-x) = 0.0 - sum(x), on fewer elements: rounding is symmetric, and a sum, which starts
    from 0.0, is never -0.0."""
    x = operand_of(node.inputs[0], graph, "neg")
    if x is None or not x.type.dtype.is_floating:
        return None
    total = graph.make("sum", x, **node.attrs)
    return remake(node, "sub", scalar(graph, 0.0, x.type.dtype), total)


# ---- casts --------------------------------------------------------------------------------------

_DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}


def widens(a: DType, b: DType) -> bool:
    """Whether every number of dtype a is one of dtype b."""
    if a is b or a.kind == "bool":
        return True
    if a.kind == "float":
        return b.is_floating and b.itemsize > a.itemsize
    signed = int(np.iinfo(a.numpy).min < 0)
    if b.is_floating:
        return 8 * a.itemsize - signed <= _DIGITS[b.name]
    if b.kind == "bool":
        return False
    have, want = np.iinfo(a.numpy), np.iinfo(b.numpy)
    return bool(want.min <= have.min and have.max <= want.max)


@rule("casts", "cast")
def cast_chain(node: Node, graph: Graph) -> Rewritten:
    """A cast to the own dtype is none; a cast of a cast that lost nothing is one cast, as both
    convert the same number (to an integer only where it must fit)."""
    x, dtype = node.inputs[0], node.result.type.dtype
    if x.type.dtype is dtype:
        return x
    y = operand_of(x, graph, "cast")
    if y is None or not widens(y.type.dtype, x.type.dtype):
        return None
    fits = dtype.kind != "int" or x.type.dtype.kind == "int" or widens(y.type.dtype, dtype)
    return remake(node, "cast", y, dtype=dtype) if fits else None
