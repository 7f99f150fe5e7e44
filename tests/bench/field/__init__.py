"""Training steps as people write them, for which the compiler's rules were made.

The built-in models show what passes buy; a rule may have nothing to do in them. Each program here
is of another kind of model, and uses the public API alone. `PROGRAMS`: by name, what gives a step
and its batch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.bench.field import others, sequences, writes
from tests.bench.field.common import Step
from tinyaot.models import BUILTIN


def builtin(name: str) -> Step:
    made = BUILTIN[name]()
    return made.step, made.batch(0)


PROGRAMS: dict[str, Callable[[], Step]] = {name: partial(builtin, name) for name in BUILTIN}
PROGRAMS |= {
    name: program
    for family in (sequences, writes, others)
    for name, program in vars(family).items()
    if getattr(program, "__module__", "") == family.__name__
}
