"""The intermediate representation: Values, Nodes and Programs. The ground floor.

It knows no op and no array library: an op is a name here, its meaning is declared in `tinyaot.ops`.
One `Program` type serves every stage, from the trace to the memory plan. It is SSA: a Value is
defined once, by an input or a node, and keeps its id for life: a pass that keeps a value keeps its
id, a pass that makes one takes a fresh id. Values do not point at their producers, so a pass
rewrites a Program by making a new tuple of nodes, sharing those it does not touch (the idea of
MLIR's SSA values, with persistent data in place of use lists).

A node carries where it belongs: its `phase`, the user's line, its history, and the checkpoint
regions that it is in. A node that a pass makes in place of another, or on its behalf, is in the
same regions; what autodiff writes is in those of the `grad` that asked for it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from tinyaot.location import Loc
from tinyaot.shapes import TensorType

Phase = Literal["forward", "backward", "update"]
InputRole = Literal["argument", "state", "hyper", "constant", "random", "cotangent"]
OutputRole = Literal["user", "mutated", "saved", "gradient"]
Relation = Literal[
    "traced", "functionalized", "vjp-of", "recompute-of", "simplified", "fused-into", "emitted-as"
]

PHASES: tuple[Phase, ...] = ("forward", "backward", "update")
STAGES = (
    "trace",
    "functionalize",
    "autodiff",
    "simplify",
    "partition",
    "layout",
    "fuse",
    "schedule",
    "plan",
    "emit",
)


@dataclass(frozen=True, slots=True)
class Value:
    """A typed SSA value, printed `%7: f32[2,3]`."""

    id: int
    type: TensorType

    def __str__(self) -> str:
        return f"%{self.id}"


@dataclass(frozen=True, slots=True)
class Origin:
    """One step of a node's history: `relation` to the earlier value `id`.

    For `vjp-of`, `operand` is the position of the operand whose gradient this is.
    """

    relation: Relation
    id: int
    operand: int | None = None


def one_nan(x: float) -> float:
    """The one object for a NaN with these bits: two nodes with such a constant are equal, since it
    is the same, though no NaN equals another."""
    return _nans.setdefault(struct.pack("d", x), x)


_nans: dict[bytes, float] = {}


@dataclass(frozen=True, slots=True)
class Node:
    """One operation. `attrs` are plain data (numbers, strings, dtypes, tuples of these).

    A `region`, the fused loop nest that one kernel will be, has a `body`: a Program of its own
    whose inputs are the node's operands and whose outputs are its results, under the same ids (the
    computations of XLA's fusion instructions). A value that several loops compute anew has its id
    in each of their bodies.

    `checkpoint`: the regions of `ta.checkpoint` that the node is in, from the outermost to the
    innermost, numbered in the order of the trace. Of what the forward computes in one, only what
    is read outside it may be kept for the backward."""

    op: str
    inputs: tuple[Value, ...]
    results: tuple[Value, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    phase: Phase | None = None
    loc: Loc | None = None
    origin: tuple[Origin, ...] = ()
    body: Program | None = None
    checkpoint: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, x in self.attrs.items():
            if x.__class__ is float and x != x and x is not one_nan(x):
                object.__setattr__(self, "attrs", {**self.attrs, name: one_nan(x)})

    @property
    def result(self) -> Value:
        """The only result."""
        (value,) = self.results
        return value


@dataclass(frozen=True, slots=True)
class Input:
    """A value given by the caller. `name` is for people: an argument or a path such as
    `model.fc1.weight`. `requires_grad`: the caller's tensor asks for a gradient."""

    value: Value
    role: InputRole = "argument"
    name: str = ""
    requires_grad: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """A value given back. `of` is the id of the input that it overwrites (mutated) or is the
    gradient of (gradient), and for a cotangent's sake the position stands for itself."""

    value: Value
    role: OutputRole = "user"
    of: int | None = None
    name: str = ""
    requires_grad: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value lives.

    `space`: arena; output (a fresh buffer that the caller keeps); saved (the block that a forward
    half hands to its backward); input (an input's own buffer); literal (a constant: no memory).
    `root` is the id of the value that the buffer at `offset`, of `nbytes`, was first made for:
    views share it, and so does a value that is computed in the buffer of a dead one. `first` and
    `last` are the node positions of the whole buffer's birth (-1: an input) and of its last use
    (the number of nodes, if it is given back)."""

    space: Literal["arena", "output", "saved", "input", "literal"]
    offset: int
    nbytes: int
    root: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The memory plan of a scheduled Program: bytes of the arena and each value's place. All values
    with one root have equal places; how a view lies in its buffer follows from the nodes.
    `scratch`: bytes beside the arena for what lives inside regions, of all threads, or what a node
    allocates beside its result while it runs."""

    arena: int
    places: Mapping[int, Place]
    scratch: int = 0


@dataclass(frozen=True)
class Program:
    """A straight-line program at one stage of the pipeline.

    `nodes` are in execution order. After partitioning, a node's `phase` says which half it is in;
    the halves of an ahead-of-time compiled function are two entry points of one Program: the
    forward takes the inputs but the cotangents, and gives the user's, mutated and saved outputs;
    the backward takes saved values and cotangents and gives the gradients. `notes` is what a pass
    leaves for the next one, so that it need not be found again: it is not printed, and for a
    Program without it, one that was parsed, it is found anew.
    """

    name: str
    stage: str
    inputs: tuple[Input, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Output, ...]
    next_id: int
    plan: Plan | None = None
    notes: Any = field(default=None, compare=False, repr=False)

    @cached_property
    def producers(self) -> dict[int, Node]:
        """The node that defines each value (inputs have none)."""
        return {r.id: n for n in self.nodes for r in n.results}

    @cached_property
    def all_nodes(self) -> tuple[Node, ...]:
        """The nodes that compute, in order: in place of a region, those of its body."""
        return tuple(m for n in self.nodes for m in (n.body.all_nodes if n.body else (n,)))

    @cached_property
    def computed(self) -> dict[int, Node]:
        """The node that computes each value, those inside bodies too."""
        found: dict[int, Node] = {}
        for n in self.all_nodes:
            for r in n.results:
                found.setdefault(r.id, n)
        return found

    @property
    def is_fused(self) -> bool:
        """Whether its nodes are regions."""
        return any(n.body is not None for n in self.nodes)

    @cached_property
    def is_joint(self) -> bool:
        """Whether it is the two halves of an ahead-of-time compiled function."""
        return any(i.role == "cotangent" for i in self.inputs)

    @cached_property
    def values(self) -> dict[int, Value]:
        """Every value, by id, inputs first."""
        found = {i.value.id: i.value for i in self.inputs}
        found.update((r.id, r) for n in self.nodes for r in n.results)
        return found

    @cached_property
    def users(self) -> dict[int, list[Node]]:
        """The nodes that read each value, in order; a node that reads it twice is listed once."""
        found: dict[int, list[Node]] = {v: [] for v in self.values}
        for n in self.nodes:
            for v in {v.id for v in n.inputs}:
                found[v].append(n)
        return found

    def replace(self, **changes: Any) -> Program:
        """A copy with some fields changed (caches are not carried over)."""
        return replace(self, **changes)

    def outputs_of(self, *roles: OutputRole) -> tuple[Output, ...]:
        return tuple(o for o in self.outputs if o.role in roles)

    def inputs_of(self, *roles: InputRole) -> tuple[Input, ...]:
        return tuple(i for i in self.inputs if i.role in roles)


def live_nodes(nodes: Iterable[Node], roots: Iterable[Value]) -> list[Node]:
    """The nodes that `roots` depend on, in their order (dead code elimination's core)."""
    wanted = {v.id for v in roots}
    kept: list[Node] = []
    for node in reversed(list(nodes)):
        for r in node.results:
            if r.id in wanted:
                wanted.update([v.id for v in node.inputs])
                kept.append(node)
                break
    kept.reverse()
    return kept


def substitute(node: Node, new: Mapping[int, Value], phase: Phase | None = None) -> Node:
    """`node` reading `new[id]` wherever it read id, of another phase if one is given; the node
    itself when nothing changes."""
    inputs = node.inputs
    if not new.keys().isdisjoint([v.id for v in inputs]):
        inputs = tuple([new.get(v.id, v) for v in inputs])
    elif phase is None or phase == node.phase:
        return node
    kept = node.loc, node.origin, node.body, node.checkpoint
    return Node(node.op, inputs, node.results, node.attrs, phase or node.phase, *kept)
