"""What the programs share: how a model is trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tinyaot as ta
from tinyaot import nn

Step = tuple[Callable[..., Any], tuple[Any, ...]]  # a training step, and its batch
Loss = Callable[..., Any]


def training(model: nn.Module, loss_of: Loss, *batch: Any) -> Step:
    """A step that trains `model` by momentum on `loss_of(*batch)`."""
    optimizer = ta.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step(*batch: Any) -> Any:
        optimizer.zero_grad()
        loss = loss_of(*batch)
        loss.backward()
        optimizer.step()
        return loss

    return step, batch
