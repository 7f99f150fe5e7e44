"""Regions: sets of ops that share a loop over tiles of some labels, grown greedily by cost.

A member either has the tile's labels ("row": a tile makes its own part of it) or sums over some of
them ("acc": complete only after the loop). What is read only inside a region lives in scratch the
size of a tile. Growth goes through the ops in order and takes what may join, so no member ever
waits for a later region: plans have no cycles by construction.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from tinyaot.passes.fusion.accesses import Access
from tinyaot.passes.fusion.graph import Graph
from tinyaot.passes.fusion.labels import Atom
from tinyaot.passes.fusion.limits import find_limits, short_loops
from tinyaot.passes.fusion.machine import Machine
from tinyaot.passes.fusion.model import (
    BARRIER,
    Kind,
    best_block,
    gemm_dims,
    nbytes,
    op_ns,
    region_ns,
    signature,
    volume,
    whole,
)
from tinyaot.passes.fusion.op import Op

# Reason codes of ops that could have joined a region, and did not.
LABELS_DIFFER = "labels differ"
INCOMPLETE = "needs a complete accumulation"
OTHER_ROWS = "reads other rows"
OVERWRITES = "overwrites what is still to be read"
SCRATCH = "scratch exceeds L2"
OWNER = "rows change owner"
CHEAPER_APART = "a region of its own is cheaper"
NO_TILE = "has no tile"
LIBRARY = "products are a library's"
MANY_ADD = "many blocks would add to one result"
REASONS = (
    LABELS_DIFFER,
    INCOMPLETE,
    OTHER_ROWS,
    OVERWRITES,
    SCRATCH,
    OWNER,
    CHEAPER_APART,
    NO_TILE,
    LIBRARY,
    MANY_ADD,
)
SMALL = 1 << 12  # elements of an op that may run without tiles
NEARLY = 1.05  # a price that is as good where it saves memory
NOMINAL_ROWS = 128  # the tile that scratch is judged by before the tile is chosen


@dataclass(eq=False, slots=True)
class Region:
    """Members in order, their kinds, the tile's labels and extents. `parallel`: the leading tile
    labels that threads share (the others are looped over in order); `limits`: {s: t} where s ends
    with the tile of t."""

    tile: tuple[Atom, ...]
    members: list[Op]
    kind: dict[Op, Kind]
    block: dict[Atom, int]
    ns: float
    refused: dict[Op, str]
    parallel: tuple[Atom, ...] = ()
    owned: list[Op] = field(default_factory=list)
    limits: dict[Atom, Atom] = field(default_factory=dict)

    def extent(self, a: Atom) -> int:
        return self.block.get(a, a.size)

    def share(self, a: Atom) -> float:
        """The part of a label's extent that is run, on average: a limit ends it with each tile."""
        if a not in self.limits:
            return 1.0
        ends = range(0, a.size, self.block[self.limits[a]])
        return (sum(ends) + a.size) / (a.size * len(ends))

    def settle(self, g: Graph) -> None:
        """Where big accumulations keep a prefix of the tile's labels, threads share that prefix and
        add in place; otherwise each thread has a partial result."""
        big = [op for op in self.members if self.kind[op] == "acc" and op.form == "dot"]
        keep = 0
        while keep < len(self.tile) and all(self.tile[keep] in g.flat[op] for op in big):
            keep += 1
        self.parallel = self.tile
        if big and keep:
            self.parallel = self.tile[:keep]
            self.owned = big
            for op in big:
                self.kind[op] = "own"


@dataclass(slots=True)
class Growth:
    members: list[Op] = field(default_factory=list)
    kind: dict[Op, Kind] = field(default_factory=dict)
    refused: dict[Op, str] = field(default_factory=dict)


def verdict(
    g: Graph, op: Op, tile: Collection[Atom], members: Collection[Op], kind: Mapping[Op, Kind]
) -> str:
    """'row', 'acc' or the reason for a refusal."""
    if op.form == "fallback":
        return "row" if not members and not tile else NO_TILE
    for i, access in enumerate(g.reads[op]):
        root = access.root
        if root not in members:
            continue
        if kind[root] != "row":
            return INCOMPLETE
        if reads_elsewhere(g, op, i, access, tile):
            return OTHER_ROWS
    if op.form == "concat" and cuts_slots(g, op, tile):
        return OTHER_ROWS
    out: Collection[Atom] = g.scatter_rest(op) if op.form == "scatter" else g.flat[op]
    if all(a in out for a in tile):
        return "row"
    summable = op.form == "dot" or op.name == "sum"
    if summable and all(a in out or a in g.red[op] for a in tile):
        return "acc"
    return LABELS_DIFFER


def cuts_slots(g: Graph, op: Op, tile: Collection[Atom]) -> bool:
    """Whether a tile cuts the axis of unequal slots, whose offsets hold in whole values alone."""
    axis = op.attrs["axis"]
    unequal = len({x.shape[axis] for x in op.ins}) > 1
    return unequal and any(a in tile for a in g.axes[op][axis])


def reads_elsewhere(g: Graph, op: Op, i: int, access: Access, tile: Collection[Atom]) -> bool:
    """Whether a read of a member leaves the tile's own rows."""
    for a, e in access.pairs:
        if e is not a and (a in tile or (op.form == "concat" and e in tile)):
            return True
    axes = g.axes[access.root]
    if any(a in tile for j, _ in access.affine for a in axes[j]):
        return True
    return op.form == "gather" and i == 0 and not g.gathered(op).isdisjoint(tile)


def grow(
    g: Graph,
    seed: Op,
    tile: tuple[Atom, ...],
    done: Collection[Op],
    alone: Callable[[Op], float],
    threads: int,
) -> Growth:
    """What may share a loop over `tile` with the seed. Candidates come from a queue in topological
    order: readers of members, and readers of outside values that carry all the tile's labels and
    that a member reads too."""
    out = Growth()
    members: set[Op] = set()
    touched: set[Op] = set()
    queue = [(seed.id, seed)]
    queued = {seed}

    def push(ops: Sequence[Op], after: int) -> None:
        for op in ops:
            if op.id > after and op not in queued and op not in done:
                queued.add(op)
                heapq.heappush(queue, (op.id, op))

    while queue:
        _, op = heapq.heappop(queue)
        if not all(r in done or r in members for r in g.needs[op]):
            continue
        if (
            op is not seed
            and members.isdisjoint(g.needs[op])
            and touched.isdisjoint((*shared(g, op, tile), *map(g.root, op.after)))
        ):
            continue
        if op in g.overwrites and not (
            all(c in done for c in g.checks[op])
            and all(
                u in done or (u in members and op not in g.late) or u is op
                for u in g.leaf_readers[op]
            )
        ):
            out.refused[op] = OVERWRITES
            continue
        answer = verdict(g, op, tile, members, out.kind)
        if g.machine.grid and op is not seed and "dot" in (op.form, seed.form):
            answer = LIBRARY
        if answer == "row" and op is not seed:
            if too_big(g, op, seed, tile):
                answer = SCRATCH
            elif not tile and (shared_out(g, seed, threads) or not is_small(g, op, alone)):
                answer = CHEAPER_APART
        elif answer == "acc" and g.machine.grid:
            answer = MANY_ADD
        elif answer == "acc":
            answer = accumulation(g, op, tile, members, out.kind, alone, threads)
        if answer not in ("row", "acc"):
            out.refused[op] = answer
            continue
        members.add(op)
        out.members.append(op)
        out.kind[op] = answer
        push(g.readers[op], op.id)
        for root in shared(g, op, tile):
            if root not in touched:
                touched.add(root)
                push(g.readers[root], op.id)
    return out


def short_loop(g: Graph, op: Op, tile: Collection[Atom]) -> dict[Atom, Atom]:
    """The limit of an op's loops over such tiles, if all that read it are members, too."""
    s, t = g.short.get(op, (None, None))
    return {s: t} if s and t and t in tile and s not in tile else {}


def is_small(g: Graph, op: Op, alone: Callable[[Op], float]) -> bool:
    """Whether an op is worth one thread's time without tiles: no more than a region of its own."""
    return volume(g.space(op), whole) <= SMALL and float(op_ns(g, op, whole)) <= alone(op)


def shared_out(g: Graph, op: Op, threads: int) -> bool:
    """Whether threads share an op without a tile, which must be alone, and gain by that."""
    return op.goes_along_lanes and float(op_ns(g, op, whole)) * (1 - 1 / threads) > 2 * BARRIER


def accumulation(
    g: Graph,
    op: Op,
    tile: tuple[Atom, ...],
    members: Collection[Op],
    kind: Mapping[Op, Kind],
    alone: Callable[[Op], float],
    threads: int,
) -> str:
    """Every tile adds to the whole result: worth it only when that is cheaper than a region of its
    own and the stores of operands that this region makes, or nearly so and keeps more bytes out of
    memory."""
    if any(u.form == "concat" for u in g.users[op]) and tile[0] not in g.flat[op]:
        return OWNER
    if op.name == "sum":
        return OWNER if any(u.form == "concat" for u in g.users[op]) else "acc"
    if tile[0] not in g.flat[op] and any(a in g.flat[op] for a in tile):
        return OWNER
    block, left = {}, 64
    for a in reversed(tile):
        block[a] = min(a.size, left)
        left = max(1, left // block[a])
    limits = short_loop(g, op, tile)
    cost = float(region_ns(g, [op], {op: "acc"}, tile, block, 1, limits)) / threads
    if threads > 1:  # each thread's part is read again, to be added up; they share the adding
        cost += op.type.nbytes / g.machine.rate(op.type.nbytes)
    made_here = [r.type.nbytes for r in g.needs[op] if r in members and kind[r] == "row"]
    apart = alone(op) + sum(n / g.machine.rate(n) for n in made_here) / threads
    if op.type.nbytes * threads < sum(made_here):  # stores less
        apart *= NEARLY
    return "acc" if cost <= apart else CHEAPER_APART


def too_big(g: Graph, op: Op, seed: Op, tile: Sequence[Atom]) -> bool:
    """A product that other labels could split, and whose scratch overflows L2 on a nominal tile."""
    if op.form != "dot" or not tile:
        return False
    extra = [a for a in gemm_dims(g, op).batch if a not in tile]
    if not extra:
        return False
    rows = math.prod(a.size for a in g.flat[seed][:-1] if a not in tile)
    left, block = max(1, NOMINAL_ROWS // rows), {}
    for a in reversed(tile):
        block[a] = min(a.size, left)
        left = max(1, left // block[a])
    return int(nbytes(g, op, lambda a: block.get(a, a.size))) > g.machine.l2


def least_bytes(g: Graph, op: Op, tile: Collection[Atom]) -> int:
    """What one row of a tile takes of a value."""
    return int(nbytes(g, op, lambda a: 1 if a in tile else a.size))


def shared(g: Graph, op: Op, tile: Collection[Atom]) -> list[Op]:
    """Values that op reads, from leaves or other ops, with all the tile's labels."""
    found: list[Op] = []
    for access in g.reads[op]:
        root = access.root
        if root in g.inline:
            found += shared(g, root, tile)
        elif tile and root.form not in ("iota", "const"):
            atoms = set(access.atoms)
            if all(a in atoms for a in tile):
                found.append(root)
    return found


def candidates(g: Graph, seed: Op) -> list[tuple[Atom, ...]]:
    """Tiles to try: prefixes of the seed's loops (a sum's operand has its own order)."""
    if seed.form == "fallback":
        return [()]
    flat = g.flat[seed]
    if seed.form == "scatter":
        columns: list[tuple[Atom, ...]] = [(a,) for a in g.scatter_rest(seed)]
        return columns or [()]
    orders = [flat]
    if seed.name == "sum":
        orders.insert(0, g.space(seed))
    found = [x[: j + 1] for x in orders for j in range(max(1, len(x) - 1)) if x]
    return list(dict.fromkeys(found)) or [()]


def best_region(
    g: Graph,
    seed: Op,
    done: Collection[Op],
    alone: Callable[[Op], float],
    threads: int,
) -> Region | None:
    """The best of the seed's tiles; None when it must wait for a leaf's readers."""
    tried = [region_on(g, seed, tile, done, alone, threads) for tile in candidates(g, seed)]
    found = [region for region in tried if region is not None]
    if not found:  # the last resort: no tile at all
        return region_on(g, seed, (), done, alone, threads)
    common = set(found[0].members).intersection(*(region.members for region in found[1:]))

    def gain(region: Region) -> tuple[bool, float]:
        fits = all(
            least_bytes(g, op, region.tile) <= 2 * g.machine.l2
            for op in region.members
            if op in g.stored and region.kind[op] == "row"
        )
        return fits, sum(alone(op) for op in region.members if op not in common) - region.ns

    return max(found, key=gain)


def region_on(
    g: Graph,
    seed: Op,
    tile: tuple[Atom, ...],
    done: Collection[Op],
    alone: Callable[[Op], float],
    threads: int,
) -> Region | None:
    """The seed's region on a tile; None when it must wait."""
    grown = grow(g, seed, tile, done, alone, threads)
    if not grown.members or grown.members[0] is not seed:
        return None
    limits = find_limits(g, grown.members, grown.kind, tile)
    ns, block = best_block(g, grown.kind, grown.kind, tile, threads, limits)
    limits = {s: t for s, t in limits.items() if block[t] < t.size}
    region = Region(tile, grown.members, grown.kind, block, ns, grown.refused)
    region.limits = limits
    return region


@cache
def prices_alone(machine: Machine, threads: int) -> dict[object, float]:
    """What an op costs in a region of its own, by its signature, as far as it was asked for: layers
    are alike, and so are the programs that one search plans."""
    return {}


def partition(g: Graph, threads: int) -> list[Region]:
    """Cover all work with regions. Raises Stuck when overwrites wait for each other."""
    g.short = short_loops(g)
    memory: dict[Op, float] = {}
    alike = prices_alone(g.machine, threads)

    def alone(op: Op) -> float:
        if op not in memory:
            if op not in g.signatures:
                g.signatures[op] = signature(g, op)
            key = g.signatures[op]
            if key not in alike:
                alike[key] = in_its_own_region(op)
            memory[op] = alike[key]
        return memory[op]

    def in_its_own_region(op: Op) -> float:
        tiles: list[tuple[Atom, ...]] = [(a,) for a in g.flat[op][:2]]
        if not tiles or op.form == "fallback":
            tiles = [()]
        return min(best_block(g, [op], {op: "row"}, t, threads)[0] for t in tiles)

    done: set[Op] = set()
    regions: list[Region] = []
    waiting = list(g.work)
    while waiting:
        later: list[Op] = []
        progress = False
        for seed in waiting:
            if seed in done:
                continue
            ready = all(r in done for r in g.needs[seed])
            region = best_region(g, seed, done, alone, threads) if ready else None
            if region is None:
                later.append(seed)
                continue
            region.settle(g)
            regions.append(region)
            done.update(region.members)
            progress = True
        if not progress:
            raise Stuck([op for op in later if op in g.overwrites])
        waiting = [op for op in later if op not in done]
    return regions


class Stuck(Exception):
    """Overwrites that no order of regions allows: they must write elsewhere first."""

    def __init__(self, outputs: Sequence[Op]) -> None:
        super().__init__(str(outputs))
        self.outputs = list(outputs)
