"""The cost model: what a product pays for packing, and which of nearly equal tiles is taken."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tinyaot.codegen.c import header
from tinyaot.passes.fusion import model
from tinyaot.passes.fusion.forms import to_forms
from tinyaot.passes.fusion.graph import Graph, build
from tinyaot.passes.fusion.machine import Machine
from tinyaot.passes.fusion.op import Op
from tinyaot.passes.fusion.regions import partition
from tinyaot.text import parse


def product(spec: str, a: str, b: str, c: str) -> tuple[Graph, Op]:
    """The graph of one product, and the op."""
    text = f"""program f @ layout
  input %0: f32[{a}] argument "a"
  input %1: f32[{b}] argument "b"
  %2: f32[{c}] = dot(%0, %1) {{spec="{spec}"}} forward
  output user %2
"""
    g = build(to_forms(parse(text)), Machine())
    return g, next(op for op in g.ops if op.form == "dot")


def packing(g: Graph, op: Op, m: int, n: int, k: int) -> float:
    """What a product costs beside its arithmetic, its result and the call."""
    whole = float(model.product_ns(g, op, model.whole))
    return whole - 2 * m * n * k / g.machine.flops - m * n * model.WRITE_C - model.CALL


def test_the_model_knows_when_the_kernel_packs() -> None:
    """Its numbers are those of blocks.h for float32."""
    text = header("blocks.h")
    few, depth = (re.search(rf"#define {name} +(\d+)", text) for name in ("FEW", "KC"))
    block = re.search(r"#define BLOCK \(1 << (\d+)\)", text)
    assert few and int(few[1]) == model.IN_PLACE
    assert depth and int(depth[1]) == model.DEPTH
    assert block and 1 << int(block[1]) == model.BLOCK


@pytest.mark.parametrize(
    ("spec", "a", "b", "n", "k", "packs_a"),
    [
        ("ik,kj->ij", "96,640", "640,128", 128, 640, False),  # few columns use them: in place
        ("ki,kj->ij", "64,96", "64,128", 128, 64, True),  # rows are columns in memory
        ("ik,kj->ij", "96,64", "64,512", 512, 64, False),  # one panel deep: each is read once
        ("ik,kj->ij", "96,640", "640,512", 512, 640, True),
    ],
)
def test_rows_are_packed_unless_they_are_read_in_place(
    spec: str, a: str, b: str, n: int, k: int, packs_a: bool
) -> None:
    g, op = product(spec, a, b, f"96,{n}")
    expected = k * n * model.PACK_B + packs_a * 96 * k * model.PACK_A
    assert packing(g, op, 96, n, k) == pytest.approx(expected)


def test_a_transposed_result_swaps_the_operands() -> None:
    g, op = product("ik,jk->ji", "512,640", "96,640", "96,512")
    assert packing(g, op, 96, 512, 640) == pytest.approx(
        640 * 512 * model.PACK_B + 96 * 640 * model.PACK_A
    )


def test_columns_are_packed_for_every_block_of_rows() -> None:
    one = product("ik,kj->ij", "1024,64", "64,128", "1024,128")
    three = product("ik,kj->ij", "2100,64", "64,128", "2100,128")
    assert packing(*three, 2100, 128, 64) == pytest.approx(3 * packing(*one, 1024, 128, 64))


def test_what_is_read_twice_is_priced_apart() -> None:
    """Prices are kept by signature for all programs: what a plan is must not depend on which came
    before."""

    def signed_and_priced(right: str) -> tuple[object, float]:
        text = f"""program f @ layout
  input %0: f32[1024,1024] argument "a"
  input %1: f32[1024,1024] argument "b"
  %2: f32[1024,1024] = atan2(%0, {right}) forward
  output user %2
"""
        g = build(to_forms(parse(text)), Machine())
        op = next(op for op in g.ops if op.name == "atan2")
        return model.signature(g, op), model.best_block(g, [op], {op: "row"}, g.flat[op][:1], 1)[0]

    (same, less), (other, more) = signed_and_priced("%0"), signed_and_priced("%1")
    assert less < more and same != other


def test_a_plan_does_not_depend_on_addresses() -> None:
    """Members have their own order in a price, not that of a set of objects: without a tile, the
    first to read `b` says whether that costs anything."""
    text = """program f @ layout
  input %0: f32[1,8] argument "a"
  input %1: f32[8,4] argument "b"
  %2: f32[1,1] = amax(%0) {axes=[1]} forward
  %3: f32[1,8] = sub(%0, %2) forward
  %4: f32[1,4] = dot(%3, %1) {spec="ij,jk->ik"} forward
  %5: f32[8,4] = mul(%1, %2) forward
  output user %4
  output user %5
"""
    graphs = [build(to_forms(parse(text)), Machine()) for _ in range(20)]
    plans = [[(r.ns, [op.name for op in r.members]) for r in partition(g, 1)] for g in graphs]
    assert plans[0][0][1] == ["amax", "sub", "dot", "mul"]
    assert all(plan == plans[0] for plan in plans)


def test_of_nearly_equal_tiles_the_smallest_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the least price."""
    g, op = product("ik,kj->ij", "1024,64", "64,128", "1024,128")
    tile = g.flat[op][:1]

    def best(price: Callable[[int], float]) -> tuple[float, int]:
        def region_ns(*args: object) -> object:
            (rows,) = args[4].values()  # type: ignore[attr-defined]
            return [price(int(n)) for n in rows]

        monkeypatch.setattr(model, "region_ns", region_ns)
        ns, block = model.best_block(g, [op], {op: "row"}, tile, 1)
        return ns, block[tile[0]]

    assert best(lambda n: 100.0 if n == 512 else 101.0 if n == 64 else 200.0) == (100.0, 64)
    assert best(lambda n: 100.0 if n == 512 else 110.0) == (100.0, 512)
