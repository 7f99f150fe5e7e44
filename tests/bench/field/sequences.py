"""Models of sequences."""

from __future__ import annotations

from typing import Any

import tinyaot as ta
import tinyaot.nn.functional as F
from tests.bench.field.common import Step, training
from tinyaot import nn


def lstm() -> Step:
    """An LSTM over eight steps; the gates of a step are pieces of one product."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x, self.h, self.out = nn.Linear(32, 256), nn.Linear(64, 256), nn.Linear(64, 10)

        def forward(self, x: Any) -> Any:
            h, c = ta.zeros(x.shape[0], 64), ta.zeros(x.shape[0], 64)
            for t in range(x.shape[1]):
                i, f, g, o = (self.x(x[:, t]) + self.h(h)).chunk(4, dim=1)
                c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                h = o.sigmoid() * c.tanh()
            return self.out(h)

    model = Model()
    loss = lambda x, y: F.cross_entropy(model(x), y)  # noqa: E731
    return training(model, loss, ta.randn(32, 8, 32), ta.randint(0, 10, (32,)))


def rotary() -> Step:
    """Attention with rotary position embeddings (Su et al., 2021) and weights as (out, in)."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Parameter(ta.randn(192, 64) * 0.1)
            self.out = nn.Parameter(ta.randn(64, 64) * 0.1)

        def forward(self, x: Any, cos: Any, sin: Any) -> Any:
            n, t, d = x.shape
            q, k, v = (x @ self.qkv.T).reshape(n, t, 3, 4, d // 4).permute(2, 0, 3, 1, 4).unbind(0)
            cos, sin = (a.expand(n, 4, *a.shape)[:, :, :t] for a in (cos, sin))
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return y.transpose(1, 2).reshape(n, t, d) @ self.out.T

    def rotate(x: Any, cos: Any, sin: Any) -> Any:
        half = x.shape[-1] // 2
        turned = ta.cat([-x[..., half:], x[..., :half]], dim=-1)
        return x * cos + turned * sin

    model = Model()
    angles = ta.arange(320).float().unsqueeze(1) * ta.rand(1, 16)  # the longest text's
    loss = lambda x, y, cos, sin: F.mse_loss(model(x, cos, sin), y)  # noqa: E731
    x, y = ta.randn(2, 256, 64), ta.randn(2, 256, 64)
    return training(model, loss, x, y, angles.cos(), angles.sin())


def padded() -> Step:
    """A transformer's encoder on padded sequences; the mask says where there is padding."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(64, 64, bias=False) for _ in range(3))
            self.norm, self.out = nn.LayerNorm(64), nn.Linear(64, 10)

        def forward(self, x: Any, padding: Any) -> Any:
            keep = ~padding
            h = self.norm(x)
            q, k, v = (heads(f(h)) for f in (self.q, self.k, self.v))
            scores = q @ k.transpose(-1, -2) / 16**0.5
            scores = ta.where(keep[:, None, None, :], scores, -1e9)
            h = (scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(*x.shape)
            h = (x + h).masked_fill(~keep.unsqueeze(-1), 0.0)
            return self.out(h.sum(dim=1) / keep.float().sum(dim=1, keepdim=True))

    def heads(x: Any) -> Any:
        return x.reshape(*x.shape[:2], 4, 16).transpose(1, 2)

    model = Model()
    padding = ta.arange(48) >= ta.randint(16, 48, (8, 1))
    loss = lambda x, padding, y: F.cross_entropy(model(x, padding), y)  # noqa: E731
    return training(model, loss, ta.randn(8, 48, 64), padding, ta.randint(0, 10, (8,)))


def long_context() -> Step:
    """A decoder's block on one long text."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.qkv, self.out = nn.LayerNorm(64), nn.Linear(64, 192), nn.Linear(64, 64)

        def forward(self, x: Any) -> Any:
            n, t, d = x.shape
            qkv = self.qkv(self.norm(x)).reshape(n, t, 3, 2, d // 2)
            q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return x + self.out(y.transpose(1, 2).reshape(n, t, d))

    model = Model()
    loss = lambda x, y: F.mse_loss(model(x), y)  # noqa: E731
    return training(model, loss, ta.randn(1, 512, 64), ta.randn(1, 512, 64))


def windowed_cache() -> Step:
    """Attention over a window that slides: what came before is kept in a cache, cut to size."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kv, self.q, self.out = nn.Linear(64, 128), nn.Linear(64, 64), nn.Linear(64, 64)
            self.place = nn.Parameter(ta.zeros(1, 128, 64))

        def forward(self, chunks: Any, cache: Any) -> Any:
            found = []
            for x in chunks.unbind(1):
                cache = ta.cat([cache, x], dim=1)[:, -96:]
                seen = cache + self.place.expand(x.shape[0], 128, 64)[:, :96]
                k, v = self.kv(seen).chunk(2, dim=-1)
                scores = self.q(x) @ k.transpose(1, 2) / 8.0
                found.append(self.out(scores.softmax(dim=-1) @ v))
            return ta.cat(found, dim=1)

    model = Model()
    loss = lambda x, cache, y: F.mse_loss(model(x, cache), y)  # noqa: E731
    return training(model, loss, ta.randn(4, 3, 32, 64), ta.randn(4, 96, 64), ta.randn(4, 96, 64))


def masked_attention() -> Step:
    """Attention whose mask is put together from parts, cut from one for the longest text."""
    model = nn.ModuleList([nn.Linear(32, 32) for _ in range(3)])
    longest = 64

    def loss(x: Any, y: Any, padding: Any) -> Any:
        n, t, _ = x.shape
        mask = ta.ones(longest, longest, dtype=ta.bool).expand(n, longest, longest)[:, :t, :t]
        mask = mask & ~padding[:, None, :]
        q, k, v = (layer(x) for layer in model)
        return F.mse_loss(F.scaled_dot_product_attention(q, k, v, attn_mask=mask), y)

    padding = ta.arange(48) >= ta.randint(16, 48, (8, 1))
    return training(model, loss, ta.randn(8, 48, 32), ta.randn(8, 48, 32), padding)
