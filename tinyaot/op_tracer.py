"""The first layer of a trace: ops, views and writes, and the tensors from outside.

Tensors inside the trace carry an IR value in place of an array. A tensor from outside (an argument,
a parameter, a captured buffer) is *lifted* when first touched: it becomes an input, and a traced
shadow stands for it. Views alias and writes are recorded as they happen; making them pure is
functionalization's work, not the tracer's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tinyaot import ops, random
from tinyaot.builder import Builder
from tinyaot.errors import DTypeError, TraceError
from tinyaot.ir import InputRole, Value
from tinyaot.location import user_location
from tinyaot.ops.core import Primitive, mode
from tinyaot.recorder import Recorder, check_detachable, eager
from tinyaot.shapes import DType, Geometry, Shape, TensorType, contiguous, float64, int64
from tinyaot.tensor import Chain, Edge, History, SavedHandle, Tensor
from tinyaot.traced import (
    Hyper,
    Lifted,
    OuterNode,
    Root,
    Traced,
    no_value,
    renew,
    replay_again,
    views_a_leaf,
)


class OpTracer(Recorder):
    """Collects the nodes of a Program. `bases` are lifted in place of their views."""

    def __init__(self, bases: dict[History, Tensor]) -> None:
        self.bases = bases
        self.builder = Builder(0)
        self.lifted: list[Lifted] = []
        self.draws = 0
        self.touched: dict[tuple[int, str], Hyper] = {}
        self.detached_inputs: list[Lifted] = []  # inputs without history, of which detach_ is no op
        self.closed = False
        self._shadows: dict[int, Lifted] = {}
        self._replayed: dict[Any, Tensor] = {}
        self._detached: dict[History, Tensor] = {}  # bases after detach_
        self._random: tuple[Value, Value] | None = None

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

    def _lifted_of(self, shadow: Tensor) -> Lifted | None:
        lifted = shadow._data.root.input
        return lifted if lifted is not None and lifted.shadow is shadow else None

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
