"""Simplify: common subexpressions, dead code, constants, and identities that are exact.

One walk in program order does it. Each node is rewritten until no rule applies, its operands being
simplified already; then it is looked up among those before it, so that equal expressions get one
node (value numbering: Cocke and Schwartz, "Programming Languages and Their Compilers", 1970).
Near linear in the program's size.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from tinyaot.errors import ParseError, VerifyError
from tinyaot.ir import PHASES, STAGES, Node, Origin, Program, Value, live_nodes, substitute
from tinyaot.ops.core import TABLE
from tinyaot.passes import view_identities as _  # noqa: F401  enters its rules in the table
from tinyaot.passes.apart import keep_apart
from tinyaot.passes.identities import GROUPS, RULES, Rule
from tinyaot.record import Decision
from tinyaot.structural import STRUCTURAL, grad_parts

ALL_GROUPS = ("cse", "dce", *GROUPS)
_COMMUTATIVE = frozenset(
    {"add", "mul", "eq", "ne", "logical_and", "logical_or", "logical_xor"}
)  # bit for bit; max(0.0, -0.0) is not


def simplify(
    program: Program,
    *,
    rules: Iterable[str] | None = None,
    log: list[Decision] | None = None,
) -> Program:
    """Make the program smaller without changing a bit of what it gives.

    What it does: equal expressions become one (`cse`), what nothing reads goes (`dce`), maps of
    constants are computed (`fold`), and the identities in `identities` and `view_identities` are
    applied (`algebra`, `casts`, `views`, `pieces`). `rules` names the groups to use, None all.

        %1: f32[] = full() {value=2.0, ...}        %1: f32[] = full() {value=2.0, ...}
        %2: f32[3] = mul(%0, %1)                   %2: f32[3] = mul(%0, %1)
        %3: f32[3] = mul(%1, %0)                   %5: f32[3] = add(%2, %2)
        %4: f32[3] = neg(%3)                       output user %5
        %5: f32[3] = sub(%2, %4)
        output user %5

    What to look at: the backward recomputes nothing of the forward any more: rules write what
    they need afresh (`sigmoid`'s, 1 - y), and here it becomes one with what is there. A value
    that stays keeps its id.

    Before autodiff it leaves alone the values that a `grad` node differentiates by: to merge
    another with one would add the other's gradient to it. Among several cotangents a value goes on
    depending on those it did, even if only by shape, as zeros where a write cut them off: `narrow`
    tells from that what a backward of some outputs computes. From partition on it does not merge
    across phases: a value of the forward is there in the backward only if it was saved. Neither
    does it merge a node with one in a checkpoint region that it is not in itself.

    Raises VerifyError for a program with writes, ParseError for an unknown group.
    """
    groups = frozenset(ALL_GROUPS if rules is None else rules)
    unknown = groups.difference(ALL_GROUPS)
    if unknown:
        raise ParseError(
            f"simplify: no such rules: {', '.join(sorted(unknown))}; "
            f"there are {', '.join(ALL_GROUPS)}"
        )
    nodes = list(program.nodes)
    if "dce" in groups:
        nodes = live_nodes(nodes, (o.value for o in program.outputs))
    work = _Simplifier(program, groups, log)
    for node in nodes:
        work.add(node)
    outputs = tuple(replace(o, value=work.current(o.value)) for o in program.outputs)
    nodes = work.nodes
    if "dce" in groups:
        nodes = live_nodes(nodes, (o.value for o in outputs))
    after = program.replace(
        stage="simplify" if program.stage == "autodiff" else program.stage,
        nodes=tuple(nodes),
        outputs=outputs,
        next_id=work.next_id,
    )
    return keep_apart(program, after)


class _Simplifier:
    """The simplified program so far: the `Graph` that rules look at."""

    def __init__(
        self, program: Program, groups: frozenset[str], log: list[Decision] | None
    ) -> None:
        self.nodes: list[Node] = []
        self.next_id = program.next_id
        self.notes: dict[int, object] = {}
        self.log = log
        self.cse = "cse" in groups
        self.by_phase = STAGES.index(program.stage) >= STAGES.index("partition")
        self.rules = {op: [r for r in found if r.group in groups] for op, found in RULES.items()}
        self.place: dict[int, int] = {}  # where in `nodes` a value is made
        self.known: dict[Any, Value] = {}  # by expression
        self.new: dict[int, Value] = {}  # what stands for a value that is no longer made
        self.pinned: set[int] = set()  # what grad nodes differentiate by
        self.near: Node | None = None  # the node being rewritten
        seeds = program.inputs_of("cotangent")
        self.several = len(seeds) > 1
        self.carried = {i.value.id: 1 << k for k, i in enumerate(seeds)}  # by value: of which, bits
        for node in program.nodes:
            if node.op == "write":
                raise VerifyError(
                    "simplify: a program with writes is not pure; functionalize first"
                )
            if node.op == "grad":
                self.pinned.update(v.id for v in grad_parts(node).wrt)

    # ---- what rules ask for ---------------------------------------------------------------------

    def producer(self, value: Value) -> Node | None:
        at = self.place.get(value.id)
        return self.nodes[at] if at is not None else None

    def make(self, op: str, *operands: Value, **attrs: Any) -> Value:
        near = self.near
        assert near is not None  # rules run on a node
        type_ = TABLE[op].infer([v.type for v in operands], attrs)
        result = Value(self.next_id, type_)
        self.next_id += 1
        origin = (Origin("simplified", near.results[0].id),)
        stamp = near.phase, near.loc, origin, None, near.checkpoint
        self.add(Node(op, operands, (result,), attrs, *stamp))
        self.near = near
        return self.current(result)

    # ---- the walk -------------------------------------------------------------------------------

    def current(self, value: Value) -> Value:
        return self.new.get(value.id, value)

    def add(self, node: Node) -> None:
        """Take over a node, simplified: as it is, as another, or as a value that is there."""
        node = substitute(node, self.new)
        if self.several and (carried := self._carried(node)):
            self.carried.update(dict.fromkeys((r.id for r in node.results), carried))
        if node.op in STRUCTURAL or len(node.results) != 1 or node.result.id in self.pinned:
            self.nodes.append(node)
            return
        found: Node | Value = node
        while isinstance(found, Node):
            node = found
            self.near = node
            rewritten = self._rewrite(node)
            if rewritten is None:
                break
            found = rewritten
        if isinstance(found, Value):
            self.new[node.result.id] = found
            return
        if self.cse:
            known = self._known(node)
            if known is not None:
                self._note(node, known, "cse")
                self._advance(known, node)
                self.new[node.result.id] = known
                return
        self.place[node.result.id] = len(self.nodes)
        self.nodes.append(node)

    def _advance(self, value: Value, node: Node) -> None:
        """A value that stands for an earlier phase's, too, belongs to that phase. (Its operands do:
        they are those of the node that it stands for.)"""
        at = self.place[value.id]
        made = self.nodes[at]
        if made.phase is None or node.phase is None:
            return
        if PHASES.index(node.phase) < PHASES.index(made.phase):
            self.nodes[at] = replace(made, phase=node.phase)

    def _carried(self, made: Node | Value) -> int:
        """The cotangents that a value depends on."""
        carried = 0
        for v in made.inputs if isinstance(made, Node) else (made,):
            carried |= self.carried.get(v.id, 0)
        return carried

    def _rewrite(self, node: Node) -> Node | Value | None:
        rule: Rule
        for rule in self.rules[node.op]:
            found = rule.apply(node, self)
            if found is not None and self.several and self._carried(node) != self._carried(found):
                continue
            if found is not None:
                self._note(node, found, rule.name)
                return found
        return None

    def _note(self, node: Node, found: Node | Value, reason: str) -> None:
        if self.log is not None:
            choice = str(found) if isinstance(found, Value) else found.op
            self.log.append(Decision("simplify", node.result.id, choice, reason))

    def _known(self, node: Node) -> Value | None:
        """The equal value that there is already: in the same checkpoint regions or in fewer, not in
        others, whose values are made again rather than kept."""
        inputs = [v.id for v in node.inputs]
        if node.op in _COMMUTATIVE:
            inputs.sort()
        phase = node.phase if self.by_phase else None
        key = node.op, tuple(inputs), _attrs_key(node.attrs), phase
        within = node.checkpoint if node.inputs else ()
        for depth in range(len(within) + 1):
            known = self.known.get((*key, within[:depth]))
            if known is not None:
                return known
        self.known[(*key, within)] = node.result
        return None


def _attrs_key(attrs: Mapping[str, Any]) -> Any:
    """Attributes as a key: numbers by type and bit pattern (1, 1.0 and True differ; so do 0.0 and
    -0.0; a NaN is equal to itself)."""
    return tuple((name, type(x), _bits(x)) for name, x in sorted(attrs.items()))


def _bits(x: Any) -> Any:
    return struct.pack("<d", x) if isinstance(x, float) else x
