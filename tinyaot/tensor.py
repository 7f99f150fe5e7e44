"""Tensor: what a user holds. Its bytes, who shares them, and what of them the tape has saved.

Three things are kept apart:

- the *storage*: bytes, shared by a tensor and all its views, with the handles of values that a
  backward still needs;
- the *history*: the autograd identity of a base and its views. `detach` gives a new history on the
  same storage. A view is a chain of view primitives from its history's base;
- the tensor: an array seen through that chain.

A write through any view first moves the handles it would overwrite to a snapshot, so a gradient is
always that of the values the forward used (where torch keeps version counters and raises, see
"In-place correctness checks" in its autograd notes).

Everything that depends on the mode (eager or traced) is asked of the engine in force.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, cast

import numpy as np

from tinyaot.errors import DTypeError, GradError, ShapeError
from tinyaot.ops.core import Engine, mode
from tinyaot.shapes import DType, Geometry, Shape, TensorType, numpy_to_dtype

Chain: TypeAlias = tuple[tuple[str, dict[str, Any]], ...]  # views from the base: (primitive, attrs)
# Where a cotangent goes: a tape node and which of its results, or a leaf tensor, or nowhere.
Edge: TypeAlias = "tuple[Any, int] | Tensor | None"


class SavedHandle:
    """A value saved for backward. `array` is the tensor's own bytes, in `storage`, until somebody
    writes them; then a snapshot, which nobody writes."""

    __slots__ = ("__weakref__", "array", "edge", "storage")

    def __init__(self, array: Any, edge: Edge, storage: Storage | None = None) -> None:
        self.array = array
        self.edge = edge
        self.storage = storage


class Storage:
    """The identity of some bytes. `foreign`: others can write them without telling us."""

    __slots__ = ("__weakref__", "foreign", "handles", "prune_at")

    snapshot_bytes = 0  # copied by all writes so far, for reports

    def __init__(self, foreign: bool = False) -> None:
        self.handles: list[weakref.ref[SavedHandle]] = []
        self.prune_at = 8
        self.foreign = foreign

    def save(self, array: Any, edge: Edge) -> SavedHandle:
        """A handle on `array` (a view of these bytes), kept right across writes."""
        if self.foreign:
            return SavedHandle(array.copy(), edge)
        handle = SavedHandle(array, edge, self)
        self.handles.append(weakref.ref(handle))
        if len(self.handles) > self.prune_at:
            self.handles = [r for r in self.handles if r() is not None]
            self.prune_at = 2 * len(self.handles) + 8
        return handle

    def before_write(self, target: np.ndarray) -> None:
        """Move the live handles that `target` overlaps to snapshots, one copy for equal views."""
        if not self.handles:
            return
        snapshots: dict[Any, np.ndarray] = {}
        kept = []
        for ref in self.handles:
            handle = ref()
            if handle is None:
                continue
            old = handle.array
            if not np.may_share_memory(old, target):
                kept.append(ref)
                continue
            key = old.__array_interface__["data"][0], old.shape, old.strides
            if key not in snapshots:
                snapshots[key] = old.copy()
                Storage.snapshot_bytes += old.nbytes
            handle.array, handle.storage = snapshots[key], None
        self.handles = kept


class History:
    """The autograd identity shared by a base tensor and its views.

    `edge` leads to the tape node that made the base's current value (None for a leaf); `version`
    counts the visible writes, so that a view knows when its own edge is stale; `base` is the data
    of the base, known from the first view on; `repeated`, whether it was cut from a view of
    something expanded, so that a write would show in other places, too.
    """

    __slots__ = ("base", "edge", "repeated", "requires_grad", "storage", "version")

    def __init__(self, requires_grad: bool = False, storage: Storage | None = None) -> None:
        self.edge: Edge = None
        self.requires_grad = requires_grad
        self.storage = storage
        self.version = 0
        self.base: Any = None
        self.repeated = False

    def get_storage(self) -> Storage:
        if self.storage is None:
            self.storage = Storage()
        return self.storage


class TensorEngine(Engine, Protocol):
    """What a mode decides about tensors: implemented by the eager tape and by the tracer."""

    def edge(self, tensor: Tensor) -> Edge: ...
    def resolve(self, tensor: Tensor) -> Tensor: ...
    def get_grad(self, tensor: Tensor) -> Tensor | None: ...
    def set_grad(self, tensor: Tensor, value: Tensor | None) -> None: ...
    def requires_grad_(self, tensor: Tensor, value: bool) -> None: ...
    def retain_grad(self, tensor: Tensor) -> None: ...
    def detach(self, tensor: Tensor) -> Tensor: ...
    def detach_(self, tensor: Tensor) -> None: ...
    def check_write(self, dst: Tensor, src: Tensor) -> None: ...
    def write(self, dst: Tensor, src: Tensor) -> None: ...
    def literal(self, array: np.ndarray) -> Tensor: ...
    def random_bits(self, shape: Shape) -> Tensor: ...
    def hyper(self, owner: Any, name: str) -> Any: ...
    def touch_hyper(self, owner: Any, name: str, assigned: bool) -> None: ...
    def concrete(self, tensor: Tensor, what: str) -> np.ndarray: ...
    def backward(
        self, tensor: Tensor, gradient: Tensor | None, retain_graph: bool, create_graph: bool
    ) -> None: ...
    def grad(
        self,
        outputs: Sequence[Tensor],
        inputs: Sequence[Tensor],
        cotangents: Sequence[Tensor | None],
        retain_graph: bool,
        create_graph: bool,
    ) -> list[Tensor | None]: ...


def engine() -> TensorEngine:
    """The engine in force: the eager tape or the tracer."""
    return cast(TensorEngine, mode.engine)


class NotKept:
    """What `.grad` holds after a compiled step that did not keep gradients."""


NOT_KEPT = NotKept()


class Tensor:
    """An n-dimensional array that records its history.

    Made by `tinyaot.tensor`, `zeros`, ... and by functions of tensors. `Tensor(array)` wraps an
    ndarray without a copy. Operators and methods follow torch's names and NumPy's broadcasting.
    """

    __slots__ = (
        "__weakref__",
        "_chain",
        "_data",
        "_edge",
        "_grad",
        "_history",
        "_version",
    )
    __array_priority__ = 1000  # ndarray * Tensor asks the Tensor
    __hash__ = object.__hash__

    def __init__(self, data: Any, requires_grad: bool = False) -> None:
        self._data = data
        self._history = History(requires_grad)
        self._chain: Chain = ()
        self._edge: Edge = None  # a view's own edge, as of `_version`
        self._version = 0
        self._grad: Tensor | NotKept | None = None

    # ---- what it is -----------------------------------------------------------------------------

    @property
    def shape(self) -> Shape:
        return self._data.shape  # type: ignore[no-any-return]

    @property
    def dtype(self) -> DType:
        return numpy_to_dtype(self._data.dtype)

    @property
    def type(self) -> TensorType:
        """Dtype and shape, as the IR prints them."""
        return TensorType(self.dtype, self.shape)

    @property
    def ndim(self) -> int:
        return len(self._data.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(self._data.size)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.size * self.dtype.itemsize

    @property
    def device(self) -> str:
        return "cpu"

    @property
    def is_traced(self) -> bool:
        """Whether this stands for a value of a program being traced."""
        return not isinstance(self._data, np.ndarray)

    @property
    def _geometry(self) -> Geometry:
        """Shape, strides and offset in elements; the offset is 0 outside a trace."""
        data = self._data
        if isinstance(data, np.ndarray):
            return Geometry(data.shape, tuple(s // data.itemsize for s in data.strides))
        return data.geometry  # type: ignore[no-any-return]

    def is_contiguous(self) -> bool:
        """Whether the elements lie in C order without gaps."""
        data = self._data
        if isinstance(data, np.ndarray):
            return data.flags.c_contiguous
        return data.geometry.is_contiguous  # type: ignore[no-any-return]

    # ---- autograd -------------------------------------------------------------------------------

    @property
    def requires_grad(self) -> bool:
        return engine().edge(self) is not None

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    @property
    def is_leaf(self) -> bool:
        """Whether no recorded operation made it: gradients accumulate in `.grad` of leaves."""
        edge = engine().edge(self)
        return edge is None or edge is engine().resolve(self)

    @property
    def grad_fn(self) -> Any:
        """The tape node that made this tensor, or None."""
        edge = engine().edge(self)
        return edge[0] if isinstance(edge, tuple) else None

    @property
    def grad(self) -> Tensor | None:
        """The accumulated gradient, or None.

        Raises GradError after a compiled training step that did not keep gradients.
        """
        return engine().get_grad(self)

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None:
            if not isinstance(value, Tensor):
                raise GradError(f"grad must be a Tensor or None, got {type(value).__name__}")
            if value.shape != self.shape or value.dtype is not self.dtype:
                raise GradError(f"grad must be a {self.type} like its tensor, got {value.type}")
        engine().set_grad(self, value)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Ask for (or stop asking for) a gradient, in place. Leaves of a float dtype only."""
        engine().requires_grad_(self, requires_grad)
        return self

    def retain_grad(self) -> None:
        """Keep the gradient of this non-leaf tensor in `.grad`, too."""
        engine().retain_grad(self)

    def detach(self) -> Tensor:
        """The same bytes, cut from the tape: writes reach both, gradients only the original."""
        return engine().detach(self)

    def detach_(self) -> Tensor:
        """Cut this tensor itself from the tape."""
        engine().detach_(self)
        return self

    def backward(
        self,
        gradient: Tensor | None = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
    ) -> None:
        """Accumulate the gradient of this tensor into `.grad` of the leaves it depends on.

        `gradient`: the cotangent, of this tensor's shape; may be left out for one element.
        Raises GradError when nothing requires grad, or the graph was freed by an earlier call.
        """
        keep = create_graph if retain_graph is None else retain_graph
        engine().backward(self, gradient, keep, create_graph)

    # ---- leaving tinyaot ------------------------------------------------------------------------

    def _concrete(self, what: str) -> np.ndarray:
        return engine().concrete(self, what)

    def numpy(self) -> np.ndarray:
        """A read-only NumPy view of the elements (no copy); tensors that require grad, too."""
        view = self._concrete("numpy()").view()
        view.flags.writeable = False
        return view

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.numpy()
        if dtype is not None and np.dtype(dtype) != array.dtype:
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack__(self, **options: Any) -> Any:
        array = self._concrete("__dlpack__")
        self._history.get_storage().foreign = True  # its reader may write
        return array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def item(self) -> bool | int | float:
        """The only element, as a Python number. Raises ShapeError for other sizes."""
        return self._only("item()")

    def _only(self, what: str) -> bool | int | float:
        array = self._concrete(what)
        if array.size != 1:
            raise ShapeError(
                f"{what.removesuffix('()')}: needs one element, got shape {self.shape}; use "
                f"tolist() for all of them"
            )
        return array.item()  # type: ignore[no-any-return]

    def tolist(self) -> Any:
        """The elements as nested Python lists (a number, for 0 dimensions)."""
        return self._concrete("tolist()").tolist()

    def __bool__(self) -> bool:
        array = self._concrete("bool()")
        if array.size != 1:
            raise ShapeError(
                f"bool: a tensor of shape {self.shape} has no truth; use any() or all()"
            )
        return bool(array)

    def __float__(self) -> float:
        return float(self._only("float()"))

    def __int__(self) -> int:
        return int(self._only("int()"))

    def __index__(self) -> int:
        if self.dtype.kind == "float" or self.size != 1:
            raise DTypeError(f"only an integer tensor of one element is an int, got {self.type}")
        return int(self._only("int()"))

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec and self.size == 1 else format(str(self), spec)

    def __repr__(self) -> str:
        if self.is_traced:
            return f"traced({self._data.value}: {self.type})"
        parts = [np.array2string(self._data, separator=", ", prefix="tensor(", threshold=1000)]
        if self.dtype.name not in ("float32", "int64", "bool"):
            parts.append(f"dtype={self.dtype!r}")
        edge = engine().edge(self)
        if isinstance(edge, tuple):
            parts.append(f"grad_fn=<{edge[0].name}>")
        elif edge is not None:
            parts.append("requires_grad=True")
        return f"tensor({', '.join(parts)})"

    # ---- copies ---------------------------------------------------------------------------------

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        """A leaf with bytes of its own, as torch allows it for leaves only."""
        if not self.is_leaf:
            raise GradError("only leaf tensors can be deep-copied; detach() it first")
        array = self._concrete("copy.deepcopy").copy()
        new = _rebuild(self.__class__, array, self.requires_grad)
        memo[id(self)] = new
        if isinstance(self._grad, Tensor):
            new._grad = self._grad.__deepcopy__(memo)
        return new

    def __reduce__(self) -> Any:
        if not self.is_leaf:
            raise GradError("only leaf tensors can be pickled; detach() it first")
        array = np.array(self._concrete("pickle"))
        return _rebuild, (self.__class__, array, self.requires_grad)


def _rebuild(cls: type[Tensor], array: np.ndarray, requires_grad: bool) -> Tensor:
    """A leaf of a Tensor class on its own bytes (for copies and pickles)."""
    new = cls.__new__(cls)
    Tensor.__init__(new, array, requires_grad)
    return new


def base_of(tensor: Tensor) -> Tensor:
    """The base of a view's history; any other tensor itself.

    A leaf base is the leaf itself, found through the view's edge; another gets a new Tensor.
    """
    history = tensor._history
    if not tensor._chain:
        return tensor
    edge = tensor._edge
    if history.edge is None and history.requires_grad and edge is not None:
        while not isinstance(edge, Tensor):
            assert edge is not None
            edge = edge[0].edges[0]
        return edge
    base = Tensor(history.base)
    base._history = history
    return base


def from_numpy(array: np.ndarray) -> Tensor:
    """A tensor on the array's own memory: writes are seen on both sides.

    Raises DTypeError for a dtype that tinyaot does not have. What a backward saves of it is copied,
    since NumPy can write it unseen.
    """
    if not isinstance(array, np.ndarray):
        raise DTypeError(f"from_numpy: needs a NumPy array, got {type(array).__name__}")
    numpy_to_dtype(array.dtype)
    tensor = Tensor(array)
    tensor._history.storage = Storage(foreign=True)
    return tensor
