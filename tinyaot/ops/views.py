"""Views: another shape of the same bytes, and their transposes, which put bytes back.

A view costs nothing and has no code; its vjp scatters into zeros. `slice_scatter` and
`diagonal_scatter` are what a write through a view becomes once programs are pure (the pairs that
torch's functionalization uses). `replay` and `scatter_back` carry a whole chain of views.
`broadcast` is in `reduce`, beside `sum`, its transpose.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from tinyaot.errors import DTypeError, MutationError, ShapeError
from tinyaot.ops.core import (
    TABLE,
    Primitive,
    Rule,
    allocating,
    declare,
    same_buffer,
    same_dtype,
)
from tinyaot.ops.leaf import zeros_like
from tinyaot.shapes import (
    Shape,
    TensorType,
    diagonal_geometry,
    diagonal_size,
    normalize_shape,
    permute_geometry,
    reshape_geometry,
    slice_geometry,
    slice_sizes,
)

Chain = Sequence[tuple[str, Mapping[str, Any]]]  # views, first applied first: (name, attributes)


def _view_into(name: str) -> Any:
    """A view copied out, for an executor that wants the value in memory of its own."""

    def into(out: np.ndarray, x: np.ndarray, **attrs: Any) -> None:
        np.copyto(out, TABLE[name].array(x, **attrs))

    return into


# ---- reshape, permute, detach -------------------------------------------------------------------


def _reshape_type(x: TensorType, shape: Shape) -> TensorType:
    return x.with_shape(normalize_shape("reshape", shape, x.size))


def _reshape_into(out: np.ndarray, x: np.ndarray, shape: Shape) -> None:
    # Through out's shape, since x's may need a copy. `out` is in C order, so this is a view.
    np.copyto(out.reshape(x.shape), x)


reshape: Primitive = declare(
    "reshape",
    "view",
    _reshape_type,
    lambda x, shape: x.reshape(shape),
    _reshape_into,
    (lambda g, y, x, shape: reshape(g, shape=tuple(x.shape)),),
    doc="The same elements in row-major order; copies where strides allow no view.",
    geometry=reshape_geometry,
)


def _permute_type(x: TensorType, perm: Shape) -> TensorType:
    if sorted(perm) != list(range(x.ndim)):
        raise ShapeError(f"permute: {tuple(perm)} does not order the {x.ndim} axes of {x.shape}")
    return x.with_shape([x.shape[p] for p in perm])


def inverse(perm: Sequence[int]) -> Shape:
    """The permutation that undoes `perm`."""
    return tuple(sorted(range(len(perm)), key=perm.__getitem__))


permute: Primitive = declare(
    "permute",
    "view",
    _permute_type,
    lambda x, perm: x.transpose(perm),
    _view_into("permute"),
    (lambda g, y, x, perm: permute(g, perm=inverse(perm)),),
    doc="Axis i of the result is axis perm[i] of the operand.",
    geometry=permute_geometry,
)
detach: Primitive = declare(
    "detach",
    "view",
    lambda x: x,
    lambda x: x[...],
    _view_into("detach"),
    (None,),
    doc="The same value, through which no gradient flows.",
    geometry=lambda g: g,
)

# ---- slice --------------------------------------------------------------------------------------


def _slice_type(x: TensorType, starts: Shape, stops: Shape, steps: Shape) -> TensorType:
    if not len(starts) == len(stops) == len(steps) == x.ndim:
        raise ShapeError(
            f"slice: starts, stops and steps need one entry for each axis of {x.shape}"
        )
    for n, start, stop, step in zip(x.shape, starts, stops, steps, strict=True):
        low, high = (0, n) if step > 0 else (-1, n - 1)
        if step == 0 or not (low <= start <= high and low <= stop <= high):
            raise ShapeError(
                f"slice: {start}:{stop}:{step} is not normalised for size {n} of {x.shape}; "
                f"use the three numbers that slice.indices gives"
            )
    return x.with_shape(slice_sizes(starts, stops, steps))


@lru_cache(4096)
def _slices(starts: Shape, stops: Shape, steps: Shape) -> tuple[builtins.slice, ...]:
    """Python slices: a stop of -1 here is 'before the first element', which Python spells None."""
    return tuple(
        builtins.slice(a, b if b >= 0 else None, k) if len(range(a, b, k)) else builtins.slice(0, 0)
        for a, b, k in zip(starts, stops, steps, strict=True)
    )


slice_: Primitive = declare(
    "slice",
    "view",
    _slice_type,
    lambda x, starts, stops, steps: x[(..., *_slices(starts, stops, steps))],
    _view_into("slice"),
    (lambda g, y, x, **attrs: slice_scatter(zeros_like(x), g, **attrs),),
    doc="Basic slicing: one start, stop and step an axis, as slice.indices gives them.",
    geometry=slice_geometry,
)


def _place_into(view: Primitive) -> Any:
    """base with its `view` replaced by src. In place when out is base's own buffer."""

    def into(out: np.ndarray, base: np.ndarray, src: np.ndarray, **attrs: Any) -> None:
        if not same_buffer(out, base):
            np.copyto(out, base)
        np.copyto(view.array(out, **attrs), src)

    return into


def _scatter_view(name: str, view: Primitive, doc: str) -> Primitive:
    """Declare the transpose of a view: `base` with the view's elements replaced by `src`."""
    into = _place_into(view)

    def type_rule(base: TensorType, src: TensorType, **attrs: Any) -> TensorType:
        same_dtype(name, (base, src))
        place = view.infer((base,), attrs)
        if place.shape != src.shape:
            raise ShapeError(
                f"{name}: the value has shape {src.shape} but its place in {base.shape} has shape "
                f"{place.shape}; broadcast or reshape the value first"
            )
        return base

    def to_base(g: Any, y: Any, base: Any, src: Any, **attrs: Any) -> Any:
        return scatter(g, zeros_like(src), **attrs)

    def to_src(g: Any, y: Any, base: Any, src: Any, **attrs: Any) -> Any:
        return view(g, **attrs)

    scatter = declare(
        name, "scatter", type_rule, allocating(into), into, (to_base, to_src), doc=doc
    )
    return scatter


slice_scatter: Primitive = _scatter_view(
    "slice_scatter", slice_, "base with a slice replaced by src."
)

# ---- diagonal -----------------------------------------------------------------------------------


def _diagonal_type(x: TensorType, offset: int, axis1: int, axis2: int) -> TensorType:
    if not (0 <= axis1 < x.ndim and 0 <= axis2 < x.ndim and axis1 != axis2):
        raise ShapeError(f"diagonal: {axis1} and {axis2} are not two axes of {x.shape}")
    rest = [n for a, n in enumerate(x.shape) if a not in (axis1, axis2)]
    return x.with_shape([*rest, diagonal_size(x.shape[axis1], x.shape[axis2], offset)])


def _diagonal(x: np.ndarray, offset: int, axis1: int, axis2: int) -> np.ndarray:
    view = np.diagonal(x, offset, axis1, axis2)
    if x.flags.writeable:
        view.flags.writeable = True  # NumPy's own default is read-only; writes come through here
    return view


diagonal: Primitive = declare(
    "diagonal",
    "view",
    _diagonal_type,
    _diagonal,
    _view_into("diagonal"),
    (lambda g, y, x, **attrs: diagonal_scatter(zeros_like(x), g, **attrs),),
    doc="The diagonal of two axes, as the last axis.",
    geometry=diagonal_geometry,
)
diagonal_scatter: Primitive = _scatter_view(
    "diagonal_scatter", diagonal, "base with a diagonal replaced by src."
)

# ---- concat -------------------------------------------------------------------------------------


def _concat_type(*xs: TensorType, axis: int) -> TensorType:
    if not xs:
        raise ShapeError("concat: needs at least one tensor")
    same_dtype("concat", xs)
    first = xs[0].shape
    if not 0 <= axis < len(first):
        raise ShapeError(f"concat: {first} has no axis {axis}")
    for x in xs[1:]:
        if len(x.shape) != len(first) or any(
            m != n for a, (m, n) in enumerate(zip(first, x.shape)) if a != axis
        ):
            raise ShapeError(
                f"concat: shapes {first} and {x.shape} differ beyond axis {axis}; only the size of "
                f"that axis may differ"
            )
    size = sum(x.shape[axis] for x in xs)
    return xs[0].with_shape((*first[:axis], size, *first[axis + 1 :]))


def _concat_into(out: np.ndarray, *xs: np.ndarray, axis: int) -> None:
    np.concatenate(xs, axis, out=out)


def _concat(*xs: np.ndarray, axis: int) -> np.ndarray:
    shape = list(xs[0].shape)
    shape[axis] = sum(x.shape[axis] for x in xs)
    out = np.empty(shape, xs[0].dtype)  # concatenate alone would keep Fortran order
    np.concatenate(xs, axis, out=out)
    return out


def _concat_rule(operand: int) -> Rule:
    """The operand's own part of the cotangent."""

    def rule(g: Any, y: Any, *xs: Any, axis: int) -> Any:
        start = sum(x.shape[axis] for x in xs[:operand])
        return slice_axis(g, axis, start, start + xs[operand].shape[axis])

    return rule


concat: Primitive = declare(
    "concat",
    "concat",
    _concat_type,
    _concat,
    _concat_into,
    _concat_rule,
    doc="Tensors joined along an existing axis.",
)

# ---- helpers on any operand ---------------------------------------------------------------------


def slice_axis(x: Any, axis: int, start: int, stop: int, step: int = 1) -> Any:
    """x[start:stop:step] along one axis, normalised as slice.indices gives it."""
    starts, stops, steps = [0] * x.ndim, list(x.shape), [1] * x.ndim
    starts[axis], stops[axis], steps[axis] = start, stop, step
    return slice_(x, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))


def flip(x: Any, axis: int) -> Any:
    """x in reverse order along one axis."""
    return slice_axis(x, axis, x.shape[axis] - 1, -1, -1)


def replay(x: Any, chain: Chain) -> Any:
    """The view that `chain` takes of x."""
    for name, attrs in chain:
        x = TABLE[name](x, **attrs)
    return x


def scatter_back(x: Any, chain: Chain, value: Any) -> Any:
    """x with the view that `chain` takes of it replaced by `value`, which has the view's type.

    Raises MutationError for a chain with a broadcast, where several indices name one element.
    """
    if not chain:
        return value
    (name, attrs), rest = chain[0], chain[1:]
    if name == "broadcast":
        raise MutationError(
            f"cannot write through a broadcast view of shape {attrs['shape']}: several of its "
            f"indices name one element. Make it real memory first (clone or contiguous)"
        )
    inner = scatter_back(TABLE[name](x, **attrs), rest, value) if rest else value
    match name:
        case "slice":
            return slice_scatter(x, inner, **attrs)
        case "diagonal":
            return diagonal_scatter(x, inner, **attrs)
        case "reshape":
            return reshape(inner, shape=tuple(x.shape))
        case "permute":
            return permute(inner, perm=inverse(attrs["perm"]))
        case "detach":
            return inner
    raise DTypeError(f"scatter_back: {name} is not a view")
