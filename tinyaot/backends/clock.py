"""Generated code with a clock between its kernels.

Profiling by rewriting text: a copy of the step, built for a few runs and thrown away, notes the
time before its first kernel and after each. The step that a user calls has no clock in it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_CALL = re.compile(r"^ +(\w+)\(f->b, share, f->error\);$", re.M)
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


def c_with_laps(source: str, kernels: Sequence[str], shares: int) -> str:
    """C text that adds the seconds of every kernel to `tinyaot_laps[share][kernel]`.

    kernels: names of the functions that are one, in order.
    """
    number = {name: i for i, name in enumerate(kernels)}

    def timed(call: re.Match[str]) -> str:
        at = f"tinyaot_laps[share][{number[call[1]]}]"
        return f"  {at} -= tinyaot_clock();\n{call[0]}\n  {at} += tinyaot_clock();"

    return _LAPS.format(shares=shares, kernels=max(len(kernels), 1)) + _CALL.sub(timed, source)
