"""One seed: generate, compare, shrink, report."""

from __future__ import annotations

from tests.fuzz.compare import Difference, compare, finite_differences
from tests.fuzz.generate import Unexpected, generate
from tests.fuzz.program import Program
from tests.fuzz.shrink import shrink


def examine(program: Program, stages: bool) -> Difference | str | None:
    found = compare(program, stages)
    if found is None and program.smooth:
        found = finite_differences(program)
    return found


def fuzz_one(
    seed: int, backend: str = "numpy", stages: bool = False, seconds: float = 10.0
) -> tuple[str, tuple[Program, Difference] | None]:
    """The verdict on a seed's program, and the shrunk program with its difference, if any."""
    try:
        program = generate(seed, backend)
    except Unexpected as error:
        text, inner = error.args
        return "differ", (Program(body=(text,), seed=seed), Difference(f"eager raises {inner!r}"))
    found = examine(program, stages)
    if not isinstance(found, Difference):
        return found or "agree", None
    stages = stages or found.kind.startswith("stages")

    def fails(candidate: Program) -> bool:
        again = examine(candidate, stages)
        return isinstance(again, Difference) and again.cause == found.cause

    small = shrink(program, fails, seconds) if seconds else program
    again = examine(small, stages)
    return "differ", (small, again if isinstance(again, Difference) else found)


def report(program: Program, difference: Difference) -> str:
    """The program to paste, with what is wrong about it."""
    detail = "\n".join(f"# {line}" for line in difference.detail.splitlines()[:14])
    return f"# ---- seed {program.seed}: {difference.kind}\n{detail}\n{program.text(True, '')}"
