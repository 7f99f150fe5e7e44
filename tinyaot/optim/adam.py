"""Adam (Kingma and Ba, 2015) and AdamW (Loshchilov and Hutter, 2019), by torch's formulas."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tinyaot import ops
from tinyaot.errors import ArgumentError
from tinyaot.functions.operands import is_tracing
from tinyaot.optim.optimizer import Optimizer, ParamGroup, State, assign, number, wide
from tinyaot.shapes import float32, float64
from tinyaot.tensor import Tensor


class Adam(Optimizer):
    """Steps of lr times the mean of the gradient over the root of the mean of its square.

    Both means decay by `betas` and are corrected for their start at zero; eps is added to the root.
    weight_decay adds weight_decay * param to the gradient. `amsgrad` divides by the greatest mean
    square so far (Reddi et al., 2018); `maximize` climbs.
    """

    decoupled = False  # whether the decay acts on the parameter instead of the gradient

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": tuple(betas) if isinstance(betas, Iterable) else (betas,),
                "eps": eps,
                "weight_decay": weight_decay,
                "amsgrad": amsgrad,
                "maximize": maximize,
            },
        )

    def check(self, group: ParamGroup) -> None:
        super().check(group)
        if len(group["betas"]) != 2 or not all(0.0 <= b < 1.0 for b in group["betas"]):
            raise ArgumentError(
                f"{self._name}: betas must be two numbers from 0 to below 1, got {group['betas']}"
            )

    def initial_state(self, param: Tensor, group: ParamGroup) -> State:
        state = {
            "step": ops.full(value=0.0, shape=(), dtype=float32),
            "exp_avg": ops.zeros_like(param),
            "exp_avg_sq": ops.zeros_like(param),
        }
        if group["amsgrad"]:
            state["max_exp_avg_sq"] = ops.zeros_like(param)
        return state

    def update(self, param: Tensor, grad: Tensor, state: State, group: ParamGroup, lr: Any) -> None:
        value, g = wide(param), wide(grad)
        beta1, beta2 = group["betas"]
        if group["maximize"]:
            g = ops.neg(g)
        if group["weight_decay"]:
            if self.decoupled:
                kept = 1.0 - lr * group["weight_decay"]
                value = ops.mul(value, number(kept, value))
            else:
                g = ops.add(g, ops.mul(value, group["weight_decay"]))
        mean, square = wide(state["exp_avg"]), wide(state["exp_avg_sq"])
        mean = ops.add(mean, ops.mul(ops.sub(g, mean), 1.0 - beta1))
        square = ops.add(ops.mul(square, beta2), ops.mul(ops.mul(g, g), 1.0 - beta2))
        step = ops.add(state["step"], 1.0)
        assign(state["step"], step)
        assign(state["exp_avg"], mean)
        assign(state["exp_avg_sq"], square)
        if group["amsgrad"]:
            square = ops.maximum(wide(state["max_exp_avg_sq"]), square)
            assign(state["max_exp_avg_sq"], square)
        size, root = _corrections(step, lr, beta1, beta2)
        scale = ops.add(ops.div(ops.sqrt(square), number(root, value)), group["eps"])
        move = ops.div(ops.mul(mean, number(size, value)), scale)
        assign(param, ops.sub(value, move))


class AdamW(Adam):
    """Adam whose weight decay shrinks the parameter itself, by lr * weight_decay a step."""

    decoupled = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize)


def _corrections(step: Tensor, lr: Any, beta1: float, beta2: float) -> tuple[Any, Any]:
    """lr / (1 - beta1**step) and sqrt(1 - beta2**step), in double precision: as Python numbers
    where the step's value is there, as f64[] in a trace."""
    if not is_tracing():
        count = step.item()
        return lr / (1.0 - beta1**count), (1.0 - beta2**count) ** 0.5
    exponent = ops.cast(step, dtype=float64)
    size = ops.div(lr, ops.sub(1.0, ops.pow(beta1, exponent)))
    return size, ops.sqrt(ops.sub(1.0, ops.pow(beta2, exponent)))
