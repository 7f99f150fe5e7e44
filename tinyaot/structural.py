"""Nodes that are not primitives: they say where derivatives come from, and are gone after autodiff.

`grad(outputs..., cotangents..., wrt...)` asks for gradients. A function with a rule of its own
(`ta.custom_vjp`) is written down with its rule beside it:

    %2: f32[3] = exp(%0)                                   fwd
    %3: f32[3] = cotangent()                               stands for the cotangent of %5
    %4: f32[3] = mul(%3, %2)                               bwd
    %5: f32[3] = custom_vjp(%2, %3, %0, %4) {outputs=1, wrt=1}

`custom_vjp(outputs..., cotangents..., wrt..., gradients...)` gives its outputs: the same values,
with a history of their own. A gradient does not flow to the outputs that it reads: autodiff writes
bwd again, for the cotangents that there are, and that gives the gradients of wrt. Until then bwd
computes with zeros, for nobody. Whatever bwd reads is differentiated again as it is written, the
residuals through fwd: JAX's meaning, without nested programs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tinyaot.ir import Node, Value

GRAD, CUSTOM, COTANGENT = "grad", "custom_vjp", "cotangent"
STRUCTURAL = frozenset({GRAD, CUSTOM, COTANGENT})


class Grad(NamedTuple):
    """The operands of a `grad` node; without cotangents they are ones."""

    outputs: tuple[Value, ...]
    cotangents: tuple[Value, ...]
    wrt: tuple[Value, ...]


def grad_parts(node: Node) -> Grad:
    """What a `grad` node reads."""
    count, given = int(node.attrs["outputs"]), node.inputs
    first = 2 * count if node.attrs["cotangents"] else count
    return Grad(given[:count], given[count:first], given[first:])


class Custom(NamedTuple):
    """The operands of a `custom_vjp` node."""

    outputs: tuple[Value, ...]
    cotangents: tuple[Value, ...]  # results of `cotangent` nodes
    wrt: tuple[Value, ...]
    gradients: tuple[Value, ...]


def custom_parts(node: Node) -> Custom:
    """What a `custom_vjp` node reads."""
    count, wrt = int(node.attrs["outputs"]), int(node.attrs["wrt"])
    given = node.inputs
    first = 2 * count
    return Custom(
        given[:count], given[count:first], given[first : first + wrt], given[first + wrt :]
    )


def custom_wrt(node: Node) -> range:
    """The positions of the operands that a gradient goes on to."""
    first = 2 * int(node.attrs["outputs"])
    return range(first, first + int(node.attrs["wrt"]))


def depending(nodes: Iterable[Node], on: Iterable[Value]) -> list[Node]:
    """The nodes (of a functional program, in order) that depend on some values."""
    known = {v.id for v in on}
    found = []
    for node in nodes:
        if not known.isdisjoint(v.id for v in node.inputs):
            known.update(r.id for r in node.results)
            found.append(node)
    return found
