"""The identities of views, and of the pieces that views cut and scatters put together.

Moving elements about is exact, so these rules need to show only that each element comes from the
same place. Views cost no code, but a chain of them hides what a product or a region reads; a
scatter costs a pass over memory.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from tinyaot.ir import Node, Value
from tinyaot.passes.identities import (
    Graph,
    Rewritten,
    is_constant,
    operand_of,
    remake,
    rule,
    scalar,
)
from tinyaot.shapes import Shape

Ranges: TypeAlias = tuple[range, ...]  # the indices that a slice takes of each axis


def ranges_of(node: Node) -> Ranges:
    """What a `slice` or `slice_scatter` selects."""
    a = node.attrs
    return tuple(map(range, a["starts"], a["stops"], a["steps"]))


def slice_attrs(ranges: Ranges) -> dict[str, Shape]:
    """The attributes of a slice, the same for all that select the same: a stop just beyond the
    last element, step 1 for a single one."""
    starts, stops, steps = [], [], []
    for r in ranges:
        if len(r) == 0:
            r = range(0, 0)
        elif len(r) == 1:
            r = range(r[0], r[0] + 1)
        else:
            r = range(r[0], r[-1] + (1 if r.step > 0 else -1), r.step)
        starts.append(r.start)
        stops.append(r.stop)
        steps.append(r.step)
    return {"starts": tuple(starts), "stops": tuple(stops), "steps": tuple(steps)}


def takes_all(ranges: Ranges, shape: Shape) -> bool:
    return all(r == range(n) for r, n in zip(ranges, shape, strict=True))


# ---- views of views -----------------------------------------------------------------------------


@rule("views", "reshape", "permute", "broadcast", "slice")
def view_of_all(node: Node, graph: Graph) -> Rewritten:
    """A reshape or broadcast to the own shape, a permutation that moves nothing, a slice that
    takes everything."""
    x = node.inputs[0]
    if node.op == "permute":
        nothing = node.attrs["perm"] == tuple(range(len(x.type.shape)))
    elif node.op == "slice":
        nothing = takes_all(ranges_of(node), x.type.shape)
    else:
        nothing = x.type == node.result.type
    return x if nothing else None


@rule("views", "reshape", "broadcast")
def reshape_of_reshape(node: Node, graph: Graph) -> Rewritten:
    """Only the last shape counts."""
    x = operand_of(node.inputs[0], graph, node.op)
    return remake(node, node.op, x, shape=node.result.type.shape) if x is not None else None


@rule("views", "permute")
def permute_of_permute(node: Node, graph: Graph) -> Rewritten:
    """Permutations compose."""
    inner = graph.producer(node.inputs[0])
    if inner is None or inner.op != "permute":
        return None
    perm = tuple(inner.attrs["perm"][p] for p in node.attrs["perm"])
    return remake(node, "permute", inner.inputs[0], perm=perm)


@rule("views", "slice")
def slice_of_slice(node: Node, graph: Graph) -> Rewritten:
    """Ranges compose, and each is written in one way."""
    inner, ranges = graph.producer(node.inputs[0]), ranges_of(node)
    if inner is not None and inner.op == "slice":
        ranges = tuple(
            whole[r.start : r.stop if r.stop >= 0 else None : r.step] if len(r) else range(0, 0)
            for whole, r in zip(ranges_of(inner), ranges, strict=True)
        )
        return remake(node, "slice", inner.inputs[0], **slice_attrs(ranges))
    attrs = slice_attrs(ranges)
    return None if attrs == dict(node.attrs) else remake(node, "slice", node.inputs[0], **attrs)


@rule("views", "slice")
def slice_of_broadcast(node: Node, graph: Graph) -> Rewritten:
    """Cut first, then repeat."""
    x = operand_of(node.inputs[0], graph, "broadcast")
    if x is None:
        return None
    ranges, shape = ranges_of(node), x.type.shape
    if any(len(r) == 0 for r in ranges):
        return None
    own = ranges[len(ranges) - len(shape) :]
    cut = tuple(range(1) if n == 1 else r for r, n in zip(own, shape, strict=True))
    small = graph.make("slice", x, **slice_attrs(cut))
    return remake(node, "broadcast", small, shape=node.result.type.shape)


# ---- pieces -------------------------------------------------------------------------------------


@rule("pieces", "concat")
def concat_of_pieces(node: Node, graph: Graph) -> Rewritten:
    """Empty pieces add nothing, a concat inside one opens up, neighbouring slices of one value
    are one slice."""
    axis = node.attrs["axis"]
    pieces: list[Value] = []
    for x in node.inputs:
        inner = graph.producer(x)
        if inner is not None and inner.op == "concat" and inner.attrs["axis"] == axis:
            pieces += inner.inputs
        elif x.type.shape[axis]:
            joined = _join_slices(pieces[-1], x, axis, graph) if pieces else None
            if joined is not None:
                pieces[-1] = joined
            else:
                pieces.append(x)
    pieces = pieces or [node.inputs[0]]
    if len(pieces) == 1:
        return pieces[0]
    return remake(node, "concat", *pieces, axis=axis) if tuple(pieces) != node.inputs else None


def _join_slices(a: Value, b: Value, axis: int, graph: Graph) -> Value | None:
    """The slice that two slices of one value make, if the second goes on where the first ends."""
    left, right = graph.producer(a), graph.producer(b)
    if left is None or right is None or not left.op == right.op == "slice":
        return None
    if left.inputs[0].id != right.inputs[0].id:
        return None
    first, second = ranges_of(left), ranges_of(right)
    r, s = first[axis], second[axis]
    apart = any(p != q for n, (p, q) in enumerate(zip(first, second, strict=True)) if n != axis)
    if apart or r.step != 1 or s.step != 1 or r.stop != s.start:
        return None
    both = (*first[:axis], range(r.start, s.stop), *first[axis + 1 :])
    return graph.make("slice", left.inputs[0], **slice_attrs(both))


@rule("pieces", "slice")
def slice_of_concat(node: Node, graph: Graph) -> Rewritten:
    """A slice inside one piece is a slice of the piece."""
    inner = graph.producer(node.inputs[0])
    if inner is None or inner.op != "concat":
        return None
    axis, ranges = inner.attrs["axis"], ranges_of(node)
    if not len(ranges[axis]):
        return None
    low, high = min(ranges[axis]), max(ranges[axis])
    start = 0
    for piece in inner.inputs:
        stop = start + piece.type.shape[axis]
        if start <= low and high < stop:
            r = ranges[axis]
            moved = range(r.start - start, r[-1] - start + (1 if r.step > 0 else -1), r.step)
            return remake(
                node, "slice", piece, **slice_attrs((*ranges[:axis], moved, *ranges[axis + 1 :]))
            )
        start = stop
    return None


@rule("pieces", "slice")
def slice_of_scatter(node: Node, graph: Graph) -> Rewritten:
    """What was put in comes out again; a slice apart from it is one of the base."""
    inner = graph.producer(node.inputs[0])
    if inner is None or inner.op != "slice_scatter":
        return None
    base, src = inner.inputs
    taken, placed = ranges_of(node), ranges_of(inner)
    if taken == placed:
        return src
    if any(_disjoint(r, s) for r, s in zip(taken, placed, strict=True)):
        return remake(node, "slice", base, **node.attrs)
    if all(_inside(r, s) for r, s in zip(taken, placed, strict=True)):
        moved = tuple(
            range(r.start - s.start, r.stop - s.start) for r, s in zip(taken, placed, strict=True)
        )
        return remake(node, "slice", src, **slice_attrs(moved))
    return None


def _disjoint(r: range, s: range) -> bool:
    """Whether two ranges surely have no index in common: neither reaches into the other."""
    return not len(r) or not len(s) or max(r) < min(s) or max(s) < min(r)


def _inside(r: range, s: range) -> bool:
    return r.step == s.step == 1 and len(r) > 0 and s.start <= r.start and r.stop <= s.stop


@rule("pieces", "diagonal")
def diagonal_of_scatter(node: Node, graph: Graph) -> Rewritten:
    """What was put in comes out again."""
    inner = graph.producer(node.inputs[0])
    if inner is None or inner.op != "diagonal_scatter" or _place(inner) != _place(node):
        return None
    return inner.inputs[1]


def _place(node: Node) -> object:
    """What a view or a scatter selects, comparable between the two."""
    return ranges_of(node) if node.op.startswith("slice") else dict(node.attrs)


@rule("pieces", "slice_scatter", "diagonal_scatter")
def scatter_into_place(node: Node, graph: Graph) -> Rewritten:
    """Nothing put in, everything replaced, the same place filled twice, or filled with what is
    there already."""
    base, src = node.inputs
    if not src.type.size:
        return base
    if node.op == "slice_scatter" and takes_all(ranges_of(node), base.type.shape):
        return src
    filled, taken = graph.producer(base), graph.producer(src)
    if filled is not None and filled.op == node.op and _place(filled) == _place(node):
        return remake(node, node.op, filled.inputs[0], src, **node.attrs)
    if taken is None or taken.op != node.op.removesuffix("_scatter"):
        return None
    return base if taken.inputs[0].id == base.id and _place(taken) == _place(node) else None


@rule("pieces", "permute")
def permute_of_scatter(node: Node, graph: Graph) -> Rewritten:
    """What is scattered into a transpose, to be transposed back, is scattered transposed."""
    inner = graph.producer(node.inputs[0])
    if inner is None or inner.op != "slice_scatter":
        return None
    if operand_of(inner.inputs[0], graph, "permute") is None:
        return None
    perm, ranges = node.attrs["perm"], ranges_of(inner)
    base, src = (graph.make("permute", v, perm=perm) for v in inner.inputs)
    return remake(node, inner.op, base, src, **slice_attrs(tuple(ranges[p] for p in perm)))


# ---- sums of pieces: the backward of splits and writes ------------------------------------------


class Pieces(NamedTuple):
    """A value that is zero but for pieces along one axis: (start, stop, piece), sorted."""

    axis: int
    parts: tuple[tuple[int, int, Value], ...]


@rule("pieces", "add")
def sum_of_pieces(node: Node, graph: Graph) -> Rewritten:
    """Pieces scattered into zeros and added up, which fill an axis without overlap, are a concat:
    each element is one piece's, plus 0.0 (which turns -0.0 into 0.0)."""
    a, b = (_pieces(v, graph) for v in node.inputs)
    same = node.inputs[0].type == node.inputs[1].type  # neither is broadcast
    if a is None or b is None or a.axis != b.axis or not same:
        return None
    axis, parts = a.axis, tuple(sorted((*a.parts, *b.parts), key=lambda part: part[0]))
    starts, stops = [start for start, _, _ in parts], [stop for _, stop, _ in parts]
    graph.notes[node.result.id] = Pieces(axis, parts)
    if [0, *stops] != [*starts, node.result.type.shape[axis]]:
        return None
    whole = graph.make("concat", *(piece for _, _, piece in parts), axis=axis)
    return plus_zero(node, whole, graph)


def _pieces(value: Value, graph: Graph) -> Pieces | None:
    noted = graph.notes.get(value.id)
    if isinstance(noted, Pieces):
        return noted
    node = graph.producer(value)
    if node is None or node.op != "slice_scatter" or not is_constant(node.inputs[0], graph, 0.0):
        return None
    ranges, shape = ranges_of(node), value.type.shape
    cut = [a for a, (r, n) in enumerate(zip(ranges, shape, strict=True)) if r != range(n)]
    if len(cut) != 1 or ranges[cut[0]].step != 1:
        return None
    r = ranges[cut[0]]
    return Pieces(cut[0], ((r.start, r.stop, node.inputs[1]),))


@rule("pieces", "add")
def sum_of_complements(node: Node, graph: Graph) -> Rewritten:
    """One place of x cleared, and that place alone filled by v: x with v in place, plus 0.0."""
    if node.inputs[0].type != node.inputs[1].type:
        return None  # one is broadcast: its place is another
    for cleared, filled in (node.inputs, node.inputs[::-1]):
        a, b = graph.producer(cleared), graph.producer(filled)
        if a is None or b is None or a.op != b.op or not a.op.endswith("_scatter"):
            continue
        if _place(a) != _place(b):
            continue
        if is_constant(a.inputs[1], graph, 0.0) and is_constant(b.inputs[0], graph, 0.0):
            both = graph.make(a.op, a.inputs[0], b.inputs[1], **a.attrs)
            return plus_zero(node, both, graph)
    return None


def plus_zero(node: Node, x: Value, graph: Graph) -> Rewritten:
    """x + 0.0; for integers, x."""
    dtype = x.type.dtype
    return remake(node, "add", x, scalar(graph, 0.0, dtype)) if dtype.is_floating else x
