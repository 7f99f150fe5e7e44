"""From a nest of a region to a kernel in loop IR: every op's statements, each in its place."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tinyaot.codegen.across import side_by_side
from tinyaot.codegen.addresses import Addresses
from tinyaot.codegen.flatten import flatten, live
from tinyaot.codegen.loops import (
    Buffer,
    Combine,
    Expr,
    Finish,
    Fold,
    Kernel,
    Let,
    Loop,
    Start,
    Stmt,
    Store,
    Var,
)
from tinyaot.codegen.nests import Check
from tinyaot.codegen.printer import C, Dialect, sees_nan
from tinyaot.codegen.reading import Reader
from tinyaot.passes.fusion.accesses import Access
from tinyaot.passes.fusion.graph import Graph
from tinyaot.passes.fusion.labels import Atom
from tinyaot.passes.fusion.op import Op
from tinyaot.passes.fusion.regions import Region
from tinyaot.passes.fusion.statements import Nest, Schedule


@dataclass(frozen=True, slots=True)
class Lowered:
    """A kernel, its arguments as C text, the values to be cleared before the call, and what its
    error slots report."""

    kernel: Kernel
    arguments: list[str]
    cleared: list[tuple[Op, Combine]]
    checks: list[Check]


def lower_nest(
    g: Graph,
    plan: Schedule,
    where: Addresses,
    region: Region,
    nest: Nest,
    at: int,
    dialect: Dialect = C,
) -> Lowered:
    """Lower statement `at` of a region."""
    kept: dict[Op, str] = {}
    while True:  # the first time finds out which vectors need a row buffer
        lowering = _Lowering(g, plan, where, region, nest, at, dict(kept), dialect)
        result = lowering.run()
        if lowering.buffers == kept:
            return result
        kept = lowering.buffers


class _Lowering(Reader):
    """Emits a nest's ops in order."""

    def run(self) -> Lowered:
        for op in self.nest.all:
            if op in self.vec:
                self.emit_vector(op)
            elif op.form == "reduce":
                self.emit_reduction(op)
            else:
                self.emit_scalar(op)
        most = self.region.extent(self.rows[-1]) if self.rows else 1
        body: list[Stmt] = [
            Buffer(name, op.dtype, self.region.extent(self.inner) * (most if self.across else 1))
            for op, name in (*self.kept.items(), *self.bits.items())
            if self.inner
        ]
        body += self.loops()  # extents become parameters here
        kernel = Kernel(tuple(self.params), tuple(body))
        return Lowered(kernel, self.arguments, list(self.cleared.items()), self.checks)

    def loops(self) -> list[Stmt]:
        inside: list[Stmt] = list(self.pre[len(self.rows)])
        for stage in self.stages:
            if self.inner is not None and stage.body:
                inside += [*stage.before, *stage.folds]
                inside.append(
                    Loop(
                        self.names[self.inner],
                        self.extent(self.inner),
                        live([*stage.body, *stage.overwrites]),
                        stage.vector,
                        tuple(stage.folds),
                    )
                )
            inside += stage.after
        beside = False
        for a in reversed(self.rows):
            loop = flatten(Loop(self.names[a], self.extent(a), tuple(inside)))
            made: list[Stmt] = [loop]
            if self.across and a == self.rows[-1] and any(isinstance(s, Loop) for s in loop.body):
                made, beside = side_by_side(loop, self.region.extent(a), self.fresh), True
            inside = [*self.pre[self.depth[a]], *made]
        if beside:
            return inside
        return [self.of_any_size(s) if isinstance(s, Loop) else s for s in inside]

    def of_any_size(self, loop: Loop) -> Loop:
        """One loop alone gets its extent as an argument: the kernel serves every size."""
        if not isinstance(loop.extent, int) or any(isinstance(s, Loop) for s in loop.body):
            return loop
        return replace(loop, extent=self.param(str(loop.extent), None))

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
                store = Store(array, self.index(own.strides), Var(name), op.dtype)
                (stage.overwrites if op in self.g.overwrites else stage.body).append(store)
            if op in self.kept:
                stage.body.append(Store(self.kept[op], self.in_row(), Var(name), op.dtype))

    def emit_scatter(self, op: Op, stage: int | None, lines: list[Stmt]) -> None:
        value = self.operand(op, 0, stage)
        access = Access(op, tuple((a, a) for a in self.g.flat[op]))
        array, index = self.indirect(op, access, stage)
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
            self.store_scalar(op, stage.after, summed)
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
        looped = {a for a in summed if a in self.depth or a in self.region.tile}
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
