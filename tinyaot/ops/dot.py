"""The only product: an einsum of two operands, computed by matrix products on strided views.

`dot(a, b, spec="bij,bjk->bik")`: a letter of both operands and the result is a batch; of both
operands only, contracted; of one operand and the result, a row or column; of one operand only, it
is summed. The gradients are dots with the letters rearranged. A transpose is only strides here, so
BLAS reads what is there: letters are merged into one matrix axis where their strides nest, and
looped over as a batch where they do not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from tinyaot.errors import DTypeError, ShapeError
from tinyaot.ops.core import Attrs, Primitive, declare, is_half, same_dtype
from tinyaot.ops.reduce import broadcast
from tinyaot.ops.views import reshape
from tinyaot.shapes import (
    Geometry,
    Shape,
    TensorType,
    contiguous,
    permute_geometry,
    reshape_geometry,
)

NO_BOOLS = "dot is not defined for bool; cast first"


@cache
def letters(spec: str) -> tuple[str, str, str]:
    """The letters of a, b and the result; ShapeError for anything else."""
    operands, arrow, out = spec.partition("->")
    a, comma, b = operands.partition(",")
    alphabetic = all(c.isascii() and c.isalpha() for c in a + b + out)
    repeats = any(len(set(s)) != len(s) for s in (a, b, out))
    if not (arrow and comma and alphabetic) or repeats or not set(out) <= set(a + b):
        raise ShapeError(
            f'dot: {spec!r} is not a spec; write "ij,jk->ik": single letters, none twice in one '
            f"operand, every letter of the result in an operand"
        )
    return a, b, out


def letter_sizes(spec: str, a: Shape, b: Shape) -> dict[str, int]:
    """The size of every letter; ShapeError where operands do not fit the spec or each other."""
    in_a, in_b, _ = letters(spec)
    if len(in_a) != len(a) or len(in_b) != len(b):
        raise ShapeError(
            f"dot: {spec!r} does not fit shapes {a} and {b}: they have {len(a)} and {len(b)} axes"
        )
    sizes = dict(zip(in_a, a))
    for letter, n in zip(in_b, b):
        if sizes.setdefault(letter, n) != n:
            raise ShapeError(
                f"dot: shapes {a} and {b} do not fit {spec!r}: {letter!r} is {sizes[letter]} in "
                f"one and {n} in the other"
            )
    return sizes


@lru_cache(4096)
def _out_shape(spec: str, a: Shape, b: Shape) -> Shape:
    sizes = letter_sizes(spec, a, b)
    return tuple(sizes[c] for c in letters(spec)[2])


def _type_rule(a: TensorType, b: TensorType, spec: str) -> TensorType:
    dtype = same_dtype("dot", (a, b))
    if dtype.kind == "bool":
        raise DTypeError(NO_BOOLS)
    return TensorType(dtype, _out_shape(spec, a.shape, b.shape))


# ---- choosing views -----------------------------------------------------------------------------

View = tuple[tuple[int, ...], Shape]  # axes in order, then the shape they are merged to


@dataclass(frozen=True, slots=True)
class _Plan:
    """Views of a, b and out on which one NumPy call computes the product.

    product: "multiply" where nothing is contracted, else "matmul", which reads (and writes)
    a matrix whose rows or whose columns are dense without copying it.
    """

    product: str
    a: View
    b: View
    out: View


def _merges(group: str, strides: dict[str, int], sizes: dict[str, int]) -> bool:
    """Whether a view merges these axes, in this order, into one."""
    moving = [c for c in group if sizes[c] != 1]
    return all(strides[c] == strides[d] * sizes[d] for c, d in pairwise(moving))


def _run(
    group: str, operand: dict[str, int], out: dict[str, int], sizes: dict[str, int], item: int
) -> str:
    """The best stretch of `group` that merges in the operand and in out: it has out's dense axis
    if the group does, and then as many elements as can be."""
    best, best_key = "", (False, 0)
    for i in range(len(group)):
        for j in range(i + 1, len(group) + 1):
            run = group[i:j]
            if _merges(run, operand, sizes) and _merges(run, out, sizes):
                key = (any(out[c] == item for c in run), math.prod(sizes[c] for c in run))
                if key > best_key or not best:
                    best, best_key = run, key
    return best


@lru_cache(4096)
def _plan(
    spec: str,
    a_shape: Shape,
    a_strides: Shape,
    b_shape: Shape,
    b_strides: Shape,
    out_strides: Shape,
    item: int,
) -> _Plan:
    in_a, in_b, in_out = letters(spec)
    sizes = letter_sizes(spec, a_shape, b_shape)
    of_a, of_b = dict(zip(in_a, a_strides)), dict(zip(in_b, b_strides))
    of_out = dict(zip(in_out, out_strides))

    def view(have: str, outer: str, *merged: str) -> View:
        """Axes of `outer` (size 1 where absent), then one axis for each group."""
        order = [have.index(c) for c in outer + "".join(merged) if c in have]
        shape = [sizes[c] if c in have else 1 for c in outer]
        return tuple(order), (*shape, *(math.prod(sizes[c] for c in g) for g in merged))

    contracted = "".join(c for c in in_a if c in in_b and c not in in_out)
    if not contracted:
        return _Plan("multiply", view(in_a, in_out), view(in_b, in_out), view(in_out, in_out))
    rows = "".join(c for c in in_out if c not in in_b)
    columns = "".join(c for c in in_out if c not in in_a)
    m, n = _run(rows, of_a, of_out, sizes, item), _run(columns, of_b, of_out, sizes, item)
    outer = "".join(c for c in in_out if c not in m and c not in n)
    # An order of the contracted letters that merges in both operands, or at least in one: reshape
    # then copies the other.
    orders = ["".join(sorted(contracted, key=lambda c: -abs(s[c]))) for s in (of_a, of_b)]
    k = max(orders, key=lambda o: _merges(o, of_a, sizes) + _merges(o, of_b, sizes))
    return _Plan(
        "matmul",
        view(in_a, outer, m, k),
        view(in_b, outer, k, n),
        view(in_out, outer, m, n),
    )


def _apply(x: np.ndarray, view: View) -> np.ndarray:
    axes, shape = view
    return x.transpose(axes).reshape(shape)


def _into(out: np.ndarray, a: np.ndarray, b: np.ndarray, spec: str) -> None:
    if out.dtype.kind in "iu":
        np.einsum(spec, a, b, out=out)  # BLAS has no integers
        return
    if is_half(out.dtype):
        wide = np.empty(out.shape, np.float32)
        _into(wide, a.astype(np.float32), b.astype(np.float32), spec)
        np.copyto(out, wide, casting="same_kind")
        return
    alone_a, alone_b, spec = _alone(spec)
    if alone_a:
        a = np.asarray(np.add.reduce(a, axis=alone_a))
    if alone_b:
        b = np.asarray(np.add.reduce(b, axis=alone_b))
    plan = _plan(spec, a.shape, a.strides, b.shape, b.strides, out.strides, out.itemsize)
    a, b, out = _apply(a, plan.a), _apply(b, plan.b), _apply(out, plan.out)
    if plan.product == "multiply":
        np.multiply(a, b, out=out)
    else:
        np.matmul(a, b, out=out)


@cache
def _alone(spec: str) -> tuple[Shape, Shape, str]:
    """The axes of a and of b to sum first, as only they have the letter, and the spec without."""
    a, b, out = letters(spec)
    alone_a = tuple(i for i, c in enumerate(a) if c not in b + out)
    alone_b = tuple(i for i, c in enumerate(b) if c not in a + out)
    left_a = "".join(c for c in a if c in b + out)
    left_b = "".join(c for c in b if c in a + out)
    return alone_a, alone_b, f"{left_a},{left_b}->{out}"


def _array(a: np.ndarray, b: np.ndarray, spec: str) -> np.ndarray:
    if a.dtype.kind == "b":  # NumPy would take sums for `or`
        raise DTypeError(NO_BOOLS)
    out = np.empty(_out_shape(spec, a.shape, b.shape), a.dtype)
    _into(out, a, b, spec)
    return out


def as_ufunc(
    spec: str, a: Geometry, b: Geometry, out: Geometry
) -> tuple[np.ufunc, list[tuple[int, Geometry]]] | None:
    """A float product as one call of a ufunc, for an executor that makes views once: its
    arguments, each as a position in (a, b, out) and the geometry that it sees there. None where
    the product takes more than that (a copy, or sums before it)."""
    in_a, in_b, in_out = letters(spec)
    if any(c not in other + in_out for x, other in ((in_a, in_b), (in_b, in_a)) for c in x):
        return None
    plan = _plan(spec, a.shape, a.strides, b.shape, b.strides, out.strides, 1)
    arguments = []
    for position, (geometry, (axes, shape)) in enumerate(
        ((a, plan.a), (b, plan.b), (out, plan.out))
    ):
        view = reshape_geometry(permute_geometry(geometry, axes), shape)
        if view is None:
            return None
        arguments.append((position, view))
    return np.multiply if plan.product == "multiply" else np.matmul, arguments


# ---- the row of the table -----------------------------------------------------------------------


def _flops(ins: Sequence[TensorType], out: TensorType, attrs: Attrs) -> int:
    return 2 * math.prod(letter_sizes(attrs["spec"], ins[0].shape, ins[1].shape).values())


def _scratch(ins: Sequence[TensorType], out: TensorType, attrs: Attrs) -> int:
    return _strided([contiguous(t.shape) for t in ins], ins, out, attrs)


def _strided(
    views: Sequence[Geometry], ins: Sequence[TensorType], out: TensorType, attrs: Attrs
) -> int:
    item = out.dtype.itemsize
    if out.dtype.kind != "float":
        return 0
    sizes = [math.prod(v.shape) for v in views]
    total = 4 * (sum(sizes) + out.size) if is_half(out.dtype.numpy) else 0
    *alone, spec = _alone(attrs["spec"])
    # What is summed first has a memory of its own.
    left = [
        contiguous(tuple(n for axis, n in enumerate(v.shape) if axis not in axes)) if axes else v
        for v, axes in zip(views, alone)
    ]
    strides = [tuple(s * item for s in v.strides) for v in (*left, contiguous(out.shape))]
    plan = _plan(spec, left[0].shape, strides[0], left[1].shape, strides[1], strides[2], item)
    for seen, (axes, shape), summed in zip(left, (plan.a, plan.b), alone):
        nbytes = math.prod(seen.shape) * max(item, 4)
        if summed:
            total += nbytes
        if reshape_geometry(permute_geometry(seen, axes), shape) is None:
            total += nbytes  # contracted letters in another order than the other operand's
    return total


def _cotangent(g: Any, x: Any, other: Any, have: str, other_has: str, out: str) -> Any:
    """Of the operand x with letters `have`: contract g with the other operand."""
    found = "".join(c for c in have if c in out or c in other_has)
    result = dot(g, other, spec=f"{out},{other_has}->{found}")
    if found == have:
        return result
    # Letters that were x's alone and summed: the same for all of their elements.
    shape = tuple(n if c in found else 1 for c, n in zip(have, x.shape))
    return broadcast(reshape(result, shape=shape), shape=tuple(x.shape))


def _to_a(g: Any, y: Any, a: Any, b: Any, spec: str) -> Any:
    in_a, in_b, out = letters(spec)
    return _cotangent(g, a, b, in_a, in_b, out)


def _to_b(g: Any, y: Any, a: Any, b: Any, spec: str) -> Any:
    in_a, in_b, out = letters(spec)
    return _cotangent(g, b, a, in_b, in_a, out)


dot: Primitive = declare(
    "dot",
    "dot",
    _type_rule,
    _array,
    _into,
    (_to_a, _to_b),
    _flops,
    doc="Products summed over the letters that the result lacks.",
    scratch=_scratch,
    strided=_strided,
)
