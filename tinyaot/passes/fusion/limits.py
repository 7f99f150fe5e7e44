"""Triangular loops: labels whose extent ends with the tile.

Where a mask `s <= t` sends all beyond it to nothing (0 in sums and products, hugely negative under
a maximum), the loop over s may stop at the end of t's tile: half of the work of a causal mask. The
proof is an abstract interpretation over {unknown, a number}: the value of each op where s lies
beyond the tile. A masked NaN or infinity is dropped instead of spread, as if it had been masked
before the products.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tinyaot.passes.fusion.graph import Graph
from tinyaot.passes.fusion.labels import Atom
from tinyaot.passes.fusion.model import Kind
from tinyaot.passes.fusion.op import LEAVES, Op

COMPARISONS = ("le", "lt", "ge", "gt")
HUGE = -1e29  # at or below: exp gives 0, a maximum ignores it

Mask = tuple[Atom, Atom, bool]  # (s, t, whether true means s <= t)


def find_limits(
    g: Graph, members: Sequence[Op], kind: Mapping[Op, Kind], tile: Sequence[Atom]
) -> dict[Atom, Atom]:
    """{s: t}: a loop over s may end where a tile of t ends."""
    inside = set(members)
    limits: dict[Atom, Atom] = {}
    seen: set[tuple[Atom, Atom]] = set()
    for op in masks_read(g, members):
        found = mask(g, op)
        if not found:
            continue
        s, t, _ = found
        if t not in tile or s in tile or s.size != t.size or (s, t) in seen:
            continue
        seen.add((s, t))
        memo: dict[Op, float | None] = {}
        if all(neutral(g, op, s, t, kind, inside, memo) for op in members):
            limits[s] = t
    return limits


def short_loops(g: Graph) -> dict[Op, tuple[Atom, Atom]]:
    """{op: (s, t)}: an op whose loops over s may end where a tile of t ends, if all that read it
    share its region. From the last op to the first: what a masked sum or product reads, and what
    only such ops read."""
    found: dict[Op, tuple[Atom, Atom]] = {}
    masks = (mask(g, op) for op in masks_read(g, g.work))
    for s, t in dict.fromkeys((m[0], m[1]) for m in masks if m):
        if s is t or s.size != t.size:
            continue
        memo: dict[Op, float | None] = {}
        short: set[Op] = set()
        for op in reversed(g.ops):
            space = () if op.form in ("view", *LEAVES) else (*g.flat[op], *g.red[op])
            if s in space and t in space and stops(g, op, s, t, short, memo):
                short.add(op)
                found.setdefault(op, (s, t))
    return found


def stops(g: Graph, op: Op, s: Atom, t: Atom, short: set[Op], memo: dict[Op, float | None]) -> bool:
    """Whether nothing is lost of op where s lies beyond the tile of t."""
    values = [beyond(g, a.root, s, t, memo) if s in a.atoms else None for a in g.reads[op]]
    if op.form == "reduce" and s in g.red[op]:
        return is_neutral(op, values[0])
    if op.form == "dot" and (s in g.red[op] or t in g.red[op]):
        return 0 in values
    if op.form not in ("map", "random", "dot", "reduce") or op in g.outputs or t in g.red[op]:
        return False
    return all(user in short and reads_both(g, user, op, s, t) for user in g.users[op])


def reads_both(g: Graph, user: Op, op: Op, s: Atom, t: Atom) -> bool:
    """Whether a reader's s and t are those of what it reads."""
    both = {(s, s), (t, t)}
    return all(both <= set(a.pairs) for a in g.reads[user] if a.root is op)


def is_neutral(op: Op, beyond: float | None) -> bool:
    """Whether a reduction drops such values."""
    if op.name == "amax":
        return beyond is not None and beyond <= HUGE
    return op.name == "sum" and beyond == 0


def masks_read(g: Graph, members: Sequence[Op]) -> list[Op]:
    """Conditions of the selections that these ops' loops compute."""
    found: dict[Op, None] = {}
    todo, seen = list(members), set(members)
    while todo:
        op = todo.pop()
        if op.name == "where":
            found[g.reads[op][0].root] = None
        for access in g.reads[op]:
            root = access.root
            if root.form == "map" and root not in seen and root not in g.stored:
                seen.add(root)
                todo.append(root)
    return list(found)


def mask(g: Graph, op: Op) -> Mask | None:
    """What a comparison of two index ranges says."""
    if op.name == "logical_not":
        inner = mask(g, g.reads[op][0].root)
        return (inner[0], inner[1], not inner[2]) if inner else None
    if op.name not in COMPARISONS:
        return None
    atoms = []
    for access in g.reads[op]:
        if access.root.form != "iota" or len(access.pairs) != 1:
            return None
        e = access.pairs[0][1]
        if not isinstance(e, Atom):
            return None
        atoms.append(e)
    a, b = atoms
    match op.name:  # beyond the tile means s > t
        case "le" | "lt":
            return a, b, True
        case "ge":
            return b, a, True
        case _:
            return a, b, False  # a > b holds beyond


def neutral(
    g: Graph,
    op: Op,
    s: Atom,
    t: Atom,
    kind: Mapping[Op, Kind],
    members: set[Op],
    memo: dict[Op, float | None],
) -> bool:
    """Whether op gives the same result when s stops at the end of t's tile."""
    if s not in g.flat[op] and s not in g.red[op]:
        return True
    values = [beyond(g, a.root, s, t, memo) if s in a.atoms else None for a in g.reads[op]]
    if op.form == "reduce" and s in g.red[op]:
        return is_neutral(op, values[0])
    if op.form == "dot" and (s in g.red[op] or kind[op] in ("acc", "own")):
        return 0 in values
    if op.form not in ("map", "random", "dot", "reduce"):
        return False
    if op in g.stored:
        inside = all(u in members for u in g.users[op])
        return kind[op] == "row" and inside and op not in g.outputs
    return True


def beyond(g: Graph, op: Op, s: Atom, t: Atom, memo: dict[Op, float | None]) -> float | None:
    """The value of op where s > the tile's end: a number, or None when unknown. HUGE stands for
    anything as negative."""
    if op not in memo:
        memo[op] = None
        memo[op] = abstract(g, op, s, t, memo)
    return memo[op]


def abstract(g: Graph, op: Op, s: Atom, t: Atom, memo: dict[Op, float | None]) -> float | None:
    if op.form == "const":
        return float(op.attrs["value"])
    if op.form != "map":
        return None
    if op.name == "where":
        found = mask(g, g.reads[op][0].root)
        if found and found[:2] == (s, t):
            return beyond(g, g.reads[op][2 if found[2] else 1].root, s, t, memo)
        return None
    v = [beyond(g, a.root, s, t, memo) for a in g.reads[op]]
    huge = [x is not None and x <= HUGE for x in v]
    match op.name:
        case "mul":
            if 0 in v:
                return 0.0
            positive = any(x is not None and x > 0 for x in v)
            return HUGE if any(huge) and positive else None
        case "div" | "neg" | "copy" | "cast" if v[0] == 0:
            return 0.0
        case "copy" | "cast" | "sub" if huge[0]:
            return HUGE
        case "add" if any(huge):
            return HUGE
        case "exp" if huge[0]:
            return 0.0
    return None
