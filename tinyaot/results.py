"""How the results of a call are made from what the program gives.

Eager hands out tensors that are arguments, views of them, views of one another, leaves, or cut off
from the tape; what a program gives are arrays. So a capture says for each returned tensor what it
is made of, and a call makes it so: identity, sharing of memory and of autograd history come out as
in eager.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tinyaot import ops
from tinyaot.halves import Uses
from tinyaot.ir import Output, Value
from tinyaot.tape import edge_key, reachable
from tinyaot.tensor import Chain, Edge, Tensor, base_of
from tinyaot.trace import TraceEngine
from tinyaot.traced import Root, Traced


@dataclass(frozen=True, slots=True)
class Result:
    """How to make one returned tensor: a program output, an input or argument itself, or a view of
    one of these or of another result.

    `dead`: the backward inside the function used up its graph, so a later one raises (its position
    among such). `leaf`: the function made it a leaf that requires grad. `edge`: the output whose
    gradient it has (-1: a dead one), where it is cut off from its storage's base.
    """

    kind: Literal["output", "input", "argument", "result"]
    index: int
    views: Chain = ()
    dead: int | None = None
    leaf: bool = False
    edge: int | None = None


class Results:
    """Decides how each returned tensor is made, so that identity and sharing come out right."""

    def __init__(self, engine: TraceEngine, arguments: list[Tensor]) -> None:
        self.engine = engine
        self.arguments = {id(t): i for i, t in enumerate(arguments) if t._chain}
        self.tensors: list[Tensor] = []
        self.index: dict[int, int] = {}
        self.results: list[Result] = []
        self.outputs: list[Output] = []
        self.leaves: set[int] = set()
        self.edges: list[Edge] = []  # of the differentiable outputs
        self.dead: list[tuple[Value, Edge]] = []  # what was used up

    def add(self, tensor: Tensor) -> int:
        """A position in `results`; the same tensor keeps its position."""
        tensor = self.engine.resolve(tensor)
        if id(tensor) not in self.index:
            self.index[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
        return self.index[id(tensor)]

    def resolve(self) -> None:
        sharing: dict[int, list[Tensor]] = {}
        for t in self.tensors:
            sharing.setdefault(id(t._data.root), []).append(t)
        made: dict[int, int] = {}  # id of a tensor -> its program output
        engine = self.engine

        def output(t: Tensor) -> int:
            if id(t) not in made:
                made[id(t)] = len(self.outputs)
                edge = engine.edge(t)
                differentiable = edge is not None and edge is not t and not is_dead(engine, edge)
                if differentiable:
                    self.edges.append(edge)
                elif edge is t:
                    self.leaves.add(made[id(t)])
                self.outputs.append(Output(t._data.value, "user", None, "", differentiable))
            return made[id(t)]

        histories = Counter(t._history for t in self.tensors)
        for t in self.tensors:  # which may grow
            data: Traced = t._data
            edge = engine.edge(t)
            leaf = edge is t
            if id(t) in self.arguments:
                self.results.append(Result("argument", self.arguments[id(t)]))
                continue
            apart = self._is_apart(t)
            own = apart and t._history.requires_grad
            if t._chain and apart and (own or histories[t._history] > 1):
                self.results.append(Result("result", self._base(t), t._chain, self._dead(t)))
                continue
            shared = len(sharing[id(data.root)]) > 1
            again = shared or not t.is_contiguous() or _expands(data.path) or self._of_leaf(t)
            again = bool(data.path) and again  # made anew from its base
            dead, carrier = self._dead(t), None
            if own and not leaf and (data.root.input is not None or again):
                carrier = -1 if dead is not None else output(t)
            if data.root.input is not None:
                source = engine.lifted.index(data.root.input)
                same = engine.lifted[source].shadow is t
                path = () if same else data.path
                self.results.append(Result("input", source, path, dead, leaf and not same, carrier))
            elif again:
                base = data.root.tensor
                assert base is not None
                dead = self._dead(base) if carrier is None else dead
                # From the base on, which is cut off from its first value if it was detach_()ed.
                path = data.path if apart else data.path[len(base._data.path) :]
                self.results.append(Result("output", output(base), path, dead, leaf, carrier))
            else:
                self.results.append(Result("output", output(t), (), dead))

    def _dead(self, t: Tensor) -> int | None:
        """The position of a tensor among those whose graph was used up, if it was."""
        edge = self.engine.edge(t)
        if not is_dead(self.engine, edge):
            return None
        self.dead.append((t._data.value, edge))
        return len(self.dead) - 1

    def _is_apart(self, t: Tensor) -> bool:
        """Whether the history of a tensor is not the one of its storage: a detached one."""
        root: Root = t._data.root
        base = root.tensor if root.input is None else root.input.shadow
        return base is not None and base._history is not t._history

    def _of_leaf(self, t: Tensor) -> bool:
        """Whether a tensor shows a leaf that was made inside: it cannot be written, then."""
        base = t._data.root.tensor
        return base is not None and self.engine.edge(base) is base

    def _base(self, t: Tensor) -> int:
        """The result that is the base of a view's history."""
        same = [x for x in self.tensors if x._history is t._history and not x._chain]
        return self.add(same[0] if same else base_of(t))


def uses_of(
    engine: TraceEngine,
    edge: Edge,
    returned: Sequence[Tensor] = (),
    written: Mapping[int, Tensor] | None = None,
) -> Uses:
    """What a differentiable result depends on, if only with gradient 0; of what is `returned`, and
    of the inputs that were `written`, too."""
    leaves_, nodes = reachable([edge])
    found = {id(x) for x in (*leaves_, *nodes)}
    position = {
        id(at): index
        for index, lifted in enumerate(engine.lifted)
        for at in (lifted.shadow, lifted.outer)
        if at is not None and id(at) in found
    }
    leads: dict[int, int] = {}  # seq of a node -> inputs that it leads to, as bits
    for node in nodes:
        bits = 1 << position[id(node)] if id(node) in position else 0
        for e in node.edges:
            if isinstance(e, Tensor):
                bits |= 1 << position[id(e)] if id(e) in position else 0
            elif e is not None:
                bits |= leads[e[0].seq]
        leads[node.seq] = bits
    saving = {node.seq: leads[node.seq] for node in nodes if node.saves}
    seqs, own = {node.seq for node in nodes if id(node) not in position}, edge_key(edge)

    def on_the_way(t: Tensor) -> bool:
        at = engine.edge(t)
        if isinstance(at, tuple):
            return at[0].seq in seqs and edge_key(at) != own
        return at is not None and id(at) in found and id(at) not in position

    return Uses(
        frozenset(position.values()),
        saving,
        frozenset(i for i, t in enumerate(returned) if on_the_way(t)),
        frozenset(i for i, t in (written or {}).items() if on_the_way(t)),
    )


def _expands(path: Chain) -> bool:
    """Whether a path repeats elements: made anew it repeats them, too, and cannot be written."""
    return any(name == "broadcast" for name, _ in path)


def freed_ops(edges: Sequence[Edge]) -> frozenset[int]:
    """The saving ops on the way from the edges that a backward inside the function used up."""
    return frozenset(node.seq for node in reachable(edges)[1] if node.freed and node.saves)


def is_dead(engine: TraceEngine, edge: Edge) -> bool:
    """Whether every backward from here would go through what was used up."""
    freed = freed_ops([edge])
    return bool(freed) and uses_of(engine, edge).blocked(freed)


def retains_grad(engine: TraceEngine, tensor: Tensor) -> bool:
    """Whether `retain_grad()` was called on a tensor that has a gradient to come."""
    edge = engine.edge(tensor)
    if not isinstance(edge, tuple) or is_dead(engine, edge):
        return False
    held = (edge[0].retained or {}).get(edge[1])
    return held is not None and held() is tensor


def replay(tensor: Tensor, views: Chain) -> Tensor:
    """The views of a returned tensor, made anew on the real one."""
    out: Tensor = ops.replay(tensor, views) if views else tensor
    return out
