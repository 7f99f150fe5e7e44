"""Axis labels by unification.

Every axis of every value is a list of atoms (a product of labels; an axis of size 1 is the empty
list), so `[b*t, d]` and `[b, t, d]` share their labels. Atoms of one op's iteration space are
pairwise distinct: *enemies*. The edge from an op to its operand unifies the op's view of each axis
with the operand's, as type inference does (Robinson's unification, with union-find); an edge whose
unification would make enemies equal is *bent*: it keeps atoms of its own and means "reads the whole
value along this axis". A slice that is no product of atoms is an
*affine* read: start + step * atom.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tinyaot.passes.fusion.op import Op


class Atom:
    """A label with a size. `parent`: merged into that one; `parts`: split in (outer, inner)."""

    __slots__ = ("enemies", "id", "parent", "parts", "size")

    def __init__(self, id_: int, size: int) -> None:
        self.id, self.size = id_, size
        self.parent: Atom | None = None
        self.parts: tuple[Atom, Atom] | None = None
        self.enemies: set[Atom] = set()

    def __repr__(self) -> str:
        return f"a{self.id}={self.size}"


Axis = list[Atom]


@dataclass(frozen=True, slots=True)
class Affine:
    """An axis read at start + step * (the atoms' joint index)."""

    start: int
    step: int
    atoms: tuple[Atom, ...]


def find(a: Atom) -> Atom:
    """The atom that stands for a, with path compression."""
    while a.parent:
        if a.parent.parent:
            a.parent = a.parent.parent
        a = a.parent
    return a


def expand(atoms: Iterable[Atom]) -> Axis:
    """The unsplit atoms that the given ones stand for."""
    out: Axis = []
    for a in atoms:
        if a.parent:
            a = find(a)
        if a.parts:
            out += expand(a.parts)
        else:
            out.append(a)
    return out


def counts(op: Op) -> bool:
    """Whether an op is a range of indices, or a view of one: axes that read the same range have
    nothing else in common."""
    while op.form == "view":
        op = op.ins[0]
    return op.form == "iota"


class Labels:
    """For each op: `out` (its axes), `edge[op, i]` (how it sees operand i), `red` (what it sums
    over), and the special cases of edges: `fixed` atoms have a constant index (equal slices),
    `affine[op, i]` maps axes of the operand to affine reads."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self.count = 0
        self.out: dict[Op, list[Axis]] = {}
        self.edge: dict[tuple[Op, int], list[Axis]] = {}
        self.red: dict[Op, Axis] = {}
        self.fixed: dict[tuple[Op, int], dict[int, int]] = {}  # axis -> index of its leading atoms
        self.affine: dict[tuple[Op, int], dict[int, Affine]] = {}
        self.later: list[tuple[Axis, Axis]] = []  # contracted axes are read whole: they give way
        self.kept: list[tuple[Axis, Axis]] = []  # edges that may have kept atoms of their own
        for op in ops:
            self.add(op)
        for x, y in self.later:
            self.unify(x, y)
        for _ in range(3):  # splits found late reach those
            before = self.count
            for x, y in self.kept:
                self.refine(x, y)
            if self.count == before:
                break
        self.out = {n: [expand(x) for x in v] for n, v in self.out.items()}
        self.edge = {k: [expand(x) for x in v] for k, v in self.edge.items()}
        self.red = {n: expand(v) for n, v in self.red.items()}
        self.affine = {
            k: {j: Affine(a.start, a.step, tuple(expand(a.atoms))) for j, a in v.items()}
            for k, v in self.affine.items()
        }

    # ---- atoms ----------------------------------------------------------------------------------
    def atom(self, size: int) -> Atom:
        self.count += 1
        return Atom(self.count, size)

    def axis(self, size: int) -> Axis:
        return [self.atom(size)] if size > 1 else []

    def axes(self, shape: Iterable[int]) -> list[Axis]:
        return [self.axis(s) for s in shape]

    def split(self, a: Atom, outer: int) -> None:
        p, q = self.atom(outer), self.atom(a.size // outer)
        a.parts = p, q
        p.enemies, q.enemies = a.enemies | {q}, a.enemies | {p}
        for e in a.enemies:
            e.enemies.discard(a)
            e.enemies |= {p, q}

    def refine(self, xs: Axis, ys: Axis) -> bool:
        """Split atoms of both until their sizes agree; False when they cannot."""
        if xs is ys:
            return True
        while True:
            for a, b in zip(expand(xs), expand(ys)):
                if a.size != b.size:
                    big, small = (a, b) if a.size > b.size else (b, a)
                    if big.size % small.size:
                        return False
                    self.split(big, small.size)
                    break
            else:
                return True

    def make_enemies(self, atoms: Iterable[Atom]) -> None:
        group = set(expand(atoms))
        for a in group:
            a.enemies |= group - {a}

    def unify(self, xs: Axis, ys: Axis) -> bool:
        """Make two axes one; False (and no change but splits) when enemies would meet."""
        if not xs or not ys:
            return True
        left, right = expand(xs), expand(ys)
        if left == right:
            return True
        if [a.size for a in left] != [b.size for b in right]:
            if math.prod(a.size for a in left) != math.prod(b.size for b in right):
                return False
            if not self.refine(xs, ys):
                return False
            left, right = expand(xs), expand(ys)
        pairs = [(a, b) for a, b in zip(left, right) if a is not b]
        for a, b in pairs:
            if b in a.enemies:
                return False
        for a, b in pairs:
            a, b = find(a), find(b)
            if a is not b:
                a.parent = b
                b.enemies |= a.enemies
                for e in a.enemies:
                    e.enemies.discard(a)
                    e.enemies.add(b)
        return True

    # ---- one op ---------------------------------------------------------------------------------
    def add(self, op: Op) -> None:
        out: list[Axis] = [[] for _ in op.shape] if op.form == "const" else self.axes(op.shape)
        out, edges, red = self.shape_of(op, out)
        self.out[op], self.red[op] = out, red
        apart = [a for x in out for a in x] + red
        if op.form == "gather":  # what is read at computed places is no loop of this op
            apart += [a for x in edges[0] for a in x]
        self.make_enemies(apart)
        enemies = set(apart)
        if op.like:
            reader, i = op.like
            # the gradient of an operand has the labels of the operand's use
            like = self.edge.get((reader, i), [])
            if reader.ins[i].shape == op.shape:
                for x, y in zip(out, like):
                    self.unify(x, y)
        contracted = set(red) if op.form == "dot" else set()
        for i, (edge, src) in enumerate(zip(edges, op.ins)):
            self.edge[op, i] = edge
            if not enemies.issuperset(seen := [a for x in edge for a in x]):
                self.make_enemies(seen)
            bent = self.affine.get((op, i), {})
            for j, (x, y) in enumerate(zip(edge, self.out[src])):
                if j in bent or (op.form != "view" and counts(src)):
                    continue
                if contracted and any(a in contracted for a in x):
                    self.later.append((x, y))
                    self.kept.append((x, y))
                elif not self.unify(x, y):
                    if j in self.fixed.get((op, i), {}):
                        self.unfix(op, i, j)
                    else:
                        self.kept.append((x, y))
        if op.form == "view" and op.name == "reshape":
            flat_in = [a for x in edges[0] for a in x]
            self.unify(flat_in, [a for x in out for a in x])

    def unfix(self, op: Op, i: int, j: int) -> None:
        """An equal slice whose atoms do not fit after all is read by index."""
        k = self.fixed[op, i].pop(j)
        size = op.shape[j]
        self.affine.setdefault((op, i), {})[j] = Affine(k * size, 1, tuple(self.out[op][j]))
        self.edge[op, i][j] = []

    def shape_of(self, op: Op, out: list[Axis]) -> tuple[list[Axis], list[list[Axis]], Axis]:
        """(axes of the result, axes of each operand, atoms summed over)."""
        match op.form, op.name:
            case "map", _:
                return out, [self.aligned(x.shape, out) for x in op.ins], []
            case (("input" | "const" | "iota"), _):
                return out, [], []
            case "random", _:
                return out, [[[] for _ in x.shape] for x in op.ins], []
            case "reduce", _:
                edge = [
                    self.axis(s) if j in op.attrs["axes"] else out[j]
                    for j, s in enumerate(op.ins[0].shape)
                ]
                return out, [edge], [a for j in op.attrs["axes"] for a in edge[j]]
            case "dot", _:
                return self.dot(op, out)
            case "view", _:
                return out, [self.view(op, out)], []
            case "gather", "gather":
                lead = len(op.shape) - (op.ins[0].type.ndim - len(op.attrs["axes"]))
                rest = iter(out[lead:])
                table = [
                    self.axis(s) if j in op.attrs["axes"] else next(rest)
                    for j, s in enumerate(op.ins[0].shape)
                ]
                return out, [table, *(self.aligned(x.shape, out[:lead]) for x in op.ins[1:])], []
            case "gather", "take_along":
                axis = op.attrs["axis"]
                table = list(out)
                table[axis] = self.axis(op.ins[0].shape[axis])
                for j, (n, s) in enumerate(zip(op.ins[0].shape, op.shape)):
                    if j != axis and n != s:
                        self.affine.setdefault((op, 0), {})[j] = Affine(0, 1, tuple(out[j]))
                        table[j] = []
                return out, [table, self.aligned(op.ins[1].shape, out)], []
            case "scatter", "scatter":
                kept = [x for j, x in enumerate(out) if j not in op.attrs["axes"]]
                places = self.axes(op.ins[0].shape[: op.ins[0].type.ndim - len(kept)])
                indices = [self.aligned(x.shape, places) for x in op.ins[1:]]
                return out, [places + kept, *indices], [a for x in places for a in x]
            case "scatter", "put_along":
                axis = op.attrs["axis"]
                src = list(out)
                src[axis] = self.axis(op.ins[0].shape[axis])
                return out, [src, self.aligned(op.ins[1].shape, src)], list(src[axis])
            case "concat", _:
                return self.concat(op, out)
            case _:  # fallback: whole values
                return out, [self.axes(x.shape) for x in op.ins], []

    def aligned(self, shape: Sequence[int], out: Sequence[Axis]) -> list[Axis]:
        """The axes of an operand that broadcasts against `out`."""
        return [o if s > 1 else [] for s, o in zip(shape, out[len(out) - len(shape) :])]

    def dot(self, op: Op, out: list[Axis]) -> tuple[list[Axis], list[list[Axis]], Axis]:
        left, result = op.attrs["spec"].split("->")
        by = dict(zip(result, out))
        red: Axis = []
        edges = []
        for spec, x in zip(left.split(","), op.ins):
            for c, s in zip(spec, x.shape):
                if c not in by:
                    by[c] = self.axis(s)
                    red += by[c]
            edges.append([by[c] if s > 1 else [] for c, s in zip(spec, x.shape)])
        return out, edges, red

    def view(self, op: Op, out: list[Axis]) -> list[Axis]:
        src = op.ins[0].shape
        match op.name:
            case "permute":
                edge: list[Axis] = [[] for _ in src]
                for o, p in zip(out, op.attrs["perm"]):
                    edge[p] = o
                return edge
            case "broadcast":
                return self.aligned(src, out)
            case "slice":
                return [self.sliced(op, j, out[j]) for j in range(len(src))]
            case "diagonal":
                a1, a2 = op.attrs["axis1"], op.attrs["axis2"]
                offset = op.attrs["offset"]
                rest = iter(out[:-1])
                edge = [[] if j in (a1, a2) else next(rest) for j in range(len(src))]
                diagonal = tuple(out[-1])
                self.affine[op, 0] = {
                    a1: Affine(max(0, -offset), 1, diagonal),
                    a2: Affine(max(0, offset), 1, diagonal),
                }
                return edge
            case _:  # reshape: unified as one product in `add`
                return self.axes(src)

    def sliced(self, op: Op, j: int, out: Axis) -> Axis:
        n, s = op.ins[0].shape[j], op.shape[j]
        start, step = op.attrs["starts"][j], op.attrs["steps"][j]
        if step == 1 and s == n:
            return out
        if (step == 1 or s == 1) and n % s == 0 and start % s == 0:
            self.fixed.setdefault((op, 0), {})[j] = start // s
            return [self.atom(n // s), *out]
        self.affine.setdefault((op, 0), {})[j] = Affine(start, step, tuple(out))
        return []

    def concat(self, op: Op, out: list[Axis]) -> tuple[list[Axis], list[list[Axis]], Axis]:
        axis = op.attrs["axis"]
        sizes = [x.shape[axis] for x in op.ins]
        if len(set(sizes)) == 1:
            part = self.axis(sizes[0])
            out[axis] = [self.atom(len(sizes)), *part]
            return out, [[part if j == axis else o for j, o in enumerate(out)] for _ in op.ins], []
        edges = [[self.axis(s) if j == axis else o for j, o in enumerate(out)] for s in sizes]
        return out, edges, []
