"""The second layer of a trace: checkpoint regions, and functions with a rule of their own.

A rule is written down where the function is called: fwd inline, then bwd inline on values that
stand for the cotangents, then the node that ties the two together (see `structural`). Whether
anybody differentiates is not known yet; what nobody needs is dead code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tinyaot import ops
from tinyaot.errors import GradError, MutationError
from tinyaot.inside import DRAW_IN_FORWARD, WRITE_OUTSIDE
from tinyaot.location import user_location
from tinyaot.op_tracer import OpTracer
from tinyaot.rules import Rule, RuleNode, form_of, run_forward
from tinyaot.shapes import contiguous
from tinyaot.structural import COTANGENT, CUSTOM
from tinyaot.tensor import History, Tensor
from tinyaot.traced import NeedDepth, Root
from tinyaot.tree import fill, flatten


class RuleTracer(OpTracer):
    """`depth`: how deep calls of a function by its own fwd are written down by its rule."""

    def __init__(self, bases: dict[History, Tensor], depth: int) -> None:
        super().__init__(bases)
        self.depth = depth
        self.regions = 0  # checkpoints so far
        self.shallow = False  # whether such a call was not, in the fwd that runs
        self.pure: tuple[str, int] | None = None  # what may write only to values from this id on

    @contextmanager
    def checkpoint(self) -> Iterator[None]:
        """Nodes are of a new checkpoint region, within those there are."""
        outer = self.builder.checkpoint
        self.regions += 1
        self.builder.checkpoint = (*outer, self.regions)
        try:
            yield
        finally:
            self.builder.checkpoint = outer

    # ---- rules ----------------------------------------------------------------------------------

    def custom(self, rule: Rule, args: Sequence[Any]) -> Any:
        """Write down a call of a function by its rule."""
        first = self.builder.next_id
        edges = [self.edge(t) for t in flatten(list(args))[0]]
        outer, self.shallow = self.shallow, False
        within = self.purely(f"custom_vjp: fwd of {rule.name}")
        outputs, out, kept, residuals, wrt = run_forward(
            self, rule, args, within, lambda t: self._is_made_since(t, first)
        )
        shallow, self.shallow = self.shallow, outer
        outputs = [self.resolve(y) for y in outputs]
        floating = [y for y in outputs if y.dtype.is_floating]
        if not floating:
            return fill(out, [self._apart(y, first) for y in outputs])
        node = _TracedRule(
            rule,
            args,
            edges,
            [self.save(t, self.edge(t)) for t in map(self.resolve, kept)],
            residuals,
            [y.type for y in floating],
            form_of(out, outputs),
        )
        node.tracer, node.shallow = self, shallow
        cotangents = [self._cotangent(y) for y in floating]
        found = node.answer(fill(residuals, kept), cotangents, False)
        self.builder.loc = user_location()
        tensors = [*floating, *cotangents, *wrt, *map(self.resolve, found)]
        made = self.builder.emit(
            CUSTOM,
            [t._data.value for t in tensors],
            [y.type for y in floating],
            {"outputs": len(floating), "wrt": len(wrt)},
        )
        floats = []
        for index, value in enumerate(made.results):
            y = self._tensor(value, contiguous(value.type.shape), Root())
            y._history.edge = node, index
            y._history.requires_grad = True
            floats.append(y)
        rest = iter(floats)
        return fill(
            out, [next(rest) if y.dtype.is_floating else self._apart(y, first) for y in outputs]
        )

    def _cotangent(self, like: Tensor) -> Tensor:
        self.builder.loc = user_location()
        value = self.builder.emit(COTANGENT, (), (like.type,)).result
        return self._tensor(value, contiguous(like.shape), Root())

    def _apart(self, tensor: Tensor, first: int) -> Tensor:
        """A result without a gradient, on bytes of its own."""
        if self._is_made_since(tensor, first) and not tensor._chain:
            return tensor
        return self.bind(ops.copy, (tensor,), {})

    # ---- what fwd and bwd may write -------------------------------------------------------------

    @contextmanager
    def purely(self, what: str) -> Iterator[None]:
        """A part that may write only to what it makes itself."""
        outer, self.pure = self.pure, (what, self.builder.next_id)
        try:
            yield
        finally:
            self.pure = outer

    def _is_made_since(self, tensor: Tensor, first: int) -> bool:
        root: Root = self.resolve(tensor)._data.root
        base = root.tensor
        return root.input is None and base is not None and base._data.value.id >= first

    def check_write(self, dst: Tensor, src: Tensor) -> None:
        if self.pure is not None and not self._is_made_since(dst, self.pure[1]):
            raise MutationError(f"{self.pure[0]} writes in place to {WRITE_OUTSIDE}")
        super().check_write(dst, src)

    def alias(self, tensor: Tensor) -> Tensor:
        tensor = self.resolve(tensor)
        return self._cut(Tensor(tensor._data), tensor)

    # ---- calls of a function by its own fwd -----------------------------------------------------

    def is_deep_enough(self, nested: int) -> bool:
        """Whether the `nested`-th call within its own fwd goes by the rule, too; else it is plain,
        which makes no difference until somebody differentiates that fwd (see NeedDepth)."""
        self.shallow = self.shallow or nested > self.depth
        return nested <= self.depth


class _TracedRule(RuleNode):
    """A call in a trace. `shallow`: its fwd has called the function itself plainly."""

    __slots__ = ("shallow", "tracer")
    tracer: RuleTracer
    shallow: bool

    def answer(self, residuals: Any, given: list[Tensor], create_graph: bool) -> Sequence[Tensor]:
        if create_graph and self.shallow:
            raise NeedDepth(self.tracer.depth + 1)
        what = f"custom_vjp: bwd of {self.rule.name}"
        draws = self.tracer.draws
        with self.tracer.purely(what):
            found = self.rule.backward(self.args, self.asking, residuals, fill(self.form, given))
        if self.tracer.draws != draws:
            raise GradError(f"{what} draws random numbers: {DRAW_IN_FORWARD}")
        return found
