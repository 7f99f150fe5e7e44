"""A compiled function on the eager tape: one node, whose backward is the compiled backward half.

Eager would have a node for each op, and a backward from some of the results visits some of them.
So that nobody can tell the difference, the node knows for each result which inputs it depends on
and which saving ops a backward from it goes through: inputs that are not reached get no gradient,
and only what was used up cannot be used again. Where some results get no cotangent, a backward
without their part is compiled, since nothing is not the same as zeros (0 * inf).
"""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tinyaot.errors import GradError
from tinyaot.ir import Output, Value
from tinyaot.shapes import TensorType
from tinyaot.tape import INSIDE, TapeNode
from tinyaot.tensor import Edge, SavedHandle, Tensor


class Executable(Protocol):
    """What a backend makes of a planned Program: entries "step", or "forward" and "backward".

    It may have more methods, as the C backend's: for a steady call `watch`, which takes guards, and
    `lines`, a run as text that looks at them first; and `idle`, a while in which runs compute
    nothing.
    """

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


@dataclass(frozen=True, slots=True)
class Uses:
    """What a differentiable result depends on: inputs, by position; ops of the trace that save
    something for backward, each with the inputs that it leads to (as bits); and what else the call
    hands out that it was computed from: returned tensors, and inputs that were written."""

    inputs: frozenset[int]
    saving: Mapping[int, int]
    returned: frozenset[int] = frozenset()
    written: frozenset[int] = frozenset()

    def blocked(self, ops: Collection[int]) -> bool:
        """Whether every backward from here that reads saved values goes through one of these ops,
        and there is one."""
        met = [leads for op, leads in self.saving.items() if op in ops]
        return bool(met) and union(met) == union(self.saving.values())

    @property
    def linear(self) -> frozenset[int]:
        """The inputs to which a backward reads nothing that was saved."""
        led_to = union(self.saving.values())
        return frozenset(i for i in self.inputs if not led_to >> i & 1)


def union(sets: Iterable[int]) -> int:
    """Of sets of bits."""
    return functools.reduce(operator.or_, sets, 0)


class Backward:
    """The backward half of a program, whole and without the part of some cotangents.

    `gradients`: which input each gradient of the whole is of; `uses`: for each cotangent; `dead`:
    for results whose backward goes through ops that a backward inside the function `freed`, but
    for what reads nothing saved; `narrow(used)`: compile the half for the cotangents at the
    positions `used`; `linear(k)`: compile what reads nothing saved, of one of the `dead`.
    """

    def __init__(
        self,
        executable: Executable,
        gradients: Sequence[int],
        uses: Sequence[Uses],
        dead: Sequence[Uses],
        freed: frozenset[int],
        narrow: Callable[[frozenset[int]], Executable],
        linear: Callable[[int], Executable],
    ) -> None:
        self.gradients = gradients
        self.uses = [*uses, *dead]
        self.cotangents = len(uses)
        self.freed = freed
        self._executable = executable
        self._narrow = narrow
        self._narrowed: dict[frozenset[int], Executable] = {}
        self._make_linear = functools.cache(linear)

    def reached(self, used: Iterable[int]) -> frozenset[int]:
        """The inputs that get a gradient, if only of zeros."""
        return frozenset().union(*(self.uses[k].inputs for k in used))

    def saving(self, used: Iterable[int], wanted: int) -> frozenset[int]:
        """The saving ops that a backward goes through to the wanted inputs (bits; -1: to all, and
        to leaves made inside)."""
        return frozenset(
            op
            for k in used
            for op, leads in self.uses[k].saving.items()
            if wanted < 0 or leads & wanted
        )

    def all_used_up(self, ops: frozenset[int]) -> bool:
        """Whether every backward of the program would go through one of these saving ops."""
        return all(use.blocked(ops) and not use.linear for use in self.uses[: self.cotangents])

    def run(
        self, kept: Sequence[np.ndarray], cotangents: dict[int, np.ndarray]
    ) -> dict[int, np.ndarray]:
        """Gradients by input. `kept`: what the whole takes, but the cotangents."""
        if not self.gradients or not cotangents:
            return {}
        if len(cotangents) == self.cotangents:
            given = [cotangents[k] for k in range(self.cotangents)]
            found = self._executable.run("backward", [*kept, *given])
            return dict(zip(self.gradients, found, strict=True))
        used = frozenset(cotangents)
        if used not in self._narrowed:
            self._narrowed[used] = self._narrow(used)
        narrowed = self._narrowed[used]
        takes = self._executable.inputs("backward")
        arrays = {v.id: a for v, a in zip(takes, kept, strict=False)}
        seeds = takes[len(kept) :]
        arrays.update({seeds[k].id: a for k, a in cotangents.items()})
        inputs = narrowed.inputs("step")
        for v in inputs:
            # What the whole does not take is read for results without elements only.
            if v.id not in arrays:
                arrays[v.id] = np.zeros(v.type.shape, v.type.dtype.numpy)
        found = narrowed.run("step", [arrays[v.id] for v in inputs])
        of = [o.of for o in self._executable.outputs("backward")]
        position = dict(zip(of, self.gradients, strict=True))
        return {
            position[int(o.name)]: a for o, a in zip(narrowed.outputs("step"), found, strict=True)
        }

    def run_linear(self, k: int, cotangent: np.ndarray) -> dict[int, np.ndarray]:
        """Gradients of one result by the inputs to which that reads nothing saved."""
        linear = self._make_linear(k - self.cotangents)
        found = linear.run("step", [cotangent] * len(linear.inputs("step")))
        return {int(o.name): a for o, a in zip(linear.outputs("step"), found, strict=True)}


class CompiledNode(TapeNode):
    """A call of a compiled function: its backward half, with what the forward saved.

    `targets`: the inputs that the edges lead to, with their types. `hidden`: for each result the
    edges of others that it was computed from, as (tape node or leaf, index).
    """

    __slots__ = ("backward", "hidden", "kept", "targets", "used", "used_up", "wanted")
    name = "compiled"

    def __init__(
        self,
        backward: Backward,
        edges: Sequence[Edge],
        targets: Sequence[tuple[int, TensorType]],
        kept: list[Any],
    ) -> None:
        super().__init__(edges, saves=True, outputs=len(backward.uses))
        self.backward = backward
        self.targets = targets
        self.kept = kept  # what the backward takes: inputs it reads, then saved values
        self.hidden: list[list[tuple[weakref.ref[Any], int]]] = [[]] * self.outputs
        self.used: frozenset[int] = frozenset()  # saving ops that the last backward went through
        self.used_up = backward.freed  # ... and those that were freed
        self.wanted = -1  # inputs whose gradients the coming backward is for, as bits

    def edges_from(self, index: int) -> Sequence[Edge]:
        inputs = self.backward.uses[index].inputs
        return [e for e, (i, _) in zip(self.edges, self.targets, strict=True) if i in inputs]

    def hide(self, index: int, edges: Iterable[Edge]) -> None:
        """A backward from one result would go through these edges, inside."""
        pairs = [e if isinstance(e, tuple) else (e, -1) for e in edges]
        self.hidden[index] = [(weakref.ref(at), i) for at, i in pairs]

    def hides(self, index: int) -> Collection[Any]:
        found = ((ref(), i) for ref, i in self.hidden[index])
        return [id(at) if i < 0 else (at.seq, i) for at, i in found if at is not None]

    def _check_hidden(self, indices: Iterable[int]) -> None:
        """Raise GradError if a tensor that wants its gradient would get it from inside."""
        for ref, i in (pair for k in indices for pair in self.hidden[k]):
            at = ref()
            kept = None if at is None or i < 0 else (at.retained or {}).get(i)
            if (at is not None and i < 0) or (kept is not None and kept() is not None):
                raise GradError(INSIDE)

    def limit(self, wanted: list[bool] | None) -> None:
        self.wanted = -1
        if wanted is not None:
            positions = [i for (i, _), w in zip(self.targets, wanted, strict=True) if w]
            self.wanted = sum(1 << i for i in positions)

    def check_alive(self) -> None:
        """`pull` does this, which knows where the backward comes from."""

    def pull(self, cotangents: list[Tensor | None], create_graph: bool) -> Sequence[Tensor | None]:
        arrived = [k for k, c in enumerate(cotangents) if c is not None]
        if self.wanted < 0:
            self._check_hidden(arrived)
        self.used = self.backward.saving(arrived, self.wanted)
        if not self.used_up.isdisjoint(self.used):
            self.freed = True
            super().check_alive()
        if create_graph:
            raise GradError(
                "differentiating twice across the boundary of a compiled function: its backward is "
                "compiled, too; call grad(create_graph=True) inside the compiled function"
            )
        given = {
            k: np.array(c._data, order="C", copy=None)
            for k, c in enumerate(cotangents)
            if c is not None
        }
        dead = {k: given.pop(k) for k in arrived if k >= self.backward.cotangents}
        kept = [x.array if isinstance(x, SavedHandle) else x for x in self.kept]
        found = self.backward.run(kept, given)
        for k, cotangent in dead.items():
            linear = self.backward.uses[k].linear
            if any(self.wanted < 0 or self.wanted >> i & 1 for i in linear):
                for i, a in self.backward.run_linear(k, cotangent).items():
                    found[i] = np.asarray(found[i] + a) if i in found else a  # 0-d sums are scalars
        reached = self.backward.reached(arrived)
        return [
            None
            if position not in reached
            else Tensor(found[position])
            if position in found
            else Tensor(np.zeros(type_.shape, type_.dtype.numpy))
            for position, type_ in self.targets
        ]

    def free(self) -> None:
        super().free()
        self.used_up |= self.used
        if self.backward.all_used_up(self.used_up):
            self.kept = []
