"""A product on a tile as one call of the matrix kernel, inside loops over what cannot merge.

Rows, columns and contracted labels each merge into one dimension where strides allow (the last
label, then outer ones that continue it); the rest become loops. Transposes are strides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tinyaot.codegen.addresses import Addresses, Pointer, extent_text
from tinyaot.passes.fusion.graph import Graph
from tinyaot.passes.fusion.labels import Atom
from tinyaot.passes.fusion.model import gemm_dims
from tinyaot.passes.fusion.op import Op
from tinyaot.passes.fusion.regions import Region

# What packing takes: m, n, k at most, the step along a row of A (0: unknown), bytes of an element.
Size = tuple[int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Merged:
    """Loops over `outer`, and one dimension of `extent`, at most `bound`, with a stride in each
    operand."""

    outer: list[Atom]
    extent: str
    strides: list[int]
    bound: int = 1


def merge(atoms: Sequence[Atom], operands: Sequence[Pointer], region: Region) -> Merged:
    wide = [a for a in atoms if region.extent(a) > 1 or a in region.limits]
    wide.sort(key=lambda a: -max(p.strides.get(a, 0) for p in operands))
    if not wide:
        return Merged([], "1", [1 for _ in operands])
    last = wide.pop()
    strides = [p.strides.get(last, 0) for p in operands]
    extent, bound = extent_text(region, last), region.extent(last)
    fixed, text = (extent, "") if isinstance(extent, int) else (0, extent)
    while wide and fixed:  # an outer label continues the dimension
        a = wide[-1]
        if any(p.strides.get(a, 0) != s * fixed for p, s in zip(operands, strides)):
            break
        wide.pop()
        bound *= region.extent(a)
        more = extent_text(region, a)
        if isinstance(more, int):
            fixed *= more
        else:
            fixed, text = 0, f"{more} * {fixed}"
    return Merged(wide, str(fixed) if fixed else text, strides, bound)


def product_lines(
    g: Graph, where: Addresses, region: Region, op: Op, pad: str, sizes: set[Size]
) -> list[str]:
    """C text of a product, whose size is added to `sizes`."""
    a, b = (where.of(access, region) for access in g.reads[op])
    c = where.own(op, region)
    dims = gemm_dims(g, op)
    m = merge(dims.m, (a, c), region)
    n = merge(dims.n, (b, c), region)
    k = merge(dims.k, (a, b), region)
    free = [x for x in dims.batch if region.extent(x) > 1] + m.outer + n.outer
    lines = []
    for x in free + k.outer:
        lines.append(
            f"{pad}for (int64_t i{x.id} = 0; i{x.id} < {extent_text(region, x)}; i{x.id}++)"
        )
    pointers = []
    for p in (a, b, c):
        steps = [f" + i{x.id} * {p.strides[x]}L" for x in free + k.outer if p.strides.get(x)]
        pointers.append(p.text + "".join(steps))
    adds = ["1"] if region.kind[op] in ("acc", "own") else [f"i{x.id} > 0" for x in k.outer]
    (am, cm), (bn, cn), (ak, bk) = m.strides, n.strides, k.strides
    if op.dtype.is_floating:
        turned = cn != 1 and (cm == 1 or n.extent == "1") and m.extent != "1"  # as gemm.h decides
        rows, columns = (n.bound, m.bound) if turned else (m.bound, n.bound)
        known = m.extent.isdigit() and n.extent.isdigit()  # else it may turn where a tile ends
        step = (bk if turned else ak) if known else 0
        sizes.add((rows, columns, k.bound, step, op.dtype.itemsize))
    call = "rt->gemm_" if op.dtype.is_floating else "gemm_"
    lines.append(
        f"{pad}{'  ' if lines else ''}{call}{op.dtype.short}({m.extent}, {n.extent}, {k.extent}, "
        f"{pointers[0]}, {am}, {ak}, {pointers[1]}, {bk}, {bn}, {pointers[2]}, {cm}, {cn}, "
        f"{' || '.join(adds) or '0'}, pack);"
    )
    return lines
