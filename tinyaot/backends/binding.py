"""An entry point with its arrays: what a call of compiled C does besides the call.

C is handed the arrays themselves, and finds their data behind their headers: to ask NumPy for an
address takes longer than all the rest. What stays from call to call is told once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from operator import is_, itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import empty

from tinyaot.backends.buffers import fill_with_nan
from tinyaot.backends.runtime import load_pool
from tinyaot.errors import IndexingError
from tinyaot.ir import Output
from tinyaot.ops.check import not_within, out_of_range

if TYPE_CHECKING:
    from tinyaot.backends.cpu import EntryPoint, Executable


class _Call(ctypes.Structure):
    """What `tinyaot_call` of the runtime takes."""

    _fields_ = (
        ("step", ctypes.c_void_p),
        ("header", ctypes.c_int64),
        ("arrays", ctypes.c_int64),
        ("objects", ctypes.c_void_p),
        ("pointers", ctypes.c_void_p),
    )


class Binding:
    """An entry point of an executable, bound to arrays. An input is told again only when it is
    another array; a fresh output at every call."""

    def __init__(self, executable: Executable, entry: EntryPoint) -> None:
        self.entry, self.poison = entry, executable.poison
        position = {i.value.id: j for j, i in enumerate(entry.program.inputs)}
        computed = [o for _, o in entry.plan.graph.forms.outputs]
        n = len(entry.takes)
        self.fresh: list[Output] = []  # those that C writes to memory of their own
        self.fresh_at: list[int] = []  # ... and where they are among all outputs
        self.made: list[tuple[int, Any, Any]] = []  # of all fresh memory: slot, shape, dtype
        self.empty: list[tuple[Any, Any]] = []
        picked: list[int] = []  # where each output is, after the inputs
        for k, o in enumerate(entry.gives):
            shape, dtype = o.value.type.shape, o.value.type.dtype.numpy
            if o.role == "mutated" and o.of is not None:
                picked.append(position[o.of])
            elif o in computed:
                picked.append(n + len(self.made))
                self.made.append((n + len(self.made), shape, dtype))
                self.fresh.append(o)
                self.fresh_at.append(k)
            else:
                picked.append(-1 - len(self.empty))
                self.empty.append((shape, dtype))
        self.pick = _picker(picked)
        arrays = n + len(self.made)
        self.objects = (ctypes.c_size_t * arrays)()
        self.errors = np.zeros(len(entry.checks), np.int64)
        self.pointers = (ctypes.c_void_p * (arrays + 3))()
        for at, memory in enumerate((executable.arena, executable.scratch, self.errors), arrays):
            self.pointers[at] = memory.ctypes.data
        self.written = {at for at in picked if 0 <= at < n}
        self.bound: list[np.ndarray | None] = [None] * n
        self.owner: object = None  # who said last which arrays stay
        runtime, _ = load_pool()
        self.nothing = ctypes.cast(runtime.tinyaot_nothing, ctypes.c_void_p).value
        function = getattr(executable.loaded, f"tinyaot_{entry.name}")
        self.step = ctypes.cast(function, ctypes.c_void_p).value
        self.frame = _Call(
            self.step,
            object.__basicsize__,
            arrays,
            ctypes.addressof(self.objects),
            ctypes.addressof(self.pointers),
        )
        self.function, self.address = runtime.tinyaot_call, ctypes.addressof(self.frame)

    def lines(
        self, inputs: Sequence[np.ndarray], given: Mapping[int, str]
    ) -> tuple[list[str], dict[str, Any]]:
        """See `Executable.lines`; without the lock."""
        fixed, token = [None if j in given else a for j, a in enumerate(inputs)], object()
        names = {
            "c_bound": self,
            "c_fixed": fixed,
            "c_token": token,
            "c_objects": self.objects,
            "c_call": self.function,
            "c_address": self.address,
            "empty": empty,
        }
        lines = ["if c_bound.owner is not c_token: c_bound.fix(c_fixed, c_token)"]
        lines += [f"c_objects[{j}] = id({name})" for j, name in given.items()]
        for slot, shape, dtype in self.made:
            k = self.fresh_at[slot - len(inputs)]
            names |= {f"shape{k}": shape, f"dtype{k}": dtype}
            lines.append(f"u{k} = empty(shape{k}, dtype{k}); c_objects[{slot}] = id(u{k})")
        lines.append("if c_call(c_address): raise c_bound.error()")
        return lines, names

    def fix(self, inputs: Sequence[np.ndarray | None], owner: object) -> None:
        """Point at arrays that stay; None where the caller says an array at each call."""
        for at, array in enumerate(inputs):
            self.objects[at] = id(array)
        self.bound = [None] * len(inputs)
        self.owner = owner

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        dense = [] if all(map(is_, inputs, self.bound)) else self._bind(inputs)
        found = [*inputs]
        for slot, shape, dtype in self.made:
            array = empty(shape, dtype)
            self.objects[slot] = id(array)
            found.append(array)
        if self.poison:
            for array in found[len(inputs) :]:
                fill_with_nan(array)
        if self.function(self.address):
            raise self.error()
        for at, copy in dense:
            if at in self.written:
                np.copyto(inputs[at], copy)
        for shape, dtype in reversed(self.empty):
            found.append(np.zeros(shape, dtype))
        return self.pick(found)

    def error(self) -> IndexingError:
        """What the first error slot in use reports of the last run."""
        slot = int(np.flatnonzero(self.errors)[0])
        report, check = int(self.errors[slot]), self.entry.checks[slot]
        self.errors[:] = 0
        index, op = report if report < 0 else report - 1, check.op
        if check.axis is None:
            attrs = op.attrs
            return not_within(attrs["what"], index, attrs["size"], attrs["ignored"], op.loc)
        return out_of_range(index, check.size, op.loc)

    def _bind(self, inputs: Sequence[np.ndarray]) -> list[tuple[int, np.ndarray]]:
        """Point at these arrays. Of those that C cannot use in place: (position, dense copy)."""
        copies = []
        self.owner = None
        for at, array in enumerate(inputs):
            if self.bound[at] is array:
                continue
            self.bound[at] = array
            if not isinstance(array, np.ndarray) or not array.flags.c_contiguous:
                copies.append((at, np.ascontiguousarray(array)))
                self.bound[at], array = None, copies[-1][1]
            self.objects[at] = id(array)
        return copies


def _picker(positions: list[int]) -> Callable[[list[Any]], list[Any]]:
    """What takes the elements at these positions out of a list."""
    if len(positions) < 2:
        return lambda found: [found[at] for at in positions]
    pick = itemgetter(*positions)
    return lambda found: list(pick(found))
