"""The built-in programs: small models in training on the data that ships with the package.

Written as a user would write them, with nothing but the public names; `tinyaot compare` runs them
and the other commands trace, draw and explain them. To add one, write a function of a seed that
returns a `Training`, and name it in `BUILTIN`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import tinyaot as ta
from tinyaot.datasets import digits_split
from tinyaot.nn import functional as F


@dataclass(frozen=True)
class Training:
    """A model and what trains it.

    step:     one training step, `step(*batch) -> loss`; it updates the model.
    batch:    the arguments of the step of this number, the same for the same seed.
    accuracy: share of right answers on data that is not trained on, between 0 and 1.
    steps:    how many steps to take when nobody says.
    """

    step: Callable[..., Any]
    batch: Callable[[int], tuple[Any, ...]]
    accuracy: Callable[[], float]
    steps: int


class MLP(ta.nn.Module):
    """Two hidden layers of relu."""

    def __init__(self, inputs: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.fc1 = ta.nn.Linear(inputs, hidden)
        self.fc2 = ta.nn.Linear(hidden, hidden)
        self.out = ta.nn.Linear(hidden, classes)

    def forward(self, x: Any) -> Any:
        h = F.relu(self.fc1(x))
        h = F.relu(self.fc2(h))
        return self.out(h)


def mlp(seed: int = 0) -> Training:
    """A multilayer perceptron on 8x8 handwritten digits, by SGD with momentum."""
    ta.manual_seed(seed)
    data = digits_split()
    images = (data.train_images / 16).astype(np.float32)
    model = MLP(images.shape[1], 128, 10)
    optimizer = ta.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = Shuffled(len(images), 64, seed)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        loss.backward()
        optimizer.step()
        return loss

    def batch(number: int) -> tuple[Any, ...]:
        chosen = batches[number]
        return ta.tensor(images[chosen]), ta.tensor(data.train_labels[chosen])

    def accuracy() -> float:
        with ta.no_grad():
            logits = model(ta.tensor((data.test_images / 16).astype(np.float32)))
        return float(np.mean(logits.numpy().argmax(axis=1) == data.test_labels))

    return Training(step, batch, accuracy, steps=400)


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


BUILTIN: dict[str, Callable[..., Training]] = {"mlp": mlp}
