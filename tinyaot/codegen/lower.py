"""From a nest of a region to a kernel in loop IR.

Inside the row loops stand one or more *stages*, vector loops over the inner label, with scalars
between them: a value that needs a complete reduction over the inner label belongs to a later stage.
A vector that a later stage wants again is reloaded if it is stored, recomputed if that is one cheap
op on stored values, and else kept in a row buffer. Scalars that do not change in the inner row
loops stand outside them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tinyaot.codegen.addresses import Addresses, Pointer, extent_text
from tinyaot.codegen.loops import (
    Apply,
    Buffer,
    Checked,
    Combine,
    Expr,
    Finish,
    Fold,
    Index,
    Kernel,
    Let,
    Literal_,
    Load,
    Loop,
    Param,
    Position,
    Random,
    Start,
    Stmt,
    Store,
    Total,
    Var,
)
from tinyaot.codegen.printer import sees_nan
from tinyaot.ops.core import TABLE
from tinyaot.passes.fusion.accesses import Access, Const
from tinyaot.passes.fusion.forms import Op
from tinyaot.passes.fusion.graph import Graph
from tinyaot.passes.fusion.labels import Atom
from tinyaot.passes.fusion.regions import Region
from tinyaot.passes.fusion.statements import Nest, Schedule
from tinyaot.shapes import DType, int32, int64

CHEAP = 0.03  # ns an element: recomputing such a map beats keeping it
SMALL_RANGE = 1 << 30  # index ranges below it are counted in 32 bits
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


@dataclass(slots=True)
class Stage:
    """One vector loop and the scalars after it."""

    folds: list[Start] = field(default_factory=list)
    body: list[Stmt] = field(default_factory=list)
    after: list[Stmt] = field(default_factory=list)
    memo: dict[object, str] = field(default_factory=dict)
    vector: bool = True


@dataclass(frozen=True, slots=True)
class Lowered:
    """A kernel, its arguments as C text, and the values to be cleared before the call."""

    kernel: Kernel
    arguments: list[str]
    cleared: list[tuple[Op, Combine]]


def lower_nest(
    g: Graph, plan: Schedule, where: Addresses, region: Region, nest: Nest, at: int
) -> Lowered:
    """Lower statement `at` of a region."""
    kept: dict[Op, str] = {}
    while True:  # the first time finds out which vectors need a row buffer
        lowering = _Lowering(g, plan, where, region, nest, at, dict(kept))
        result = lowering.run()
        if lowering.buffers == kept:
            return result
        kept = lowering.buffers


class _Lowering:
    def __init__(
        self,
        g: Graph,
        plan: Schedule,
        where: Addresses,
        region: Region,
        nest: Nest,
        at: int,
        kept: dict[Op, str],
    ) -> None:
        self.g, self.plan, self.where, self.region = g, plan, where, region
        self.nest, self.at, self.kept = nest, at, kept
        self.buffers: dict[Op, str] = dict(kept)
        self.inner = nest.inner if nest.inner and region.extent(nest.inner) > 1 else None
        self.rows = [a for a in nest.rows if region.extent(a) > 1]
        self.depth = {a: d for d, a in enumerate(self.rows)}
        self.names = {a: f"i{d}" for d, a in enumerate(self.rows)}
        if self.inner:
            self.names[self.inner] = f"i{len(self.rows)}"
        self.members = set(nest.all)
        self.arguments: list[str] = []
        self.params: list[Param] = []
        self.count = 0
        self.pre: list[list[Stmt]] = [[] for _ in range(len(self.rows) + 1)]
        self.row_memo: dict[object, str] = {}
        self.scalar: dict[Op, str] = {}
        self.cleared: dict[Op, Combine] = {}
        self.vec: dict[Op, int] = {}  # stage of a vector value
        self.pos: dict[Op, int] = {}  # stage after which a scalar is known; -1: before any
        self.find_stages()
        last = max([0, *self.vec.values(), *self.pos.values()])
        self.stages = [Stage() for _ in range(last + 1)]

    # ---- names ----------------------------------------------------------------------------------
    def fresh(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def param(self, text: str, dtype: DType | None) -> str:
        for p, have in zip(self.params, self.arguments):
            if have == text and p.dtype is dtype:
                return p.name
        self.params.append(Param(f"p{len(self.params)}", dtype))
        self.arguments.append(text)
        return self.params[-1].name

    def index(self, strides: dict[Atom, int], skip: Iterable[Atom] = ()) -> Index:
        """The element that the loops are at."""
        without = set(skip)
        terms = [
            (s, self.names[a])
            for a, s in strides.items()
            if s and a in self.names and a not in without
        ]
        return Index(0, tuple(terms))

    def varies(self, atoms: Iterable[Atom]) -> bool:
        """Whether a value changes in the inner loop."""
        return self.inner is not None and self.inner in atoms

    def depth_of(self, atoms: Iterable[Atom]) -> int:
        """The row loops that a scalar must be inside of."""
        return max((self.depth[a] + 1 for a in atoms if a in self.depth), default=0)

    # ---- stages ---------------------------------------------------------------------------------
    def find_stages(self) -> None:
        for op in self.nest.all:
            after, same = -1, 0
            for access in self.g.reads[op]:
                root = access.root
                if root in self.members:
                    if root in self.vec:
                        same = max(same, self.vec[root])
                    else:
                        after = max(after, self.pos[root])
            if not self.varies(self.g.space(op)):
                self.pos[op] = after
            elif op.form == "reduce" and self.inner in self.g.red[op]:
                self.pos[op] = max(same, after + 1)
            else:
                self.vec[op] = max(same, after + 1)

    def scalar_lines(self, op: Op, atoms: Iterable[Atom]) -> list[Stmt]:
        """Where the definition of a row-level value goes."""
        if self.pos[op] >= 0:
            return self.stages[self.pos[op]].after
        return self.pre[self.depth_of(atoms)]

    def atoms_of(self, op: Op) -> set[Atom]:
        """The loops that a row-level value of this nest depends on."""
        return set(self.g.space(op))

    # ---- reading --------------------------------------------------------------------------------
    def load(self, access: Access) -> Expr:
        root = access.root
        if root.form == "const":
            return Literal_(root.attrs["value"], root.dtype)
        if root.form == "iota":
            return self.iota(access)
        pointer = self.where.of(access, self.region)
        name, index = self.param(pointer.text, pointer.dtype), self.index(pointer.strides)
        if pointer.step:
            return Total(name, index, pointer.step, pointer.count)
        return Load(name, index)

    def iota(self, access: Access) -> Expr:
        """An index range at the loops' position; in 32 bits where it is only compared."""
        root = access.root
        dtype = root.dtype
        users = self.g.users[root]
        if (
            dtype is int64
            and root.type.size < SMALL_RANGE
            and all(u.name in COMPARISONS for u in users)
        ):
            dtype = int32
        return Position(self.position(access), dtype)

    def position(self, access: Access) -> Index:
        """The index of a one-axis root at which the loops are."""
        const, terms, coef = 0, list[tuple[int, Atom]](), 1
        for a, e in reversed(access.pairs):
            if isinstance(e, Const):
                const += e.value * coef
            else:
                terms.append((coef, e))
            coef *= a.size
        for _, linear in access.affine:
            const += linear.const
            terms += linear.terms
        return self.global_index(const, terms)

    def global_index(self, const: int, terms: Iterable[tuple[int, Atom]]) -> Index:
        """An index over whole values: the tile's offset is added."""
        found: list[tuple[int, str]] = []
        for c, a in terms:
            if a in self.names:
                found.append((c, self.names[a]))
            if a in self.region.tile:
                found.append((c, self.param(f"b{a.id}", None)))
        return Index(const, tuple(found))

    def operand(self, op: Op, i: int, stage: int | None) -> Expr:
        """Operand i of op inside vector loop `stage` (None: among the row-level scalars)."""
        access = self.g.reads[op][i]
        root = access.root
        if root.form == "const":
            return self.load(access)
        if root in self.members:
            if root not in self.vec:
                return Var(self.scalar[root])
            assert stage is not None
            return Var(self.value(root, stage))
        invariant = not self.varies(access.atoms)
        key = (root, access.pairs, access.affine)
        if invariant or stage is None:
            if key not in self.row_memo:
                self.row_memo[key] = name = self.fresh()
                lines = self.pre[self.depth_of(access.atoms)]
                lines.append(self.let(name, root.dtype, self.load(access)))
            return Var(self.row_memo[key])
        memo = self.stages[stage].memo
        if key not in memo:
            memo[key] = name = self.fresh()
            self.stages[stage].body.append(self.let(name, root.dtype, self.load(access)))
        return Var(memo[key])

    def let(self, name: str, dtype: DType, expr: Expr) -> Let:
        return Let(name, expr.dtype if isinstance(expr, Position) else dtype, expr)

    def value(self, op: Op, stage: int) -> str:
        """A vector value inside loop `stage`: computed, reloaded, or recomputed where cheap."""
        memo = self.stages[stage].memo
        if op in memo:
            return memo[op]
        expr: Expr
        if self.vec[op] < stage and (self.is_stored(op) or not self.is_cheap(op)):
            if self.is_stored(op):
                own = self.where.own(op, self.region)
                expr = Load(self.param(own.text, own.dtype), self.index(own.strides))
            else:
                if op not in self.buffers:
                    self.buffers[op] = f"row{len(self.buffers)}"
                assert self.inner is not None
                expr = Load(self.buffers[op], Index(0, ((1, self.names[self.inner]),)))
        else:
            expr = self.expression(op, stage)
        memo[op] = name = self.fresh()
        self.stages[stage].body.append(Let(name, op.dtype, expr))
        return name

    def is_stored(self, op: Op) -> bool:
        """Whether this nest writes op to memory."""
        return op in self.where.plan.storage.homes and self.plan.where.get(op) == (
            self.region,
            self.at,
        )

    def is_cheap(self, op: Op) -> bool:
        if op.form != "map" or TABLE[op.name].weight > CHEAP:
            return False
        return all(a.root not in self.vec or self.is_stored(a.root) for a in self.g.reads[op])

    def expression(self, op: Op, stage: int | None) -> Expr:
        """The scalar expression of a map, random bits or a gather."""
        if op.form == "gather":
            pointer, index = self.gathered(op, stage)
            return Load(pointer, index)
        if op.form == "random":
            seed, base = self.operand(op, 0, stage), self.operand(op, 1, stage)
            terms, coef = [], 1
            for a in reversed(self.g.flat[op]):
                terms.append((coef, a))
                coef *= a.size
            element = self.global_index(0, reversed(terms))
            return Random(seed, base, op.attrs["ordinal"], element)
        args = tuple(self.operand(op, i, stage) for i in range(len(op.ins)))
        if op.name == "set_value":
            return args[1]
        dtype = op.ins[-1].dtype if op.name == "where" else op.ins[0].dtype
        return Apply(op.name, args, dtype, op.dtype, op.attrs)

    def computed_index(self, op: Op, i: int, size: int, stage: int | None) -> str:
        """The name of a checked index that operand i gives."""
        value = self.operand(op, i, stage)
        access = self.g.reads[op][i]
        varies = self.varies(access.atoms)
        key = ("index", value, size)
        memo = self.stages[stage].memo if varies and stage is not None else self.row_memo
        if key not in memo:
            memo[key] = name = self.fresh()
            let = Let(name, int64, Checked(value, size), index=True)
            if varies and stage is not None:
                self.stages[stage].body.append(let)
                self.stages[stage].vector = False  # it reports through a pointer
            elif access.root in self.members:
                self.scalar_lines(access.root, self.atoms_of(access.root)).append(let)
            else:
                self.pre[self.depth_of(access.atoms)].append(let)
        return memo[key]

    def gathered(self, op: Op, stage: int | None) -> tuple[str, Index]:
        """Pointer and index of what a gather reads."""
        access = self.g.reads[op][0]
        root = access.root
        hit = op.attrs["axes"] if op.name == "gather" else (op.attrs["axis"],)
        return self.indirect(op, access, root, hit, range(1, len(op.ins)), stage)

    def indirect(
        self,
        op: Op,
        access: Access,
        root: Op,
        hit: Iterable[int],
        operands: Iterable[int],
        stage: int | None,
    ) -> tuple[str, Index]:
        """An address that is affine along some axes and computed along the axes `hit`."""
        pointer = self.where.of(access, self.region)
        table = op.ins[0] if op.form == "gather" else op
        axes = self.g.axes[table]
        skipped: set[Atom] = set()
        terms: list[tuple[int, str]] = []
        for axis, i in zip(hit, operands):
            name = self.computed_index(op, i, table.shape[axis], stage)
            stride = self.axis_stride(op, axis, pointer, axes[axis])
            terms.append((stride, name))
            skipped.update(self.edge_atoms(op, axis, axes[axis]))
        index = self.index(pointer.strides, skipped)
        return self.param(pointer.text, pointer.dtype), Index(
            index.const, index.terms + tuple(terms)
        )

    def edge_atoms(self, op: Op, axis: int, own: list[Atom]) -> list[Atom]:
        """The atoms by which op sees an axis that it indexes."""
        if op.form == "scatter":
            return own
        labels = self.g.seen[op][axis]
        return labels

    def axis_stride(self, op: Op, axis: int, pointer: Pointer, own: list[Atom]) -> int:
        """Elements between neighbours along a computed axis."""
        atoms = self.edge_atoms(op, axis, own)
        return pointer.strides.get(atoms[-1], 0) if atoms else 0

    # ---- everything -----------------------------------------------------------------------------
    def run(self) -> Lowered:
        for op in self.nest.all:
            if op in self.vec:
                self.emit_vector(op)
            elif op.form == "reduce":
                self.emit_reduction(op)
            else:
                self.emit_scalar(op)
        body: list[Stmt] = [
            Buffer(name, op.dtype, self.region.extent(self.inner))
            for op, name in self.kept.items()
            if self.inner
        ]
        body += self.loops()  # extents become parameters here
        kernel = Kernel(tuple(self.params), tuple(body))
        return Lowered(kernel, self.arguments, list(self.cleared.items()))

    def loops(self) -> list[Stmt]:
        inside: list[Stmt] = list(self.pre[len(self.rows)])
        for stage in self.stages:
            if self.inner is not None and stage.body:
                inside += stage.folds
                inside.append(
                    Loop(
                        self.names[self.inner],
                        self.extent(self.inner),
                        tuple(stage.body),
                        stage.vector,
                        tuple(stage.folds),
                    )
                )
            inside += stage.after
        for a in reversed(self.rows):
            loop = Loop(self.names[a], self.extent(a), tuple(inside))
            inside = [*self.pre[self.depth[a]], loop]
        return inside

    def extent(self, a: Atom) -> int | str:
        text = extent_text(self.region, a)
        return text if isinstance(text, int) else self.param(text, None)

    def emit_vector(self, op: Op) -> None:
        stage = self.stages[self.vec[op]]
        if op.form == "scatter":
            self.emit_scatter(op, self.vec[op], stage.body)
        elif op.form == "reduce":  # over rows, into memory
            self.emit_row_sum(op, self.operand(op, 0, self.vec[op]), stage.body)
        else:
            name = self.value(op, self.vec[op])
            if self.is_stored(op):
                own = self.where.own(op, self.region)
                array = self.param(own.text, own.dtype)
                stage.body.append(Store(array, self.index(own.strides), Var(name), op.dtype))
            if op in self.kept:
                assert self.inner is not None
                index = Index(0, ((1, self.names[self.inner]),))
                stage.body.append(Store(self.kept[op], index, Var(name), op.dtype))

    def emit_scatter(self, op: Op, stage: int | None, lines: list[Stmt]) -> None:
        value = self.operand(op, 0, stage)
        hit = op.attrs["axes"] if op.name == "scatter" else (op.attrs["axis"],)
        flat = self.g.flat[op]
        access = Access(op, tuple((a, a) for a in flat))
        array, index = self.indirect(op, access, op, hit, range(1, len(op.ins)), stage)
        self.cleared[op] = "sum"
        lines.append(Store(array, index, value, op.dtype, "sum"))
        if stage is not None and any(self.varies(a.atoms) for a in self.g.reads[op][1:]):
            self.stages[stage].vector = False  # two iterations may hit one element

    def emit_row_sum(self, op: Op, value: Expr, lines: list[Stmt]) -> None:
        own = self.where.own(op, self.region)
        if self.region.kind[op] == "row":
            self.cleared[op] = combine_of(op)
        array = self.param(own.text, own.dtype)
        lines.append(Store(array, self.index(own.strides), value, op.dtype, combine_of(op)))

    def emit_reduction(self, op: Op) -> None:
        summed = set(self.g.red[op])
        if self.inner is not None and self.inner in summed:
            stage = self.stages[self.pos[op]]
            value = self.operand(op, 0, self.pos[op])
            self.scalar[op] = name = self.fresh()
            stage.folds.append(Start(name, op.dtype, combine_of(op)))
            stage.body.append(Fold(name, op.dtype, combine_of(op), value))
            if sees_nan(combine_of(op), op.dtype):
                stage.after.append(Finish(name, op.dtype, combine_of(op)))
            self.store_scalar(op, stage.after, summed - {self.inner})
        else:
            lines = self.scalar_lines(op, self.atoms_of(op))
            value = self.operand(op, 0, None)
            self.scalar[op] = name = self.fresh()
            lines.append(Let(name, op.dtype, value))
            self.store_scalar(op, lines, summed)

    def emit_scalar(self, op: Op) -> None:
        lines = self.scalar_lines(op, self.atoms_of(op))
        if op.form == "scatter":
            self.emit_scatter(op, None, lines)
            return
        expr = self.expression(op, None)
        self.scalar[op] = name = self.fresh()
        lines.append(Let(name, op.dtype, expr))
        self.store_scalar(op, lines, set())

    def store_scalar(self, op: Op, lines: list[Stmt], summed: set[Atom]) -> None:
        if not self.is_stored(op):
            return
        own = self.where.own(op, self.region)
        looped = {a for a in summed if a in self.names or a in self.region.tile}
        combine: Combine = "="
        if looped:
            combine = combine_of(op)
            if self.region.kind[op] == "row":
                self.cleared[op] = combine
        array, index = self.param(own.text, own.dtype), self.index(own.strides)
        lines.append(Store(array, index, Var(self.scalar[op]), op.dtype, combine))


def combine_of(op: Op) -> Combine:
    """How a reduction takes in one more value."""
    match op.name:
        case "sum" | "prod" | "amax" | "amin":
            return op.name
        case _:
            raise NotImplementedError(f"no accumulation for {op.name}")
