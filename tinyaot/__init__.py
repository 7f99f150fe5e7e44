"""tinyaot: a small ahead-of-time compiler for training.

One program, two modes: eager ops on a tape, or `tinyaot.compile`, which traces, differentiates and
plans the whole step ahead of time. `import tinyaot as ta`.

Eager mode is loaded at once; the compiler, the layers and the optimizers when first named.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

from tinyaot import eager as _eager
from tinyaot.shapes import (
    DType,
    bfloat16,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
)
from tinyaot.shapes import bool_ as bool
from tinyaot.tensor import Tensor, from_numpy

_eager.install()

from tinyaot import errors, functions, ops, random  # noqa: E402
from tinyaot.derivatives import grad, jvp, value_and_grad, vjp  # noqa: E402
from tinyaot.device import is_available, set_default_device  # noqa: E402
from tinyaot.functions import *  # noqa: E402, F403
from tinyaot.random import manual_seed  # noqa: E402
from tinyaot.tape import enable_grad, no_grad  # noqa: E402

if TYPE_CHECKING:
    from tinyaot import datasets, functional, nn, optim, passes
    from tinyaot.checkpoint import checkpoint
    from tinyaot.compile import Compiled, compile, trace
    from tinyaot.custom_vjp import custom_vjp
    from tinyaot.gradcheck import gradcheck
    from tinyaot.interpret import interpret
    from tinyaot.io import load, save
    from tinyaot.ir import Program
    from tinyaot.record import Record
    from tinyaot.text import parse
    from tinyaot.verify import verify

__version__ = "0.1.0"

# What is loaded when first named: the module it is in ("" for a module itself).
_LATER = {
    "Compiled": "compile",
    "Program": "ir",
    "Record": "record",
    "checkpoint": "checkpoint",
    "compile": "compile",
    "custom_vjp": "custom_vjp",
    "datasets": "",
    "functional": "",
    "gradcheck": "gradcheck",
    "interpret": "interpret",
    "load": "io",
    "nn": "",
    "optim": "",
    "parse": "text",
    "passes": "",
    "save": "io",
    "trace": "compile",
    "verify": "verify",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'tinyaot' has no attribute {name!r}")
    module = _LATER[name]
    found = importlib.import_module(f"tinyaot.{module or name}")
    value = getattr(found, name) if module else found
    globals()[name] = value
    return value


class _Package(types.ModuleType):
    """Keeps `tinyaot.compile` the function when the module of that name is imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, types.ModuleType) and _LATER.get(name)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package

__all__ = [
    "Compiled",
    "DType",
    "Program",
    "Record",
    "Tensor",
    "bfloat16",
    "bool",
    "checkpoint",
    "compile",
    "custom_vjp",
    "datasets",
    "enable_grad",
    "errors",
    "float16",
    "float32",
    "float64",
    "from_numpy",
    "functional",
    "grad",
    "gradcheck",
    "int8",
    "int16",
    "int32",
    "int64",
    "interpret",
    "is_available",
    "jvp",
    "load",
    "manual_seed",
    "nn",
    "no_grad",
    "ops",
    "optim",
    "parse",
    "passes",
    "random",
    "save",
    "set_default_device",
    "trace",
    "uint8",
    "value_and_grad",
    "verify",
    "vjp",
]
__all__ += functions.__all__
