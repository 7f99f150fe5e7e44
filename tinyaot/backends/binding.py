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
from tinyaot.backends.watch import CHANGED, SAVED, Steady, Watch
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
        memory = executable.arena, executable.scratch, self.errors
        self.own: list[int] = [a.ctypes.data for a in memory]
        for at, address in enumerate(self.own, arrays):
            self.pointers[at] = address
        self.written = {at for at in picked if 0 <= at < n}
        self.bound: list[np.ndarray | None] = [None] * n
        self.passing: list[int] = []  # inputs that steady calls give, and that are not kept
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
        self,
        inputs: Sequence[np.ndarray],
        given: Mapping[int, str],
        watch: Watch,
        prepare: Sequence[str],
    ) -> tuple[list[str], dict[str, Any]]:
        """See `Executable.lines`; without the lock."""
        self.passing = [*given]
        made = [slot for slot, _, _ in self.made]
        arrays = [None if j in given else a for j, a in enumerate(inputs)] + [None] * len(made)
        steady = Steady(self.frame, self.own, arrays, [*given, *made], watch)
        names: dict[str, Any] = {"c_bound": self, "empty": empty}
        names |= {"c_step": steady.function("step"), "c_anyway": steady.function("step_anyway")}
        lines, arguments = [], [*given.values()]
        for slot, shape, dtype in self.made:
            k = self.fresh_at[slot - len(inputs)]
            names |= {f"shape{k}": shape, f"dtype{k}": dtype}
            lines.append(f"u{k} = empty(shape{k}, dtype{k})")
            arguments.append(f"u{k}")
        listed = ", ".join(arguments)
        lines += [
            f"done = c_step({listed})",
            f"if done == {SAVED}:",
            *(f"  {line}" for line in prepare),
            f"  done = c_anyway({listed})",
            f"if done == {CHANGED}: return MISS",
            "if done: raise c_bound.error()",
        ]
        return lines, names

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
        for at in self.passing:
            self.bound[at] = None
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
