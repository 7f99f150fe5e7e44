"""Regions that differ in numbers alone as one function of these numbers.

Equal layers, and the updates of equal parameters, lead to equal regions: other slots and offsets,
the same text. A compiler takes its time for each function, so that a deep step would take as long
as it is deep. So before it is compiled a source is folded: regions are grouped by their text
without numbers, and each group becomes the function of its first region, which reads the numbers
that differ from a row of a table (the anti-unification of Plotkin, 1970, by text). The source that
people see, and the record, has every region.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_REGION = re.compile(
    r"^(?:/\*[^\n]*\*/\n)?static void (\w+_region_\d+)\(([^)]*)\) \{\n(.*?)^\}\n\n?", re.M | re.S
)
_CALL = r"\b({})\((f->[^;]*)\);"
_LABEL = re.compile(r"\b([bniz])(\d+)\b")  # of a variable
# Memory of its own has a constant size; loops of its own, of an op without a tile, are slow where
# their extents and strides are no constants.
_OWN = ("static ", "__restrict__ ")
_NUMBER = re.compile(r"(?<![\w.])(?<![\d.]e[-+])(\d+)L?(?![\w.])")  # but for an exponent: 1e-05


def fold(source: str) -> str:
    """`source` with each group of like regions as one function."""
    groups: dict[tuple[str, ...], list[re.Match[str]]] = {}
    for region in _REGION.finditer(source):
        if not any(word in region[3] for word in _OWN):
            body = _with_local_labels(region[3])
            groups.setdefault((region[2], *_NUMBER.split(body)[::2]), []).append(region)
    calls: dict[str, str] = {}
    texts: dict[int, str] = {}  # by where a region stands
    for (arguments, *between), regions in groups.items():
        if len(regions) > 1:
            texts.update((r.start(), "") for r in regions)
            name = regions[0][1]
            numbers = [_NUMBER.findall(_with_local_labels(r[3])) for r in regions]
            texts[regions[0].start()] = _function(name, arguments, between, numbers)
            calls.update((r[1], f"{name}(\\2, {name}_at[{i}]);") for i, r in enumerate(regions))
    if not calls:
        return source
    pieces, at = [], 0
    for region in _REGION.finditer(source):
        pieces += [source[at : region.start()], texts.get(region.start(), region[0])]
        at = region.end()
    made = "".join([*pieces, source[at:]])
    called = re.compile(_CALL.format("|".join(calls)))
    return called.sub(lambda call: call.expand(calls[call[1]]), made)


def _with_local_labels(body: str) -> str:
    """Variables that are named by a label, numbered by their order in this body."""
    number: dict[str, int] = {}
    return _LABEL.sub(lambda x: f"{x[1]}{number.setdefault(x[2], len(number))}", body)


def _function(
    name: str, arguments: str, between: Sequence[str], numbers: Sequence[Sequence[str]]
) -> str:
    """The function of a group, and the table of what differs: a row for each of its regions."""
    columns: dict[tuple[str, ...], int] = {}
    body = [between[0]]
    for column, text in zip(zip(*numbers, strict=True), between[1:], strict=True):
        same = len(set(column)) == 1
        body.append(f"{column[0]}L" if same else f"at[{columns.setdefault(column, len(columns))}]")
        body.append(text)
    rows = ",\n  ".join("{" + ", ".join(row) + "}" for row in zip(*columns, strict=True))
    size = f"[{len(numbers)}][{max(len(columns), 1)}]"
    return (
        f"static const int64_t {name}_at{size} = {{\n  {rows or '{0}'}\n}};\n"
        f"static void {name}({arguments}, const int64_t *at) {{\n{''.join(body)}}}\n\n"
    )
