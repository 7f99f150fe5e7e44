"""A character-level transformer: which character comes next, from those before it.

The decoder of Vaswani et al. (2017), normalised before each part rather than after it (pre-LN, as
in GPT-2), trained by AdamW on windows of the text that ships with the package.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import tinyaot as ta
from tinyaot.datasets import text
from tinyaot.models.training import Training
from tinyaot.nn import functional as F

CONTEXT, BATCH = 64, 8  # characters in a window, windows in a batch
WIDTH, HEADS, BLOCKS = 96, 4, 2
DROPOUT = 0.1
HELD_OUT = 64  # windows of the text's last tenth that accuracy is taken on


class Attention(ta.nn.Module):
    """Causal self-attention of several heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = ta.nn.Linear(width, 3 * width)
        self.out = ta.nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        n, length, width = x.shape
        qkv = self.qkv(x).reshape(n, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        dropout = DROPOUT if self.training else 0.0
        y: Any = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(n, length, width))


class Block(ta.nn.Module):
    """Attention, then two linear layers with a gelu between; each adds to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = ta.nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = ta.nn.LayerNorm(width)
        self.up = ta.nn.Linear(width, 4 * width)
        self.down = ta.nn.Linear(4 * width, width)
        self.dropout = ta.nn.Dropout(DROPOUT)

    def forward(self, x: Any) -> Any:
        x = x + self.dropout(self.attention(self.norm1(x)))
        h = F.gelu(self.up(self.norm2(x)))
        return x + self.dropout(self.down(h))


class GPT(ta.nn.Module):
    """Characters int64[n, CONTEXT] to logits of the next one, float32[n, CONTEXT, vocabulary]."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.characters = ta.nn.Embedding(vocabulary, WIDTH)
        self.places = ta.nn.Embedding(CONTEXT, WIDTH)
        self.dropout = ta.nn.Dropout(DROPOUT)
        self.blocks = ta.nn.ModuleList([Block(WIDTH, HEADS) for _ in range(BLOCKS)])
        self.norm = ta.nn.LayerNorm(WIDTH)
        self.out = ta.nn.Linear(WIDTH, vocabulary)

    def forward(self, ids: Any) -> Any:
        h = self.dropout(self.characters(ids) + self.places.weight)
        for block in self.blocks:
            h = block(h)
        return self.out(self.norm(h))


def gpt(seed: int = 0) -> Training:
    """A character-level transformer on English text, by AdamW."""
    ta.manual_seed(seed)
    letters, ids = np.unique(np.frombuffer(text().encode("ascii"), np.uint8), return_inverse=True)
    ids = ids.astype(np.int64)
    train, unseen = np.split(ids, [len(ids) * 9 // 10])
    model = GPT(len(letters))
    optimizer = ta.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        logits = model(x)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        return loss

    def batch(number: int) -> tuple[Any, ...]:
        rng = np.random.default_rng([seed, number])
        return windows(train, rng.integers(0, len(train) - CONTEXT, BATCH))

    def accuracy() -> float:
        x, y = windows(unseen, np.linspace(0, len(unseen) - CONTEXT - 1, HELD_OUT).astype(int))
        model.eval()
        with ta.no_grad():
            logits = model(x)
        model.train()
        return float(np.mean(logits.numpy().argmax(axis=-1) == y.numpy()))

    return Training(
        step,
        batch,
        accuracy,
        steps=200,
        loss_name="loss, nats per character",
        accuracy_name="next character right, held-out text",
    )


def windows(ids: np.ndarray, starts: np.ndarray) -> tuple[Any, Any]:
    """A window at each start, and the same windows one character later: int64[n, CONTEXT] each."""
    found = ids[starts[:, None] + np.arange(CONTEXT + 1)]
    return ta.tensor(found[:, :-1]), ta.tensor(found[:, 1:])
