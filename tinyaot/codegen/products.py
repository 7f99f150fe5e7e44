"""A product on a tile as one call of the matrix kernel, inside loops over what cannot merge.

Rows, columns and contracted labels each merge into one dimension where strides allow (the last
label, then outer ones that continue it); the rest become loops. Transposes are strides.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tinyaot.codegen.addresses import Addresses, Pointer, extent_text
from tinyaot.passes.fusion.graph import Graph
from tinyaot.passes.fusion.labels import Atom
from tinyaot.passes.fusion.model import gemm_dims
from tinyaot.passes.fusion.op import Op
from tinyaot.passes.fusion.plan import FusionPlan
from tinyaot.passes.fusion.regions import Region
from tinyaot.passes.fusion.statements import Single

# What packing takes: m, n, k, the step along a row of A (0: unknown), whether m, n, k are exact (or
# at most those), whether B is packed already, bytes of an element. m = 0: a row that is gathered.
Size = tuple[int, int, int, int, bool, bool, int]


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


@dataclass(frozen=True, slots=True)
class Product:
    """A product on a tile: its pointers, and its merged dimensions."""

    a: Pointer
    b: Pointer
    c: Pointer
    m: Merged
    n: Merged
    k: Merged

    @property
    def known(self) -> bool:
        """Whether rows and columns are the same for every tile; else it may turn where one ends."""
        return self.m.extent.isdigit() and self.n.extent.isdigit()

    @property
    def turned(self) -> bool:
        """Whether it is computed as its transpose (as gemm.h decides)."""
        m, n = self.m, self.n
        return n.strides[1] != 1 and (m.strides[1] == 1 or n.extent == "1") and m.extent != "1"

    def size(self, op: Op, ready: bool = False) -> Size | None:
        """What packing takes; None if nothing is packed. `ready`: the right operand is already."""
        m, n, k = self.m, self.n, self.k
        exact, itemsize = self.known and k.extent.isdigit(), op.dtype.itemsize
        if "1" in (m.extent, n.extent) and not ready:  # as row.h goes about it
            (across, column), (along, step) = m.strides, k.strides
            if n.extent != "1":
                (across, column), (step, along) = n.strides, k.strides
            if along == 1 != step:
                return 0, 1, k.bound, step, k.extent.isdigit(), ready, itemsize
            if along == 1 or across == column == 1:
                return None
        rows, columns = (n.bound, m.bound) if self.turned else (m.bound, n.bound)
        step = k.strides[1 if self.turned else 0] if self.known else 0
        return rows, columns, k.bound, step, exact, ready, itemsize


def product_of(g: Graph, where: Addresses, region: Region, op: Op) -> Product:
    """A product as its region computes it."""
    a, b = (where.of(access, region) for access in g.reads[op])
    c = where.own(op, region)
    dims = gemm_dims(g, op)
    m, n = merge(dims.m, (a, c), region), merge(dims.n, (b, c), region)
    return Product(a, b, c, m, n, merge(dims.k, (a, b), region))


def product_sizes(
    plan: FusionPlan, where: Addresses, region: Region, packed: Collection[Op]
) -> set[Size]:
    """What the products of a region pack; the right operands of those in `packed` are already."""
    sizes = {
        product_of(plan.graph, where, region, s.op).size(s.op, s.op in packed)
        for s in plan.schedule.statements[region]
        if isinstance(s, Single) and s.op.form == "dot" and s.op.dtype.is_floating
    }
    return {size for size in sizes if size}


def open_loops(atoms: Sequence[Atom], region: Region, pad: str) -> list[str]:
    return [
        f"{pad}for (int64_t i{x.id} = 0; i{x.id} < {extent_text(region, x)}; i{x.id}++)"
        for x in atoms
    ]


def at_loops(p: Pointer, atoms: Sequence[Atom]) -> str:
    """A pointer where the loops are."""
    return p.text + "".join(f" + i{x.id} * {p.strides[x]}L" for x in atoms if p.strides.get(x))


def outer_loops(g: Graph, region: Region, op: Op, product: Product) -> list[Atom]:
    """What does not merge."""
    batch = [x for x in gemm_dims(g, op).batch if region.extent(x) > 1]
    return batch + product.m.outer + product.n.outer + product.k.outer


def product_lines(
    g: Graph,
    where: Addresses,
    region: Region,
    op: Op,
    pad: str,
    panels: Pointer | None = None,
) -> list[str]:
    """C text of a product. `panels`: what it packs, packed."""
    product = product_of(g, where, region, op)
    a, b, c, m, n, k = product.a, product.b, product.c, product.m, product.n, product.k
    (am, cm), (bn, cn), (ak, bk) = m.strides, n.strides, k.strides
    if panels and product.turned:
        a, am, ak = panels, 0, 0
    elif panels:
        b, bk, bn = panels, 0, 0
    loops = outer_loops(g, region, op, product)
    lines = open_loops(loops, region, pad)
    pointers = [at_loops(p, loops) for p in (a, b, c)]
    adds = ["1"] if region.kind[op] in ("acc", "own") else [f"i{x.id} > 0" for x in k.outer]
    call = "rt->gemm_" if op.dtype.is_floating else "gemm_"
    lines.append(
        f"{pad}{'  ' if lines else ''}{call}{op.dtype.short}({m.extent}, {n.extent}, {k.extent}, "
        f"{pointers[0]}, {am}, {ak}, {pointers[1]}, {bk}, {bn}, {pointers[2]}, {cm}, {cn}, "
        f"{' || '.join(adds) or '0'}, pack);"
    )
    return lines
