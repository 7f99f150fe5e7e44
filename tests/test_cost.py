"""Costs by the table of primitives, and the roofline."""

from __future__ import annotations

from tests.random_programs import random_program
from tinyaot import ops
from tinyaot.builder import Builder, Sym
from tinyaot.cost import FREE, NUMPY_RATES, Cost, Rates, flops_by_phase, node_cost
from tinyaot.ir import Program, Value
from tinyaot.ops.core import using
from tinyaot.passes import partition
from tinyaot.shapes import TensorType, float32

A, B = TensorType(float32, (8, 16)), TensorType(float32, (16, 32))
SLOW_MEMORY = Rates(product=1e9, element=1.0, bandwidth=1e3, node=0.0, origin="a test")
SLOW_PRODUCT = Rates(product=1.0, element=1.0, bandwidth=1e12, node=0.0, origin="a test")


def nodes() -> dict[str, object]:
    builder = Builder(2)
    a, b = Sym(Value(0, A)), Sym(Value(1, B))
    with using(builder):
        c = ops.dot(a, b, spec="ij,jk->ik")
        ops.exp(ops.permute(c, perm=(1, 0)))
        ops.mul(c, 2.0)
        ops.sum(c, axes=(1,))
        ops.mul(c, c)
    return {n.op: n for n in builder.nodes}


def test_flops_and_bytes() -> None:
    found = nodes()
    dot = node_cost(found["dot"])  # type: ignore[arg-type]
    assert dot.flops == 2 * 8 * 16 * 32
    assert dot.bytes == 4 * (8 * 16 + 16 * 32 + 8 * 32)
    assert node_cost(found["exp"]).flops == 8 * 32  # type: ignore[arg-type]
    assert node_cost(found["sum"]).flops == 8 * 32  # type: ignore[arg-type]
    assert node_cost(found["permute"]) == node_cost(found["full"]) == FREE  # type: ignore[arg-type]
    assert node_cost(found["mul"]).bytes == 2 * 4 * 8 * 32  # type: ignore[arg-type]  # c once


def test_the_slower_of_arithmetic_and_traffic() -> None:
    dot = nodes()["dot"]
    assert node_cost(dot, SLOW_MEMORY).seconds == node_cost(dot).bytes / 1e3  # type: ignore[arg-type]
    assert node_cost(dot, SLOW_PRODUCT).seconds == node_cost(dot).flops  # type: ignore[arg-type]
    exp, mul = nodes()["exp"], nodes()["mul"]
    fast = Rates(1e12, 1.0, 1e15, 0.0, "a test")
    assert node_cost(exp, fast).seconds > node_cost(mul, fast).seconds  # type: ignore[arg-type]


def test_sums() -> None:
    assert Cost(1, 2, 3.0) + Cost(10, 20, 30.0) == Cost(11, 22, 33.0)
    program = random_program(2, joint=False)
    total = sum((node_cost(n, NUMPY_RATES) for n in program.nodes), FREE)
    assert total.flops == sum(flops_by_phase(program).values())


def test_recomputation_is_counted_apart() -> None:
    program = random_program(5, joint=True)
    before = flops_by_phase(program)
    after = flops_by_phase(partition(program, strategy="recompute_all"))
    assert before["recompute"] == 0 < after["recompute"]
    assert before["backward"] == after["backward"]
    assert isinstance(program, Program)
