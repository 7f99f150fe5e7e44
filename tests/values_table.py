"""The rows of docs/values.md, as programs that can be run."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "values.md"
NUMBERS = {"inf": math.inf, "nan": math.nan, "log": math.log, "pi": math.pi, "__builtins__": {}}


class Row(NamedTuple):
    program: str
    x: np.ndarray
    value: np.ndarray
    gradient: np.ndarray
    torch: str

    def function(self, **modules: Any) -> Callable[[Any], Any]:
        """The program as a function of x, with `ta` and `F` as given."""
        *statements, last = self.program.split("; ")
        body = [*statements, last if last.startswith("return ") else f"return {last}"]
        scope: dict[str, Any] = {"inf": math.inf, **modules}
        exec("def program(x):\n" + "".join(f"    {line}\n" for line in body), scope)
        return scope["program"]  # type: ignore[no-any-return]


def _numbers(cell: str) -> np.ndarray:
    return np.array(eval(cell, dict(NUMBERS)), np.float64)


def _row(line: str) -> Row:
    program, x, value, gradient, torch = re.split(r"\s+\|\s+", line.strip().strip("|").strip())
    cells = [cell.strip("`") for cell in (program, x, value, gradient)]
    return Row(cells[0], *map(_numbers, cells[1:]), torch)


def rows() -> list[Row]:
    text = DOCUMENT.read_text(encoding="utf-8")
    return [_row(line) for line in text.splitlines() if line.startswith("| `")]


ROWS = rows()
