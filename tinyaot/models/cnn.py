"""A small convolutional network that reads handwritten digits.

Each block is a convolution, a normalisation over the batch (Ioffe and Szegedy, 2015) whose running
statistics are state that a step updates, a relu, and a pooling that halves the image.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import tinyaot as ta
from tinyaot.datasets import digits_split
from tinyaot.models.training import Shuffled, Training
from tinyaot.nn import functional as F

SIDE = 8  # pixels


class CNN(ta.nn.Module):
    """Two blocks, to a quarter of the image's side, and a linear layer."""

    def __init__(self, first: int, second: int, classes: int) -> None:
        super().__init__()
        self.conv1 = ta.nn.Conv2d(1, first, 3, padding=1, bias=False)
        self.norm1 = ta.nn.BatchNorm2d(first)
        self.conv2 = ta.nn.Conv2d(first, second, 3, padding=1, bias=False)
        self.norm2 = ta.nn.BatchNorm2d(second)
        self.pool = ta.nn.MaxPool2d(2)
        self.out = ta.nn.Linear(second * (SIDE // 4) ** 2, classes)

    def forward(self, x: Any) -> Any:
        h = self.pool(F.relu(self.norm1(self.conv1(x))))
        h = self.pool(F.relu(self.norm2(self.conv2(h))))
        return self.out(h.reshape(h.shape[0], -1))


def cnn(seed: int = 0) -> Training:
    """A convolutional network on 8x8 handwritten digits, by SGD with momentum."""
    ta.manual_seed(seed)
    data = digits_split()
    images, unseen = (
        (x / 16).astype(np.float32).reshape(-1, 1, SIDE, SIDE)
        for x in (data.train_images, data.test_images)
    )
    model = CNN(16, 32, 10)
    optimizer = ta.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
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
        model.eval()
        with ta.no_grad():
            logits = model(ta.tensor(unseen))
        model.train()
        return float(np.mean(logits.numpy().argmax(axis=1) == data.test_labels))

    return Training(step, batch, accuracy, steps=150)
