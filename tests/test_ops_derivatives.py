"""The vjp rules: central differences to second order, subgradients, and what rules read."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.op_graph import Graph, type_of
from tests.op_samples import (
    BY_NAME,
    NAMES,
    Case,
    numbers,
)
from tinyaot import ops
from tinyaot import shapes as S
from tinyaot.ops import TABLE


def differentiable_operands(case: Case) -> list[int]:
    primitive = TABLE[case.name]
    if not case.smooth or not primitive.differentiable:
        return []
    result = primitive.infer([type_of(x) for x in case.arrays], case.attrs)
    if not result.dtype.is_floating:
        return []
    return [
        i
        for i, x in enumerate(case.arrays)
        if x.dtype == np.float64 and primitive.rule(i) is not None
    ]


def central(f: Callable[..., float], arrays: list[np.ndarray], i: int, eps: float) -> np.ndarray:
    """df / d arrays[i] by central differences."""
    grad = np.zeros(arrays[i].shape)
    for at in np.ndindex(grad.shape):
        values = []
        for shift in (eps, -eps):
            moved = [x.copy() if j == i else x for j, x in enumerate(arrays)]
            moved[i][at] += shift
            values.append(f(*moved))
        grad[at] = (values[0] - values[1]) / (2 * eps)
    return grad


def or_zero(graph: Graph, g: Any, like: np.ndarray) -> Any:
    return graph.apply("full", value=0.0, shape=like.shape, dtype=S.float64) if g is None else g


@pytest.mark.parametrize("name", [n for n in NAMES if TABLE[n].differentiable])
def test_gradients_to_second_order(name: str) -> None:
    for case in BY_NAME[name]:
        wrt = differentiable_operands(case)
        if not wrt:
            continue
        arrays = list(case.arrays)
        result = TABLE[name].infer([type_of(x) for x in arrays], case.attrs)
        c = numbers(*result.shape, seed=7)
        directions = [numbers(*arrays[i].shape, seed=20 + i) for i in wrt]
        everything = [*arrays, c, *directions]
        graph = Graph(*map(type_of, everything))
        xs, cotangent = graph.inputs[: len(arrays)], graph.inputs[len(arrays)]
        variables = [xs[i] for i in wrt]
        y = graph.apply(name, *xs, **case.attrs)
        first = graph.gradients([y], [cotangent], variables)
        first = [or_zero(graph, g, arrays[i]) for g, i in zip(first, wrt)]
        # Second order: of sum(direction * first), by the operands and by the cotangent too.
        seconds = [*variables, cotangent]
        second = graph.gradients(first, graph.inputs[len(arrays) + 1 :], seconds)
        places = [*wrt, len(arrays)]
        second = [or_zero(graph, g, everything[i]) for g, i in zip(second, places)]

        def value(*moved: np.ndarray, graph=graph, y=y, c=c) -> float:  # type: ignore[no-untyped-def]
            return float(np.sum(graph.run(list(moved), [y])[0] * c))

        def slope(*moved: np.ndarray, graph=graph, first=first, to=directions) -> float:  # type: ignore[no-untyped-def]
            return float(sum(np.sum(f * d) for f, d in zip(graph.run(list(moved), first), to)))

        found = graph.run(everything, first)
        for i, g in zip(wrt, found):
            want = central(value, everything, i, 1e-6)
            np.testing.assert_allclose(g, want, rtol=1e-6, atol=1e-7, err_msg=f"{case} by {i}")
        for i, g in zip(places, graph.run(everything, second)):
            want = central(slope, everything, i, 1e-6)
            np.testing.assert_allclose(
                g, want, rtol=1e-6, atol=1e-6, err_msg=f"{case}: second order by {i}"
            )


def reads(case: Case, operand: int) -> frozenset[str]:
    """What the rule of an operand reads: g, y, and operands by position, by dataflow."""
    primitive = TABLE[case.name]
    types = [type_of(x) for x in case.arrays]
    result = primitive.infer(types, case.attrs)
    graph = Graph(result, result, *types)
    g, y, *operands = graph.inputs
    with ops.using(graph.builder):
        ct = primitive.rule(operand)(g, y, *operands, **case.attrs)  # type: ignore[misc]
    names = {s.value.id: n for s, n in zip(graph.inputs, ["g", "y", *map(str, range(len(types)))])}
    live = {ct.value.id}
    for node in reversed(graph.builder.nodes):
        if node.result.id in live:
            live.update(v.id for v in node.inputs)
    return frozenset(names[i] for i in live if i in names)


@pytest.mark.parametrize("name", [n for n in NAMES if TABLE[n].differentiable])
def test_what_a_rule_reads_does_not_depend_on_the_sample(name: str) -> None:
    """Only the mode of a scatter may change it: what a tape keeps is found once for each."""
    found: dict[Any, set[frozenset[str]]] = {}
    for case in BY_NAME[name]:
        for i in differentiable_operands(case):
            key = min(i, 0) if name == "concat" else i
            read = {
                r if not r.isdigit() else "x" if name == "concat" else r for r in reads(case, i)
            }
            if name in ("gather", "scatter"):  # variadic in its indices
                fixed = 1 if name == "gather" else 2
                read = {r if not r.isdigit() or int(r) < fixed else "indices" for r in read}
            found.setdefault((key, case.attrs.get("mode")), set()).add(frozenset(read))
    for key, sets in found.items():
        assert len(sets) == 1, (name, key, sets)


def test_rules_read_as_little_as_they_can() -> None:
    """The tape keeps what a rule reads, so these are memory."""
    want = {
        ("add", 0): "g", ("sum", 0): "g", ("exp", 0): "gy", ("tanh", 0): "gy", ("relu", 0): "gy",
        ("sigmoid", 0): "gy", ("sqrt", 0): "gy", ("mul", 0): "g1", ("mul", 1): "g0",
        ("dot", 0): "g1", ("dot", 1): "g0", ("where", 1): "g0", ("cumsum", 0): "g",
        ("slice", 0): "g", ("gather", 0): "g1", ("log", 0): "g0", ("prod", 0): "g0",
        ("floor", 0): "", ("concat", 0): "g", ("slice_scatter", 0): "g", ("set_value", 0): "g",
    }  # fmt: skip
    for (name, i), read in want.items():
        assert reads(BY_NAME[name][0], i) == set(read), (name, i)


def test_subgradients_are_torchs() -> None:
    def slope(name: str, *values: Any, operand: int = 0, **attrs: Any) -> list[float]:
        arrays = [np.array(v, np.float64) for v in values]
        graph = Graph(*map(type_of, arrays))
        y = graph.apply(name, *graph.inputs, **attrs)
        one = graph.apply("full", value=1.0, shape=y.shape, dtype=S.float64)
        (g,) = graph.gradients([y], [one], [graph.inputs[operand]])
        found: list[float] = graph.run(arrays, [g])[0].tolist()
        return found

    inf = math.inf
    assert slope("relu", [0.0, -1, 2]) == [0, 0, 1]
    assert slope("abs", [0.0, -1, 2]) == [0, -1, 1]
    assert slope("sqrt", [0.0, 4]) == [inf, 0.25]
    assert slope("maximum", [1.0, 2, 3], [1.0, 3, 2]) == [0.5, 0, 1]
    assert slope("minimum", [1.0, 2, 3], [1.0, 3, 2], operand=1) == [0.5, 0, 1]
    assert slope("pow", [0.0] * 4, [0, 1, 2, 0.5]) == [0, 1, 0, inf]
    assert slope("pow", [0.0] * 4, [0, 1, 2, 0.5], operand=1) == [0, 0, 0, 0]
    assert slope("amax", [[1.0, 3, 3], [2, 2, 2]], axes=(1,)) == [[0, 0.5, 0.5], [1 / 3] * 3]
    assert slope("amin", [[1.0, 3, 3], [2, 2, 2]], axes=(0,)) == [[1, 0, 0], [0, 1, 1]]
    assert slope("cumprod", [2.0, 0, 3, 4], axis=0) == [1, 32, 0, 0]
    assert slope("prod", [[2.0, 0, 3]], axes=(0, 1)) == [[0, 6, 0]]
    assert slope("prod", [[0.0, 0, 3]], axes=(1,)) == [[0, 0, 0]]
    assert slope("floor", [0.5, inf]) == [0, 0]
    # The winner of several writes gets the gradient, and what was overwritten none.
    index = np.array([1, 0, 1])
    base, src = np.zeros(3), np.array([1.0, 2, 3])
    for operand, want in ((0, [0, 0, 1]), (1, [0, 1, 1])):
        graph = Graph(type_of(base), type_of(src), type_of(index))
        for name, attrs in (("scatter", {"axes": (0,)}), ("put_along", {"axis": 0})):
            y = graph.apply(name, *graph.inputs, mode="set", **attrs)
            one = graph.apply("full", value=1.0, shape=(3,), dtype=S.float64)
            (g,) = graph.gradients([y], [one], [graph.inputs[operand]])
            value, found = graph.run([base, src, index], [y, g])
            assert (value.tolist(), found.tolist()) == ([2, 3, 0], want)


def test_detach_and_set_value_stop_gradients() -> None:
    assert TABLE["detach"].rule(0) is None
    assert TABLE["set_value"].rule(1) is None
    assert TABLE["gather"].rule(1) is None and TABLE["scatter"].rule(2) is None
    assert not TABLE["argmax"].differentiable and not TABLE["random_bits"].differentiable
