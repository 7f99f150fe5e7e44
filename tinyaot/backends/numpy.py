"""Run a planned Program with NumPy: every op writes with `out=` into its place.

The arena is allocated once. A value in it is a NumPy view made once, too, so a step is a straight
list of calls on arrays that already exist. The list is a Python function whose text is generated
(`Executable.source`); what a call brings, arguments and fresh outputs, are its local names, what
stays, the arena's views and the model's state, its globals.

    def step(v0, v1):
        v9 = empty((1,), float32)
        matmul(v0, v2, out=v5)
        add(v5, v3, out=v6)
        ...
        add.reduce(v8, (0,), float32, v9, True)
        return [v9, v2, v3]
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from tinyaot.backends.buffers import POISON, aligned_empty, fill_with_nan, wants_poison
from tinyaot.backends.clock import python_with_laps
from tinyaot.backends.rates import numpy_rates
from tinyaot.cost import node_cost
from tinyaot.errors import IndexingError
from tinyaot.ir import Node, Output, Program, Value
from tinyaot.location import Loc
from tinyaot.memory import saved_bytes
from tinyaot.ops.core import TABLE, is_half
from tinyaot.ops.dot import as_ufunc
from tinyaot.passes.entries import split_entries
from tinyaot.passes.storage import storages_of
from tinyaot.record import Kernel
from tinyaot.shapes import Geometry, contiguous

rates = numpy_rates  # what partition reckons with
FIXED = ("state", "constant")  # roles of inputs that are the same array at most calls


class Executable:
    """A planned program that can be called.

    Entries are "step", or "forward" and "backward" for a joint program. One call runs at a time
    (the arena is shared, a lock guards it).

    `poison`: fill the arena and fresh memory with NaN before every run, and every buffer again
    when it dies (default: whether TINYAOT_POISON is set). `spare`: bytes of arena beyond the
    plan's, for measuring. `clocked`: time every kernel of a run.
    """

    def __init__(
        self,
        program: Program,
        *,
        poison: bool | None = None,
        spare: int = 0,
        clocked: bool = False,
    ) -> None:
        if program.plan is None:
            raise ValueError(f"{program.name} has no memory plan: run the pass `plan` first")
        self.poison = wants_poison() if poison is None else poison
        self.program, self.clocked = program, clocked
        self.arena = aligned_empty(program.plan.arena + spare)
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        at = 0
        for name, part in split_entries(program).items():
            self._entries[name] = _Entry(self, name, part, at)
            at += len(part.nodes)

    @property
    def buffers_reused(self) -> list[np.ndarray]:
        """The memory that calls share."""
        return [self.arena]

    @property
    def buffers(self) -> None:
        """Buffers that are not the plan's: none."""
        return None

    @property
    def memory(self) -> dict[str, int]:
        """Figures that the plan does not give: none."""
        return {}

    def inputs(self, entry: str) -> list[Value]:
        """What `run(entry, ...)` takes: the program's inputs in order, of a forward without the
        cotangents; of a backward the inputs that it reads, then what was saved, then the
        cotangents."""
        return self._entries[entry].takes

    def outputs(self, entry: str) -> list[Output]:
        """What `run(entry, ...)` gives: the program's outputs in order; of a backward its
        gradients, of a forward the others."""
        return self._entries[entry].gives

    @property
    def kernels(self) -> list[Kernel]:
        """One for each line that computes, of all entries."""
        return [k for entry in self._entries.values() for k in entry.kernels]

    def kernel_seconds(self) -> list[float]:
        """What each of `kernels` took in the run since this was last asked, where `clocked`."""
        return [b - a for e in self._entries.values() for a, b in pairwise(e.laps)]

    def source(self, entry: str) -> str:
        """The Python text of an entry."""
        return self._entries[entry].source

    def run(self, entry: str, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run once. Arrays must have the types that `inputs(entry)` says (not checked).

        Outputs are fresh at every call, except that a mutated one is the input's own array, now
        with its new value. Saved values are views of one block that belongs to the caller (a saved
        value that is also an output is that output's memory).
        """
        with self._lock, np.errstate(all="ignore"):
            return self._entries[entry].run(inputs)


def view_of(
    buffer: np.ndarray, dtype: np.dtype[Any], geometry: Geometry, offset: int
) -> np.ndarray:
    """The array that `geometry` sees of `buffer` (in C order), from byte `offset` on."""
    if 0 in geometry.shape:
        return np.empty(geometry.shape, dtype)
    size = dtype.itemsize
    carrier = np.dtype(f"u{size}") if dtype.kind == "V" else dtype  # bfloat16 is no buffer format
    if buffer.dtype.kind == "V":
        buffer = buffer.reshape(-1).view(f"u{buffer.itemsize}")
    array: np.ndarray = np.ndarray(
        geometry.shape,
        carrier,
        buffer,
        offset + geometry.offset * size,
        tuple(s * size for s in geometry.strides),
    )
    return array if carrier is dtype else array.view(dtype)


class _Entry:
    """One function: its text, its globals, and how arguments become names.

    A *fixed* input is one that is the same array at most calls: it is a global, and so are the
    views of it, which are made again only when it is another array. Other inputs are parameters.
    """

    def __init__(self, executable: Executable, name: str, part: Program, first: int) -> None:
        self.executable, self.name = executable, name
        self.half = range(first, first + len(part.nodes))
        program = self.program = executable.program
        assert program.plan is not None
        self.places = program.plan.places
        self.storages = storages_of(program)
        self.gives = list(part.outputs)
        self.takes = [i.value for i in part.inputs]
        fixed = {i.value.id for i in program.inputs if i.role in FIXED}
        self.fixed: dict[int, np.ndarray | None] = {v.id: None for v in self.takes if v.id in fixed}
        self.parameters = {v.id for v in self.takes if v.id not in fixed}
        self.fixed_views: dict[int, list[tuple[str, Value, Geometry]]] = {
            id_: [] for id_ in self.fixed
        }
        self.mutated = {o.of for o in self.gives if o.role == "mutated" and o.value.id != o.of}
        self.globals: dict[str, Any] = {"empty": np.empty, "view_of": view_of}
        self.head: dict[str, None] = {}  # lines that make fresh memory and views of it
        self.names: dict[tuple[int, Geometry], str] = {}
        self.others: dict[int, int] = {}  # views of a value that a product sees, counted
        self.kernels: list[Kernel] = []
        self.locs: list[Loc | None] = []  # of the user's lines that the kernels come from
        self.laps: list[float] = []
        self.source = self._write()
        text = self.source
        if executable.clocked:
            text = python_with_laps(text, [k.source for k in self.kernels])
            self.globals |= {"laps": self.laps, "lap": self._lap}
        self.lines = text.splitlines()
        exec(compile(text, f"<tinyaot {program.name}.{name}>", "exec"), self.globals)
        self.function: Callable[..., list[np.ndarray]] = self.globals[name]

    # ---- names ----

    def _array(self, value: Value, geometry: Geometry | None = None) -> str:
        """The name of the array that `geometry` (by default the value's own) sees of the value's
        storage."""
        own = self.storages.geometry[value.id]
        geometry = geometry or own
        key = value.id, geometry
        if key not in self.names:
            name = f"v{value.id}"
            if geometry != own:
                self.others[value.id] = self.others.get(value.id, 0) + 1
                name += f"_{self.others[value.id]}"
            self.names[key] = self._bind(name, value, geometry)
        return self.names[key]

    def _bind(self, name: str, value: Value, geometry: Geometry) -> str:
        """Make the array `name`, or give the name of one that is the same."""
        place, root = self.places[value.id], self.storages.root[value.id]
        dtype = value.type.dtype.numpy
        if place.space == "literal":
            scalar = np.full((), self.program.producers[root].attrs["value"], dtype)
            # A 0-d array, where it will do: broadcasting needs no strides from us.
            self.globals[name] = (
                np.broadcast_to(scalar, geometry.shape) if geometry.shape else scalar
            )
            return name
        if place.space == "arena":
            self.globals[name] = view_of(self.executable.arena, dtype, geometry, place.offset)
            return name
        taken = root in self.parameters or root in self.fixed
        base = root if taken or place.space == "saved" else place.root
        is_base = value.type == self.program.values[base].type and geometry == contiguous(
            value.type.shape
        )
        if base in self.fixed:
            if is_base:
                return f"v{base}"
            self.fixed_views[base].append((name, value, geometry))
            self.globals[name] = None
            return name
        if not taken and place.space == "saved":
            self._allocate("saved", f"empty({saved_bytes(self.program)}, {self._dtype(np.uint8)})")
            self._make_view(name, "saved", value, geometry, place.offset)
            return name
        if not taken and place.space == "output":
            type_ = self.program.values[base].type
            self._allocate(f"v{base}", f"empty({type_.shape}, {self._dtype(type_.dtype.numpy)})")
        if is_base:
            return f"v{base}"
        name = name if name != f"v{base}" else f"{name}_view"
        self._make_view(name, f"v{base}", value, geometry, 0)
        return name

    def _allocate(self, name: str, expression: str) -> None:
        self.head[f"{name} = {expression}"] = None
        if self.executable.poison:
            self.globals["poison"] = fill_with_nan
            self.head[f"poison({name})"] = None

    def _dtype(self, dtype: Any) -> str:
        dtype = np.dtype(dtype)
        name: str = dtype.name
        self.globals[name] = dtype
        return name

    def _make_view(self, name: str, base: str, value: Value, g: Geometry, offset: int) -> None:
        self.globals[f"geometry_{name}"] = g
        dtype = self._dtype(value.type.dtype.numpy)
        self.head[f"{name} = view_of({base}, {dtype}, geometry_{name}, {offset})"] = None

    # ---- text ----

    def _write(self) -> str:
        body = []
        for at in self.half:
            node = self.program.nodes[at]
            if not self.storages.is_view(node) and self.places[node.result.id].space != "literal":
                body.append(self._call(node))
                cost = node_cost(node)
                made = (node.result.id,)
                self.locs.append(node.loc)
                self.kernels.append(
                    Kernel(node.op, body[-1], made, cost.bytes, cost.flops, cost.seconds)
                )
            if self.executable.poison:
                body += self._deaths(at)
        returned = [f"v{o.of}" if o.role == "mutated" else self._array(o.value) for o in self.gives]
        parameters = ", ".join(f"v{v.id}" for v in self.takes if v.id in self.parameters)
        lines = [*self.head, *body, f"return [{', '.join(returned)}]"]
        if self.executable.poison:
            self.globals["arena"] = self.executable.arena
            lines.insert(0, f"arena.fill({POISON})")
        return f"def {self.name}({parameters}):\n" + "".join(f"    {line}\n" for line in lines)

    def _call(self, node: Node) -> str:
        """The line that computes a node: a call of a ufunc where that is all, or of `into`."""
        primitive, result = TABLE[node.op], node.result
        ufunc = primitive.ufunc
        half = bool(node.inputs) and is_half(node.inputs[0].type.dtype.numpy)
        if primitive.kind == "dot" and result.type.dtype.is_floating and not half:
            values = (*node.inputs, result)
            product = as_ufunc(node.attrs["spec"], *(self.storages.geometry[v.id] for v in values))
            if product is not None:
                name = product[0].__name__
                self.globals[name] = product[0]
                left, right, to = (self._array(values[i], g) for i, g in product[1])
                return f"{name}({left}, {right}, out={to})"
        out, operands = self._array(result), [self._array(v) for v in node.inputs]
        if ufunc is not None and primitive.kind == "map":
            self.globals[ufunc.__name__] = ufunc
            return f"{ufunc.__name__}({', '.join(operands)}, out={out})"
        if ufunc is not None and primitive.kind == "reduce" and not half:
            self.globals[ufunc.__name__] = ufunc
            dtype = self._dtype(result.type.dtype.numpy)
            axes = node.attrs["axes"]
            return f"{ufunc.__name__}.reduce({operands[0]}, {axes}, {dtype}, {out}, True)"
        assert primitive.into is not None
        name = f"{node.op}_{result.id}" if node.attrs else f"{node.op}_into"
        self.globals[name] = partial(primitive.into, **node.attrs) if node.attrs else primitive.into
        return f"{name}({', '.join([out, *operands])})"

    def _deaths(self, at: int) -> list[str]:
        """Poison the arena's buffers that are used for the last time at node `at`."""
        lines = []
        for v in (*self.program.nodes[at].inputs, *self.program.nodes[at].results):
            place, name = self.places[v.id], f"dead{self.places[v.id].root}"
            if place.space == "arena" and place.last == at and place.nbytes:
                end = place.offset + place.nbytes
                self.globals[name] = self.executable.arena[place.offset : end]
                lines.append(f"{name}.fill({POISON})")
        return list(dict.fromkeys(lines))

    # ---- running ----

    def run(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        arguments: list[np.ndarray] = []
        originals: list[tuple[np.ndarray, np.ndarray]] = []
        fixed = self.fixed
        for value, array in zip(self.takes, arrays, strict=True):
            if not array.flags.c_contiguous:
                # The plan knows inputs in C order only.
                original, array = array, array.copy(order="C")
                if value.id in self.mutated:
                    originals.append((original, array))
            if value.id not in fixed:
                arguments.append(array)
            elif fixed[value.id] is not array:
                self._rebind(value, array)
        try:
            result = self.function(*arguments)
        except IndexingError as error:
            raise self._located(error) from None
        for original, array in originals:
            np.copyto(original, array)
            result = [original if r is array else r for r in result]
        return result

    def _located(self, error: IndexingError) -> IndexingError:
        """The error of a line of the text, with the user's line that it comes from."""
        code = self.function.__code__
        numbers = [n for f, n in traceback.walk_tb(error.__traceback__) if f.f_code is code]
        line = self.lines[numbers[0] - 1].strip()
        sources = [k.source for k in self.kernels]
        at = self.locs[sources.index(line)] if line in sources else None
        return IndexingError(str(error).splitlines()[0], at=at)

    def _lap(self) -> None:
        self.laps.append(time.perf_counter())

    def _rebind(self, value: Value, array: np.ndarray) -> None:
        self.fixed[value.id] = self.globals[f"v{value.id}"] = array
        for name, view, geometry in self.fixed_views[value.id]:
            self.globals[name] = view_of(array, view.type.dtype.numpy, geometry, 0)
