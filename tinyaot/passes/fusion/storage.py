"""Where values live: the memory plan of fused code.

A value that one region alone touches lives in that region's
scratch, first fit on the statements it is live over; the others live in the arena, first fit on the
levels; an output lives in its own buffer, or in the leaf that it overwrites. The parts of a
concatenation live in its slots, so it has no code.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tinyaot.passes.fusion.graph import Graph
from tinyaot.passes.fusion.labels import Atom
from tinyaot.passes.fusion.op import LEAVES, Op
from tinyaot.passes.fusion.regions import Region
from tinyaot.passes.fusion.statements import Schedule

ALIGN = 64
Space = Literal["input", "output", "arena", "scratch", "partial"]


@dataclass(frozen=True, slots=True)
class Home:
    """Memory of a value. `at`: a byte offset in the arena or a thread's scratch, or the position of
    an input or output buffer; `strides`: elements, for each of its atoms; `shift`: elements before
    its first (a slot's offset); `step`: bytes between the partial results of two threads."""

    space: Space
    at: int
    strides: tuple[int, ...]
    region: Region | None = None
    shift: int = 0
    step: int = 0


@dataclass(slots=True)
class Storage:
    homes: dict[Op, Home]
    arena: int
    scratch: dict[Region, int]  # bytes of a share's, by the region that they serve
    sizes: dict[Op, tuple[int, int, int]] = field(default_factory=dict)  # bytes, levels first, last


def dense_strides(extents: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for n in reversed(extents):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def padded(nbytes: int) -> int:
    return -(-nbytes // ALIGN) * ALIGN


def place(g: Graph, plan: Schedule, level: Mapping[Region, int], threads: int) -> Storage:
    """The home of every value that is in memory."""
    slots = {
        a.root: (op, k) for op in g.work if op.form == "concat" for k, a in enumerate(g.reads[op])
    }
    homes: dict[Op, Home] = {}
    leaf_at = {op: j for j, op in enumerate(g.forms.inputs)}
    out_at: dict[Op, int] = {}
    for op, o in g.forms.outputs:
        if o.role != "mutated":
            out_at[op] = len(out_at)
    for op, j in leaf_at.items():
        homes[op] = Home("input", j, dense_strides([a.size for a in g.flat[op]]))
    scratch: dict[Region, int] = {}
    shared: list[tuple[int, int, int, Op, int]] = []  # bytes, first and last level, op, step
    for region in plan.regions:
        local: dict[Op, list[int]] = {}
        for op in region.members:
            if op not in plan.readers or op in slots:
                continue
            spots = plan.readers[op]
            strides = dense_strides([a.size for a in g.flat[op]])
            if region.kind[op] == "acc":
                size = padded(op.type.nbytes)
                step = size if region.tile else 0
                last = max(level[r] if r else len(level) for r, _ in spots)
                total = size * (threads if step else 1)
                shared.append((total, level[region], last, op, step))
            elif op in g.overwrites:
                homes[op] = Home("input", leaf_at[g.overwrites[op]], strides, region)
            elif op in out_at:
                homes[op] = Home("output", out_at[op], strides, region)
            elif region.kind[op] == "own" or is_shared(g, plan, op, region):
                first = level[region]
                if op.form == "concat":
                    first = min(level[plan.where[a.root][0]] for a in g.reads[op])
                last = max(level[r] if r else len(level) for r, _ in spots)
                shared.append((padded(op.type.nbytes), first, last, op, 0))
            else:
                live = [plan.where[op][1], *(j for _, j in spots)]
                if op.form == "concat":
                    live += [plan.where[a.root][1] for a in g.reads[op]]
                local[op] = live
        scratch[region] = place_scratch(g, region, local, homes)
    arena, sizes = place_arena(g, plan, shared, homes)
    for part, (op, k) in sorted(slots.items(), key=lambda item: item[1][0].id):
        homes[part] = slot_of(g, homes[op], op, k)
    return Storage(homes, arena, scratch, sizes)


def is_shared(g: Graph, plan: Schedule, op: Op, region: Region) -> bool:
    """Whether op is touched by more than one region."""
    if any(r is not region for r, _ in plan.readers[op]):
        return True
    if op.form != "concat":
        return False
    return any(
        plan.where[a.root][0] is not region or region.kind[a.root] == "own" for a in g.reads[op]
    )


def place_scratch(
    g: Graph, region: Region, live: dict[Op, list[int]], homes: dict[Op, Home]
) -> int:
    """First fit, largest first; returns the bytes used."""
    placed: list[tuple[int, int, int, int]] = []
    top = 0
    extents = {op: [region.extent(a) for a in g.flat[op]] for op in live}

    size = {op: op.dtype.itemsize * math.prod(extents[op]) for op in live}
    for op in sorted(live, key=lambda op: (-padded(size[op]), op.id)):
        at = first_fit(placed, padded(size[op]), min(live[op]), max(live[op]))
        top = max(top, at + size[op])
        homes[op] = Home("scratch", at, dense_strides(extents[op]), region)
    return top


def first_fit(placed: list[tuple[int, int, int, int]], size: int, first: int, last: int) -> int:
    """The lowest offset that is free from `first` to `last`, now taken. `placed` is sorted."""
    at = 0
    for start, n, lo, hi in placed:
        if hi >= first and lo <= last and at + size > start and start + n > at:
            at = start + n
    insort(placed, (at, size, first, last))
    return at


def place_arena(
    g: Graph,
    plan: Schedule,
    shared: list[tuple[int, int, int, Op, int]],
    homes: dict[Op, Home],
) -> tuple[int, dict[Op, tuple[int, int, int]]]:
    placed: list[tuple[int, int, int, int]] = []
    top = 0
    sizes: dict[Op, tuple[int, int, int]] = {}
    for size, first, last, op, step in sorted(shared, key=lambda x: (-x[0], x[3].id)):
        at = first_fit(placed, size, first, last)
        top = max(top, at + size - padded(op.type.nbytes) + op.type.nbytes)
        strides = dense_strides([a.size for a in g.flat[op]])
        region = plan.where[op][0]
        homes[op] = Home("partial" if step else "arena", at, strides, region, 0, step)
        sizes[op] = size, first, last
    return top, sizes


def slot_of(g: Graph, whole: Home, op: Op, k: int) -> Home:
    """The home of part k of a concatenation: its slot."""
    axis = op.attrs["axis"]
    access = g.reads[op][k]
    stride = dict(zip(g.flat[op], whole.strides))
    sizes = {x.shape[axis] for x in op.ins}
    shift = whole.shift
    strides = [stride.get(e, 0) if isinstance(e, Atom) else 0 for _, e in access.pairs]
    if len(sizes) == 1:
        lead = len(g.axes[op][axis]) - len(g.axes[access.root][axis])
        left = k
        for a in reversed(g.axes[op][axis][:lead]):
            shift += left % a.size * stride[a]
            left //= a.size
    else:
        step = stride[g.axes[op][axis][-1]]
        shift += step * sum(x.shape[axis] for x in op.ins[:k])
        own = g.axes[access.root][axis]
        along = dict(zip(own, dense_strides([a.size for a in own])))
        strides = [along[a] * step if a in along else s for (a, _), s in zip(access.pairs, strides)]
    return Home(whole.space, whole.at, tuple(strides), whole.region, shift)


def verify(g: Graph, plan: Schedule, level: Mapping[Region, int], storage: Storage) -> None:
    """Every read finds its value: where the reader looks, made before, complete."""
    for region in plan.regions:
        for j, s in enumerate(plan.statements[region]):
            own = set(s.ops)
            for op in s.ops:
                for access in g.reads[op]:
                    root = access.root
                    if root.form in LEAVES or root in own:
                        continue
                    home = storage.homes.get(root)
                    if home is None:
                        raise AssertionError(f"{op} reads {root}, which has no memory")
                    made, at = plan.where[root]
                    if made is region:
                        if at >= j or region.kind[root] != "row":
                            raise AssertionError(f"{op} reads {root} before it is complete")
                    elif home.space == "scratch":
                        raise AssertionError(f"{op} reads {root}, scratch of another region")
                    elif level[made] >= level[region]:
                        raise AssertionError(f"{op} reads {root} of a later level")
