"""Functions of a C source that only call others, compiled without optimisation.

A region's function computes pointers, and calls kernels and products with them, once a tile. That
is little time but much text: of a step of 63 regions a third of the machine code, and a fifth of
the compiler's work. So what touches no element itself is marked where the compiler reads it.
"""

from __future__ import annotations

import re

_FUNCTION = re.compile(
    r"^((?:static|__attribute__\S+) void \w+_(?:region_\d+|step)\([^)]*\)) (\{\n.*?^\}\n)",
    re.M | re.S,
)
_NUMBER = re.compile(r"\b(?:at|\w+_at)\[\d+L?\]")  # of a folded region's table
_POINTER = re.compile(r"\bb\[\w*\]")
MARK = """#if defined(__clang__)
#define CALLS __attribute__((optnone, noinline))
#else
#define CALLS __attribute__((optimize("O0")))
#endif
"""


def mark_calls(source: str) -> str:
    """`source` with each region that has no access to an element, and the steps, marked."""

    def marked(function: re.Match[str]) -> str:
        touches = "[" in _POINTER.sub("", _NUMBER.sub("", function[2]))
        return function[0] if touches else f"CALLS {function[0]}"

    return MARK + _FUNCTION.sub(marked, source)
