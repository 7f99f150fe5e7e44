"""Check derivatives against central differences.

The Jacobian is not formed: for a random direction v and a random cotangent u, <u, J v> is computed
as <u, (f(x + hv) - f(x - hv)) / 2h>, and as <vjp(u), v> (as HIPS autograd's `check_grads` does).
The second order is the same check of the map from inputs to gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinyaot.derivatives import pull
from tinyaot.errors import DTypeError, GradError
from tinyaot.tape import enable_grad
from tinyaot.tensor import Tensor

STEP, RTOL, ATOL = 1e-6, 1e-4, 1e-6  # float64: the difference is good to about eps ** (2 / 3)


def gradcheck(
    fn: Callable[..., Any], inputs: Sequence[Tensor] | Tensor, order: int = 2, seed: int = 0
) -> bool:
    """True if the derivatives of `fn` at `inputs` agree with differences, up to `order` (1 or 2).

    Float inputs have to be float64, and `fn` a smooth function near them (no dropout) that returns
    a tensor or a tuple of tensors. Raises GradError that says which order disagrees, by how much.
    """
    given = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    for i, x in enumerate(given):
        if x.dtype.is_floating and x.dtype.name != "float64":
            raise DTypeError(
                f"gradcheck: input {i} is {x.dtype.name}; differences need float64: call .double()"
            )
    rng = np.random.default_rng(seed)
    moving = [i for i, x in enumerate(given) if x.dtype.is_floating]
    _check(fn, given, moving, rng, 1, order)
    return True


def _check(
    fn: Callable[..., Any],
    inputs: Sequence[Tensor],
    moving: list[int],
    rng: np.random.Generator,
    order: int,
    last: int,
) -> None:
    xs = [x.detach().requires_grad_() if i in moving else x for i, x in enumerate(inputs)]
    with enable_grad():
        ys = _floats(fn(*xs))
    cotangents = [Tensor(rng.standard_normal(y.shape)) for y in ys]
    directions = {i: rng.standard_normal(inputs[i].shape) for i in moving}
    found = pull(ys, [xs[i] for i in moving], cotangents, create_graph=False)
    analytic = sum(
        float(np.sum(g.numpy() * directions[i]))
        for i, g in zip(moving, found, strict=True)
        if g is not None
    )
    ahead, behind = (_floats(fn(*_moved(inputs, directions, sign * STEP))) for sign in (1, -1))
    numeric = sum(
        float(np.sum(u.numpy() * (a.numpy() - b.numpy()))) / (2 * STEP)
        for u, a, b in zip(cotangents, ahead, behind, strict=True)
    )
    if not np.isclose(analytic, numeric, rtol=RTOL, atol=ATOL * max(1.0, abs(numeric))):
        raise GradError(
            f"gradcheck: derivative of order {order}: {analytic:.8g} by the rules, {numeric:.8g} "
            f"by central differences"
        )
    if order < last:

        def gradients(*given: Tensor) -> tuple[Tensor, ...]:
            return _gradients(fn, given, moving, cotangents)

        _check(gradients, inputs, moving, rng, order + 1, last)


def _gradients(
    fn: Callable[..., Any],
    given: Sequence[Tensor],
    moving: list[int],
    cotangents: Sequence[Tensor],
) -> tuple[Tensor, ...]:
    """The gradients of <cotangents, fn>, differentiable again."""
    with enable_grad():
        xs = [
            x if i not in moving or x.requires_grad else x.detach().requires_grad_()
            for i, x in enumerate(given)
        ]
        found = pull(_floats(fn(*xs)), [xs[i] for i in moving], cotangents, create_graph=True)
    return tuple(g for g in found if g is not None)


def _moved(
    inputs: Sequence[Tensor], directions: dict[int, np.ndarray], step: float
) -> list[Tensor]:
    return [
        Tensor(x.numpy() + step * directions[i]) if i in directions else x
        for i, x in enumerate(inputs)
    ]


def _floats(out: Any) -> list[Tensor]:
    """The float tensors among the outputs."""
    outputs = (out,) if isinstance(out, Tensor) else tuple(out)
    return [y for y in outputs if isinstance(y, Tensor) and y.dtype.is_floating]
