"""Manual rematerialization: what a function computes is computed again rather than saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

from tinyaot.eager import EagerEngine
from tinyaot.inside import Checkpoint
from tinyaot.ops.core import mode, using

T = TypeVar("T")


class _Tracer(Protocol):
    """The engine of a trace, which is above this module."""

    def checkpoint(self) -> Any: ...


def checkpoint(fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """`fn(*args, **kwargs)`, without keeping for backward what it computes inside.

    The gradients, by the arguments and by every tensor that `fn` reaches otherwise, are the same
    bit for bit; backward computes the values inside again, once, from what `fn` read (as it was
    then) and with the same random draws. Its result may be of any kind; what is read outside of
    `fn` is kept. Checkpoints may be nested. Under `no_grad` it is a plain call.

    Compiled, no strategy of the partitioner saves a value inside: `record.recomputed` lists it with
    the reason "checkpoint".
    """
    engine = mode.engine
    if not mode.grad_enabled:
        return fn(*args, **kwargs)
    if isinstance(engine, EagerEngine):
        with using(Checkpoint(engine)):
            return fn(*args, **kwargs)
    with cast(_Tracer, engine).checkpoint():
        return fn(*args, **kwargs)
