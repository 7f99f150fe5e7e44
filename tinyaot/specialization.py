"""One compiled version of a function: when it may be used, and how a call of it runs.

A specialisation is right for a call when its guards hold: the same containers and static values,
the same tensor types, strides, requires_grad and sharing among arguments, the same grad mode, and
nothing in reach that was guarded has changed. A call then reads the inputs anew, runs the
program, and puts everything where eager would have left it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from tinyaot import random
from tinyaot.capture import Capture
from tinyaot.errors import TraceError
from tinyaot.guards import MISS, TensorGuard, Unread
from tinyaot.halves import Backward, CompiledNode, Executable
from tinyaot.ops.core import mode
from tinyaot.overlap import overlapping, siblings
from tinyaot.record import Record
from tinyaot.recorder import eager
from tinyaot.results import Result, replay
from tinyaot.slots import SCALARS, same_scalar
from tinyaot.tape import nodes_between
from tinyaot.tensor import NOT_KEPT, Edge, History, SavedHandle, Tensor, base_of
from tinyaot.tree import fill, leaves, structure

NUMBERS = (int, float, np.integer, np.floating)  # that a hyperparameter may be
Bound: TypeAlias = tuple[list[Any], list[Tensor]]  # sources of the inputs, tensor arguments


def never(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The steady call of a specialisation that has none: a miss."""
    return MISS


class Specialization:
    """A captured and compiled function for one key."""

    def __init__(
        self,
        captured: Capture,
        executable: Executable,
        record: Record,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        narrow: Callable[[frozenset[int]], Executable],
        linear: Callable[[int], Executable],
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
        inputs = [captured.inputs[i].source for i in self.guards]
        self.unread = Unread(captured.reach.unread, inputs)
        positions = {x.value.id: i for i, x in enumerate(captured.inputs)}
        outputs = captured.program.outputs
        self.user_outputs = [o for o in outputs if o.role == "user"]
        self.mutated = [
            (positions[o.of], o.requires_grad)
            for o in outputs
            if o.role == "mutated" and o.of is not None
        ]
        self._written = {position for position, _ in self.mutated}
        self._recorded = [i in captured.recorded for i in self.guards]
        # Views may not stand for what got a `.grad`, is a base of views, or was detach_ed.
        special = {i for i, _ in captured.grads} | {*captured.detached}
        special |= {a.position for a in captured.arguments if a.views}
        self._whole = [i for i in special if not captured.inputs[i].source._chain]
        self._known_apart: list[weakref.ref[np.ndarray]] = []  # that share nothing written
        gives = [o.role for o in executable.outputs("forward" if captured.joint else "step")]
        self.user_at = [i for i, role in enumerate(gives) if role == "user"]
        self._saved_at = [i for i, role in enumerate(gives) if role == "saved"]
        self.steady: Callable[..., Any] = never  # see `steady`
        self.steady_tries = 0
        self.numbers = [  # inputs that are no tensors: where a call reads them
            (i, x.source, x.value.type.dtype.numpy)
            for i, x in enumerate(captured.inputs)
            if not isinstance(x.source, Tensor)
        ]
        self.backward_reads: list[int] = []
        gradients: list[int] = []
        if captured.joint:
            read = {v.id for v in executable.inputs("backward")}
            self.backward_reads = [positions[i] for i in positions if i in read]
            gradients = [
                positions[o.of] for o in executable.outputs("backward") if o.of is not None
            ]
        self.backward = Backward(
            executable, gradients, captured.uses, captured.dead, captured.freed, narrow, linear
        )
        self.targets = sorted(self.backward.reached(range(len(self.backward.uses))))
        self._target_types = [(i, captured.inputs[i].value.type) for i in self.targets]
        for i in [*(a.position for a in captured.arguments), *captured.by_grad]:
            captured.inputs[i].source = None  # each call brings its own
        self.hiding = [k for k, u in enumerate(self.backward.uses) if u.returned or u.written]

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
                if isinstance(then, SCALARS) and isinstance(now, SCALARS):
                    return f"an argument changed from {then!r} to {now!r}"
                return (
                    f"an argument is another {type(now).__name__} than the {type(then).__name__} "
                    f"before; tensors that are new at each call go in tuples, lists or dicts"
                )
        changed = captured.reach.changed()
        if changed is not None:
            return changed
        for _, (owner, name), _ in self.numbers:
            if not isinstance(vars(owner).get(name), NUMBERS):
                return f"{name} is no number any more"
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
            if value is not sources[position]._data:  # as a NumPy array in reach is
                sources[position] = value
        for position, k in captured.by_grad.items():
            sources[position] = sources[k]._grad
        for position, guard in self.guards.items():
            if not guard.holds(sources[position]):
                return guard.mismatch(sources[position], captured.inputs[position].name)
        for slot, position in captured.twins:
            held, source = slot.read(), sources[position]
            if held is not source and held is not source._data:
                return f"{slot.path} is another tensor than {captured.inputs[position].name}"
        return self._aliasing(tensors, sources) or (sources, tensors)

    def again(self, sources: list[Any], tensors: list[Tensor]) -> Any:
        """A call that differs from the one with these sources in its tensor arguments alone."""
        sources = sources.copy()
        for argument, tensor in zip(self.captured.arguments, tensors, strict=True):
            sources[argument.position] = tensor
        return self((sources, tensors))

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
                a is not known() for a, known in zip(arrays, self._known_apart, strict=True)
            ):
                if overlapping(inputs, [i in self._written for i in self.guards]):
                    return "inputs share memory that did not"
                self._known_apart = [*map(weakref.ref, arrays)]
            if siblings(inputs, self._recorded):
                return "inputs are views of one tensor that were not"
        for position, k in self.captured.grads_read.items():
            if sources[position]._grad is not (None if k is None else sources[k]):
                was = "None" if k is None else self.captured.inputs[k].name
                return f"{self.captured.inputs[position].name}.grad is not {was} any more"
        for position in self.captured.recorded:
            history = sources[position]._history
            if history.requires_grad and history.edge is None:
                return f"{self.captured.inputs[position].name} is a leaf now, and is written"
        for position in self._whole:
            if sources[position]._chain:
                return f"{self.captured.inputs[position].name} is a view now"
        return self.unread.changed(inputs)

    # ---- a call ---------------------------------------------------------------------------------

    def __call__(self, bound: Bound) -> Any:
        sources, tensors = bound
        captured = self.captured
        if captured.outside:
            self._check_outside(sources)
        arrays = self._arrays(sources)
        for position, _ in self.mutated:
            storage = sources[position]._history.storage
            if storage is not None:
                storage.before_write(sources[position]._data)
            if not arrays[position].flags.writeable:  # a broadcast view that repeats nothing
                arrays[position] = arrays[position].view()
                arrays[position].flags.writeable = True
        edges = [eager().edge(sources[i]) for i in self.targets]  # before anything is written
        node = CompiledNode(self.backward, edges, self._target_types, [])
        if captured.whole_step:
            outputs = [Tensor(a) for a in self._user_arrays("step", arrays)[0]]
        else:
            outputs = self._forward(sources, arrays, node)
        return self._finish(sources, tensors, outputs, node)

    def is_dead_end(self, k: int) -> bool:
        """Whether any backward from a used up result raises: nothing around it is linear."""
        return not self.backward.uses[self.backward.cotangents + k].linear

    def dead_end(self, sources: list[Any], k: int) -> Edge:
        """An edge to a used up result of a call on these inputs."""
        edges = [eager().edge(sources[i]) for i in self.targets]
        node = CompiledNode(self.backward, edges, self._target_types, [])
        return node, self.backward.cotangents + k

    def _check_outside(self, sources: list[Any]) -> None:
        """A gradient inside the function by one argument cannot see that another was computed from
        it outside: refuse what would leave that path out."""
        edge = eager().edge
        for through, by in self.captured.outside:
            if nodes_between([edge(sources[through])], [edge(sources[by])])[1][0]:
                name, other = (self.captured.inputs[i].name for i in (by, through))
                raise TraceError(
                    f"grad() by {name} inside a compiled function reaches an argument that was "
                    f"computed outside it from {name}: {other}; compute {other} inside, or "
                    f"detach() it"
                )

    def _arrays(self, sources: list[Any]) -> list[np.ndarray]:
        arrays: list[Any] = [x._data if isinstance(x, Tensor) else None for x in sources]
        for position, (owner, name), dtype in self.numbers:
            arrays[position] = np.array(vars(owner)[name], dtype)
        return arrays

    def _user_arrays(
        self, entry: str, arrays: list[np.ndarray]
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Run an entry: the user's outputs, and the saved values."""
        results = self.executable.run(entry, arrays)
        random.generator.take(self.captured.draws)
        return [results[i] for i in self.user_at], [results[i] for i in self._saved_at]

    def _forward(
        self, sources: list[Any], arrays: list[np.ndarray], node: CompiledNode
    ) -> list[Tensor]:
        node.kept = [
            _save(sources[i], arrays[i]) if isinstance(sources[i], Tensor) else arrays[i]
            for i in self.backward_reads
        ]
        user, saved = self._user_arrays("forward" if self.captured.joint else "step", arrays)
        outputs = [Tensor(a) for a in user]
        given = [*outputs, *(sources[position] for position in self._written)]
        node.kept += [_save_shared(a, given) for a in saved]
        made = [t for t, o in zip(outputs, self.user_outputs, strict=True) if o.requires_grad]
        for position, differentiable in self.mutated:
            if differentiable:
                made.append(Tensor(arrays[position]))
        for index, tensor in enumerate(made):
            tensor._history.edge = (node, index)
            tensor._history.requires_grad = True
        written = iter(made[len(made) - sum(d for _, d in self.mutated) :])
        for position, differentiable in self.mutated:
            if differentiable:
                eager().rebase(sources[position], next(written))
        return outputs

    def _finish(
        self, sources: list[Any], tensors: list[Tensor], outputs: list[Tensor], node: CompiledNode
    ) -> Any:
        captured = self.captured
        alive = self.backward.cotangents
        for index in captured.leaves:
            outputs[index].requires_grad_()
        for position, k in captured.dead_inputs.items():
            history: History = sources[position]._history
            history.edge, history.requires_grad = (node, alive + k), True
            history.version += 1
        given: dict[str, Sequence[Any]] = {"input": sources, "argument": tensors, "output": outputs}
        results: dict[int, Tensor] = {}
        for index in range(len(captured.results)):
            self._make(index, given, results, node)
        for k in self.hiding:
            uses = self.backward.uses[k]
            found = [*(results[i] for i in uses.returned), *(sources[i] for i in uses.written)]
            node.hide(k, map(eager().edge, found))
        for slot, index in captured.rebinds:
            slot.write(results[index])
        for slot, value in captured.settings:
            slot.write(value)
        for position, kept in captured.grads:
            tensor: Tensor = sources[position]
            if kept is None:
                tensor._grad = None
            elif kept < 0:
                tensor._grad = NOT_KEPT
            else:
                tensor._grad = results[kept]
        for index, kept in captured.inner_grads:
            results[index]._grad = results[kept]
        for index in captured.retained:
            eager().retain_grad(results[index])
        return fill(captured.tree, results)

    def _make(
        self,
        index: int,
        given: dict[str, Sequence[Any]],
        results: dict[int, Tensor],
        node: CompiledNode,
    ) -> Tensor:
        """A returned tensor; one that is a view of another after that one."""
        if index not in results:
            r = self.captured.results[index]
            if r.kind == "result":
                source = self._make(r.index, given, results, node)
            else:
                source = given[r.kind][r.index]
            results[index] = self._result(r, source, given, node)
        return results[index]

    def _result(
        self,
        result: Result,
        tensor: Tensor,
        given: dict[str, Sequence[Any]],
        node: CompiledNode,
    ) -> Tensor:
        dead: Edge = None
        if result.dead is not None:
            dead = node, self.backward.cotangents + result.dead
        if dead is not None and result.edge is None and eager().edge(tensor) is None:
            tensor._history.edge = dead
            tensor._history.requires_grad = True
        made = replay(tensor, result.views)
        if result.edge is not None:
            eager()._cut(made, made)
            made._history.edge = (
                given["output"][result.edge]._history.edge if dead is None else dead
            )
            made._history.requires_grad = True
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
