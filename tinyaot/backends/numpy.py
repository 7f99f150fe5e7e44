"""Run a planned Program with NumPy: every op writes with `out=` into its place.

The arena is allocated once. A value in it is a NumPy view made once, too, so a step is a straight
list of calls on arrays that already exist. The list is a Python function whose text is generated
(`Executable.source`); what a call brings, arguments and fresh outputs, are its local names, what
stays, the arena's views and the model's state, its globals.

    def step(v0, v1):
        v7 = empty((), float32)
        dot_5(v5, v0, v2)
        add(v5, v3, v5)
        ...
        return (v7, v2, v3)
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tinyaot.ir import Input, Node, Output, Program, Value
from tinyaot.memory import saved_bytes
from tinyaot.ops.core import TABLE
from tinyaot.passes.plan import ALIGNMENT
from tinyaot.passes.storage import is_joint, storages_of
from tinyaot.shapes import Geometry

POISON = 0xFF  # every float made of it is a NaN
STAYS = ("state", "constant", "random")  # roles of inputs that are the same array at most calls


class Executable:
    """A planned program that can be called.

    Entries are "step", or "forward" and "backward" for a joint program. One call runs at a time
    (the arena is shared, a lock guards it).

    `poison`: fill the arena and fresh memory with NaN before every run, and every buffer again
    when it dies (default: whether TINYAOT_POISON is set). `arena`: memory to use in place of a new
    one, uint8 and at least as long as the plan says.
    """

    def __init__(
        self, program: Program, *, poison: bool | None = None, arena: np.ndarray | None = None
    ) -> None:
        if program.plan is None:
            raise ValueError(f"{program.name} has no memory plan: run the pass `plan` first")
        if poison is None:
            poison = os.environ.get("TINYAOT_POISON", "0") not in ("", "0")
        self.program, self.poison = program, poison
        self.arena = aligned_empty(program.plan.arena) if arena is None else arena
        self._lock = threading.Lock()
        nodes, joint = program.nodes, is_joint(program)
        if joint:
            split = next((i for i, n in enumerate(nodes) if n.phase == "backward"), len(nodes))
            halves = {"forward": range(split), "backward": range(split, len(nodes))}
        else:
            halves = {"step": range(len(nodes))}
        self._entries = {name: _Entry(self, name, half) for name, half in halves.items()}

    def inputs(self, entry: str) -> list[Value]:
        """What `run(entry, ...)` takes: the program's inputs in order, of a forward without the
        cotangents; of a backward the inputs that it reads, then what was saved, then the
        cotangents."""
        return self._entries[entry].takes

    def outputs(self, entry: str) -> list[Output]:
        """What `run(entry, ...)` gives: the program's outputs in order; of a backward its
        gradients, of a forward the others."""
        return self._entries[entry].gives

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


def aligned_empty(nbytes: int) -> np.ndarray:
    """`nbytes` of uint8, beginning at a multiple of 64."""
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes]


def view_of(buffer: np.ndarray, dtype: np.dtype[Any], geometry: Geometry, offset: int) -> np.ndarray:
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


@dataclass
class _Buffer:
    """A local or global name of the generated function, and the views that are made of it."""

    name: str
    views: dict[str, Callable[[np.ndarray], np.ndarray]]


class _Entry:
    """One function: its text, its globals, and how arguments become names."""

    def __init__(self, executable: Executable, name: str, half: range) -> None:
        self.executable, self.name, self.half = executable, name, half
        program = self.program = executable.program
        assert program.plan is not None
        self.places = program.plan.places
        self.storages = storages_of(program)
        self.space: dict[str, Any] = {"empty": np.empty, "view_of": view_of}
        backward = name == "backward"
        self.gives = [o for o in program.outputs if (o.role == "gradient") == backward]
        self.takes, stays = self._takes(backward)
        self.stays = [(at, v.id) for at, v in enumerate(self.takes) if v.id in stays]
        self.bound: dict[int, Any] = {id_: None for _, id_ in self.stays}
        self.local = {v.id for v in self.takes if v.id not in stays}
        self.mutated = {o.of for o in self.gives if o.role == "mutated" and o.value.id != o.of}
        self.state_views: dict[int, list[tuple[str, Value]]] = {id_: [] for _, id_ in self.stays}
        self.head: list[str] = []
        self.named: dict[int, str] = {}
        self.fresh: dict[int, str] = {}
        self.source = self._write()
        exec(compile(self.source, f"<tinyaot {program.name}.{name}>", "exec"), self.space)
        self.function = self.space[name]

    def _takes(self, backward: bool) -> tuple[list[Value], set[int]]:
        program, root = self.program, self.storages.root
        inputs: list[Input] = [i for i in program.inputs if i.role != "cotangent"]
        if not backward:
            return [i.value for i in inputs], {i.value.id for i in inputs if i.role in STAYS}
        read = {root[v.id] for at in self.half for v in program.nodes[at].inputs}
        read |= {root[o.value.id] for o in self.gives}
        inputs = [i for i in inputs if i.value.id in read]
        takes = [i.value for i in inputs]
        takes += [o.value for o in program.outputs_of("saved")]
        takes += [i.value for i in program.inputs_of("cotangent")]
        return takes, {i.value.id for i in inputs if i.role in STAYS}

    # ---- names ----

    def _name(self, value: Value) -> str:
        """The name under which the function knows `value`."""
        if value.id not in self.named:
            self.named[value.id] = self._bind(value)
        return self.named[value.id]

    def _bind(self, value: Value) -> str:
        place = self.places[value.id]
        geometry = self.storages.geometry[value.id]
        root = self.storages.root[value.id]
        dtype = value.type.dtype.numpy
        name = f"v{value.id}"
        if place.space == "literal":
            attrs = self.program.producers[root].attrs
            scalar = np.full((), attrs["value"], dtype)
            self.space[name] = np.broadcast_to(scalar, value.type.shape) if value.type.shape else scalar
            return name
        if place.space == "arena":
            self.space[name] = view_of(self.executable.arena, dtype, geometry, place.offset)
            return name
        if root in self.local or root in self.bound:
            base, offset = root, 0  # an argument, or a saved value that is one
        elif place.space == "input":
            base, offset = place.root, 0
        else:
            return self._bind_fresh(value, geometry)
        whole = self.program.values[base].type
        if value.type == whole and geometry.is_contiguous and not geometry.offset:
            return f"v{base}"
        if base in self.bound:
            self.state_views[base].append((name, value))
            self.space[name] = None
        else:
            self._make_view(name, f"v{base}", value, geometry, offset)
        return name

    def _bind_fresh(self, value: Value, geometry: Geometry) -> str:
        place, name = self.places[value.id], f"v{value.id}"
        if place.space == "saved":
            if not self.fresh:
                pass
            self._allocate("saved", f"empty({saved_bytes(self.program)}, uint8)")
            self._make_view(name, "saved", value, geometry, place.offset)
            return name
        whole = self.program.values[place.root].type
        base = f"v{place.root}"
        self._allocate(base, f"empty({whole.shape}, {self._dtype(whole.dtype.numpy)})")
        if value.type == whole and geometry.is_contiguous and not geometry.offset:
            return base
        name = f"v{value.id}" if value.id != place.root else f"w{value.id}"
        self._make_view(name, base, value, geometry, 0)
        return name

    def _allocate(self, name: str, expression: str) -> None:
        self.space.setdefault("uint8", np.dtype(np.uint8))
        line = f"{name} = {expression}"
        if line not in self.head:
            self.head.append(line)
            if self.executable.poison:
                self.space["poison"] = _poison
                self.head.append(f"poison({name})")

    def _dtype(self, dtype: np.dtype[Any]) -> str:
        self.space[dtype.name] = dtype
        return dtype.name

    def _make_view(self, name: str, base: str, value: Value, g: Geometry, offset: int) -> None:
        self.space[f"g{value.id}"] = g
        dtype = self._dtype(value.type.dtype.numpy)
        self.head.append(f"{name} = view_of({base}, {dtype}, g{value.id}, {offset})")

    # ---- text ----

    def _write(self) -> str:
        body = []
        for at in self.half:
            node = self.program.nodes[at]
            if not self.storages.is_view(node) and self.places[node.result.id].space != "literal":
                body.append(self._call(node))
            if self.executable.poison:
                body += self._deaths(at)
        returned = [
            f"v{o.of}" if o.role == "mutated" else self._name(o.value) for o in self.gives
        ]
        parameters = ", ".join(f"v{v.id}" for v in self.takes if v.id in self.local)
        lines = [*self.head, *body, f"return ({''.join(r + ', ' for r in returned)})"]
        if self.executable.poison:
            self.space["arena"] = self.executable.arena
            lines.insert(0, f"arena.fill({POISON})")
        return f"def {self.name}({parameters}):\n" + "".join(f"    {line}\n" for line in lines)

    def _call(self, node: Node) -> str:
        primitive = TABLE[node.op]
        out = self._name(node.result)
        operands = [self._name(v) for v in node.inputs]
        if isinstance(primitive.array, np.ufunc) and not node.attrs:
            self.space[node.op] = primitive.array
            return f"{node.op}({', '.join([*operands, out])})"
        assert primitive.into is not None
        name = f"{node.op}_{node.result.id}"
        self.space[name] = partial(primitive.into, **node.attrs) if node.attrs else primitive.into
        return f"{name}({', '.join([out, *operands])})"

    def _deaths(self, at: int) -> list[str]:
        """Poison the arena's buffers that are used for the last time at node `at`."""
        lines = []
        for v in (*self.program.nodes[at].inputs, *self.program.nodes[at].results):
            place, name = self.places[v.id], f"dead{self.places[v.id].root}"
            if place.space == "arena" and place.last == at and place.nbytes:
                self.space[name] = self.executable.arena[place.offset : place.offset + place.nbytes]
                lines.append(f"{name}.fill({POISON})")
        return list(dict.fromkeys(lines))

    # ---- running ----

    def run(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        copied = []
        arguments = []
        for value, array in zip(self.takes, arrays, strict=True):
            if not array.flags.c_contiguous:
                original, array = array, array.copy(order="C")
                if value.id in self.mutated:
                    copied.append((original, array))
            if value.id in self.local:
                arguments.append(array)
            elif self.bound[value.id] is not array:
                self._rebind(value, array)
        result = list(self.function(*arguments))
        for original, array in copied:
            np.copyto(original, array)
            result = [original if r is array else r for r in result]
        return result

    def _rebind(self, value: Value, array: np.ndarray) -> None:
        self.bound[value.id] = array
        self.space[f"v{value.id}"] = array
        for name, view in self.state_views[value.id]:
            geometry = self.storages.geometry[view.id]
            self.space[name] = view_of(array, view.type.dtype.numpy, geometry, 0)


def _poison(array: np.ndarray) -> None:
    array.reshape(-1).view(np.uint8).fill(POISON)
