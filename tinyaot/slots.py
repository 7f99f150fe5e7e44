"""A slot: a place that holds something, which each call reads again, and may write.

A slot is an owner, a key and an access: an attribute of an object, an item of a container, what a
closure's cell holds, or a fact about the whole of a container, such as its length. `state` finds
them, `guards` compares what they hold, `assigned` and a call write them. (TorchDynamo has sources
for this, as bytecode.)
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinyaot.shapes import DType

SCALARS = (bool, int, float, complex, str, bytes, type(None), enum.Enum, DType, np.generic)
COMPILED_METHODS = "_tinyaot_compiled_methods"  # where an object keeps its own compiled methods
HIDDEN = ("__", "_abc_", COMPILED_METHODS)  # names of what Python and we keep in a class


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


MISSING = _Missing()  # what a place holds that is not there


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """A way to a place in its owner: `read(owner, key)`, `write(owner, key, value)`, and the
    expression by which generated text reads it, where {0} is the owner (of attributes, its dict)
    and {1} the key."""

    read: Callable[[Any, Any], Any]
    write: Callable[[Any, Any, Any], None] | None = None
    text: str | None = None


def _item(owner: Any, key: Any) -> Any:
    try:
        return owner[key]
    except (LookupError, TypeError):
        return MISSING


def _cell(owner: Any, key: Any) -> Any:
    try:
        return owner.cell_contents
    except ValueError:
        return MISSING


def _set_attribute(owner: Any, key: Any, value: Any) -> None:
    if value is MISSING:
        owner.__dict__.pop(key, None)
    else:
        owner.__dict__[key] = value


def _set_field(owner: Any, key: Any, value: Any) -> None:
    plain: Any = type if isinstance(owner, type) else object  # whatever its class does about it
    if value is MISSING:
        plain.__delattr__(owner, key)
    else:
        plain.__setattr__(owner, key, value)


def _set_item(owner: Any, key: Any, value: Any) -> None:
    if value is MISSING:
        del owner[key]
    else:
        owner[key] = value


ATTRIBUTE = Access(lambda o, key: o.__dict__.get(key, MISSING), _set_attribute, "{0}[{1}]")
FIELD = Access(lambda o, key: getattr(o, key, MISSING), _set_field, "getattr({0}, {1})")
ITEM = Access(_item, _set_item, "{0}[{1}]")
CELL = Access(_cell, lambda o, key, x: _set_field(o, "cell_contents", x), "{0}.cell_contents")
LENGTH = Access(lambda o, key: len(o), text="len({0})")
SIZE = Access(lambda o, key: len(o.__dict__), text="len({0})")  # of an object: its attributes
MEMBERS = Access(lambda o, key: frozenset(o), text="frozenset({0})")
CONTENTS = Access(lambda o, key: o.tobytes(), text="{0}.tobytes()")  # of a NumPy array
BY_VALUE = (LENGTH, SIZE, MEMBERS, CONTENTS)  # what they read is new at each call
KEYS = Access(lambda o, key: tuple(o), text="tuple({0})")
NAMES = Access(lambda o, key: sum(not name.startswith(HIDDEN) for name in o))  # of a class's dict


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
    """The place of an attribute of an object or class."""
    return Slot(name, owner, name, FIELD if isinstance(owner, type) else ATTRIBUTE)


def is_hidden(owner: Any, name: str) -> bool:
    """Whether an attribute of a class is not the user's."""
    return isinstance(owner, type) and name.startswith(HIDDEN)


def number_of_attributes(path: str, owner: Any) -> tuple[Slot, int]:
    """A guard on how many attributes an object or class has."""
    path = f"the number of attributes of {path or 'self'}"
    if isinstance(owner, type):
        slot = Slot(path, vars(owner), None, NAMES)
    else:
        slot = Slot(path, owner, None, SIZE)
    return slot, slot.read()


# ---- values that are compared and set -----------------------------------------------------------


def is_plain(x: Any) -> bool:
    """Whether a value is nothing but scalars: a trace can take it back, and a call set it."""
    return isinstance(x, SCALARS) or (type(x) is tuple and all(map(is_plain, x)))


def same_plain(a: Any, b: Any) -> bool:
    """Whether plain values are equal in type and value."""
    if type(a) is tuple and type(b) is tuple:
        return len(a) == len(b) and all(map(same_plain, a, b))
    return type(a) is not tuple and same_scalar(a, b)


def same_scalar(a: Any, b: Any) -> bool:
    """Equal in type and value; NaN equals itself, 0.0 differs from -0.0."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if a != a or b != b:
        return bool(a != a and b != b)
    return bool(a == b) and (a != 0 or repr(a) == repr(b))
