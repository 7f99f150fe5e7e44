"""What works on this machine, what stands in for what does not, and how to get the rest."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass

import numpy as np

from tinyaot.backends import BACKENDS, why_unavailable
from tinyaot.backends.toolchain import CANDIDATES, cache_directory


@dataclass(frozen=True)
class Check:
    """One line of the report. `found`: what is here, or None. `otherwise`: what happens without
    it, and how to get it."""

    name: str
    found: str | None
    use: str
    otherwise: str = ""
    needed: bool = False


def examine() -> list[Check]:
    """Every check, in the order of a first setup."""
    return [
        Check("Python", platform.python_version(), "runs everything", needed=True),
        *(_library(name) for name in ("numpy", "scipy", "rich", "graphviz")),
        Check("BLAS", blas(), "products in eager mode and on the numpy backend"),
        Check("backends", backends(), 'compiled code; backend="auto" takes the first', needed=True),
        _for_backend("c", "C compiler", compiler(), "install gcc or clang, or set CC"),
        Check(
            "compile cache",
            str(cache_directory() or "") or None,
            "compiled C, kept from one run to the next",
            "every process compiles anew; TINYAOT_CACHE=DIR sets a place that is yours alone",
        ),
        _for_backend("cupy", "GPU", gpu(), "needs an NVIDIA GPU and pip install 'tinyaot[cuda]'"),
        Check(
            "Graphviz",
            graphviz(),
            "pictures (tinyaot stages)",
            "stages writes .dot files instead; pip install 'tinyaot[viz]', or install graphviz",
        ),
    ]


def backends() -> str | None:
    """The backends that can work here, best first."""
    return ", ".join(b for b in BACKENDS if why_unavailable(b) is None) or None


def _for_backend(backend: str, name: str, found: str | None, remedy: str) -> Check:
    if backend not in BACKENDS:
        return Check(name, found, "nothing in this version")
    return Check(name, found, f'backend="{backend}"', f"auto takes the next backend; {remedy}")


def blas() -> str | None:
    """NumPy's BLAS: name and version."""
    try:
        config = np.show_config(mode="dicts")["Build Dependencies"]["blas"]  # type: ignore[index]
    except (KeyError, TypeError):
        return None
    name, version = config.get("name", "unknown"), config.get("version", "")
    return f"{name} {version}".strip()


def compiler() -> str | None:
    """The C compiler that would be used: CC if it is set, else the first of cc, gcc, clang."""
    chosen = os.environ.get("CC")
    for name in (chosen,) if chosen else CANDIDATES:
        path = shutil.which(name.split()[0]) if name.strip() else None
        if path:
            return f"{path} ({_first_line([path, '--version'])})"
    return None


def gpu() -> str | None:
    """The first CUDA device, through CuPy."""
    if importlib.util.find_spec("cupy") is None:
        return None
    try:
        runtime = importlib.import_module("cupy").cuda.runtime
        if not runtime.getDeviceCount():
            return None
        return str(runtime.getDeviceProperties(0)["name"].decode())
    except Exception:  # a CuPy that cannot start raises whatever its libraries raise
        return None


def graphviz() -> str | None:
    """What would draw pictures."""
    from tinyaot.viz.render import renderer

    tool = renderer()
    if tool == "pygraphviz":
        return f"pygraphviz {importlib.metadata.version('pygraphviz')}"
    return shutil.which(tool) if tool else None


def _library(name: str) -> Check:
    try:
        found: str | None = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        found = None
    return Check(name, found, "required", f"pip install {name}", needed=True)


def _first_line(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return "does not run"
    lines = done.stdout.strip().splitlines()
    return lines[0] if lines else "does not say"


def healthy(checks: list[Check]) -> bool:
    """Whether everything that is needed is here."""
    return all(c.found for c in checks if c.needed) and sys.version_info >= (3, 11)
