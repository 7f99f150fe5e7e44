"""A small training step on C, as deep as wanted, whose source is looked at."""

from __future__ import annotations

from typing import Any

import tinyaot as ta
from tinyaot.codegen.source import Source
from tinyaot.nn import functional as F


class Trainer:
    def __init__(self, depth: int) -> None:
        ta.manual_seed(0)
        layers = [x for _ in range(depth) for x in (ta.nn.Linear(16, 16), ta.nn.Tanh())]
        self.net = ta.nn.Sequential(*layers, ta.nn.Linear(16, 4))
        self.optimizer = ta.optim.AdamW(self.net.parameters(), lr=0.01)
        self.x, self.y = ta.randn(40, 16), ta.arange(40) % 4
        self.step: Any = ta.compile(self.train, backend="c")

    def train(self) -> Any:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.net(self.x), self.y)
        loss.backward()
        self.optimizer.step()
        return loss

    def code(self) -> Source:
        self.step.explain()
        code: Source = self.step._specializations[-1].executable.compiled.code
        return code
