"""Programs that write into their tensors."""

from __future__ import annotations

from typing import Any

import tinyaot as ta
import tinyaot.nn.functional as F
from tests.bench.field.common import Step, training
from tinyaot import nn


def recurrent_buffer() -> Step:
    """A recurrent net that writes its states into a buffer, and reads the last one from there."""
    model = nn.Sequential(nn.Linear(64 + 16, 64), nn.Linear(64, 1))

    def loss(x: Any, y: Any) -> Any:
        states = ta.zeros(x.shape[0], x.shape[1] + 1, 64)
        for t in range(x.shape[1]):
            both = ta.cat([states[:, t], x[:, t]], dim=1)
            states[:, t + 1] = model[0](both).tanh()
        return F.mse_loss(model[1](states[:, 1:]).squeeze(-1), y)

    return training(model, loss, ta.randn(32, 8, 16), ta.randn(32, 8))


def contrastive() -> Step:
    """NT-Xent (Chen et al., 2020): a sample is never its own negative."""
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))

    def loss(a: Any, b: Any) -> Any:
        z = ta.cat([model(a), model(b)], dim=0)
        z = z / (z**2).sum(dim=1, keepdim=True) ** 0.5
        similarity = z @ z.T / 0.5
        similarity.diagonal().fill_(-1e9)
        n = a.shape[0]
        partner = ta.cat([ta.arange(n) + n, ta.arange(n)])
        return F.cross_entropy(similarity, partner)

    return training(model, loss, ta.randn(64, 64), ta.randn(64, 64))


def heat() -> Step:
    """The heat equation on a grid with walls, fitted to what is seen at the end."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.start = nn.Parameter(ta.randn(96, 96))

        def forward(self, steps: int) -> Any:
            u = self.start.clone()
            for _ in range(steps):
                inner = u[1:-1, 1:-1]
                around = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
                new = inner + (around - 4 * inner) / 8
                u[1:-1, 1:-1] = new
                u[0], u[-1] = 0.0, 0.0
                u.T[0], u.T[-1] = u.T[1], u.T[-2]
            return u

    model = Model()
    return training(model, lambda seen: ((model(6) - seen) ** 2).mean(), ta.randn(96, 96))


def kernel_regression() -> Step:
    """A deep kernel's matrix, its diagonal raised by the noise and kept away from zero; the loss is
    a power series of its inverse (no solve)."""
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 8))

    def loss(x: Any, y: Any) -> Any:
        z = model(x)
        squares = (z**2).sum(dim=1, keepdim=True)
        k = (-0.5 * (squares + squares.T - 2 * z @ z.T)).exp()
        k.diagonal().add_(1e-2)
        k.diagonal().clamp_(min=1e-3)
        scale = k.diagonal().sum()
        fit = y
        for _ in range(3):
            fit = fit + y - k @ fit / scale
        return (y * fit).mean() + 0.5 * scale.log()

    return training(model, loss, ta.randn(128, 16), ta.randn(128, 1))


def spectrogram() -> Step:
    """Speech features with bands of times and of frequencies blanked (SpecAugment, Park et al.,
    2019), every second frame taken."""
    model = nn.ModuleList([nn.Linear(40, 64), nn.Linear(64, 30)])

    def loss(x: Any, y: Any) -> Any:
        h = F.gelu(model[0](x))
        h[:, 12:20] = 0.0
        h.transpose(1, 2)[:, 5:11] = 0.0
        frames = h[:, 2:-2][:, ::2]
        return F.cross_entropy(model[1](frames).flatten(0, 1), y.flatten())

    return training(model, loss, ta.randn(8, 64, 40), ta.randint(0, 30, (8, 30)))


def graph() -> Step:
    """A graph network on a learned graph: no loops at first, then weighted ones."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.key, self.value = nn.Linear(32, 16), nn.Linear(32, 32)
            self.loop = nn.Parameter(ta.ones(1))

        def forward(self, x: Any) -> Any:
            k = self.key(x)
            near = F.relu(k @ k.T)
            near.diagonal().fill_(0.0)
            near.diagonal().add_(self.loop)
            near = near / (near.sum(dim=1, keepdim=True) + 1e-6)
            return near @ self.value(x)

    model = Model()
    return training(model, lambda x, y: F.mse_loss(model(x), y), ta.randn(96, 32), ta.randn(96, 32))
