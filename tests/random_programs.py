"""Random functional programs for tests of passes and backends: views of views, broadcasting,
scatters, products, random bits, several outputs that share storages, overwritten inputs, swaps."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from tinyaot import ops
from tinyaot.builder import Builder, Sym
from tinyaot.ir import Input, Output, Program
from tinyaot.ops.core import using
from tinyaot.passes.autodiff import differentiate
from tinyaot.shapes import DType, TensorType, float32, int64, uint32

SIZES = (1, 2, 3, 5)


class Grower:
    """Appends random nodes to a program."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.builder = Builder(0)
        self.inputs: list[Input] = []
        self.pool: list[Sym] = []

    def input(self, shape: tuple[int, ...], role: Any, dtype: DType = float32) -> Sym:
        value = self.builder.fresh(TensorType(dtype, shape))
        grad = dtype is float32 and role in ("argument", "state")
        self.inputs.append(Input(value, role, f"in{value.id}", grad))
        return Sym(value)

    def shape(self) -> tuple[int, ...]:
        return tuple(self.rng.choice(SIZES) for _ in range(self.rng.choice((0, 1, 2, 2, 3))))

    def pick(self) -> Sym:
        # Late values more often, so that chains grow.
        return self.pool[-1 - min(int(self.rng.expovariate(0.4)), len(self.pool) - 1)]

    def grow(self) -> None:
        often = [self.unary] * 2 + [self.binary] * 3 + [self.view] * 2
        seldom = [self.reduce, self.scatter, self.product, self.mask, self.concat, self.index]
        step: Callable[[Sym], Sym | None] = self.rng.choice([*often, *seldom])
        result = step(self.pick())
        if result is not None and _size(result.shape) <= 400:
            self.pool.append(result)

    def unary(self, x: Sym) -> Sym:
        op = self.rng.choice((ops.tanh, ops.sigmoid, ops.sin, ops.neg, ops.relu, ops.abs))
        return op(x)

    def binary(self, x: Sym) -> Sym | None:
        op = self.rng.choice((ops.add, ops.sub, ops.mul, ops.maximum))
        y = self.pick()
        if self.rng.random() < 0.2:
            return op(x, self.rng.choice((0.5, -1.0, 2.0)))
        try:
            np.broadcast_shapes(x.shape, y.shape)
        except ValueError:
            return ops.tanh(y)
        return op(x, y)

    def view(self, x: Sym) -> Sym:
        rng = self.rng
        kind = rng.choice(("permute", "reshape", "slice", "broadcast", "diagonal"))
        if kind == "permute":
            return ops.permute(x, perm=tuple(rng.sample(range(x.ndim), x.ndim)))
        if kind == "reshape":
            shape = list(x.shape)
            rng.shuffle(shape)
            return ops.reshape(x, shape=(_size(x.shape),) if rng.random() < 0.5 else tuple(shape))
        if kind == "slice" and x.ndim:
            cuts = [rng.choice((slice(None), slice(None, None, -1), slice(1, None), slice(0, 2)))
                    for _ in x.shape]  # fmt: skip
            parts = [c.indices(n) for c, n in zip(cuts, x.shape, strict=True)]
            starts, stops, steps = zip(*parts, strict=True)
            result = ops.slice(x, starts=starts, stops=stops, steps=steps)
            return result if _size(result.shape) else x
        if kind == "diagonal" and x.ndim >= 2:
            return ops.diagonal(x, offset=0, axis1=0, axis2=1)
        return ops.broadcast(x, shape=(2, *x.shape))

    def reduce(self, x: Sym) -> Sym:
        axes = tuple(a for a in range(x.ndim) if self.rng.random() < 0.5)
        return self.rng.choice((ops.sum, ops.amax))(x, axes=axes)

    def scatter(self, x: Sym) -> Sym | None:
        if not x.ndim or x.shape[0] < 2:
            return None
        starts, steps = (0,) * x.ndim, (1,) * x.ndim
        stops = (1, *x.shape[1:])
        part = ops.slice(x, starts=starts, stops=stops, steps=steps)
        return ops.slice_scatter(x, ops.mul(part, 3.0), starts=starts, stops=stops, steps=steps)

    def product(self, x: Sym) -> Sym | None:
        if x.ndim != 2:
            return None
        return ops.dot(x, x, spec=self.rng.choice(("ij,kj->ik", "ij,ik->jk", "ij,ij->i")))

    def mask(self, x: Sym) -> Sym:
        seed, base = (Sym(i.value) for i in self.inputs if i.role == "random")
        bits = ops.random_bits(seed, base, ordinal=len(self.pool), shape=tuple(x.shape))
        keep = ops.lt(bits, ops.full(value=2**31, shape=(), dtype=uint32))
        return ops.where(keep, x, 0.0)

    def concat(self, x: Sym) -> Sym | None:
        return ops.concat(x, ops.neg(x), axis=0) if x.ndim else None

    def index(self, x: Sym) -> Sym | None:
        if not x.ndim:
            return None
        rows = ops.iota(size=x.shape[0], dtype=int64)
        return ops.gather(x, rows, axes=(0,))


def _size(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=int))


def random_program(seed: int, *, joint: bool, nodes: int = 25) -> Program:
    """A program as autodiff leaves it: a joint one, or a whole step that updates its state."""
    rng = random.Random(seed)
    grower = Grower(rng)
    grower.input((), "random", int64)
    grower.input((), "random", int64)
    with using(grower.builder):
        arguments = [grower.input(grower.shape(), "argument") for _ in range(2)]
        state = [grower.input(grower.shape(), "state") for _ in range(2)]
        twin = grower.input(tuple(state[0].shape), "state")
        grower.pool += [*arguments, *state, twin]
        early: list[Output] = []
        for at in range(nodes):
            grower.grow()
            if joint and at == 3 and rng.random() < 0.5:
                # An argument overwritten by the forward, its old and new value both read on.
                old = arguments[0]
                new = ops.sin(ops.mul(old, 2.0))
                grower.pool += [old, new, ops.mul(old, new)]
                early = [Output(new.value, "mutated", old.value.id, requires_grad=True)]
        outputs = _outputs(grower, state, twin, joint) + early
    builder = grower.builder
    program = Program(
        f"random{seed}",
        "functionalize",
        tuple(grower.inputs),
        tuple(builder.nodes),
        tuple(outputs),
        builder.next_id,
    )
    return differentiate(program)


def _outputs(grower: Grower, state: list[Sym], twin: Sym, joint: bool) -> list[Output]:
    rng, builder = grower.rng, grower.builder
    loss = ops.sum(ops.full(value=0.0, shape=(1,), dtype=float32), axes=(0,))
    for x in grower.pool[-3:]:
        loss = ops.add(loss, ops.sum(ops.reshape(x, shape=(_size(x.shape),)), axes=(0,)))
    loss = ops.reshape(loss, shape=())
    users = [loss.value, *(grower.pick().value for _ in range(rng.choice((0, 1, 2))))]
    if rng.random() < 0.5:
        users.append(grower.view(grower.pick()).value)
    outputs = [Output(v, "user", requires_grad=joint) for v in users]
    if joint:
        gradients: list[Sym] = []
        if rng.random() < 0.5:  # BatchNorm's running statistics: overwritten, not differentiated
            gradients = [state[1]]
    else:
        wrt = [s.value for s in state]
        node = builder.emit(
            "grad",
            [loss.value, *wrt],
            [v.type for v in wrt],
            {"outputs": 1, "cotangents": False, "wrt": len(wrt)},
        )
        gradients = [Sym(r) for r in node.results]
    for s, g in zip(state[-len(gradients) :] if gradients else [], gradients, strict=True):
        new = ops.sub(ops.mul(s, 0.9), ops.mul(g, 0.1))
        if new.shape != s.shape:
            continue
        outputs.append(Output(new.value, "mutated", s.value.id))
    taken = {o.of for o in outputs}
    if rng.random() < 0.5 and state[0].value.id not in taken:
        # a swap: each gets the other's old value
        outputs.append(Output(twin.value, "mutated", state[0].value.id))
        outputs.append(Output(state[0].value, "mutated", twin.value.id))
    elif rng.random() < 0.5:
        zero = ops.full(value=0.0, shape=tuple(twin.shape), dtype=float32)
        outputs.append(Output(zero.value, "mutated", twin.value.id))
    return outputs


def random_arrays(program: Program, seed: int = 0) -> list[np.ndarray]:
    """Arrays for the program's inputs, in order."""
    rng = np.random.default_rng(seed)
    found = []
    for i in program.inputs:
        t = i.value.type
        if t.dtype.kind == "int":
            found.append(np.array(rng.integers(0, 1 << 30, t.shape), t.dtype.numpy))
        else:
            found.append(np.array(rng.uniform(-1, 1, t.shape), t.dtype.numpy))
    return found
