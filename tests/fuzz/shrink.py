"""Make a failing program smaller while it still fails in the same way."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.fuzz.program import Block, Program, Statement

SECTIONS = ("caller", "body", "setup")


def shrink(program: Program, fails: Callable[[Program], bool], seconds: float = 30.0) -> Program:
    """The smallest program found by deleting and simplifying in which `fails` still holds."""
    end = time.monotonic() + seconds
    moved = True
    while moved and time.monotonic() < end:
        moved = False
        for candidate in candidates(program):
            if time.monotonic() > end:
                break
            if fails(candidate):
                program, moved = candidate, True
                break
    return program


def candidates(program: Program) -> Iterator[Program]:
    for section in SECTIONS:
        for smaller in without(getattr(program, section)):
            yield program.with_section(section, smaller)
    for i in range(len(program.returns)):
        yield replace(program, returns=(*program.returns[:i], *program.returns[i + 1 :]))
    if program.form not in ("({})", "{}"):
        yield replace(program, form="({})")
    if len(program.options) > 2 or program.options.get("partition") != "min_cut":
        yield replace(
            program,
            options={
                k: v for k, v in program.options.items() if k == "backend" or k == "keep_grads"
            },
        )
    for i, name in enumerate(program.parameters):
        if not re.search(
            rf"\b{name}\b",
            program.text(False).replace(f"def f({', '.join(program.parameters)})", ""),
        ):
            caller = tuple(_drop_argument(s, i) for s in program.caller)
            yield replace(
                program,
                caller=caller,
                parameters=(*program.parameters[:i], *program.parameters[i + 1 :]),
            )
    for simpler in simplified(program.body):
        yield program.with_section("body", simpler)


def without(statements: tuple[Statement, ...]) -> Iterator[tuple[Statement, ...]]:
    """One statement less, or a block replaced by its body."""
    for i, s in enumerate(statements):
        before, after = statements[:i], statements[i + 1 :]
        yield (*before, *after)
        if isinstance(s, Block):
            if not s.header.startswith("def"):
                yield (*before, *s.body, *after)
            for smaller in without(s.body):
                yield (*before, replace(s, body=smaller), *after)


def simplified(statements: tuple[Statement, ...]) -> Iterator[tuple[Statement, ...]]:
    """A right side replaced by one of its names."""
    for i, s in enumerate(statements):
        before, after = statements[:i], statements[i + 1 :]
        if isinstance(s, Block):
            for smaller in simplified(s.body):
                yield (*before, replace(s, body=smaller), *after)
        elif found := re.match(r"(\w+) = (.*)$", s):
            for name in sorted(set(re.findall(r"\b[apvxcwu]\d*p?\b", found[2]))):
                for simple in (name, f"{name} * 1"):
                    if len(simple) < len(found[2]):
                        yield (*before, f"{found[1]} = {simple}", *after)


def _drop_argument(s: Statement, i: int) -> Statement:
    if not isinstance(s, str) or " = f(" not in s:
        return s
    head, _, rest = s.partition(" = f(")
    arguments, depth, start = [], 0, 0
    for at, c in enumerate(rest[:-1] + ","):
        depth += (c in "([{") - (c in ")]}")
        if c == "," and depth == 0:
            arguments.append(rest[start:at].strip())
            start = at + 1
    return f"{head} = f({', '.join(a for j, a in enumerate(arguments) if j != i)})"
