"""Which tensors share memory, or a history: needed only where one of them is written."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.lib.array_utils import byte_bounds

from tinyaot.tensor import History, Tensor


def overlapping(tensors: Sequence[Tensor], written: Sequence[bool]) -> list[tuple[int, int]]:
    """Pairs of positions whose tensors share an element, at least one of which is written.

    Near-linear where overlaps are few: intervals are sorted by their first byte, and only those
    whose bounds meet are looked at exactly.
    """
    bounds = [byte_bounds(t._data) for t in tensors]
    order = sorted((i for i in range(len(tensors)) if tensors[i].size), key=lambda i: bounds[i])
    found = []
    open_: list[int] = []
    for i in order:
        open_ = [j for j in open_ if bounds[j][1] > bounds[i][0]]
        found += [
            (min(i, j), max(i, j))
            for j in open_
            if (written[i] or written[j]) and np.shares_memory(tensors[i]._data, tensors[j]._data)
        ]
        open_.append(i)
    return found


def siblings(tensors: Sequence[Tensor], recorded: Sequence[bool]) -> list[tuple[int, int]]:
    """Pairs of positions whose tensors are views of one base, at least one of which is written in
    a way that autograd records: that write is in the other's history, too, apart as their elements
    may be."""
    if not any(recorded):
        return []
    of: dict[History, list[int]] = {}
    for i, t in enumerate(tensors):
        of.setdefault(t._history, []).append(i)
    return [
        pair
        for same in of.values()
        for pair in itertools.combinations(same, 2)
        if recorded[pair[0]] or recorded[pair[1]]
    ]
