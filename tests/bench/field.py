"""Training steps as people write them, for which the compiler's rules were made.

The built-in models show what passes buy; a rule may have nothing to do in them. Each program here
is of another kind of model. All use the public API alone, and none was written for a rule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tinyaot as ta
import tinyaot.nn.functional as F
from tinyaot import nn
from tinyaot.models import BUILTIN

Step = tuple[Callable[..., Any], tuple[Any, ...]]
Loss = Callable[..., Any]


def training(model: nn.Module, loss_of: Loss, *batch: Any) -> Step:
    """A step that trains `model` by momentum on `loss_of(*batch)`."""
    optimizer = ta.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step(*batch: Any) -> Any:
        optimizer.zero_grad()
        loss = loss_of(*batch)
        loss.backward()
        optimizer.step()
        return loss

    return step, batch


def builtin(name: str) -> Step:
    made = BUILTIN[name]()
    return made.step, made.batch(0)


def branches() -> Step:
    """Independent branches without a backward, in whose order a schedule has a choice."""
    weights = [ta.randn(256, 256) for _ in range(6)]

    def step(x: Any) -> Any:
        products = [x @ w for w in weights]
        return sum((p * p).sum(dim=1) for p in products)

    return step, (ta.randn(64, 256),)


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


def dense_block() -> Step:
    """DenseNet's block: each layer reads all before it."""
    model = nn.ModuleList([nn.Linear(64 + 32 * i, 32) for i in range(5)])

    def loss(x: Any, y: Any) -> Any:
        for layer in model:
            x = ta.cat([x, F.relu(layer(x))], dim=1)
        return F.mse_loss(x[:, -32:], y)

    return training(model, loss, ta.randn(128, 64), ta.randn(128, 32))


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
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return y.transpose(1, 2).reshape(n, t, d) @ self.out.T

    def rotate(x: Any, cos: Any, sin: Any) -> Any:
        half = x.shape[-1] // 2
        turned = ta.cat([-x[..., half:], x[..., :half]], dim=-1)
        return x * cos + turned * sin

    model = Model()
    angles = ta.arange(64).float().unsqueeze(1) * ta.rand(1, 16)
    loss = lambda x, y, cos, sin: F.mse_loss(model(x, cos, sin), y)  # noqa: E731
    x, y = ta.randn(4, 64, 64), ta.randn(4, 64, 64)
    return training(model, loss, x, y, angles.cos(), angles.sin())


def vae() -> Step:
    """A variational autoencoder: the evidence bound of Kingma and Welling (2013)."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.code = nn.Linear(64, 128), nn.Linear(128, 32)
            self.decode, self.leave = nn.Linear(16, 128), nn.Linear(128, 64)

        def forward(self, x: Any, noise: Any) -> tuple[Any, ...]:
            mean, log_var = self.code(F.relu(self.enter(x))).chunk(2, dim=1)
            z = mean + noise * (0.5 * log_var).exp()
            return self.leave(F.relu(self.decode(z))), mean, log_var

    model = Model()

    def loss(x: Any, noise: Any) -> Any:
        logits, mean, log_var = model(x, noise)
        divergence = -0.5 * (1 + log_var - mean**2 - log_var.exp()).sum(dim=1)
        return (F.binary_cross_entropy_with_logits(logits, x) * 64 + divergence.mean()) / 2

    return training(model, loss, ta.rand(128, 64), ta.randn(128, 16))


def uncertain() -> Step:
    """Regression that learns its own variance: a Gaussian's negative log likelihood."""
    model = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 2))

    def loss(x: Any, y: Any) -> Any:
        mean, raw = model(x).split(1, dim=1)
        sigma = (F.softplus(raw) + 1e-3) ** 0.5
        z = (y - mean) * sigma**-1
        log_likelihood = -(z**2) / 2 - sigma.log()
        return log_likelihood.mean() * -1

    return training(model, loss, ta.randn(256, 32), ta.randn(256, 1))


def policy() -> Step:
    """Proximal policy optimisation's clipped objective (Schulman et al., 2017) with entropy."""
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8))

    def loss(x: Any, action: Any, advantage: Any, before: Any) -> Any:
        logs = F.log_softmax(model(x), dim=1)
        chosen = logs.gather(1, action.unsqueeze(1)).squeeze(1)
        ratio = (chosen - before).exp()
        gain = ta.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        entropy = -(logs.exp() * logs).sum(dim=1)
        return -(gain + 0.01 * entropy).mean()

    action = ta.randint(0, 8, (512,))
    return training(model, loss, ta.randn(512, 16), action, ta.randn(512), -ta.rand(512) - 1)


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


def critic() -> Step:
    """A critic with a penalty on its gradient (Gulrajani et al., 2017): twice differentiated."""
    model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 1))

    def loss(real: Any, fake: Any, share: Any) -> Any:
        between = (real * share + fake * (1 - share)).detach().requires_grad_()
        (slope,) = ta.grad(model(between).sum(), [between], create_graph=True)
        penalty = (((slope**2).sum(dim=1) ** 0.5 - 1) ** 2).mean()
        return model(fake).mean() - model(real).mean() + 10 * penalty

    return training(model, loss, ta.randn(128, 64), ta.randn(128, 64), ta.rand(128, 1))


def careful() -> Step:
    """Sums in float64 over float32 data, and gradients clipped by their norm."""
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
    optimizer = ta.optim.AdamW(model.parameters(), lr=1e-3)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        error = (model(x) - y).double()
        loss = (error * error).sum(dim=1).float().mean()
        loss.backward()
        nn.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return step, (ta.randn(128, 64), ta.randn(128, 64))


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


def mixed_labels() -> Step:
    """Mixup (Zhang et al., 2018): pairs of samples and of their labels are blended."""
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def loss(x: Any, y: Any, share: Any) -> Any:
        labels = F.one_hot(y, 10).float()
        x = share * x + (1 - share) * x.flip(0)
        labels = share * labels + (1 - share) * labels.flip(0)
        return -(labels * F.log_softmax(model(x), dim=1)).sum(dim=1).mean()

    return training(model, loss, ta.randn(256, 64), ta.randint(0, 10, (256,)), ta.rand(256, 1))


def segmentation() -> Step:
    """Pixels by class, scored by overlap (the Dice loss of Milletari et al., 2016). The convolution
    is a sum over shifted windows of a padded image."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.taps = nn.Parameter(ta.randn(3, 3, 8, 4) * 0.2)

        def forward(self, x: Any) -> Any:
            h, w = x.shape[1:3]
            padded = F.pad(x, (0, 0, 1, 1, 1, 1))
            out = 0
            for i in range(3):
                rows = padded[:, i : i + h]
                for j in range(3):
                    out = out + rows[:, :, j : j + w] @ self.taps[i][j]
            return out

    model = Model()

    def loss(x: Any, y: Any) -> Any:
        p = model(x).softmax(dim=-1)
        truth = F.one_hot(y, 4).float()
        both = (p * truth).sum(dim=(0, 1, 2))
        return 1 - (2.0 * both / (p + truth).sum(dim=(0, 1, 2))).mean()

    return training(model, loss, ta.randn(8, 24, 24, 8), ta.randint(0, 4, (8, 24, 24)))


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


def twice_relu() -> Step:
    """Blocks that end in a relu, in a model that applies one to what each block gives; distances
    by absolute value."""
    blocks = nn.ModuleList([nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(3)])

    def loss(x: Any, y: Any) -> Any:
        for block in blocks:
            x = F.relu(block(x))
        error = (-(y - x)).abs()
        return ta.where(error < 1.0, 0.5 * error**2, error - 0.5).mean() * 1.0

    return training(blocks, loss, ta.randn(128, 64), ta.randn(128, 64))


PROGRAMS: dict[str, Callable[[], Step]] = {
    **{name: (lambda name=name: builtin(name)) for name in BUILTIN},  # type: ignore[misc]
    **{
        f.__name__: f
        for f in (
            branches, lstm, recurrent_buffer, dense_block, rotary, vae, uncertain, policy, padded,
            contrastive, heat, critic, careful, long_context, mixed_labels, segmentation,
            kernel_regression, windowed_cache, twice_relu,
        )
    },
}  # fmt: skip
