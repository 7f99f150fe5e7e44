"""Two models for partitioners, written once: `nn` and `F` are torch's or ours.

Nothing here but names that both have, so that both sides trace the same program.
"""

from __future__ import annotations

from typing import Any

CLASSES, VOCABULARY, LENGTH = 10, 32, 32
BUDGETS = (0.8, 0.5, 0.2)


def perceptron(nn: Any, F: Any) -> Any:
    """Four layers with layer norm."""
    layers: list[Any] = []
    for width_in, width in ((32, 128), (128, 128), (128, 128)):
        layers += [nn.Linear(width_in, width), nn.LayerNorm(width), nn.GELU(), nn.Dropout(0.1)]
    return nn.Sequential(*layers, nn.Linear(128, CLASSES))


def transformer(nn: Any, F: Any) -> Any:
    """Two pre-norm blocks of causal attention, written out."""

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.heads = heads
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any, bias: Any) -> Any:
            b, t, d = x.shape
            split = self.qkv(self.norm1(x)).reshape(b, t, 3, self.heads, d // self.heads)
            q, k, v = split.permute(2, 0, 3, 1, 4).unbind(0)
            scores = (q @ k.transpose(-2, -1)) * (d // self.heads) ** -0.5 + bias
            mixed = F.dropout(F.softmax(scores, dim=-1), 0.1) @ v
            x = x + F.dropout(self.out(mixed.transpose(1, 2).reshape(b, t, d)), 0.1)
            return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), 0.1)

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(VOCABULARY, 64)
            self.one, self.two = Block(64, 4), Block(64, 4)
            self.head = nn.Linear(64, VOCABULARY)

        def forward(self, ids: Any, bias: Any) -> Any:
            x = self.embed(ids)
            x = self.two(self.one(x, bias), bias)
            return self.head(x)

    return Model()


MODELS = {"mlp": perceptron, "gpt": transformer}


def loss_of(name: str, net: Any, F: Any) -> Any:
    """The loss as a function of the batch."""
    if name == "mlp":
        return lambda x, y: F.cross_entropy(net(x), y)
    return lambda ids, bias, y: F.cross_entropy(
        net(ids, bias).reshape(-1, VOCABULARY), y.reshape(-1)
    )


def batch_of(name: str) -> list[tuple[str, tuple[int, ...], int]]:
    """(kind, shape, classes) of each array of a batch; "causal" is the bias of attention."""
    if name == "mlp":
        return [("normal", (128, 32), 0), ("classes", (128,), CLASSES)]
    ids = ("classes", (8, LENGTH), VOCABULARY)
    return [ids, ("causal", (LENGTH, LENGTH), 0), ids]
