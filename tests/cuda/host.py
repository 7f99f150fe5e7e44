"""Runs emitted CUDA text on the CPU (`host.h`), with NumPy in the place of the product library."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import as_strided

from tinyaot.codegen.cuda import Launch, Operand, Place, Product, emit_cuda
from tinyaot.ir import Program
from tinyaot.passes.fusion.labels import Atom
from tinyaot.shapes import TensorType

COMPILER = shutil.which("g++") or shutil.which("clang++")
FLAGS = "-O1 -std=c++17 -ffp-contract=off -fPIC -shared -w".split()
FORWARD, REVERSED, SHUFFLED = range(3)  # orders of threads and blocks


class Host:
    """A program as CUDA text, compiled for the CPU."""

    def __init__(self, program: Program, edit: Callable[[str], str] = lambda text: text) -> None:
        """`edit`: what to change in the text, to see that it is noticed."""
        self.program, self.module = program, emit_cuda(program)
        module = self.module
        exports = "\n".join(f"EXPORT({name})" for name in module.kernels)
        with tempfile.TemporaryDirectory() as folder:
            text, library = Path(folder, "k.cc"), Path(folder, "k.so")
            shim = Path(__file__).with_name("host.h")
            text.write_text(f'#include "{shim}"\n{edit(module.source)}\n{exports}\n')
            assert COMPILER is not None
            subprocess.run([COMPILER, *FLAGS, text, "-o", library], check=True)
            self.loaded = ctypes.CDLL(str(library))

    def run(self, inputs: Sequence[np.ndarray], order: int = FORWARD) -> list[np.ndarray]:
        """The outputs, computed in fresh memory full of NaN; mutated inputs are written, and
        `errors` is what the error slots say."""
        graph = self.module.plan.fusion.graph
        takes = list(inputs)
        assert all(x.flags.c_contiguous for x in takes)
        computed = [o for _, o in graph.forms.outputs if o.role != "mutated"]
        gives = [empty_like(o.value.type) for o in computed]
        self.arena = np.empty(self.module.arena + 64, np.uint8)
        for fresh in (self.arena, *gives):
            fresh.reshape(-1).view(np.uint8).fill(0xFF)
        self.memory = {"input": takes, "output": gives}
        self.errors = np.zeros(len(self.module.checks) + 1, np.int64)
        for step in self.module.steps:
            if isinstance(step, Launch):
                self.launch(step, order)
            else:
                self.multiply(step)
        where = {o.value.id: x for o, x in zip(computed, gives)}
        where |= {i.value.id: x for i, x in zip(self.program.inputs, takes)}
        empty = {o.value.id: empty_like(o.value.type) for o in self.program.outputs}
        return [
            (empty | where)[o.of if o.role == "mutated" and o.of is not None else o.value.id]
            for o in self.program.outputs
        ]

    def address(self, place: Place) -> int:
        if place.space == "arena":
            return self.arena.ctypes.data + place.at
        return self.memory[place.space][place.at].ctypes.data

    def launch(self, step: Launch, order: int) -> None:
        scratch = np.full(step.blocks * step.scratch + 64, 0xFF, np.uint8)
        values = [self.address(p) for p in step.arguments]
        values += [scratch.ctypes.data] * bool(step.scratch)
        values.append(self.errors.ctypes.data + 8 * step.slot)
        holders = [ctypes.c_void_p(v) for v in values]
        pointers = (ctypes.c_void_p * len(holders))(*map(ctypes.addressof, holders))
        function = getattr(self.loaded, f"run_{step.kernel}")
        function.restype = ctypes.c_char_p
        error = function(step.blocks, step.threads, order, pointers)
        assert error is None, f"{step.kernel}: {error.decode()}"

    def multiply(self, step: Product) -> None:
        labels = list(dict.fromkeys([*step.c.strides, *step.a.strides, *step.b.strides]))
        number = {a: n for n, a in enumerate(labels)}
        tensors = [self.tensor(x) for x in (step.a, step.b, step.c)]
        where = [[number[a] for a in x.strides] for x in (step.a, step.b, step.c)]
        tensors[2][...] = np.einsum(tensors[0], where[0], tensors[1], where[1], where[2])

    def tensor(self, operand: Operand) -> np.ndarray:
        place = operand.place
        dtype = place.dtype.numpy
        flat = self.memory[place.space][place.at] if place.space != "arena" else None
        if flat is None:
            flat = self.arena[place.at : place.at + (self.arena.size - place.at) // 8 * 8].view(
                dtype
            )
        labels: list[Atom] = list(operand.strides)
        strides = [operand.strides[a] * flat.dtype.itemsize for a in labels]
        return as_strided(flat.reshape(-1)[operand.first :], [a.size for a in labels], strides)


def empty_like(type_: TensorType) -> np.ndarray:
    return np.empty(type_.shape, type_.dtype.numpy)
