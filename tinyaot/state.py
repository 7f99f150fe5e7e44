"""What a function reaches besides its arguments, and whether it is still the same.

Reach is followed from the arguments and the function through closures, bound objects, the globals
(and module attributes) that user functions name, containers and the attributes of objects. Each
step is a `Slot`: a place (owner, key) that can be read again at the next call. A tensor in a slot
is an input of the compiled program; a number or string is guarded by value, anything else by
identity, so nothing that is reached can go stale unseen (TorchDynamo's guards, on objects instead
of bytecode).
"""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tinyaot.location import is_installed, is_standard, is_user_file
from tinyaot.slots import (
    ATTRIBUTE,
    CELL,
    COMPILED_METHODS,
    CONTENTS,
    FIELD,
    HIDDEN,
    ITEM,
    KEYS,
    LENGTH,
    MEMBERS,
    MISSING,
    SCALARS,
    Access,
    Slot,
    number_of_attributes,
    same_scalar,
)
from tinyaot.tensor import Tensor

CONTAINERS = (Mapping, list, tuple, set, frozenset, deque)
LARGE = 2**16  # bytes of a NumPy array


class Function(NamedTuple):
    """A place that matters only where a function may run: one with its code, or the one of a class
    that holds a method. `names`: by which it is called ("": it need not be named)."""

    names: set[str]
    slot: Slot
    held: Any


@dataclass(slots=True)
class Reach:
    """Everything found: tensors and arrays by slot, guards on the rest."""

    tensors: dict[int, list[Slot]] = field(default_factory=dict)  # by the tensor's id
    unread: list[Slot] = field(default_factory=list)  # those of tensors that are no inputs
    objects: dict[int, Any] = field(default_factory=dict)  # keeps what ids name alive
    containers: list[tuple[str, Any]] = field(default_factory=list)  # that may change, by path
    scalars: list[tuple[Slot, Any]] = field(default_factory=list)
    identities: list[tuple[Slot, Any]] = field(default_factory=list)
    functions: list[Function] = field(default_factory=list)

    def slots(self) -> Iterator[Slot]:
        for slots in self.tensors.values():
            yield from slots

    def guard_rest(self, inputs: set[int]) -> None:
        """Guard the functions that may be called, and the NumPy arrays that are no inputs (by id):
        they may have been read as numbers, and are guarded by what they hold, the large ones by
        identity. Find the tensors that are no inputs."""
        named = self.named()
        for f in self.functions:
            if _may_run(f.names, named):
                self.identities.append((f.slot, f.held))
        for key, slots in self.tensors.items():
            array = self.objects[key]
            slots = [s for s in slots if s.access is not ATTRIBUTE or _may_run({s.key}, named)]
            if key in inputs or not slots:
                continue
            if isinstance(array, Tensor):
                self.unread += slots
            else:
                self.identities += [(slot, array) for slot in slots]
                if array.nbytes <= LARGE:
                    contents = Slot(f"what {slots[0].path} holds", array, None, CONTENTS)
                    self.scalars.append((contents, contents.read()))

    def named(self) -> set[str]:
        """All names in the code of the functions that may run."""
        found, todo = {""}, [f for f in self.functions if isinstance(f.held, types.CodeType)]
        while now := [f for f in todo if _may_run(f.names, found)]:
            for code in [c for f in now for c in _with_nested(f.held)]:
                found.update(code.co_names, code.co_freevars, code.co_cellvars)
            todo = [f for f in todo if f not in now]
        return found

    def changed(self) -> str | None:
        """The first guard that fails, in words; None while all hold."""
        for slot, value in self.identities:
            if slot.access.read(slot.owner, slot.key) is not value:
                return f"{slot.path} is another object"
        for slot, value in self.scalars:
            now = slot.access.read(slot.owner, slot.key)
            if now is not value and not same_scalar(now, value):
                if slot.access is CONTENTS:
                    return f"{slot.path} changed"
                return f"{slot.path} changed from {value!r} to {now!r}"
        return None


def find_reach(fn: Any, arguments: list[tuple[str, Any]]) -> Reach:
    """Walk from a function and its (non-tensor) argument objects."""
    walk = _Walk()
    for path, value in arguments:
        walk.follow(path, value)
    walk.follow("", fn)
    walk.run()
    return walk.reach


BY_COMPUTED_NAMES = {"getattr", "vars", "__dict__", "attrgetter", "methodcaller"}


def _may_run(names: set[str], named: set[str]) -> bool:
    """Whether what is called by one of these names may run where others name those."""
    if not named.isdisjoint(names) or not named.isdisjoint(BY_COMPUTED_NAMES):
        return True
    return any(name.startswith("__") and name != "__init__" for name in names)


def _with_nested(code: types.CodeType) -> list[types.CodeType]:
    """A function's code, and that of the functions and lambdas in it."""
    found = [code]
    for outer in found:  # which grows
        found += [c for c in outer.co_consts if isinstance(c, types.CodeType)]
    return found


class _Walk:
    def __init__(self) -> None:
        self.reach = Reach()
        self.todo: list[tuple[str, Any]] = []
        self.names: dict[int, set[str]] = {}  # by which a function is called (by its id)
        self.globals_seen: set[tuple[int, str]] = set()

    def run(self) -> None:
        while self.todo:
            path, value = self.todo.pop()
            self.expand(path, value)

    def follow(self, path: str, value: Any, names: Iterable[str] = ("",)) -> None:
        """Expand a value later, once. `names`: by which alone it is called, if it is a function."""
        self.names.setdefault(id(value), set()).update(names)
        if id(value) not in self.reach.objects:
            self.reach.objects[id(value)] = value
            self.todo.append((path, value))

    def slot(self, path: str, owner: Any, key: Any, access: Access) -> None:
        """Note a place, guard it by what it holds, and go on from there. What a tuple holds is the
        same as long as the tuple is."""
        slot = Slot(path, owner, key, access)
        value, fixed = slot.read(), isinstance(owner, tuple)
        if isinstance(value, (Tensor, np.ndarray)):
            self.reach.tensors.setdefault(id(value), []).append(slot)
            self.reach.objects[id(value)] = value
        elif value is MISSING or isinstance(value, SCALARS):
            if not fixed:
                self.reach.scalars.append((slot, value))
        else:
            if not fixed:
                self.reach.identities.append((slot, value))
            if not _is_opaque(value):
                self.follow(path, value)

    def expand(self, path: str, value: Any) -> None:
        if isinstance(value, types.MethodType):
            self.follow(path, value.__func__)
            self.follow(path or "self", value.__self__)
        elif isinstance(value, types.FunctionType):
            self.function(value)
        elif isinstance(value, CONTAINERS):
            self.container(path, value)
            if is_user_class(type(value)):
                self.attributes(path, value)
        elif isinstance(value, type):
            self.members(value)
            self.classes(value)
        elif isinstance(value, functools.partial):
            for name in ("func", "args", "keywords"):
                self.slot(path, value, name, FIELD)
        else:
            self.attributes(path, value)

    def container(self, path: str, value: Any) -> None:
        if isinstance(value, (list, dict, set, deque)):
            self.reach.containers.append((path, value))
        if isinstance(value, Mapping):
            self.whole(path + " (its keys)", value, KEYS)
            for key in value:
                self.slot(f"{path}[{key!r}]", value, key, ITEM)
        elif isinstance(value, (set, frozenset)):
            self.whole(path + " (its members)", value, MEMBERS)
            for member in value:
                if not isinstance(member, (Tensor, *SCALARS)) and not _is_opaque(member):
                    self.follow(path, member)
        else:
            if not isinstance(value, tuple):
                self.whole(f"len({path})", value, LENGTH)
            for i in range(len(value)):
                self.slot(f"{path}[{i}]", value, i, ITEM)

    def whole(self, path: str, owner: Any, access: Access) -> None:
        """Guard what is said of a whole container: its length, or its keys."""
        slot = Slot(path, owner, None, access)
        self.reach.scalars.append((slot, slot.read()))

    def attributes(self, path: str, value: Any) -> None:
        wrapped = getattr(value, "__dict__", {}).get("__wrapped__")  # a decorated function
        if wrapped is not None:
            self.follow(path, wrapped)
            if type(value).__module__ == "tinyaot.compile":
                return
        skip = set(getattr(type(value), "hyperparameters", ()))
        skip |= {"__wrapped__", COMPILED_METHODS}
        kind = Slot(f"the class of {path or 'self'}", value, "__class__", FIELD)
        self.reach.identities.append((kind, kind.read()))
        if hasattr(value, "__dict__"):
            self.reach.scalars.append(number_of_attributes(path, value))
        for name in list(getattr(value, "__dict__", ())):
            if name not in skip:
                self.slot(f"{path}.{name}" if path else name, value, name, ATTRIBUTE)
        for base in type(value).__mro__:
            for name in getattr(base, "__slots__", ()) if is_user_class(base) else ():
                self.slot(f"{path}.{name}", value, name, FIELD)
        self.classes(type(value))

    def classes(self, cls: type) -> None:
        """The user's classes among those that a class stands on."""
        for base in cls.__mro__:
            if is_user_class(base):
                self.follow(base.__name__, base)

    def members(self, cls: type) -> None:
        """User-defined methods may name globals; what else a class holds is state, too."""
        if not is_user_class(cls):
            return
        self.reach.scalars.append(number_of_attributes(cls.__name__, cls))
        theirs = [
            base for base in cls.__mro__ if not is_user_class(base)
        ]  # who call what they name
        for name, member in list(vars(cls).items()):
            path = f"{cls.__name__}.{name}"
            if not hasattr(member, "__get__"):
                if not name.startswith(HIDDEN):
                    self.slot(path, cls, name, FIELD)
                continue
            parts = [getattr(member, part, None) for part in ("__func__", "fget", "fset", "fdel")]
            parts = parts if any(parts) else [member]
            parts = [p for p in parts if p is not None and not _is_opaque(p)]
            names = {name, cls.__name__} if name == "__init__" else {name}
            if name != "__init__" and any(hasattr(base, name) for base in theirs):
                names.add("")
            for part in parts:
                self.follow(path, part, names)
            if parts:
                slot = Slot(path, vars(cls), name, ITEM)
                self.reach.functions.append(Function(names, slot, member))

    def function(self, fn: types.FunctionType) -> None:
        if not is_user_file(fn.__code__.co_filename):
            return
        if vars(fn):
            self.attributes(fn.__name__, fn)
        names = fn.__code__.co_freevars
        for name, cell in zip(names, fn.__closure__ or (), strict=True):
            self.slot(name, cell, None, CELL)
        for defaults in ("__defaults__", "__kwdefaults__"):
            if getattr(fn, defaults) is not None:  # calls that do without go on doing so
                self.slot(f"{fn.__name__} default", fn, defaults, FIELD)
        if is_standard(fn.__code__.co_filename):
            return
        slot = Slot(f"the code of {fn.__name__}", fn, "__code__", FIELD)
        self.reach.functions.append(Function(self.names[id(fn)], slot, fn.__code__))
        self.globals(fn.__globals__, _with_nested(fn.__code__))

    def globals(self, space: dict[str, Any], codes: list[types.CodeType]) -> None:
        """The globals that a function names, and what it names in modules of the user's."""
        names = {n for code in codes for n in code.co_names}
        new = {n for code in codes for n in _globals_set(code)}
        spaces = [("", space, names & (space.keys() | new))]
        for path, space, there in spaces:  # which grows
            for name in sorted(there):
                value = space.get(name)
                if _is_user_module(value) and all(vars(value) is not s for _, s, _ in spaces):
                    spaces.append((f"{path}{name}.", vars(value), names & vars(value).keys()))
                if (id(space), name) not in self.globals_seen:
                    self.globals_seen.add((id(space), name))
                    self.slot(path + name, space, name, ITEM)


_LIBRARY = (
    "numpy",
    "scipy",
    "rich",
    "ml_dtypes",
    "builtins",
    "typing",
    "collections",
    "abc",
    "logging",
)


def is_user_class(cls: type) -> bool:
    """A class of the user's program (not ours, not Python's, not a library's without tensors)."""
    module = cls.__module__ or ""
    if module.split(".")[0] == "tinyaot" or _is_library(module) or not hasattr(cls, "__dict__"):
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    return not (is_standard(file) if file else module in sys.builtin_module_names)


def _is_library(module: str) -> bool:
    return module.split(".")[0] in _LIBRARY


def _globals_set(code: types.CodeType) -> list[str]:
    """The globals that a code assigns: one that is not there yet is a place, too."""
    if dis.opmap["STORE_GLOBAL"] not in code.co_code[::2]:
        return []
    return [i.argval for i in dis.get_instructions(code) if i.opname == "STORE_GLOBAL"]


def _is_user_module(value: Any) -> bool:
    if not isinstance(value, types.ModuleType) or _is_library(value.__name__):
        return False
    file = getattr(value, "__file__", None)
    if file is None or not is_user_file(file):
        return False
    return not (is_installed(file) or is_standard(file))


def _is_opaque(value: Any) -> bool:
    """Objects that are guarded by identity, and not looked into."""
    if isinstance(
        value, (types.ModuleType, types.BuiltinFunctionType, np.dtype, np.random.Generator)
    ):
        return True
    if isinstance(value, (*CONTAINERS, types.FunctionType, types.MethodType)):
        return False
    if isinstance(value, type):
        return not is_user_class(value)
    library = _is_library(type(value).__module__ or "")
    return library or not (hasattr(value, "__dict__") or is_user_class(type(value)))
