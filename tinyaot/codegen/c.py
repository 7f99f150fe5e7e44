"""One C function for a whole entry point: regions by level, each level in shares.

Each region is a function of its own, headed by a comment that names its ops and the user's lines;
its loop nests are kernels, printed once however many regions call them. The runtime's threads run
the shares of a level in any order, then those of the next; what has no tile is in one share, but
for an op alone that goes along lanes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from tinyaot.codegen.addresses import Addresses, Pointer, extent_text
from tinyaot.codegen.fallback import arguments, checks_of, fallback_lines, shares_lanes
from tinyaot.codegen.loops import Kernel
from tinyaot.codegen.lower import lower_nest
from tinyaot.codegen.nests import Check
from tinyaot.codegen.panels import packing, panels_of, right_of
from tinyaot.codegen.printer import C, Printer, literal, neutral
from tinyaot.codegen.products import product_lines
from tinyaot.codegen.source import Call, Function, Source, Step
from tinyaot.ops.core import is_half
from tinyaot.passes.fusion.figures import tile_text
from tinyaot.passes.fusion.labels import Atom
from tinyaot.passes.fusion.op import Op
from tinyaot.passes.fusion.plan import FusionPlan
from tinyaot.passes.fusion.regions import Region
from tinyaot.passes.fusion.statements import Nest, Single
from tinyaot.passes.fusion.storage import padded

_INT_PRODUCT = """
#define INT_PRODUCT(T, S) \\
  static void gemm_##S TINYAOT_GEMM(T) { \\
    (void)pack; \\
    for (int64_t i = 0; i < m; i++) \\
      for (int64_t j = 0; j < n; j++) { \\
        T total = accumulate ? c[i * c_row + j * c_col] : 0; \\
        for (int64_t p = 0; p < k; p++) \\
          total += a[i * a_row + p * a_col] * b[p * b_row + j * b_col]; \\
        c[i * c_row + j * c_col] = total; \\
      } \\
  }
"""


def header(name: str) -> str:
    """The text of a header of this package."""
    return (resources.files("tinyaot.codegen") / "include" / name).read_text()


@dataclass(slots=True)
class Emitted:
    """One entry point, its regions in order, and what its error slots report."""

    step: Step
    regions: list[Region]
    checks: list[Check]


class Emitter:
    """Emits entry points into one source; kernels are shared among them."""

    def __init__(self) -> None:
        self.printer = Printer(C)
        self.kernels: dict[Kernel, str] = {}
        self.products: set[str] = set()
        self.has_halves = False  # float16 or bfloat16 values
        self.has_sorts = False
        self.steps: list[Step] = []

    def source(self) -> Source:
        """The whole C file."""
        headers = [header("runtime.h"), header("vmath.h"), "#define UNUSED(x) ((void)(x))"]
        helpers = [header("half.h")] if self.has_halves else []
        if self.has_sorts:
            helpers.append(header("sort.h"))
        if self.products:
            helpers.append(_INT_PRODUCT)
            helpers += [f"INT_PRODUCT({C.memory[s]}, {s})" for s in sorted(self.products)]
        kernels = {name: self.printer.kernel(name, k) for k, name in self.kernels.items()}
        return Source("\n\n".join(headers), "\n\n".join(helpers), kernels, tuple(self.steps))

    def entry(self, name: str, plan: FusionPlan) -> Emitted:
        """Emit a plan as `int tinyaot_<name>(void **b)`, which returns 1 after a bad index: an
        error slot, which the last pointer leads to, says which. No later level is run then, so that
        what is overwritten, later than anything is checked, is as it was."""
        self.has_halves |= any(is_half(op.dtype.numpy) for op in plan.graph.forms.ops)
        self.has_sorts |= any(op.name == "argsort" for op in plan.graph.forms.ops)
        made = _Entry(self, name, plan)
        self.steps.append(made.run())
        return Emitted(self.steps[-1], plan.regions, made.checks)

    def kernel(self, kernel: Kernel) -> str:
        """The name of a kernel's function."""
        if kernel not in self.kernels:
            self.kernels[kernel] = f"kernel_{len(self.kernels)}"
        return self.kernels[kernel]


class _Entry:
    def __init__(self, emitter: Emitter, name: str, plan: FusionPlan) -> None:
        self.emitter, self.name, self.plan, self.g = emitter, name, plan, plan.graph
        self.where = Addresses(plan, C.memory)
        self.panels = panels_of(plan)
        self.packed: dict[Op, Pointer] = {}
        self.checks: list[Check] = []
        self.called: set[str] = set()  # kernels, by the region at hand
        self.fills = False  # whether that goes over elements itself
        outputs = sum(o.role != "mutated" for _, o in self.g.forms.outputs)
        self.arena = len(self.g.forms.inputs) + outputs

    def run(self) -> Step:
        plan = self.plan
        cases: list[str | Call] = []
        regions: list[Function] = []
        level, checked = 0, 0
        for number, region in enumerate(plan.regions):
            if plan.level[region] != level:
                cases += ["    return;"] if level else []
                cases.append(f"  case {plan.level[region] - 1}:")
                level, checked = plan.level[region], len(self.checks)
                # No level writes another's slots, so all shares decide alike.
                if checked:
                    cases.append(f"    if (any_error(f->error, 0, {checked})) return;")
            regions.append(self.region(region, number))
            cases.append(Call(regions[-1].name))
        counters = self.counters()
        entry = [
            f"int tinyaot_{self.name}(void **b) {{",
            f"  struct {self.name}_frame f = {{b, b[{self.arena + 2}]}};",
            *(f"  const {kind} old{i} = *({kind} *)b[{i}];" for i, kind in counters),
            f"  rt->parallel({self.name}_step, &f, {level}, {plan.threads});",
            f"  const int bad = any_error(f.error, 0, {len(self.checks)});",
            *(f"  if (bad) *({kind} *)b[{i}] = old{i};" for i, kind in counters),
            "  return bad;",
            "}",
        ]
        return Step(self.name, tuple(regions), tuple(cases), "\n".join(entry))

    def counters(self) -> list[tuple[int, str]]:
        """Position and type of the leaves of one element that are overwritten: early, as they need
        little, so after a bad index they are put back."""
        if not self.checks:
            return []
        leaves = [leaf for leaf in self.g.overwrites.values() if leaf.type.size == 1]
        return [(self.g.forms.inputs.index(x), C.memory[x.dtype.short]) for x in leaves]

    # ---- a region -------------------------------------------------------------------------------
    def region(self, region: Region, number: int) -> Function:
        self.called, self.fills = set(), False
        own_bytes = padded(self.plan.storage.scratch[region])
        before = own_bytes + self.panels.nbytes.get(region, 0)
        lines = [
            f"  char *const arena = b[{self.arena}];",
            f"  char *const scratch = (char *)b[{self.arena + 1}] + share * share_bytes;",
            f"  char *const pack = scratch + {before}L;",
            "  UNUSED(arena), UNUSED(scratch), UNUSED(pack), UNUSED(error), UNUSED(share);",
        ]
        for op in region.members:
            if region.kind[op] == "acc" and op in self.plan.storage.homes:
                home = self.plan.storage.homes[op]
                if home.space == "partial":
                    pointer = self.where.own(op, region, ())
                    lines.append(f"  memset({pointer.text}, 0, {op.type.nbytes}L);")
                else:
                    raise AssertionError(f"{op} accumulates outside partial results")
        for op in region.members:
            if op in self.panels.at and (right := right_of(self.g, self.where, region, op)):
                at = own_bytes + self.panels.at[op]
                self.packed[op], fill = packing(right, region, at)
                lines += fill
        turn = None if shares_lanes(region) else number
        lines += self.tiles("tile", region.parallel, region, turn)
        depth = 1
        for op in region.owned:
            lines += self.clear(op, "sum", region, region.parallel, "  " * (depth + 1))
        if region.parallel != region.tile:
            lines += self.tiles("part", region.tile[len(region.parallel) :], region, None, "    ")
            depth += 1
        pad = "  " * (depth + 1)
        for at, s in enumerate(self.plan.schedule.statements[region]):
            if isinstance(s, Nest):
                lines += self.nest(region, s, at, pad)
            else:
                lines += self.single(region, s, pad)
        lines += ["  " * d + "}" for d in range(depth, 0, -1)]
        name, body = f"{self.name}_region_{number}", "\n".join(lines)
        own = any(op.form == "fallback" for op in region.members)
        called = frozenset(self.called)
        return Function(name, comment(region), body, called, self.fills, own)

    def tiles(
        self,
        name: str,
        atoms: Sequence[Atom],
        region: Region,
        turn: int | None,
        pad: str = "  ",
    ) -> list[str]:
        """A loop over tiles of some labels, shared out unless turn is None. One tile alone is in
        the share whose turn it is."""
        counts = [-(-a.size // region.block[a]) for a in atoms]
        tiles, threads = math.prod(counts), self.plan.threads
        head = f"{pad}for (int64_t {name} = 0; {name} < {tiles}; {name}++) {{"
        if turn is not None and threads > 1:
            if tiles == 1:
                first, last = f"share == {turn % threads} ? 0 : 1", "1"
            else:  # contiguous shares, as even as can be
                first, last = (f"{tiles}L * {x} / {threads}" for x in ("share", "(share + 1)"))
            head = f"{pad}for (int64_t {name} = {first}; {name} < {last}; {name}++) {{"
        lines = [head]
        for a, count in zip(atoms, counts):
            tiles //= count
            at = name if tiles == 1 else f"{name} / {tiles}"
            block = region.block[a]
            lines.append(
                f"{pad}  const int64_t b{a.id} = {at} % {count} * {block}; UNUSED(b{a.id});"
            )
            if a.size % block:
                lines.append(
                    f"{pad}  const int64_t n{a.id} = {a.size} - b{a.id} < {block} ? "
                    f"{a.size} - b{a.id} : {block}; UNUSED(n{a.id});"
                )
        return lines

    def clear(
        self, op: Op, combine: str, region: Region, tile: tuple[Atom, ...], pad: str
    ) -> list[str]:
        """Bring the tile's box of an accumulation to its neutral value. `tile`: the labels whose
        loops are open; others are cleared whole."""
        pointer = self.where.own(op, region, tile)
        loops: list[tuple[Atom, int | str, int]] = []
        for a in self.g.flat[op]:
            extent = extent_text(region, a) if a in tile else a.size
            if extent != 1:
                loops.append((a, extent, pointer.strides[a]))
        run = 1
        tail = ""
        while loops and loops[-1][2] == run and not tail:
            extent = loops.pop()[1]
            if isinstance(extent, int):
                run *= extent
            else:
                tail = f" * {extent}"
        tail = f"{run}{tail}"
        lines = [f"{pad}for (int64_t z{a.id} = 0; z{a.id} < {n}; z{a.id}++)" for a, n, _ in loops]
        at = pointer.text + "".join(f" + z{a.id} * {s}L" for a, _, s in loops)
        kind = C.memory[op.dtype.short]
        if combine == "sum":
            return [*lines, f"{pad}  memset({at}, 0, {tail} * sizeof({kind}));"]
        self.fills = True
        value = literal(neutral(combine, op.dtype), op.dtype)
        return [*lines, f"{pad}  for (int64_t z = 0; z < {tail}; z++) ({at})[z] = {value};"]

    def nest(self, region: Region, s: Nest, at: int, pad: str) -> list[str]:
        lowered = lower_nest(self.g, self.plan.schedule, self.where, region, s, at)
        lines: list[str] = []
        for op, combine in lowered.cleared:
            lines += self.clear(op, combine, region, region.tile, pad)
        name = self.emitter.kernel(lowered.kernel)
        self.called.add(name)
        error = f"error + {len(self.checks)}"
        self.checks += lowered.checks
        return [*lines, f"{pad}{name}({', '.join([*lowered.arguments, error])});"]

    def single(self, region: Region, s: Single, pad: str) -> list[str]:
        op = s.op
        if op.form == "dot":
            if not op.dtype.is_floating:
                self.emitter.products.add(op.dtype.short)
            packed = self.packed.get(op)
            return product_lines(self.g, self.where, region, op, pad, packed)
        if op.form == "fallback":
            args = arguments(self.g, op, self.where, region)
            out = self.where.own(op, region).text
            shares = self.plan.threads if shares_lanes(region) else 1
            lines = fallback_lines(op, args, out, C, len(self.checks), shares)
            self.checks += checks_of(op)
            return [pad + line for line in lines]
        return []  # a concatenation: its parts are in their slots


def comment(region: Region) -> str:
    """What a region computes, and from which of the user's lines."""
    names: dict[str, int] = {}
    lines: dict[str, None] = {}
    for op in region.members:
        names[op.name] = names.get(op.name, 0) + 1
        if op.loc:
            lines[str(op.loc)] = None
    counted = ", ".join(name if n == 1 else f"{n} {name}" for name, n in names.items())
    where = ", ".join(list(lines)[:6]) + (" ..." if len(lines) > 6 else "")
    return f"/* tile {tile_text(region)}: {counted}{'; ' + where if where else ''} */"
