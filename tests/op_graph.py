"""A small engine for tests of the rules: build nodes by a Builder, run them by the arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tinyaot import ops
from tinyaot.builder import Builder, Sym
from tinyaot.ops import TABLE
from tinyaot.shapes import TensorType, dtype_of


def type_of(x: np.ndarray) -> TensorType:
    return TensorType(dtype_of(x.dtype), x.shape)


class Graph:
    """Inputs as Syms, nodes by a Builder, values by running the nodes."""

    def __init__(self, *types: TensorType) -> None:
        self.builder = Builder(0)
        self.inputs = [Sym(self.builder.fresh(t)) for t in types]

    def apply(self, name: str, *operands: Any, **attrs: Any) -> Sym:
        with ops.using(self.builder):
            return TABLE[name](*operands, **attrs)

    def gradients(self, outputs: list[Sym], cotangents: list[Sym], wrt: list[Sym]) -> list[Any]:
        """Reverse mode over the nodes so far; None where nothing flows."""
        found: dict[int, Any] = {}

        def add(value_id: int, g: Any) -> None:
            have = found.get(value_id)
            found[value_id] = g if have is None else ops.add(have, g)

        with ops.using(self.builder):
            for y, g in zip(outputs, cotangents, strict=True):
                add(y.value.id, g)
            for node in reversed(list(self.builder.nodes)):
                g, primitive = found.get(node.result.id), TABLE[node.op]
                if g is None or not primitive.differentiable:
                    continue
                operands = [Sym(v) for v in node.inputs]
                for i, x in enumerate(operands):
                    rule = primitive.rule(i)
                    ct = rule(g, Sym(node.result), *operands, **node.attrs) if rule else None
                    if ct is None or not x.dtype.is_floating:
                        continue
                    if primitive.kind == "map":
                        ct = ops.unbroadcast(ct, x.shape)
                    assert (ct.shape, ct.dtype) == (x.shape, x.dtype), (node.op, i)
                    add(x.value.id, ct)
        return [found.get(x.value.id) for x in wrt]

    def run(self, arrays: list[np.ndarray], wanted: list[Sym]) -> list[np.ndarray]:
        env = {s.value.id: x for s, x in zip(self.inputs, arrays, strict=True)}
        with np.errstate(all="ignore"):
            for node in self.builder.nodes:
                args = [env[v.id] for v in node.inputs]
                env[node.result.id] = np.asarray(TABLE[node.op].array(*args, **node.attrs))
        return [env[s.value.id] for s in wanted]


def evaluate(build: Callable[..., Any], *arrays: np.ndarray) -> np.ndarray:
    """The value of `build(*operands)`, written with ops, on arrays."""
    graph = Graph(*map(type_of, arrays))
    with ops.using(graph.builder):
        out = build(*graph.inputs)
    return graph.run(list(arrays), [out])[0]
