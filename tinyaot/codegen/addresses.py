"""Addresses: where an op's value is, as text and strides, inside a region's loop over tiles."""

from __future__ import annotations

from dataclasses import dataclass, field

from tinyaot.passes.fusion.accesses import Access, Const
from tinyaot.passes.fusion.labels import Atom
from tinyaot.passes.fusion.op import Op
from tinyaot.passes.fusion.plan import FusionPlan
from tinyaot.passes.fusion.regions import Region
from tinyaot.passes.fusion.storage import Home
from tinyaot.shapes import DType


@dataclass(slots=True)
class Pointer:
    """A C pointer to the tile's first element, and elements a step along each of the reader's
    atoms. `step`, `count`: partial results of threads, to be added up."""

    text: str
    dtype: DType
    strides: dict[Atom, int] = field(default_factory=dict)
    step: int = 0
    count: int = 1


@dataclass(slots=True)
class Addresses:
    """Names buffers: inputs and outputs by position in `b`, the arena, and a share's scratch."""

    plan: FusionPlan
    types: dict[str, str]  # C type of a dtype in memory

    def base(self, home: Home, dtype: DType, region: Region) -> str:
        kind = f"({self.types[dtype.short]} *)"
        inputs = len(self.plan.graph.forms.inputs)
        match home.space:
            case "input":
                text = f"{kind}b[{home.at}]"
            case "output":
                text = f"{kind}b[{inputs + home.at}]"
            case "arena":
                text = f"{kind}(arena + {home.at})"
            case "scratch":
                text = f"{kind}(scratch + {home.at})"
            case _:  # partial: a share's own while it is made, the first share's when read
                mine = f" + share * {home.step}L" if home.region is region else ""
                text = f"{kind}(arena + {home.at}{mine})"
        return text + (f" + {home.shift}" if home.shift else "")

    def of(self, access: Access, region: Region, tile: tuple[Atom, ...] | None = None) -> Pointer:
        """The pointer for a read (or, with a straight access, the write) of a value in memory.
        `tile`: the labels whose loops are open (the region's, unless given)."""
        root = access.root
        home = self.plan.storage.homes[root]
        text = self.base(home, root.dtype, region)
        g = self.plan.graph
        stride = dict(zip(g.flat[root], home.strides))
        found = Pointer("", root.dtype)
        # a value in scratch holds the tile alone: its own tile labels start at 0
        local = set(region.tile) if home.space == "scratch" else set()
        steps: list[tuple[int, Atom]] = []
        offsets: dict[Atom, int] = {}
        const = 0
        for a, e in access.pairs:
            if isinstance(e, Const):
                const += e.value * stride[a]
            else:
                found.strides[e] = found.strides.get(e, 0) + stride[a]
                if a not in local:
                    offsets[e] = offsets.get(e, 0) + stride[a]
        for j, linear in access.affine:
            axis = g.axes[root][j]
            unit = stride[axis[-1]] if axis else 0
            const += linear.const * unit
            steps += [(c * unit, a) for c, a in linear.terms]
        if const:
            text += f" + {const}"
        opened = region.tile if tile is None else tile
        for s, a in steps:
            found.strides[a] = found.strides.get(a, 0) + s
            offsets[a] = offsets.get(a, 0) + s
        for a, s in offsets.items():
            if a in opened and s:
                text += f" + b{a.id}" + (f" * {s}L" if s != 1 else "")
        found.text = text
        if home.space == "partial" and home.region is not region and self.plan.threads > 1:
            found.step, found.count = home.step // root.dtype.itemsize, self.plan.threads
        return found

    def own(self, op: Op, region: Region, tile: tuple[Atom, ...] | None = None) -> Pointer:
        """Where op writes its result."""
        flat = self.plan.graph.flat[op]
        return self.of(Access(op, tuple((a, a) for a in flat)), region, tile)


def extent_text(region: Region, a: Atom) -> int | str:
    """How far a loop over an atom goes inside a tile: a number, or the name of a C variable where
    the tile is ragged or the loop ends with another label's tile."""
    if a in region.limits:
        t = region.limits[a]
        return f"(b{t.id} + {extent_text(region, t)})"
    if a in region.tile and a.size % region.block[a]:
        return f"n{a.id}"
    return region.extent(a)
