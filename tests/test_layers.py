"""Layers against their functional forms, initial values, clipping, whole compiled steps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tinyaot as ta
from tests.numeric import near, numbers, tensor
from tinyaot import nn
from tinyaot.errors import (
    ArgumentError,
    DTypeError,
    GradError,
    ShapeError,
)
from tinyaot.nn import functional as F

# ---- layers -------------------------------------------------------------------------------------

LAYERS: dict[str, tuple[Any, Any, Any]] = {
    "Linear": (
        lambda: nn.Linear(4, 3),
        lambda m, x: F.linear(x, m.weight, m.bias),
        (2, 4),
    ),
    "LayerNorm": (
        lambda: nn.LayerNorm((3, 4), eps=0.1),
        lambda m, x: F.layer_norm(x, (3, 4), m.weight, m.bias, 0.1),
        (2, 3, 4),
    ),
    "RMSNorm": (lambda: nn.RMSNorm(4), lambda m, x: F.rms_norm(x, 4, m.weight), (2, 4)),
    "Conv2d": (
        lambda: nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2),
        lambda m, x: F.conv2d(x, m.weight, m.bias, 2, 1, 1, 2),
        (1, 2, 5, 5),
    ),
    "MaxPool2d": (
        lambda: nn.MaxPool2d(2, 1, 1),
        lambda m, x: F.max_pool2d(x, 2, 1, 1),
        (1, 2, 4, 4),
    ),
    "AvgPool2d": (
        lambda: nn.AvgPool2d(2, padding=1, count_include_pad=False),
        lambda m, x: F.avg_pool2d(x, 2, padding=1, count_include_pad=False),
        (1, 2, 4, 4),
    ),
    "GELU": (lambda: nn.GELU("tanh"), lambda m, x: F.gelu(x, "tanh"), (3,)),
    "ReLU": (nn.ReLU, lambda m, x: F.relu(x), (3,)),
    "SiLU": (nn.SiLU, lambda m, x: F.silu(x), (3,)),
    "Sigmoid": (nn.Sigmoid, lambda m, x: F.sigmoid(x), (3,)),
    "Tanh": (nn.Tanh, lambda m, x: F.tanh(x), (3,)),
    "Softplus": (lambda: nn.Softplus(2.0), lambda m, x: F.softplus(x, 2.0), (3,)),
    "Softmax": (lambda: nn.Softmax(0), lambda m, x: F.softmax(x, 0), (3,)),
    "Flatten": (nn.Flatten, lambda m, x: x.reshape(2, 12), (2, 3, 4)),
    "Identity": (nn.Identity, lambda m, x: x, (3,)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_call_their_functional(name: str) -> None:
    make, want, shape = LAYERS[name]
    layer, x = make(), tensor(*shape)
    np.testing.assert_array_equal(layer(x).numpy(), want(layer, x).numpy())
    assert name in repr(layer)


def test_options_without_parameters() -> None:
    assert nn.Linear(2, 3, bias=False).bias is None
    assert list(nn.LayerNorm(3, bias=False).state_dict()) == ["weight"]
    assert not nn.LayerNorm(3, elementwise_affine=False).state_dict()
    assert nn.Linear(2, 3, dtype=ta.float64).weight.dtype is ta.float64
    with pytest.raises(ArgumentError, match="groups"):
        nn.Conv2d(3, 4, 3, groups=2)


def test_embedding() -> None:
    layer = nn.Embedding(5, 3, padding_idx=-1)
    ids = ta.tensor([[0, 4], [2, 1]])
    near(layer(ids), layer.weight.numpy()[ids.numpy()])
    near(layer.weight[4], np.zeros(3))
    layer(ids).sum().backward()
    near(layer.weight.grad[4], np.zeros(3))


def test_dropout_follows_the_mode() -> None:
    layer, x = nn.Dropout(0.5), ta.ones(100)
    assert set(np.unique(layer(x).numpy())) == {0.0, 2.0}
    assert layer.eval()(x) is x
    with pytest.raises(ArgumentError):
        nn.Dropout(1.5)


def test_batch_norm_tracks_statistics() -> None:
    layer, x = nn.BatchNorm2d(3, momentum=0.2), tensor(4, 3, 2, 2)
    y = layer(x)
    near(y.numpy().mean((0, 2, 3)), np.zeros(3))
    mean = x.numpy().mean((0, 2, 3))
    var = x.numpy().var((0, 2, 3), ddof=1)
    near(layer.running_mean, 0.2 * mean)
    near(layer.running_var, 0.8 + 0.2 * var)
    assert layer.num_batches_tracked.item() == 1
    layer.eval()
    near(layer(x[:1]), F.batch_norm(x[:1], layer.running_mean, layer.running_var))
    assert layer.num_batches_tracked.item() == 1
    with pytest.raises(ShapeError, match="BatchNorm2d takes 4-d input"):
        layer(tensor(4, 3))


def test_batch_norm_variants() -> None:
    plain = nn.BatchNorm1d(3, momentum=None)
    xs = [tensor(5, 3, seed=i) for i in range(3)]
    for x in xs:
        plain(x)
    near(plain.running_mean, np.mean([x.numpy().mean(0) for x in xs], 0))
    untracked = nn.BatchNorm1d(3, track_running_stats=False).eval()
    assert untracked.running_mean is None and list(untracked.state_dict()) == ["weight", "bias"]
    near(untracked(xs[0]), F.batch_norm(xs[0], None, None, training=True))


# ---- initial values -----------------------------------------------------------------------------


def test_initial_values_repeat_with_the_seed() -> None:
    def draw(seed: int) -> list[np.ndarray]:
        ta.manual_seed(seed)
        layers = nn.Linear(3, 4), nn.Embedding(4, 3), nn.Conv2d(2, 3, 2)
        return [p.numpy() for layer in layers for p in layer.parameters()]

    for a, b in zip(draw(1), draw(1)):
        np.testing.assert_array_equal(a, b)
    assert all((a != b).all() for a, b in zip(draw(1), draw(2)))


@pytest.mark.parametrize(
    "make, fan_in",
    [(lambda: nn.Linear(100, 80), 100), (lambda: nn.Conv2d(20, 30, (3, 5), groups=2), 150)],
)
def test_linear_maps_start_uniform(make: Any, fan_in: int) -> None:
    layer, bound = make(), 1 / math.sqrt(fan_in)
    for values in (layer.weight.numpy(), layer.bias.numpy()):
        assert abs(values).max() <= bound and abs(values).max() > 0.8 * bound
    assert abs(layer.weight.numpy().std() - bound / math.sqrt(3)) < 0.03 * bound


def test_initialisers() -> None:
    w = ta.zeros(200, 100)
    bound = math.sqrt(6 / 300)
    nn.init.xavier_uniform_(w)
    assert 0.99 * bound < abs(w.numpy()).max() <= bound
    nn.init.kaiming_uniform_(w, a=math.sqrt(5))
    assert 0.099 < abs(w.numpy()).max() <= 0.1
    nn.init.normal_(w, 1.0, 2.0)
    assert abs(w.numpy().mean() - 1) < 0.1 and abs(w.numpy().std() - 2) < 0.1
    near(nn.init.constant_(w, 3.0), np.full((200, 100), 3))
    p = nn.Parameter(w)
    assert nn.init.uniform_(p) is p and p.requires_grad  # a leaf may be filled
    assert abs(nn.Embedding(1000, 10).weight.numpy().std() - 1) < 0.05
    with pytest.raises(ShapeError, match="to have a fan"):
        nn.init.kaiming_uniform_(ta.zeros(3))


# ---- clipping -----------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [2.0, 1.0, 3.0, math.inf])
def test_clip_grad_norm(p: float) -> None:
    params = [nn.Parameter(ta.zeros(3)), nn.Parameter(ta.zeros(2, 2)), nn.Parameter(ta.zeros(1))]
    grads = [numbers(3), numbers(2, 2, seed=1)]
    for param, grad in zip(params, grads):
        param.grad = ta.tensor(grad.astype(np.float32))
    whole = np.linalg.norm(np.concatenate([g.ravel() for g in grads]), p)
    near(nn.clip_grad_norm_(params, 0.5, p), whole)
    for param, grad in zip(params, grads):
        near(param.grad, grad * 0.5 / whole)
    near(nn.clip_grad_norm_(params, 10.0, p), 0.5)  # small enough: not scaled up
    near(params[0].grad, grads[0] * 0.5 / whole)
    assert params[2].grad is None


def test_clip_grad_norm_of_bad_gradients() -> None:
    p = nn.Parameter(ta.zeros(2))
    assert nn.clip_grad_norm_([p], 1.0).item() == 0
    p.grad = ta.tensor([math.nan, 1.0])
    with pytest.raises(GradError, match="norm of the gradients is nan"):
        nn.clip_grad_norm_(p, 1.0, error_if_nonfinite=True)


# ---- in compiled steps --------------------------------------------------------------------------


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.norm = nn.LayerNorm(8)
        self.attention = nn.MultiHeadAttention(8, 2, dropout=0.1, batch_first=True)
        self.last = nn.Sequential(
            nn.RMSNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, 11)
        )

    def forward(self, ids: Any) -> Any:
        x = self.table(ids)
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False, is_causal=True)[0]
        return self.last(x).transpose(1, 2)


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 6, 2, stride=2, groups=2)
        self.norm2 = nn.BatchNorm2d(6, momentum=None)
        self.last = nn.Linear(6, 11)

    def forward(self, x: Any) -> Any:
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        x = F.avg_pool2d(F.silu(self.norm2(self.conv2(x))), 2, padding=1, count_include_pad=False)
        return self.last(x.sum((2, 3)))


def batch_of(model: type, seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    if model is Transformer:
        ids = rng.integers(0, 11, (3, 6))
        return ta.tensor(ids[:, :-1]), ta.tensor(ids[:, 1:])
    return tensor(4, 1, 8, 8, seed=seed), ta.tensor(rng.integers(0, 11, 4))


@pytest.mark.parametrize("model", [Transformer, Convolutional])
def test_compiled_steps_train_the_same(model: type) -> None:
    losses, states = [], []
    for compiled in (False, True):
        ta.manual_seed(7)
        m = model()
        optimizer = ta.optim.AdamW(m.parameters(), 0.01)

        def step(x: Any, y: Any, m: Any = m, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            loss = F.cross_entropy(m(x), y)
            loss.backward()
            nn.clip_grad_norm_(m.parameters(), 0.5)
            optimizer.step()
            return loss

        run = ta.compile(step, backend="numpy") if compiled else step
        losses.append([run(*batch_of(model, seed)).item() for seed in range(4)])
        states.append(m.state_dict())
    near(losses[0], losses[1], rtol=1e-6)
    for name, value in states[0].items():
        near(states[1][name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("weight", [ta.tensor([True, False]), ta.tensor([[True, False]])])
def test_linear_of_bools_raises_in_both_modes(weight: ta.Tensor) -> None:
    x = ta.tensor([True, True])
    for call in (F.linear, ta.compile(F.linear, backend="numpy")):
        with pytest.raises(DTypeError, match="not defined for bool"):
            call(x, weight)
