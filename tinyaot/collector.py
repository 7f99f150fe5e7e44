"""Python's cyclic garbage collector waits while a program is compiled.

A compile makes some hundred thousand objects that live on and few that are garbage, and a collector
that counts allocations goes through all of them again and again: the deeper a program, the larger
the part of its compile that this takes.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """A while without collections, or a decorator of a function that runs without; inside another
    it changes nothing. What has no cycles is freed as ever."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
