"""Random steps for the C backend: every form of op, all its dtypes, ragged, unit and empty sizes,
overwritten state. Values stay small, and indices in range, so that results can be compared."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from tinyaot import ops
from tinyaot.builder import Builder, Sym
from tinyaot.ir import Input, Output, Program, live_nodes
from tinyaot.ops.core import using
from tinyaot.shapes import (
    DType,
    TensorType,
    bool_,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint32,
)

SIZES = (1, 2, 3, 31, 33, 257)
LIMIT = 20_000  # elements of a value
UNARY = (
    *("neg", "abs", "sign", "exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan"),
    *("tanh", "sigmoid", "erf", "relu", "floor", "ceil", "round", "isnan", "isfinite", "copy"),
)
FLOATS, INTS = (float32, float64), (int64, int32, int16, int8, uint8)


class Grower:
    """Appends random nodes to a step."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.builder = Builder(0)
        self.inputs: list[Input] = []
        self.pool: list[Sym] = []
        self.sizes = (*SIZES, 0) if seed % 5 == 0 else SIZES

    def input(self, shape: tuple[int, ...], dtype: DType, role: Any = "argument") -> Sym:
        value = self.builder.fresh(TensorType(dtype, shape))
        self.inputs.append(Input(value, role, f"in{value.id}"))
        return Sym(value)

    def shape(self) -> tuple[int, ...]:
        rank = self.rng.choice((0, 1, 2, 2, 3))
        small = 3 if rank == 3 else len(self.sizes)
        return tuple(self.rng.choice(self.sizes[:small] + self.sizes[6:]) for _ in range(rank))

    def pick(self, *kinds: str) -> Sym | None:
        found = [x for x in self.pool if not kinds or x.dtype.kind in kinds]
        return found[-1 - min(int(self.rng.expovariate(0.25)), len(found) - 1)] if found else None

    def grow(self) -> None:
        steps: tuple[Callable[[], Sym | None], ...] = (
            self.unary, self.unary, self.binary, self.binary, self.binary, self.select, self.cast,
            self.view, self.view, self.view, self.reduce, self.reduce, self.reduce_arg, self.scan,
            self.product, self.product, self.gather, self.along, self.scatter, self.put, self.cut,
            self.concat, self.pads, self.bits, self.position,
        )  # fmt: skip
        made = self.rng.choice(steps)()
        if made is not None and _size(made.shape) <= LIMIT:
            self.pool.append(made)

    # ---- maps ----
    def unary(self) -> Sym | None:
        x = self.pick()
        assert x is not None
        if x.dtype is bool_:
            return ops.logical_not(x)
        if not x.dtype.is_floating:
            return self.rng.choice((ops.neg, ops.abs, ops.sign, ops.relu))(x)
        f = self.rng.choice(UNARY)
        if f in ("exp", "expm1", "tan", "floor", "ceil", "round"):
            x = ops.tanh(x)
        return getattr(ops, f)(x)

    def binary(self) -> Sym | None:
        x = self.pick()
        assert x is not None
        y = self.partner(x)
        if self.rng.random() < 0.25:
            return self.rng.choice((ops.eq, ops.ne, ops.lt, ops.le, ops.gt, ops.ge))(x, y)
        if x.dtype is bool_:
            return self.rng.choice((ops.logical_and, ops.logical_or, ops.logical_xor))(x, y)
        names = ["add", "sub", "mul", "maximum", "minimum", "floordiv", "remainder"]
        if x.dtype.is_floating:
            names += ["div", "atan2", "pow"]
        name = self.rng.choice(names)
        if name in ("div", "pow") or (name in ("floordiv", "remainder") and x.dtype.is_floating):
            y = ops.add(ops.abs(y), 0.5) if isinstance(y, Sym) else y
            x = ops.abs(x) if name == "pow" else x
        return getattr(ops, name)(x, y)

    def partner(self, x: Sym) -> Any:
        """Something of x's dtype that broadcasts with it."""
        fits = [y for y in self.pool if y.dtype is x.dtype and _fits(x.shape, y.shape)]
        if not fits or self.rng.random() < 0.2:
            return {"bool": True, "int": 3, "float": 0.75}[x.dtype.kind]
        return self.rng.choice(fits[-8:])

    def select(self) -> Sym | None:
        c, x = self.pick("bool"), self.pick()
        if c is None or x is None or not _fits(c.shape, x.shape):
            return None
        y = self.partner(x)
        if isinstance(y, Sym) and not _fits(np.broadcast_shapes(c.shape, x.shape), y.shape):
            return None
        return ops.where(c, x, y)

    def cast(self) -> Sym | None:
        x = self.pick()
        assert x is not None
        if x.dtype.is_floating:  # out of range is nobody's business
            x = ops.mul(ops.tanh(x), 5.0)
        return ops.cast(x, dtype=self.rng.choice((*FLOATS, *FLOATS, *INTS, bool_)))

    # ---- views ----
    def view(self) -> Sym | None:
        rng, x = self.rng, self.pick()
        assert x is not None
        kind = rng.choice(("permute", "reshape", "slice", "slice", "broadcast", "diagonal"))
        if kind == "permute":
            return ops.permute(x, perm=tuple(rng.sample(range(x.ndim), x.ndim)))
        if kind == "reshape":
            shape = list(x.shape)
            rng.shuffle(shape)
            flat = (_size(x.shape),)
            return ops.reshape(x, shape=flat if rng.random() < 0.5 else tuple(shape))
        if kind == "slice" and x.ndim:
            cuts = [
                rng.choice((slice(None), slice(None, None, -1), slice(1, None), slice(0, n // 2),
                            slice(n // 2, None), slice(None, None, 3), slice(n // 3, n // 3 + 1)))
                for n in x.shape
            ]  # fmt: skip
            parts = [c.indices(n) for c, n in zip(cuts, x.shape, strict=True)]
            starts, stops, steps = zip(*parts, strict=True)
            return ops.slice(x, starts=starts, stops=stops, steps=steps)
        if kind == "diagonal" and x.ndim >= 2:
            a, b = rng.sample(range(x.ndim), 2)
            return ops.diagonal(x, offset=rng.choice((-1, 0, 1)), axis1=a, axis2=b)
        return ops.broadcast(x, shape=(2, *x.shape))

    # ---- reductions ----
    def reduce(self) -> Sym | None:
        x = self.pick()
        assert x is not None
        axes = tuple(a for a in range(x.ndim) if self.rng.random() < 0.5)
        f = self.rng.choice((ops.sum, ops.sum, ops.amax, ops.amin, ops.prod))
        if x.dtype is bool_:
            f = self.rng.choice((ops.amax, ops.amin))
        if 0 in x.shape and f in (ops.amax, ops.amin):
            return None
        if x.dtype.is_floating and f is ops.prod:
            x = ops.add(ops.mul(ops.tanh(x), 0.01), 1.0)
        return f(x, axes=axes)

    def reduce_arg(self) -> Sym | None:
        x = self.pick("int", "float")
        if x is None or not x.ndim or 0 in x.shape:
            return None
        return self.rng.choice((ops.argmax, ops.argmin))(x, axis=self.rng.randrange(x.ndim))

    def scan(self) -> Sym | None:
        x = self.pick("int", "float")
        if x is None or not x.ndim:
            return None
        axis = self.rng.randrange(x.ndim)
        if self.rng.random() < 0.4:
            return ops.argsort(x, axis=axis, descending=self.rng.random() < 0.5)
        return ops.cumsum(x, axis=axis)

    def product(self) -> Sym | None:
        a = self.pick("float", "int")
        if a is None or a.dtype in (int8, int16, uint8, uint32):
            return None
        others = [y for y in self.pool if y.dtype is a.dtype]
        b = self.rng.choice(others)
        letters = iter("abcdefghij")
        left = [next(letters) for _ in a.shape]
        right = []
        for n in b.shape:
            same = [c for c, m in zip(left, a.shape) if m == n and c not in right]
            take = same and self.rng.random() < 0.7
            right.append(self.rng.choice(same) if take else next(letters))
        every = list(dict.fromkeys(left + right))
        size = dict(zip(left, a.shape)) | dict(zip(right, b.shape))
        out = [c for c in every if self.rng.random() < 0.5]
        self.rng.shuffle(out)
        work = _size(tuple(size.values()))
        if work > 300_000 or _size([size[c] for c in out]) > LIMIT:
            return None
        scaled = ops.mul(ops.tanh(a), 0.1) if a.dtype.is_floating else a
        return ops.dot(scaled, b, spec=f"{''.join(left)},{''.join(right)}->{''.join(out)}")

    # ---- indices ----
    def places(self, shape: tuple[int, ...], n: int) -> Sym:
        """Integers below n, of both signs."""
        count = _size(shape)
        at = ops.reshape(ops.iota(size=count, dtype=int64), shape=shape)
        scaled = ops.add(ops.mul(at, self.rng.choice((1, 7, 3))), self.rng.randrange(n))
        return ops.sub(ops.remainder(scaled, n), self.rng.choice((0, n)))

    def gather(self) -> Sym | None:
        x = self.pick()
        if x is None or not x.ndim or 0 in x.shape:
            return None
        axes = self.rng.sample(range(x.ndim), self.rng.randrange(1, x.ndim + 1))
        shape = self.rng.choice(((), (3,), (2, 3), (31,)))
        return ops.gather(x, *(self.places(shape, x.shape[a]) for a in axes), axes=tuple(axes))

    def along(self) -> Sym | None:
        x = self.pick()
        if x is None or not x.ndim or 0 in x.shape:
            return None
        axis = self.rng.randrange(x.ndim)
        shape = tuple(2 if j == axis else max(1, n - self.rng.choice((0, 0, 1)))
                      for j, n in enumerate(x.shape))  # fmt: skip
        return ops.take_along(x, self.places(shape, x.shape[axis]), axis=axis)

    def scatter(self) -> Sym | None:
        x = self.pick("int", "float")
        if x is None or not x.ndim or 0 in x.shape:
            return None
        axes = tuple(self.rng.sample(range(x.ndim), self.rng.randrange(1, x.ndim + 1)))
        rest = tuple(n for j, n in enumerate(x.shape) if j not in axes)
        src = self.of_shape((5, *rest), x.dtype)
        mode = self.rng.choice(("add", "add", "set"))
        base = self.zeros(x) if self.rng.random() < 0.5 else x
        indices = (self.places((5,), x.shape[a]) for a in axes)
        return ops.scatter(base, src, *indices, axes=axes, mode=mode)

    def put(self) -> Sym | None:
        x = self.pick("int", "float")
        if x is None or not x.ndim or 0 in x.shape:
            return None
        axis = self.rng.randrange(x.ndim)
        shape = tuple(2 if j == axis else n for j, n in enumerate(x.shape))
        mode = self.rng.choice(("add", "set"))
        base = self.zeros(x) if self.rng.random() < 0.5 else x
        index = self.places(shape, x.shape[axis])
        return ops.put_along(base, self.of_shape(shape, x.dtype), index, axis=axis, mode=mode)

    def zeros(self, x: Sym) -> Sym:
        return ops.full(value=x.dtype.numpy.type(0).item(), shape=x.shape, dtype=x.dtype)

    def of_shape(self, shape: tuple[int, ...], dtype: DType) -> Sym:
        at = ops.reshape(ops.iota(size=_size(shape), dtype=int64), shape=shape)
        return ops.cast(ops.remainder(at, 11), dtype=dtype)

    def cut(self) -> Sym | None:
        x = self.pick()
        if x is None or not x.ndim or 0 in x.shape:
            return None
        parts = [self.rng.choice((slice(None), slice(0, (n + 1) // 2), slice(None, None, 2)))
                 .indices(n) for n in x.shape]  # fmt: skip
        starts, stops, steps = zip(*parts, strict=True)
        part = ops.slice(x, starts=starts, stops=stops, steps=steps)
        return ops.slice_scatter(x, ops.copy(part), starts=starts, stops=stops, steps=steps)

    def concat(self) -> Sym | None:
        x = self.pick()
        if x is None or not x.ndim:
            return None
        axis = self.rng.randrange(x.ndim)
        others = [y for y in self.pool if y.dtype is x.dtype and _stacks(x.shape, y.shape, axis)]
        return ops.concat(x, self.rng.choice(others), x, axis=axis)

    def pads(self) -> Sym | None:
        """A sum of slices put into zeros, as the gradient of several slices is."""
        x = self.pick("float")
        if x is None or not x.ndim or 0 in x.shape:
            return None
        axis, n = self.rng.randrange(x.ndim), 3
        total = None
        for k in self.rng.sample(range(n), self.rng.choice((1, 2, 3))):
            shape = tuple(s * n if j == axis else s for j, s in enumerate(x.shape))
            starts = tuple(k * s if j == axis else 0 for j, s in enumerate(x.shape))
            stops = tuple(a + s for a, s in zip(starts, x.shape))
            zeros = ops.full(value=0.0, shape=shape, dtype=x.dtype)
            part = ops.mul(x, float(k + 1))
            steps = (1,) * x.ndim
            pad = ops.slice_scatter(zeros, part, starts=starts, stops=stops, steps=steps)
            total = pad if total is None else ops.add(total, pad)
        return total

    def bits(self) -> Sym | None:
        seed, base = (Sym(i.value) for i in self.inputs if i.role == "random")
        x = self.pick()
        assert x is not None
        bits = ops.random_bits(seed, base, ordinal=len(self.pool), shape=tuple(x.shape))
        return ops.lt(bits, ops.full(value=2**31, shape=(), dtype=uint32))

    def position(self) -> Sym | None:
        n = self.rng.choice(self.sizes)
        return ops.iota(size=n, dtype=self.rng.choice((int64, int32, float32)))


def _size(shape: Any) -> int:
    return int(np.prod(tuple(shape), dtype=int))


def _stacks(a: Any, b: Any, axis: int) -> bool:
    if len(a) != len(b):
        return False
    return all(j == axis or m == n for j, (m, n) in enumerate(zip(a, b)))


def _fits(a: Any, b: Any) -> bool:
    try:
        return _size(np.broadcast_shapes(tuple(a), tuple(b))) <= LIMIT
    except ValueError:
        return False


def random_step(seed: int, nodes: int = 22) -> Program:
    """A step of random ops: some outputs, some inputs overwritten (swapped among them)."""
    grower = Grower(seed)
    rng = grower.rng
    grower.input((), int64, "random")
    grower.input((), int64, "random")
    with using(grower.builder):
        state = [grower.input(grower.shape(), rng.choice((float32, float32, *FLOATS, int64)))
                 for _ in range(3)]  # fmt: skip
        twin = grower.input(tuple(state[0].shape), state[0].dtype)
        grower.pool += [*state, twin]
        for _ in range(nodes):
            grower.grow()
        fresh = grower.pool[4:] or grower.pool
        picked = rng.sample(fresh, min(len(fresh), 4))
        outputs = [Output(x.value) for x in picked]
        for old in state:
            fits = [x for x in fresh if x.shape == old.shape and x.dtype is old.dtype]
            new = rng.choice(fits) if fits else ops.copy(old)
            outputs.append(Output(new.value, "mutated", old.value.id))
        if rng.random() < 0.3:  # a swap
            outputs[-3] = Output(twin.value, "mutated", state[0].value.id)
            outputs.append(Output(state[0].value, "mutated", twin.value.id))
    builder = grower.builder
    nodes_kept = live_nodes(builder.nodes, [o.value for o in outputs])
    return Program(
        f"step{seed}", "functionalize", tuple(grower.inputs), tuple(nodes_kept), tuple(outputs),
        builder.next_id,
    )  # fmt: skip


def random_arrays(program: Program, seed: int) -> list[np.ndarray]:
    """Inputs for it."""
    rng = np.random.default_rng(seed)
    arrays = []
    for i in program.inputs:
        t = i.value.type
        if t.dtype.is_floating:
            arrays.append(np.asarray(rng.standard_normal(t.shape), t.dtype.numpy))
        else:
            arrays.append(np.asarray(rng.integers(-20, 20, t.shape), t.dtype.numpy))
    return arrays
