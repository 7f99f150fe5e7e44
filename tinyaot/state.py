"""What a function reaches besides its arguments, and whether it is still the same.

Reach is followed from the arguments and the function through closures, bound objects, the globals
(and module attributes) that user functions name, containers and the attributes of objects. Each
step is a `Slot`: a place (owner, key) that can be read again at the next call. A tensor in a slot
is an input of the compiled program; a number or string is guarded by value, anything else by
identity, so nothing that is reached can go stale unseen (TorchDynamo's guards, on objects instead
of bytecode).
"""

from __future__ import annotations

import enum
import functools
import operator
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinyaot.location import is_user_file
from tinyaot.shapes import DType
from tinyaot.tensor import Tensor

SCALARS = (bool, int, float, complex, str, bytes, type(None), enum.Enum, DType, np.generic)
COMPILED_METHODS = "_tinyaot_compiled_methods"  # where an object keeps its own compiled methods
_MISSING = object()


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """A way to a place in its owner: `read(owner, key)`, `write(owner, key, value)`, and the
    expression by which generated text reads it, where {0} is the owner (of an attribute, its
    dict) and {1} the key."""

    read: Callable[[Any, Any], Any]
    write: Callable[[Any, Any, Any], None] | None = None
    text: str | None = None


def _item(owner: Any, key: Any) -> Any:
    try:
        return owner[key]
    except (LookupError, TypeError):
        return _MISSING


def _cell(owner: Any, key: Any) -> Any:
    try:
        return owner.cell_contents
    except ValueError:
        return _MISSING


def _set_attribute(owner: Any, key: Any, value: Any) -> None:
    owner.__dict__[key] = value


ATTRIBUTE = Access(lambda o, key: o.__dict__.get(key, _MISSING), _set_attribute, "{0}[{1}]")
FIELD = Access(lambda o, key: getattr(o, key, _MISSING), setattr, "getattr({0}, {1})")
ITEM = Access(_item, operator.setitem, "{0}[{1}]")
CELL = Access(_cell, lambda o, key, x: setattr(o, "cell_contents", x), "{0}.cell_contents")
LENGTH = Access(lambda o, key: len(o), text="len({0})")
KEYS = Access(lambda o, key: tuple(o), text="tuple({0})")
GRAD = Access(getattr)  # of a tensor in reach


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """A place that holds something. `path` is its name for people."""

    path: str
    owner: Any
    key: Any
    access: Access

    def read(self) -> Any:
        return self.access.read(self.owner, self.key)

    def write(self, value: Any) -> None:
        """Put a value there (after a step that assigns a tensor to a reached attribute)."""
        assert self.access.write is not None
        self.access.write(self.owner, self.key, value)


def attribute_slot(owner: Any, name: str) -> Slot:
    """The place of an object's attribute."""
    return Slot(name, owner, name, ATTRIBUTE)


def same_scalar(a: Any, b: Any) -> bool:
    """Equal in type and value; NaN equals itself, 0.0 differs from -0.0."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if a != a or b != b:
        return bool(a != a and b != b)
    return bool(a == b) and (a != 0 or repr(a) == repr(b))


@dataclass(slots=True)
class Reach:
    """Everything found: tensors and arrays by slot, guards on the rest."""

    tensors: dict[int, list[Slot]]  # id of the Tensor -> the slots that hold it
    objects: dict[int, Any]  # keeps what ids name alive
    scalars: list[tuple[Slot, Any]]
    identities: list[tuple[Slot, Any]]

    def slots(self) -> Iterator[Slot]:
        for slots in self.tensors.values():
            yield from slots

    def changed(self) -> str | None:
        """The first guard that fails, in words; None while all hold."""
        for slot, value in self.identities:
            if slot.access.read(slot.owner, slot.key) is not value:
                return f"{slot.path} is another object"
        for slot, value in self.scalars:
            now = slot.access.read(slot.owner, slot.key)
            if now is not value and not same_scalar(now, value):
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


class _Walk:
    def __init__(self) -> None:
        self.reach = Reach({}, {}, [], [])
        self.todo: list[tuple[str, Any]] = []
        self.globals_seen: set[tuple[int, str]] = set()

    def run(self) -> None:
        while self.todo:
            path, value = self.todo.pop()
            self.expand(path, value)

    def follow(self, path: str, value: Any) -> None:
        """Expand a value later, once."""
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
        elif value is _MISSING or isinstance(value, SCALARS):
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
        elif isinstance(value, Mapping):
            self.whole(path + " (its keys)", value, KEYS)
            for key in value:
                self.slot(f"{path}[{key!r}]", value, key, ITEM)
        elif isinstance(value, (list, tuple)):
            if isinstance(value, list):
                self.whole(f"len({path})", value, LENGTH)
            for i in range(len(value)):
                self.slot(f"{path}[{i}]", value, i, ITEM)
        elif isinstance(value, type):
            self.methods(value)
        elif isinstance(value, functools.partial):
            for name in ("func", "args", "keywords"):
                self.slot(path, value, name, FIELD)
        else:
            self.attributes(path, value)

    def whole(self, path: str, owner: Any, access: Access) -> None:
        """Guard what is said of a whole container: its length, or its keys."""
        slot = Slot(path, owner, None, access)
        self.reach.scalars.append((slot, slot.read()))

    def attributes(self, path: str, value: Any) -> None:
        wrapped = getattr(value, "__wrapped__", None)  # a compiled or otherwise decorated function
        if wrapped is not None:
            self.follow(path, wrapped)
            if type(value).__module__ == "tinyaot.compile":
                return
        skip = set(getattr(type(value), "hyperparameters", ()))
        skip |= {"__wrapped__", COMPILED_METHODS}
        if hasattr(value, "__dict__"):
            self.whole(f"the number of attributes of {path or 'self'}", vars(value), LENGTH)
        for name in list(getattr(value, "__dict__", ())):
            if name not in skip:
                self.slot(f"{path}.{name}" if path else name, value, name, ATTRIBUTE)
        for base in type(value).__mro__:
            for name in getattr(base, "__slots__", ()) if is_user_class(base) else ():
                self.slot(f"{path}.{name}", value, name, FIELD)
        self.methods(type(value))

    def methods(self, cls: type) -> None:
        """User-defined methods may name globals; class attributes are guarded, too."""
        for base in cls.__mro__:
            if not is_user_class(base):
                continue
            for name, member in list(vars(base).items()):
                member = getattr(member, "__func__", getattr(member, "fget", member))
                if isinstance(member, types.FunctionType):
                    self.follow(f"{base.__name__}.{name}", member)
                elif isinstance(member, SCALARS) and not name.startswith("__"):
                    self.slot(f"{base.__name__}.{name}", base, name, FIELD)

    def function(self, fn: types.FunctionType) -> None:
        if not is_user_file(fn.__code__.co_filename):
            return
        names = fn.__code__.co_freevars
        for name, cell in zip(names, fn.__closure__ or (), strict=True):
            self.slot(name, cell, None, CELL)
        for defaults in ("__defaults__", "__kwdefaults__"):
            if getattr(fn, defaults) is not None:  # calls that do without go on doing so
                self.slot(f"{fn.__name__} default", fn, defaults, FIELD)
        codes = [fn.__code__]
        for code in codes:
            codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]
        named = {n for code in codes for n in code.co_names}
        for name in sorted(named):
            if name in fn.__globals__ and (id(fn.__globals__), name) not in self.globals_seen:
                self.globals_seen.add((id(fn.__globals__), name))
                value = fn.__globals__[name]
                if isinstance(value, types.ModuleType):
                    self.module(name, value, named)
                else:
                    self.slot(name, fn.__globals__, name, ITEM)

    def module(self, path: str, module: types.ModuleType, named: set[str]) -> None:
        """Only the attributes that the function names, and only of the user's modules."""
        if not _is_user_module(module):
            return
        for name in sorted(named & set(vars(module))):
            key = (id(vars(module)), name)
            if key not in self.globals_seen:
                self.globals_seen.add(key)
                self.slot(f"{path}.{name}", vars(module), name, ITEM)


_LIBRARY = ("numpy", "scipy", "rich", "ml_dtypes", "builtins", "typing", "collections", "abc")


def is_user_class(cls: type) -> bool:
    """A class of the user's program (not ours, not a library's that holds no tensors)."""
    module = cls.__module__ or ""
    root = module.split(".")[0]
    return root != "tinyaot" and root not in _LIBRARY and hasattr(cls, "__dict__")


def _is_user_module(module: types.ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    if file is None or not is_user_file(file):
        return False
    return "site-packages" not in file and not file.startswith(types.__file__.rsplit("/", 1)[0])


def _is_opaque(value: Any) -> bool:
    """Objects that are guarded by identity, and not looked into."""
    if isinstance(
        value, (types.ModuleType, types.BuiltinFunctionType, np.dtype, np.random.Generator)
    ):
        return True
    root = (type(value).__module__ or "").split(".")[0]
    if isinstance(value, (list, tuple, dict, types.FunctionType, types.MethodType)):
        return False
    if isinstance(value, type):
        return not is_user_class(value)
    return root in _LIBRARY or not (hasattr(value, "__dict__") or is_user_class(type(value)))
