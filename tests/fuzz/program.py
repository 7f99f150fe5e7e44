"""A program as text: sections of statements, printed and executed."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

Statement: TypeAlias = "str | Block"

PRELUDE = """\
import numpy as np
import tinyaot as ta
import tinyaot.nn.functional as F


class Box:
    pass


def tensors(tree):
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, (list, tuple)):
        return [t for x in tree for t in tensors(x)]
    return [tree] if isinstance(tree, ta.Tensor) else []


def total(*results):
    found = [t for t in tensors(results) if t.requires_grad]
    return sum((t * (i + 1.0)).sum() for i, t in enumerate(found))


def pull(*results, **options):
    loss = total(*results)
    if isinstance(loss, ta.Tensor):
        loss.backward(**options)


"""


@dataclass(frozen=True)
class Block:
    """A compound statement."""

    header: str
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Program:
    """`setup`, a function `f` of `parameters` that returns `returns`, and `caller`, which calls it.

    `options` are those of `compile`. `smooth`: finite differences may check the gradients.
    """

    setup: tuple[Statement, ...] = ()
    parameters: tuple[str, ...] = ()
    body: tuple[Statement, ...] = ()
    returns: tuple[str, ...] = ()
    form: str = "({})"
    caller: tuple[Statement, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    smooth: bool = False
    steps: bool = False  # differentiates inside, so `.grad` is kept only if asked for
    seed: int = 0

    def text(self, compiled: bool, prelude: str = PRELUDE) -> str:
        """The program as Python text, eager or with `f` compiled."""
        lines = [*lines_of(self.setup), "", f"def f({', '.join(self.parameters)}):"]
        lines += [f"    {line}" for line in lines_of(self.body)]
        inner = ", ".join(self.returns) + ("," if len(self.returns) == 1 else "")
        lines.append("    return " + (self.form.format(inner) if self.returns else "None"))
        lines.append("")
        if compiled:
            options = ", ".join(f"{k}={v!r}" for k, v in self.options.items())
            lines.append(f"f = ta.compile(f, {options})")
        lines += lines_of(self.caller)
        return prelude + "\n".join(lines) + "\n"

    def run(self, compiled: bool) -> dict[str, Any]:
        """Execute; gives the namespace. What it raises carries it as `namespace`."""
        namespace: dict[str, Any] = {"__name__": "fuzzed"}
        try:
            execute(self.text(compiled), namespace, f"fuzz{self.seed}{'c' if compiled else 'e'}")
        except Exception as error:
            error.namespace = namespace  # type: ignore[attr-defined]
            raise
        return namespace

    def with_section(self, name: str, statements: tuple[Any, ...]) -> Program:
        return replace(self, **{name: statements})


def lines_of(statements: tuple[Statement, ...]) -> Iterator[str]:
    for s in statements:
        if isinstance(s, Block):
            yield s.header
            for line in lines_of(s.body) if s.body else ("pass",):
                yield f"    {line}"
        else:
            yield from s.split("\n")


def execute(text: str, namespace: dict[str, Any], name: str) -> None:
    """Run text whose lines can be found for messages."""
    filename = f"<{name}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    try:
        exec(compile(text, filename, "exec"), namespace)
    finally:
        linecache.cache.pop(filename, None)
