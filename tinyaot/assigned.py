"""What a traced function assigns to places in reach: taken back after the trace, done by each call.

A trace runs the user's function on no data, so it must leave no mark. Every place in reach is read
before and after it, and gets back what it held. A tensor found there becomes an output, and each
call binds it anew; a number, a flag or a string is the same at every call that passes the guards,
so each call sets it. What is neither, no call could do again: the function is refused.
"""

from __future__ import annotations

import pickle
import sys
import types
from collections import deque
from typing import Any, cast

from tinyaot.errors import TraceError
from tinyaot.location import Loc
from tinyaot.random import generator as own
from tinyaot.slots import (
    MISSING,
    Slot,
    attribute_slot,
    is_hidden,
    is_plain,
    number_of_attributes,
    same_plain,
)
from tinyaot.state import Reach, find_reach
from tinyaot.tensor import Tensor
from tinyaot.trace import TraceEngine
from tinyaot.traced import Traced


class Assigned:
    """Places of a reach, as they were when this was made, and what was assigned to them since."""

    def __init__(self, reach: Reach) -> None:
        self.reach = reach
        self.names = {id(x): set(vars(x)) for x in reach.objects.values() if _has_attributes(x)}
        slots = [*reach.slots(), *(slot for slot, _ in reach.identities + reach.scalars)]
        self.before = [(slot, slot.read()) for slot in slots]
        self.contents = [(path, x, x.copy()) for path, x in reach.containers]
        self.random = self._random_states()
        self.tensors: list[tuple[Slot, Tensor]] = []
        self.plain: list[tuple[Slot, Any]] = []
        self.others: list[tuple[str, Any]] = []  # by path

    def put_back(self, engine: TraceEngine) -> None:
        """Undo what was assigned."""
        for slot, old in self.before:
            now = slot.read()
            if now is not old and slot.access.write is not None:
                if now is not MISSING or not isinstance(slot.owner, (list, deque)):
                    self._take(slot, now, old)
        for path, container, old in self.contents:
            if not _same_items(container, old):
                self.others.append((path, container.copy()))
                container.clear()
                (container.extend if isinstance(old, (list, deque)) else container.update)(old)
        for owner in list(self.reach.objects.values()):
            if _has_attributes(owner):
                self._take_new_attributes(owner)
        for hyper in engine.touched.values():
            slot = attribute_slot(hyper.owner, hyper.name)
            if hyper.read:  # by the function itself
                self.reach.scalars.append((slot, hyper.before))
            if hyper.assigned:
                self.plain.append((slot, slot.read()))
                slot.write(hyper.before)

    def _take(self, slot: Slot, now: Any, old: Any) -> None:
        """Note what was assigned to a place, and put the old value back."""
        if isinstance(now, Tensor):
            self.tensors.append((slot, now))
        elif not is_plain(now):
            self.others.append((slot.path, now))
        elif not same_plain(now, old):
            self.plain.append((slot, now))
        slot.write(old)

    def _take_new_attributes(self, owner: Any) -> None:
        for name, value in list(vars(owner).items()):
            if name in self.names[id(owner)] or is_hidden(owner, name):
                continue
            self._take(attribute_slot(owner, name), value, MISSING)
            if isinstance(owner, types.FunctionType):  # which are not guarded while they have none
                self.reach.scalars.append(number_of_attributes(owner.__name__, owner))

    def check(self) -> None:
        """Raise TraceError for what no call could do again."""
        self._check_random()
        refuse_leaks(self.others)
        for path, _ in self.others:
            raise TraceError(
                f"the function changes what it reaches: {path}; compiled code sets attributes and "
                f"items to tensors, numbers and strings alone: do the rest outside of it"
            )

    def _random_states(self) -> list[Any]:
        """How often our own generator was set, and all that draws by Python or NumPy change."""
        python, numpy = sys.modules.get("random"), sys.modules.get("numpy.random")
        found: list[Any] = [python and python.getstate(), numpy and numpy.get_state()]
        for _, x in self.reach.identities:
            if numpy and isinstance(x, numpy.Generator):
                found.append(x.bit_generator.state)
            elif numpy and isinstance(x, numpy.RandomState):
                found.append(x.get_state())
            elif python and isinstance(x, python.Random):
                found.append(x.getstate())
        return [own.seedings, *map(pickle.dumps, found)]

    def _check_random(self) -> None:
        """Raise TraceError for random numbers that every call would repeat."""
        seedings, *states = self._random_states()
        if seedings != self.random[0]:
            raise TraceError(
                "random numbers were seeded inside a compiled function: do that outside of it"
            )
        if states != self.random[1:]:
            raise TraceError(
                "a compiled function drew random numbers from Python or NumPy, and every call "
                "would repeat them: use ta.rand, or draw outside and pass them as tensors"
            )


def _has_attributes(x: Any) -> bool:
    return not isinstance(x, (Tensor, list, dict)) and hasattr(x, "__dict__")


def _same_items(container: Any, old: Any) -> bool:
    """Whether a list, dict, set or deque holds the very objects that its copy does, in order."""
    if isinstance(old, set):
        return bool(container == old)
    now, then = (x.items() if isinstance(x, dict) else enumerate(x) for x in (container, old))
    pairs = zip(now, then, strict=False)
    return len(container) == len(old) and all(k == m and x is y for (k, x), (m, y) in pairs)


def refuse_leaks(objects: list[tuple[str, Any]]) -> None:
    """Raise TraceError for a traced tensor that can be reached from objects, by their paths, that
    no call could make again."""
    for slot in find_reach(None, objects).slots():
        value = slot.read()
        if isinstance(value, Tensor) and value.is_traced:
            raise TraceError(
                f"{slot.path} is a traced tensor ({value.type}) stored in a "
                f"{type(slot.owner).__name__}, where no call could put another: return it, in "
                f"tuples, lists, dicts or dataclasses. It is made",
                at=_made_at(value),
            )


def _made_at(tensor: Tensor) -> Loc | None:
    """The user's line that a traced tensor comes from (None: the call)."""
    data: Traced = tensor._data
    engine = cast(TraceEngine, data.engine)
    made = [n.loc for n in engine.builder.nodes if data.value in n.results]
    return made[0] if made else None
