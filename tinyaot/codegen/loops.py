"""Loop IR: what a kernel does, before any dialect.

A kernel is a function of pointers and extents; its body is loops, scalar definitions and stores.
Expressions are trees over named scalars and loads; indices are affine in the loop variables, so a
printer never sees a tensor, and a reader of the C never sees a tensor either.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tinyaot.ops.core import Attrs
from tinyaot.shapes import DType

Combine = Literal["=", "sum", "prod", "amax", "amin"]


@dataclass(frozen=True, slots=True)
class Index:
    """const + sum of coefficient * name, in elements."""

    const: int = 0
    terms: tuple[tuple[int, str], ...] = ()

    def plus(self, coefficient: int, name: str) -> Index:
        return Index(self.const, (*self.terms, (coefficient, name)))


@dataclass(frozen=True, slots=True)
class Var:
    name: str


@dataclass(frozen=True, slots=True)
class Literal_:
    """A constant of a dtype."""

    value: bool | int | float
    dtype: DType


@dataclass(frozen=True, slots=True)
class Load:
    array: str
    index: Index


@dataclass(frozen=True, slots=True)
class Position:
    """A loop position as a number of a dtype."""

    index: Index
    dtype: DType


@dataclass(frozen=True, slots=True)
class Apply:
    """A primitive's scalar expression; `dtype` is its operands', `result` its own."""

    op: str
    args: tuple[Expr, ...]
    dtype: DType
    result: DType
    attrs: Attrs = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Total:
    """The partial results of all threads, added in order. `step`: the parameter that says how far
    they are apart, so that one kernel serves every size."""

    array: str
    index: Index
    step: str
    count: int


@dataclass(frozen=True, slots=True)
class Checked:
    """An index from data: negative counts from the end, out of range is reported (in `slot` of the
    kernel's error slots) and read as 0."""

    value: Expr
    size: int
    slot: int


@dataclass(frozen=True, slots=True)
class Within:
    """What to report of `value`: 0 if it is in 0 .. size - 1 or `ignored`."""

    value: Expr
    size: int
    ignored: int


@dataclass(frozen=True, slots=True)
class Random:
    """32 random bits of an element: Philox of the seed at (draw, element)."""

    seed: Expr
    base: Expr
    ordinal: int
    element: Index


Expr = Var | Literal_ | Load | Position | Apply | Total | Checked | Within | Random


@dataclass(frozen=True, slots=True)
class Let:
    """name = expr, a scalar. `index`: a 64-bit index rather than a value of `dtype`."""

    name: str
    dtype: DType
    expr: Expr
    index: bool = False


@dataclass(frozen=True, slots=True)
class Store:
    array: str
    index: Index
    expr: Expr
    dtype: DType
    combine: Combine = "="


@dataclass(frozen=True, slots=True)
class Start:
    """An accumulator at its neutral value."""

    name: str
    dtype: DType
    combine: Combine


@dataclass(frozen=True, slots=True)
class Fold:
    """Take a value into an accumulator."""

    name: str
    dtype: DType
    combine: Combine
    expr: Expr


@dataclass(frozen=True, slots=True)
class Finish:
    """After the loop: a maximum that met a NaN is NaN."""

    name: str
    dtype: DType
    combine: Combine


@dataclass(frozen=True, slots=True)
class Report:
    """Put `name` into an error slot where it is no 0, or is beyond it on one side."""

    name: str
    test: Literal["!=", ">", "<"]
    slot: int


@dataclass(frozen=True, slots=True)
class Buffer:
    """A row of scalars, kept between two vector loops."""

    name: str
    dtype: DType
    size: int


@dataclass(frozen=True, slots=True)
class RandomRow:
    """array[i] = 32 random bits of element + i, for i < count."""

    array: str
    seed: Expr
    base: Expr
    ordinal: int
    element: Index
    count: int | str


@dataclass(frozen=True, slots=True)
class Loop:
    """for (var = 0; var < extent; var++). `vector`: iterations are independent but for `folds`."""

    var: str
    extent: int | str
    body: tuple[Stmt, ...]
    vector: bool = False
    folds: tuple[Start, ...] = ()


Stmt = Let | Store | Start | Fold | Finish | Report | Buffer | RandomRow | Loop


@dataclass(frozen=True, slots=True)
class Param:
    """A pointer to elements of a dtype, or (dtype None) a 64-bit integer."""

    name: str
    dtype: DType | None


@dataclass(frozen=True, slots=True)
class Kernel:
    """Equal kernels are printed once, whatever calls them."""

    params: tuple[Param, ...]
    body: tuple[Stmt, ...]
