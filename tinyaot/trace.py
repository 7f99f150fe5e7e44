"""The tracing engine: running the user's function once writes it down as a Program.

Tensors inside the trace carry an IR value in place of an array. A tensor from outside (an argument,
a parameter, a captured buffer) is *lifted* when first touched: it becomes an input, and a traced
shadow stands for it. Views alias and writes are recorded as they happen; making them pure is
functionalization's work, not the tracer's. Differentiation inside the trace (`backward`, `grad`)
becomes one `grad` node, expanded later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tinyaot import ops, random
from tinyaot.again import gradient_edges
from tinyaot.builder import Builder
from tinyaot.errors import DTypeError, GradError, TraceError
from tinyaot.ir import Input, InputRole, Value
from tinyaot.location import user_location
from tinyaot.ops.core import Primitive, mode
from tinyaot.recorder import check_detachable, eager
from tinyaot.rule_tracer import RuleTracer
from tinyaot.shapes import DType, Geometry, Shape, TensorType, contiguous, float64, int64
from tinyaot.tape import Only, no_grad, nodes_between, reachable
from tinyaot.tensor import Chain, Edge, History, NotKept, SavedHandle, Tensor, base_of
from tinyaot.traced import (
    Hyper,
    Lifted,
    NeedBases,
    OuterNode,
    Root,
    Traced,
    no_value,
    renew,
    replay_again,
    views_a_leaf,
)


@dataclass(eq=False)
class TraceEngine(RuleTracer):
    """Collects a Program while the user's function runs. One trace, one engine."""

    builder: Builder = field(default_factory=lambda: Builder(0))
    lifted: list[Lifted] = field(default_factory=list)
    draws: int = 0
    depth: int = 0
    bases: dict[History, Tensor] = field(default_factory=dict)  # lifted in place of their views

    def __post_init__(self) -> None:
        self._shadows: dict[int, Lifted] = {}
        self._replayed: dict[Any, Tensor] = {}
        self._detached: dict[History, Tensor] = {}  # bases after detach_
        self.touched: dict[tuple[int, str], Hyper] = {}
        self._random: tuple[Value, Value] | None = None
        self.grads: dict[int, tuple[Lifted, Tensor | None]] = {}  # `.grad` as assigned in the trace
        self.grads_read: dict[int, tuple[Lifted, Tensor | None]] = {}  # those that were there
        self.detached_inputs: list[Lifted] = []  # inputs without history, of which detach_ is no op
        self.outside: list[tuple[Lifted, Lifted]] = []  # gradients by the second, through the first
        self.closed = False

    # ---- tensors from outside -------------------------------------------------------------------

    def resolve(self, tensor: Tensor) -> Tensor:
        data = tensor._data
        if isinstance(data, Traced):
            if data.engine is not self:
                raise TraceError(
                    "a tensor of another trace was used: it has no value here; return it from the "
                    "function that made it instead of storing it"
                )
            if tensor._chain and tensor._history in self._detached:
                renew(tensor, self._detached[tensor._history])
            return tensor
        found = self._shadows.get(id(tensor))
        if found is None:
            found = self.lift(tensor, "state")
        assert found.shadow is not None
        return found.shadow

    def lift(self, tensor: Tensor, role: InputRole, name: str = "") -> Lifted:
        """Make a tensor from outside an input.

        A view whose base is among `bases` (something in the function writes to one of its
        overlapping views, so they have to be views of one input) becomes a view of the lifted base.
        """
        found = self._shadows.get(id(tensor))
        if found is not None:  # as the base of a view
            found.role, found.name = role, name
            return found
        if tensor._chain and tensor._history in self.bases:
            base = self.bases[tensor._history]
            shadow = replay_again(tensor, self.resolve(base), self._replayed)
            view = Lifted(shadow._data.value, role, tensor, shadow, name)
            self._shadows[id(tensor)] = view
            return view
        value = self.builder.fresh(tensor.type)
        lifted = Lifted(value, role, tensor, name=name)
        geometry = tensor._geometry
        lifted.shadow = self._tensor(value, geometry, Root(input=lifted))
        history = lifted.shadow._history
        edge = eager().edge(tensor)
        lifted.requires_grad = history.requires_grad = edge is not None
        if isinstance(edge, tuple) and not views_a_leaf(tensor):
            lifted.outer = OuterNode(())
            history.edge = lifted.outer, 0
        self._shadows[id(tensor)] = lifted
        self.lifted.append(lifted)
        return lifted

    def literal(self, array: np.ndarray) -> Tensor:
        """A tensor made inside the function: a constant, new at every call."""
        constant = self.lift(Tensor(array), "constant")
        assert constant.shadow is not None
        copy: Tensor = self.bind(ops.copy, (constant.shadow,), {})
        return copy

    def _input(self, role: InputRole, source: Any, dtype: DType, name: str) -> Tensor:
        value = self.builder.fresh(TensorType(dtype, ()))
        lifted = Lifted(value, role, source, name=name)
        lifted.shadow = self._tensor(value, contiguous(()), Root(input=lifted))
        self.lifted.append(lifted)
        return lifted.shadow

    def hyper(self, owner: Any, name: str) -> Any:
        value, hyper = vars(owner)[name], self._hyper(owner, name)
        if hyper.assigned or isinstance(value, bool) or not isinstance(value, (int, float)):
            self.touch_hyper(owner, name, False)
            return value
        if hyper.shadow is None:
            path = f"{type(owner).__name__}.{name}"
            hyper.shadow = self._input("hyper", (owner, name), float64, path)
        return hyper.shadow

    def touch_hyper(self, owner: Any, name: str, assigned: bool) -> None:
        (hyper := self._hyper(owner, name)).assigned |= assigned
        hyper.read |= not hyper.assigned

    def _hyper(self, owner: Any, name: str) -> Hyper:
        return self.touched.setdefault((id(owner), name), Hyper(owner, name, vars(owner)[name]))

    def random_bits(self, shape: Shape) -> Tensor:
        if self._random is None:
            generator = random.generator
            seed = self._input("random", (generator, "seed"), int64, "random.seed")
            draw = self._input("random", (generator, "draw"), int64, "random.draw")
            self._random = seed._data.value, draw._data.value
        attrs = {"ordinal": self.draws, "shape": tuple(shape)}
        self.draws += 1
        out = ops.random_bits.infer([v.type for v in self._random], attrs)
        self.builder.loc = user_location()
        node = self.builder.emit("random_bits", self._random, (out,), attrs)
        return self._tensor(node.result, contiguous(tuple(shape)), Root())

    def _tensor(self, value: Value, geometry: Geometry, root: Root, path: Chain = ()) -> Tensor:
        tensor = Tensor(Traced(self, value, geometry, root, path))
        if root.tensor is None:
            root.tensor = tensor
        return tensor

    # ---- ops ------------------------------------------------------------------------------------

    def bind(
        self, primitive: Primitive, operands: tuple[Any, ...], attrs: dict[str, Any]
    ) -> Tensor:
        if self.closed:
            raise TraceError("this trace has ended")
        self.builder.loc = user_location()
        resolved = [self.resolve(x) if isinstance(x, Tensor) else x for x in operands]
        if primitive.name == "detach":
            return self.detach(resolved[0])
        dtype = next((x.dtype for x in reversed(resolved) if isinstance(x, Tensor)), None)
        types = []
        for x in resolved:
            if isinstance(x, Tensor):
                types.append(x.type)
            elif isinstance(x, (bool, int, float)) and dtype is not None:
                types.append(TensorType(dtype, ()))
            else:
                raise DTypeError(
                    f"{primitive.name}: {type(x).__name__} is not an operand; make it a tensor"
                )
        out_type = primitive.infer(types, attrs)
        if primitive.kind == "view":
            return self._bind_view(primitive, resolved[0], attrs, out_type)
        values = [
            self._value(x, primitive.differentiable)
            if isinstance(x, Tensor)
            else self.builder.scalar(x, t.dtype)
            for x, t in zip(resolved, types, strict=True)
        ]
        node = self.builder.emit(primitive.name, values, (out_type,), attrs)
        out = self._tensor(node.result, contiguous(out_type.shape), Root())
        if mode.grad_enabled:
            self.record(primitive, resolved, attrs, out)
        return out

    def _value(self, tensor: Tensor, differentiable: bool = True) -> Value:
        """A tensor's IR value; detached where `no_grad` forbids a gradient to flow to it."""
        value: Value = tensor._data.value
        if mode.grad_enabled or not differentiable or self.edge(tensor) is None:
            return value
        return self.builder.emit("detach", (value,), (value.type,)).result

    def _bind_view(
        self, primitive: Primitive, base: Tensor, attrs: dict[str, Any], out_type: TensorType
    ) -> Tensor:
        data: Traced = base._data
        assert primitive.geometry is not None  # of every view
        geometry = primitive.geometry(data.geometry, **attrs)
        if geometry is None:  # strides forbid this reshape: a copy first, then a view of that
            base = self.bind(ops.copy, (base,), {})
            return self._bind_view(primitive, base, attrs, out_type)
        value = self._value(base)
        path = data.path if value is data.value else (*data.path, ("detach", {}))
        node = self.builder.emit(primitive.name, (value,), (out_type,), attrs)
        path = (*path, (primitive.name, attrs))
        return self.view(
            primitive, base, attrs, Traced(self, node.result, geometry, data.root, path)
        )

    def save(self, tensor: Tensor, edge: Edge) -> SavedHandle:
        return SavedHandle(tensor._data, edge)

    def detach(self, tensor: Tensor) -> Tensor:
        tensor = self.resolve(tensor)
        data: Traced = tensor._data
        self.builder.loc = user_location()
        value = self.builder.emit("detach", (data.value,), (data.value.type,)).result
        path = (*data.path, ("detach", {}))
        out = Tensor(Traced(self, value, data.geometry, data.root, path))
        return self._cut(out, tensor)

    def requires_grad_(self, tensor: Tensor, value: bool) -> None:
        tensor = self.resolve(tensor)
        if value != (self.edge(tensor) is not None):
            self._refuse_lifted(tensor, "requires_grad_()")
        super().requires_grad_(tensor, value)

    def retain_grad(self, tensor: Tensor) -> None:
        tensor = self.resolve(tensor)
        if isinstance(self.edge(tensor), tuple):
            self._refuse_lifted(tensor, "retain_grad()")
        super().retain_grad(tensor)

    def _refuse_lifted(self, tensor: Tensor, what: str) -> None:
        """An input's own autograd state belongs to the caller, and no program can change it."""
        if any(x.shadow is tensor for x in self.lifted):
            raise TraceError(
                f"{what} inside a compiled function of a tensor from outside it: do it outside, or "
                f"on a detach() of it"
            )

    def detach_(self, tensor: Tensor) -> None:
        tensor = self.resolve(tensor)
        if self.edge(tensor) is None:
            lifted = self._lifted_of(tensor)
            check_detachable(tensor if lifted is None else lifted.source)
            self.detached_inputs += [] if lifted is None else [lifted]
            return
        self._refuse_lifted(tensor, "detach_()")
        detached = self.detach(tensor)
        super().detach_(tensor)
        tensor._data = detached._data
        self._detached[tensor._history] = tensor

    def write(self, dst: Tensor, src: Tensor) -> None:
        dst, src = self.resolve(dst), self.resolve(src)
        self.check_write(dst, src)
        self.builder.loc = user_location()
        # Under no_grad both sides lose their edges: the write is hidden from autograd.
        self.builder.emit("write", (self._value(dst), self._value(src)), ())
        dst._data.root.wrote(dst._data, self.builder.nodes)
        if mode.grad_enabled:
            self.rebase(dst, src)

    def concrete(self, tensor: Tensor, what: str) -> np.ndarray:
        raise no_value(tensor, what)

    # ---- gradients ------------------------------------------------------------------------------

    def get_grad(self, tensor: Tensor) -> Tensor | None:
        shadow = self.resolve(tensor)
        lifted = self._lifted_of(shadow)
        if lifted is None:
            return shadow._grad if isinstance(shadow._grad, Tensor) else None
        if id(lifted) in self.grads:
            return self.grads[id(lifted)][1]
        outside = lifted.source._grad
        if isinstance(outside, NotKept):
            raise GradError(
                "grad: the compiled step before this did not keep gradients; compile it with "
                "keep_grads=True, or call zero_grad() first"
            )
        self.grads_read[id(lifted)] = lifted, outside
        return None if outside is None else self.resolve(outside)

    def set_grad(self, tensor: Tensor, value: Tensor | None) -> None:
        shadow = self.resolve(tensor)
        value = None if value is None else self.resolve(value)
        lifted = self._lifted_of(shadow)
        if lifted is None:
            shadow._grad = value
        else:
            self.grads[id(lifted)] = lifted, value

    def _lifted_of(self, shadow: Tensor) -> Lifted | None:
        lifted = shadow._data.root.input
        return lifted if lifted is not None and lifted.shadow is shadow else None

    def backward(
        self, tensor: Tensor, gradient: Tensor | None, retain_graph: bool, create_graph: bool
    ) -> None:
        self._need_bases()
        tensor = self.resolve(tensor)
        edge = self.start(tensor, gradient, "backward")
        leaves, nodes = reachable([edge])
        targets = [x for x in leaves if x._history.requires_grad]
        if any(isinstance(n, OuterNode) for n in nodes):
            raise TraceError(
                "backward() inside a compiled function reaches an argument that was computed "
                "outside it; compute it inside, detach() it, or call backward() outside"
            )
        for node in nodes:
            for ref in (node.retained or {}).values():
                kept = ref()
                if kept is not None:
                    targets.append(kept)
        for node in nodes:
            node.check_alive()
        again = self._again([tensor], [gradient], targets, create_graph)
        for node in nodes if not retain_graph else ():
            node.free()
        found = self._emit_grad([tensor], [gradient], targets, again)
        for target, total in zip(targets, found, strict=True):
            have = self.get_grad(target)
            if have is None:
                self.set_grad(target, total)
            elif create_graph:
                self.set_grad(target, self.bind(ops.add, (have, total), {}))
            else:
                with no_grad():
                    self.write(have, self.bind(ops.add, (have, total), {}))

    def grad(
        self,
        outputs: Sequence[Tensor],
        inputs: Sequence[Tensor],
        cotangents: Sequence[Tensor | None],
        retain_graph: bool,
        create_graph: bool,
    ) -> list[Tensor | None]:
        self._need_bases()
        outputs = [self.resolve(y) for y in outputs]
        inputs = [self.resolve(x) for x in inputs]
        edges = [self.start(y, c, "grad") for y, c in zip(outputs, cotangents, strict=True)]
        targets = [self.edge(x) for x in inputs]
        only, reached = nodes_between(edges, targets)
        wrt = [x for x, hit in zip(inputs, reached, strict=True) if hit]
        nodes = reachable(edges)[1]
        outer = [x for x in self.lifted if any(x.outer is n for n in nodes)]
        by = [x for x in self.lifted if any(x.shadow is t for t in inputs)]
        self.outside += [(x, y) for x in outer for y in by if x is not y]
        nodes = [n for n in nodes if n.seq in only.through]
        for node in nodes:
            node.check_alive()
        again = self._again(outputs, cotangents, wrt, create_graph, only)
        for node in nodes if not retain_graph else ():
            node.free()
        found = iter(self._emit_grad(outputs, cotangents, wrt, again))
        return [next(found) if hit else None for hit in reached]

    def _again(
        self,
        outputs: Sequence[Tensor],
        cotangents: Sequence[Tensor | None],
        wrt: Sequence[Tensor],
        create_graph: bool,
        only: Only | None = None,
    ) -> list[Edge]:
        """The history of each gradient, if it shall be differentiable again."""
        if not create_graph:
            return [None for _ in wrt]
        kept, self.builder = self.builder, Builder(self.builder.next_id)
        try:
            return gradient_edges(self, outputs, cotangents, wrt, only)
        finally:
            self.builder = kept

    def _need_bases(self) -> None:
        """A gradient by an input has to include what flows through views of it, which then have to
        be views of it in the trace, too."""
        inputs = [x.source for x in self.lifted if x.requires_grad]
        whole = {t._history: t for t in inputs if not t._chain}
        views = [t for t in inputs if t._chain and t._history not in self.bases]
        if views:
            raise NeedBases(
                {
                    t._history: whole[t._history] if t._history in whole else base_of(t)
                    for t in views
                }
            )

    def _emit_grad(
        self,
        outputs: Sequence[Tensor],
        cotangents: Sequence[Tensor | None],
        wrt: Sequence[Tensor],
        again: Sequence[Edge],
    ) -> list[Tensor]:
        if not wrt:
            return []
        self.builder.loc = user_location()
        given = [self.resolve(c) if c is not None else None for c in cotangents]
        explicit = any(c is not None for c in given)
        if explicit:
            given = [
                c if c is not None else self._ones(y) for c, y in zip(given, outputs, strict=True)
            ]
        values = [y._data.value for y in outputs]
        values += [c._data.value for c in given if c is not None]
        values += [x._data.value for x in wrt]
        attrs = {"outputs": len(outputs), "cotangents": explicit, "wrt": len(wrt)}
        node = self.builder.emit("grad", values, [x.type for x in wrt], attrs)
        results = [self._tensor(r, contiguous(r.type.shape), Root()) for r in node.results]
        for result, edge in zip(results, again, strict=True):
            if edge is not None:
                result._history.edge = edge
                result._history.requires_grad = True
            else:  # a constant to later derivatives
                data: Traced = result._data
                data.value = self.builder.emit("detach", (data.value,), (data.value.type,)).result
        return results

    def _ones(self, like: Tensor) -> Tensor:
        ones: Tensor = self.bind(
            ops.full, (), {"value": 1.0, "shape": like.shape, "dtype": like.dtype}
        )
        return ones

    # ---- the end --------------------------------------------------------------------------------

    def inputs(self) -> tuple[Input, ...]:
        return tuple(Input(x.value, x.role, x.name, x.requires_grad) for x in self.lifted)
