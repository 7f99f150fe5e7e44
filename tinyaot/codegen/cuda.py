"""CUDA C++: a kernel for each region without products, and the launches of a whole step in order.

The kernels are the loop IR that C gets, printed by the same printer (see `printer`): a grid-stride
loop over tiles of one thread, or of one block whose threads share out the rows. A kernel takes
pointers to whole values, so equal regions share one, wherever their values are. Products are left
to a library: a `Product` says where its operands are, with a stride for each label.

What a plan gives here is text and numbers; nothing asks for a GPU. Contraction must be off when it
is compiled (`-fmad=false`), so that a value and its recomputation have the same bits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tinyaot.codegen.addresses import Addresses
from tinyaot.codegen.c import comment, header
from tinyaot.codegen.fallback import arguments, checks_of, fallback_lines
from tinyaot.codegen.loops import Buffer, Combine, Index, Literal_, Loop, Stmt, Store
from tinyaot.codegen.lower import lower_nest
from tinyaot.codegen.nests import Check
from tinyaot.codegen.printer import CUDA, CUDA_TEAM, Dialect, Printer, neutral
from tinyaot.errors import BackendError
from tinyaot.ir import Program
from tinyaot.passes.fusion.accesses import Access
from tinyaot.passes.fusion.grid import BLOCK, GridPlan, plan_grid
from tinyaot.passes.fusion.labels import Atom
from tinyaot.passes.fusion.op import Op
from tinyaot.passes.fusion.regions import Region
from tinyaot.passes.fusion.statements import Nest, Single
from tinyaot.passes.fusion.storage import Home, Space, padded
from tinyaot.shapes import DType

BLOCKS = 4096  # of a grid, at most: each then takes several tiles
SHARED = 48 << 10  # bytes of shared memory that a block has without asking
COUNTED = 1 << 30  # elements below which positions are counted in 32 bits


@dataclass(frozen=True, slots=True)
class Place:
    """A value's memory: an input or output by position, or a byte offset in the arena."""

    space: Space
    at: int
    dtype: DType

    def __str__(self) -> str:
        return f"{self.space} {self.at}"


@dataclass(frozen=True, slots=True)
class Launch:
    """A call of a kernel: its arguments, then (if it asks for some) scratch of `scratch` bytes a
    block, then its error slots, the module's from `slot` on."""

    kernel: str
    blocks: int
    threads: int
    arguments: tuple[Place, ...]
    scratch: int
    slot: int
    region: Region

    def __str__(self) -> str:
        arguments = ", ".join(map(str, self.arguments))
        more = f", {self.scratch} bytes a block" if self.scratch else ""
        return f"{self.kernel}<<<{self.blocks}, {self.threads}>>>({arguments}{more})"


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor of a product: its place, the first element, and elements a step along each label."""

    place: Place
    first: int
    strides: dict[Atom, int]


@dataclass(frozen=True, slots=True)
class Product:
    """A product for the library: c = a b, contracted over the labels that c has not."""

    a: Operand
    b: Operand
    c: Operand
    region: Region

    def __str__(self) -> str:
        return f"product({self.a.place}, {self.b.place}, {self.c.place})"


@dataclass(slots=True)
class Module:
    """The text of all kernels, and a step in order; what its error slots (int64, 0 before the step)
    report. `arena`: bytes."""

    source: str
    kernels: dict[str, str]
    steps: list[Launch | Product]
    checks: list[Check]
    plan: GridPlan

    @property
    def arena(self) -> int:
        return self.plan.fusion.storage.arena


def emit_cuda(program: Program) -> Module:
    """Plan and emit a straight-line program (one entry point) for a GPU.

    Raises BackendError for what has no form, and for float16 and bfloat16.
    """
    for value in [i.value for i in program.inputs] + [n.result for n in program.nodes]:
        if value.type.dtype.short not in CUDA.memory:
            name = value.type.dtype.name
            raise BackendError(f"{value}: CUDA text has no {name} yet; cast to float32")
    return _Emitter(plan_grid(program)).run()


class _Places(Addresses):
    """Addresses as parameters of one kernel."""

    def begin(self) -> None:
        self.params: dict[Place, str] = {}

    def base(self, home: Home, dtype: DType, region: Region) -> str:
        shift = f" + {home.shift}" if home.shift else ""
        if home.space == "scratch":
            return f"({self.types[dtype.short]} *)(scratch + {home.at}){shift}"
        place = Place(home.space, home.at, dtype)
        return self.params.setdefault(place, f"g{len(self.params)}") + shift


class _Emitter:
    def __init__(self, plan: GridPlan) -> None:
        self.grid, self.plan, self.g = plan, plan.fusion, plan.fusion.graph
        self.where = _Places(plan.fusion, CUDA.memory)
        self.names: dict[str, str] = {}  # of kernels, by their text without name and comment
        self.kernels: dict[str, str] = {}
        self.checks: list[Check] = []

    def run(self) -> Module:
        steps: list[Launch | Product] = []
        for region in self.plan.regions:
            self.where.begin()
            first = self.plan.schedule.statements[region][0]
            if isinstance(first, Single) and first.op.form == "dot":
                steps.append(self.product(region, first.op))
            elif any(isinstance(s, Nest) or s.op.form == "fallback" for s in self.all(region)):
                steps.append(self.launch(region))
        headers = ("vmath.h", "sort.h", "team.h")
        parts = [*map(header, headers), *self.kernels.values()]
        return Module("\n\n".join(parts) + "\n", self.kernels, steps, self.checks, self.grid)

    def all(self, region: Region) -> Sequence[Nest | Single]:
        return self.plan.schedule.statements[region]

    # ---- products -------------------------------------------------------------------------------
    def product(self, region: Region, op: Op) -> Product:
        a, b = (self.operand(access) for access in self.g.reads[op])
        return Product(
            a, b, self.operand(Access(op, tuple((x, x) for x in self.g.flat[op]))), region
        )

    def operand(self, access: Access) -> Operand:
        home = self.plan.storage.homes[access.root]
        pointer = self.where.of(access, Region((), [], {}, {}, 0.0, {}))
        _, *shifts = pointer.text.split(" + ")
        return Operand(
            Place(home.space, home.at, pointer.dtype), sum(map(int, shifts)), pointer.strides
        )

    # ---- kernels --------------------------------------------------------------------------------
    def launch(self, region: Region) -> Launch:
        team = self.grid.team[region]
        words = CUDA_TEAM if team > 1 else CUDA
        if all(self.g.size(op) < COUNTED for op in self.touched(region)):
            words = replace(words, long="int")
        body, kept, checks = self.body(region, words)
        if team > 1 and kept > SHARED // 2:
            body, kept, checks = self.body(region, replace(words, keeps=False))
        slot = len(self.checks)
        self.checks += checks
        scratch = padded(self.scratch(region))
        outside = team > 1 and scratch > SHARED // 2
        params = [f"{CUDA.memory[p.dtype.short]} *{name}" for p, name in self.where.params.items()]
        params += ["char *scratches"] * outside + ["int64_t *error"]
        lines = [words.function("KERNEL", ", ".join(params)) + " {"]
        if outside:
            lines.append(f"  char *const scratch = scratches + blockIdx.x * {scratch}L;")
        elif scratch:
            lines.append("  " + words.row.format("__align__(64) char", "scratch", scratch) + ";")
        lines += [*self.tiles(region, team, words), *body, "  }", "}"]
        tiles = math.prod(a.size for a in region.tile)
        threads = team if team > 1 else BLOCK if region.tile else 1
        blocks = min(BLOCKS, tiles if team > 1 else -(-tiles // threads))
        name = self.named(region, renumbered("\n".join(lines)))
        arguments = tuple(self.where.params)
        return Launch(name, blocks, threads, arguments, scratch if outside else 0, slot, region)

    def named(self, region: Region, text: str) -> str:
        """The kernel with this text."""
        if text not in self.names:
            self.names[text] = name = f"kernel_{len(self.names)}"
            about = comment(region)
            self.kernels[name] = about + "\n" + text.replace("KERNEL", name, 1)
        return self.names[text]

    def touched(self, region: Region) -> list[Op]:
        """What the region's loops run over or read."""
        return [x for op in region.members for x in (op, *op.ins) if x in self.g.flat]

    def scratch(self, region: Region) -> int:
        """Bytes of a tile's values that only this region reads."""
        homes = self.plan.storage.homes
        return max(
            (
                homes[op].at + op.dtype.itemsize * math.prod(map(region.extent, self.g.flat[op]))
                for op in region.members
                if op in homes and homes[op].space == "scratch"
            ),
            default=0,
        )

    def tiles(self, region: Region, team: int, words: Dialect) -> list[str]:
        """The loop over tiles: a tile a block, or a tile a thread."""
        tiles = math.prod(a.size for a in region.tile)
        first, step = "blockIdx.x", "gridDim.x"
        if team == 1:
            first, step = f"{first} * blockDim.x + threadIdx.x", f"{step} * blockDim.x"
        long = words.long
        lines = [f"  for ({long} tile = {first}; tile < {tiles}; tile += {step}) {{"]
        whole = tiles
        for a in region.tile:
            tiles //= a.size
            at = "tile" if tiles == 1 else f"tile / {tiles}"
            at += f" % {a.size}" if a.size * tiles != whole else ""
            lines.append(f"    const {long} b{a.id} = {at};")
        return lines

    def body(self, region: Region, words: Dialect) -> tuple[list[str], int, list[Check]]:
        """The statements of a tile, the bytes of the rows that they keep, and what they check."""
        lines: list[str] = []
        kept = 0
        checks: list[Check] = []
        for at, s in enumerate(self.all(region)):
            found: list[str] = []
            if isinstance(s, Nest):
                found, more, own = self.nest(region, s, at, words, len(checks))
                kept += more
                checks += own
            elif s.op.form == "fallback":
                args = arguments(self.g, s.op, self.where, region)
                out = self.where.own(s.op, region).text
                text = fallback_lines(s.op, args, out, CUDA, len(checks))
                found = ["    " + line for line in text]
                checks += checks_of(s.op)
            lines += found
            if found and words.once and len(self.all(region)) > 1:
                lines.append("    __syncthreads();")  # another thread reads, or writes what it read
        return lines, kept, checks

    def nest(
        self, region: Region, s: Nest, at: int, words: Dialect, slot: int
    ) -> tuple[list[str], int, list[Check]]:
        """Statement `at`, whose error slots begin at `slot` of the kernel's."""
        schedule = self.plan.schedule
        lowered = lower_nest(self.g, schedule, self.where, region, s, at, words)
        printer = Printer(words)
        lines: list[str] = []
        for op, combine in lowered.cleared:
            lines += self.clear(op, combine, region, printer)
        lines.append("    {")
        for p, argument in zip(lowered.kernel.params, lowered.arguments):
            kind = f"const {words.long} "
            if p.dtype is not None:
                kind = f"{words.memory[p.dtype.short]} *const "
            lines.append(f"      {kind}{p.name} = {argument};")
        if slot and lowered.checks:
            lines += [f"      int64_t *const slots = error + {slot};"]
            lines += ["      {", "        int64_t *const error = slots;"]
        body = lowered.kernel.body
        for stmt in body:
            lines += printer.stmt(stmt, "      ")
        if slot and lowered.checks:
            lines.append("      }")
        kept = sum(b.size * b.dtype.itemsize for b in body if isinstance(b, Buffer))
        return [*lines, "    }"], kept, lowered.checks

    def clear(self, op: Op, combine: Combine, region: Region, printer: Printer) -> list[str]:
        """Bring the tile's part of an accumulation to its neutral value."""
        pointer = self.where.own(op, region)
        loops = [a for a in self.g.flat[op] if region.extent(a) > 1]
        index = Index(0, tuple((pointer.strides[a], f"z{d}") for d, a in enumerate(loops)))
        value = Literal_(neutral(combine, op.dtype), op.dtype)
        stmt: Stmt = Store("y", index, value, op.dtype)
        for d in reversed(range(len(loops))):
            stmt = Loop(f"z{d}", loops[d].size, (stmt,), vector=d == len(loops) - 1)
        kind = CUDA.memory[op.dtype.short]
        lines = ["    {", f"      {kind} *const y = {pointer.text};", *printer.stmt(stmt, "      ")]
        return [*lines, "    }", *["    __syncthreads();"] * bool(printer.dialect.once)]


def renumbered(text: str) -> str:
    """The text with its tile labels numbered from 0: equal kernels have equal texts."""
    names: dict[str, str] = {}
    return re.sub(r"\bb\d+\b", lambda m: names.setdefault(m[0], f"b{len(names)}"), text)
