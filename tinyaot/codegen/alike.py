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
from dataclasses import replace

from tinyaot.codegen.source import Call, Function, Source

_LABEL = re.compile(r"\b([bniz])(\d+)\b")  # of a variable
_NUMBER = re.compile(r"(?<![\w.])(?<![\d.]e[-+])(\d+)L?(?![\w.])")  # but for an exponent: 1e-05


def fold(source: Source) -> Source:
    """`source` with each group of like regions as one function."""
    groups: dict[tuple[str, ...], list[Function]] = {}
    for region in source.regions:
        if not region.own:  # whose loops are slow where extents and strides are no constants
            groups.setdefault(tuple(_pieces(region)[::2]), []).append(region)
    regions: dict[str, Function | None] = {}
    calls: dict[str, Call] = {}
    for group in groups.values():
        if len(group) > 1:
            regions.update((r.name, None) for r in group)
            regions[group[0].name] = _together(group)
            calls.update((r.name, Call(group[0].name, i)) for i, r in enumerate(group))
    return source.with_regions(regions).with_calls(calls)


def _pieces(region: Function) -> list[str]:
    """The body, cut before and after each number; variables that are named by a label are numbered
    by their order in it."""
    number: dict[str, int] = {}
    body = _LABEL.sub(lambda x: f"{x[1]}{number.setdefault(x[2], len(number))}", region.body)
    return _NUMBER.split(body)


def _together(group: Sequence[Function]) -> Function:
    """The function of a group, with a row of what differs for each of its regions."""
    pieces = [_pieces(r) for r in group]
    columns: dict[tuple[str, ...], int] = {}
    body = [pieces[0][0]]
    for i in range(1, len(pieces[0]), 2):
        column = tuple(p[i] for p in pieces)
        same = len(set(column)) == 1
        body.append(f"{column[0]}L" if same else f"at[{columns.setdefault(column, len(columns))}]")
        body.append(pieces[0][i + 1])
    table = tuple(zip(*columns, strict=True)) or ((),) * len(group)
    return replace(group[0], body="".join(body), table=table)
