"""A compiled function on the eager tape: one node, whose backward is the compiled backward half.

Eager would have a node for each op, and a backward from some of the results visits some of them.
So that nobody can tell the difference, the node knows for each result which inputs it depends on
and which saving ops a backward from it goes through: inputs that are not reached get no gradient,
and only what was used up cannot be used again. Where some results get no cotangent, a backward
without their part is compiled, since nothing is not the same as zeros (0 * inf).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tinyaot.errors import GradError
from tinyaot.ir import Output, Value
from tinyaot.shapes import TensorType
from tinyaot.tape import TapeNode
from tinyaot.tensor import Edge, SavedHandle, Tensor


class Executable(Protocol):
    """What a backend makes of a planned Program: entries "step", or "forward" and "backward".

    It may have two methods more, as the C backend's: `lines`, a run as text for a steady call, and
    `idle`, a while in which runs compute nothing.
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
    """What a differentiable result depends on: inputs, by position, and ops of the trace that save
    something for backward, each with the inputs that it leads to (as bits)."""

    inputs: frozenset[int]
    saving: Mapping[int, int]


class Backward:
    """The backward half of a program, whole and without the part of some cotangents.

    `gradients`: which input each gradient of the whole is of; `uses`: for each cotangent;
    `narrow(used)`: compile the half for the cotangents at the positions `used`.
    """

    def __init__(
        self,
        executable: Executable,
        gradients: Sequence[int],
        uses: Sequence[Uses],
        narrow: Callable[[frozenset[int]], Executable],
    ) -> None:
        self.gradients = gradients
        self.uses = uses
        self._executable = executable
        self._narrow = narrow
        self._narrowed: dict[frozenset[int], Executable] = {}

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
        """Whether every backward would go through one of these saving ops."""
        for use in self.uses:
            blocked = 0
            for op, leads in use.saving.items():
                blocked |= leads if op in ops else 0
            if any(not blocked >> i & 1 for i in use.inputs):
                return False
        return True

    def run(
        self, kept: Sequence[np.ndarray], cotangents: dict[int, np.ndarray]
    ) -> dict[int, np.ndarray]:
        """Gradients by input. `kept`: what the whole takes, but the cotangents."""
        if not self.gradients:
            return {}
        if len(cotangents) == len(self.uses):
            given = [cotangents[k] for k in range(len(self.uses))]
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
        found = narrowed.run("step", [arrays[v.id] for v in narrowed.inputs("step")])
        of = [o.of for o in self._executable.outputs("backward")]
        position = dict(zip(of, self.gradients, strict=True))
        return {
            position[int(o.name)]: a for o, a in zip(narrowed.outputs("step"), found, strict=True)
        }


class CompiledNode(TapeNode):
    """A call of a compiled function: its backward half, with what the forward saved.

    `targets`: the inputs that the edges lead to, with their types.
    """

    __slots__ = ("backward", "kept", "targets", "types", "used", "used_up", "wanted")
    name = "compiled"

    def __init__(
        self,
        backward: Backward,
        edges: Sequence[Edge],
        targets: Sequence[tuple[int, TensorType]],
        kept: list[Any],
    ) -> None:
        super().__init__(edges, saves=True)
        self.backward = backward
        self.targets = targets
        self.kept = kept  # what the backward takes: inputs it reads, then saved values
        self.types: list[TensorType] = []  # of the cotangents
        self.used: frozenset[int] = frozenset()  # saving ops that the last backward went through
        self.used_up: frozenset[int] = frozenset()  # ... and those that were freed
        self.wanted = -1  # inputs whose gradients the coming backward is for, as bits

    def edges_from(self, index: int) -> Sequence[Edge]:
        inputs = self.backward.uses[index].inputs
        return [e for e, (i, _) in zip(self.edges, self.targets, strict=True) if i in inputs]

    def limit(self, wanted: list[bool] | None) -> None:
        self.wanted = -1
        if wanted is not None:
            positions = [i for (i, _), w in zip(self.targets, wanted, strict=True) if w]
            self.wanted = sum(1 << i for i in positions)

    def check_alive(self) -> None:
        """`pull` does this, which knows where the backward comes from."""

    def pull(self, cotangents: list[Tensor | None], create_graph: bool) -> Sequence[Tensor | None]:
        given = {
            k: np.array(c._data, order="C", copy=None)
            for k, c in enumerate(cotangents)
            if c is not None
        }
        self.used = self.backward.saving(given, self.wanted)
        if not self.used_up.isdisjoint(self.used):
            super().check_alive()
        if create_graph:
            raise GradError(
                "differentiating twice across the boundary of a compiled function: its backward is "
                "compiled, too; call grad(create_graph=True) inside the compiled function"
            )
        kept = [x.array if isinstance(x, SavedHandle) else x for x in self.kept]
        found = self.backward.run(kept, given)
        reached = self.backward.reached(given)
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


class FreedNode(TapeNode):
    """The history of a result whose graph a backward inside the compiled function used up."""

    __slots__ = ()
    name = "compiled"

    def __init__(self, edges: Sequence[Edge]) -> None:
        super().__init__(edges, saves=True)
        self.freed = True
