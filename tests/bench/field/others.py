"""Everything else that is trained: losses of many kinds on small networks."""

from __future__ import annotations

from typing import Any

import tinyaot as ta
import tinyaot.nn.functional as F
from tests.bench.field.common import Step, training
from tinyaot import nn


def branches() -> Step:
    """Independent branches without a backward, in whose order a schedule has a choice."""
    weights = [ta.randn(256, 256) for _ in range(6)]

    def step(x: Any) -> Any:
        products = [x @ w for w in weights]
        return sum((p * p).sum(dim=1) for p in products)

    return step, (ta.randn(64, 256),)


def dense_block() -> Step:
    """DenseNet's block: each layer reads all before it."""
    model = nn.ModuleList([nn.Linear(64 + 32 * i, 32) for i in range(5)])

    def loss(x: Any, y: Any) -> Any:
        for layer in model:
            x = ta.cat([x, F.relu(layer(x))], dim=1)
        return F.mse_loss(x[:, -32:], y)

    return training(model, loss, ta.randn(128, 64), ta.randn(128, 32))


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

    model, unlabelled = Model(), 3

    def loss(x: Any, y: Any) -> Any:
        p = model(x).softmax(dim=-1)
        counts = ta.ones(*y.shape, dtype=ta.bool) & (y != unlabelled)
        p, truth = (v * counts.unsqueeze(-1) for v in (p, F.one_hot(y, 4).float()))
        both = (p * truth).sum(dim=(0, 1, 2))
        return 1 - (2.0 * both / (p + truth).sum(dim=(0, 1, 2))).mean()

    return training(model, loss, ta.randn(8, 24, 24, 8), ta.randint(0, 4, (8, 24, 24)))


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


def recommender() -> Step:
    """Products of embeddings beside a network on all of them (DeepFM, Guo et al., 2017), with
    embeddings kept small by a bridge penalty."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.users, self.items = nn.Embedding(200, 16), nn.Embedding(300, 16)
            self.deep = nn.Sequential(nn.Linear(36, 64), nn.ReLU(), nn.Linear(64, 1))

        def forward(self, user: Any, item: Any, context: Any) -> tuple[Any, Any]:
            pair = ta.cat([self.users(user), self.items(item)], dim=1)
            together = (pair[:, :16] * pair[:, 16:]).sum(dim=1)
            deep = self.deep(ta.cat([pair, context], dim=1)).squeeze(1)
            return together + deep, (pair.abs() ** 1.5).mean()

    model = Model()

    def loss(user: Any, item: Any, context: Any, liked: Any) -> Any:
        score, penalty = model(user, item, context)
        likelihood = liked * F.softplus(-score) + (1 - liked) * F.softplus(score)
        return -1.0 * (-likelihood).mean() + 1e-3 * penalty

    user, item = ta.randint(0, 200, (256,)), ta.randint(0, 300, (256,))
    return training(model, loss, user, item, ta.randn(256, 4), ta.rand(256).round())


def q_learning() -> Step:
    """Deep Q-learning (Mnih et al., 2015): what follows the end of an episode is worth nothing."""
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))

    def loss(now: Any, action: Any, reward: Any, then: Any, done: Any) -> Any:
        value = model(now).gather(1, action.unsqueeze(1)).squeeze(1)
        with ta.no_grad():
            later = ta.where(~done, model(then).max(dim=1)[0], 0.0)
        return ((value - (reward + 0.99 * later)).abs() ** 1.5).mean()

    now, then = ta.randn(512, 16), ta.randn(512, 16)
    action, done = ta.randint(0, 4, (512,)), ta.rand(512) < 0.1
    return training(model, loss, now, action, ta.randn(512), then, done)
