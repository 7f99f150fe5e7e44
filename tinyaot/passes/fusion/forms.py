"""A Program in the few forms that fusion knows.

Labels, growth and emission treat ops by form, never by name: a map is a map. What has no form of
its own is brought to one here (a pad is a concatenation with zeros, a letter that only one operand
of a product has is summed beforehand) or becomes a `fallback`: one op with a loop of its own.
float16 and bfloat16 are computed in float32 between two casts, so that only casts know them.
Everything of size zero disappears, so later code never meets an empty loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tinyaot.errors import BackendError
from tinyaot.ir import Node, Output, Program
from tinyaot.ops.core import TABLE, Attrs, is_half
from tinyaot.passes.fusion.op import LEAVES, Form, Op
from tinyaot.passes.fusion.order import topological
from tinyaot.shapes import DType, TensorType, float32

# Reason codes of the copies that remain.
AS_A_WHOLE = "read as a whole"  # by an op with a loop of its own, in C order
REPEATS = "repeats elements"  # a product reads each element from one place
NO_STRIDES = "strides cannot express it"
IN_A_SLOT = "a part with other readers"  # of a concatenation, whose parts are stored in it
GIVEN_BACK = "given back"  # what the caller gets has memory of its own


@dataclass(frozen=True, slots=True)
class Forms:
    """The ops in topological order; each output's op; the leaf that an output overwrites."""

    ops: list[Op]
    outputs: list[tuple[Op, Output]]
    overwrites: dict[Op, Op]
    inputs: list[Op]


def to_forms(program: Program) -> Forms:
    """The ops of a straight-line program (one entry point). Raises BackendError for an op that has
    no form."""
    return _Converter(program).run()


class _Converter:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.made: dict[int, Op] = {}
        self.order: list[Op] = []
        self.uses: dict[int, int] = {}
        for node in program.nodes:
            for v in node.inputs:
                self.uses[v.id] = self.uses.get(v.id, 0) + 1
        for o in program.outputs:
            self.uses[o.value.id] = self.uses.get(o.value.id, 0) + 2

    # ---- making ops -----------------------------------------------------------------------------
    def make(
        self,
        form: Form,
        name: str,
        ins: Sequence[Op],
        type_: TensorType,
        attrs: Attrs | None = None,
        node: Node | None = None,
        value: int = -1,
    ) -> Op:
        op = Op(form, name, tuple(ins), type_, attrs or {}, value, node)
        self.order.append(op)
        return op

    def const(self, value: bool | int | float, type_: TensorType, node: Node | None = None) -> Op:
        return self.make("const", "full", (), type_, {"value": value}, node)

    def copy(self, x: Op, reason: str, node: Node | None = None) -> Op:
        op = self.make("map", "copy", (x,), x.type, {}, node or x.node, x.value)
        op.reason = reason
        return op

    def reduce_sum(self, x: Op, axes: tuple[int, ...], node: Node) -> Op:
        """Sum over axes, and drop them."""
        kept = tuple(1 if j in axes else s for j, s in enumerate(x.shape))
        total = self.make("reduce", "sum", (x,), x.type.with_shape(kept), {"axes": axes}, node)
        shape = tuple(s for j, s in enumerate(x.shape) if j not in axes)
        return self.make("view", "reshape", (total,), x.type.with_shape(shape), {}, node)

    def concat(
        self, parts: Iterable[Op], axis: int, type_: TensorType, node: Node, value: int
    ) -> Op:
        parts = [p for p in parts if p.shape[axis]]
        if len(parts) == 1:
            return parts[0]
        whole = ("concat", "fallback")  # written in C order, which a slot may not have
        own = [
            p if self.is_own(p) and p.form not in whole else self.copy(p, IN_A_SLOT, node)
            for p in parts
        ]
        return self.make("concat", "concat", own, type_, {"axis": axis}, node, value)

    def is_own(self, x: Op) -> bool:
        """Whether x has code of its own and only one reader (so that its memory can be placed)."""
        if x.form in LEAVES or x.form == "view":
            return False
        return self.uses.get(x.value, 0) == 1

    def dense(self, x: Op) -> Op:
        """x as whole values in C order, for a fallback."""
        return x if x.form not in ("view", "const", "iota") else self.copy(x, AS_A_WHOLE)

    # ---- one node -------------------------------------------------------------------------------
    def run(self) -> Forms:
        inputs = []
        for i in self.program.inputs:
            op = self.make("input", "input", (), i.value.type, {}, None, i.value.id)
            self.made[i.value.id] = op
            inputs.append(op)
        for node in self.program.nodes:
            value = node.result
            made = self.made[value.id] = self.convert(node)
            if made.value < 0:
                made.value = value.id
            for origin in node.origin:
                if origin.relation == "vjp-of" and origin.operand is not None:
                    of = self.made.get(origin.id)
                    if of is not None and made.form == "dot" == of.form:
                        made.like = (of, origin.operand)
        return self.finish(inputs)

    def convert(self, node: Node) -> Op:
        ins = [self.made[v.id] for v in node.inputs]
        halves = [is_half(v.type.dtype.numpy) for v in (*node.inputs, *node.results)]
        if any(halves) and not self.only_moves(node):
            return self.in_float32(node, ins)
        return self.form_of(node, ins)

    def only_moves(self, node: Node) -> bool:
        """Whether a node gives elements as they are, or is one of the casts between float16 or
        bfloat16 and a wider floating dtype."""
        if node.op == "cast":
            pair = node.inputs[0].type.dtype, node.result.type.dtype
            return all(t.is_floating for t in pair) and not all(is_half(t.numpy) for t in pair)
        moving = TABLE[node.op].kind in ("view", "concat", "gather")
        return moving or node.op in ("full", "detach", "set_value", "copy")

    def in_float32(self, node: Node, ins: Sequence[Op]) -> Op:
        """A node of float16 or bfloat16 values: casts to float32, the node, and a cast back."""
        type_, attrs = node.result.type, dict(node.attrs)
        wide = [self.cast(x, float32, node) if is_half(x.dtype.numpy) else x for x in ins]
        if not is_half(type_.dtype.numpy):
            return self.form_of(node, wide)
        if attrs.get("dtype") is type_.dtype:
            attrs["dtype"] = float32
        result = replace(node.result, type=TensorType(float32, type_.shape))
        made = self.form_of(replace(node, results=(result,), attrs=attrs), wide)
        if made.value == result.id:
            made.value = -1  # it is the cast that has the node's value
        return self.cast(made, type_.dtype, node)

    def cast(self, x: Op, dtype: DType, node: Node) -> Op:
        type_ = TensorType(dtype, x.shape)
        if x.form == "const":
            value = x.type.dtype.numpy.type(x.attrs["value"])
            return self.const(value.astype(dtype.numpy).item(), type_, node)
        return self.make("map", "cast", (x,), type_, {"dtype": dtype}, node)

    def form_of(self, node: Node, ins: list[Op]) -> Op:
        kind, type_, value = TABLE[node.op].kind, node.result.type, node.result.id
        if type_.size == 0:
            return self.const(0, type_)
        if any(x.type.size == 0 for x in ins):
            return self.without_empty(node, ins)
        if node.op == "detach":
            return ins[0]
        if node.op == "set_value":
            return ins[1]
        if kind == "leaf":
            if node.op == "iota":
                return self.make("iota", "iota", (), type_, {}, node, value)
            return self.const(node.attrs["value"], type_, node)
        if kind == "view":
            return self.make("view", node.op, ins, type_, node.attrs, node, value)
        if node.op in ("slice_scatter", "diagonal_scatter", "scatter", "put_along"):
            return self.scatter(node, ins)
        if kind == "dot":
            return self.dot(node, ins)
        if kind == "concat":
            return self.concat(ins, node.attrs["axis"], type_, node, value)
        if kind == "scan" or node.op in ("argmax", "argmin"):
            return self.fallback(node, ins)
        if kind == "reduce" and all(ins[0].shape[j] == 1 for j in node.attrs["axes"]):
            return self.make("map", "copy", ins, type_, {}, node, value)
        if kind == "gather" and not has_strides(ins[0]):
            ins[0] = self.copy(ins[0], NO_STRIDES, node)
        if kind in ("map", "random", "reduce", "gather"):
            return self.make(kind, node.op, ins, type_, node.attrs, node, value)
        raise BackendError(f"{node.op}: the C backend has no form for ops of kind {kind!r}")

    def fallback(self, node: Node, ins: Sequence[Op], spread: bool = False) -> Op:
        """`spread`: operand 0 may be a constant that has no memory."""
        dense = [
            x if spread and j == 0 and x.form == "const" else self.dense(x)
            for j, x in enumerate(ins)
        ]
        type_, value = node.result.type, node.result.id
        return self.make("fallback", node.op, dense, type_, node.attrs, node, value)

    def without_empty(self, node: Node, ins: Sequence[Op]) -> Op:
        """An op with an empty operand and a result that is not empty."""
        type_ = node.result.type
        if node.op in ("sum", "dot"):
            return self.const(0, type_)
        if node.op == "prod":
            return self.const(1, type_)
        if node.op == "concat":
            return self.concat(ins, node.attrs["axis"], type_, node, node.result.id)
        if TABLE[node.op].kind == "scatter":
            return ins[0]
        raise BackendError(f"{node.op} of an empty operand ({node.inputs[0].type}) has no value")

    def dot(self, node: Node, ins: Sequence[Op]) -> Op:
        """Letters that one operand alone has, and the result lacks, are summed first."""
        left, out = node.attrs["spec"].split("->")
        specs, operands = left.split(","), list(ins)
        for j in (0, 1):
            lonely = [c for c in specs[j] if c not in specs[1 - j] and c not in out]
            if lonely:
                axes = tuple(k for k, c in enumerate(specs[j]) if c in lonely)
                operands[j] = self.reduce_sum(operands[j], axes, node)
                specs[j] = "".join(c for c in specs[j] if c not in lonely)
            if repeats(operands[j]):
                operands[j] = self.copy(operands[j], REPEATS, node)
        spec = f"{specs[0]},{specs[1]}->{out}"
        type_, value = node.result.type, node.result.id
        return self.make("dot", "dot", operands, type_, {"spec": spec}, node, value)

    def scatter(self, node: Node, ins: Sequence[Op]) -> Op:
        base, type_, value = ins[0], node.result.type, node.result.id
        zero_base = base.form == "const" and base.attrs["value"] == 0
        if node.op == "slice_scatter" and zero_base and all(k == 1 for k in node.attrs["steps"]):
            return self.pad(node, ins[1])
        if node.attrs.get("mode") == "add" and self.has_scatter_form(node, ins):
            out = self.make("scatter", node.op, ins[1:], type_, node.attrs, node, value)
            if zero_base:
                return out
            out.value = -1
            return self.make("map", "add", (base, out), type_, {}, node, value)
        return self.fallback(node, ins, spread=True)

    def has_scatter_form(self, node: Node, ins: Sequence[Op]) -> bool:
        if node.result.type.dtype.kind == "bool":
            return False  # no sum
        if node.op == "scatter":
            return True
        axis = node.attrs["axis"]
        pairs = enumerate(zip(ins[0].shape, ins[1].shape, ins[2].shape))
        return all(j == axis or a == b == c for j, (a, b, c) in pairs)

    def pad(self, node: Node, src: Op) -> Op:
        """Zeros around src, one axis at a time, the last axis first."""
        starts, stops, sizes = node.attrs["starts"], node.attrs["stops"], node.result.type.shape
        found = src
        for axis in reversed(range(len(sizes))):
            ends = (starts[axis], sizes[axis] - stops[axis])
            parts = [found]
            shape = list(found.shape)
            for at, zeros in zip((0, 2), ends):
                shape[axis] = zeros
                parts.insert(at, self.const(0, found.type.with_shape(shape)))
            shape[axis] = sizes[axis]
            found = self.concat(parts, axis, found.type.with_shape(shape), node, -1)
        return found

    # ---- the end --------------------------------------------------------------------------------
    def finish(self, inputs: list[Op]) -> Forms:
        outputs: list[tuple[Op, Output]] = []
        overwrites: dict[Op, Op] = {}
        taken: set[Op] = set()
        slots = {p for op in self.order if op.form == "concat" for p in op.ins}
        leaf = {op.value: op for op in inputs}
        for o in self.program.outputs:
            if o.value.type.size == 0 or (o.role == "mutated" and o.value.id == o.of):
                continue
            x = root = self.made[o.value.id]
            while root.form == "view" and root.name == "reshape":
                root = root.ins[0]
            own = root.form not in (*LEAVES, "view") and root not in slots and root not in taken
            out = root if own else self.copy(x, GIVEN_BACK)
            taken.add(out)
            outputs.append((out, o))
            if o.role == "mutated" and o.of is not None:
                overwrites[out] = leaf[o.of]
        ops = topological(self.order, [*inputs, *(op for op, _ in outputs)])
        return Forms(ops, outputs, overwrites, inputs)


def has_strides(x: Op) -> bool:
    """Whether x is memory with one stride for each axis (a reshape of another view may not be)."""
    while x.form == "view":
        if x.name == "reshape" and x.ins[0].form == "view" and x.ins[0].name != "reshape":
            return False
        x = x.ins[0]
    return x.form not in ("const", "iota")


def repeats(x: Op) -> bool:
    """Whether x reads one element at many places: a constant, or through a broadcast."""
    while x.form == "view":
        if x.name == "broadcast":
            return True
        x = x.ins[0]
    return x.form in ("const", "iota")
