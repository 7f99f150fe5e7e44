"""One C source as several that compile side by side.

The regions of a step are functions that share nothing but kernels and the runtime's address. So
each part has some of the regions, and the kernels that those call; the first has the steps, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tinyaot.codegen.source import HIDDEN, Function, Source

ENOUGH = 24_000  # characters of a part, from which on a compiler of its own pays


def split(source: Source, most: int) -> list[Source]:
    """`source` in at most `most` parts, which link to one object."""
    regions = source.regions
    parts = max(1, min(most, len(source.text()) // ENOUGH, len(regions)))
    if parts == 1:
        return [source]
    hidden = {r.name: replace(r, storage=HIDDEN) for r in regions}
    owner = balance(source, parts)
    made = []
    for part in range(parts):
        mine = {name: r if o == part else None for (name, r), o in zip(hidden.items(), owner)}
        called = {k for r in mine.values() if r for k in r.kernels}
        kernels = {k: text for k, text in source.kernels.items() if k in called}
        others = tuple(hidden[name] for name, r in mine.items() if not r) if part == 0 else ()
        cut = replace(source.with_regions(mine), kernels=kernels, part=part, elsewhere=others)
        made.append(cut)
    return made


def balance(source: Source, parts: int) -> list[int]:
    """The part of each region. Work is text, a kernel's once in each part that calls it: the
    largest first, each where the sum stays least."""
    regions: Sequence[Function] = source.regions
    have: list[set[str]] = [set() for _ in range(parts)]
    work = [0] * parts
    owner = [0] * len(regions)

    def after(i: int, part: int) -> int:
        new = regions[i].kernels - have[part]
        return work[part] + len(regions[i].body) + sum(len(source.kernels[k]) for k in new)

    for i in sorted(range(len(regions)), key=lambda i: (-after(i, 0), i)):
        owner[i] = best = min(range(parts), key=lambda part: after(i, part))
        work[best] = after(i, best)
        have[best] |= regions[i].kernels
    return owner
