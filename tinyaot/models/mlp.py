"""A multilayer perceptron that reads handwritten digits."""

from __future__ import annotations

from typing import Any

import numpy as np

import tinyaot as ta
from tinyaot.datasets import digits_split
from tinyaot.models.training import Shuffled, Training
from tinyaot.nn import functional as F


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
