"""What a node costs: floating-point operations, bytes moved, and seconds by a roofline.

The roofline (Williams, Waterman and Patterson, CACM 2009) says that a node takes as long as the
slower of its arithmetic and its traffic: `max(flops / rate, bytes / bandwidth)`. Products run at
the rate of the matrix units; every other op has its own price an element in the table of
primitives, since a tanh costs more than an add.

Code that fuses pays for bytes elsewhere: what passes between ops of a loop costs nothing, and a
value that waits for the backward is written once and read once. `Rates.saved` is the price of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tinyaot.ir import Node, Phase, Program
from tinyaot.ops.core import TABLE, Primitive


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast a machine is. Times are predictions: only their ratios decide anything."""

    product: float  # FLOP/s of a large matrix product
    element: float  # how many elements in parallel, relative to one core's `Primitive.weight`
    bandwidth: float  # bytes/s, read plus written
    node: float  # seconds to start one node
    origin: str  # where these figures come from
    product_start: float = 0.0  # seconds to start a product, besides `node`: small ones are slow
    saved: float = 0.0  # seconds for each byte kept for the backward; 0: nodes pay for bytes
    inline: float = 0.0  # seconds an element: cheaper maps are made anew by every loop, not kept
    ops: Mapping[str, float] = field(default_factory=dict)  # ns an element, where not `weight`


NUMPY_RATES = Rates(
    product=80e9,
    element=1.0,
    bandwidth=40e9,
    node=1e-6,
    origin="one core of an AMD Zen 3 server, NumPy 2.4 with OpenBLAS, 2026: products of 128^3, "
    "loops over 20,000 float32; what NumPy and SciPy take longer for than vector code has its own "
    "price",
    product_start=5e-6,
    ops={
        "atan2": 24.0,
        "erf": 13.0,
        "exp": 2.2,
        "expm1": 17.0,
        "floordiv": 18.0,
        "log": 2.4,
        "log1p": 18.0,
        "pow": 6.0,
        "random_bits": 20.0,
        "remainder": 8.0,
        "sigmoid": 3.0,
        "sin": 2.6,
        "cos": 2.6,
        "tan": 20.0,
        "tanh": 3.5,
        "where": 3.7,
    },
)


@dataclass(frozen=True, slots=True)
class Cost:
    """FLOPs by the usual convention, bytes read and written, predicted seconds."""

    flops: int = 0
    bytes: int = 0
    seconds: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.flops + other.flops, self.bytes + other.bytes, self.seconds + other.seconds
        )

    def part(self, share: float) -> Cost:
        """The cost of a share of it."""
        return Cost(round(share * self.flops), round(share * self.bytes), share * self.seconds)


FREE = Cost()


def _elements(primitive: Primitive, node: Node) -> int:
    """How often the op's scalar work is done: along reduced axes too."""
    if primitive.kind in ("reduce", "scan"):
        return node.inputs[0].type.size
    return sum(r.type.size for r in node.results)


def node_flops(node: Node) -> int:
    """The FLOPs of one node."""
    primitive = TABLE.get(node.op)
    if primitive is None or node.op == "full" or primitive.may_alias:
        return 0
    types = [v.type for v in node.inputs]
    return sum([primitive.flops(types, r.type, node.attrs) for r in node.results])


def node_cost(node: Node, rates: Rates = NUMPY_RATES, *, copies: bool = False) -> Cost:
    """The cost of one node on its own (not fused with its neighbours), or of one region. Constants
    cost nothing, and nor do views; `copies`: unless this is one that strides cannot express."""
    if node.body is not None:
        return _region_cost(node, rates)
    primitive = TABLE.get(node.op)
    if primitive is None or node.op == "full" or (primitive.may_alias and not copies):
        return FREE
    flops = node_flops(node)
    # An operand read twice, or broadcast, comes from memory once.
    moved = sum({v.id: v.type.nbytes for v in (*node.inputs, *node.results)}.values())
    if primitive.kind == "dot":
        arithmetic = flops / rates.product + rates.product_start
    else:
        weight = rates.ops.get(node.op, primitive.weight)
        arithmetic = _elements(primitive, node) * weight * 1e-9 / rates.element
    return Cost(flops, moved, rates.node + max(arithmetic, moved / rates.bandwidth))


def _region_cost(node: Node, rates: Rates) -> Cost:
    """All arithmetic of the body, and the bytes that cross its border."""
    assert node.body is not None
    inside = sum((node_cost(n, rates) for n in node.body.nodes), FREE)
    moved = sum(v.type.nbytes for v in (*node.inputs, *node.results))
    return Cost(inside.flops, moved, rates.node + max(inside.seconds, moved / rates.bandwidth))


def is_recomputed(node: Node) -> bool:
    """Whether the node repeats a forward computation (a clone made by partition)."""
    return bool(node.origin) and any(o.relation == "recompute-of" for o in node.origin)


def flops_by_phase(program: Program) -> dict[str, int]:
    """FLOPs of `forward`, `backward`, `recompute` (clones, not counted as backward) and
    `update`."""
    found = {"forward": 0, "backward": 0, "recompute": 0, "update": 0}
    for node in program.computed.values():
        phase: Phase = node.phase or "forward"
        found["recompute" if is_recomputed(node) else phase] += node_flops(node)
    return found
