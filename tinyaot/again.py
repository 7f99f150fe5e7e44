"""The history of gradients inside a trace.

A trace writes a derivative down as one `grad` node, to be expanded later. What its results depend
on, which of that was freed, and whether they can be differentiated again, is what eager's tape
would say. So the trace walks its own tape as eager does, rules and all, on values that nobody
keeps: only the edges that the walk records are taken from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinyaot import ops
from tinyaot.tape import Only, edge_key, enable_grad, walk
from tinyaot.tensor import Edge, Tensor, TensorEngine


def gradient_edges(
    engine: TensorEngine,
    outputs: Sequence[Tensor],
    cotangents: Sequence[Tensor | None],
    targets: Sequence[Tensor],
    only: Only | None,
) -> list[Edge]:
    """The edge of each target's gradient (None: a constant). What the engine writes down meanwhile
    means nothing."""
    found: dict[Any, Tensor] = {}

    def deliver(edge: Edge, cotangent: Tensor) -> None:
        found[edge_key(edge)] = cotangent

    with enable_grad():
        seeds = [
            ops.full(value=1.0, shape=y.shape, dtype=y.dtype) if c is None else c
            for y, c in zip(outputs, cotangents, strict=True)
        ]
        roots = list(zip(map(engine.edge, outputs), seeds, strict=True))
        walk(roots, deliver, retain_graph=True, create_graph=True, only=only)
        given = [found.get(edge_key(engine.edge(x))) for x in targets]
        # Two gradients may be one cotangent; they are two tensors.
        return [None if g is None else engine.edge(ops.copy(g)) for g in given]
