"""Guards: is a compiled program still right for this call?

The slow check (`Specialization.bind`) says in words what differs. The fast one here is a straight
line of `is` comparisons, generated once from the same facts (as TorchDynamo generates its guards):
every object in reach is the one it was, and the arguments have the traced type. What passes it
needs no second look; what does not is looked at slowly, and may pass that. `steady` makes the
whole call of such lines. Where a backend can look at state itself, it takes most of them over (see
`backends.watch`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tinyaot.recorder import eager
from tinyaot.shapes import TensorType, numpy_to_dtype
from tinyaot.slots import (
    ATTRIBUTE,
    BY_VALUE,
    FIELD,
    ITEM,
    KEYS,
    LENGTH,
    MISSING,
    NAMES,
    SIZE,
    Slot,
)
from tinyaot.tensor import Tensor

if TYPE_CHECKING:
    from tinyaot.backends.watch import Watch

MISS: Any = object()  # what a fast check gives for a call that it is not sure of


def requires_grad(tensor: Tensor) -> bool:
    """Whether a tensor requires grad outside any trace."""
    return eager().edge(tensor) is not None


class TensorGuard:
    """What a tensor input was when it was traced."""

    __slots__ = ("dtype", "requires_grad", "shape", "strides")

    def __init__(self, tensor: Tensor) -> None:
        data = tensor._data
        self.shape, self.strides, self.dtype = data.shape, data.strides, data.dtype
        self.requires_grad = requires_grad(tensor)

    def holds(self, tensor: Any) -> bool:
        """Whether a tensor may stand for the traced one."""
        if not isinstance(tensor, Tensor) or requires_grad(tensor) != self.requires_grad:
            return False
        data = tensor._data
        now = data.shape, data.strides, data.dtype
        return bool(now == (self.shape, self.strides, self.dtype))

    def mismatch(self, tensor: Any, name: str) -> str:
        """How a tensor that does not pass differs, in words."""
        if not isinstance(tensor, Tensor):
            return f"{name} is not a tensor any more but a {type(tensor).__name__}"
        was = TensorType(numpy_to_dtype(self.dtype), self.shape)
        if tensor.type != was:
            return f"{name} is {tensor.type}, was {was}"
        if requires_grad(tensor) != self.requires_grad:
            now = "does not require grad" if self.requires_grad else "requires grad"
            return f"{name} {now} now"
        return f"{name} has other strides"


class Unread:
    """Tensors in reach that are no inputs. What may have been read of each is its type, and whether
    it is another of them, or an input."""

    def __init__(self, slots: Sequence[Slot], inputs: Sequence[Any]) -> None:
        self.slots = slots
        self.facts = self._facts(inputs)

    def _facts(self, inputs: Sequence[Any]) -> list[tuple[Any, int]]:
        """Of each its type (the class of what is no tensor), and the first place of the same."""
        held = [slot.read() for slot in self.slots]
        first: dict[int, int] = {}
        for i, x in enumerate((*inputs, *held)):
            first.setdefault(id(x), i)
        return [(x.type if isinstance(x, Tensor) else type(x), first[id(x)]) for x in held]

    def changed(self, inputs: Sequence[Any]) -> str | None:
        """What is not as it was, in words."""
        for slot, was, now in zip(self.slots, self.facts, self._facts(inputs), strict=True):
            if was[0] != now[0]:
                return f"the type of {slot.path} changed from {was[0]} to {now[0]}"
            if was != now:
                return f"{slot.path} is the same tensor as another now, or is not any more"
        return None


# ---- the fast check -----------------------------------------------------------------------------


class Text:
    """Lines of a function that checks, and the objects that they name.

    A condition that fails returns MISS, and so does one that cannot be evaluated. What a `watch`
    takes has no line.
    """

    def __init__(self, watch: Watch | None = None) -> None:
        self.watch = watch
        self.names: dict[str, Any] = {}
        self.lines: list[str] = []
        self._known: dict[int, str] = {}
        self._dicts: dict[int, str] = {}  # of objects, as read in this call
        self._required: set[str] = set()

    def name(self, x: Any) -> str:
        """A name for an object: text never holds the user's own."""
        if id(x) not in self._known:
            self._known[id(x)] = name = f"o{len(self.names)}"
            self.names[name] = x
        return self._known[id(x)]

    def key(self, x: Any) -> str:
        return repr(x) if type(x) in (str, int) else self.name(x)

    def read(self, slot: Slot) -> str | None:
        """An expression for what a slot holds; None for a slot that only the slow check knows."""
        if slot.access.text is None:
            return None
        owner = self.name(slot.owner)
        if slot.access in (ATTRIBUTE, SIZE):
            if id(slot.owner) not in self._dicts:
                self._dicts[id(slot.owner)] = f"d{owner}"
                self.lines.append(f"d{owner} = {owner}.__dict__")
            owner = self._dicts[id(slot.owner)]
        return slot.access.text.format(owner, self.key(slot.key))

    def require(self, condition: str) -> None:
        """A condition, once."""
        if condition not in self._required:
            self._required.add(condition)
            self.lines.append(f"if not ({condition}): return MISS")

    def arguments(self, at: str, example: Any, found: list[Tensor]) -> bool:
        """Conditions on an argument like `example`, and names x0, x1 ... for the tensors in it.
        Whether they have a fast form."""
        if isinstance(example, Tensor):
            self.lines.append(f"x{len(found)} = {at}")
            found.append(example)
        elif type(example) in (tuple, list):
            self.require(f"{at}.__class__ is {self.name(type(example))}")
            self.require(f"len({at}) == {len(example)}")
            inner = [self.arguments(f"{at}[{i}]", x, found) for i, x in enumerate(example)]
            return all(inner)
        elif type(example) is dict:
            self.keys(at, tuple(example))
            inner = [self.arguments(f"{at}[{self.key(k)}]", x, found) for k, x in example.items()]
            return all(inner)
        elif isinstance(example, (bool, int, float, str, type(None))):
            self.require(f"{at} is {self.name(example)}")
        else:
            return False
        return True

    def keys(self, at: str, keys: tuple[Any, ...]) -> None:
        """A condition on the keys of a mapping, whose items are read apart, and on their order."""
        several = len(keys) > 1
        self.require(
            f"tuple({at}) == {self.name(keys)}" if several else f"len({at}) == {len(keys)}"
        )

    def watched(self, slot: Slot, value: Any) -> bool:
        """Whether the watch looks if a place holds what it held."""
        if self.watch is None:
            return False
        if slot.access in (LENGTH, KEYS):
            return self.watch.length(slot.owner)
        if slot.access is SIZE:
            return self.watch.number_of_attributes(slot.owner)
        takes = {ATTRIBUTE: self.watch.attribute, ITEM: self.watch.item, FIELD: self.watch.field}
        take = takes.get(slot.access)
        return take is not None and value is not MISSING and take(slot.owner, slot.key, value)

    def slots(self, slots: Iterable[tuple[Slot, Any]]) -> bool:
        """Conditions that places hold what they held. Whether they have a fast form."""
        for slot, value in slots:
            if self.watched(slot, value):
                continue
            if slot.access is NAMES:  # which takes long to read
                same = f"len({self.name(slot.owner)}) == {len(slot.owner)}"
                self.require(f"{same} or {self.name(slot)}.read() == {self.name(value)}")
                continue
            expression = self.read(slot)
            if expression is None:
                return False
            if slot.access is KEYS:
                self.keys(self.name(slot.owner), value)
            elif value is MISSING and slot.access is ITEM:
                self.require(f"{self.key(slot.key)} not in {self.name(slot.owner)}")
            elif slot.access in BY_VALUE:
                self.require(f"{expression} == {self.name(value)}")
            else:
                self.require(f"{expression} is {self.name(value)}")
        return True

    def unread(self, unread: Unread, inputs: Sequence[str], arguments: int) -> bool:
        """A condition that tensors in reach that are no inputs are what they are now, and none of
        them an argument; or, where they are others, that those are like them. `inputs`:
        expressions for the inputs. Whether it has a fast form."""
        if not unread.slots:
            return True
        held = [slot.read() for slot in unread.slots]
        same = [f"id(x{i}) not in {self.name(frozenset(map(id, held)))}" for i in range(arguments)]
        for slot, tensor in zip(unread.slots, held, strict=True):
            expression = self.read(slot)
            if expression is None:
                return False
            name, data = self.name(tensor), self.name(tensor._data)
            same.append(f"{expression} is {name} and {name}._data is {data}")
        others = f"{self.name(unread)}.changed(({', '.join(inputs)},)) is None"
        self.require(f"{' and '.join(same)} or {others}")
        return True

    def field(self, owner: Any, name: str) -> None:
        """A condition that a slot of a tensor or a history holds what it holds."""
        value = getattr(owner, name)
        if self.watch is None or not self.watch.slot(owner, name, value):
            self.require(f"{self.name(owner)}.{name} is {self.name(value)}")

    def tensors(self, tensors: Iterable[tuple[Slot | None, Tensor]]) -> bool:
        """Conditions that places hold these tensors (no place: held by none), with the same arrays;
        a tensor's history is the same all its life. Whether they have a fast form."""
        for slot, tensor in tensors:
            if tensor._chain or not (slot is None or self.slots([(slot, tensor)])):
                return False
            self.field(tensor, "_data")
            self.field(tensor._history, "requires_grad")
        return True

    def like(
        self, arguments: Sequence[Tensor], written: Sequence[bool], apart: Sequence[np.ndarray]
    ) -> bool:
        """Conditions that the tensors x0, x1 ... have the types of `arguments`, and that none that
        is written shares memory with another, nor any with the arrays `apart`; names v0, v1 ...
        for their arrays, unless a watch takes all. Whether they have a fast form."""
        if any(t._chain or requires_grad(t) or type(t) is not Tensor for t in arguments):
            return False
        if self.watch is not None:
            return not any(written) and self.watch.arguments(arguments, apart)
        owners = frozenset(map(owner_of, apart))
        if None in owners:
            return False
        for i, tensor in enumerate(arguments):
            data, v = tensor._data, f"v{i}"
            self.lines.append(f"{v} = x{i}._data; b{i} = {v}.base")
            self.require(f"x{i}.__class__ is {self.name(Tensor)} and not x{i}._chain")
            self.require(f"{v}.shape == {self.name(data.shape)}")
            self.require(f"{v}.dtype is {self.name(data.dtype)}")
            self.require(f"{v}.strides == {self.name(data.strides)}")
            self.require(f"x{i}._history.requires_grad is False")
            if owners:
                own = f"b{i}.__class__ is {self.name(np.ndarray)} and b{i}.base is None"
                self.require(f"b{i} is None or {own}")
                self.require(f"id({v} if b{i} is None else b{i}) not in {self.name(owners)}")
            for j in range(i):
                self.require(f"x{i} is not x{j}")
                if written[i] or written[j]:
                    self.require(f"b{i} is None and b{j} is None and {v} is not v{j}")
        return True

    def function(self, rest: Sequence[str], names: dict[str, Any]) -> Callable[..., Any]:
        """`f(args, kwargs)`: the conditions, and then the lines of `rest`."""
        names = {**self.names, **names, "MISS": MISS}
        failures = "AttributeError, LookupError, TypeError, ValueError"
        checks = "\n".join(f"      {line}" for line in self.lines)
        body = "\n".join(f"    {line}" for line in rest)
        source = (
            f"def make({', '.join(names)}):\n  def call(args, kwargs):\n    try:\n{checks}\n"
            f"    except ({failures}): return MISS\n{body}\n  return call\n"
        )
        space: dict[str, Any] = {}
        exec(compile(source, "<tinyaot steady call>", "exec"), space)
        made: Callable[..., Any] = space["make"](**names)
        return made


def owner_of(array: np.ndarray) -> int | None:
    """The id of the array that owns an array's bytes; None if they are no array's. Two arrays that
    have owners share memory only if they have one."""
    owner = array if array.base is None else array.base
    return id(owner) if type(owner) is np.ndarray and owner.base is None else None
