"""A nest under construction: its loops and their names, its parameters, and its stages.

Inside the row loops stand one or more *stages*, vector loops over the inner label, with scalars
between them: a value that needs a complete reduction over the inner label belongs to a later stage.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tinyaot.codegen.across import pays
from tinyaot.codegen.addresses import Addresses, extent_text
from tinyaot.codegen.loops import Combine, Index, Param, Start, Stmt
from tinyaot.codegen.printer import Dialect
from tinyaot.ops.core import TABLE
from tinyaot.ops.elementwise import TRANSCENDENTAL
from tinyaot.passes.fusion.graph import Graph
from tinyaot.passes.fusion.labels import Atom
from tinyaot.passes.fusion.op import Op
from tinyaot.passes.fusion.regions import Region
from tinyaot.passes.fusion.statements import Nest, Schedule
from tinyaot.shapes import DType

SHORTEST, LONGEST = 64, 4096  # elements of a vector loop that is worth cutting, rows kept in L1
MUCH = 24  # maps after slow ones that are worth a loop of their own
FEW_BITS = 8  # elements of a row whose random bits are made one by one
KEPT = 1 << 15  # elements of a row that a stack has room for


@dataclass(frozen=True, slots=True)
class Check:
    """What an error slot reports: an index of `op` that is out of range along an axis of `size`
    (axis None: in a `within`)."""

    op: Op
    axis: int | None
    size: int


@dataclass(slots=True)
class Stage:
    """One vector loop, what it finds ready, and the scalars after it."""

    before: list[Stmt] = field(default_factory=list)
    folds: list[Start] = field(default_factory=list)
    body: list[Stmt] = field(default_factory=list)
    after: list[Stmt] = field(default_factory=list)
    memo: dict[object, str] = field(default_factory=dict)
    vector: bool = True
    overwrites: list[Stmt] = field(default_factory=list)  # after all that the body reads


def is_slow(op: Op) -> bool:
    return op.form == "map" and TABLE[op.name].weight >= TRANSCENDENTAL


class Frame:
    """The state of a nest while it is lowered."""

    def __init__(
        self,
        g: Graph,
        plan: Schedule,
        where: Addresses,
        region: Region,
        nest: Nest,
        at: int,
        kept: dict[Op, str],
        dialect: Dialect,
    ) -> None:
        self.g, self.plan, self.where, self.region = g, plan, where, region
        self.nest, self.at, self.kept = nest, at, kept
        self.buffers: dict[Op, str] = dict(kept)
        order = (*nest.rows, nest.inner) if nest.inner else nest.rows
        self.rows = [a for a in order if region.extent(a) > 1]
        self.inner = self.rows.pop() if self.rows else None
        size = region.extent(self.inner) if self.inner else 0
        self.cuts = dialect.cuts and SHORTEST <= size <= LONGEST
        self.keeps = dialect.keeps and size <= KEPT
        self.random_rows = dialect.random_rows and FEW_BITS <= size <= KEPT
        self.across = dialect.across and self.has_short_rows()
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
        self.bits: dict[Op, str] = {}  # rows of random bits
        self.scalar: dict[Op, str] = {}
        self.checks: list[Check] = []  # by error slot
        self.cleared: dict[Op, Combine] = {}
        self.vec: dict[Op, int] = {}  # stage of a vector value
        self.pos: dict[Op, int] = {}  # stage after which a scalar is known; -1: before any
        self.find_stages()
        last = max([0, *self.vec.values(), *self.pos.values()])
        self.stages = [Stage() for _ in range(last + 1)]

    def has_short_rows(self) -> bool:
        """Whether the last of the row loops is the better vector loop."""
        if self.inner is None or not self.rows or self.inner in self.region.limits:
            return False
        row, column, extent = self.rows[-1], self.inner, self.region.extent
        return pays(self.g, self.nest.all, row, extent(row), column, extent(column))

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

    def extent(self, a: Atom) -> int | str:
        """How far a loop goes: a number, or the name of a parameter."""
        text = extent_text(self.region, a)
        return text if isinstance(text, int) else self.param(text, None)

    def index(self, strides: dict[Atom, int], skip: Iterable[Atom] = ()) -> Index:
        """The element that the loops are at."""
        without = set(skip)
        terms = [
            (s, self.names[a])
            for a, s in strides.items()
            if s and a in self.names and a not in without
        ]
        return Index(0, tuple(terms))

    def in_row(self) -> Index:
        """Where a row buffer has the element that the loops are at."""
        assert self.inner is not None
        index = Index(0, ((1, self.names[self.inner]),))
        if not self.across:
            return index
        row = self.rows[-1]
        return Index(0, ((self.region.extent(row), self.names[self.inner]), (1, self.names[row])))

    def varies(self, atoms: Iterable[Atom]) -> bool:
        """Whether a value changes in the inner loop."""
        return self.inner is not None and self.inner in atoms

    def depth_of(self, atoms: Iterable[Atom]) -> int:
        """The row loops that a scalar must be inside of."""
        return max((self.depth[a] + 1 for a in atoms if a in self.depth), default=0)

    # ---- stages ---------------------------------------------------------------------------------
    def find_stages(self) -> None:
        """A stage for every op. A chain of slow maps is cut, too, and what comes after them, if it
        is much: a processor overlaps the iterations of a short loop, and in a long one waits for
        each."""
        deep: dict[Op, int] = {}  # the last slow map at or before an op: its stage
        apart = self.cuts and self.after_slow() > MUCH
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
                stage = max(same, after + 1)
                before = max((deep.get(a.root, -1) for a in self.g.reads[op]), default=-1)
                slow = is_slow(op)
                stage += before == stage and (self.cuts if slow else apart)
                before = stage if slow else before
                self.vec[op], deep[op] = stage, before
        last = max([0, *self.vec.values(), *self.pos.values()])
        for op in self.nest.all:
            if op in self.vec and op in self.g.overwrites:
                self.vec[op] = last
            elif op in self.vec:
                self.vec[op] = max(
                    self.vec[op], *(self.vec.get(a.root, 0) for a in self.g.reads[op])
                )

    def after_slow(self) -> int:
        """How many maps depend on a slow one, and are none themselves."""
        after: set[Op] = set()
        for op in self.nest.all:
            roots = [a.root for a in self.g.reads[op]]
            if op.form == "map" and any(is_slow(x) or x in after for x in roots):
                after.add(op)
        return sum(not is_slow(op) for op in after)

    def scalar_lines(self, op: Op, atoms: Iterable[Atom]) -> list[Stmt]:
        """Where the definition of a row-level value goes."""
        if self.pos[op] >= 0:
            return self.stages[self.pos[op]].after
        return self.pre[self.depth_of(atoms)]

    def atoms_of(self, op: Op) -> set[Atom]:
        """The loops that a row-level value of this nest depends on."""
        return set(self.g.space(op))
