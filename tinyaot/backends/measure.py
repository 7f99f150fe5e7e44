"""Measured memory: what a run takes, found by looking and not from the plan.

Two looks. The arena, and the scratch of threads where there is some, are over-sized and filled
with a sentinel: the highest byte that a run changed is what it used. And NumPy's own allocator is
replaced for the time of the run (its `PyDataMem_SetHandler`), so that every array's memory is
counted, outputs and temporaries alike.

On `c` that is what the plan says, but where masks or the ends of tiles leave a thread's last tile
smaller than its room. On `numpy` it may be a few bytes more: scalars that NumPy converts.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinyaot.backends import load_backend
from tinyaot.ir import Program

SENTINELS = (0xA5, 0x5A)  # a byte that happens to be written as one is not written as the other
SPARE = 1 << 20  # bytes of the arena beyond the plan's


@dataclass(frozen=True)
class Measured:
    """Bytes: up to the highest one touched in arena and scratch, and the most that NumPy had
    allocated."""

    arena: int
    allocated: int

    @property
    def peak(self) -> int:
        return self.arena + self.allocated


def measure_peak(
    program: Program, arrays: Sequence[np.ndarray], backend: str = "numpy"
) -> Measured:
    """Run a planned program on copies of `arrays` (its inputs, in order; cotangents too) and
    measure the memory that this takes beyond them."""
    touched = allocated = 0
    make = load_backend(backend)[1].Executable
    for sentinel in SENTINELS:
        executable = make(program, poison=False, spare=SPARE)
        for buffer in executable.buffers_reused:
            buffer.fill(sentinel)
        given = {i.value.id: a.copy() for i, a in zip(program.inputs, arrays, strict=True)}
        with Allocations() as allocations:
            kept = run_whole(executable, given)
        del kept
        touched = max(touched, sum(_touched(b, sentinel) for b in executable.buffers_reused))
        allocated = allocations.peak  # of the last run: the first may import, and fill caches
    return Measured(touched, allocated)


def _touched(buffer: np.ndarray, sentinel: int) -> int:
    """Bytes up to the highest that is not the sentinel any more."""
    changed = np.flatnonzero(buffer != sentinel)
    return int(changed[-1]) + 1 if changed.size else 0


def run_whole(executable: Any, given: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
    """Run every entry once: input id -> array in, and the outputs by the value's id out. A
    backward half is given what its forward half saved."""
    found: dict[int, np.ndarray] = {}
    for entry in ("forward", "backward") if executable.program.is_joint else ("step",):
        arrays = [given[v.id] if v.id in given else found[v.id] for v in executable.inputs(entry)]
        results = executable.run(entry, arrays)
        found.update(
            (o.value.id, a) for o, a in zip(executable.outputs(entry), results, strict=True)
        )
    return found


# ---- counting NumPy's allocations ---------------------------------------------------------------

_SIZE, _POINTER = ctypes.c_size_t, ctypes.c_void_p
_MALLOC = ctypes.CFUNCTYPE(_POINTER, _POINTER, _SIZE)
_CALLOC = ctypes.CFUNCTYPE(_POINTER, _POINTER, _SIZE, _SIZE)
_REALLOC = ctypes.CFUNCTYPE(_POINTER, _POINTER, _POINTER, _SIZE)
_FREE = ctypes.CFUNCTYPE(None, _POINTER, _POINTER, _SIZE)
_SET_HANDLER = 304  # PyDataMem_SetHandler's number in NumPy's C API


class _Handler(ctypes.Structure):
    """`PyDataMem_Handler` of NumPy's C API."""

    _fields_ = (
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("context", _POINTER),
        ("malloc", _MALLOC),
        ("calloc", _CALLOC),
        ("realloc", _REALLOC),
        ("free", _FREE),
    )


class _Count:
    """Bytes that live in memory allocated while `running`."""

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self.now = self.peak = 0

    def add(self, address: int | None, size: int) -> int | None:
        if address is not None:
            self.sizes[address] = size
            self.now += size
            self.peak = max(self.peak, self.now)
        return address

    def remove(self, address: int | None) -> None:
        if address is not None:
            self.now -= self.sizes.pop(address, 0)


class Allocations:
    """Context manager: `peak` is the most bytes that NumPy arrays made inside had at one time."""

    _installed: Any = None  # the handler lives as long as any array that it allocated: for ever
    _count = _Count()

    def __enter__(self) -> Allocations:
        cls = type(self)
        if cls._installed is None:
            cls._installed = _install(cls._count)
        cls._count.peak = self.before = cls._count.now
        self.old = cls._installed(None)
        return self

    def __exit__(self, *exc: object) -> None:
        type(self)._installed(self.old)
        self.peak = type(self)._count.peak - self.before


def _install(count: _Count) -> Any:
    """Make the handler. Returns `switch(capsule or None: ours) -> the capsule it replaces`."""
    libc = ctypes.CDLL(None)
    for name, arguments in (("malloc", 1), ("calloc", 2)):
        function = getattr(libc, name)
        function.restype, function.argtypes = _POINTER, [_SIZE] * arguments
    libc.realloc.restype, libc.realloc.argtypes = _POINTER, [_POINTER, _SIZE]
    libc.free.restype, libc.free.argtypes = None, [_POINTER]

    def realloc(_: Any, address: int | None, size: int) -> int | None:
        count.remove(address)
        return count.add(libc.realloc(address, max(size, 1)), size)

    def free(_: Any, address: int | None, size: int) -> None:
        count.remove(address)
        libc.free(address)

    handler = _Handler(
        b"tinyaot_counting",
        1,
        None,
        _MALLOC(lambda _, size: count.add(libc.malloc(max(size, 1)), size)),
        _CALLOC(lambda _, n, size: count.add(libc.calloc(max(n, 1), max(size, 1)), n * size)),
        _REALLOC(realloc),
        _FREE(free),
    )
    api = ctypes.pythonapi
    new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, _POINTER, ctypes.c_char_p, _POINTER)(
        ("PyCapsule_New", api)
    )
    pointer_in = ctypes.PYFUNCTYPE(_POINTER, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", api)
    )
    numpy_api: Any = importlib.import_module("numpy._core._multiarray_umath")._ARRAY_API
    table = ctypes.cast(pointer_in(numpy_api, None), ctypes.POINTER(_POINTER))
    set_handler = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(table[_SET_HANDLER])
    ours = new_capsule(ctypes.addressof(handler), b"mem_handler", None)

    def switch(capsule: Any) -> Any:
        # `handler` is named here so that it is kept.
        return set_handler(ours if capsule is None and handler else capsule)

    return switch
