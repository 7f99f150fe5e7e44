"""State that C looks at: the guards of a steady call without a line of Python each.

A guard is a fact: a place in an object holds what it held. Here facts are rows of a table that C
walks in nanoseconds, right before it runs the step, in the same call. It reads lists and dicts by
functions of Python's stable C interface, and the slots of our own objects where a look found them.
The call itself is a builtin function (the vectorcall protocol of PEP 590), since ctypes takes as
long as all that.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable, Sequence
from ctypes import pythonapi
from functools import cache
from types import FunctionType, MappingProxyType
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from tinyaot.backends.runtime import load_pool
from tinyaot.tensor import History, Storage, Tensor

SLOT, ITEM, ENTRIES, ELEMENT, ELEMENTS, ATTRIBUTES = range(6)  # kinds of facts
DONE, CHANGED, SAVED, FAILED = range(4)  # what a call gives
SLOTS: tuple[tuple[type, str], ...] = (
    (Tensor, "_data"),
    (Tensor, "_chain"),
    (Tensor, "_history"),
    (History, "requires_grad"),
    (History, "storage"),
    (Storage, "handles"),
)
HEADER = object.__basicsize__  # bytes before an object's own words ...
CLASS = HEADER - ctypes.sizeof(ctypes.c_void_p)  # ... of which the last is its class
FASTCALL = 0x80  # METH_FASTCALL: an array of arguments, and their number
API = (
    "PyDict_GetItemWithError",
    "PyDict_Next",
    "PyList_GetItem",
    "PyList_Size",
    "PyObject_GenericGetDict",
    "Py_DecRef",
    "PyErr_Clear",
    "PyLong_FromLong",
    "PyLong_AsVoidPtr",
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
)
_object, _address = ctypes.py_object, ctypes.c_void_p
_new_function = ctypes.PYFUNCTYPE(_object, _address, _object, _address)(
    ("PyCFunction_NewEx", pythonapi)
)
_attributes = ctypes.PYFUNCTYPE(_object, _object, _address)(("PyObject_GenericGetDict", pythonapi))


class _Method(ctypes.Structure):
    """Python's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


class _Steady(ctypes.Structure):
    """What the functions of a steady call find behind `self`."""

    _fields_ = (
        ("call", ctypes.c_void_p),
        ("objects", ctypes.c_void_p),
        ("pointers", ctypes.c_void_p),
        ("facts", ctypes.c_void_p),
        ("written", ctypes.c_void_p),
        ("given", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
        ("spans", ctypes.c_void_p),
        ("n_facts", ctypes.c_ssize_t),
        ("n_written", ctypes.c_ssize_t),
        ("n_arguments", ctypes.c_ssize_t),
        ("n_spans", ctypes.c_ssize_t),
    )


class _Array(ctypes.Structure):
    """What NumPy has behind an array's header."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("nd", ctypes.c_int),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("base", ctypes.c_void_p),
        ("descr", ctypes.c_void_p),
    )


class Watch:
    """Facts for C to look at. Each method notes one and says True, or says False of what only
    Python can look at. Objects that the facts name are kept alive."""

    def __init__(self) -> None:
        self.facts: dict[tuple[int, int, int, int], None] = {}
        self.items: dict[int, dict[str, Any]] = {}  # of dicts, by their ids
        self.whole: list[dict[Any, Any]] = []  # dicts whose entries are all that they may have
        self.written: list[History] = []
        self.given: list[tuple[int, int, tuple[int, ...], tuple[int, ...], int]] = []  # arguments
        self.spans: list[tuple[int, int]] = []  # of memory that no argument may share
        self.kept: list[Any] = []

    def slot(self, owner: Any, name: str, value: Any) -> bool:
        """A slot of one of our own objects holds this very value."""
        kind = getattr(type(owner), name).__objclass__  # which declares the slot
        return self._note(SLOT, owner, offset(kind, name), value)

    def item(self, owner: Any, key: Any, value: Any) -> bool:
        """A list or dict does, or that of a class."""
        if type(owner) is MappingProxyType:
            (owner,) = gc.get_referents(owner)
        if type(owner) is dict and type(key) is str:
            self.kept.append(owner)
            self.items.setdefault(id(owner), {})[key] = value
            return True
        return type(owner) is list and self._note(ELEMENT, owner, key, value)

    def attribute(self, owner: Any, key: str, value: Any) -> bool:
        """So does an attribute."""
        attributes = self._attributes_of(owner)
        return attributes is not None and self.item(attributes, key, value)

    def number_of_attributes(self, owner: Any) -> bool:
        """An object has as many as it has."""
        attributes = self._attributes_of(owner)
        return attributes is not None and self.length(attributes)

    def field(self, owner: Any, key: str, value: Any) -> bool:
        """A function has this code, or an object this class."""
        if key == "__class__":
            return type(owner) is value and self._note(SLOT, owner, CLASS, value)
        known = type(owner) is FunctionType and key == "__code__"
        return known and self._note(SLOT, owner, code_offset(), value)

    def length(self, owner: Any) -> bool:
        """A list or dict is as long as it is; a dict has the same keys."""
        if type(owner) is dict:
            self.whole.append(owner)
        elif type(owner) is list:
            self.kept.append(owner)
            self.facts[ELEMENTS, id(owner), 0, len(owner)] = None
        return type(owner) in (dict, list)

    def writes(self, history: History) -> None:
        """The step writes what has this history: what was saved of it is moved before."""
        self.written.append(history)

    def arguments(self, examples: Sequence[Tensor], apart: Sequence[np.ndarray]) -> bool:
        """The arguments are plain tensors like these that require no grad, no two the same, and
        share no memory with these arrays."""
        arrays = [x._data for x in examples]
        self.given = [(id(a.dtype), a.ndim, a.shape, a.strides, a.nbytes) for a in arrays]
        self.kept += [a.dtype for a in arrays]
        self.spans = [byte_bounds(a) for a in apart]
        return all(type(a) is np.ndarray and a.flags.c_contiguous for a in arrays)

    def look(self) -> Callable[..., int]:
        """What looks at arguments, and at the facts so far: DONE, or CHANGED."""
        return Steady(None, [], [], [], self).function("look")

    def table(self) -> list[tuple[int, int, int, int]]:
        """All facts, as C has them: kind, owner, key and value. A whole dict is one fact, which
        leads to its keys and values in their order, 0 for a value that may change."""
        found = [*self.facts]
        whole = {id(d): d for d in self.whole}
        for owner, items in self.items.items():
            if owner not in whole:
                self.kept.append(items)
                found += [(ITEM, owner, id(k), id(v)) for k, v in items.items()]
        for owner, d in whole.items():
            items = self.items.get(owner, {})
            pairs = _table([x for k in d for x in (id(k), id(items[k]) if k in items else 0)])
            self.kept += items, [*d], pairs
            found.append((ENTRIES, owner, ctypes.addressof(pairs), len(d)))
        return found

    def _attributes_of(self, owner: Any) -> dict[str, Any] | None:
        """The dict of an object, which it has from now on; None where that is not all, as of a
        class."""
        try:
            attributes = _attributes(owner, None)
        except (AttributeError, TypeError):
            return None
        if attributes is not vars(owner):
            return None
        self._note(ATTRIBUTES, owner, 0, attributes)
        return attributes  # type: ignore[no-any-return]

    def _note(self, kind: int, owner: Any, key: int, value: Any) -> bool:
        self.kept += owner, value
        self.facts[kind, id(owner), key, id(value)] = None
        return True


class Steady:
    """A step bound to a watch and to arrays; `given`: which of them a call gives, those of its
    arguments first. Of its functions `step` looks and runs, `step_anyway` only runs, and `look`
    only looks. They take what a call gives (an argument as a tensor, the rest as arrays), and give
    DONE, CHANGED, SAVED (what is written was saved for a backward; nothing ran) or FAILED."""

    def __init__(
        self,
        call: ctypes.Structure | None,
        pointers: Sequence[int],
        arrays: Sequence[Any],
        given: Sequence[int],
        watch: Watch,
    ) -> None:
        self.kept: list[Any] = [call, watch, arrays]  # what the addresses name
        facts = watch.table()
        arguments = [
            (dtype, ndim, self._words(shape), self._words(strides), nbytes)
            for dtype, ndim, shape, strides, nbytes in watch.given
        ]
        self.frame = _Steady(
            ctypes.addressof(call) if call else None,
            self._words([id(a) for a in arrays]),
            self._words([0] * len(arrays) + [*pointers]),
            self._words([word for fact in facts for word in fact]),
            self._words([id(h) for h in watch.written]),
            self._words(given),
            self._words([word for argument in arguments for word in argument]),
            self._words([word for span in watch.spans for word in span]),
            len(facts),
            len(watch.written),
            len(arguments),
            len(watch.spans),
        )

    def _words(self, values: Sequence[int]) -> int:
        words = _table(values)
        self.kept.append(words)
        return ctypes.addressof(words)

    def function(self, name: str) -> Callable[..., int]:
        """One of the three, as C has it: `look`, `step`, `step_anyway`."""
        function = getattr(_library(), f"tinyaot_{name}")
        pointer = ctypes.cast(function, ctypes.c_void_p)
        method = _Method(name.encode(), pointer.value, FASTCALL, None)
        address = _Address(ctypes.addressof(self.frame))
        address.kept = self, method
        made: Callable[..., int] = _new_function(ctypes.addressof(method), address, None)
        return made


class _Address(int):
    """An address that keeps alive what is there."""

    kept: Any


@cache
def offset(kind: type, name: str) -> int:
    """Where an object of ours has a slot, in bytes."""
    example: object = object.__new__(kind)
    mark = object()
    getattr(kind, name).__set__(example, mark)
    return _find(mark, example)


@cache
def code_offset() -> int:
    """Where a function has its code."""
    return _find(_find.__code__, _find)


def _find(held: object, owner: object) -> int:
    """Where an object has another one."""
    size = ctypes.sizeof(ctypes.c_size_t)
    words = (ctypes.c_size_t * (type(owner).__basicsize__ // size)).from_address(id(owner))
    return list(words).index(id(held)) * size


def can_watch() -> bool:
    """Whether C may look at Python's objects: it is the Python we know, with one lock."""
    return _library() is not None


@cache
def _library() -> ctypes.CDLL | None:
    """The runtime, once it is told of Python; None if it cannot be."""
    if sys.implementation.name != "cpython" or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None
    example = np.empty((2, 3), np.float32)[1:, ::2]
    seen = _Array.from_address(id(example) + HEADER)
    if (seen.base, seen.descr, seen.nd) != (id(example.base), id(example.dtype), example.ndim):
        return None
    functions = [ctypes.cast(getattr(pythonapi, f), ctypes.c_void_p).value or 0 for f in API]
    values = map(id, (False, None, (), Tensor, np.ndarray))
    library, _ = load_pool()
    library.tinyaot_python(_table([*functions, *values, HEADER, *(offset(*s) for s in SLOTS)]))
    return library


def _table(words: Sequence[int]) -> Any:
    """An array of words for C."""
    return (ctypes.c_ssize_t * len(words))(*words)
