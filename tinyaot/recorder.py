"""Autograd's bookkeeping, the same in both modes.

An eager tensor and a traced one have the same edges, views, histories and errors; only what a tape
node saves differs (arrays, or nothing). So a trace knows, as eager does, which leaves a loss
depends on, what was freed, and which writes are hidden, without a second set of rules.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, cast

from tinyaot.errors import DTypeError, GradError, MutationError, ShapeError
from tinyaot.ops.core import TABLE, Primitive, mode
from tinyaot.shapes import TensorType, brief, overlaps_itself
from tinyaot.tape import PrimitiveNode, Unread, WriteNode, edge_key, rule_reads
from tinyaot.tensor import Edge, History, SavedHandle, Tensor


class Recorder:
    """Base of the eager and the tracing engine."""

    # ---- what the modes do differently ----------------------------------------------------------

    def resolve(self, tensor: Tensor) -> Tensor:
        """The tensor that carries the state in this mode (a trace shadows those from outside)."""
        return tensor

    def save(self, tensor: Tensor, edge: Edge) -> SavedHandle | Unread:
        """Keep a tensor's value for backward."""
        raise NotImplementedError

    def alias(self, tensor: Tensor) -> Tensor:
        """A tensor on the same bytes whose history is new."""
        return self.detach(tensor)

    # ---- edges ----------------------------------------------------------------------------------

    def edge(self, tensor: Tensor) -> Edge:
        """Where this tensor's cotangent goes; None if it does not require grad."""
        tensor = self.resolve(tensor)
        history = tensor._history
        if tensor._chain:
            if tensor._version != history.version:
                self._replay_edge(tensor)
            return tensor._edge
        if history.edge is not None:
            return history.edge
        return tensor if history.requires_grad else None

    def _replay_edge(self, view: Tensor) -> None:
        """After a visible write, a view's edge leads through its chain from the base's new edge."""
        history = view._history
        edge: Edge = history.edge
        type_ = Tensor(history.base).type
        for name, attrs in view._chain:
            primitive = TABLE[name]
            out = primitive.infer([type_], attrs)
            if edge is not None:
                edge = self._view_node(primitive, edge, type_, attrs, out), 0
            type_ = out
        view._edge, view._version = edge, history.version

    def _view_node(
        self, primitive: Primitive, edge: Edge, type_: TensorType, attrs: Any, out: TensorType
    ) -> PrimitiveNode:
        operand = Unread(type_.shape, type_.dtype.numpy)
        result = Unread(out.shape, out.dtype.numpy)
        return PrimitiveNode(primitive, attrs, [edge], [operand], result, saves=False)

    def record(
        self, primitive: Primitive, operands: Sequence[Any], attrs: dict[str, Any], out: Tensor
    ) -> None:
        """Put a node on the tape if an operand requires grad. `operands` are resolved."""
        edges: list[Edge] = []
        found = False
        for i, x in enumerate(operands):
            edge = None
            if isinstance(x, Tensor) and x._history.requires_grad:
                edge = self.edge(x)
                if edge is not None:
                    if primitive.rule(i) is None:
                        edge = None
                    else:
                        found = True
            edges.append(edge)
        if not found or not out.dtype.is_floating:
            return
        scalar = TensorType(out.dtype, ())  # scalars are operands, too
        reads = rule_reads(
            primitive,
            tuple([e is not None for e in edges]),
            lambda: ([x.type if isinstance(x, Tensor) else scalar for x in operands], out.type),
            attrs,
        )
        saved: list[Any] = []
        for i, x in enumerate(operands):
            if not isinstance(x, Tensor):
                saved.append(x)
            elif i in reads.operands:
                saved.append(self.save(x, self.edge(x)))
            else:
                saved.append(Unread(x._data.shape, x._data.dtype))
        result: Any
        if reads.result:
            result = self.save(out, None)
        else:
            result = Unread(out._data.shape, out._data.dtype)
        saves = reads.result or bool(reads.operands)
        node = PrimitiveNode(primitive, attrs, edges, saved, result, saves)
        history = out._history
        history.edge = (node, 0)
        history.requires_grad = True

    # ---- views ----------------------------------------------------------------------------------

    def view(self, primitive: Primitive, base: Tensor, attrs: dict[str, Any], data: Any) -> Tensor:
        """A tensor on the base's bytes. Of a tensor that requires grad, `no_grad` cuts it off."""
        out = Tensor.__new__(Tensor)
        out._data = data
        out._grad = None
        history = base._history
        edge = self.edge(base)
        if edge is not None and not mode.grad_enabled:
            return self._cut(out, base)
        if history.base is None:
            history.base = base._data  # no view yet, so this is the base
        out._history = history
        out._chain = (*base._chain, _link(primitive.name, attrs, base, out))
        out._version = history.version
        out._edge = None
        if edge is not None:
            out._edge = self._view_node(primitive, edge, base.type, attrs, out.type), 0
        return out

    def _cut(self, out: Tensor, base: Tensor) -> Tensor:
        """Give `out` a history of its own on the base's storage."""
        repeated = self.is_repeated(base)
        out._history = History(False, base._history.get_storage())
        out._history.repeated = repeated
        out._chain = ()
        out._edge = None
        out._version = 0
        return out

    # ---- writes ---------------------------------------------------------------------------------

    def check_write(self, dst: Tensor, src: Tensor) -> None:
        """Raise for a write that has no meaning: wrong type, overlapping view, leaf with grad."""
        if src.shape != dst.shape:
            raise ShapeError(
                f"in-place: a result of shape {src.shape} does not fit the tensor of shape "
                f"{dst.shape}; an in-place op cannot broadcast its left side"
            )
        if src.dtype is not dst.dtype:
            raise DTypeError(
                f"in-place: a {src.dtype.name} result cannot be written to a {dst.dtype.name} "
                f"tensor; cast one first"
            )
        if self.is_repeated(dst):
            raise MutationError(
                f"in-place: several elements of this {dst.shape} view, or of what it is a view of, "
                f"are one in memory (it was expanded); clone() it before writing"
            )
        if not mode.grad_enabled:
            return
        history = dst._history
        if history.requires_grad and history.edge is None:
            what = "a view of a leaf" if dst._chain else "a leaf"
            raise MutationError(
                f"in-place: {what} tensor that requires grad cannot be written; do it under "
                f"no_grad(), or on a clone()"
            )

    def is_repeated(self, tensor: Tensor) -> bool:
        """Whether a tensor, or one that it shows a part of, repeats elements."""
        if tensor._history.repeated:
            return True
        if not tensor.is_contiguous() and overlaps_itself(tensor._geometry):
            return True
        if not tensor._chain:
            return False
        expanded = any(name == "broadcast" for name, _ in tensor._chain)
        return expanded or overlaps_itself(Tensor(tensor._history.base)._geometry)

    def rebase(self, dst: Tensor, src: Tensor) -> None:
        """Note a visible write: the base's value now comes from the source, too."""
        history = dst._history
        source = self.edge(src)
        if source is None and self.edge(dst) is None and history.edge is None:
            return
        # The old value that a write to all of the base discards gets zeros, as in torch, but for
        # one that the new value was made of, and so gets its gradient from there.
        makers = source[0].edges if isinstance(source, tuple) else ()
        made_of = edge_key(history.edge) in map(edge_key, makers)
        base = None if made_of and not dst._chain else history.edge
        history.edge = WriteNode(base, source, dst._chain), 0
        history.requires_grad = True
        history.version += 1

    # ---- leaves ---------------------------------------------------------------------------------

    def requires_grad_(self, tensor: Tensor, value: bool) -> None:
        tensor = self.resolve(tensor)
        edge = self.edge(tensor)
        if edge is not None and edge is not tensor:
            if not value:
                raise GradError(
                    "requires_grad_(False): only leaf tensors can stop requiring grad; use detach()"
                )
            return
        if value and not tensor.dtype.is_floating:
            raise GradError(f"requires_grad_: only float tensors have gradients, not {tensor.type}")
        if value and tensor._chain:
            self._cut(tensor, tensor)  # a view that becomes a leaf is the base of its own history
        tensor._history.requires_grad = value

    def detach(self, tensor: Tensor) -> Tensor:
        raise NotImplementedError

    def detach_(self, tensor: Tensor) -> None:
        tensor = self.resolve(tensor)
        check_detachable(tensor)
        tensor._history.edge = None
        tensor._history.requires_grad = False
        tensor._history.version += 1

    def retain_grad(self, tensor: Tensor) -> None:
        tensor = self.resolve(tensor)
        edge = self.edge(tensor)
        if edge is None:
            raise GradError("retain_grad: this tensor does not require grad")
        if isinstance(edge, tuple):
            retained = edge[0].retained
            if retained is None:
                retained = edge[0].retained = {}
            retained[edge[1]] = weakref.ref(tensor)  # it leads to the node: no cycle

    # ---- checking what a backward is asked ------------------------------------------------------

    def start(self, output: Tensor, cotangent: Tensor | None, what: str) -> Edge:
        """The edge a backward starts from; raises GradError where it cannot."""
        edge = self.edge(output)
        if edge is None:
            raise GradError(
                f"{what}: this {output.type} tensor does not require grad and has no history; did "
                f"a no_grad(), detach() or an integer op cut it off?"
            )
        if cotangent is not None and not isinstance(cotangent, Tensor):
            raise GradError(f"{what}: a cotangent must be a Tensor, got {brief(cotangent)}")
        if cotangent is None:
            if output.size != 1:
                raise GradError(
                    f"{what}: needs a cotangent for a tensor of shape {output.shape}: pass "
                    f"gradient=, or reduce it (sum() or mean()) first"
                )
        elif cotangent.shape != output.shape or cotangent.dtype is not output.dtype:
            raise GradError(
                f"{what}: the cotangent is {cotangent.type}, it must be {output.type} as the output"
            )
        return edge


def eager() -> Recorder:
    """The engine outside any trace."""
    return cast(Recorder, mode.default)


def check_detachable(tensor: Tensor) -> None:
    """Raise GradError for a view: its history is its base's, too."""
    if tensor._chain:
        raise GradError("detach_: this is a view; use detach()")


def _link(name: str, attrs: dict[str, Any], base: Tensor, out: Tensor) -> tuple[str, Any]:
    """What a chain says of a view; a broadcast that repeats nothing is a reshape."""
    if name == "broadcast" and out.size == base.size:
        return "reshape", {"shape": out.shape}
    return name, attrs
