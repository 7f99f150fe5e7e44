"""The cost model: nanoseconds of an op, of a region on a tile, and the best tile.

Only ratios matter. A product pays for its arithmetic and for packing its operands (so short tiles
are dear); a map for its expression; a region for the bytes that cross its border at the bandwidth
of the level where the whole value lives; scratch larger than a share of the L2 cache pays for going
through it. Rates are for one core with `lanes` floats a vector, measured once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from tinyaot.ops.core import TABLE
from tinyaot.passes.fusion.accesses import Const
from tinyaot.passes.fusion.graph import Graph
from tinyaot.passes.fusion.labels import Atom
from tinyaot.passes.fusion.machine import RANDOM
from tinyaot.passes.fusion.op import Op

PACK_A, PACK_B, WRITE_C = 0.2, 0.25, 0.05  # ns an element of a product (measured by single calls)
IN_PLACE, DEPTH = 384, 320  # columns, or terms, up to which contiguous rows of A are not packed
BLOCK = 1 << 18  # bytes of a block of A, whose rows share a packed B
CALL, MEMBER = 200.0, 30.0  # ns a product, and a member of a region, each tile
REDUCE = 0.04  # ns an element
FORM_NS = {"concat": 0.0, "gather": 0.1, "scatter": 0.2}
FALLBACK, SORT = 2.0, 10.0  # ns an element that is read or written
BARRIER, FORK = 1000.0, 5000.0  # ns a region, and waking the threads
MAX_ROWS, MAX_ELEMENTS = 1024, 1 << 16  # of a tile
AS_CHEAP = 1.02  # a tile's price that is as good as the least


# Extents of a tile's labels are numbers, or arrays: one entry for each candidate tile.
Number = Any  # int, float, or an array of them
Extent = Callable[[Atom], Number]
Kind = str  # "row": has the tile's labels; "acc": sums over some; "own": sums, threads own slices


def whole(a: Atom) -> int:
    return a.size


@dataclass(frozen=True, slots=True)
class GemmDims:
    """A product's atoms by role."""

    batch: tuple[Atom, ...]
    m: tuple[Atom, ...]
    n: tuple[Atom, ...]
    k: tuple[Atom, ...]


def gemm_dims(g: Graph, op: Op) -> GemmDims:
    """Which of a product's atoms are rows, columns, contracted, or in all three."""
    a, b = g.reads[op][0].atoms, g.reads[op][1].atoms
    in_a, in_b, in_c = set(a), set(b), set(g.flat[op])
    every = list(dict.fromkeys(a + b))
    both = [x for x in every if x in in_a and x in in_b]
    return GemmDims(
        tuple(x for x in both if x in in_c),
        tuple(x for x in every if x not in in_b),
        tuple(x for x in every if x not in in_a),
        tuple(x for x in both if x not in in_c),
    )


def volume(atoms: Collection[Atom], extent: Extent) -> Number:
    total: Number = 1
    for a in atoms:
        total = total * extent(a)
    return total


def nbytes(g: Graph, op: Op, extent: Extent) -> Number:
    return op.dtype.itemsize * volume(g.flat[op], extent)


def op_ns(g: Graph, op: Op, extent: Extent) -> Number:
    """One op on one tile, its operands in cache."""
    if op.form == "dot":
        return product_ns(g, op, extent)
    each, loops = element_ns(g, op)
    return each * iterations(loops, extent)


Loops = tuple[tuple[Atom, ...], bool]  # atoms, and whether the last one is a map's, run in vectors


def element_ns(g: Graph, op: Op) -> tuple[float, Loops]:
    """What an iteration of an op takes that is no product, and of which loops."""
    scale = g.machine.map_scale
    if op.form == "map":
        return TABLE[op.name].weight * scale, (g.flat[op], True)
    if op.form == "random":
        return RANDOM, (g.flat[op], True)
    if op.form == "fallback":
        elements = max(x.type.size for x in (op, *op.ins))
        return elements * (SORT if op.name == "argsort" else FALLBACK), ((), False)
    each = REDUCE * scale if op.form == "reduce" else FORM_NS[op.form]
    return each, (g.space(op), False)


def iterations(loops: Loops, extent: Extent) -> Number:
    """How often loops run; a short innermost one wastes vectors."""
    atoms, vectors = loops
    size = volume(atoms, extent)
    if not vectors or not atoms:
        return size
    return size * np.maximum(1.0, min(64, atoms[-1].size) / extent(atoms[-1]))


def product_ns(g: Graph, op: Op, extent: Extent) -> Number:
    """A product on one tile, as gemm.h computes it: panels of B are packed for every block of rows,
    rows of A once, unless they are contiguous and short, or few columns use them. Where one operand
    is a row, the other is read once and not packed."""
    d = gemm_dims(g, op)
    rows, columns, k = (volume(x, extent) for x in (d.m, d.n, d.k))
    left = g.reads[op][0].pairs
    if g.flat[op] and g.flat[op][-1] in d.m:  # the result's rows are contiguous as its columns are
        rows, columns, left = columns, rows, g.reads[op][1].pairs
    contiguous = bool(left) and not isinstance(left[-1][1], Const) and left[-1][1] in d.k
    read_once = (np.asarray(columns) <= IN_PLACE) | (np.asarray(k) <= DEPTH)
    pack_a = np.where(contiguous & read_once, 0.0, PACK_A)
    depth = k / -(-k // DEPTH)
    blocks = -(-rows * depth * op.dtype.itemsize // BLOCK)
    packed = k * columns * PACK_B * blocks + rows * k * pack_a
    read = rows * columns * k * 4 / g.machine.l3_rate
    packed = np.where((np.asarray(rows) == 1) | (np.asarray(columns) == 1), read, packed)
    each = 2 * rows * columns * k / g.machine.flops + packed + rows * columns * WRITE_C
    return volume(d.batch, extent) * (each * op.dtype.itemsize / 4 + CALL)


def region_ns(
    g: Graph,
    members: Collection[Op],
    kind: Mapping[Op, Kind],
    tile: Sequence[Atom],
    block: Mapping[Atom, Number],
    threads: int,
    limits: Mapping[Atom, Atom] | None = None,
) -> Number:
    """A region on tiles of `block`, with threads sharing the tiles. `limits`: {s: t} where s ends
    with the tile of t; half of its extent, on average, if the tile is short."""
    machine = g.machine
    limits = limits or {}

    def extent(a: Atom) -> Number:
        if a in limits:
            end = block[limits[a]]
            return np.where(end < a.size, (a.size + end) / 2, a.size)
        return block.get(a, a.size)

    tiles: Number = 1
    for a in tile:
        tiles = tiles * -(-a.size // block[a])
    tiled = set(tile)
    ns: Number = MEMBER * len(members)
    linear: dict[Loops, float] = {}  # what is so much an iteration, together

    def add(each: float, atoms: tuple[Atom, ...], vectors: bool = False) -> None:
        linear[atoms, vectors] = linear.get((atoms, vectors), 0.0) + each

    seen: set[Op] = set()
    for op in members:
        if op.form == "dot":
            ns = ns + product_ns(g, op, extent)
        else:
            each, loops = element_ns(g, op)
            add(each, *loops)
        itemsize = op.dtype.itemsize
        if kind[op] == "acc":
            if op.form == "dot":
                add(2 * itemsize / machine.l3_rate, g.flat[op])
        elif op in g.stored:
            if op in g.outputs or any(u not in members for u in g.users[op]):
                add(itemsize / machine.rate(op.type.nbytes), g.flat[op])
            elif op.type.nbytes > machine.l2 // 4:
                size = nbytes(g, op, extent)
                rate = np.where(size > machine.l3 // 4, machine.memory_rate, machine.l3_rate)
                through = (1 + len(g.users[op])) * size / rate
                ns = ns + np.where(size > machine.l2 // 4, through, 0.0)
        for access in g.reads[op]:
            root = access.root
            if root in members or root in seen or root.form in ("const", "iota"):
                continue
            seen.add(root)
            if op.form != "dot" or not tiled.isdisjoint(access.atoms):
                add(root.dtype.itemsize / machine.rate(root.type.nbytes), access.atoms)
    for loops, each in linear.items():
        ns = ns + each * iterations(loops, extent)
    if not tile and len(members) == 1 and next(iter(members)).goes_along_lanes:
        return ns / threads + BARRIER
    return ns * -(-tiles // threads) + BARRIER


def signature(g: Graph, op: Op) -> object:
    """All that the cost of op in a region of its own depends on: equal for the same op of equal
    layers, and of other programs."""
    number: dict[Atom, tuple[int, int]] = {}
    roots: dict[Op, int] = {}  # what is read twice costs once

    def numbers(atoms: Collection[Atom]) -> tuple[tuple[int, int], ...]:
        return tuple(number.setdefault(a, (len(number), a.size)) for a in atoms)

    own = numbers(g.flat[op]), numbers(g.space(op)), numbers(g.red[op])
    reads = tuple(
        (
            roots.setdefault(access.root, len(roots)),
            access.root.form in ("const", "iota"),
            access.root.type.nbytes,
            access.root.dtype.itemsize,
            numbers(access.atoms),
            numbers([e for _, e in access.pairs[-1:] if not isinstance(e, Const)]),
        )
        for access in g.reads[op]
    )
    kept = op in g.stored and (op in g.outputs or bool(g.users[op]))
    return op.form, op.name, op.type.nbytes, op.dtype.itemsize, own, reads, kept


@cache
def block_sizes(size: int, threads: int) -> tuple[int, ...]:
    """Candidate extents of a tile along one label: round numbers, and fair shares."""
    sizes = {size, *(-(-size // k) for k in (threads, 2 * threads, 4 * threads))}
    sizes.update(n << s for s in range(17) for n in (1, 3) if n << s < size)
    return tuple(sorted(s for s in sizes if s))


def best_block(
    g: Graph,
    members: Collection[Op],
    kind: Mapping[Op, Kind],
    tile: Sequence[Atom],
    threads: int,
    limits: Mapping[Atom, Atom] | None = None,
) -> tuple[float, dict[Atom, int]]:
    """The cheapest tile: labels before some label one at a time, those after it whole. Where rows
    are longer than a tile, which may have scratch, the smallest of nearly that price."""
    if not tile:
        return float(region_ns(g, members, kind, tile, {}, threads)), {}
    tiled = set(tile)
    elements = all(tiled.issuperset(g.flat[op]) for op in members)
    limit = MAX_ELEMENTS if elements else MAX_ROWS
    rows: list[list[int]] = []
    for j, label in enumerate(tile):
        inner = [a.size for a in tile[j + 1 :]]
        for size in block_sizes(label.size, threads):
            if size * math.prod(inner) > limit:
                break
            if size > 1 or not j:
                rows.append([1] * j + [size] + inner)
    if not rows:
        rows = [[1] * (len(tile) - 1) + [min(tile[-1].size, limit)]]
    columns = dict(zip(tile, np.array(rows).T))
    ns = np.broadcast_to(region_ns(g, members, kind, tile, columns, threads, limits), len(rows))
    least = float(ns.min())
    near = [i for i, x in enumerate(ns) if x <= (1 if elements else AS_CHEAP) * least]
    best = min(near, key=lambda i: math.prod(rows[i]))
    return least, dict(zip(tile, rows[best]))
