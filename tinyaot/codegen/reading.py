"""How a nest reads: loads, positions, values of other ops, and computed places.

What does not change in the inner loop is read once, outside the row loops that it does not depend
on. A vector that a later stage wants again is reloaded if it is stored, recomputed if that is a few
cheap ops on what is at hand, and else kept in a row buffer. Equal expressions of one stage, such as
a value and its recomputation for the backward, are computed once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from tinyaot.codegen.loops import (
    Apply,
    Checked,
    Combine,
    Expr,
    Fold,
    Index,
    Let,
    Literal_,
    Load,
    Position,
    Random,
    RandomRow,
    Report,
    Start,
    Total,
    Var,
    Within,
)
from tinyaot.codegen.nests import Check, Frame
from tinyaot.ops.core import TABLE
from tinyaot.passes.fusion.accesses import Access, Const
from tinyaot.passes.fusion.labels import Atom
from tinyaot.passes.fusion.op import Op
from tinyaot.shapes import DType, int32, int64

CHEAP = 0.03  # ns an element: recomputing such a map beats keeping it
FEW = 4  # cheap maps that may be recomputed for one value
SMALL_RANGE = 1 << 30  # index ranges below it are counted in 32 bits
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


class Reader(Frame):
    """Expressions of a nest's ops."""

    def load(self, access: Access) -> Expr:
        root = access.root
        if root.form == "const":
            return Literal_(root.attrs["value"], root.dtype)
        if root.form == "iota":
            return self.iota(access)
        pointer = self.where.of(access, self.region)
        name, index = self.param(pointer.text, pointer.dtype), self.index(pointer.strides)
        if pointer.step:
            return Total(name, index, self.param(str(pointer.step), None), pointer.count)
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
        if op.form == "random" and self.random_rows:
            memo[op] = name = self.fresh()
            self.stages[stage].body.append(Let(name, op.dtype, self.random_row(op, stage)))
            return name
        keep = self.keeps and not self.is_cheap(op)
        if self.vec[op] < stage and (keep or self.is_stored(op)):
            if self.is_stored(op):
                own = self.where.own(op, self.region)
                expr = Load(self.param(own.text, own.dtype), self.index(own.strides))
            else:
                if op not in self.buffers:
                    self.buffers[op] = f"row{len(self.buffers)}"
                expr = Load(self.buffers[op], self.in_row())
        else:
            expr = self.expression(op, stage)
        if expr not in memo:
            memo[expr] = name = self.fresh()
            self.stages[stage].body.append(Let(name, op.dtype, expr))
        memo[op] = memo[expr]
        return memo[op]

    def is_stored(self, op: Op) -> bool:
        """Whether this nest writes op to memory."""
        return op in self.where.plan.storage.homes and self.plan.where.get(op) == (
            self.region,
            self.at,
        )

    def is_cheap(self, op: Op) -> bool:
        """Whether op is a few cheap maps of at most two vectors that are stored or slow to make."""
        cheap, sources, todo = 0, set[Op](), [op]
        while todo:
            x = todo.pop()
            if x is not op and (self.is_stored(x) or x.form != "map"):
                sources.add(x)
            elif x.form == "map" and TABLE[x.name].weight <= CHEAP:
                cheap += 1
                todo += [a.root for a in self.g.reads[x] if a.root in self.vec]
            elif x is op:
                return False
            else:
                sources.add(x)
            if cheap > FEW or len(sources) > 2:
                return False
        return True

    def expression(self, op: Op, stage: int | None) -> Expr:
        """The scalar expression of a map, random bits or a gather."""
        if op.form == "gather":
            pointer, index = self.gathered(op, stage)
            return Load(pointer, index)
        if op.form == "random":
            seed, base = self.operand(op, 0, stage), self.operand(op, 1, stage)
            return Random(seed, base, op.attrs["ordinal"], self.element(op))
        args = tuple(self.operand(op, i, stage) for i in range(len(op.ins)))
        if op.name == "set_value":
            return args[1]
        if op.name == "within":
            self.check(op, args[0], stage)
            return args[0]
        dtype = op.ins[-1].dtype if op.name == "where" else op.ins[0].dtype
        return Apply(op.name, args, dtype, op.dtype, op.attrs)

    def element(self, op: Op) -> Index:
        """The row-major logical index of op's element."""
        terms, coef = [], 1
        for a in reversed(self.g.flat[op]):
            terms.append((coef, a))
            coef *= a.size
        return self.global_index(0, reversed(terms))

    def random_row(self, op: Op, stage: int) -> Expr:
        """Random bits from a row that is made before the loop, if the loop runs along it."""
        assert self.inner is not None
        i = self.names[self.inner]
        element = self.element(op)
        if (1, i) not in element.terms:
            return self.expression(op, stage)
        if op not in self.bits:
            self.bits[op] = name = f"bits{len(self.bits)}"
            seed, base = self.operand(op, 0, stage), self.operand(op, 1, stage)
            start = Index(element.const, tuple(t for t in element.terms if t != (1, i)))
            count = self.extent(self.inner)
            row = RandomRow(name, seed, base, op.attrs["ordinal"], start, count)
            self.stages[stage].before.append(row)
        return Load(self.bits[op], Index(0, ((1, i),)))

    def check(self, op: Op, value: Expr, stage: int | None) -> None:
        """Report a value that is not within bounds. A vector loop folds what there is to report: a
        store that may happen would keep it from being one."""
        size, name = op.attrs["size"], self.fresh()
        slot = self.slot(op, None, size)
        let = Let(name, int64, Within(value, size, op.attrs["ignored"]))
        if stage is None:
            self.scalar_lines(op, self.atoms_of(op)).extend([let, Report(name, "!=", slot)])
            return
        at = self.stages[stage]
        at.body.append(let)
        tests: dict[Combine, Literal[">", "<"]] = {"amax": ">", "amin": "<"}
        for combine, test in tests.items():
            folded = self.fresh()
            at.folds.append(Start(folded, int64, combine))
            at.body.append(Fold(folded, int64, combine, Var(name)))
            at.after.append(Report(folded, test, slot))

    def slot(self, op: Op, axis: int | None, size: int) -> int:
        """The error slot of a check."""
        check = Check(op, axis, size)
        if check not in self.checks:
            self.checks.append(check)
        return self.checks.index(check)

    def computed_index(self, op: Op, i: int, axis: int, size: int, stage: int | None) -> str:
        """The name of a checked index along an axis that operand i gives."""
        value = self.operand(op, i, stage)
        access = self.g.reads[op][i]
        varies = self.varies(access.atoms)
        key = ("index", value, size)
        memo = self.stages[stage].memo if varies and stage is not None else self.row_memo
        if key not in memo:
            memo[key] = name = self.fresh()
            checked = Checked(value, size, self.slot(op, axis, size))
            let = Let(name, int64, checked, index=True)
            if varies and stage is not None:
                self.stages[stage].body.append(let)
            elif access.root in self.members:
                self.scalar_lines(access.root, self.atoms_of(access.root)).append(let)
            else:
                self.pre[self.depth_of(access.atoms)].append(let)
        return memo[key]

    def gathered(self, op: Op, stage: int | None) -> tuple[str, Index]:
        """Pointer and index of what a gather reads."""
        return self.indirect(op, self.g.reads[op][0], stage)

    def indirect(self, op: Op, access: Access, stage: int | None) -> tuple[str, Index]:
        """The address that a gather reads, or a scatter writes: affine along some axes of `access`,
        computed along those that the op's operands from the second on index."""
        pointer = self.where.of(access, self.region)
        table = op.ins[0] if op.form == "gather" else op
        skipped: set[Atom] = set()
        terms: list[tuple[int, str]] = []
        for i, axis in enumerate(op.indexed, 1):
            name = self.computed_index(op, i, axis, table.shape[axis], stage)
            atoms = self.g.axes[op][axis] if op.form == "scatter" else self.g.seen[op][axis]
            terms.append((pointer.strides.get(atoms[-1], 0) if atoms else 0, name))
            skipped.update(atoms)
        index = self.index(pointer.strides, skipped)
        return self.param(pointer.text, pointer.dtype), Index(index.const, (*index.terms, *terms))
