"""One compiled version of a function: when it may be used, and how a call of it runs.

A specialisation is right for a call when its guards hold: the same containers and static values, the
same tensor types, strides, requires_grad and sharing among arguments, the same grad mode, and
nothing in reach that was guarded has changed. A call then reads the inputs anew, runs the
program, and puts everything where eager would have left it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, cast

import numpy as np

from tinyaot import random
from tinyaot.capture import Capture, Ref, Result, replay
from tinyaot.errors import GradError
from tinyaot.ir import Output, Value
from tinyaot.ops.core import mode
from tinyaot.overlap import overlapping
from tinyaot.record import Record
from tinyaot.recorder import Recorder
from tinyaot.shapes import TensorType, numpy_to_dtype
from tinyaot.state import SCALARS, same_scalar
from tinyaot.tape import TapeNode
from tinyaot.tensor import NOT_KEPT, Edge, SavedHandle, Tensor, base_of
from tinyaot.tree import leaves, structure


class Executable(Protocol):
    """What a backend makes of a planned Program: entries "step", or "forward" and "backward"."""

    def inputs(self, entry: str) -> list[Value]:
        """What `run(entry, ...)` takes: a backward takes the inputs it reads, the saved values,
        and the cotangents."""
        ...

    def outputs(self, entry: str) -> list[Output]:
        """What `run(entry, ...)` gives: a backward its gradients, a forward the other outputs."""
        ...

    def run(self, entry: str, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run once. Outputs are fresh at every call; mutated inputs are written in place."""
        ...


Bound: TypeAlias = tuple[list[Any], list[Tensor]]  # sources of the inputs, tensor arguments


class TensorGuard:
    """What a tensor input was when it was traced."""

    __slots__ = ("data", "dtype", "requires_grad", "shape", "strides", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        data = tensor._data
        self.shape, self.strides, self.dtype = data.shape, data.strides, data.dtype
        self.requires_grad = _eager().edge(tensor) is not None
        self.tensor: Tensor | None = None  # the last one that passed, with its array
        self.data: np.ndarray | None = None

    def holds(self, tensor: Any) -> bool:
        """Whether a tensor may stand for the traced one; quick for the one that did last time."""
        if not isinstance(tensor, Tensor):
            return False
        data = tensor._data
        if tensor._chain or tensor._history.edge is not None:
            if (_eager().edge(tensor) is not None) != self.requires_grad:
                return False
        elif tensor._history.requires_grad != self.requires_grad:
            return False
        if tensor is self.tensor and data is self.data:
            return True
        if data.shape != self.shape or data.dtype != self.dtype or data.strides != self.strides:
            return False
        self.tensor, self.data = tensor, data
        return True

    def mismatch(self, tensor: Any, name: str) -> str:
        """How a tensor that does not pass differs, in words."""
        if not isinstance(tensor, Tensor):
            return f"{name} is no tensor any more but {type(tensor).__name__}"
        was = TensorType(numpy_to_dtype(self.dtype), self.shape)
        if tensor.type != was:
            return f"{name} is {tensor.type}, was {was}"
        if (_eager().edge(tensor) is not None) != self.requires_grad:
            now = "does not require grad" if self.requires_grad else "requires grad"
            return f"{name} {now} now"
        return f"{name} has other strides"


def _eager() -> Recorder:
    return cast(Recorder, mode.default)


class Specialization:
    """A captured and compiled function for one key."""

    def __init__(
        self,
        captured: Capture,
        executable: Executable,
        record: Record,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self.captured = captured
        self.executable = executable
        self.record = record
        self.grad_mode = mode.grad_enabled
        self.structure = structure((args, kwargs))
        self.statics = [x for _, x in leaves((args, kwargs)) if not isinstance(x, Tensor)]
        self.guards: dict[int, TensorGuard] = {
            i: TensorGuard(lifted.source)
            for i, lifted in enumerate(captured.inputs)
            if isinstance(lifted.source, Tensor)
        }
        positions = {x.value.id: i for i, x in enumerate(captured.inputs)}
        outputs = captured.program.outputs
        self.user_outputs = [o for o in outputs if o.role == "user"]
        self.mutated = [
            (positions[o.of], o.requires_grad)
            for o in outputs
            if o.role == "mutated" and o.of is not None
        ]
        self._written = {position for position, _ in self.mutated}
        self._known_apart: list[np.ndarray] = []  # arrays last found to share nothing written
        if not captured.whole_step:
            read = {v.id for v in executable.inputs("backward")}
            self.backward_reads = [positions[i] for i in positions if i in read]
            self.gradients = [
                positions[o.of] for o in executable.outputs("backward") if o.of is not None
            ]
            self.zeros = sorted(captured.depends - set(self.gradients))

    # ---- is it right for this call? -------------------------------------------------------------

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Bound | str:
        """The source of every input for this call, and the tensor arguments; or, in words, why
        this specialisation does not fit."""
        captured = self.captured
        if mode.grad_enabled != self.grad_mode:
            return "grad mode changed"
        if structure((args, kwargs)) != self.structure:
            return "arguments of another structure"
        flat = [x for _, x in leaves((args, kwargs))]
        tensors = [x for x in flat if isinstance(x, Tensor)]
        statics = [x for x in flat if not isinstance(x, Tensor)]
        for now, then in zip(statics, self.statics, strict=True):
            if now is not then and not (isinstance(then, SCALARS) and same_scalar(now, then)):
                return f"an argument changed from {then!r} to {now!r}"
        changed = captured.reach.changed()
        if changed is not None:
            return changed
        sources: list[Any] = [x.source for x in captured.inputs]
        given: dict[int, Tensor] = {}
        for argument, tensor in zip(captured.arguments, tensors, strict=True):
            if argument.views and tensor._chain != argument.views:
                return "an argument is another view of its base"
            if argument.position not in given or not argument.views:
                given[argument.position] = base_of(tensor) if argument.views else tensor
        for position, tensor in given.items():
            sources[position] = tensor
        for position, slot in captured.slots.items():
            value = slot.read()
            sources[position] = (
                value
                if isinstance(value, Tensor)
                else sources[position]
                if value is getattr(sources[position], "_data", None)
                else value
            )
        for position, guard in self.guards.items():
            if not guard.holds(sources[position]):
                return guard.mismatch(sources[position], captured.inputs[position].name)
        return self._aliasing(tensors, sources) or (sources, tensors)

    def peek(self, bound: Bound) -> list[np.ndarray]:
        """The arrays of a call's inputs; nothing runs, and no random number is drawn."""
        return self._arrays(bound[0])

    def _aliasing(self, tensors: list[Tensor], sources: list[Any]) -> str | None:
        """Which inputs are the same object is part of the key."""
        for argument, tensor in zip(self.captured.arguments, tensors, strict=True):
            source = sources[argument.position]
            if source._history is not tensor._history or not (argument.views or source is tensor):
                return "arguments that were one tensor are two"
        inputs = [sources[i] for i in self.guards]
        if len({id(t) for t in inputs}) != len(inputs):
            return "inputs that were distinct are one tensor"
        if self.mutated:
            arrays = [t._data for t in inputs]
            if not self._known_apart or any(
                a is not b for a, b in zip(arrays, self._known_apart, strict=True)
            ):
                if overlapping(inputs, [i in self._written for i in self.guards]):
                    return "inputs share memory that did not"
                self._known_apart = arrays
        for position in self.captured.none_grads:
            if sources[position]._grad is not None:
                return f"{self.captured.inputs[position].name}.grad is not None any more"
        return None

    # ---- a call ---------------------------------------------------------------------------------

    def __call__(self, bound: Bound) -> Any:
        sources, tensors = bound
        captured = self.captured
        arrays = self._arrays(sources)
        for position, _ in self.mutated:
            storage = sources[position]._history.storage
            if storage is not None:
                storage.before_write(sources[position]._data)
        if captured.whole_step:
            outputs = [Tensor(a) for a in self._user_arrays("step", arrays)[0]]
        else:
            outputs = self._forward(sources, arrays)
        return self._finish(sources, tensors, outputs)

    def _arrays(self, sources: list[Any]) -> list[np.ndarray]:
        generator = random.generator
        arrays: list[np.ndarray] = []
        numbers = iter((generator.seed, generator.draw))
        for lifted, source in zip(self.captured.inputs, sources, strict=True):
            if isinstance(source, Tensor):
                arrays.append(source._data)
            elif lifted.role == "hyper":
                arrays.append(np.array(getattr(*source), np.float64))
            else:
                arrays.append(np.array(next(numbers), np.int64))
        return arrays

    def _user_arrays(
        self, entry: str, arrays: list[np.ndarray]
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Run an entry: the user's outputs, and the saved values."""
        results = self.executable.run(entry, arrays)
        random.generator.draw += self.captured.draws
        roles = [o.role for o in self.executable.outputs(entry)]
        user = [a for a, role in zip(results, roles, strict=True) if role == "user"]
        return user, [a for a, role in zip(results, roles, strict=True) if role == "saved"]

    def _forward(self, sources: list[Any], arrays: list[np.ndarray]) -> list[Tensor]:
        eager = _eager()
        edges = [eager.edge(sources[i]) for i in (*self.gradients, *self.zeros)]
        kept: list[Any] = [
            _save(sources[i], arrays[i]) if isinstance(sources[i], Tensor) else arrays[i]
            for i in self.backward_reads
        ]
        user, saved = self._user_arrays("forward", arrays)
        outputs = [Tensor(a) for a in user]
        given = [*outputs, *(sources[position] for position in self._written)]
        kept += [_save_shared(a, given) for a in saved]
        node = CompiledNode(self, edges, kept)
        made = [t for t, o in zip(outputs, self.user_outputs, strict=True) if o.requires_grad]
        for position, differentiable in self.mutated:
            if differentiable:
                made.append(Tensor(arrays[position]))
        for index, tensor in enumerate(made):
            tensor._history.edge = (node, index)
            tensor._history.requires_grad = True
        node.outputs, node.types = len(made), [t.type for t in made]
        written = iter(made[len(made) - sum(d for _, d in self.mutated) :])
        for position, differentiable in self.mutated:
            if differentiable:
                eager.rebase(sources[position], next(written))
        node.zeros = [sources[i].type for i in self.zeros]
        return outputs

    def _finish(self, sources: list[Any], tensors: list[Tensor], outputs: list[Tensor]) -> Any:
        captured = self.captured
        for index in captured.leaves:
            outputs[index].requires_grad_()
        given: dict[str, Sequence[Any]] = {"input": sources, "argument": tensors, "output": outputs}
        results: dict[int, Tensor] = {}
        for index in range(len(captured.results)):
            self._make(index, given, results)
        for slot, index in captured.rebinds:
            slot.write(results[index])
        for position, kept in captured.grads:
            tensor: Tensor = sources[position]
            if kept is None:
                tensor._grad = None
            elif kept < 0:
                tensor._grad = NOT_KEPT
            else:
                tensor._grad = results[kept]
        return _fill(captured.tree, results)

    def _make(
        self, index: int, given: dict[str, Sequence[Any]], results: dict[int, Tensor]
    ) -> Tensor:
        """A returned tensor; one that is a view of another after that one."""
        if index not in results:
            r = self.captured.results[index]
            if r.kind == "result":
                source = self._make(r.index, given, results)
            else:
                source = given[r.kind][r.index]
            results[index] = self._result(r, source)
        return results[index]

    def _result(self, result: Result, tensor: Tensor) -> Tensor:
        if result.freed and _eager().edge(tensor) is None:
            tensor._history.edge = (FreedNode(()), 0)
            tensor._history.requires_grad = True
        made = replay(tensor, result.views)
        return made.requires_grad_() if result.leaf else made


def _save(tensor: Tensor, array: np.ndarray) -> SavedHandle:
    """A handle that keeps the value across later writes to the tensor."""
    return tensor._history.get_storage().save(array, None)


def _save_shared(array: np.ndarray, outputs: list[Tensor]) -> Any:
    """A saved value; by handle if it is an output or an overwritten input, too: the caller may
    write those."""
    for output in outputs:
        if np.may_share_memory(array, output._data):
            return _save(output, array)
    return array


def _fill(tree: Any, results: dict[int, Tensor]) -> Any:
    """The returned containers, with tensors in them."""
    if isinstance(tree, Ref):
        return results[tree.index]
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(_fill(x, results) for x in tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(_fill(x, results) for x in tree)
    if isinstance(tree, dict):
        return type(tree)((k, _fill(x, results)) for k, x in tree.items())
    return tree


class CompiledNode(TapeNode):
    """A compiled function on the eager tape: its backward half, with what the forward saved."""

    __slots__ = ("kept", "specialization", "types", "zeros")
    name = "compiled"

    def __init__(
        self, specialization: Specialization, edges: Sequence[Edge], kept: list[Any]
    ) -> None:
        super().__init__(edges, saves=specialization.captured.saves)
        self.specialization = specialization
        self.kept = kept  # what the backward takes: inputs it reads, then saved values
        self.types: list[TensorType] = []  # of the cotangents
        self.zeros: list[TensorType] = []  # of inputs that the outputs depend on, with gradient 0

    def pull(self, cotangents: list[Tensor | None], create_graph: bool) -> Sequence[Tensor | None]:
        if create_graph:
            raise GradError(
                "differentiating twice across the boundary of a compiled function: its backward is "
                "compiled, too; call grad(create_graph=True) inside the compiled function"
            )
        given = [
            np.zeros(t.shape, t.dtype.numpy)
            if c is None
            else np.array(c._data, order="C", copy=None)
            for c, t in zip(cotangents, self.types, strict=True)
        ]
        taken = [x.array if isinstance(x, SavedHandle) else x for x in self.kept]
        found = self.specialization.executable.run("backward", taken + given)
        return [Tensor(g) for g in found] + [
            Tensor(np.zeros(t.shape, t.dtype.numpy)) for t in self.zeros
        ]

    def free(self) -> None:
        super().free()
        if self.saves:
            self.kept = []


class FreedNode(TapeNode):
    """The history of a result whose graph a backward inside the compiled function used up."""

    __slots__ = ()
    name = "compiled"

    def __init__(self, edges: Sequence[Edge]) -> None:
        super().__init__(edges, saves=True)
        self.freed = True
