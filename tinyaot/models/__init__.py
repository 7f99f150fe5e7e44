"""The built-in programs: small models in training on the data that ships with the package.

Written as a user would write them, with nothing but the public names; `tinyaot compare` runs them
and the other commands trace, draw and explain them. To add one, write a function of a seed that
returns a `Training`, and name it in `BUILTIN`.
"""

from __future__ import annotations

from collections.abc import Callable

from tinyaot.models.cnn import cnn
from tinyaot.models.gpt import gpt
from tinyaot.models.mlp import mlp
from tinyaot.models.training import Training

BUILTIN: dict[str, Callable[..., Training]] = {"mlp": mlp, "gpt": gpt, "cnn": cnn}
USUAL = ("mlp", "gpt")  # what `tinyaot compare` runs when nothing is named

__all__ = ["BUILTIN", "USUAL", "Training"]
