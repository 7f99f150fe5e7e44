"""Small random programs, and every set of values that they could save: an oracle for partition
that shares no code with it."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from tinyaot import ops
from tinyaot.builder import Builder, Sym
from tinyaot.cost import node_cost
from tinyaot.ir import Input, Output, Program, Value
from tinyaot.ops.core import TABLE, using
from tinyaot.shapes import TensorType, float32

SMALL = 10_000  # bytes of the largest value


@dataclass
class Case:
    """A random forward of at most 14 nodes, and what the backward reads of it."""

    program: Program
    values: list[int]  # storages that may be saved, in program order
    needs: dict[int, set[int]]
    read: set[int]
    bytes: dict[int, int]
    price: dict[int, int]  # picoseconds


def random_case(seed: int) -> Case:
    """Maps, reductions, products and views of two inputs, read by many others or by none, some of
    them outputs; the backward reads a few, of some only a view."""
    rng = random.Random(seed)
    builder = Builder(2)
    x, y = (Value(i, TensorType(float32, (4, 6))) for i in range(2))
    pool = [Sym(x), Sym(y)]
    with using(builder):
        builder.phase = "forward"
        count = rng.randint(3, 12)
        while len(builder.nodes) < count:
            made = _any_op(rng, pool)
            if made.value.type.nbytes < SMALL:
                pool.append(made)
        loss = ops.sum(ops.reshape(pool[-1], shape=(-1,)), axes=(0,))
        builder.phase = "backward"
        total = ops.mul(loss, ops.full(value=1.0, shape=(1,), dtype=float32))
        for read in rng.sample(pool, min(len(pool), rng.choice((1, 2, 3, 9, 9)))):
            seen = ops.permute(read, perm=tuple(reversed(range(read.ndim))))
            flat = ops.reshape(ops.mul(rng.choice((read, seen)), 2.0), shape=(-1,))
            total = ops.add(total, ops.sum(flat, axes=(0,)))
        builder.phase = "update"
        new = ops.sub(Sym(x), ops.reshape(total, shape=(1, 1)))
    given = [Output(loss.value), Output(new.value, "mutated", 0)]
    if rng.random() < 0.4:
        given.append(Output(rng.choice(pool[2:]).value))
    program = Program(
        "case",
        "simplify",
        (Input(x, "state", "x"), Input(y, "argument", "y")),
        tuple(builder.nodes),
        tuple(given),
        builder.next_id,
    )
    return _facts(program)


def _any_op(rng: random.Random, pool: list[Sym]) -> Sym:
    late = rng.choice((pool, pool[-3:]))  # wide, or deep
    a, b = rng.choice(late), rng.choice(pool)
    kind = rng.choice(("map", "map", "pair", "pair", "wide", "sum", "view", "product"))
    if kind == "pair" and a.shape == b.shape:
        return ops.mul(a, b)
    if kind == "view":
        return ops.permute(a, perm=tuple(reversed(range(a.ndim))))
    if kind == "wide":
        made = ops.mul(a, ops.full(value=1.5, shape=(3, *a.shape), dtype=float32))
        return ops.reshape(made, shape=(3 * a.shape[0], *a.shape[1:]))
    if kind == "sum":
        return ops.sum(a, axes=(0,))
    if kind == "product" and a.ndim == b.ndim == 2 and a.shape[1] == b.shape[0]:
        return ops.dot(a, b, spec="ij,jk->ik")
    return rng.choice((ops.exp, ops.sin, ops.tanh))(a)


def _facts(program: Program) -> Case:
    base = {i.value.id: i.value.id for i in program.inputs}
    needs: dict[int, set[int]] = {}
    read: set[int] = set()
    sizes: dict[int, int] = {}
    price: dict[int, int] = {}
    constant: set[int] = set()
    for node in program.nodes:
        out = node.results[0]
        is_view = TABLE[node.op].kind == "view"
        base[out.id] = base[node.inputs[0].id] if is_view else out.id
        if node.op == "full":
            constant.add(out.id)
    free = {i.value.id for i in program.inputs} | {base[o.value.id] for o in program.outputs}
    alive = [base[o.value.id] for o in program.outputs_of("user")]  # to run in any case
    for node in program.nodes:
        out, sources = node.results[0], {base[v.id] for v in node.inputs}
        wanted = sources - free - constant
        if node.phase != "forward":
            read |= {s for s in wanted if s in needs}
        elif base[out.id] == out.id and node.op != "full" and out.id not in free:
            needs[out.id], sizes[out.id] = wanted, out.type.nbytes
            price[out.id] = round(node_cost(node).seconds * 1e12)
    sources_of = {n.results[0].id: {base[v.id] for v in n.inputs} for n in program.nodes}
    runs: set[int] = set()
    while alive:
        id_ = alive.pop()
        if id_ not in runs:
            runs.add(id_)
            alive += sources_of.get(id_, ())
    # What only the backward uses runs once in any case.
    price = {v: p if v in runs else 0 for v, p in price.items()}
    return Case(program, list(needs), needs, read, sizes, price)


def all_choices(case: Case) -> np.ndarray:
    """(bytes, price) of saving each set of storages, one row a set: bit i of the row's number says
    whether `values[i]` is in it."""
    rows = np.arange(1 << len(case.values))
    wanted = {v: np.full(rows.shape, v in case.read) for v in case.values}
    found = np.zeros((len(rows), 2), np.int64)
    for bit in reversed(range(len(case.values))):
        v = case.values[bit]
        saved = (rows >> bit & 1) == 1
        again = wanted[v] & ~saved
        found[:, 0] += case.bytes[v] * (wanted[v] & saved)
        found[:, 1] += case.price[v] * again
        for need in case.needs[v]:
            wanted[need] |= again
    return found


def best_of_each(points: np.ndarray) -> list[tuple[int, int]]:
    """The choices that none beats in bytes and price at once, fewest bytes first."""
    best: list[tuple[int, int]] = []
    for nbytes, price in sorted({(int(b), int(p)) for b, p in points}):
        if not best or price < best[-1][1]:
            best.append((nbytes, price))
    return best


def lower_hull(best: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The corners of their convex hull (Andrew's monotone chain)."""
    hull: list[tuple[int, int]] = []
    for b, p in best:
        while len(hull) > 1:
            (b0, p0), (b1, p1) = hull[-2:]
            if (p1 - p0) * (b - b0) < (p - p0) * (b1 - b0):
                break
            hull.pop()
        hull.append((b, p))
    return hull
