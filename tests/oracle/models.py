"""Models written once, over whichever `nn` they are given: ours or torch's."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import torch

import tinyaot as ta

OURS = types.SimpleNamespace(nn=ta.nn, F=ta.nn.functional)
TORCH = types.SimpleNamespace(
    nn=types.SimpleNamespace(
        **{n: getattr(torch.nn, n) for n in dir(torch.nn)},
        MultiHeadAttention=torch.nn.MultiheadAttention,
    ),
    F=torch.nn.functional,
)


def mlp(of: Any) -> Any:
    nn = of.nn
    return nn.Sequential(
        *(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 8)),
        *(nn.RMSNorm(8), nn.SiLU(), nn.Linear(8, 5)),
    )


def transformer(of: Any) -> Any:
    nn = of.nn

    class Block(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm1 = nn.LayerNorm(8)
            self.attention = nn.MultiHeadAttention(8, 2, batch_first=True)
            self.norm2 = nn.LayerNorm(8)
            self.rise = nn.Linear(8, 16)
            self.fall = nn.Linear(16, 8)

        def forward(self, x: Any) -> Any:
            y = self.norm1(x)
            x = x + self.attention(y, y, y, need_weights=False)[0]
            return x + self.fall(of.F.gelu(self.rise(self.norm2(x)), approximate="tanh"))

    class Model(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(11, 8)
            self.blocks = nn.ModuleList([Block(), Block()])
            self.head = nn.Linear(8, 5, bias=False)

        def forward(self, ids: Any) -> Any:
            x = self.table(ids)
            for block in self.blocks:
                x = block(x)
            return self.head(x.mean(1))

    return Model()


def cnn(of: Any) -> Any:
    nn = of.nn
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(4, 6, 3, stride=2, groups=2), nn.BatchNorm2d(6), nn.Softplus()),
        *(nn.AvgPool2d(2, 1, 1), nn.Flatten(), nn.Linear(24, 5)),
    )


def batch(model: Any, step: int) -> tuple[np.ndarray, np.ndarray]:
    """The arguments of a training step: inputs (float64 or ids) and classes."""
    rng = np.random.default_rng(step)
    shape = {mlp: (7, 6), transformer: (3, 4), cnn: (4, 1, 9, 9)}[model]
    x = rng.integers(0, 11, shape) if model is transformer else rng.standard_normal(shape)
    return x, rng.integers(0, 5, shape[0])
