"""Stochastic gradient descent with momentum (Polyak, 1964), also Nesterov's (Sutskever, 2013)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tinyaot import ops
from tinyaot.errors import ArgumentError
from tinyaot.optim.optimizer import Optimizer, ParamGroup, State, assign, number, wide
from tinyaot.tensor import Tensor


class SGD(Optimizer):
    """param -= lr * grad, with options in torch's order and by torch's formulas.

    weight_decay adds weight_decay * param to the gradient. With momentum, a buffer follows
    momentum * buffer + (1 - dampening) * grad (at first, grad), and is used in place of the
    gradient; `nesterov` uses grad + momentum * buffer. `maximize` climbs.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "dampening": dampening,
                "weight_decay": weight_decay,
                "nesterov": nesterov,
                "maximize": maximize,
            },
        )

    def check(self, group: ParamGroup) -> None:
        super().check(group)
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise ArgumentError("SGD: nesterov needs momentum above 0 and no dampening")

    def initial_state(self, param: Tensor, group: ParamGroup) -> State:
        if not group["momentum"]:
            return {}
        state = {"momentum_buffer": ops.zeros_like(param)}
        if group["dampening"]:  # which spares the first gradient
            state["started"] = ops.full(value=0.0, shape=(), dtype=param.dtype)
        return state

    def update(self, param: Tensor, grad: Tensor, state: State, group: ParamGroup, lr: Any) -> None:
        value, g = wide(param), wide(grad)
        momentum, dampening = group["momentum"], group["dampening"]
        if group["maximize"]:
            g = ops.neg(g)
        if group["weight_decay"]:
            g = ops.add(g, ops.mul(value, group["weight_decay"]))
        if momentum:
            share = g
            if dampening:
                started = wide(state["started"])
                share = ops.mul(g, ops.sub(1.0, ops.mul(started, dampening)))
                assign(state["started"], ops.full(value=1.0, shape=(), dtype=param.dtype))
            buffer = ops.add(ops.mul(wide(state["momentum_buffer"]), momentum), share)
            assign(state["momentum_buffer"], buffer)
            g = ops.add(g, ops.mul(buffer, momentum)) if group["nesterov"] else buffer
        assign(param, ops.sub(value, ops.mul(g, number(lr, value))))
