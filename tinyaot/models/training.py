"""What a built-in program is: a model, a step that trains it, its data, and how well it does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Training:
    """A model and what trains it.

    step:     one training step, `step(*batch) -> loss`; it updates the model.
    batch:    the arguments of the step of this number, the same for the same seed.
    accuracy: share of right answers on data that is not trained on, between 0 and 1.
    steps:    how many steps to take when nobody says.
    loss_name, accuracy_name: what the two figures are, for a reader.
    """

    step: Callable[..., Any]
    batch: Callable[[int], tuple[Any, ...]]
    accuracy: Callable[[], float]
    steps: int
    loss_name: str = "loss"
    accuracy_name: str = "test accuracy"


class Shuffled:
    """Batches of indices from 0 to `size`, in a new order every epoch; the rest of an epoch that
    fills no batch is left out."""

    def __init__(self, size: int, batch: int, seed: int) -> None:
        self.size, self.batch, self.seed = size, batch, seed

    def __getitem__(self, number: int) -> np.ndarray:
        """The indices of one batch, int64[batch]."""
        epoch, place = divmod(number, self.size // self.batch)
        order = np.random.default_rng([self.seed, epoch]).permutation(self.size)
        return order[place * self.batch : (place + 1) * self.batch]
