"""Backends: what runs a planned Program.

A backend is a module with a class `Executable` (see `tinyaot.halves.Executable`). Where it makes
sense it has functions: `unavailable()` says why it cannot work here, `prepare()` begins what takes
long before the first program is there, `rates()` says how fast it is for the cost model, and
`loops()`, of one that prints loops, gives the options of fuse.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType

from tinyaot.errors import BackendError

BACKENDS = {"numpy": "tinyaot.backends.numpy", "c": "tinyaot.backends.cpu"}
AUTOMATIC = ("c", "numpy")  # what "auto" tries, in this order


def _known() -> str:
    return ", ".join(BACKENDS)


def load_backend(name: str) -> tuple[str, ModuleType]:
    """The backend of that name ("auto": the best that can work here, or TINYAOT_BACKEND).

    Raises BackendError for an unknown name, and for a backend that cannot work here, saying why.
    """
    wanted = os.environ.get("TINYAOT_BACKEND", "") if name == "auto" else ""
    if wanted not in ("", "auto"):
        if wanted not in BACKENDS:
            raise BackendError(
                f"TINYAOT_BACKEND={wanted!r} names no backend; there are auto, {_known()}",
                locate=False,
            )
        name = wanted
    if name == "auto":
        name = next(candidate for candidate in AUTOMATIC if why_unavailable(candidate) is None)
    why = why_unavailable(name)
    if why is not None:
        raise BackendError(f"backend {name!r} cannot work here: {why}", locate=False)
    return name, importlib.import_module(BACKENDS[name])


def why_unavailable(name: str) -> str | None:
    """Why a backend cannot work here; None if it can. Raises BackendError for an unknown name."""
    if name not in BACKENDS:
        raise BackendError(f"no such backend: {name!r}; there are auto, {_known()}")
    module = importlib.import_module(BACKENDS[name])
    check = getattr(module, "unavailable", None)
    return check() if check is not None else None
