"""The fusion graph: accesses, readers, and what is stored, recomputed or inlined.

Three fates of a map. *Inline*: a cheap map of leaves (a mask of two iotas, a cast of an input) has
no place of its own, every loop that wants it computes it. *Recomputed*: in every loop that reads
it, from values that are stored. *Stored*: in memory when something outside its loop reads it. So a
cheap map never needs a decision to save it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from tinyaot.cost import is_recomputed
from tinyaot.errors import BackendError
from tinyaot.ops.core import TABLE
from tinyaot.passes.fusion.accesses import Access, Opaque, resolve
from tinyaot.passes.fusion.forms import Forms
from tinyaot.passes.fusion.labels import Atom, Labels
from tinyaot.passes.fusion.machine import LOAD, RANDOM, Machine
from tinyaot.passes.fusion.op import LEAVES, Op
from tinyaot.passes.fusion.order import growth_order, topological
from tinyaot.passes.storage import raising

KEEP = 0.55  # ns an element: what a store and a load cost; dearer maps are stored
INLINE = 0.3  # ns an element: cheaper maps of leaves are computed wherever they are read
WHOLE = ("dot", "concat", "fallback")  # forms that read their operands from memory


@dataclass(slots=True)
class Graph:
    """Live ops with labels and accesses. `flat[op]`: the atoms of its result, in memory order;
    `work`: the ops that get a place in a region; `readers[op]`: the work ops that read it, also
    through inlined maps, or that wait for it."""

    forms: Forms
    machine: Machine
    ops: list[Op] = field(default_factory=list)
    outputs: set[Op] = field(default_factory=set)
    overwrites: dict[Op, Op] = field(default_factory=dict)
    flat: dict[Op, tuple[Atom, ...]] = field(default_factory=dict)
    red: dict[Op, tuple[Atom, ...]] = field(default_factory=dict)
    axes: dict[Op, list[list[Atom]]] = field(default_factory=dict)
    reads: dict[Op, list[Access]] = field(default_factory=dict)
    users: dict[Op, list[Op]] = field(default_factory=dict)
    cost: dict[Op, float] = field(default_factory=dict)
    inline: set[Op] = field(default_factory=set)
    checks: dict[Op, set[Op]] = field(default_factory=dict)  # what an overwriting waits for, too
    late: set[Op] = field(default_factory=set)  # overwrite a leaf when all its readers are done
    stored: set[Op] = field(default_factory=set)
    work: list[Op] = field(default_factory=list)
    needs: dict[Op, tuple[Op, ...]] = field(default_factory=dict)
    readers: dict[Op, list[Op]] = field(default_factory=dict)
    edges: dict[Op, tuple[Atom, ...]] = field(default_factory=dict)  # of operand 0
    seen: dict[Op, list[list[Atom]]] = field(default_factory=dict)  # the same, by axis
    leaf_readers: dict[Op, set[Op]] = field(default_factory=dict)
    signatures: dict[Op, object] = field(default_factory=dict)  # see `model.signature`
    short: dict[Op, tuple[Atom, Atom]] = field(default_factory=dict)  # see `limits.short_loops`
    repeated: set[int] = field(default_factory=set)  # values that are computed again, here or not

    def is_repeated(self, op: Op) -> bool:
        """Whether an op's node is one of several that have to give the same bits."""
        node = op.node
        return node is not None and (node.result.id in self.repeated or is_recomputed(node))

    def root(self, op: Op) -> Op:
        """What a view shows."""
        while op.form == "view":
            op = op.ins[0]
        return op

    def size(self, op: Op) -> int:
        return math.prod(a.size for a in self.flat[op])

    def scatter_rest(self, op: Op) -> tuple[Atom, ...]:
        """The atoms of a scatter's result that are not computed indices."""
        return tuple(a for j, x in enumerate(self.axes[op]) if j not in op.indexed for a in x)

    def gathered(self, op: Op) -> set[Atom]:
        """The root's atoms along which a gather reads at computed places."""
        axes = self.axes[op.ins[0]]
        return {a for j in op.indexed for a in axes[j]}

    def space(self, op: Op) -> tuple[Atom, ...]:
        """The atoms of the op's iteration space, in the order of its loops."""
        if op.form in ("reduce", "scatter"):
            return self.edges[op]
        if op.form == "dot":
            return (*self.flat[op], *self.red[op])
        return self.flat[op]


def build(forms: Forms, machine: Machine) -> Graph:
    """Label the ops and decide what is stored."""
    g = Graph(forms, machine)
    g.ops = growth_order(forms.ops, [*forms.inputs, *(op for op, _ in forms.outputs)])
    while True:
        labels = Labels(g.ops)
        try:
            g.reads = {
                op: [resolve(labels, op, i) for i in range(len(op.ins))]
                for op in g.ops
                if op.form != "view"
            }
            break
        except Opaque as found:
            g.ops = materialise(found.view, g.ops, forms)
    g.axes = labels.out
    g.flat = {op: tuple(a for x in labels.out[op] for a in x) for op in g.ops}
    g.red = {op: tuple(labels.red[op]) for op in g.ops}
    g.seen = {op: labels.edge[op, 0] for op in g.ops if op.ins}
    g.edges = {op: tuple(a for x in labels.edge[op, 0] for a in x) for op in g.ops if op.ins}
    g.outputs = {op for op, _ in forms.outputs}
    g.overwrites = dict(forms.overwrites)
    decide(g)
    connect(g)
    return g


def materialise(view: Op, ops: Sequence[Op], forms: Forms) -> list[Op]:
    """Make a reshape that strides cannot express an op that copies."""
    if view.name != "reshape":
        raise BackendError(f"{view}: a view that the C backend cannot address")
    src = view.ins[0]
    order = list(ops)
    if src.form in ("view", "const", "iota"):
        copy = Op("map", "copy", (src,), src.type, {}, src.value, src.node)
        order.insert(order.index(view), copy)
        src = copy
    view.form, view.ins = "fallback", (src,)
    return topological(order, [*forms.inputs, *(op for op, _ in forms.outputs)])


def add_copy(g: Graph, source: Op, readers: bool) -> Op:
    """A work op that copies `source`, and takes its place as an output; with `readers` also for who
    reads it from memory as a whole."""
    copy = Op("map", "copy", (source,), source.type, {}, source.value, source.node)
    copy.id = g.ops[-1].id + 1
    g.ops.append(copy)
    g.work.append(copy)
    g.flat[copy], g.red[copy], g.axes[copy] = g.flat[source], (), g.axes[source]
    g.edges[copy], g.seen[copy] = g.flat[source], g.axes[source]
    g.reads[copy] = [Access(source, tuple((a, a) for a in g.flat[source]))]
    g.users[source].append(copy)
    g.users[copy], g.readers[copy] = [], []
    g.readers[source].append(copy)
    g.needs[copy] = (source,)
    for user, i in whole_readers(g, source) if readers else ():
        old = g.reads[user][i]
        g.reads[user][i] = Access(copy, old.pairs, old.affine)
        g.users[source].remove(user)
        g.users[copy].append(user)
    g.cost[copy] = LOAD
    g.stored.add(copy)
    if source in g.outputs:
        g.outputs.remove(source)
        g.outputs.add(copy)
    g.forms.outputs[:] = [(copy if op is source else op, o) for op, o in g.forms.outputs]
    if source in g.overwrites:
        g.overwrites[copy] = g.overwrites.pop(source)
        g.leaf_readers[copy] = g.leaf_readers.pop(source)
        g.checks[copy] = g.checks.pop(source)
    return copy


def whole_readers(g: Graph, source: Op) -> list[tuple[Op, int]]:
    """Reads (op, operand) of a value that go to memory, not through a loop of the reader's."""
    found = []
    for user in dict.fromkeys(g.users[source]):
        for i, access in enumerate(g.reads[user]):
            if access.root is source and reads_memory(user, i):
                found.append((user, i))
    return found


def reads_memory(op: Op, i: int) -> bool:
    return op.form in WHOLE or (i == 0 and op.form in ("gather", "scatter"))


def decide(g: Graph) -> None:
    """Which maps are stored, recomputed or inlined."""
    g.users = {op: [] for op in g.ops}
    bent: set[Op] = set()
    whole: set[Op] = set()
    for op, reads in g.reads.items():
        for i, access in enumerate(reads):
            g.users[access.root].append(op)
            if not access.straight:
                bent.add(access.root)
            if reads_memory(op, i):
                whole.add(access.root)
    speed = g.machine.map_scale
    for op in g.ops:
        if op.form == "view":
            continue
        if op.form in LEAVES:
            g.cost[op] = LOAD if op.form == "input" and g.flat[op] else 0.0
            continue
        roots = {a.root for a in g.reads[op]}
        if op.form in ("map", "random"):
            own = RANDOM if op.form == "random" else TABLE[op.name].weight * speed
            if not g.flat[op]:
                own = 0.0  # computed once a loop, not once an element
            cost = own + sum(g.cost[r] for r in roots)
            free = op not in whole and op not in g.outputs and op not in bent
            if free and cost <= KEEP:
                g.cost[op] = cost
                leafy = all(r.form in LEAVES or r in g.inline for r in roots)
                if leafy and (cost <= INLINE or not g.flat[op]):
                    g.inline.add(op)
                continue
        g.stored.add(op)
        g.cost[op] = LOAD if g.flat[op] else 0.0
    g.work = [op for op in g.ops if op.form not in (*LEAVES, "view") and op not in g.inline]


def connect(g: Graph) -> None:
    """What each work op needs, who reads it, and who reads each overwritten leaf."""
    through: dict[Op, tuple[Op, ...]] = {}  # non-inline roots behind an inline map
    for op in g.ops:
        if op.form == "view":
            continue
        found: list[Op] = []
        for access in g.reads[op]:
            root = access.root
            found += through[root] if root in g.inline else [root]
        through[op] = tuple(dict.fromkeys(found))
    g.readers = {op: [] for op in g.ops}
    for op in g.work:
        waits = [g.root(x) for x in op.after]
        behind = [y for x in waits for y in (through[x] if x in g.inline else (x,))]
        roots = dict.fromkeys((*through[op], *behind))
        g.needs[op] = tuple(r for r in roots if r.form not in LEAVES)
        for r in roots:
            g.readers[r].append(op)
    for out, leaf in g.overwrites.items():
        seen: set[Op] = set()
        todo = [leaf]
        while todo:
            for user in g.users[todo.pop()]:
                if user not in seen:
                    seen.add(user)
                    if user not in g.stored:
                        todo.append(user)
        g.leaf_readers[out] = {u for u in seen if u not in g.inline}
    connect_checks(g)


def connect_checks(g: Graph) -> None:
    """Which ops may raise before each leaf is overwritten: all that do not depend on its new value,
    so that after a bad index it is as it was. (A leaf of one element, such as a count of steps,
    would keep much waiting: it is put back.)"""
    g.checks = {out: set() for out in g.overwrites}
    pairs = [(op, op.node) for op in g.ops if op.node and op.name == op.node.op]
    for check in (pairs[at][0] for at in raising([node for _, node in pairs])):
        before, todo = set[Op](), [check]
        while todo:
            for x in todo.pop().ins:
                if x not in before:
                    before.add(x)
                    todo.append(x)
        emitted, todo = list[Op](), [check]  # it, or what it is inlined into: the first of that
        while todo:
            op = todo.pop()
            if op in g.inline:
                todo += g.users[op]
            else:
                emitted.append(op)
        first = min(emitted, key=lambda op: op.id)
        for out in g.overwrites:
            if out not in before and out.type.size > 1:
                g.checks[out].add(first)
