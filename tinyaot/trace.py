"""The tracing engine: running the user's function once writes it down as a Program.

It has three layers, by what they write down: ops on tensors (`op_tracer`), checkpoints and calls
of functions with a rule of their own (`rule_tracer`), and, here, differentiation. `backward` and
`grad` become one `grad` node, expanded later, and `.grad` is state.
"""

from __future__ import annotations

from collections.abc import Sequence

from tinyaot import ops
from tinyaot.again import gradient_edges
from tinyaot.builder import Builder
from tinyaot.errors import GradError, TraceError
from tinyaot.ir import Input
from tinyaot.location import user_location
from tinyaot.rule_tracer import RuleTracer
from tinyaot.shapes import contiguous
from tinyaot.tape import Only, no_grad, nodes_between, reachable
from tinyaot.tensor import Edge, History, NotKept, Tensor, base_of
from tinyaot.traced import Lifted, NeedBases, OuterNode, Root, Traced


class TraceEngine(RuleTracer):
    """Collects a Program while the user's function runs. One trace, one engine."""

    def __init__(self, bases: dict[History, Tensor], depth: int) -> None:
        super().__init__(bases, depth)
        self.grads: dict[int, tuple[Lifted, Tensor | None]] = {}  # `.grad` as assigned in the trace
        self.grads_read: dict[int, tuple[Lifted, Tensor | None]] = {}  # those that were there
        self.outside: list[tuple[Lifted, Lifted]] = []  # gradients by the second, through the first

    def inputs(self) -> tuple[Input, ...]:
        """The inputs of the Program."""
        return tuple(Input(x.value, x.role, x.name, x.requires_grad) for x in self.lifted)

    def get_grad(self, tensor: Tensor) -> Tensor | None:
        shadow = self.resolve(tensor)
        lifted = self._lifted_of(shadow)
        if lifted is None:
            return shadow._grad if isinstance(shadow._grad, Tensor) else None
        if id(lifted) in self.grads:
            return self.grads[id(lifted)][1]
        outside = lifted.source._grad
        if isinstance(outside, NotKept):
            raise GradError(
                "grad: the compiled step before this did not keep gradients; compile it with "
                "keep_grads=True, or call zero_grad() first"
            )
        self.grads_read[id(lifted)] = lifted, outside
        return None if outside is None else self.resolve(outside)

    def set_grad(self, tensor: Tensor, value: Tensor | None) -> None:
        shadow = self.resolve(tensor)
        value = None if value is None else self.resolve(value)
        lifted = self._lifted_of(shadow)
        if lifted is None:
            shadow._grad = value
        else:
            self.grads[id(lifted)] = lifted, value

    def backward(
        self, tensor: Tensor, gradient: Tensor | None, retain_graph: bool, create_graph: bool
    ) -> None:
        self._need_bases()
        tensor = self.resolve(tensor)
        edge = self.start(tensor, gradient, "backward")
        leaves, nodes = reachable([edge])
        targets = [x for x in leaves if x._history.requires_grad]
        if any(isinstance(n, OuterNode) for n in nodes):
            raise TraceError(
                "backward() inside a compiled function reaches an argument that was computed "
                "outside it; compute it inside, detach() it, or call backward() outside"
            )
        for node in nodes:
            for ref in (node.retained or {}).values():
                kept = ref()
                if kept is not None:
                    targets.append(kept)
        for node in nodes:
            node.check_alive()
        again = self._again([tensor], [gradient], targets, create_graph)
        for node in nodes if not retain_graph else ():
            node.free()
        found = self._emit_grad([tensor], [gradient], targets, again)
        for target, total in zip(targets, found, strict=True):
            have = self.get_grad(target)
            if have is None:
                self.set_grad(target, total)
            elif create_graph:
                self.set_grad(target, self.bind(ops.add, (have, total), {}))
            else:
                with no_grad():
                    self.write(have, self.bind(ops.add, (have, total), {}))

    def grad(
        self,
        outputs: Sequence[Tensor],
        inputs: Sequence[Tensor],
        cotangents: Sequence[Tensor | None],
        retain_graph: bool,
        create_graph: bool,
    ) -> list[Tensor | None]:
        self._need_bases()
        outputs = [self.resolve(y) for y in outputs]
        inputs = [self.resolve(x) for x in inputs]
        edges = [self.start(y, c, "grad") for y, c in zip(outputs, cotangents, strict=True)]
        targets = [self.edge(x) for x in inputs]
        only, reached = nodes_between(edges, targets)
        wrt = [x for x, hit in zip(inputs, reached, strict=True) if hit]
        nodes = reachable(edges)[1]
        outer = [x for x in self.lifted if any(x.outer is n for n in nodes)]
        by = [x for x in self.lifted if any(x.shadow is t for t in inputs)]
        self.outside += [(x, y) for x in outer for y in by if x is not y]
        nodes = [n for n in nodes if n.seq in only.through]
        for node in nodes:
            node.check_alive()
        again = self._again(outputs, cotangents, wrt, create_graph, only)
        for node in nodes if not retain_graph else ():
            node.free()
        found = iter(self._emit_grad(outputs, cotangents, wrt, again))
        return [next(found) if hit else None for hit in reached]

    def _again(
        self,
        outputs: Sequence[Tensor],
        cotangents: Sequence[Tensor | None],
        wrt: Sequence[Tensor],
        create_graph: bool,
        only: Only | None = None,
    ) -> list[Edge]:
        """The history of each gradient, if it shall be differentiable again."""
        if not create_graph:
            return [None for _ in wrt]
        kept, self.builder = self.builder, Builder(self.builder.next_id)
        try:
            return gradient_edges(self, outputs, cotangents, wrt, only)
        finally:
            self.builder = kept

    def _need_bases(self) -> None:
        """A gradient by an input has to include what flows through views of it, which then have to
        be views of it in the trace, too."""
        inputs = [x.source for x in self.lifted if x.requires_grad]
        whole = {t._history: t for t in inputs if not t._chain}
        views = [t for t in inputs if t._chain and t._history not in self.bases]
        if views:
            raise NeedBases(
                {
                    t._history: whole[t._history] if t._history in whole else base_of(t)
                    for t in views
                }
            )

    def _emit_grad(
        self,
        outputs: Sequence[Tensor],
        cotangents: Sequence[Tensor | None],
        wrt: Sequence[Tensor],
        again: Sequence[Edge],
    ) -> list[Tensor]:
        if not wrt:
            return []
        self.builder.loc = user_location()
        given = [self.resolve(c) if c is not None else None for c in cotangents]
        explicit = any(c is not None for c in given)
        if explicit:
            given = [
                c if c is not None else self._ones(y) for c, y in zip(given, outputs, strict=True)
            ]
        values = [y._data.value for y in outputs]
        values += [c._data.value for c in given if c is not None]
        values += [x._data.value for x in wrt]
        attrs = {"outputs": len(outputs), "cotangents": explicit, "wrt": len(wrt)}
        node = self.builder.emit("grad", values, [x.type for x in wrt], attrs)
        results = [self._tensor(r, contiguous(r.type.shape), Root()) for r in node.results]
        for result, edge in zip(results, again, strict=True):
            if edge is not None:
                result._history.edge = edge
                result._history.requires_grad = True
            else:  # a constant to later derivatives
                data: Traced = result._data
                data.value = self.builder.emit("detach", (data.value,), (data.value.type,)).result
        return results

    def _ones(self, like: Tensor) -> Tensor:
        ones: Tensor = self.bind(
            ops.full, (), {"value": 1.0, "shape": like.shape, "dtype": like.dtype}
        )
        return ones
