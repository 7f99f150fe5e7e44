"""Reductions and scans, and `broadcast`, the transpose of `sum`.

A reduction keeps its axes with size 1, so that its result fits its operand again by broadcasting.
float16 and bfloat16 accumulate in float32. The gradients of products never divide by an operand,
so zeros need no special case: each element's factor is the product of the others, made of
exclusive scans (Blelloch, "Prefix sums and their applications", 1990).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinyaot.errors import DTypeError, ShapeError
from tinyaot.ops.core import Attrs, Primitive, Rule, allocating, declare, elements_in, is_half
from tinyaot.ops.elementwise import ANY, NUMBER, add, cast, div, eq, mul
from tinyaot.ops.leaf import full
from tinyaot.ops.views import concat, flip, inverse, permute, reshape, slice_axis
from tinyaot.shapes import Shape, TensorType, broadcast_geometry, int64

# ---- broadcast, the transpose of sum ------------------------------------------------------------


def _broadcast_type(x: TensorType, shape: Shape) -> TensorType:
    lead = len(shape) - x.ndim
    if lead < 0 or any(m != n and m != 1 for m, n in zip(x.shape, shape[max(lead, 0) :])):
        raise ShapeError(
            f"broadcast: shape {x.shape} does not expand to {tuple(shape)}: aligned from the "
            f"right, a size must be equal or 1"
        )
    return x.with_shape(shape)


broadcast: Primitive = declare(
    "broadcast",
    "view",
    _broadcast_type,
    lambda x, shape: np.broadcast_to(x, shape),
    lambda out, x, shape: np.copyto(out, x),
    (lambda g, y, x, shape: unbroadcast(g, tuple(x.shape)),),
    doc="Axes of size 1, and new leading ones, repeated (stride 0).",
    geometry=broadcast_geometry,
)


def unbroadcast(g: Any, shape: Shape) -> Any:
    """Sum `g` over the axes that broadcasting from `shape` added or expanded."""
    if tuple(g.shape) == tuple(shape):
        return g
    lead = g.ndim - len(shape)
    axes = [*range(lead)]
    axes += [a for a, n in enumerate(shape, lead) if n == 1 and g.shape[a] != 1]
    if axes:
        g = sum_(g, axes=tuple(axes))
    return reshape(g, shape=tuple(shape)) if tuple(g.shape) != tuple(shape) else g


def pull(
    primitive: Primitive, operand: int, g: Any, y: Any, operands: Sequence[Any], attrs: Attrs
) -> Any:
    """The cotangent of an operand, by its vjp rule, from that of the result y; None if it has none.
    A map broadcasts its operands, so what the rule gives is summed over the axes that this added.
    """
    rule = primitive.rule(operand)
    found = None if rule is None else rule(g, y, *operands, **attrs)
    if found is not None and primitive.kind == "map":
        found = unbroadcast(found, operands[operand].shape)
    return found


# ---- reductions ---------------------------------------------------------------------------------


def _reduce(
    name: str,
    ufunc: np.ufunc,
    rule: Rule,
    kinds: tuple[str, ...],
    doc: str,
    accumulates: bool = True,
) -> Primitive:
    """Declare a reduction by a ufunc. `accumulates`: it rounds, so halves go through float32;
    if not, it picks an element, so there must be one."""

    def type_rule(x: TensorType, axes: Shape) -> TensorType:
        if x.dtype.kind not in kinds:
            raise DTypeError(
                f"{name} is not defined for {x.dtype.name} (it takes {' or '.join(kinds)}); "
                f"cast first"
            )
        if list(axes) != sorted(set(axes)) or any(not 0 <= a < x.ndim for a in axes):
            raise ShapeError(f"{name}: axes {tuple(axes)} are not distinct axes of {x.shape}")
        if not accumulates and any(x.shape[a] == 0 for a in axes):
            raise ShapeError(f"{name}: shape {x.shape} has no elements along axes {tuple(axes)}")
        return x.with_shape([1 if a in axes else n for a, n in enumerate(x.shape)])

    def into(out: np.ndarray, x: np.ndarray, axes: Shape) -> None:
        if accumulates and is_half(x.dtype):
            wide = ufunc.reduce(x, axis=axes, dtype=np.float32, keepdims=True)
            np.copyto(out, wide, casting="same_kind")
        else:
            # The dtype is said, since NumPy would add small integers in 64 bits.
            ufunc.reduce(x, axis=axes, dtype=x.dtype, out=out, keepdims=True)

    def array(x: np.ndarray, axes: Shape) -> np.ndarray:
        out = np.empty([1 if a in axes else n for a, n in enumerate(x.shape)], x.dtype)
        into(out, x, axes)
        return out

    def scratch(ins: Sequence[TensorType], out: TensorType, attrs: Attrs) -> int:
        return 4 * out.size if accumulates and is_half(out.dtype.numpy) else 0

    return declare(
        name,
        "reduce",
        type_rule,
        array,
        into,
        (rule,),
        elements_in,
        doc=doc,
        scratch=scratch,
        ufunc=ufunc,
    )


def _prod_rule(g: Any, y: Any, x: Any, axes: Shape) -> Any:
    # Each element's factor is the product of all the others: those before it times those after.
    rest = tuple(a for a in range(x.ndim) if a not in axes)
    perm = rest + tuple(axes)
    rows = tuple(x.shape[a] for a in rest)
    along = permute(x, perm=perm)
    columns = tuple(along.shape[len(rest) :])
    flat = reshape(along, shape=(*rows, math.prod(columns)))
    axis = len(rest)
    others = mul(_before(flat, axis), flip(_before(flip(flat, axis), axis), axis))
    return mul(g, permute(reshape(others, shape=(*rows, *columns)), perm=inverse(perm)))


def _before(x: Any, axis: int) -> Any:
    """Each element becomes the product of those before it (an exclusive cumprod)."""
    ones = list(x.shape)
    ones[axis] = 1
    shifted = concat(full(value=1.0, shape=tuple(ones), dtype=x.dtype), x, axis=axis)
    return cumprod(slice_axis(shifted, axis, 0, x.shape[axis]), axis=axis)


def _extreme_rule(g: Any, y: Any, x: Any, axes: Shape) -> Any:
    # Ties share equally (torch.amax).
    winners = cast(eq(x, y), dtype=x.dtype)
    return mul(winners, div(g, sum_(winners, axes=axes)))


sum_: Primitive = _reduce(
    "sum",
    np.add,
    lambda g, y, x, axes: broadcast(g, shape=tuple(x.shape)),
    NUMBER,
    "The sum along axes, kept with size 1.",
)
prod: Primitive = _reduce("prod", np.multiply, _prod_rule, NUMBER, "The product along axes.")
amax: Primitive = _reduce("amax", np.maximum, _extreme_rule, ANY, "The greatest along axes.", False)
amin: Primitive = _reduce("amin", np.minimum, _extreme_rule, ANY, "The least along axes.", False)


def _arg_reduce(name: str, function: Callable[..., Any], doc: str) -> Primitive:
    """Declare the position of an extreme along one axis: the first of ties; NaN wins."""

    def type_rule(x: TensorType, axis: int) -> TensorType:
        check_axis(name, x, axis)
        if x.shape[axis] == 0:
            raise ShapeError(f"{name}: shape {x.shape} has no elements along axis {axis}")
        shape = [1 if a == axis else n for a, n in enumerate(x.shape)]
        return TensorType(int64, tuple(shape))

    def into(out: np.ndarray, x: np.ndarray, axis: int) -> None:
        function(x, axis=axis, out=out, keepdims=True)

    def array(x: np.ndarray, axis: int) -> np.ndarray:
        out = np.empty([1 if a == axis else n for a, n in enumerate(x.shape)], np.int64)
        into(out, x, axis)
        return out

    def scratch(ins: Sequence[TensorType], out: TensorType, attrs: Attrs) -> int:
        # NumPy copies the operand so that the axis is last.
        return 0 if attrs["axis"] == ins[0].ndim - 1 else ins[0].nbytes

    return declare(
        name, "reduce", type_rule, array, into, None, elements_in, doc=doc, scratch=scratch
    )


def check_axis(name: str, x: TensorType, axis: int) -> None:
    """ShapeError unless `axis` is an axis of x, counted from 0."""
    if not 0 <= axis < x.ndim:
        raise ShapeError(f"{name}: shape {x.shape} has no axis {axis}")


argmax = _arg_reduce("argmax", np.argmax, "Where the greatest is along an axis, kept with size 1.")
argmin = _arg_reduce("argmin", np.argmin, "Where the least is along an axis, kept with size 1.")

# ---- scans --------------------------------------------------------------------------------------


def _scan(name: str, ufunc: np.ufunc, rule: Rule, doc: str) -> Primitive:
    """Declare an inclusive scan by a ufunc along one axis."""

    def type_rule(x: TensorType, axis: int) -> TensorType:
        if x.dtype.kind == "bool":
            raise DTypeError(f"{name} is not defined for bool; cast first")
        check_axis(name, x, axis)
        return x

    def into(out: np.ndarray, x: np.ndarray, axis: int) -> None:
        if is_half(x.dtype):
            wide = ufunc.accumulate(x, axis=axis, dtype=np.float32)
            np.copyto(out, wide, casting="same_kind")
        else:
            ufunc.accumulate(x, axis=axis, dtype=x.dtype, out=out)

    def scratch(ins: Sequence[TensorType], out: TensorType, attrs: Attrs) -> int:
        return 8 * out.size if is_half(out.dtype.numpy) else 0

    return declare(
        name,
        "scan",
        type_rule,
        allocating(into),
        into,
        (rule,),
        elements_in,
        doc=doc,
        scratch=scratch,
        ufunc=ufunc,
    )


def _cumprod_rule(g: Any, y: Any, x: Any, axis: int) -> Any:
    # d y_i / d x_k is the product of x_0 .. x_i without x_k, so the cotangent of x_k is
    # (x_0 .. x_{k-1}) * s_k with s_k = g_k + x_{k+1} * s_{k+1}, a linear recurrence from the end.
    size = x.shape[axis]
    following = slice_axis(concat(x, zeros_row(x, axis), axis=axis), axis, 1, size + 1)
    return mul(_before(x, axis), _recurrence(g, following, axis))


def zeros_row(x: Any, axis: int, count: int = 1) -> Any:
    """Zeros shaped like x but for `count` along `axis`."""
    shape = list(x.shape)
    shape[axis] = count
    return full(value=0.0, shape=tuple(shape), dtype=x.dtype)


def _recurrence(a: Any, b: Any, axis: int) -> Any:
    """s_k = a_k + b_k * s_{k+1}, in log2(size) rounds of doubling reach (Hillis and Steele)."""
    size, reach = a.shape[axis], 1
    while reach < size:
        # s_k = a_k + b_k * s_{k+reach}: substitute the same for s_{k+reach}.
        ahead_a, ahead_b = (
            slice_axis(concat(v, zeros_row(v, axis, reach), axis=axis), axis, reach, size + reach)
            for v in (a, b)
        )
        a, b = add(a, mul(b, ahead_a)), mul(b, ahead_b)
        reach *= 2
    return a


cumsum: Primitive = _scan(
    "cumsum",
    np.add,
    lambda g, y, x, axis: flip(cumsum(flip(g, axis), axis=axis), axis),
    "The sum of all elements up to each one along an axis.",
)
cumprod: Primitive = _scan(
    "cumprod",
    np.multiply,
    _cumprod_rule,
    "The product of all elements up to each one along an axis.",
)

# ---- argsort ------------------------------------------------------------------------------------


def _argsort_type(x: TensorType, axis: int, descending: bool) -> TensorType:
    check_axis("argsort", x, axis)
    return x.with_dtype(int64)


def _argsort(x: np.ndarray, axis: int, descending: bool) -> np.ndarray:
    out = np.empty(x.shape, np.int64)
    _argsort_into(out, x, axis, descending)
    return out


def _argsort_into(out: np.ndarray, x: np.ndarray, axis: int, descending: bool) -> None:
    if is_half(x.dtype):  # NumPy does not know bfloat16's NaN
        x = x.astype(np.float32)
    if descending:
        # Sorting the reversed array and reversing again keeps ties in their order.
        order = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
        np.subtract(x.shape[axis] - 1, np.flip(order, axis), out=out)
    else:
        np.copyto(out, np.argsort(x, axis=axis, kind="stable"))


def _argsort_scratch(ins: Sequence[TensorType], out: TensorType, attrs: Attrs) -> int:
    x, axis = ins[0], attrs["axis"]
    half, n = is_half(x.dtype.numpy), x.shape[axis]
    item = max(x.dtype.itemsize, 4 * half)
    # NumPy sorts a lane that has gaps, or is reversed, in a copy.
    lane = (8 + item) * n if axis < x.ndim - 1 else item * n * attrs["descending"]
    return out.nbytes + lane + 4 * x.size * half


argsort: Primitive = declare(
    "argsort",
    "scan",
    _argsort_type,
    _argsort,
    _argsort_into,
    None,
    elements_in,
    doc="The indices that sort along an axis. Ties keep their order; NaN is the greatest.",
    scratch=_argsort_scratch,
)
