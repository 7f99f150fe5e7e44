"""Ops without a tile: one loop nest of their own, on whole values in C order, by one thread; what
goes along lanes of an axis is shared out where nothing else is in the region.

Scans, sorts, arg-reductions, scatters that overwrite, slices written into a copy, and reshapes that
strides cannot express. Each is a few lines of C over (outer, n, inner): the axes before, along and
after the op's axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tinyaot.codegen.addresses import Addresses
from tinyaot.codegen.nests import Check
from tinyaot.codegen.printer import Dialect, literal
from tinyaot.passes.fusion.graph import Graph
from tinyaot.passes.fusion.op import Op
from tinyaot.passes.fusion.regions import Region
from tinyaot.passes.fusion.storage import dense_strides

Lines = list[str]
FEW = 32  # places, which sort.h sorts where they are


def shares_lanes(region: Region) -> bool:
    """Whether threads share the lanes of the one op."""
    return len(region.members) == 1 and region.members[0].goes_along_lanes


def checks_of(op: Op) -> list[Check]:
    """What the error slots of an op report, in order."""
    if op.name == "scatter":
        return [Check(op, axis, op.shape[axis]) for axis in op.attrs["axes"]]
    if op.name == "put_along":
        return [Check(op, op.attrs["axis"], op.shape[op.attrs["axis"]])]
    return []


def fallback_lines(
    op: Op, args: Sequence[str], out: str, dialect: Dialect, slot: int, shares: int = 1
) -> Lines:
    """C text of the op. `args`, `out`: pointer expressions (none for a constant that the op is
    spread over); `slot`: its first error slot; `shares`: of its lanes, this one is `share`."""
    types = [dialect.memory[x.dtype.short] for x in op.ins]
    lines = [
        f"const {t} *__restrict__ x{j} = {a};" for j, (t, a) in enumerate(zip(types, args)) if a
    ]
    lines.append(f"{dialect.memory[op.dtype.short]} *__restrict__ y = {out};")
    if checks_of(op):
        lines.append(f"int64_t *const report = error + {slot};")
    if op.goes_along_lanes:
        outer, _, inner = around(op.ins[0].shape, op.attrs["axis"])
        ends = ["0", f"{outer * inner}"]
        if shares > 1:
            ends = [f"{outer * inner}L * {x} / {shares}" for x in ("share", "(share + 1)")]
        lines.append(f"const int64_t first = {ends[0]}, last = {ends[1]};")
    return ["{", *("  " + line for line in lines + _EMITTERS[op.name](op, dialect)), "}"]


def around(shape: Sequence[int], axis: int) -> tuple[int, int, int]:
    """(elements before, along and after an axis)."""
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def lanes(op: Op, body: Lines) -> Lines:
    """A loop over the lanes of operand 0; `body` has x (stride `inner`) and the lane's o and i."""
    _, n, inner = around(op.ins[0].shape, op.attrs["axis"])
    return [
        f"const int64_t n = {n}, inner = {inner};",
        "for (int64_t lane = first; lane < last; lane++) {",
        "  const int64_t o = lane / inner, i = lane % inner;",
        *("  " + line for line in body),
        "}",
    ]


def scan(op: Op, dialect: Dialect) -> Lines:
    sign, zero = ("+", "0") if op.name == "cumsum" else ("*", "1")
    kind = dialect.memory[op.dtype.short]
    return lanes(
        op,
        [
            f"{kind} total = {zero};",
            "for (int64_t j = 0; j < n; j++) {",
            "  const int64_t at = (o * n + j) * inner + i;",
            f"  total = total {sign} x0[at];",
            "  y[at] = total;",
            "}",
        ],
    )


def arg_reduce(op: Op, dialect: Dialect) -> Lines:
    sign = ">" if op.name == "argmax" else "<"
    kind = dialect.memory[op.ins[0].dtype.short]
    return lanes(
        op,
        [
            "int64_t best = 0;",
            "for (int64_t j = 1; j < n; j++) {",
            f"  const {kind} a = x0[(o * n + j) * inner + i], b = x0[(o * n + best) * inner + i];",
            f"  if (b == b && (a {sign} b || a != a)) best = j;",
            "}",
            "y[o * inner + i] = best;",
        ],
    )


def place_bits(op: Op) -> int:
    """Of a sort's key, and of the place beside it."""
    source = op.ins[0]
    return 64 if source.dtype.itemsize == 8 or source.shape[op.attrs["axis"]] >= 1 << 32 else 32


def sort_bytes(region: Region) -> int:
    """What the region's sorts work in: keys with their places, twice unless there are few."""
    found = 0
    for op in region.members:
        if op.name == "argsort" and op.type.size:
            n = op.shape[op.attrs["axis"]]
            found = max(found, place_bits(op) // 4 * n * (1 if n <= FEW else 2))
    return found


def argsort(op: Op, dialect: Dialect) -> Lines:
    """Each lane's keys with their places, sorted (see sort.h)."""
    source, n, width = op.ins[0], op.ins[0].shape[op.attrs["axis"]], place_bits(op)
    key = source.dtype.short if source.dtype.short in ("f32", "f64", "i64", "u32") else "i32"
    sign = "~" if op.attrs["descending"] else ""
    return [
        dialect.spare.format(f"place_{width}", "places", 2 * n) + ";",
        *lanes(
            op,
            [
                "for (int64_t j = 0; j < n; j++) {",
                f"  places[j].key = {sign}key_{key}(x0[(o * n + j) * inner + i]);",
                f"  places[j].at = (uint{width}_t)j;",
                "}",
                f"const place_{width} *sorted = sort_{width}(places, places + n, n);",
                "for (int64_t j = 0; j < n; j++)",
                "  y[(o * n + j) * inner + i] = (int64_t)sorted[j].at;",
            ],
        ),
    ]


def arguments(g: Graph, op: Op, where: Addresses, region: Region) -> list[str]:
    """Pointers to the operands, for `fallback_lines`."""
    reads = g.reads[op]
    return ["" if a.root.form == "const" else where.of(a, region).text for a in reads]


def copy_all(op: Op, dialect: Dialect) -> Lines:
    """Begin with operand 0, or with a constant everywhere."""
    base = op.ins[0]
    if base.form == "const":
        value = literal(base.attrs["value"], op.dtype)
        return [f"for (int64_t j = 0; j < {op.type.size}; j++) y[j] = {value};"]
    return [f"memcpy(y, x0, {op.type.nbytes}L);"]


def box(shape: Sequence[int], body: Callable[[list[str]], str]) -> Lines:
    """Loops over a shape; `body` gets the loop variables."""
    names = [f"j{d}" for d in range(len(shape))]
    lines = [f"{'  ' * d}for (int64_t j{d} = 0; j{d} < {n}; j{d}++)" for d, n in enumerate(shape)]
    return [*lines, "  " * len(shape) + body(names)]


def flat(names: Sequence[str], strides: Sequence[int]) -> str:
    return " + ".join(f"{n} * {s}L" for n, s in zip(names, strides)) or "0"


def slice_scatter(op: Op, dialect: Dialect) -> Lines:
    src, strides = op.ins[1], dense_strides(op.shape)
    starts, steps = op.attrs["starts"], op.attrs["steps"]
    start = sum(s * b for s, b in zip(strides, starts))
    moved = [s * k for s, k in zip(strides, steps)]
    own = dense_strides(src.shape)
    return copy_all(op, dialect) + box(
        src.shape, lambda j: f"y[{start} + {flat(j, moved)}] = x1[{flat(j, own)}];"
    )


def diagonal_scatter(op: Op, dialect: Dialect) -> Lines:
    src, strides = op.ins[1], dense_strides(op.shape)
    a1, a2, offset = op.attrs["axis1"], op.attrs["axis2"], op.attrs["offset"]
    rest = [s for j, s in enumerate(strides) if j not in (a1, a2)]
    start = strides[a2] * offset if offset >= 0 else -strides[a1] * offset
    moved = [*rest, strides[a1] + strides[a2]]
    own = dense_strides(src.shape)
    return copy_all(op, dialect) + box(
        src.shape, lambda j: f"y[{start} + {flat(j, moved)}] = x1[{flat(j, own)}];"
    )


def _put(op: Op) -> str:
    """The assignment of a scatter; a sum of bools is whether one is true."""
    if op.attrs["mode"] != "add":
        return "="
    return "|=" if op.dtype.kind == "bool" else "+="


def scatter(op: Op, dialect: Dialect) -> Lines:
    """base with src written (or added) at computed places, in order."""
    base, src, *indices = op.ins
    axes = op.attrs["axes"]
    rest = [j for j in range(base.type.ndim) if j not in axes]
    lead = src.type.ndim - len(rest)
    strides, own = dense_strides(base.shape), dense_strides(src.shape)

    def one(j: list[str]) -> str:
        terms = [f"{j[lead + d]} * {strides[axis]}L" for d, axis in enumerate(rest)]
        for k, (axis, index) in enumerate(zip(axes, indices)):
            names = j[lead - index.type.ndim : lead]
            steps = [s if n > 1 else 0 for s, n in zip(dense_strides(index.shape), index.shape)]
            at = f"x{k + 2}[{flat(names, steps)}]"
            place = f"checked_index({at}, {base.shape[axis]}, report + {k})"
            terms.append(f"{place} * {strides[axis]}L")
        return f"y[{' + '.join(terms)}] {_put(op)} x1[{flat(j, own)}];"

    return copy_all(op, dialect) + box(src.shape, one)


def put_along(op: Op, dialect: Dialect) -> Lines:
    base, src, index = op.ins
    axis = op.attrs["axis"]
    strides, own = dense_strides(base.shape), dense_strides(src.shape)

    def one(j: list[str]) -> str:
        at = f"x2[{flat(j, dense_strides(index.shape))}]"
        terms = [f"{n} * {s}L" for d, (n, s) in enumerate(zip(j, strides)) if d != axis]
        terms.append(f"checked_index({at}, {base.shape[axis]}, report) * {strides[axis]}L")
        return f"y[{' + '.join(terms)}] {_put(op)} x1[{flat(j, own)}];"

    return copy_all(op, dialect) + box(src.shape, one)


_EMITTERS: dict[str, Callable[[Op, Dialect], Lines]] = {
    "cumsum": scan,
    "cumprod": scan,
    "argmax": arg_reduce,
    "argmin": arg_reduce,
    "argsort": argsort,
    "reshape": copy_all,
    "slice_scatter": slice_scatter,
    "diagonal_scatter": diagonal_scatter,
    "scatter": scatter,
    "put_along": put_along,
}
