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
from typing import TYPE_CHECKING

from tinyaot.ops.core import TABLE
from tinyaot.passes.fusion.accesses import Const
from tinyaot.passes.fusion.forms import Op
from tinyaot.passes.fusion.labels import Atom

if TYPE_CHECKING:
    from tinyaot.passes.fusion.graph import Graph

LOAD = 0.08  # ns an element: a load that misses L1
PACK_A, PACK_B, PACK_B_TRANSPOSED, WRITE_C = 0.1, 0.08, 0.25, 0.05  # ns an element of a product
CALL, MEMBER = 200.0, 30.0  # ns a product, and a member of a region, each tile
REDUCE = 0.04  # ns an element
FORM_NS = {"concat": 0.0, "gather": 0.1, "scatter": 0.2, "fallback": 2.0}
BARRIER, FORK = 1000.0, 5000.0  # ns a region, and waking the threads
MAX_ROWS, MAX_ELEMENTS = 1024, 1 << 16  # of a tile


@dataclass(frozen=True, slots=True)
class Machine:
    """What the model knows of a processor: vector lanes of float32, caches in bytes, bandwidth in
    bytes a ns, product rate in FLOPs a ns for one core."""

    lanes: int = 8
    l2: int = 1 << 20
    l3: int = 32 << 20
    l3_rate: float = 30.0
    memory_rate: float = 12.0
    flops: float = 65.0

    @property
    def map_scale(self) -> float:
        """The table's weights are for 16 lanes."""
        return 16 / self.lanes

    def rate(self, nbytes: int) -> float:
        """Bytes a ns at the level where a value of this size lives."""
        return self.l3_rate if nbytes <= self.l3 // 4 else self.memory_rate


Extent = Callable[[Atom], int]
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
    a, b = g.reads[op][0].atoms, g.reads[op][1].atoms
    c = set(g.flat[op])
    in_a, in_b = set(a), set(b)
    every = list(dict.fromkeys(a + b))
    return GemmDims(
        tuple(x for x in every if x in in_a and x in in_b and x in c),
        tuple(x for x in every if x in in_a and x not in in_b),
        tuple(x for x in every if x in in_b and x not in in_a),
        tuple(x for x in every if x in in_a and x in in_b and x not in c),
    )


def volume(atoms: Collection[Atom], extent: Extent) -> int:
    total = 1
    for a in atoms:
        total *= extent(a)
    return total


def nbytes(g: Graph, op: Op, extent: Extent = whole) -> int:
    return op.dtype.itemsize * volume(g.flat[op], extent)


def op_ns(g: Graph, op: Op, extent: Extent) -> float:
    """One op on one tile, its operands in cache."""
    machine = g.machine
    if op.form == "dot":
        d = gemm_dims(g, op)
        m, n, k = (volume(x, extent) for x in (d.m, d.n, d.k))
        b = g.reads[op][1].pairs
        transposed = bool(b) and not isinstance(b[-1][1], Const) and b[-1][1] in d.k
        pack_b = PACK_B_TRANSPOSED if transposed else PACK_B
        wide = op.dtype.itemsize / 4
        each = 2 * m * n * k / machine.flops + k * n * pack_b + m * k * PACK_A + m * n * WRITE_C
        return volume(d.batch, extent) * (each * wide + CALL)
    size = volume(g.space(op), extent)
    if op.form in ("map", "random"):
        flat = g.flat[op]
        weight = 1.5 if op.form == "random" else TABLE[op.name].weight
        if not flat:
            return weight * machine.map_scale
        run = extent(flat[-1])  # a short innermost axis wastes vectors
        return weight * machine.map_scale * size * max(1.0, min(64, flat[-1].size) / run)
    if op.form == "reduce":
        return REDUCE * machine.map_scale * size
    return FORM_NS[op.form] * size


def region_ns(
    g: Graph,
    members: Collection[Op],
    kind: Mapping[Op, Kind],
    tile: Sequence[Atom],
    block: Mapping[Atom, int],
    threads: int,
) -> float:
    """A region on tiles of `block`, with threads sharing the tiles."""
    machine = g.machine

    def extent(a: Atom) -> int:
        return block.get(a, a.size)

    tiles = math.prod(-(-a.size // block[a]) for a in tile)
    tiled = set(tile)
    ns = 0.0
    seen: set[Op] = set()
    for op in members:
        ns += op_ns(g, op, extent) + MEMBER
        size = nbytes(g, op, extent)
        if kind[op] == "acc":
            ns += 2 * size / machine.l3_rate if op.form == "dot" else 0
        elif op in g.stored:
            if op in g.outputs or any(u not in members for u in g.users[op]):
                ns += size / machine.rate(nbytes(g, op))
            elif size > machine.l2 // 4:
                ns += (1 + len(g.users[op])) * size / machine.l3_rate
        for access in g.reads[op]:
            root = access.root
            if root in members or root in seen or root.form in ("const", "iota"):
                continue
            seen.add(root)
            if op.form != "dot" or not tiled.isdisjoint(access.atoms):
                read = root.dtype.itemsize * volume(access.atoms, extent)
                ns += read / machine.rate(nbytes(g, root))
    return ns * math.ceil(tiles / threads) + BARRIER


def block_sizes(size: int, threads: int) -> list[int]:
    """Candidate extents of a tile along one label: round numbers, and fair shares."""
    sizes = {size, *(-(-size // k) for k in (threads, 2 * threads, 4 * threads))}
    sizes.update(n << s for s in range(17) for n in (1, 3) if n << s < size)
    return sorted(s for s in sizes if s)


def best_block(
    g: Graph,
    members: Collection[Op],
    kind: Mapping[Op, Kind],
    tile: Sequence[Atom],
    threads: int,
) -> tuple[float, dict[Atom, int]]:
    """The cheapest tile: labels before some label one at a time, those after it whole."""
    if not tile:
        return region_ns(g, members, kind, tile, {}, threads), {}
    tiled = set(tile)
    elements = all(tiled.issuperset(g.flat[op]) for op in members)
    limit = MAX_ELEMENTS if elements else MAX_ROWS
    best: tuple[float, dict[Atom, int]] | None = None
    for j, label in enumerate(tile):
        for size in block_sizes(label.size, threads):
            if size == 1 and j:
                continue
            block = dict.fromkeys(tile[:j], 1) | {label: size} | {a: a.size for a in tile[j + 1 :]}
            if math.prod(block.values()) > limit:
                break
            ns = region_ns(g, members, kind, tile, block, threads)
            if best is None or ns < best[0] * 0.999:
                best = ns, block
    if best is None:
        block = dict.fromkeys(tile[:-1], 1) | {tile[-1]: min(tile[-1].size, limit)}
        best = region_ns(g, members, kind, tile, block, threads), block
    return best
