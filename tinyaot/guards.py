"""Guards: is a compiled program still right for this call?

The slow check (`Specialization.bind`) says in words what differs. The fast one here is a straight
line of `is` comparisons, generated once from the same facts (as TorchDynamo generates its guards):
every object in reach is the one it was, and the arguments have the traced type. What passes it
needs no second look; what does not is looked at slowly, and may pass that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tinyaot import state
from tinyaot.ops.core import mode
from tinyaot.shapes import TensorType, numpy_to_dtype
from tinyaot.state import Slot
from tinyaot.tensor import Tensor


def requires_grad(tensor: Tensor) -> bool:
    """Whether a tensor requires grad outside any trace."""
    return mode.default.edge(tensor) is not None  # type: ignore[attr-defined,no-any-return]


class TensorGuard:
    """What a tensor input was when it was traced."""

    __slots__ = ("data", "dtype", "requires_grad", "shape", "strides", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        data = tensor._data
        self.shape, self.strides, self.dtype = data.shape, data.strides, data.dtype
        self.requires_grad = requires_grad(tensor)
        self.tensor: Tensor | None = None  # the last one that passed, with its array
        self.data: np.ndarray | None = None

    def holds(self, tensor: Any) -> bool:
        """Whether a tensor may stand for the traced one; quick for the one that did last time."""
        if not isinstance(tensor, Tensor):
            return False
        data = tensor._data
        if requires_grad(tensor) != self.requires_grad:
            return False
        if tensor is self.tensor and data is self.data:
            return True
        if data.shape != self.shape or data.dtype != self.dtype or data.strides != self.strides:
            return False
        self.tensor, self.data = tensor, data
        return True

    def mismatch(self, tensor: Any, name: str) -> str:
        """How a tensor that does not pass differs, in words."""
        if not isinstance(tensor, Tensor):
            return f"{name} is no tensor any more but {type(tensor).__name__}"
        was = TensorType(numpy_to_dtype(self.dtype), self.shape)
        if tensor.type != was:
            return f"{name} is {tensor.type}, was {was}"
        if requires_grad(tensor) != self.requires_grad:
            now = "does not require grad" if self.requires_grad else "requires grad"
            return f"{name} {now} now"
        return f"{name} has other strides"


# ---- the fast check -----------------------------------------------------------------------------

_READ: dict[
    Callable[[Any, Any], Any], str
] = {  # how generated text reads a slot: {0} its owner, {1} its key
    state._attr: "{0}.__dict__[{1}]",
    state._item: "{0}[{1}]",
    state._cell: "{0}.cell_contents",
    state._slot_attr: "getattr({0}, {1})",
    state._length: "len({0})",
    state._keys: "tuple({0})",
}


class _Text:
    """Conditions, and the objects that they name."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self.known: dict[int, str] = {}
        self.lines: list[str] = []

    def name(self, x: Any) -> str:
        """A name for an object: text never holds the user's own."""
        if id(x) not in self.known:
            self.known[id(x)] = name = f"o{len(self.names)}"
            self.names[name] = x
        return self.known[id(x)]

    def read(self, slot: Slot) -> str | None:
        """An expression for what a slot holds; None for a slot that only the slow check knows."""
        form = _READ.get(slot.get)
        if form is None:
            return None
        return form.format(self.name(slot.owner), self.name(slot.key))

    def require(self, condition: str) -> None:
        self.lines.append(f"        if not ({condition}): return None")

    def arguments(self, at: str, example: Any, found: list[Tensor]) -> bool:
        """Conditions on an argument like `example`, and names for the tensors in it. Whether they
        have a fast form."""
        if isinstance(example, Tensor):
            self.lines.append(f"        x{len(found)} = {at}")
            found.append(example)
        elif type(example) in (tuple, list):
            self.require(f"{at}.__class__ is {self.name(type(example))}")
            self.require(f"len({at}) == {len(example)}")
            inner = [self.arguments(f"{at}[{i}]", x, found) for i, x in enumerate(example)]
            return all(inner)
        elif type(example) is dict:
            self.require(f"tuple({at}) == {self.name(tuple(example))}")
            inner = [self.arguments(f"{at}[{self.name(k)}]", x, found) for k, x in example.items()]
            return all(inner)
        elif isinstance(example, (bool, int, float, str, type(None))):
            self.require(f"{at} is {self.name(example)}")
        else:
            return False
        return True


def fast_check(
    scalars: list[tuple[Slot, Any]],
    identities: list[tuple[Slot, Any]],
    tensors: list[tuple[Slot | None, Tensor]],
    none_grads: list[Tensor],
    example: tuple[tuple[Any, ...], dict[str, Any]],
    owners: frozenset[int],
) -> Callable[..., tuple[Tensor, ...] | None] | None:
    """A function of `(args, kwargs)` that gives the tensors among them if every guard surely holds.

    scalars, identities: slots and what they have to hold. tensors: state, by slot, with what is in
    force now (None: held by no slot). example: arguments that passed the slow check. owners: ids of
    the arrays that own the bytes of all state, which a new argument must not share. None where a
    condition has no fast form.
    """
    text = _Text()
    arguments: list[Tensor] = []
    if not text.arguments("args", example[0], arguments):
        return None
    if not text.arguments("kwargs", example[1], arguments):
        return None
    params = [f"x{i}" for i in range(len(arguments))]
    text.require(f"{text.name(mode)}.grad_enabled is {mode.grad_enabled}")
    for slot, value in (*identities, *scalars):
        expression = text.read(slot)
        if expression is None:
            return None
        if slot.get in (state._length, state._keys):
            text.require(f"{expression} == {text.name(value)}")
        else:
            text.require(f"{expression} is {text.name(value)}")
    for slot_, tensor in tensors:
        if tensor._chain:
            return None
        t = text.name(tensor)
        if slot_ is not None:
            expression = text.read(slot_)
            if expression is None:
                return None
            text.require(f"{expression} is {t}")
        text.require(f"{t}._data is {text.name(tensor._data)}")
        history = text.name(tensor._history)
        text.require(f"{t}._history is {history}")
        text.require(f"{history}.requires_grad is {tensor._history.requires_grad}")
    for tensor in none_grads:
        text.require(f"{text.name(tensor)}._grad is None")
    for x, tensor in zip(params, arguments, strict=True):
        if tensor._chain or requires_grad(tensor) or type(tensor) is not Tensor:
            return None
        data = tensor._data
        text.lines.append(f"        d = {x}._data; b = d.base")
        text.require(f"{x}.__class__ is {text.name(Tensor)} and not {x}._chain")
        text.require(f"d.shape == {text.name(data.shape)} and d.dtype is {text.name(data.dtype)}")
        text.require(f"d.strides == {text.name(data.strides)}")
        text.require(f"{x}._history.requires_grad is False")
        text.require(f"id(d if b is None else b) not in {text.name(owners)}")
    for i, x in enumerate(params):
        for y in params[:i]:
            text.require(f"{x}._data is not {y}._data and ({x}._data.base is None)")
    body = "\n".join(text.lines)
    source = (
        f"def check(args, kwargs):\n    try:\n{body}\n"
        f"    except (AttributeError, LookupError, TypeError, ValueError):\n        return None\n"
        f"    return ({''.join(x + ', ' for x in params)})\n"
    )
    exec(compile(source, "<tinyaot guards>", "exec"), text.names)
    check: Callable[..., tuple[Tensor, ...] | None] = text.names["check"]
    return check


def owner_of(array: np.ndarray) -> int:
    """The id of the object that owns an array's bytes."""
    return id(array if array.base is None else array.base)
