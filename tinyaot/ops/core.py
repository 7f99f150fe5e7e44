"""What a primitive is, and how a call of one finds its meaning.

A primitive is declared once, with everything that anybody needs to know of it; calling it hands it
to the engine in force: the eager tape, the tracer, or the builder that the passes write IR with.
The same vjp rule therefore runs on eager tensors and yields IR (JAX's primitives and Thunder's
symbols have this shape).

A call is strict: operands have one dtype (unless the type rule says otherwise) and fit by
broadcasting. Promotion and defaults are the business of the functions a user calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, ParamSpec, Protocol

import numpy as np

from tinyaot.errors import DTypeError, GradError
from tinyaot.shapes import DType, Geometry, Shape, TensorType

Kind = Literal[
    "leaf",  # full, iota: no operands
    "map",  # one scalar expression an element, operands broadcast
    "reduce",  # along axes, which stay with size 1
    "scan",  # along an axis, which stays: cumsum, cumprod, argsort
    "view",  # another shape of the same bytes: strides, no code
    "dot",  # the only product
    "gather",
    "scatter",
    "concat",
    "random",
    "mutate",  # exists before functionalization only
]
Attrs = Mapping[str, Any]
Fields = ParamSpec("Fields")


class Operand(Protocol):
    """What a vjp rule sees: an eager Tensor or an IR value being built."""

    @property
    def shape(self) -> Shape: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def ndim(self) -> int: ...


Rule = Callable[..., Any]  # (cotangent, result, *operands, **attrs) -> cotangent of one operand
TypeRule = Callable[..., TensorType]  # (*TensorTypes, **attrs)


Strided = Callable[[Sequence[Geometry], Sequence[TensorType], TensorType, Attrs], int]


@dataclass(frozen=True, slots=True, eq=False)
class Primitive:
    """One row of the table.

    array:   its meaning, `(*arrays, **attrs) -> array`, never writing to an operand; a view
             returns a NumPy view where `geometry` says there is one.
    into:    the same into `out`, an array in C order: `(out, *arrays, **attrs)`. It allocates
             `scratch` bytes at most, beyond a few small fixed blocks; `out` may be the buffer of an
             operand that `may_overwrite` names, and overlaps no other. None: only `write`.
    scratch: bytes that `into` allocates when its operands are in C order: `(ins, out, attrs)`.
    strided: the same for operands seen as these geometries say, `(geometries, ins, out, attrs)`;
             None: as much.
    destroys: positions of operands whose buffer `out` may be; None: as the kind says.
    ufunc:   the NumPy ufunc that a map, a reduction or a scan is, where it is just that: an
             executor can call it (its `reduce`, its `accumulate`) without a frame of ours.
    vjp:     a rule an operand (None: that operand has no gradient, such as an index); a function
             `i -> rule` for variadic ops; or None: the op is not differentiable, a listed fact.
    flops:   operations by the usual convention (a map: one an element; a product: 2mnk).
    weight:  a map's cost in ns an element on one vector core, relative to a plain add (0.02).
    expr:    a map's scalar expression, with {0} {1} for operands, in the printers' vocabulary.
    geometry: how a view lies in its operand's bytes, `(geometry of the operand, **attrs)`; None
             where strides cannot express it, so that only a copy can have it.
    """

    name: str
    kind: Kind
    type_rule: TypeRule
    array: Callable[..., np.ndarray]
    into: Callable[..., None] | None = None
    vjp: Sequence[Rule | None] | Callable[[int], Rule | None] | None = None
    flops: Callable[[Sequence[TensorType], TensorType, Attrs], int] = lambda ins, out, attrs: 0
    weight: float = 0.02
    expr: str | None = None
    doc: str = ""
    scratch: Callable[[Sequence[TensorType], TensorType, Attrs], int] = lambda ins, out, attrs: 0
    strided: Strided | None = None
    destroys: tuple[int, ...] | None = None
    ufunc: np.ufunc | None = None
    geometry: Callable[..., Geometry | None] | None = None

    def may_overwrite(self, operand: int) -> bool:
        """Whether `into` is right when `out` is this operand's buffer (of out's own type)."""
        if self.destroys is not None:
            return operand in self.destroys
        return self.kind == "map" or (self.kind == "scatter" and operand == 0)

    @property
    def differentiable(self) -> bool:
        return self.vjp is not None

    @property
    def may_alias(self) -> bool:
        """Whether the result may share its operand's bytes: read by layout and plan only."""
        return self.kind == "view"

    def rule(self, operand: int) -> Rule | None:
        """The vjp rule of an operand; None where the operand has no gradient."""
        if self.vjp is None:
            return None
        if callable(self.vjp):
            return self.vjp(operand)
        if operand >= len(self.vjp):
            raise GradError(f"{self.name}: no vjp rule for operand {operand}")
        return self.vjp[operand]

    def infer(self, types: Sequence[TensorType], attrs: Attrs) -> TensorType:
        """The result's type; raises ShapeError or DTypeError naming the op."""
        return self.type_rule(*types, **attrs)

    def __call__(self, *operands: Any, **attrs: Any) -> Any:
        engine = mode.engine
        return engine.bind(self, operands, attrs)

    def __repr__(self) -> str:
        return f"<primitive {self.name}>"


class Engine(Protocol):
    """Gives a primitive's call a meaning. Operands may be Python scalars where another operand
    fixes the dtype."""

    def bind(
        self, primitive: Primitive, operands: tuple[Any, ...], attrs: dict[str, Any]
    ) -> Any: ...


class _NoEngine:
    def bind(self, primitive: Primitive, operands: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
        raise RuntimeError("no engine: import tinyaot installs the eager one")


class Mode(threading.local):
    """Per thread: the engine in force, and whether the tape records."""

    default: Engine = _NoEngine()  # the eager engine, set when tinyaot is imported

    def __init__(self) -> None:
        self.engine: Engine = self.default
        self.grad_enabled: bool = True
        self.quiet: bool = False  # NumPy warnings are silenced already


mode = Mode()


class using:
    """Context manager: put an engine in force."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def __enter__(self) -> Engine:
        self.saved = mode.engine
        mode.engine = self.engine
        return self.engine

    def __exit__(self, *exc: object) -> None:
        mode.engine = self.saved


# ---- the table ----------------------------------------------------------------------------------

TABLE: dict[str, Primitive] = {}


def _entered(make: Callable[Fields, Primitive]) -> Callable[Fields, Primitive]:
    def declare(*args: Fields.args, **kwargs: Fields.kwargs) -> Primitive:
        primitive = make(*args, **kwargs)
        if primitive.name in TABLE:
            raise ValueError(f"primitive {primitive.name!r} is declared twice")
        TABLE[primitive.name] = primitive
        return primitive

    return declare


declare = _entered(Primitive)  # a Primitive of these fields, as a row of the table


def same_dtype(op: str, types: Sequence[TensorType]) -> DType:
    """The one dtype of all operands; DTypeError names two that differ."""
    first = types[0].dtype
    for t in types[1:]:
        if t.dtype is not first:
            raise DTypeError(f"{op}: operands are {first.name} and {t.dtype.name}; cast one first")
    return first


def same_buffer(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays are the same elements of the same memory."""
    return a is b or (
        a.shape == b.shape
        and a.strides == b.strides
        and a.__array_interface__["data"][0] == b.__array_interface__["data"][0]
    )


def allocating(into: Callable[..., None]) -> Callable[..., np.ndarray]:
    """The meaning of an op whose result is like its first operand: `into` a new array."""

    def array(x: np.ndarray, *others: np.ndarray, **attrs: Any) -> np.ndarray:
        out = np.empty(x.shape, x.dtype)
        into(out, x, *others, **attrs)
        return out

    return array


def is_half(dtype: np.dtype[Any]) -> bool:
    """float16 or bfloat16 (NumPy knows the second as a raw 'V' kind): they compute in float32."""
    return dtype.itemsize == 2 and dtype.kind not in "iu"


def elements(ins: Sequence[TensorType], out: TensorType, attrs: Attrs) -> int:
    """FLOPs of a map: one for each element of the result."""
    return out.size


def elements_in(ins: Sequence[TensorType], out: TensorType, attrs: Attrs) -> int:
    """FLOPs of a reduction or scan: one for each element of the operand."""
    return ins[0].size
