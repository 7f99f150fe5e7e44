"""Functionalize: writes become new values.

The trace is the user's program with its in-place writes and aliasing views. This pass turns it
into pure SSA: a write makes a new value of the storage, and a view that the write reached is read
anew from it (the functionalization of PyTorch's functorch, with scatters as the inverses of views).

A storage can have several autograd *histories*: `detach` starts a new one on the same bytes. A
write belongs to the history it was made through; the others see its value, but not its gradient,
which is what `set_value(old, new)` says: the value of new, the gradient of old.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from tinyaot import ops
from tinyaot.builder import Builder, Sym
from tinyaot.errors import MutationError
from tinyaot.ir import Node, Origin, Program, Value, live_nodes
from tinyaot.ops.core import using
from tinyaot.passes.apart import keep_apart
from tinyaot.passes.autodiff import paths
from tinyaot.passes.storage import Storages, storages_of
from tinyaot.record import Decision
from tinyaot.shapes import overlaps_itself
from tinyaot.structural import grad_parts

_Chain: TypeAlias = tuple[tuple[str, Mapping[str, Any]], ...]


def functionalize(program: Program, *, log: list[Decision] | None = None) -> Program:
    """Turn writes into values.

    What it does: a write through a view becomes a scatter into the base, and makes the base's
    current value; views of that base are replayed from it when they are read again, once a write,
    and outputs give the values that their tensors end with. What nothing reads is dropped.

        input %0: f32[4] argument "x"              input %0: f32[4] argument "x"
        %1: f32[4] = mul(%0, %0)                   %1: f32[4] = mul(%0, %0)
        %2: f32[2] = slice(%1) {...}               %2: f32[2] = slice(%1) {...}
        %3: f32[2] = exp(%2)                       %3: f32[2] = exp(%2)
        write(%2, %3)                              %4: f32[4] = slice_scatter(%1, %3) {...}
        output user %1                             output user %4

    What to look at: no `write` is left, every op is pure, and each new node's origin names the
    tensor that was written or read anew, with the line of the write.

    Raises MutationError for a write to a view that names a byte twice (of an expanded tensor).
    """
    work = _Functional(program)
    for node in program.nodes:
        work.step(node)
    outputs = tuple(replace(o, value=work.read(o.value)) for o in program.outputs)
    nodes = live_nodes(work.builder.nodes, (o.value for o in outputs))
    after = program.replace(
        stage="functionalize", nodes=tuple(nodes), outputs=outputs, next_id=work.builder.next_id
    )
    return keep_apart(program, after)


@dataclass(slots=True, eq=False)
class _Storage:
    """Some bytes: their present value, how often they were written, and by which node last."""

    value: Value
    version: int = 0
    writer: Node | None = None


@dataclass(slots=True, eq=False)
class _View:
    """A tensor of the trace: a chain of views from the base of a history.

    `visible` is its value as of the history's write number `version`, with its gradient; `now` is
    its value after the storage's write number `seen`, those of other histories included.
    """

    tensor: Value
    history: _History
    chain: _Chain
    visible: Value
    version: int
    now: Value
    seen: int


class _History:
    """The autograd identity of a base and its views; `version` numbers its last write."""

    __slots__ = ("base", "storage", "version")

    def __init__(self, storage: _Storage, base: Value) -> None:
        self.storage = storage
        self.version = version = storage.version
        self.base = _View(base, self, (), base, version, base, version)


class _Functional:
    """The pure program written so far, and what every tensor of the trace is in it."""

    def __init__(self, program: Program) -> None:
        self.builder = Builder(program.next_id)
        self.storages: Storages = storages_of(program)
        self.views: dict[int, _View] = {}
        self.carrying = {i.value.id for i in program.inputs if i.requires_grad}
        self.uses = Counter(v.id for n in program.nodes for v in n.inputs)
        self.uses.update(o.value.id for o in program.outputs)
        self.uses.update(i.value.id for i in program.inputs)  # the caller's use
        for i in program.inputs:
            self._start(i.value)

    # ---- the nodes of the trace -----------------------------------------------------------------

    def step(self, node: Node) -> None:
        """Take over one node of the trace."""
        if node.op == "write":
            self._write(node)
            return
        found = self._grad_operands(node) if node.op == "grad" else map(self.read, node.inputs)
        inputs = tuple(found)
        pure = node if inputs == node.inputs else replace(node, inputs=inputs)
        if node.op == "detach":
            self._detach(node)
        elif self.storages.is_view(node):
            self._view(node)
        else:
            for result in node.results:
                self._start(result)
        self.builder.nodes.append(pure)
        self._note_gradients(len(self.builder.nodes) - 1)

    def _start(self, value: Value) -> None:
        """A tensor with bytes and a history of its own."""
        self.views[value.id] = _History(_Storage(value), value).base

    def _view(self, node: Node) -> None:
        source, result, link = self.views[node.inputs[0].id], node.result, (node.op, node.attrs)
        if node.op == "broadcast" and result.type.size == node.inputs[0].type.size:
            link = "reshape", {"shape": result.type.shape}  # it repeats nothing: can be written
        self._see(result, source.history, (*source.chain, link))

    def _see(self, result: Value, history: _History, chain: _Chain) -> None:
        """A view that has just been taken."""
        version, seen = history.version, history.storage.version
        self.views[result.id] = _View(result, history, chain, result, version, result, seen)

    def _detach(self, node: Node) -> None:
        """A new history on the same bytes. It needs a base of its own in case that it is written
        through; otherwise nothing reads that."""
        source = self.views[node.inputs[0].id]
        storage = source.history.storage
        if not source.chain:
            self.views[node.result.id] = _History(storage, node.result).base
            return
        base = self._emit(node, node.inputs[0], ops.detach, self._read(source.history.base))
        self._see(node.result, _History(storage, base), source.chain)

    def _grad_operands(self, node: Node) -> list[Value]:
        """Outputs and cotangents as they are now; each wrt as its history's last write left it."""
        outputs, cotangents, wrt = grad_parts(node)
        visible = [self._visible(self.views[v.id]) for v in wrt]
        return [*map(self.read, (*outputs, *cotangents)), *visible]

    def _write(self, node: Node) -> None:
        target, source = node.inputs
        if overlaps_itself(self.storages.geometry[target.id]):
            where = f"\n  at {node.loc}: {node.loc.source}" if node.loc is not None else ""
            raise MutationError(
                f"write to {target}: {target.type}, which names some elements more than once, as "
                f"an expanded tensor does; write to a copy (clone() or contiguous()){where}",
                locate=False,
            )
        view, new = self.views[target.id], self.read(source)
        history, storage, base = view.history, view.history.storage, view.history.base
        if not target.type.size and view.chain:  # changes nothing, and yet makes a new value
            new = self._emit(node, target, ops.copy, self._read(base))
        elif view.chain:
            put = partial(_scatter_back, view.chain)
            new = self._emit(node, target, put, self._read(base), new)
        if base.visible.id in self.carrying and _covers_all(view.chain, new.id in self.carrying):
            # The old value gets a gradient, of zeros, as from every operand of what was recorded.
            new = self._emit(node, target, _replace_all, self._read(base), new)
        elif not view.chain and self.uses[source.id] > 1:
            # Two tensors, so two values: a derivative by the one is not a derivative by the other.
            new = self._emit(node, target, ops.copy, new)
        storage.value, storage.writer = new, node
        storage.version += 1
        history.version = base.version = base.seen = storage.version
        base.visible = base.now = new

    # ---- what a tensor is now -------------------------------------------------------------------

    def read(self, tensor: Value) -> Value:
        """The present value of a tensor of the trace."""
        return self._read(self.views[tensor.id])

    def _read(self, view: _View) -> Value:
        history, storage = view.history, view.history.storage
        if view.seen != storage.version:
            view.now = self._visible(view)
            if history.version != storage.version:  # written through another history since
                hidden = self._replay(view, storage.value)
                assert storage.writer is not None
                view.now = self._emit(
                    storage.writer, view.tensor, ops.set_value, view.visible, hidden
                )
            view.seen = storage.version
        return view.now

    def _visible(self, view: _View) -> Value:
        """The view as its history's last write left it."""
        if view.version != view.history.version:
            view.visible = self._replay(view, view.history.base.visible)
            view.version = view.history.version
        return view.visible

    def _replay(self, view: _View, base: Value) -> Value:
        """The view's chain, taken of a new base."""
        if not view.chain:
            return base
        writer = view.history.storage.writer
        assert writer is not None  # else the view would not be stale
        return self._emit(writer, view.tensor, lambda x: ops.replay(x, view.chain), base)

    def _emit(
        self, node: Node, tensor: Value, write: Callable[..., Any], *operands: Value
    ) -> Value:
        """Emit nodes on behalf of a node of the trace and of the tensor that it is about."""
        self.builder.loc, self.builder.checkpoint = node.loc, node.checkpoint
        self.builder.origin = (Origin("functionalized", tensor.id),)
        start = len(self.builder.nodes)
        with using(self.builder):
            made: Sym = write(*map(Sym, operands))
        self._note_gradients(start)
        return made.value

    def _note_gradients(self, start: int) -> None:
        """Note which values of the nodes from `start` on a gradient flows through."""
        for node in self.builder.nodes[start:]:
            through = range(len(node.inputs)) if node.op == "grad" else paths(node)
            if any(node.inputs[i].id in self.carrying for i in through):
                self.carrying.update(r.id for r in node.results)


def _scatter_back(chain: _Chain, base: Sym, value: Sym) -> Any:
    return ops.scatter_back(base, chain, value)


def _covers_all(chain: _Chain, carries: bool) -> bool:
    """Whether a write through the chain leaves nothing of the base, which yet is an operand: as the
    tape has it, unless it is a tensor that was written whole, with a value that has a gradient."""
    if not chain:
        return not carries
    return all(name in ("reshape", "permute") for name, _ in chain)


def _replace_all(base: Sym, value: Sym) -> Any:
    """`value`, put where all of the base is."""
    none = (0,) * base.ndim
    return ops.slice_scatter(base, value, starts=none, stops=base.shape, steps=(1,) * base.ndim)
