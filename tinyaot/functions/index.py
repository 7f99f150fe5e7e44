"""`x[index]` and `x[index] = value`, as NumPy means them.

An index is split in two. Its basic part (ints, slices, None, Ellipsis) is a view: one `slice` and
one `reshape`. Its arrays then pick from that view with one `gather`, or replace in it with one
`scatter`; where their dims go in the result is NumPy's rule: in the place of the arrays if these
stand side by side (ints among them), else in front. A boolean mask is as many integer arrays as it
has dims; in a trace its length is unknown, so a mask can be assigned through (`where`), not read.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tinyaot import ops
from tinyaot.errors import IndexingError, ShapeError, TraceError
from tinyaot.functions.operands import (
    as_scalar,
    as_tensor,
    cast,
    constant,
    is_scalar,
    is_tracing,
)
from tinyaot.functions.views import reshaped
from tinyaot.shapes import Shape, bool_, broadcast_shapes, dtype_of, slice_sizes
from tinyaot.tensor import Tensor, engine

_HOW = "index with ints, slices, None, ..., integer arrays or boolean masks"


@dataclass(slots=True)
class Index:
    """An index taken apart. `arrays` pick along `axes` of the basic view, whose dims are `shape`;
    `place` is where their dims go among the others."""

    starts: list[int] = field(default_factory=list)
    stops: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    shape: list[int] = field(default_factory=list)
    arrays: list[Any] = field(default_factory=list)
    axes: list[int] = field(default_factory=list)
    place: int = 0

    def take(self, start: int, stop: int, step: int = 1) -> None:
        """Slice the next axis."""
        self.starts.append(start)
        self.stops.append(stop)
        self.steps.append(step)

    def basic_view(self, x: Tensor) -> Tensor:
        """The view that the basic part takes of x: always a new tensor if there are no arrays."""
        starts, stops, steps = tuple(self.starts), tuple(self.stops), tuple(self.steps)
        shape, same = tuple(self.shape), (0,) * x.ndim
        whole = starts == same and stops == x.shape and all(k == 1 for k in steps)
        if not whole or (shape == x.shape and not self.arrays):
            x = ops.slice(x, starts=starts, stops=stops, steps=steps)
        return x if x.shape == shape else ops.reshape(x, shape=shape)


# ---- reading ------------------------------------------------------------------------------------


def getitem(x: Tensor, index: Any) -> Tensor:
    """x[index]: a view for a basic index, otherwise a copy of what the arrays pick.

    Raises IndexingError for an index out of range or of the wrong kind, and TraceError for a mask
    under a trace (the shape of the result would depend on the data).
    """
    plain = _plain_view(x, index)
    if plain is not None:
        return plain
    parsed = parse(x, _items(x, index))
    view = parsed.basic_view(x)
    if not parsed.arrays:
        return view
    picked = ops.gather(view, *parsed.arrays, axes=tuple(parsed.axes))
    rest = view.ndim - len(parsed.axes)
    lead = picked.ndim - rest
    if parsed.place == 0 or lead == 0:
        return picked
    order = _result_order(lead, rest, parsed.place)
    return ops.copy(ops.permute(picked, perm=order))


def _plain_view(x: Tensor, index: Any) -> Tensor | None:
    """The view of an index that is ints and slices in range, the most common; None for others."""
    items = index if type(index) is tuple else (index,)
    shape = x.shape
    rest = shape[len(items) :]
    starts, stops, steps, kept = [], [], [], []
    for item, n in zip(items, shape):
        if type(item) is int and -n <= item < n:
            start, stop, step = item % n, item % n + 1, 1
        elif type(item) is slice and item.step != 0:
            start, stop, step = item.indices(n)
            kept.append(len(range(start, stop, step)))
        else:
            return None
        starts.append(start)
        stops.append(stop)
        steps.append(step)
    if len(items) > len(shape):
        return None
    ends = len(rest)
    view: Tensor = ops.slice(
        x, starts=(*starts, *(0,) * ends), stops=(*stops, *rest), steps=(*steps, *(1,) * ends)
    )
    return view if len(kept) == len(items) else ops.reshape(view, shape=(*kept, *rest))


def _result_order(lead: int, rest: int, place: int) -> Shape:
    """The dims of gather's result (the arrays' `lead` dims first) in the order of x[index]."""
    others = tuple(range(lead, lead + rest))
    return (*others[:place], *range(lead), *others[place:])


# ---- writing ------------------------------------------------------------------------------------


def setitem(x: Tensor, index: Any, value: Any) -> None:
    """x[index] = value, in place: the value is cast to x's dtype and broadcast.

    Where an array names an element twice, the last value stays. Raises IndexingError for a bad
    index, ShapeError for a value that does not broadcast to the elements.
    """
    value = _cast_value(value, x)
    plain = _plain_view(x, index)
    if plain is not None:
        _assign(plain, value)
        return
    items = _items(x, index)
    mask = _only_mask(items)
    parsed = parse(x, items, keep_mask=mask is not None)
    view = parsed.basic_view(x)
    if mask is not None:
        fitted = _fit_mask(view, mask, parsed.axes[0], value)
        if fitted is not None:
            engine().write(view, ops.where(fitted[0], fitted[1], view))
            return
        parsed = parse(x, items)
    if not parsed.arrays:
        _assign(view, value)
        return
    axes = tuple(parsed.axes)
    picks = broadcast_shapes("setitem", *(a.shape for a in parsed.arrays))
    others = tuple(n for a, n in enumerate(view.shape) if a not in axes)
    place = parsed.place if picks else 0
    source = _fit(value, (*others[:place], *picks, *others[place:]))
    order = _result_order(len(picks), len(others), place)
    inverse = tuple(order.index(a) for a in range(len(order)))
    if inverse != tuple(range(len(inverse))):
        source = ops.permute(source, perm=inverse)
    engine().write(view, ops.scatter(view, source, *parsed.arrays, axes=axes, mode="set"))


def _cast_value(value: Any, x: Tensor) -> Tensor:
    if is_scalar(value):
        return constant(as_scalar("setitem", value, x.dtype), x.dtype)
    return cast(as_tensor("setitem", value), x.dtype)


def _fit(value: Tensor, shape: Shape) -> Tensor:
    """The value broadcast to `shape`; surplus leading dims of size 1 are dropped, as in NumPy."""
    own = value.shape
    while len(own) > len(shape) and own[0] == 1:
        own = own[1:]
    aligned = shape[len(shape) - len(own) :]
    if len(own) > len(shape) or any(n not in (1, m) for n, m in zip(own, aligned)):
        raise ShapeError(
            f"setitem: a value of shape {value.shape} does not broadcast to the elements assigned "
            f"to, which have shape {shape}"
        )
    if own != value.shape:
        value = ops.reshape(value, shape=own)
    return value if own == shape else ops.broadcast(value, shape=shape)


def _assign(view: Tensor, value: Tensor) -> None:
    """Write a value; but where `x[i] += v` assigns a view, already written, to itself, only ask
    whether it may be."""
    if value._history is view._history and value._chain == view._chain:
        engine().check_write(view, view)
    else:
        engine().write(view, _fit(value, view.shape))


def _only_mask(items: list[Any]) -> Tensor | None:
    """The mask, if it is a Tensor and no other array, nor an int apart from it, is in the index."""
    spots = [n for n, i in enumerate(items) if isinstance(i, (int, Tensor, np.ndarray))]
    arrays = [items[n] for n in spots if not isinstance(items[n], int)]
    if len(arrays) != 1 or not isinstance(arrays[0], Tensor) or arrays[0].dtype is not bool_:
        return None
    return arrays[0] if spots[-1] - spots[0] == len(spots) - 1 else None


def _fit_mask(view: Tensor, mask: Tensor, axis: int, value: Tensor) -> tuple[Tensor, Tensor] | None:
    """Mask and value shaped for `where` over the view, or None if the value has one entry for each
    True of the mask. The mask lies over the view's dims from `axis` on."""
    after = view.ndim - axis - mask.ndim
    mask = reshaped(mask, (*mask.shape, *(1,) * after))
    if value.ndim > after:
        here = value.ndim - after - 1  # the dim that stands for the True elements
        if value.shape[here] != 1:
            return None
        spread = (*value.shape[:here], *(1,) * (view.ndim - axis - after), *value.shape[here + 1 :])
        value = ops.reshape(value, shape=spread)
    return mask, _fit(value, view.shape)


# ---- taking an index apart ----------------------------------------------------------------------


def _items(x: Tensor, index: Any) -> list[Any]:
    """The entries of an index: ints, slices, None, one Ellipsis, arrays and tensors."""
    found = [_item(i) for i in (index if isinstance(index, tuple) else (index,))]
    if sum(i is Ellipsis for i in found) > 1:
        raise IndexingError(f"index: only one ... may stand in an index of a {x.type} tensor")
    return found


def _item(i: Any) -> Any:
    if i is None or i is Ellipsis or isinstance(i, slice):
        return i
    if isinstance(i, (bool, np.bool_)):
        raise IndexingError(f"index: {i} is not an index; {_HOW}, or use where")
    if isinstance(i, (list, range)):
        i = np.asarray(i) if len(i) else np.zeros(0, np.int64)
    if isinstance(i, (Tensor, np.ndarray)):
        kind = i.dtype.kind
        if kind not in ("bool", "int", "b", "i", "u"):
            name = dtype_of(i.dtype).name
            raise IndexingError(
                f"index: an array of {name} is not an index; cast to int64, or {_HOW}"
            )
        if i.ndim == 0 and kind in ("bool", "b"):
            raise IndexingError(f"index: a mask without dims is not an index; {_HOW}, or use where")
        return int(i) if isinstance(i, np.ndarray) and i.ndim == 0 else i
    try:
        return operator.index(i)
    except TypeError:
        raise IndexingError(f"index: a {type(i).__name__} is not an index; {_HOW}") from None


def _dims_taken(item: Any) -> int:
    if item is None or item is Ellipsis:
        return 0
    return item.ndim if _is_mask(item) else 1


def _is_mask(item: Any) -> bool:
    if isinstance(item, Tensor):
        return item.dtype is bool_
    return isinstance(item, np.ndarray) and item.dtype == np.bool_


def parse(x: Tensor, items: list[Any], keep_mask: bool = False) -> Index:
    """Take an index of x apart. `keep_mask`: leave out the mask itself, noting only its axes."""
    taken = sum(map(_dims_taken, items))
    if taken > x.ndim:
        raise IndexingError(
            f"index: {taken} indices for a tensor of shape {x.shape}, which takes at most {x.ndim}"
        )
    if not any(i is Ellipsis for i in items):
        items = [*items, Ellipsis]
    found = Index()
    spots: list[int] = []  # positions in the index of arrays and ints
    places: list[int] = []  # how many dims of the result stand before each of them
    for spot, item in enumerate(items):
        before = len(found.shape) - len(found.axes)
        if item is None:
            found.shape.append(1)
        elif item is Ellipsis:
            for _ in range(x.ndim - taken):
                n = x.shape[len(found.starts)]
                found.take(0, n)
                found.shape.append(n)
        elif isinstance(item, slice):
            _take_slice(found, item, x)
        else:
            spots.append(spot)
            places.append(before)
            if isinstance(item, int):
                _take_int(found, item, x)
            elif _is_mask(item):
                _take_mask(found, item, x, keep_mask)
            else:
                _take_axis(found, x)
                found.arrays.append(as_tensor("index", item))
    if found.arrays:
        _check_broadcast(found.arrays)
        if spots == list(range(spots[0], spots[0] + len(spots))):
            found.place = places[0]
    return found


def _take_slice(found: Index, item: slice, x: Tensor) -> None:
    n = x.shape[len(found.starts)]
    try:
        start, stop, step = item.indices(n)
    except TraceError:
        raise
    except (TypeError, ValueError) as error:
        raise IndexingError(f"index: {item} cannot slice a dim of size {n}: {error}") from None
    found.take(start, stop, step)
    found.shape.append(slice_sizes((start,), (stop,), (step,))[0])


def _take_int(found: Index, item: int, x: Tensor) -> None:
    axis = len(found.starts)
    n = x.shape[axis]
    if not -n <= item < n:
        raise IndexingError(
            f"index: {item} is out of range for dim {axis} of size {n} in shape {x.shape}"
        )
    found.take(item % n, item % n + 1)


def _take_axis(found: Index, x: Tensor) -> None:
    n = x.shape[len(found.starts)]
    found.axes.append(len(found.shape))
    found.take(0, n)
    found.shape.append(n)


def _take_mask(found: Index, mask: Any, x: Tensor, keep: bool) -> None:
    axis = len(found.starts)
    covered = x.shape[axis : axis + mask.ndim]
    if tuple(mask.shape) != covered:
        raise IndexingError(
            f"index: a mask of shape {tuple(mask.shape)} cannot pick from dims of shape {covered} "
            f"(of a tensor of shape {x.shape}); they must be equal"
        )
    for _ in range(mask.ndim):
        _take_axis(found, x)
    if not keep:
        found.arrays.extend(Tensor(i) for i in np.nonzero(_concrete_mask(mask)))


def _concrete_mask(mask: Any) -> np.ndarray:
    if isinstance(mask, np.ndarray):
        return mask
    if is_tracing():
        raise TraceError(
            f"index: how many elements a mask of shape {mask.shape} picks is not known in a trace; "
            f"use where(mask, a, b), masked_fill, or the assignment x[mask] = value"
        )
    return mask._data  # type: ignore[no-any-return]


def _check_broadcast(arrays: Sequence[Tensor]) -> None:
    try:
        broadcast_shapes("index", *(a.shape for a in arrays))
    except ShapeError:
        shapes = " and ".join(str(a.shape) for a in arrays)
        raise IndexingError(
            f"index: index arrays of shapes {shapes} do not broadcast; to pick rows and columns "
            f"independently, give one of them a new dim (i[:, None])"
        ) from None
