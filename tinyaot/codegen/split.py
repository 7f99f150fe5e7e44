"""One C source as several that compile side by side.

The regions of a step are functions that share nothing but kernels and the runtime's address. So
each part is the whole text, less the bodies of the regions that other parts have, and the kernels
that only those call. The text itself stays one, for people and for the record: it is cut by
rewriting it, as for the clock.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

ENOUGH = 24_000  # characters of a part, from which on a compiler of its own pays
_REGION = re.compile(r"^static (void \w+_region_\d+\([^)]*\)) (\{\n.*?^\})\n", re.M | re.S)
_KERNEL = re.compile(r"^static [^\n]*\b(kernel_\d+)\([^\n]*\{\n.*?^\}\n", re.M | re.S)
_CALL = re.compile(r"\bkernel_\d+(?=\()")
_SHARED = re.compile(r"^static (const struct tinyaot_runtime \*rt|int64_t pack_bytes);$", re.M)
_ENTRY = re.compile(r"^(?=(?:int|void) tinyaot_)", re.M)
HIDDEN = '__attribute__((visibility("hidden")))'


def split(source: str, most: int) -> list[str]:
    """`source` in at most `most` parts, which link to one object."""
    regions = list(_REGION.finditer(source))
    parts = max(1, min(most, len(source) // ENOUGH, len(regions)))
    if parts == 1:
        return [source]
    owner = balance(source, regions, parts)
    return [_part(source, regions, [o == part for o in owner], part) for part in range(parts)]


def _part(source: str, regions: Sequence[re.Match[str]], own: Sequence[bool], part: int) -> str:
    pieces, at = [], 0
    for region, mine in zip(regions, own, strict=True):
        pieces += [source[at : region.start()], f"{HIDDEN} {region[1]}"]
        pieces.append(f" {region[2]}\n" if mine else ";\n")
        at = region.end()
    called = {k for r, mine in zip(regions, own, strict=True) if mine for k in _CALL.findall(r[2])}
    text = "".join([*pieces, source[at:]])
    text = _KERNEL.sub(lambda k: k[0] if k[1] in called else "", text)
    if part == 0:
        return _SHARED.sub(rf"{HIDDEN} \1;", text)
    return _ENTRY.sub("static ", _SHARED.sub(rf"extern {HIDDEN} \1;", text))


def balance(source: str, regions: Sequence[re.Match[str]], parts: int) -> list[int]:
    """The part of each region. Work is text, a kernel's once in each part that calls it: the
    largest first, each where the sum stays least."""
    sizes = {k[1]: len(k[0]) for k in _KERNEL.finditer(source)}
    calls = [set(_CALL.findall(r[2])) for r in regions]
    have: list[set[str]] = [set() for _ in range(parts)]
    work = [0] * parts
    owner = [0] * len(regions)

    def after(i: int, part: int) -> int:
        return work[part] + len(regions[i][2]) + sum(sizes[k] for k in calls[i] - have[part])

    for i in sorted(range(len(regions)), key=lambda i: (-after(i, 0), i)):
        owner[i] = best = min(range(parts), key=lambda part: after(i, part))
        work[best] = after(i, best)
        have[best] |= calls[i]
    return owner
