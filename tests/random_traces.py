"""Random programs as a tracer would write them: views of views, writes through them, detached
aliases, fan-out, reductions, products and derivatives. A seed gives the same program for ever."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tinyaot import ops
from tinyaot.builder import Builder, Sym
from tinyaot.ir import Input, Node, Output, Program, Value
from tinyaot.ops.core import using
from tinyaot.passes.storage import storages_of
from tinyaot.shapes import DType, Shape, TensorType, float64, int64

SHAPES: tuple[Shape, ...] = (
    *((), (1,), (3,), (4,), (2, 3), (3, 3)),
    *((1, 3), (4, 1), (2, 1, 3), (0, 3)),
)
UNARY = ("tanh", "sin", "sigmoid", "neg", "abs", "relu", "exp", "cos", "copy", "erf")
BINARY = ("add", "sub", "mul", "maximum", "minimum", "atan2", "add", "mul")


def build(function: Any, *types: TensorType, grad: bool = True, name: str = "program") -> Program:
    """The trace of a function written in `ops`: every output a user's, every input that is written
    a mutated output, too."""
    builder = Builder(0)
    inputs = [builder.fresh(t) for t in types]
    with using(builder):
        made = function(*map(Sym, inputs))
    results = made if isinstance(made, tuple) else (made,)
    return trace_of(builder, inputs, [s.value for s in results], grad, name)


def trace_of(
    builder: Builder, inputs: list[Value], results: list[Value], grad: bool, name: str
) -> Program:
    def wants_grad(v: Value) -> bool:
        return grad and v.type.dtype.is_floating

    program = Program(
        name,
        "trace",
        tuple(Input(v, "argument", f"x{n}", wants_grad(v)) for n, v in enumerate(inputs)),
        tuple(builder.nodes),
        tuple(Output(v, "user", None, f"y{n}", wants_grad(v)) for n, v in enumerate(results)),
        builder.next_id,
    )
    roots = storages_of(program).root
    written = {roots[n.inputs[0].id] for n in program.nodes if n.op == "write"}
    mutated = [
        Output(v, "mutated", v.id, f"x{n}", wants_grad(v))
        for n, v in enumerate(inputs)
        if v.id in written
    ]
    return program.replace(outputs=(*program.outputs, *mutated))


class Generator:
    """Writes one random program. `exact`: no products, which round by their operands' strides."""

    def __init__(self, seed: int, dtype: DType = float64, exact: bool = False) -> None:
        self.rng = np.random.default_rng(seed)
        self.dtype = dtype
        self.exact = exact
        self.builder = Builder(0)
        self.inputs = [self.builder.fresh(self.type()) for _ in range(self.upto(3))]
        self.pool = [Sym(v) for v in self.inputs]
        self.repeated: set[int] = set()  # views that may name an element twice
        self.views: set[int] = set()

    def program(self, steps: int, writes: bool = True, grads: int = 0) -> Program:
        """A program of about so many steps, with `grads` gradients on the way."""
        actions = [self.unary, self.binary, self.binary, self.view, self.view, self.reduce]
        actions += [self.join, self.index, self.choose, self.constant]
        if not self.exact:
            actions.append(self.product)
        if writes:
            actions += [self.write, self.write, self.detach]
        with using(self.builder):
            for part in range(grads + 1):
                for _ in range(steps):
                    made = self.one_of(actions)()
                    if made is not None:
                        self.pool.append(made)
                if part < grads:
                    self.grad()
            found = [self.pick() for _ in range(self.upto(3))]
        results = [self.pool[-1].value, *(s.value for s in found)]
        return trace_of(self.builder, self.inputs, results, True, f"random_{steps}")

    # ---- choices --------------------------------------------------------------------------------

    def upto(self, n: int) -> int:
        return int(self.rng.integers(1, n + 1))

    def one_of(self, things: Any) -> Any:
        return things[int(self.rng.integers(len(things)))]

    def type(self) -> TensorType:
        return TensorType(self.dtype, self.one_of(SHAPES))

    def pick(self) -> Sym:
        """A value, the later the likelier."""
        n = len(self.pool)
        return self.pool[max(0, n - 1 - int(abs(self.rng.normal(0, 0.35 * n))))]

    def fitting(self, shape: Shape) -> Sym:
        """A value that broadcasts to the shape."""
        fits = [s for s in self.pool if _broadcasts(s.shape, shape)]
        if fits:
            return self.one_of(fits)  # type: ignore[no-any-return]
        made: Sym = ops.full(value=0.5, shape=(), dtype=self.dtype)
        return made

    # ---- what it writes -------------------------------------------------------------------------

    def unary(self) -> Any:
        x, op = self.pick(), self.one_of(UNARY)
        return ops.TABLE[op](ops.tanh(x) if op == "exp" else x)

    def binary(self) -> Any:
        x = self.pick()
        y = self.fitting(x.shape)
        if self.rng.random() < 0.5:
            x, y = y, x
        return ops.TABLE[self.one_of(BINARY)](x, y)

    def reduce(self) -> Any:
        x = self.pick()
        axes = tuple(a for a in range(x.ndim) if self.rng.random() < 0.6)
        op = self.one_of(("sum", "sum", "amax", "prod"))
        if op == "amax" and 0 in x.shape:
            return None
        return ops.TABLE[op](x, axes=axes)

    def product(self) -> Any:
        for _ in range(4):
            x, y = self.pick(), self.pick()
            if x.ndim == y.ndim == 2 and x.shape[1] == y.shape[0]:
                return ops.dot(x, y, spec="ij,jk->ik")
            if x.ndim == y.ndim == 2 and x.shape == y.shape:
                return ops.dot(x, y, spec="ij,kj->ki")
        return None

    def join(self) -> Any:
        x, y = self.pick(), self.pick()
        if x.ndim == 0 or x.shape != y.shape:
            return None
        return ops.concat(x, y, x, axis=self.upto(x.ndim) - 1)

    def index(self) -> Any:
        x = self.pick()
        if x.ndim == 0 or 0 in x.shape:
            return None
        axis = self.upto(x.ndim) - 1
        i = ops.remainder(ops.iota(size=5, dtype=int64), x.shape[axis])
        return ops.gather(x, i, axes=(axis,))

    def choose(self) -> Any:
        x = self.pick()
        return ops.where(ops.gt(x, 0.25), x, self.fitting(x.shape))

    def constant(self) -> Any:
        value = self.one_of((0.0, -0.0, 1.0, -1.0, 2.0, 0.5))
        return ops.full(value=value, shape=self.type().shape, dtype=self.dtype)

    def detach(self) -> Any:
        x = self.pick()
        return self._taken(ops.detach(x), x)

    def view(self) -> Any:
        x = self.pick()
        made = self._view(x)
        return self._taken(made, x) if made is not None else None

    def _taken(self, made: Sym, x: Sym) -> Sym:
        self.views.add(made.value.id)
        if x.value.id in self.repeated or self.builder.nodes[-1].op == "broadcast":
            self.repeated.add(made.value.id)
        return made

    def _view(self, x: Sym) -> Any:
        kind, order = self.upto(5), tuple(int(a) for a in self.rng.permutation(x.ndim))
        if kind == 1 and x.ndim:
            starts, stops, steps = zip(*map(self._range, x.shape), strict=True)
            return ops.slice(x, starts=starts, stops=stops, steps=steps)
        if kind == 2 and x.ndim > 1:
            return ops.permute(x, perm=order)
        if kind == 3:
            size = x.value.type.size
            shapes = [(size,), (1, size), (size, 1)]
            shapes += [(a, size // a) for a in (2, 3) if size and size % a == 0]
            return ops.reshape(x, shape=self.one_of(shapes))
        if kind == 4 and x.ndim > 1:
            offset = int(self.rng.integers(-1, 2))
            return ops.diagonal(x, offset=offset, axis1=order[0], axis2=order[1])
        if kind == 5 and x.ndim < 3:
            return ops.broadcast(x, shape=(self.upto(2), *x.shape))
        return None

    def _range(self, n: int) -> tuple[int, int, int]:
        a, b = sorted(int(i) for i in self.rng.integers(0, n + 1, 2))
        found = (slice(a, b), slice(a, b), slice(None), slice(None, None, -1), slice(a, b, 2))
        return self.one_of(found).indices(n)  # type: ignore[no-any-return]

    def write(self) -> None:
        target = self.pick()
        if target.value.id in self.repeated:
            return
        x = self.fitting(target.shape)
        old = ops.tanh(target) if self.rng.random() < 0.7 else target
        new = ops.add(old, x) if self.rng.random() < 0.6 else ops.copy(x)
        if new.shape != target.shape:
            new = ops.broadcast(new, shape=target.shape)
        if new.value.id != target.value.id:
            ops.write(target, new)

    def grad(self) -> None:
        """A loss of a few values, and its gradients, which the program goes on to use."""
        total: Any = 0.0
        for _ in range(3):
            x = self.pick()
            part = ops.reshape(ops.sum(ops.sin(x), axes=tuple(range(x.ndim))), shape=())
            total = ops.add(part, total)
        made = [s for s in self.pool if s.value.id not in self.views]
        wrt = [*made[: len(self.inputs)], self.one_of(made)]
        attrs = {"outputs": 1, "cotangents": False, "wrt": len(wrt)}
        operands = [total.value, *(s.value for s in wrt)]
        node = self.builder.emit("grad", operands, [s.value.type for s in wrt], attrs)
        self.pool += map(Sym, node.results)
        self.views.update(r.id for r in node.results)  # two of them may be one value


def _broadcasts(shape: Shape, to: Shape) -> bool:
    lead = len(to) - len(shape)
    return lead >= 0 and all(m in (1, n) for m, n in zip(shape, to[lead:], strict=True))


# ---- running them -------------------------------------------------------------------------------


def random_inputs(program: Program, seed: int, special: bool = False) -> list[np.ndarray]:
    """Arrays for the inputs; `special`: with signed zeros, infinities and NaN among them."""
    rng = np.random.default_rng(seed)
    arrays = []
    for i in program.inputs:
        t = i.value.type
        x = np.asarray(rng.standard_normal(t.shape))
        if special:
            odd = rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan], t.shape)
            x = np.where(rng.random(t.shape) < 0.25, odd, x)
        arrays.append(x.astype(t.dtype.numpy))
    return arrays


def with_gradients(program: Program) -> Program:
    """The program with what its joint graph adds, as a `grad` node: a cotangent for each output
    that requires grad, a gradient for each input. Inputs are copied first, so that the gradient
    is that of the value which was given, not of what is in a written input at the end."""
    next_id = program.next_id
    inputs: list[Input] = []
    copies: list[Node] = []
    for i in program.inputs:
        given = Value(next_id, i.value.type)
        next_id += 1
        inputs.append(replace(i, value=given))
        copies.append(Node("copy", (given,), (i.value,)))
    sources = [o for o in program.outputs if o.requires_grad]
    seeds = [
        Input(Value(next_id + n, o.value.type), "cotangent", o.name) for n, o in enumerate(sources)
    ]
    next_id += len(seeds)
    wrt = [i.value for i in inputs if i.requires_grad]
    results = tuple(Value(next_id + n, v.type) for n, v in enumerate(wrt))
    operands = (*(o.value for o in sources), *(s.value for s in seeds), *wrt)
    attrs = {"outputs": len(sources), "cotangents": True, "wrt": len(wrt)}
    return program.replace(
        inputs=(*inputs, *seeds),
        nodes=(*copies, *program.nodes, Node("grad", operands, results, attrs)),
        outputs=(*program.outputs, *(Output(r, "gradient") for r in results)),
        next_id=next_id + len(wrt),
    )


def same_bits(x: np.ndarray, y: np.ndarray) -> bool:
    """Equal, signs of zeros too; one NaN is like another."""
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    if x.dtype.kind in "biu":
        return np.array_equal(x, y)
    x, y = x.astype(np.float64), y.astype(np.float64)
    equal = (x == y) & (np.signbit(x) == np.signbit(y))
    return bool(np.all(equal | (np.isnan(x) & np.isnan(y))))
