"""Functions with a derivative rule of their own, with JAX's meaning.

`fwd` computes the function and the residuals, `bwd` makes of these and the cotangent of the result
a cotangent for each argument. However often one differentiates, a gradient by way of the function
goes through bwd; the residuals are differentiated as fwd computes them. In eager mode fwd runs as a
checkpoint (see `inside`): what it saves beyond the residuals are promises, which only a second
derivative redeems.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, cast

from tinyaot import ops, random
from tinyaot.eager import EagerEngine
from tinyaot.errors import GradError
from tinyaot.inside import Checkpoint, Inside
from tinyaot.ops.core import mode, using
from tinyaot.rules import Forward, Rule, RuleNode, form_of, run_forward
from tinyaot.tape import no_grad
from tinyaot.tensor import Tensor
from tinyaot.tree import fill, flatten


class _Tracer(Protocol):
    """The engine of a trace, which is above this module."""

    def is_deep_enough(self, nested: int) -> bool: ...
    def custom(self, rule: Rule, args: Sequence[Any]) -> Any: ...


class _Running(threading.local):
    """The rules whose fwd is running in this thread, innermost last."""

    def __init__(self) -> None:
        self.rules: list[Rule] = []


_running = _Running()


class custom_vjp:
    """A function whose derivative is given: `f = custom_vjp(fn)`, then `f.defvjp(fwd, bwd)`.

    `fwd(*args) -> (out, residuals)` runs in place of `fn` when `f` is called with a tensor that
    requires grad; `bwd(residuals, cotangent) -> cotangents` gets a cotangent in the form of `out`
    (zeros where none arrived, None for a result that is no float) and returns a tuple with one for
    each argument, in the form, shapes and dtypes of the argument, or None, which stands for zeros
    and is all that an argument without float tensors can have. `out`, `residuals` and arguments may
    be containers, and hold other values, too. Keywords and defaults are brought into positions.

    fwd and bwd write in place only to what they make themselves, and bwd draws no random numbers.
    Tensors that require grad are arguments: fwd may reach no others (GradError). A call of `f` by
    its own fwd is one of `fn`, with the derivative of `f` again.

        @ta.custom_vjp
        def reverse(x):
            return x

        reverse.defvjp(lambda x: (x, None), lambda _, g: (-g,))
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fn, updated=())
        self.fn = fn
        self.rule: Rule | None = None

    def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any]) -> None:
        """Give the rule; see the class."""
        self.rule = Rule(self.__name__, fwd, bwd)  # type: ignore[attr-defined]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        rule = self.rule
        name = getattr(self.fn, "__name__", "a function")
        if rule is None:
            raise GradError(f"custom_vjp: {name} has no rule yet: call {name}.defvjp(fwd, bwd)")
        given = self._positional(name, args, kwargs)
        engine = mode.engine
        if not mode.grad_enabled or not any(t.requires_grad for t in flatten(given)[0]):
            return self.fn(*given)
        nested = sum(r is rule for r in _running.rules)
        if isinstance(engine, EagerEngine):
            return _call(engine, self.fn, rule, given, nested > 0)
        tracer = cast(_Tracer, engine)
        if nested and not tracer.is_deep_enough(nested):
            return self.fn(*given)
        _running.rules.append(rule)
        try:
            return tracer.custom(rule, given)
        finally:
            _running.rules.pop()

    def _positional(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        bound = inspect.signature(self.fn).bind(*args, **kwargs)
        bound.apply_defaults()
        if bound.kwargs:
            raise GradError(
                f"custom_vjp: {name} takes {', '.join(bound.kwargs)} by keyword only; a cotangent "
                f"needs a position: let it be positional"
            )
        return list(bound.args)

    def __get__(self, instance: Any, owner: type) -> Any:
        """As a decorator of a method: bound to its object, which is an argument like others."""
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"<custom_vjp {getattr(self.fn, '__name__', self.fn)}>"


# ---- eager mode ---------------------------------------------------------------------------------


@contextmanager
def _fwd_of(rule: Rule, engine: Checkpoint) -> Iterator[None]:
    _running.rules.append(rule)
    try:
        with using(engine):
            yield
    finally:
        _running.rules.pop()


def _forward(engine: EagerEngine, rule: Rule, args: Sequence[Any]) -> tuple[Forward, Checkpoint]:
    """Run fwd as a checkpoint."""
    ran = Checkpoint(engine, f"custom_vjp: fwd of {rule.name}")
    within = _fwd_of(rule, ran)
    return run_forward(engine, rule, args, within, lambda t: ran.number(t) is not None), ran


def _call(
    engine: EagerEngine, fn: Callable[..., Any], rule: Rule, args: Sequence[Any], nested: bool
) -> Any:
    """Call a function by its rule. `nested`: in its own fwd, where the residuals are found only
    when a derivative asks for them."""
    tensors, tree = flatten(list(args))
    state = random.generator.get_state() if nested else None
    if nested:
        ran = Checkpoint(engine)
        with using(ran), no_grad():
            outputs, out = flatten(fn(*args))
        kept, residuals = tensors, tree
    else:
        (outputs, out, kept, residuals, _), ran = _forward(engine, rule, args)
    seen: set[int] = set()
    results = []
    for t in outputs:
        fresh = ran.number(t) is not None and not t._chain and id(t) not in seen
        seen.add(id(t))
        with no_grad():
            results.append(engine.detach(t) if fresh else ops.copy(t))
    floating = [y for y in results if y.dtype.is_floating]
    node = CustomNode(
        rule,
        args,
        [engine.edge(t) for t in tensors],
        [engine.save(t, engine.edge(t)) for t in kept],
        residuals,
        [y.type for y in floating],
        form_of(out, results),
    )
    node.state = state
    for index, y in enumerate(floating):
        y._history.edge = node, index
        y._history.requires_grad = True
    return fill(out, results)


class CustomNode(RuleNode):
    """A call in eager mode. With a `state` of the random generator the residuals are the arguments,
    and fwd has still to be run."""

    __slots__ = ("state",)
    state: tuple[int, int] | None

    def answer(
        self, residuals: Any, given: list[Tensor], create_graph: bool
    ) -> Sequence[Tensor | None]:
        engine = cast(EagerEngine, mode.engine)
        if self.state is not None:
            residuals = self._forward_again(engine, self.state, residuals)
        inside = Inside(engine, f"custom_vjp: bwd of {self.rule.name}", draws=False)
        with using(inside):
            found = self.rule.backward(self.args, self.asking, residuals, fill(self.form, given))
        # What is not new may be in use: a residual, or what bwd reaches.
        own = {id(g) for g in given}
        return [t if id(t) in own or inside.number(t) is not None else ops.copy(t) for t in found]

    def _forward_again(
        self, engine: EagerEngine, state: tuple[int, int], args: Sequence[Any]
    ) -> Any:
        now = random.generator.get_state()
        random.generator.set_state(state)
        try:
            found, _ = _forward(engine, self.rule, args)
        finally:
            random.generator.set_state(now)
        return fill(found.residuals, found.kept)
