"""Derivatives as functions: grad, vjp, jvp, value_and_grad.

All rest on the engine's reverse mode; a jvp is the vjp of a vjp (J. Townsend's "double-backward
trick"), so there is no second table of rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from tinyaot import ops
from tinyaot.errors import DTypeError, GradError
from tinyaot.ops.core import mode
from tinyaot.shapes import brief
from tinyaot.tape import enable_grad
from tinyaot.tensor import Tensor, engine
from tinyaot.tree import map_tensors


def _tuple(op: str, x: Any, what: str) -> tuple[Tensor, ...]:
    found = (x,) if isinstance(x, Tensor) else x if isinstance(x, Iterable) else (x,)
    found = tuple(found)
    for t in found:
        if not isinstance(t, Tensor):
            raise GradError(f"{op}: {what} must be tensors, got {brief(t)}")
    return found


def _function(op: str, fn: Any) -> None:
    if not callable(fn):
        raise DTypeError(f"{op}: needs a function first, got {brief(fn)}")


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool = False,
) -> tuple[Tensor | None, ...]:
    """The gradients of the outputs (summed, weighted by `grad_outputs`) by each input.

    Returns a tuple, one gradient for each input, of its shape and dtype; `.grad` of no tensor
    changes. `create_graph`: the gradients can be differentiated again. Raises GradError when an
    output does not depend on an input, unless `allow_unused`, which gives None there.
    """
    ys, xs = _tuple("grad", outputs, "outputs"), _tuple("grad", inputs, "inputs")
    cotangents: Sequence[Tensor | None]
    if grad_outputs is None:
        cotangents = [None] * len(ys)
    else:
        given = (grad_outputs,) if isinstance(grad_outputs, Tensor) else tuple(grad_outputs)
        if len(given) != len(ys):
            raise GradError(f"grad: {len(ys)} outputs but {len(given)} grad_outputs")
        cotangents = given
    for i, x in enumerate(xs):
        if not x.requires_grad:
            raise GradError(
                f"grad: input {i} ({x.type}) does not require grad; call requires_grad_() on it "
                f"before computing the outputs"
            )
    keep = create_graph if retain_graph is None else retain_graph
    found = engine().grad(ys, xs, cotangents, keep, create_graph)
    if not allow_unused:
        for i, g in enumerate(found):
            if g is None:
                raise GradError(
                    f"grad: the outputs do not depend on input {i} ({xs[i].type}); pass "
                    f"allow_unused=True to get None for it"
                )
    return tuple(found)


def _fresh_leaves(primals: Sequence[Tensor]) -> list[Tensor]:
    return [p.detach().requires_grad_() if p.dtype.is_floating else p for p in primals]


def vjp(fn: Callable[..., Any], *primals: Tensor) -> tuple[Any, Callable[..., Any]]:
    """`(out, vjp_fn)`: `vjp_fn(cotangent)` gives the cotangent of each primal (None for integers).

    `out` may be a tensor or a tuple of tensors; `vjp_fn` takes as many cotangents, and can be
    called again.
    """
    _function("vjp", fn)
    xs = _fresh_leaves(_tuple("vjp", primals, "primals"))
    with enable_grad():
        out = fn(*xs)
    ys = _tuple("vjp", out, "the function's results")

    def vjp_fn(*cotangents: Any) -> Any:
        given = cotangents[0] if len(cotangents) == 1 else cotangents
        seeds = _tuple("vjp", given, "cotangents")
        if len(seeds) != len(ys):
            raise GradError(f"vjp: {len(ys)} results need as many cotangents, got {len(seeds)}")
        found = pull(ys, xs, seeds, create_graph=mode.grad_enabled and _any_grad(seeds))
        return found[0] if len(found) == 1 else tuple(found)

    return map_tensors(out, lambda t: t.detach()), vjp_fn


def _any_grad(tensors: Sequence[Tensor | None]) -> bool:
    return any(t is not None and t.requires_grad for t in tensors)


def pull(
    ys: Sequence[Tensor], xs: Sequence[Tensor], seeds: Sequence[Tensor], create_graph: bool
) -> list[Tensor | None]:
    """The cotangents of `xs`: zeros where nothing flows, None for integers. The graph stays."""
    live = [(y, s) for y, s in zip(ys, seeds, strict=True) if y.requires_grad]
    wanted = [x for x in xs if x.requires_grad]
    found: list[Tensor | None] = [None] * len(wanted)
    if live and wanted:
        found = engine().grad(
            [y for y, _ in live], wanted, [s for _, s in live], True, create_graph
        )
    filled = iter(ops.zeros_like(x) if g is None else g for g, x in zip(found, wanted, strict=True))
    return [next(filled) if x.requires_grad else None for x in xs]


def jvp(
    fn: Callable[..., Any], primals: Sequence[Tensor], tangents: Sequence[Tensor]
) -> tuple[Any, Any]:
    """`(out, tangent_out)`: the derivative of `fn` at `primals` along `tangents`.

    Computed as the vjp of the (linear) map from cotangents to cotangents.
    """
    _function("jvp", fn)
    points, moves = _tuple("jvp", primals, "primals"), _tuple("jvp", tangents, "tangents")
    if [p.type for p in points] != [t.type for t in moves]:
        shown = [", ".join(str(t.type) for t in ts) for ts in (points, moves)]
        raise GradError(f"jvp: tangents must be as the primals are, {shown[0]}; got {shown[1]}")
    xs = _fresh_leaves(points)
    with enable_grad():
        out = fn(*xs)
        ys = _tuple("jvp", out, "the function's results")
        dummies = [cast(Tensor, ops.zeros_like(y)).requires_grad_() for y in ys]
        pulled = pull(ys, xs, dummies, create_graph=True)
    pairs = [(g, t) for g, t in zip(pulled, moves, strict=True) if g is not None]
    moving = [(g, t) for g, t in pairs if g.requires_grad]
    results: list[Tensor | None] = [None] * len(ys)
    if moving:
        results = engine().grad(
            [g for g, _ in moving], dummies, [t for _, t in moving], False, False
        )
    tangents_out = [ops.zeros_like(y) if r is None else r for r, y in zip(results, ys, strict=True)]
    plain = map_tensors(out, lambda t: t.detach())
    return plain, tangents_out[0] if isinstance(out, Tensor) else tuple(tangents_out)


def value_and_grad(fn: Callable[..., Any]) -> Callable[..., tuple[Tensor, Any]]:
    """A function that gives `(fn(*args), gradients)` for each float tensor argument.

    One gradient when there is one such argument, else a tuple. `fn` has to return one element.
    """
    _function("value_and_grad", fn)

    def with_gradients(*args: Any) -> tuple[Tensor, Any]:
        places = [i for i, a in enumerate(args) if isinstance(a, Tensor) and a.dtype.is_floating]
        if not places:
            raise GradError("value_and_grad: no argument is a tensor of a floating dtype")
        xs = _fresh_leaves([args[i] for i in places])
        leaf = dict(zip(places, xs, strict=True))
        with enable_grad():
            out = fn(*(leaf.get(i, a) for i, a in enumerate(args)))
        if not isinstance(out, Tensor) or out.size != 1:
            raise GradError("value_and_grad: the function has to return a tensor of one element")
        seed = ops.full(value=1.0, shape=out.shape, dtype=out.dtype)
        found = pull([out], xs, [seed], create_graph=False)
        return out.detach(), found[0] if len(found) == 1 else tuple(found)

    return with_gradients
