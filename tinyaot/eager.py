"""The eager engine: every op runs at once with NumPy, and the tape records it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tinyaot import ops, random
from tinyaot.errors import DTypeError, GradError, TinyaotError, TraceError
from tinyaot.ops.core import Mode, Primitive, mode
from tinyaot.recorder import Recorder
from tinyaot.shapes import Shape, TensorType, bfloat16, scalar_dtype
from tinyaot.tape import edge_key, enable_grad, no_grad, nodes_between, quiet, walk
from tinyaot.tensor import Edge, NotKept, SavedHandle, Tensor

_SILENT = frozenset({"view", "leaf", "concat", "random"})  # kinds that raise no FP warning


class EagerEngine(Recorder):
    """Gives primitives their NumPy meaning, and backward its walk over the tape."""

    def bind(
        self, primitive: Primitive, operands: tuple[Any, ...], attrs: dict[str, Any]
    ) -> Tensor:
        arrays = [x._data if isinstance(x, Tensor) else _weak(x, operands) for x in operands]
        try:
            if mode.quiet or primitive.kind in _SILENT:
                data = primitive.array(*arrays, **attrs)
            else:
                with np.errstate(all="ignore"):
                    data = primitive.array(*arrays, **attrs)
        except Exception as error:
            self.explain(primitive, operands, attrs, error)
            raise
        if type(data) is not np.ndarray:
            data = np.asarray(data)
        if primitive.kind == "view":
            base = operands[0]
            if primitive.name == "detach":
                return self.detach(base)
            # A reshape that strides forbid is a copy; only rules and composites ask for one.
            same = primitive.name != "reshape" or not data.size
            if same or np.may_share_memory(data, arrays[0]):
                return self.view(primitive, base, attrs, data)
        if (
            not data.flags.c_contiguous
        ):  # NumPy follows its operands' order; only views have another
            data = np.ascontiguousarray(data)
        out = Tensor(data)
        if mode.grad_enabled:
            self.record(primitive, operands, attrs, out)
        return out

    def explain(
        self, primitive: Primitive, operands: Sequence[Any], attrs: dict[str, Any], error: Exception
    ) -> None:
        """Raise the type rule's error, which names the op and the shapes, if it has one."""
        if isinstance(error, TinyaotError):
            return
        types = []
        for x in operands:
            if isinstance(x, Tensor):
                if x.is_traced:
                    raise TraceError(
                        f"{primitive.name}: a traced tensor was used outside its trace; return it "
                        f"from the compiled function instead of storing it"
                    ) from None
                types.append(x.type)
            elif isinstance(x, (bool, int, float)):
                types.append(TensorType(scalar_dtype(x), ()))
            else:
                raise DTypeError(
                    f"{primitive.name}: {type(x).__name__} is not an operand; make it a tensor"
                ) from None
        dtyped = [x.dtype for x in operands if isinstance(x, Tensor)]
        if dtyped:  # scalars are weak
            types = [
                t if isinstance(x, Tensor) else TensorType(dtyped[-1], ())
                for t, x in zip(types, operands, strict=True)
            ]
        try:
            primitive.infer(types, attrs)
        except TinyaotError as better:
            raise better from None

    def save(self, tensor: Tensor, edge: Edge) -> SavedHandle:
        return tensor._history.get_storage().save(tensor._data, edge)

    # ---- state ----------------------------------------------------------------------------------

    def get_grad(self, tensor: Tensor) -> Tensor | None:
        grad = tensor._grad
        if isinstance(grad, NotKept):
            raise GradError(
                "grad: the compiled step did not keep gradients (so that an update can be computed "
                "where its gradient is); compile it with keep_grads=True"
            )
        return grad

    def set_grad(self, tensor: Tensor, value: Tensor | None) -> None:
        tensor._grad = value

    def detach(self, tensor: Tensor) -> Tensor:
        out = Tensor.__new__(Tensor)
        out._data = tensor._data
        out._grad = None
        return self._cut(out, tensor)

    def concrete(self, tensor: Tensor, what: str) -> np.ndarray:
        data = tensor._data
        if not isinstance(data, np.ndarray):
            raise TraceError(
                f"{what}: this tensor was traced and has no value outside its trace; return it "
                f"from the compiled function instead of storing it"
            )
        return data

    def literal(self, array: np.ndarray) -> Tensor:
        return Tensor(array)

    def random_bits(self, shape: Shape) -> Tensor:
        generator = random.generator
        return Tensor(ops.philox(generator.seed, generator.take(), shape))

    def hyper(self, owner: Any, name: str) -> Any:
        return vars(owner)[name]

    def touch_hyper(self, owner: Any, name: str, assigned: bool) -> None:
        """A hyperparameter is read as a number, or set: nothing to eager, much to a trace."""

    def write(self, dst: Tensor, src: Tensor) -> None:
        self.check_write(dst, src)
        storage = dst._history.storage
        if storage is not None:
            storage.before_write(dst._data)
        target = dst._data
        if not target.flags.writeable:  # a broadcast view that repeats nothing
            target = target.view()
            target.flags.writeable = True
        np.copyto(target, src._data)
        if mode.grad_enabled:
            self.rebase(dst, src)

    # ---- backward -------------------------------------------------------------------------------

    def _seed(self, output: Tensor, cotangent: Tensor | None) -> Tensor:
        if cotangent is not None:
            return cotangent
        return Tensor(np.ones(output.shape, output.dtype.numpy))

    def backward(
        self, tensor: Tensor, gradient: Tensor | None, retain_graph: bool, create_graph: bool
    ) -> None:
        """Accumulate into `.grad` of every leaf, and of retained non-leaf tensors; of none, if the
        walk ends in an error."""
        edge = self.start(tensor, gradient, "backward")
        seed = self._seed(tensor, gradient)
        taken = {id(seed._history.get_storage())}  # bytes that something else may hold
        found: list[tuple[Tensor, Tensor]] = []

        def deliver(edge: Edge, cotangent: Tensor) -> None:
            if isinstance(edge, Tensor):  # it may have stopped to require grad meanwhile
                leaf: Tensor | None = edge if edge._history.requires_grad else None
            else:
                assert edge is not None
                retained = edge[0].retained
                leaf = retained[edge[1]]() if retained and edge[1] in retained else None
            if leaf is not None:
                found.append((leaf, cotangent))

        with quiet(), enable_grad() if create_graph else no_grad():
            walk([(edge, seed)], deliver, retain_graph, create_graph)
            if any(isinstance(leaf._grad, NotKept) for leaf, _ in found):
                raise GradError(
                    "backward: the compiled step before this did not keep gradients, to which new "
                    "ones are added; call zero_grad() first, or compile it with keep_grads=True"
                )
            for leaf, cotangent in found:
                self._accumulate(leaf, cotangent, create_graph, taken)

    def _accumulate(
        self, leaf: Tensor, cotangent: Tensor, create_graph: bool, taken: set[int]
    ) -> None:
        have = leaf._grad
        if isinstance(have, Tensor):
            if create_graph:
                leaf._grad = ops.add(have, cotangent)
            else:
                with no_grad():
                    self.write(have, ops.add(have, cotangent))
            return
        leaf._grad = self._own(cotangent, taken)

    def _own(self, cotangent: Tensor, taken: set[int]) -> Tensor:
        """A cotangent may be shared (both operands of an add get the same one), or be a view of
        another: each gradient that is given away gets bytes of its own, in C order."""
        token = id(cotangent._history.get_storage())
        if token in taken or cotangent._chain or not cotangent.is_contiguous():
            cotangent = ops.copy(cotangent)
        taken.add(token)
        return cotangent

    def grad(
        self,
        outputs: Sequence[Tensor],
        inputs: Sequence[Tensor],
        cotangents: Sequence[Tensor | None],
        retain_graph: bool,
        create_graph: bool,
    ) -> list[Tensor | None]:
        """The cotangents of `inputs`; None where the outputs do not depend on one."""
        roots = [
            (self.start(y, c, "grad"), self._seed(y, c))
            for y, c in zip(outputs, cotangents, strict=True)
        ]
        targets = [self.edge(x) for x in inputs]
        only, _ = nodes_between([e for e, _ in roots], targets)
        found: dict[Any, Tensor] = {}
        keys = {edge_key(t) for t in targets}
        taken = {id(seed._history.get_storage()) for _, seed in roots}

        def deliver(edge: Edge, cotangent: Tensor) -> None:
            if edge_key(edge) in keys:
                found[edge_key(edge)] = self._own(cotangent, taken)

        with quiet(), enable_grad() if create_graph else no_grad():
            walk(roots, deliver, retain_graph, create_graph, only)
        return [found.get(edge_key(t)) if t is not None else None for t in targets]


def _weak(x: Any, operands: tuple[Any, ...]) -> Any:
    """A Python scalar for NumPy, to which a float beside bfloat16 (of ml_dtypes) is float32."""
    if isinstance(x, float) and any(
        isinstance(t, Tensor) and t.dtype is bfloat16 for t in operands
    ):
        return bfloat16.numpy.type(x)
    return x


def install() -> EagerEngine:
    """Make the eager engine the default of this and every later thread."""
    engine = EagerEngine()
    Mode.default = engine
    mode.engine = engine
    return engine
