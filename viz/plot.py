"""Curves in plain text: a few lines of characters that survive a pipe and need no colour."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

MARKS, TOGETHER = "ox+", "#"


def curves(
    series: Mapping[str, Sequence[float]], *, width: int = 64, height: int = 10
) -> list[str]:
    """Lines that plot up to three series over the same steps, with a legend as the last.

    `width` and `height` are in characters. A point is its series' mark, or '#' where series meet.
    A column shows the mean of its steps. The y axis is logarithmic when the values are positive
    and span more than a factor of ten. Values that are not finite are left out.
    """
    longest = max((len(v) for v in series.values()), default=0)
    columns = {name: _columns(v, min(width, longest)) for name, v in series.items()}
    seen = [y for v in columns.values() for y in v if math.isfinite(y)]
    if not seen:
        return ["(nothing to plot)"]
    log = min(seen) > 0 and max(seen) > 10 * min(seen)
    low, high = (math.log(min(seen)), math.log(max(seen))) if log else (min(seen), max(seen))
    span = (high - low) or 1.0
    grid = [[" "] * min(width, longest) for _ in range(height)]
    for mark, values in zip(MARKS, columns.values()):
        for x, y in enumerate(values):
            if math.isfinite(y):
                up = ((math.log(y) if log else y) - low) / span
                row = grid[height - 1 - round(up * (height - 1))]
                row[x] = mark if row[x] == " " else TOGETHER
    lines = []
    for i, row in enumerate(grid):
        y = high - span * i / max(height - 1, 1)
        label = f"{math.exp(y) if log else y:8.3g}" if i in (0, height // 2, height - 1) else ""
        lines.append(f"{label:>8} |{''.join(row).rstrip()}")
    lines.append(f"{'':8} +{'-' * min(width, longest)}")
    steps = f"1{longest:>{max(min(width, longest) - 1, 1)}}" if longest > 1 else "1"
    lines.append(f"{'':8}  {steps}  steps")
    legend = [f"{mark} {name}" for mark, name in zip(MARKS, series)]
    if len(series) > 1:
        legend.append(f"{TOGETHER} {'both' if len(series) == 2 else 'several'}")
    return [*lines, f"{'':8}  {'   '.join(legend)}" + ("   (logarithmic)" if log else "")]


def scatter(
    points: Sequence[tuple[float, float, bool]], *, width: int = 56, height: int = 10
) -> list[str]:
    """Lines that plot points (x, y, whether it is the one): 'o', and '#' for the one."""
    xs, ys = [p[0] for p in points], [p[1] for p in points]
    right, low, high = max(xs) or 1.0, min(ys), max(ys)
    grid = [[" "] * width for _ in range(height)]
    for x, y, chosen in sorted(points, key=lambda p: p[2]):
        up = (y - low) / ((high - low) or 1.0)
        row = grid[height - 1 - round(up * (height - 1))]
        row[round(x / right * (width - 1))] = TOGETHER if chosen else MARKS[0]
    lines = []
    for i, row in enumerate(grid):
        label = f"{high - (high - low) * i / (height - 1):8.4g}" if i in (0, height - 1) else ""
        lines.append(f"{label:>8} |{''.join(row).rstrip()}")
    lines.append(f"{'':8} +{'-' * width}")
    lines.append(f"{'':8}  0{right:>{width - 1}.3g}")
    return [*lines, f"{'':8}  # chosen   {MARKS[0]} others"]


def _columns(values: Sequence[float], width: int) -> list[float]:
    """`values` in `width` columns, each the mean of its share."""
    found = []
    for x in range(width):
        start = x * len(values) // width
        part = values[start : max((x + 1) * len(values) // width, start + 1)]
        found.append(sum(part) / len(part) if part else math.nan)
    return found


def bar(share: float, width: int = 24) -> str:
    """A bar of '#' for a share between 0 and 1."""
    return "#" * round(max(0.0, min(share, 1.0)) * width)
