"""The passes, each one idea in its own file, each `Program -> Program`.

`run_pass` is the one place where a pass is called: whatever watches compilation (verify, record,
check, draw) hangs on its hook.
"""

from __future__ import annotations

import functools
import inspect
import re
import time
from collections.abc import Callable
from typing import Any, ParamSpec, TypeAlias

from tinyaot.errors import DTypeError, ParseError
from tinyaot.ir import Program
from tinyaot.passes.autodiff import differentiate
from tinyaot.passes.functionalize import functionalize
from tinyaot.passes.fuse import fuse
from tinyaot.passes.layout import assign_layouts
from tinyaot.passes.narrow import linear, narrow
from tinyaot.passes.partition import partition
from tinyaot.passes.plan import plan
from tinyaot.passes.schedule import schedule
from tinyaot.passes.simplify import simplify
from tinyaot.shapes import brief

Options = ParamSpec("Options")
Pass: TypeAlias = Callable[..., Program]
Hook: TypeAlias = Callable[[str, Program, Program, float], None]  # name, before, after, seconds


def _of_program(run: Callable[Options, Program]) -> Callable[Options, Program]:
    """The pass, which says so if it is given something else than a Program."""

    @functools.wraps(run)
    def checked(*args: Options.args, **kwargs: Options.kwargs) -> Program:
        program = args[0] if args else kwargs.get("program")
        if not isinstance(program, Program):
            hint = "; parse the text first: ta.parse(text)" if isinstance(program, str) else ""
            raise DTypeError(f"{run.__name__}: needs a Program, got {brief(program)}{hint}")
        return run(*args, **kwargs)

    return checked


functionalize, differentiate = _of_program(functionalize), _of_program(differentiate)
simplify, partition = _of_program(simplify), _of_program(partition)
assign_layouts, fuse = _of_program(assign_layouts), _of_program(fuse)
schedule, plan = _of_program(schedule), _of_program(plan)

PASSES: dict[str, Pass] = {  # by the stage that each leads to, in the order of the pipeline
    "functionalize": functionalize,
    "autodiff": differentiate,
    "simplify": simplify,
    "partition": partition,
    "layout": assign_layouts,
    "fuse": fuse,
    "schedule": schedule,
    "plan": plan,
}


def run_pass(name: str, program: Program, hook: Hook | None = None, **options: Any) -> Program:
    """Run the pass of that name (a stage's, or the function's); then call
    `hook(name, before, after, seconds)`.

    Raises ParseError for an unknown pass or option, listing those there are.
    """
    run = _find(name, options)
    began = time.perf_counter()
    after = run(program, **options)
    if hook is not None:
        hook(name, program, after, time.perf_counter() - began)
    return after


def pipeline(text: str, hook: Hook | None = None) -> Callable[[Program], Program]:
    """Passes that run one after another, as in "functionalize,autodiff,simplify{rules=[cse,dce]}".

    Options stand in braces: numbers, words, `true`, `false`, `none`, and lists of these in
    brackets. Raises ParseError at once for text that is no pipeline, an unknown pass or option.
    """
    if not isinstance(text, str):
        raise DTypeError(f"pipeline: needs names of passes in one text, got {brief(text)}")
    steps = _parse(text)
    for name, options in steps:
        _find(name, options)

    def run(program: Program) -> Program:
        for name, options in steps:
            program = run_pass(name, program, hook, **options)
        return program

    return run


def _find(name: str, options: dict[str, Any]) -> Pass:
    found = PASSES.get(name) or next((f for f in PASSES.values() if f.__name__ == name), None)
    if found is None:
        raise ParseError(f"no such pass: {name!r}; there are {', '.join(PASSES)}", locate=False)
    known = [p for p in inspect.signature(found).parameters if p != "program"]
    for option in options:
        if option not in known:
            raise ParseError(
                f"{name} has no option {option!r}; it takes {', '.join(known)}", locate=False
            )
    return found


_STEP = re.compile(r"\s*(\w+)\s*(?:\{([^{}]*)\})?\s*(?:,|$)")
_OPTION = re.compile(r"\s*(\w+)\s*=\s*(\[[^\[\]]*\]|[^\[\],\s]+)\s*(?:,|$)")


def _parse(text: str) -> list[tuple[str, dict[str, Any]]]:
    steps: list[tuple[str, dict[str, Any]]] = []
    at = 0
    while at < len(text):
        step = _STEP.match(text, at)
        if step is None:
            raise ParseError(
                f"no pipeline: {text[at:]!r}; write pass{{option=value}},pass,...", locate=False
            )
        steps.append((step[1], _options(step[2] or "")))
        at = step.end()
    return steps


def _options(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    at = 0
    while at < len(text.rstrip()):
        option = _OPTION.match(text, at)
        if option is None:
            raise ParseError(
                f"no options: {text[at:]!r}; write name=value,name=[value,value]", locate=False
            )
        found[option[1]] = _value(option[2])
        at = option.end()
    return found


def _value(text: str) -> Any:
    if text.startswith("["):
        return [_value(x.strip()) for x in text[1:-1].split(",") if x.strip()]
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


__all__ = [
    "PASSES",
    "Hook",
    "assign_layouts",
    "differentiate",
    "functionalize",
    "fuse",
    "linear",
    "narrow",
    "partition",
    "pipeline",
    "plan",
    "run_pass",
    "schedule",
    "simplify",
]
