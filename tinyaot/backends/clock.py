"""Generated code with a clock between its kernels.

Profiling by rewriting: a copy of the step, built for a few runs and thrown away, notes the
time before its first kernel and after each. The step that a user calls has no clock in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tinyaot.codegen.source import Call, Source

_LAPS = """#include <time.h>
double tinyaot_laps[{shares}][{kernels}];
static double tinyaot_clock(void) {{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}}

"""


def python_with_laps(source: str, kernels: Sequence[str]) -> str:
    """A Python function that empties `laps` and calls `lap()` before its first kernel, and calls it
    again after each.

    kernels: the lines of `source` that are one, in order.
    """
    lines, left = [], list(kernels)
    for line in source.splitlines():
        if left and line.strip() == left[0]:
            if len(left) == len(kernels):
                lines += ["    laps.clear()", "    lap()"]
            lines += [line, "    lap()"]
            del left[0]
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def c_with_laps(source: Source, shares: int) -> Source:
    """C that adds the seconds of every kernel to `tinyaot_laps[share][kernel]`."""
    names = [r.name for r in source.regions]
    calls = {x: Call(x, lap=f"tinyaot_laps[share][{i}]") for i, x in enumerate(names)}
    laps = _LAPS.format(shares=shares, kernels=max(len(names), 1))
    return replace(source.with_calls(calls), helpers=f"{laps}{source.helpers}")
