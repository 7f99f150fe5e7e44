"""tinyaot: a small ahead-of-time compiler for training.

One program, two modes: eager ops on a tape, or `tinyaot.compile`, which traces, differentiates and
plans the whole step ahead of time. `import tinyaot as ta`.
"""

from __future__ import annotations

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

from tinyaot import datasets, errors, functional, functions, nn, ops, optim, passes, random  # noqa: E402
from tinyaot.compile import Compiled, compile, trace  # noqa: E402
from tinyaot.derivatives import grad, jvp, value_and_grad, vjp  # noqa: E402
from tinyaot.device import is_available, set_default_device  # noqa: E402
from tinyaot.functions import *  # noqa: E402, F403
from tinyaot.gradcheck import gradcheck  # noqa: E402
from tinyaot.interpret import interpret  # noqa: E402
from tinyaot.io import load, save  # noqa: E402
from tinyaot.ir import Program  # noqa: E402
from tinyaot.random import manual_seed  # noqa: E402
from tinyaot.record import Record  # noqa: E402
from tinyaot.tape import enable_grad, no_grad  # noqa: E402
from tinyaot.text import parse  # noqa: E402
from tinyaot.verify import verify  # noqa: E402

__version__ = "0.1.0"

__all__ = [
    "Compiled",
    "DType",
    "Program",
    "Record",
    "Tensor",
    "bfloat16",
    "bool",
    "compile",
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
