"""Learning rate schedules: closed formulas of the number of steps, written to the optimizer.

Call `step()` after each step of the optimizer, outside compiled code: a compiled step reads the
learning rate as an input, so changing it costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tinyaot.errors import ArgumentError, DTypeError
from tinyaot.optim.optimizer import Optimizer
from tinyaot.shapes import brief


class Scheduler:
    """Base of schedules: `rate(steps, base)` is the learning rate after `steps` steps of a group
    that began with `base`."""

    def __init__(self, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, Optimizer):
            raise DTypeError(f"{type(self).__name__}: needs an optimizer, got {brief(optimizer)}")
        self.optimizer = optimizer
        self.base_lrs = [float(g["lr"]) for g in optimizer.param_groups]
        self.steps = 0
        self._apply()

    def rate(self, steps: int, base: float) -> float:
        """The learning rate; subclasses write it."""
        raise NotImplementedError

    def step(self) -> None:
        """Count one step and set the learning rates of the next."""
        self.steps += 1
        self._apply()

    def get_last_lr(self) -> list[float]:
        """The learning rates in force, one for each group."""
        return [self.rate(self.steps, base) for base in self.base_lrs]

    def _apply(self) -> None:
        for group, lr in zip(self.optimizer.param_groups, self.get_last_lr()):
            group["lr"] = lr

    def state_dict(self) -> dict[str, Any]:
        """The number of steps, and the rates that the groups began with."""
        return {"steps": self.steps, "base_lrs": list(self.base_lrs)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        if len(state_dict["base_lrs"]) != len(self.base_lrs):
            raise ArgumentError(
                f"{type(self).__name__}: {len(self.base_lrs)} groups, but the state has "
                f"{len(state_dict['base_lrs'])}"
            )
        self.steps = int(state_dict["steps"])
        self.base_lrs = [float(lr) for lr in state_dict["base_lrs"]]
        self._apply()


class CosineLR(Scheduler):
    """Half a cosine from the rate the optimizer has down to `min_lr` after `total_steps`, where it
    stays (Loshchilov and Hutter, 2017, without restarts)."""

    def __init__(self, optimizer: Optimizer, total_steps: int, min_lr: float = 0.0) -> None:
        if total_steps < 1:
            raise ArgumentError(f"CosineLR: total_steps must be positive, got {total_steps}")
        self.total_steps = total_steps
        self.min_lr = min_lr
        super().__init__(optimizer)

    def rate(self, steps: int, base: float) -> float:
        done = min(steps / self.total_steps, 1.0)
        return self.min_lr + (base - self.min_lr) * (1.0 + math.cos(math.pi * done)) / 2.0


class WarmupLR(Scheduler):
    """A straight line up to the rate the optimizer has, reached by step number `warmup_steps`; then
    that rate, or the schedule `after`, which begins there."""

    def __init__(
        self, optimizer: Optimizer, warmup_steps: int, after: Scheduler | None = None
    ) -> None:
        if warmup_steps < 1:
            raise ArgumentError(f"WarmupLR: warmup_steps must be positive, got {warmup_steps}")
        if after is not None and after.optimizer is not optimizer:
            raise ArgumentError("WarmupLR: the schedule after it must be of the same optimizer")
        self.warmup_steps = warmup_steps
        self.after = after
        super().__init__(optimizer)

    def rate(self, steps: int, base: float) -> float:
        if steps < self.warmup_steps:
            return base * (steps + 1) / self.warmup_steps
        return base if self.after is None else self.after.rate(steps - self.warmup_steps, base)
