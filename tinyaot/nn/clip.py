"""Gradient clipping by the norm of all gradients together (Pascanu et al., 2013)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from tinyaot import ops
from tinyaot.errors import GradError
from tinyaot.functional.common import to_dtype, wide
from tinyaot.functions.operands import mutate
from tinyaot.shapes import float32, promote
from tinyaot.tape import no_grad, quiet
from tinyaot.tensor import Tensor


@no_grad()
def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """Scale the gradients in place so that their norm, as one vector, is at most `max_norm`.

    Returns the norm before. Parameters without a gradient are skipped. `norm_type` may be inf.
    Raises GradError, if asked to, for a norm that is NaN or infinite (this reads its value, so not
    in compiled code).
    """
    tensors = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    grads = [g for g in (p.grad for p in tensors) if g is not None]
    with quiet():
        norm = _norm(grads, float(norm_type))
        if error_if_nonfinite and not math.isfinite(norm.item()):
            raise GradError(f"clip_grad_norm_: the norm of the gradients is {norm.item()}")
        # A little less than max_norm / norm, so that a norm of 0 is no division by 0.
        scale = ops.minimum(ops.div(float(max_norm), ops.add(norm, 1e-6)), 1.0)
        for grad in grads:
            scaled = ops.mul(wide(grad), to_dtype(scale, wide(grad).dtype))
            mutate("clip_grad_norm_", grad, to_dtype(scaled, grad.dtype))
    return norm


def _norm(grads: list[Tensor], p: float) -> Tensor:
    """The p-norm of all elements: 0-d, 0 for no gradients."""
    dtype = float32
    for g in grads:
        dtype = promote(dtype, g.dtype)
    total: Any = ops.full(value=0.0, shape=(), dtype=dtype)
    for g in grads:
        x = ops.abs(to_dtype(g, dtype))
        axes = tuple(range(x.ndim))
        if p == math.inf:
            part = ops.reshape(ops.amax(x, axes=axes), shape=()) if x.size else total
            total = ops.maximum(total, part)
        else:
            power = ops.mul(x, x) if p == 2.0 else ops.pow(x, p)
            total = ops.add(total, ops.reshape(ops.sum(power, axes=axes), shape=()))
    if p == math.inf:
        return total
    return ops.sqrt(total) if p == 2.0 else ops.pow(total, 1.0 / p)
