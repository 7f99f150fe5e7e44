"""Eager autograd: a runtime tape of backward closures.

Every recorded op makes a `TapeNode` that knows where its operands' cotangents go (its edges) and
holds what its vjp rules read (saved handles). `backward` walks the nodes from the last made to the
first, which is a reverse topological order, since a node is made after those it leads to. Nodes
point only backwards, so the tape has no reference cycles and is freed as soon as it is dropped
(the design of PyTorch's autograd engine; the walk by creation order is Chainer's).
"""

from __future__ import annotations

import functools
import heapq
import itertools
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from tinyaot import ops
from tinyaot.builder import Builder, Sym
from tinyaot.errors import DTypeError, GradError
from tinyaot.ir import Value, live_nodes
from tinyaot.ops.core import Primitive, mode, using
from tinyaot.shapes import DType, Shape, TensorType, numpy_to_dtype
from tinyaot.tensor import Chain, Edge, SavedHandle, Tensor

_sequence = itertools.count()
F = TypeVar("F", bound=Callable[..., Any])


# ---- modes --------------------------------------------------------------------------------------


class _GradMode:
    """A context manager and decorator that sets whether the tape records, in this thread."""

    enabled: bool

    def __init__(self, fn: Any = None) -> None:
        self.stack: list[bool] = []

    def __new__(cls, fn: Any = None) -> Any:
        self = super().__new__(cls)
        if fn is None:
            return self
        if not callable(fn):
            raise DTypeError(f"{cls.__name__} takes a function to decorate, or nothing: got {fn!r}")
        self.__init__()  # type: ignore[misc]
        return self(fn)  # `@no_grad` without parentheses

    def __enter__(self) -> None:
        self.stack.append(mode.grad_enabled)
        mode.grad_enabled = self.enabled

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        mode.grad_enabled = self.stack.pop()

    def __call__(self, fn: F) -> F:
        @functools.wraps(fn)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with type(self)():
                return fn(*args, **kwargs)

        return cast(F, wrapped)


class no_grad(_GradMode):
    """Record nothing: results do not require grad, and in-place writes are hidden from autograd."""

    enabled = False


class enable_grad(_GradMode):
    """Record again inside a `no_grad` block."""

    enabled = True


class quiet:
    """Silence NumPy's floating-point warnings; nested uses cost next to nothing."""

    def __enter__(self) -> None:
        self.errstate = None if mode.quiet else np.errstate(all="ignore")
        if self.errstate is not None:
            mode.quiet = True
            self.errstate.__enter__()

    def __exit__(self, *exc: Any) -> None:
        if self.errstate is not None:
            mode.quiet = False
            self.errstate.__exit__(*exc)


# ---- what a rule reads --------------------------------------------------------------------------


class Unread:
    """Stands for an operand that no needed rule reads: it has a type, and no elements."""

    __slots__ = ("_dtype", "shape")

    def __init__(self, shape: Shape, dtype: np.dtype[Any]) -> None:
        self.shape = shape
        self._dtype = dtype

    @property
    def dtype(self) -> DType:
        return numpy_to_dtype(self._dtype)

    @property
    def ndim(self) -> int:
        return len(self.shape)


class Reads(NamedTuple):
    """Which operands rules read, and whether they read the result, and the cotangent."""

    operands: tuple[int, ...]
    result: bool
    cotangent: bool


_reads: dict[tuple[Primitive, Any, tuple[bool, ...]], Reads] = {}


def rule_reads(
    primitive: Primitive,
    needed: tuple[bool, ...],
    types: Callable[[], tuple[Sequence[TensorType], TensorType]],
    attrs: dict[str, Any],
) -> Reads:
    """What the rules of the needed operands read.

    Found by writing the rules as IR once, for operands and a result of the given `types`, and
    looking at what the live nodes use; a property of the primitive (and the mode of a scatter)
    alone, so it is found once.
    """
    key = primitive, attrs.get("mode"), needed
    found = _reads.get(key)
    if found is not None:
        return found
    operands, result = types()
    builder = Builder(len(operands) + 2)
    args = [Sym(Value(i, t)) for i, t in enumerate(operands)]
    y, g = Sym(Value(len(operands), result)), Sym(Value(len(operands) + 1, result))
    roots = []
    with using(builder):
        for i, need in enumerate(needed):
            rule = primitive.rule(i) if need else None
            contribution = rule(g, y, *args, **attrs) if rule is not None else None
            if isinstance(contribution, Sym):
                roots.append(contribution.value)
    used = {v.id for n in live_nodes(builder.nodes, roots) for v in n.inputs}
    used |= {v.id for v in roots}
    read = tuple(i for i in range(len(operands)) if i in used)
    found = Reads(read, y.value.id in used, g.value.id in used)
    _reads[key] = found
    return found


# ---- nodes --------------------------------------------------------------------------------------


INSIDE = (
    "grad: of one result of a compiled function by another: results have no gradients by one "
    "another; compute this gradient inside the function"
)


class TapeNode:
    """One recorded operation. `edges`: where each operand's cotangent goes; `outputs`: how many
    results; `saves`: whether its backward needs saved values, so that it can run only once."""

    __slots__ = ("__weakref__", "edges", "freed", "outputs", "retained", "saves", "seq")
    name = "node"

    def __init__(self, edges: Sequence[Edge], saves: bool = False, outputs: int = 1) -> None:
        self.edges = list(edges)
        self.saves = saves
        self.outputs = outputs
        self.freed = False
        self.seq = next(_sequence)
        self.retained: dict[int, weakref.ref[Tensor]] | None = (
            None  # non-leaf tensors that keep their gradient
        )

    def pull(self, cotangents: list[Tensor | None], create_graph: bool) -> Sequence[Tensor | None]:
        """The cotangent of each operand (None where its edge is None or nothing flows)."""
        raise NotImplementedError

    def edges_from(self, index: int) -> Sequence[Edge]:
        """The edges that the cotangent of one result leads to."""
        return self.edges

    def hides(self, index: int) -> Collection[Any]:
        """Keys of edges that lie inside the node, on the way from one result."""
        return ()

    def limit(self, wanted: list[bool] | None) -> None:
        """Before `pull`: which edges' cotangents are wanted (None: all)."""

    def check_alive(self) -> None:
        """Raise GradError if the values that the backward needs were freed by an earlier one."""
        if self.freed and self.saves:
            raise GradError(
                f"backward a second time through {self.name}: its saved values were freed by the "
                f"first; pass retain_graph=True to the first backward"
            )

    def free(self) -> None:
        """Drop the saved values."""
        self.freed = True

    def __repr__(self) -> str:
        return f"<tape node {self.name}>"


class PrimitiveNode(TapeNode):
    """The closure of one primitive's call: its vjp rules, over the saved handles."""

    __slots__ = ("attrs", "operands", "primitive", "result")

    def __init__(
        self,
        primitive: Primitive,
        attrs: dict[str, Any],
        edges: Sequence[Edge],
        operands: list[Any],  # SavedHandle, Unread, or a Python scalar
        result: Any,  # SavedHandle or Unread
        saves: bool,
    ) -> None:
        super().__init__(edges, saves)
        self.primitive = primitive
        self.attrs = attrs
        self.operands = operands
        self.result = result

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.primitive.name

    def pull(self, cotangents: list[Tensor | None], create_graph: bool) -> Sequence[Tensor | None]:
        g = cotangents[0]
        args = [unpack(x, create_graph) for x in self.operands]
        y = unpack(self.result, create_graph, (self, 0))
        return [
            None if edge is None else ops.pull(self.primitive, i, g, y, args, self.attrs)
            for i, edge in enumerate(self.edges)
        ]

    def free(self) -> None:
        super().free()
        if self.saves:
            self.operands = []
            self.result = None


def unpack(saved: Any, create_graph: bool, edge: Edge = None) -> Any:
    """A saved value as a tensor again; on the tape again only if a graph is wanted."""
    if not isinstance(saved, SavedHandle):
        return saved
    tensor = Tensor(saved.array)
    if create_graph:
        tensor._history.edge = edge if edge is not None else saved.edge
        tensor._history.requires_grad = tensor._history.edge is not None
        tensor._history.storage = saved.storage  # what saves it again must hear of writes, too
    return tensor


class WriteNode(TapeNode):
    """A write through a view: the base's cotangent is cleared where the view is, the source's is
    the view of it."""

    __slots__ = ("chain",)
    name = "write"

    def __init__(self, base: Edge, source: Edge, chain: Chain) -> None:
        super().__init__([base, source])
        self.chain = chain

    def pull(self, cotangents: list[Tensor | None], create_graph: bool) -> Sequence[Tensor | None]:
        g = cast(Tensor, cotangents[0])
        view = ops.replay(g, self.chain)
        base = None
        if self.edges[0] is not None:
            base = ops.scatter_back(g, self.chain, ops.zeros_like(view))
        return base, view if self.edges[1] is not None else None


# ---- walking the tape ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Only:
    """What a walk to some targets visits: seqs of the nodes to pull through, the edges (seq, index)
    that cotangents take, and ids of the leaves that are targets."""

    through: set[int]
    edges: set[tuple[int, int]]
    leaves: set[int]

    def wants(self, edge: Edge) -> bool:
        """Whether a cotangent has to arrive there."""
        if isinstance(edge, Tensor):
            return id(edge) in self.leaves
        return edge is not None and (edge[0].seq, edge[1]) in self.edges


def walk(
    roots: Sequence[tuple[Edge, Tensor]],
    deliver: Callable[[Edge, Tensor], None],
    retain_graph: bool,
    create_graph: bool,
    only: Only | None = None,
) -> None:
    """Pull cotangents from the roots back to the leaves, newest node first.

    `deliver(edge, cotangent)` gets the total of each leaf, and of each retained or wanted result of
    a node (an edge `(node, index)`). `only`: what to visit, where that shall not be all.
    """
    pending: dict[int, tuple[TapeNode, list[Tensor | None]]] = {}
    heap: list[int] = []
    leaves: dict[int, tuple[Tensor, Tensor]] = {}

    def arrive(edge: Edge, cotangent: Tensor) -> None:
        if isinstance(edge, Tensor):
            have = leaves.get(id(edge))
            total = cotangent if have is None else ops.add(have[1], cotangent)
            leaves[id(edge)] = edge, total
        elif edge is not None:
            node, index = edge
            if only is not None and not only.wants(edge):
                return
            entry = pending.get(node.seq)
            if entry is None:
                entry = pending[node.seq] = (node, [None] * node.outputs)
                heapq.heappush(heap, -node.seq)
            have_ = entry[1][index]
            entry[1][index] = cotangent if have_ is None else ops.add(have_, cotangent)

    for edge, cotangent in roots:
        arrive(edge, cotangent)
    while heap:
        node, cotangents = pending.pop(-heapq.heappop(heap))
        for index, total in enumerate(cotangents):
            if total is not None:
                deliver((node, index), total)
        if only is not None and node.seq not in only.through:
            continue
        node.check_alive()
        node.limit(None if only is None else [only.wants(e) for e in node.edges])
        for edge, contribution in zip(node.edges, node.pull(cotangents, create_graph), strict=True):
            if edge is not None and contribution is not None:
                arrive(edge, contribution)
        if not retain_graph:
            node.free()
    for leaf, total in leaves.values():
        deliver(leaf, total)


def nodes_between(roots: Sequence[Edge], targets: Sequence[Edge]) -> tuple[Only, list[bool]]:
    """What a walk from the roots to the targets visits (its `only`), and which it reaches.

    Raises GradError where a target is hidden inside a node.
    """
    keys = {edge_key(t) for t in targets}
    found: dict[tuple[int, int], Sequence[Edge]] = {}
    leaves: set[int] = set()
    stack = list(roots)
    while stack:
        edge = stack.pop()
        if isinstance(edge, Tensor):
            leaves.add(id(edge))
        elif edge is not None:
            node, index = edge
            if (node.seq, index) not in found:
                if not keys.isdisjoint(node.hides(index)):
                    raise GradError(INSIDE)
                found[node.seq, index] = edges = node.edges_from(index)
                stack.extend(edges)
    goal_leaves = {id(t) for t in targets if isinstance(t, Tensor)}
    goals = {(t[0].seq, t[1]) for t in targets if isinstance(t, tuple)}
    only = Only(set(), goals.copy(), goal_leaves)
    for seq, index in sorted(found):  # an edge leads to an older node
        if any(only.wants(e) for e in found[seq, index]):
            only.through.add(seq)
            only.edges.add((seq, index))
    hit = [
        id(t) in leaves if isinstance(t, Tensor) else t is not None and (t[0].seq, t[1]) in found
        for t in targets
    ]
    return only, hit


def edge_key(edge: Edge) -> Any:
    """What tells edges apart."""
    return id(edge) if isinstance(edge, Tensor) else edge and (edge[0].seq, edge[1])


def reachable(roots: Sequence[Edge]) -> tuple[list[Tensor], list[TapeNode]]:
    """All that the roots depend on: leaves in the order met, nodes from the oldest on."""
    leaves: dict[int, Tensor] = {}
    nodes: dict[int, TapeNode] = {}
    stack = list(roots)
    while stack:
        edge = stack.pop()
        if isinstance(edge, Tensor):
            leaves.setdefault(id(edge), edge)
        elif edge is not None and edge[0].seq not in nodes:
            nodes[edge[0].seq] = edge[0]
            stack.extend(edge[0].edges)
    return list(leaves.values()), [nodes[seq] for seq in sorted(nodes)]
