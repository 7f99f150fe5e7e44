"""Simplify: every rule fires where it should, is exact for every kind of number, and does not fire
where it would not be; equal expressions become one, and nothing else does."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.random_traces import Generator, build, random_inputs, same_bits
from tinyaot import ops
from tinyaot.builder import Builder, Sym
from tinyaot.errors import ParseError, VerifyError
from tinyaot.interpret import interpret
from tinyaot.ir import Input, Output, Program
from tinyaot.ops.core import using
from tinyaot.passes import differentiate, functionalize, simplify
from tinyaot.passes.identities import GROUPS, RULES
from tinyaot.record import Decision
from tinyaot.shapes import (
    DType,
    TensorType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int32,
    int64,
    uint8,
)
from tinyaot.text import parse
from tinyaot.verify import verify

SPECIAL = (0.0, -0.0, 1.0, -1.0, 2.5, -3.25, 1e-7, -1e30, np.inf, -np.inf, np.nan, 0.1, 7e4)


def numbers(t: TensorType, seed: int = 0) -> np.ndarray:
    """An array of the type, with every special number that its dtype has."""
    rng = np.random.default_rng(seed)
    if t.dtype.kind == "bool":
        return rng.integers(0, 2, t.shape).astype(np.bool_)
    if t.dtype.kind == "int":
        info = np.iinfo(t.dtype.numpy)
        return rng.integers(info.min, info.max, t.shape, t.dtype.numpy, endpoint=True)
    x = rng.standard_normal(t.shape)
    special = rng.choice(SPECIAL, t.shape)
    with np.errstate(over="ignore"):
        return np.where(rng.random(t.shape) < 0.6, special, x).astype(t.dtype.numpy)


def pure(function: Callable[..., Any], *types: TensorType) -> Program:
    return functionalize(build(function, *types, grad=False))


def simplified(program: Program, **options: Any) -> Program:
    """The result, verified, a fixpoint, and equal to the program bit for bit."""
    after = simplify(program, **options)
    verify(after)
    again = simplify(after, **options)
    assert [n.op for n in again.nodes] == [n.op for n in after.nodes]
    for seed in range(3):
        arrays = [numbers(i.value.type, seed) for i in program.inputs]
        before = interpret(program, *arrays)
        for x, y in zip(before, interpret(after, *arrays), strict=True):
            assert same_bits(x, y), f"{program}\n{after}\n{x}\n{y}"
    return after


def ops_of(program: Program) -> list[str]:
    """The ops, constants left out."""
    return [n.op for n in program.nodes if n.op != "full"]


X = TensorType(float32, (3, 64))
FLOATS = (float16, bfloat16, float32, float64)


def full(value: float, like: Any, shape: tuple[int, ...] = ()) -> Any:
    return ops.full(value=value, shape=shape, dtype=like.dtype)


def cut(x: Any, axis: int, start: int, stop: int) -> Any:
    return ops.slice_axis(x, axis, start, stop)


# ---- rules that fire ----------------------------------------------------------------------------

# (rule, function of x, the ops that are left)
FIRES: list[tuple[str, Callable[[Any], Any], list[str]]] = [
    ("neutral-operand", lambda x: ops.exp(ops.mul(x, 1.0)), ["exp"]),
    ("neutral-operand", lambda x: ops.exp(ops.mul(full(1.0, x), x)), ["exp"]),
    ("neutral-operand", lambda x: ops.exp(ops.div(x, 1.0)), ["exp"]),
    ("neutral-operand", lambda x: ops.exp(ops.sub(x, 0.0)), ["exp"]),
    ("neutral-operand", lambda x: ops.exp(ops.add(x, -0.0)), ["exp"]),
    ("neutral-operand", lambda x: ops.exp(ops.pow(x, 1.0)), ["exp"]),
    ("neutral-operand", lambda x: ops.add(ops.exp(x), 0.0), ["exp"]),
    ("neutral-operand", lambda x: ops.add(ops.add(x, 0.0), 0.0), ["add"]),
    ("negate-by-one", lambda x: ops.mul(x, -1.0), ["neg"]),
    ("negate-by-one", lambda x: ops.div(x, -1.0), ["neg"]),
    ("divide-by-power-of-two", lambda x: ops.div(x, 8.0), ["mul"]),
    ("divide-by-power-of-two", lambda x: ops.div(x, -0.25), ["mul"]),
    ("add-of-negation", lambda x: ops.add(ops.exp(x), ops.neg(x)), ["exp", "sub"]),
    ("add-of-negation", lambda x: ops.add(ops.neg(x), ops.exp(x)), ["exp", "sub"]),
    ("add-of-negation", lambda x: ops.sub(ops.exp(x), ops.neg(x)), ["exp", "add"]),
    ("signs-of-a-product", lambda x: ops.mul(ops.neg(x), ops.neg(ops.exp(x))), ["exp", "mul"]),
    ("signs-of-a-product", lambda x: ops.div(ops.neg(x), 3.0), ["div"]),
    ("signs-of-a-product", lambda x: ops.div(2.0, ops.neg(x)), ["div"]),
    ("negation", lambda x: ops.exp(ops.neg(ops.neg(x))), ["exp"]),
    ("negation", lambda x: ops.neg(ops.mul(x, 3.0)), ["mul"]),
    ("negation", lambda x: ops.neg(ops.div(3.0, x)), ["div"]),
    ("idempotent", lambda x: ops.abs(ops.abs(x)), ["abs"]),
    ("idempotent", lambda x: ops.abs(ops.neg(x)), ["abs"]),
    ("idempotent", lambda x: ops.relu(ops.relu(x)), ["relu"]),
    ("idempotent", lambda x: ops.floor(ops.floor(x)), ["floor"]),
    ("idempotent", lambda x: ops.sign(ops.sign(x)), ["sign"]),
    ("small-powers", lambda x: ops.pow(x, 2.0), ["mul"]),
    ("choice-without-a-choice", lambda x: ops.exp(ops.where(ops.gt(x, 0.0), x, x)), ["exp"]),
    (
        "choice-without-a-choice",
        lambda x: ops.where(ops.logical_not(ops.isnan(x)), x, 0.0),
        ["isnan", "where"],
    ),
    ("reduce-unit-axes", lambda x: ops.sum(ops.exp(x), axes=()), ["exp"]),
    ("reduce-unit-axes", lambda x: ops.sum(x, axes=()), ["add"]),
    ("reduce-unit-axes", lambda x: ops.prod(ops.exp(x), axes=()), ["exp"]),
    (
        "reduce-unit-axes",
        lambda x: ops.amax(ops.reshape(x, shape=(3, 1, 64)), axes=(1, 2)),
        ["reshape", "amax"],
    ),
    ("sum-of-negation", lambda x: ops.sum(ops.neg(x), axes=(1,)), ["sum", "sub"]),
    ("copy-is-its-operand", lambda x: ops.exp(ops.copy(x)), ["exp"]),
    ("fold-constants", lambda x: ops.mul(x, ops.exp(full(0.5, x))), ["mul"]),
    ("view-of-constant", lambda x: ops.exp(ops.reshape(full(2.0, x, (6,)), shape=(2, 3))), []),
    ("small-operands", lambda x: ops.mul(x, full(2.0, x, (3, 64))), ["mul"]),
    ("small-operands", lambda x: ops.mul(x, ops.broadcast(cut(x, 0, 0, 1), shape=(3, 64))), None),
    (
        "small-operands",
        lambda x: ops.sum(ops.exp(ops.broadcast(x, shape=(2, 3, 64))), axes=(0,)),
        ["exp", "broadcast", "sum"],
    ),
    ("view-of-all", lambda x: ops.exp(ops.reshape(x, shape=(3, 64))), ["exp"]),
    ("view-of-all", lambda x: ops.exp(ops.permute(x, perm=(0, 1))), ["exp"]),
    ("view-of-all", lambda x: ops.exp(ops.broadcast(x, shape=(3, 64))), ["exp"]),
    ("view-of-all", lambda x: ops.exp(cut(x, 1, 0, 64)), ["exp"]),
    (
        "reshape-of-reshape",
        lambda x: ops.exp(ops.reshape(ops.reshape(x, shape=(192,)), shape=(3, 64))),
        ["exp"],
    ),
    (
        "permute-of-permute",
        lambda x: ops.exp(ops.permute(ops.permute(x, perm=(1, 0)), perm=(1, 0))),
        ["exp"],
    ),
    (
        "permute-of-permute",
        lambda x: ops.exp(
            ops.permute(
                ops.permute(ops.reshape(x, shape=(3, 4, 16)), perm=(1, 2, 0)), perm=(0, 2, 1)
            )
        ),
        ["reshape", "permute", "exp"],
    ),
    ("slice-of-slice", lambda x: ops.exp(cut(cut(x, 1, 8, 40), 1, 2, 9)), ["slice", "exp"]),
    ("slice-of-slice", lambda x: ops.exp(ops.flip(ops.flip(x, 1), 1)), ["exp"]),
    (
        "slice-of-broadcast",
        lambda x: cut(ops.broadcast(x, shape=(5, 3, 64)), 0, 1, 4),
        ["broadcast"],
    ),
    (
        "slice-of-broadcast",
        lambda x: cut(ops.broadcast(x, shape=(5, 3, 64)), 2, 3, 9),
        ["slice", "broadcast"],
    ),
    ("concat-of-pieces", lambda x: ops.concat(cut(x, 1, 0, 9), cut(x, 1, 9, 64), axis=1), None),
    ("concat-of-pieces", lambda x: ops.exp(ops.concat(x, cut(x, 0, 2, 2), axis=0)), ["exp"]),
    (
        "concat-of-pieces",
        lambda x: ops.concat(ops.concat(x, ops.exp(x), axis=1), x, axis=1),
        ["exp", "concat"],
    ),
    (
        "slice-of-concat",
        lambda x: cut(ops.concat(x, ops.exp(x), ops.sin(x), axis=1), 1, 70, 80),
        ["exp", "slice"],
    ),
    (
        "slice-of-scatter",
        lambda x: cut(put(x, ops.sin(cut(x, 1, 4, 9)), 1, 4, 9), 1, 4, 9),
        ["slice", "sin"],
    ),
    (
        "slice-of-scatter",
        lambda x: ops.exp(cut(put(x, ops.sin(cut(x, 1, 4, 9)), 1, 4, 9), 1, 20, 30)),
        ["slice", "exp"],
    ),
    (
        "slice-of-scatter",
        lambda x: ops.exp(cut(put(x, ops.sin(cut(x, 1, 4, 9)), 1, 4, 9), 1, 5, 7)),
        ["slice", "sin", "slice", "exp"],
    ),
    (
        "scatter-into-place",
        lambda x: put(put(x, cut(ops.exp(x), 1, 0, 5), 1, 4, 9), cut(x, 1, 0, 5), 1, 4, 9),
        ["slice", "slice_scatter"],
    ),
    ("scatter-into-place", lambda x: ops.exp(put(x, cut(x, 1, 4, 9), 1, 4, 9)), ["exp"]),
    ("scatter-into-place", lambda x: put(x, ops.exp(x), 1, 0, 64), ["exp"]),
    (
        "permute-of-scatter",
        lambda x: turn(put(turn(x), ops.sin(cut(turn(x), 0, 4, 9)), 0, 4, 9)),
        ["permute", "slice", "sin", "permute", "slice_scatter"],
    ),
    ("sum-of-pieces", lambda x: split_sum(x, 0.0, (0, 20, 50, 64)), None),
    (
        "sum-of-complements",
        lambda x: ops.add(
            put(x, full(0.0, x, (3, 5)), 1, 4, 9),
            put(full(0.0, x, (3, 64)), cut(x, 1, 0, 5), 1, 4, 9),
        ),
        ["slice", "slice_scatter", "add"],
    ),
]


def turn(x: Any) -> Any:
    return ops.permute(x, perm=(1, 0))


def put(x: Any, src: Any, axis: int, start: int, stop: int) -> Any:
    starts, stops = [0] * x.ndim, list(x.shape)
    starts[axis], stops[axis] = start, stop
    return ops.slice_scatter(x, src, starts=tuple(starts), stops=tuple(stops), steps=(1,) * x.ndim)


def split_sum(x: Any, zero: float, edges: tuple[int, ...]) -> Any:
    """The backward of a split: pieces, scattered into zeros and added up in reverse."""
    total = None
    for start, stop in reversed(list(itertools.pairwise(edges))):
        piece = ops.sin(cut(x, 1, start, stop))
        one = put(full(zero, x, (3, 64)), piece, 1, start, stop)
        total = one if total is None else ops.add(total, one)
    return total


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.short)
@pytest.mark.parametrize("at", range(len(FIRES)), ids=lambda at: f"{at}-{FIRES[at][0]}")
def test_rule_fires_and_is_exact(at: int, dtype: DType) -> None:
    name, function, left = FIRES[at]
    log: list[Decision] = []
    after = simplified(pure(function, X.with_dtype(dtype)))
    simplify(pure(function, X.with_dtype(dtype)), log=log)
    assert name in {d.reason for d in log}
    if left is not None:
        assert ops_of(after) == left, str(after)


def test_every_rule_is_tested() -> None:
    names = {r.name for found in RULES.values() for r in found}
    tested = {name for name, _, _ in FIRES} | {"logic", "cast-chain", "diagonal-of-scatter"}
    assert names == tested
    assert {r.group for found in RULES.values() for r in found} == set(GROUPS)


def test_diagonal_of_scatter() -> None:
    def f(x: Any, d: Any) -> Any:
        y = ops.diagonal_scatter(x, d, offset=1, axis1=0, axis2=1)
        return (
            ops.exp(ops.diagonal(y, offset=1, axis1=0, axis2=1)),
            ops.exp(ops.diagonal(y, offset=0, axis1=0, axis2=1)),
        )

    after = simplified(pure(f, TensorType(float32, (4, 4)), TensorType(float32, (3,))))
    assert sorted(ops_of(after)) == ["diagonal", "diagonal_scatter", "exp", "exp"]


@pytest.mark.parametrize("dtype", [float32, float64], ids=lambda d: d.short)
@pytest.mark.parametrize("seed", range(3))
def test_small_powers_are_numpys(dtype: DType, seed: int) -> None:
    """Many bit patterns, since power is not correctly rounded in general."""
    bits = np.random.default_rng(seed).integers(0, 2**63, 100_000, np.uint64)
    words = bits.astype(np.uint32) if dtype is float32 else bits * np.uint64(2)
    x = words.view(dtype.numpy)
    for exponent, op in ((2.0, "mul"), (0.5, "sqrt"), (-1.0, "div")):
        program = pure(lambda x, e=exponent: ops.pow(x, e), TensorType(dtype, x.shape))
        after = simplify(program)
        assert ops_of(after) == [op]
        assert same_bits(interpret(program, x)[0], interpret(after, x)[0])


def test_logic() -> None:
    def f(c: Any, x: Any) -> Any:
        yes = ops.full(value=True, shape=(), dtype=bool_)
        no = ops.full(value=False, shape=(), dtype=bool_)
        return (
            ops.where(ops.logical_not(ops.logical_not(c)), x, 0.0),
            ops.where(ops.logical_and(c, yes), x, 1.0),
            ops.where(ops.logical_or(no, c), x, 2.0),
            ops.where(ops.logical_xor(c, no), x, 3.0),
            ops.where(ops.logical_and(c, no), x, 4.0),
            ops.where(ops.logical_or(c, yes), x, 5.0),
        )

    program = pure(f, TensorType(bool_, (8,)), TensorType(float32, (8,)))
    after = simplified(program)
    assert sorted(ops_of(after)) == ["copy", *["where"] * 4]  # the last is x, which is an input


CAST_CHAINS = [
    (float16, (float32,), float16, 0),
    (bfloat16, (float32,), bfloat16, 0),
    (float32, (float64,), float16, 1),
    (float16, (float32, float64), float32, 1),
    (float32, (float16,), float32, 2),
    (float16, (bfloat16,), float16, 2),
    (int32, (int64,), int8, 1),
    (int64, (int32,), int64, 2),
    (int8, (float32,), float64, 1),
    (int8, (float16,), int8, 0),
    (int64, (float64,), int64, 2),
    (int32, (float64,), int32, 0),
    (uint8, (bfloat16,), int32, 1),
    (int32, (float64,), int8, 2),  # 300.0 to int8 is not what 300 to int8 is
    (bool_, (float32,), bool_, 0),
    (bool_, (int8,), float32, 1),
]


@pytest.mark.parametrize("case", CAST_CHAINS, ids=str)
def test_cast_chains(case: tuple[DType, tuple[DType, ...], DType, int]) -> None:
    first, between, last, left = case

    def f(x: Any) -> Any:
        for dtype in (*between, last):
            x = ops.cast(x, dtype=dtype)
        return ops.concat(x, x, axis=0)  # not itself an output

    after = simplified(pure(f, TensorType(first, (64,))))
    assert ops_of(after).count("cast") == left


# ---- rules that must not fire -------------------------------------------------------------------

STAYS: list[tuple[Callable[[Any], Any], list[str]]] = [
    (lambda x: ops.mul(x, 0.0), ["mul"]),
    (lambda x: ops.add(x, 0.0), ["add"]),
    (lambda x: ops.sub(x, -0.0), ["sub"]),
    (lambda x: ops.add(ops.concat(ops.abs(x), x, axis=1), 0.0), ["abs", "concat", "add"]),
    (lambda x: ops.sub(0.0, x), ["sub"]),
    (lambda x: ops.sub(x, x), ["sub"]),
    (lambda x: ops.div(x, x), ["div"]),
    (lambda x: ops.eq(x, x), ["eq"]),
    (lambda x: ops.div(x, 3.0), ["div"]),
    (lambda x: ops.div(x, 0.0), ["div"]),
    (lambda x: ops.div(1.0, x), ["div"]),
    (lambda x: ops.pow(x, 3.0), ["pow"]),
    (lambda x: ops.mul(ops.mul(x, 3.0), 7.0), ["mul", "mul"]),
    (lambda x: ops.add(ops.add(x, 1.0), 2.0), ["add", "add"]),
    (lambda x: ops.neg(ops.sub(x, 1.0)), ["sub", "neg"]),
    (lambda x: ops.sum(ops.sum(x, axes=(1,)), axes=(0,)), ["sum", "sum"]),
    (lambda x: ops.maximum(x, 0.0), ["maximum"]),
    (lambda x: ops.exp(ops.log(x)), ["log", "exp"]),
    (lambda x: ops.add(cut(x, 1, 0, 5), full(0.0, x, (3, 5))), ["slice", "add"]),
    (lambda x: split_sum(x, 0.0, (0, 20, 50)), None),  # does not fill the axis
    (lambda x: split_sum(x, 1.0, (0, 64)), None),  # not zeros
    (  # they meet in one element
        lambda x: cut(put(x, ops.sin(cut(x, 1, 4, 9)), 1, 4, 9), 1, 0, 5),
        ["slice", "sin", "slice_scatter", "slice"],
    ),
]


@pytest.mark.parametrize("at", range(len(STAYS)))
def test_inexact_identities_are_not_used(at: int) -> None:
    function, left = STAYS[at]
    after = simplified(pure(function, X))
    if left is not None:
        assert ops_of(after) == left
    else:
        assert "concat" not in ops_of(after)


def test_overlapping_pieces_are_added() -> None:
    def f(x: Any) -> Any:
        zeros = full(0.0, x, (3, 64))
        a, b = put(zeros, cut(x, 1, 0, 40), 1, 0, 40), put(zeros, cut(x, 1, 30, 64), 1, 30, 64)
        return ops.add(a, b)

    assert "concat" not in ops_of(simplified(pure(f, X)))


def test_gradient_of_a_split_is_a_concat() -> None:
    def f(x: Any) -> Any:
        q, k, v = (cut(x, 1, a, b) for a, b in ((0, 16), (16, 32), (32, 64)))
        return ops.mul(q, ops.sin(k)), ops.exp(v)

    program = differentiate(functionalize(build(f, X)))
    after = simplify(program)
    verify(after)
    assert "slice_scatter" not in ops_of(after)
    assert ops_of(after).count("concat") == 1
    arrays = random_inputs(program, 0, special=True)
    for x, y in zip(interpret(program, *arrays), interpret(after, *arrays), strict=True):
        assert same_bits(x, y)


def test_integers_wrap() -> None:
    def f(x: Any) -> Any:
        return (
            ops.mul(ops.neg(x), ops.neg(ops.add(x, 1))),
            ops.sub(x, ops.neg(x)),
            ops.mul(ops.neg(x), -128),
            ops.mul(x, 1),
            ops.neg(ops.mul(x, -128)),
        )

    simplified(pure(f, TensorType(int8, (64,))))


def test_folding_gives_what_the_op_gives() -> None:
    """In the op's own dtype: wrapping, rounding and overflowing as it does."""

    def f(x: Any, i: Any) -> Any:
        third = ops.div(full(1.0, x), full(3.0, x))
        large = ops.mul(full(6e4, x), full(10.0, x))
        wrapped = ops.mul(full(100, i), full(3, i))
        power = ops.pow(full(2, i), full(-1, i))
        return ops.add(ops.mul(x, third), large), ops.add(ops.add(i, wrapped), power)

    for dtype in FLOATS:
        after = simplified(pure(f, X.with_dtype(dtype), X.with_dtype(int8)))
        assert not {"div", "pow"} & set(ops_of(after))


# ---- common subexpressions ----------------------------------------------------------------------


def test_equal_expressions_become_one() -> None:
    def f(x: Any) -> Any:
        return ops.mul(ops.exp(ops.mul(x, 2.0)), ops.sin(ops.exp(ops.mul(2.0, x))))

    assert ops_of(simplified(pure(f, X))) == ["mul", "exp", "sin", "mul"]


def test_a_value_that_stays_keeps_its_id() -> None:
    program = pure(lambda x: ops.exp(ops.mul(ops.mul(x, 1.0), 3.0)), X)
    after = simplify(program)
    assert after.outputs[0].value == program.outputs[0].value
    assert {n.result.id for n in after.nodes} <= {n.result.id for n in program.nodes}


def test_constants_are_keyed_by_type_and_bits() -> None:
    def f(x: Any, i: Any) -> Any:
        nan = float("nan")
        return (
            ops.add(ops.mul(x, 0.0), ops.mul(x, -0.0)),  # two
            ops.add(ops.div(x, nan), ops.div(x, nan)),  # one
            ops.add(ops.mul(i, 3), ops.cast(ops.mul(x, 3.0), dtype=int32)),
        )

    program = pure(f, X, X.with_dtype(int32))
    after = simplify(program)
    constants = [(n.attrs["dtype"], n.attrs["value"]) for n in after.nodes if n.op == "full"]
    assert len(constants) == 5
    assert ops_of(after).count("div") == 1 and ops_of(after).count("mul") == 4


def test_order_matters_where_it_matters() -> None:
    def f(x: Any, y: Any) -> Any:
        return (
            ops.sub(ops.maximum(x, y), ops.maximum(y, x)),  # max(0.0, -0.0) is not max(-0.0, 0.0)
            ops.sub(ops.add(x, y), ops.add(y, x)),
            ops.mul(ops.div(x, y), ops.div(y, x)),
            ops.mul(ops.sub(x, y), ops.exp(ops.sub(y, x))),
        )

    found = ops_of(simplified(pure(f, X, X)))
    assert [found.count(op) for op in ("maximum", "add", "div", "sub")] == [2, 1, 2, 4]


def test_random_bits_merge_only_when_the_same_draw() -> None:
    scalar = TensorType(int64, ())

    def f(seed: Any, base: Any) -> Any:
        draws = [ops.random_bits(seed, base, ordinal=o, shape=(4,)) for o in (0, 1, 0)]
        return ops.add(ops.add(draws[0], draws[1]), draws[2])

    program = pure(f, scalar, scalar)
    after = simplify(program)
    assert ops_of(after).count("random_bits") == 2
    arrays = np.array(3), np.array(9)
    assert same_bits(interpret(program, *arrays)[0], interpret(after, *arrays)[0])


def test_inputs_are_themselves() -> None:
    after = simplify(pure(lambda x, y: ops.mul(ops.exp(x), ops.exp(y)), X, X))
    assert ops_of(after).count("exp") == 2


def test_dead_code_goes() -> None:
    def f(x: Any) -> Any:
        ops.exp(ops.sin(x))
        return ops.mul(x, 2.0)

    builder_program = build(f, X, grad=False).replace(stage="functionalize")
    assert ops_of(simplify(builder_program)) == ["mul"]
    assert "exp" in ops_of(simplify(builder_program, rules=["cse"]))


def test_phases_merge_before_partition_and_not_after() -> None:
    builder = Builder(0)
    x = builder.fresh(X)
    with using(builder):
        builder.phase = "forward"
        a = ops.exp(Sym(x))
        builder.phase = "backward"
        b = ops.mul(ops.exp(Sym(x)), 2.0)
    program = Program(
        "p",
        "autodiff",
        (Input(x),),
        tuple(builder.nodes),
        (Output(a.value), Output(b.value)),
        builder.next_id,
    )
    assert ops_of(simplify(program)).count("exp") == 1
    assert ops_of(simplify(program.replace(stage="partition"))).count("exp") == 2
    assert simplify(program.replace(stage="partition")).stage == "partition"


def test_a_merged_value_is_of_the_earlier_phase() -> None:
    """A later forward node reads what the backward made first (two steps in one program)."""
    builder = Builder(0)
    x = builder.fresh(X)
    with using(builder):
        builder.phase = "backward"
        a = ops.mul(ops.exp(ops.sin(Sym(x))), 2.0)
        builder.phase = "forward"
        b = ops.add(ops.exp(ops.sin(Sym(x))), 3.0)
    program = Program(
        "p",
        "autodiff",
        (Input(x),),
        tuple(builder.nodes),
        (Output(a.value), Output(b.value)),
        builder.next_id,
    )
    verify(program)
    after = simplify(program)
    verify(after)
    assert {n.op: n.phase for n in after.nodes if n.op in ("sin", "exp", "add", "mul")} == {
        "sin": "forward",
        "exp": "forward",
        "add": "forward",
        "mul": "backward",
    }


# ---- outputs, groups, stages --------------------------------------------------------------------


def test_outputs_stay_apart() -> None:
    """A clone is a clone, and equal results are two tensors."""

    def f(x: Any) -> Any:
        y = ops.exp(x)
        return ops.copy(x), y, ops.copy(y), ops.mul(y, 1.0), ops.exp(x), y

    program = pure(f, X)
    after = simplified(program)
    ids = [o.value.id for o in after.outputs]
    assert len(set(ids)) == 5 and ids[1] == ids[5]
    assert program.inputs[0].value.id not in ids
    assert ops_of(after).count("exp") == 1 and ops_of(after).count("copy") == 4

    def overwrite(x: Any, y: Any) -> Any:
        ops.write(x, ops.mul(y, 1.0))
        return ops.exp(x)

    after = simplified(pure(overwrite, X, X))
    assert after.outputs[1].value.id not in {i.value.id for i in after.inputs}


def test_an_output_in_c_order_stays_so() -> None:
    """Where a map goes before its operand's repetition, the repetition is copied out."""
    after = simplified(pure(lambda x: ops.exp(ops.broadcast(x, shape=(2, 3, 64))), X))
    assert ops_of(after) == ["exp", "broadcast", "copy"]


def test_views_of_one_storage_stay_views() -> None:
    def f(x: Any) -> Any:
        y = ops.exp(x)
        return cut(y, 0, 0, 2), cut(y, 0, 1, 3), ops.reshape(y, shape=(3, 64))

    after = simplified(pure(f, X))
    assert ops_of(after) == ["exp", "slice", "slice"]


@pytest.mark.parametrize("group", ["cse", "dce", *GROUPS])
def test_groups_can_be_used_alone(group: str) -> None:
    for seed in range(8):
        program = functionalize(Generator(seed).program(steps=20))
        after = simplify(program, rules=[group])
        verify(after)
        arrays = random_inputs(program, seed)
        for x, y in zip(interpret(program, *arrays), interpret(after, *arrays), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-12)
    assert simplify(after, rules=[]) == after


def test_unknown_group() -> None:
    with pytest.raises(ParseError, match=r"no such rules: magic; there are cse, dce, fold"):
        simplify(pure(ops.exp, X), rules=["magic"])


def test_programs_with_writes_are_refused() -> None:
    def f(x: Any) -> Any:
        y = ops.exp(x)
        ops.write(y, ops.mul(y, 2.0))
        return y

    with pytest.raises(VerifyError, match="functionalize"):
        simplify(build(f, X))


def test_what_a_gradient_is_taken_by_is_left_alone() -> None:
    """y and z are equal, but a derivative by y is not one by z."""

    def f(x: Any) -> Any:
        y, z = ops.mul(x, 2.0), ops.mul(x, 2.0)
        v = ops.reshape(ops.reshape(y, shape=(192,)), shape=(3, 64))
        loss = ops.reshape(ops.sum(ops.mul(ops.mul(y, z), v), axes=(0, 1)), shape=())
        builder: Any = ops.mode.engine
        attrs = {"outputs": 1, "cotangents": False, "wrt": 1}
        return Sym(builder.emit("grad", [loss.value, y.value], [X], attrs).result)

    program = pure(f, X)
    early = simplify(program)
    assert early.stage == "functionalize"
    x = random_inputs(program, 0)[0]
    want = interpret(differentiate(program), x)[0]
    np.testing.assert_allclose(interpret(differentiate(early), x)[0], want, rtol=1e-6)


def test_decisions_name_value_and_rule() -> None:
    log: list[Decision] = []
    simplify(pure(lambda x: ops.exp(ops.mul(x, 1.0)), X), log=log)
    assert [(d.kind, d.subject, d.choice, d.reason) for d in log] == [
        ("simplify", 2, "%0", "neutral-operand")
    ]


def test_new_nodes_have_origin_phase_and_line() -> None:
    program = pure(lambda x: ops.div(x, 8.0), X)
    program = program.replace(
        stage="autodiff", nodes=tuple(replace(n, phase="forward") for n in program.nodes)
    )
    after = simplify(program)
    made = next(n for n in after.nodes if n.op == "full")
    assert made.phase == "forward"
    assert [(o.relation, o.id) for o in made.origin] == [("simplified", 2)]


# ---- random programs ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(400, 480))
def test_random_programs_keep_their_bits(seed: int) -> None:
    program = Generator(seed, exact=True).program(steps=4 + seed % 30, grads=seed % 2)
    done = differentiate(functionalize(program), joint=seed % 2 == 0)
    after = simplify(done)
    verify(after)
    assert len(simplify(after).nodes) == len(after.nodes)
    for special in (False, True):
        arrays = random_inputs(done, seed, special)
        for x, y in zip(interpret(done, *arrays), interpret(after, *arrays), strict=True):
            assert same_bits(x, y)


@pytest.mark.parametrize("base", ["[2,1]", "[2,3]"])
def test_pieces_of_other_shapes_are_no_complements(base: str) -> None:
    """A sum broadcasts: the place that one operand clears is not the other's."""
    program = parse(
        f"""
        program f @ autodiff
          input %0: f32[2,1] argument "x"
          input %1: f32[1,1] argument "y"
          %2: f32[1,1] = full() {{value=0.0, shape=[1,1], dtype=f32}} forward
          %3: f32[2,1] = slice_scatter(%0, %2) {{starts=[0,0], stops=[1,1], steps=[1,1]}} forward
          %4: f32{base} = full() {{value=0.0, shape={base}, dtype=f32}} forward
          %5: f32{base} = slice_scatter(%4, %1) {{starts=[0,0], stops=[1,1], steps=[1,1]}} forward
          %6: f32{base} = add(%3, %5) forward
          output user %6
        """
    )
    after = simplify(program, rules=["pieces", "fold"])
    verify(after)
    given = [np.full(s, v, np.float32) for s, v in (((2, 1), 2.0), ((1, 1), 3.0))]
    for a, b in zip(interpret(program, *given), interpret(after, *given), strict=True):
        np.testing.assert_array_equal(a, b)
