"""What a traced function assigns to places in reach: taken back after the trace, done by each call.

A trace runs the user's function on no data, so it must leave no mark. Every place in reach is read
before and after it. A tensor found there becomes an output, and each call binds it anew; a number,
a flag or a string is the same at every call that passes the guards, so each call sets it. What is
neither stays, and the guards then say that the function changes what it reaches.
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
        self.random = self._random_states()
        self.tensors: list[tuple[Slot, Tensor]] = []
        self.plain: list[tuple[Slot, Any]] = []

    def put_back(self) -> None:
        """Undo what was assigned to the places of old."""
        for slot, old in self.before:
            now = slot.read()
            if now is old or slot.access.write is None:
                continue
            if isinstance(now, Tensor):
                self.tensors.append((slot, now))
                slot.write(old)
            elif is_plain(now):
                if not same_plain(now, old):
                    self.plain.append((slot, now))
                slot.write(old)

    def take_new(self) -> None:
        """Take back tensors and plain values in new attributes.

        Raises TraceError for a traced tensor in a container.
        """
        for owner in list(self.reach.objects.values()):
            if isinstance(owner, (list, dict, set, deque)):
                _refuse_traced(owner)
            if _has_attributes(owner):
                self._take_attributes(owner)

    def _take_attributes(self, owner: Any) -> None:
        for name, value in list(vars(owner).items()):
            if name in self.names[id(owner)]:
                continue
            slot = attribute_slot(owner, name)
            if isinstance(value, Tensor):
                self.tensors.append((slot, value))
            elif is_plain(value):
                self.plain.append((slot, value))
            else:
                continue
            slot.write(MISSING)
            if isinstance(owner, types.FunctionType):  # which are not guarded while they have none
                self.reach.scalars.append(number_of_attributes(owner.__name__, owner))

    def take_hypers(self, engine: TraceEngine) -> None:
        """The same for hyperparameters; what the function itself read is guarded."""
        for hyper in engine.touched.values():
            slot = attribute_slot(hyper.owner, hyper.name)
            if hyper.read:
                self.reach.scalars.append((slot, hyper.before))
            if hyper.assigned:
                self.plain.append((slot, slot.read()))
                slot.write(hyper.before)

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

    def check_random(self) -> None:
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


def refuse_leaks(objects: list[tuple[str, Any]]) -> None:
    """Raise TraceError for a traced tensor that can be reached from objects that are returned, and
    that no call could make again."""
    for slot in find_reach(None, objects).slots():
        value = slot.read()
        if isinstance(value, Tensor) and value.is_traced:
            raise TraceError(
                f"{slot.path} is a traced tensor ({value.type}) in an object of class "
                f"{type(slot.owner).__name__}, of which a call cannot make a new one: return "
                f"tensors in tuples, lists, dicts or dataclasses. It is made",
                at=_made_at(value),
            )


def _refuse_traced(container: Any) -> None:
    """Raise TraceError for a traced tensor in a container that was there before the trace."""
    for value in container.values() if isinstance(container, dict) else container:
        if isinstance(value, Tensor) and value.is_traced:
            raise TraceError(
                f"a traced tensor ({value.type}) was stored in a {type(container).__name__} "
                f"that outlives the compiled function: it would have no value there; "
                f"return it instead. It is made",
                at=_made_at(value),
            )


def _made_at(tensor: Tensor) -> Loc | None:
    """The user's line that a traced tensor comes from (None: the call)."""
    data: Traced = tensor._data
    engine = cast(TraceEngine, data.engine)
    made = [n.loc for n in engine.builder.nodes if data.value in n.results]
    return made[0] if made else None
