"""Eager engines for a part of a program: they know what was made inside it.

`Inside` keeps a part to itself: what it makes may be written, what comes from outside may not.
`Checkpoint` (Chen et al., "Training deep nets with sublinear memory cost", 2016) runs ops and
records them on the tape as ever, but what the tape saves of tensors made inside is only a promise:
it logs the calls of primitives, and replays them when a backward asks. So the tape has the same
nodes in the same order, with the same edges, as without a checkpoint, and gives the same bits. What
a replay reads from outside are saved handles, so that later writes do not reach it; random draws
are repeated by their number. User code runs once.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from tinyaot import ops, random
from tinyaot.eager import EagerEngine
from tinyaot.errors import GradError, MutationError
from tinyaot.ops.core import Primitive, mode, using
from tinyaot.shapes import Shape
from tinyaot.tape import no_grad, quiet
from tinyaot.tensor import Edge, SavedHandle, Tensor, engine


class Inside(EagerEngine):
    """Runs ops for `outer`, the engine that was in force, and knows which tensors it made.

    `pure`: what to call the part in the error of a write to a tensor from outside (empty: writes
    are allowed). `draws`: whether it may draw random numbers.
    """

    def __init__(self, outer: EagerEngine, pure: str = "", draws: bool = True) -> None:
        self.outer = outer
        self.pure = pure
        self.draws = draws
        self.made: dict[int, tuple[weakref.ref[Tensor], int]] = {}  # by id: the tensor, its number
        self.count = 0

    def number(self, tensor: Tensor) -> int | None:
        """Which of the tensors made inside this is; None if it is from outside."""
        entry = self.made.get(id(tensor))
        return entry[1] if entry is not None and entry[0]() is tensor else None

    # ---- what happens inside --------------------------------------------------------------------

    def note(
        self, call: Callable[..., Any], operands: Sequence[Any], out: Tensor, view: bool = False
    ) -> None:
        """`out` was made by a call. A view of something from outside is from outside."""
        if isinstance(self.outer, Inside):
            self.outer.note(call, operands, out, view)
        if view and self.number(operands[0]) is None:
            if not out.size or np.may_share_memory(out._data, operands[0]._data):
                return
        self.made[id(out)] = weakref.ref(out), self.count
        self.count += 1

    def note_write(self, dst: Tensor, src: Tensor) -> None:
        """`src` was written to `dst`."""
        if isinstance(self.outer, Inside):
            self.outer.note_write(dst, src)

    def bind(
        self, primitive: Primitive, operands: tuple[Any, ...], attrs: dict[str, Any]
    ) -> Tensor:
        out = super().bind(primitive, operands, attrs)
        if self.number(out) is None and primitive is not ops.detach:
            self.note(partial(primitive, **attrs), operands, out, primitive.kind == "view")
        return out

    def record(
        self, primitive: Primitive, operands: Sequence[Any], attrs: dict[str, Any], out: Tensor
    ) -> None:
        # Noted first: recording saves it.
        self.note(partial(primitive, **attrs), operands, out, primitive.kind == "view")
        super().record(primitive, operands, attrs, out)

    def detach(self, tensor: Tensor) -> Tensor:
        out = super().detach(tensor)
        self.note(ops.detach, (tensor,), out, True)
        return out

    def random_bits(self, shape: Shape) -> Tensor:
        if not self.draws:
            raise GradError(f"{self.pure} draws random numbers: {DRAW_IN_FORWARD}")
        state = random.generator.get_state()
        out = super().random_bits(shape)
        self.note(partial(_bits, *state, shape), (), out)
        return out

    def save(self, tensor: Tensor, edge: Edge) -> SavedHandle:
        return self.outer.save(tensor, edge)

    def check_write(self, dst: Tensor, src: Tensor) -> None:
        if self.pure and self.number(dst) is None:
            raise MutationError(f"{self.pure} writes in place to {WRITE_OUTSIDE}")
        super().check_write(dst, src)

    def write(self, dst: Tensor, src: Tensor) -> None:
        super().write(dst, src)
        self.note_write(dst, src)


DRAW_IN_FORWARD = "draw them in fwd, and hand them on as residuals"
WRITE_OUTSIDE = "a tensor that was made outside of it: write to a clone(), and return that"


def _bits(seed: int, draw: int, shape: Shape) -> Tensor:
    return Tensor(ops.philox(seed, draw, shape))


# ---- checkpoints --------------------------------------------------------------------------------


class _Made(NamedTuple):
    """An operand of the log: the number of a tensor made inside."""

    number: int


class _Step(NamedTuple):
    """One line of the log: a call and its result's number; a write (no result); or that the tape
    saved the first operand at this point, for a handle (no call)."""

    call: Callable[..., Any] | None
    operands: tuple[Any, ...]  # _Made, SavedHandle of a tensor from outside, or a Python scalar
    result: int | None = None
    handle: weakref.ref[Recomputed] | None = None


class Recomputed(SavedHandle):
    """A handle on a value made in a checkpoint. Each backward reads `array` once, and then it is
    dropped: the next one computes it again."""

    __slots__ = ("checkpoint", "found")

    def __init__(self, checkpoint: Checkpoint, edge: Edge) -> None:
        self.checkpoint = checkpoint
        self.edge = edge
        self.found: SavedHandle | None = None

    @property
    def array(self) -> Any:  # type: ignore[override]
        if self.found is None:
            self.checkpoint.recompute()
        found, self.found = self.found, None
        assert found is not None
        return found.array

    @property
    def storage(self) -> None:  # type: ignore[override]
        """Nobody else has these bytes."""


class Checkpoint(Inside):
    """A checkpoint: it saves what comes from outside, and computes the rest again."""

    def __init__(self, outer: EagerEngine, pure: str = "") -> None:
        super().__init__(outer, pure)
        self.log: list[_Step] = []
        self.given: dict[int, tuple[weakref.ref[Tensor], SavedHandle]] = {}

    def note(
        self, call: Callable[..., Any], operands: Sequence[Any], out: Tensor, view: bool = False
    ) -> None:
        super().note(call, operands, out, view)
        result = self.number(out)
        if result is not None:
            self.log.append(_Step(call, tuple(map(self._operand, operands)), result))

    def note_write(self, dst: Tensor, src: Tensor) -> None:
        super().note_write(dst, src)
        if self.number(dst) is not None:
            self.log.append(_Step(_write, (self._operand(dst), self._operand(src))))
        else:
            self.given.clear()  # what is read from now on may have been written: save it anew

    def save(self, tensor: Tensor, edge: Edge) -> SavedHandle:
        number = self.number(tensor)
        if number is None:
            return super().save(tensor, edge)
        handle = Recomputed(self, edge)
        self.log.append(_Step(None, (_Made(number),), None, weakref.ref(handle)))
        return handle

    def _operand(self, x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        number = self.number(x)
        if number is not None:
            return _Made(number)
        entry = self.given.get(id(x))
        if entry is not None and entry[0]() is x:
            handle = entry[1]
            if isinstance(handle, Recomputed) or handle.array is x._data:
                return handle
        handle = self.outer.save(x, None)
        self.given[id(x)] = weakref.ref(x), handle
        return handle

    # ---- again ----------------------------------------------------------------------------------

    def recompute(self) -> None:
        """Replay the log as far as live handles need it, and give them their values."""
        steps, last = self._needed()
        values: dict[int, Tensor] = {}
        given: dict[int, Tensor] = {}

        def read(x: Any) -> Any:
            if isinstance(x, _Made):
                return values[x.number]
            if isinstance(x, SavedHandle):
                if id(x) not in given:
                    given[id(x)] = Tensor(x.array)
                return given[id(x)]
            return x

        with using(mode.default), no_grad(), quiet():
            for at, step in steps:
                operands = [read(x) for x in step.operands]
                handle = step.handle() if step.handle is not None else None
                if handle is not None:
                    tensor = operands[0]
                    handle.found = tensor._history.get_storage().save(tensor._data, None)
                elif step.call is not None:
                    made = step.call(*operands)
                    if step.result is not None:
                        values[step.result] = made
                for number in last[at]:
                    del values[number]

    def _needed(self) -> tuple[list[tuple[int, _Step]], dict[int, list[int]]]:
        """The steps to take, by position, and which values each is the last to read. What shares
        bytes (views, and what is written to them) counts as one."""
        root: dict[int, int] = {}
        for step in self.log:
            if step.result is not None:
                first = step.operands[0] if step.operands else None
                root[step.result] = step.result
                if isinstance(first, _Made) and _is_view(step.call):
                    root[step.result] = root[first.number]
        wanted: set[int] = set()
        steps: list[tuple[int, _Step]] = []
        last: dict[int, list[int]] = {}
        read: set[int] = set()
        for at in range(len(self.log) - 1, -1, -1):
            step = self.log[at]
            if step.handle is not None:
                handle = step.handle()
                take = handle is not None and handle.found is None
            else:
                into = step.result if step.result is not None else step.operands[0].number
                take = root[into] in wanted
            if not take:
                continue
            numbers = {x.number for x in step.operands if isinstance(x, _Made)}
            wanted.update(root[n] for n in numbers)
            ends = numbers | ({step.result} if step.result is not None else set())
            last[at] = sorted(ends - read)
            read |= ends
            steps.append((at, step))
        steps.reverse()
        return steps, last


def _write(dst: Tensor, src: Tensor) -> None:
    engine().write(dst, src)


def _is_view(call: Any) -> bool:
    """Whether the logged call is of a primitive that may show its operand's bytes."""
    primitive = call.func if isinstance(call, partial) else call
    return isinstance(primitive, Primitive) and primitive.kind == "view"
