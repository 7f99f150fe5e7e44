"""One call of a function with a derivative rule of its own: what its rule gave, checked.

The same in both modes: fwd sees its arguments through `Entry` nodes, which stand on the tape
between them and what fwd computes, so that it is known what a residual depends on, and that nothing
else that requires grad was used; bwd is plain tensor code, so it is recorded, and differentiated,
too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from tinyaot import ops
from tinyaot.errors import DTypeError, GradError, ShapeError
from tinyaot.shapes import TensorType
from tinyaot.tape import TapeNode, Unread, unpack
from tinyaot.tensor import Edge, SavedHandle, Tensor
from tinyaot.tree import Place, fill, flatten, map_tensors


class Entry(TapeNode):
    """An argument, as fwd sees it, or a cotangent, as bwd does."""

    __slots__ = ()
    name = "custom_vjp argument"

    def pull(self, cotangents: list[Tensor | None], create_graph: bool) -> Sequence[Tensor | None]:
        return [cotangents[0] for _ in self.edges]


def enter(engine: Any, tensor: Tensor, edge: Edge) -> tuple[Tensor, Entry]:
    """The tensor on the same bytes, with an `Entry` to `edge` as its history."""
    entry = Entry([] if edge is None else [edge])
    shown: Tensor = engine.alias(tensor)
    shown._history.edge = entry, 0
    shown._history.requires_grad = True
    return shown, entry


class Rule:
    """A function's fwd and bwd: what they are asked, and what they may answer."""

    def __init__(self, name: str, fwd: Callable[..., Any], bwd: Callable[..., Any]) -> None:
        self.name, self.fwd, self.bwd = name, fwd, bwd

    def forward(self, args: Sequence[Any]) -> tuple[Any, Any]:
        """What fwd gives, a pair. Raises GradError for anything else."""
        found = self.fwd(*args)
        if not (isinstance(found, (tuple, list)) and len(found) == 2):
            raise GradError(
                f"custom_vjp: fwd of {self.name} has to return (out, residuals), not "
                f"{_describe(found)}"
            )
        return found[0], found[1]

    def backward(
        self, args: Sequence[Any], asking: Sequence[bool], residuals: Any, cotangents: Any
    ) -> list[Tensor]:
        """The cotangent of each tensor among `args` (types; others as they are) that is `asking`;
        zeros for None.

        Raises GradError, ShapeError or DTypeError for an answer that does not fit, naming which.
        """
        found = self.bwd(residuals, cotangents)
        if not isinstance(found, (tuple, list)) or len(found) != len(args):
            raise GradError(
                f"custom_vjp: bwd of {self.name} has to return a tuple of {len(args)}, a cotangent "
                f"(or None) for each argument, not {_describe(found)}"
            )
        flat = [
            pair
            for i, (arg, given) in enumerate(zip(args, found, strict=True))
            for pair in self._pairs(arg, given, f"argument {i}")
        ]
        return [
            ops.zeros_like(type_) if given is None else given
            for (type_, given), asks in zip(flat, asking, strict=True)
            if asks
        ]

    def _pairs(self, arg: Any, given: Any, path: str) -> list[tuple[TensorType, Tensor | None]]:
        """Each tensor of an argument, with its cotangent; None may stand for a whole container."""
        who = f"custom_vjp: bwd of {self.name}: the cotangent of {path}"
        if isinstance(arg, TensorType):
            self._check(arg, given, who)
            return [(arg, given)]
        inner = _children(arg)
        if given is None:
            return [pair for p, x in inner for pair in self._pairs(x, None, path + p)]
        if not inner and not isinstance(arg, (list, tuple, dict)):
            raise GradError(f"{who}, which is not a tensor but {arg!r}, has to be None")
        others = _children(given)
        if type(given) is not type(arg) or [p for p, _ in others] != [p for p, _ in inner]:
            raise GradError(
                f"{who}, a {type(arg).__name__} of {len(inner)}, has to be None or such a "
                f"{type(arg).__name__} of cotangents, not {_describe(given)}"
            )
        return [
            pair
            for (p, x), (_, g) in zip(inner, others, strict=True)
            for pair in self._pairs(x, g, path + p)
        ]

    def _check(self, type_: TensorType, given: Any, who: str) -> None:
        if given is None:
            return
        if not type_.dtype.is_floating:
            raise GradError(f"{who}, a {type_}, has to be None: only floats have gradients")
        if not isinstance(given, Tensor):
            raise GradError(f"{who} has to be a tensor or None, not {_describe(given)}")
        if given.shape != type_.shape:
            raise ShapeError(f"{who} has the shape {given.shape}, the argument is {type_}")
        if given.dtype is not type_.dtype:
            raise DTypeError(f"{who} is {given.type}, the argument is {type_}: cast it")


def _children(tree: Any) -> list[tuple[str, Any]]:
    if isinstance(tree, (list, tuple)):
        return [(f"[{i}]", x) for i, x in enumerate(tree)]
    if isinstance(tree, dict):
        return [(f"[{k!r}]", x) for k, x in tree.items()]
    return []


def _describe(x: Any) -> str:
    if isinstance(x, Tensor):
        return f"a {x.type} tensor"
    if isinstance(x, (tuple, list)):
        return f"a {type(x).__name__} of {len(x)}"
    return f"{x!r}"


class Forward(NamedTuple):
    """What a fwd gave: results with their tree, residuals with theirs. `entered`: the arguments
    that require grad, as it saw them."""

    outputs: list[Tensor]
    out: Any
    kept: list[Tensor]
    residuals: Any
    entered: list[Tensor]


def run_forward(
    engine: Any,
    rule: Rule,
    args: Sequence[Any],
    within: AbstractContextManager[Any],
    made_inside: Callable[[Tensor], bool],
) -> Forward:
    """Run fwd in a context. Raises GradError for a tensor that it should not have used."""
    tensors, tree = flatten(list(args))
    edges = [engine.edge(t) for t in tensors]
    pairs = [
        (t, None) if e is None else enter(engine, t, e) for t, e in zip(tensors, edges, strict=True)
    ]
    entries = [entry for _, entry in pairs if entry is not None]
    since = Entry([]).seq
    with within:
        out, residuals = rule.forward(fill(tree, [t for t, _ in pairs]))
    outputs, out = flatten(out)
    kept, residuals = flatten(residuals)
    leads = [engine.edge(t) for t in (*outputs, *kept)]
    check_closed(rule, leads, entries, since, made_inside)
    entered = [t for t, entry in pairs if entry is not None]
    return Forward(outputs, out, kept, residuals, entered)


def check_closed(
    rule: Rule,
    edges: Sequence[Edge],
    entries: Sequence[Entry],
    since: int,
    made_inside: Callable[[Tensor], bool],
) -> None:
    """Raise GradError where fwd used a tensor that requires grad and is no argument: where the
    edges of what it gives lead to a leaf, or a node older than `since`, but by way of an entry."""
    seen = {id(e) for e in entries}
    stack = list(edges)
    while stack:
        edge = stack.pop()
        at = edge if edge is None or isinstance(edge, Tensor) else edge[0]
        if at is None or id(at) in seen:
            continue
        seen.add(id(at))
        if not isinstance(at, Tensor) and at.seq >= since:
            stack.extend(at.edges)
        elif not (isinstance(at, Tensor) and made_inside(at)):
            raise GradError(
                f"custom_vjp: fwd of {rule.name} uses a tensor that requires grad and is not among "
                f"its arguments, so that bwd gives it no cotangent: make it an argument, or "
                f"detach() it"
            )


def types_of(args: Sequence[Any]) -> list[Any]:
    """The arguments with types in place of tensors."""
    return [map_tensors(x, lambda t: t.type) for x in args]


class RuleNode(TapeNode):
    """The closure of one call: what bwd is given, and how its answer is read.

    `args`: the arguments, types in place of tensors, and `edges`: of these tensors; `kept` and
    `residuals`: the saved tensors of the residuals, and their tree; `types` and `form`: of the
    cotangents.
    """

    __slots__ = ("args", "asking", "form", "kept", "name", "residuals", "rule", "types")

    def __init__(
        self,
        rule: Rule,
        args: Sequence[Any],
        edges: Sequence[Edge],
        kept: Sequence[SavedHandle | Unread],
        residuals: Any,
        types: Sequence[TensorType],
        form: Any,
    ) -> None:
        wanted = [e for e in edges if e is not None]
        super().__init__(wanted, saves=bool(kept), outputs=len(types))
        self.name = rule.name
        self.rule = rule
        self.args = types_of(args)
        self.asking = [e is not None for e in edges]
        self.kept = list(kept)
        self.residuals = residuals
        self.types = types
        self.form = form

    def pull(self, cotangents: list[Tensor | None], create_graph: bool) -> Sequence[Tensor | None]:
        residuals = fill(self.residuals, [unpack(x, create_graph) for x in self.kept])
        given = [
            ops.zeros_like(type_) if g is None else g
            for type_, g in zip(self.types, cotangents, strict=True)
        ]
        return self.answer(residuals, given, create_graph)

    def answer(
        self, residuals: Any, given: list[Tensor], create_graph: bool
    ) -> Sequence[Tensor | None]:
        """Run bwd: what the modes do differently."""
        raise NotImplementedError

    def free(self) -> None:
        super().free()
        if self.saves:
            self.kept = []


def form_of(out: Any, results: Sequence[Tensor]) -> Any:
    """The tree of the cotangents: places of the floats among the results, None for the others."""
    places = iter(range(len(results)))
    return fill(out, [Place(next(places)) if y.dtype.is_floating else None for y in results])
