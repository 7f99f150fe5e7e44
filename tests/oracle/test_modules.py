"""torch's modules beside ours: names of the state, initial values, outputs and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tinyaot as ta
from tests.numeric import numbers
from tests.oracle.models import OURS, TORCH

Make = Callable[[Any], Any]

IMAGE, ROWS = numbers(2, 4, 6, 5), numbers(7, 6)
LAYERS: dict[str, tuple[Make, np.ndarray]] = {
    "Linear": (lambda nn: nn.Linear(6, 3), ROWS),
    "Linear plain": (lambda nn: nn.Linear(6, 3, bias=False), ROWS),
    "Embedding": (lambda nn: nn.Embedding(9, 3, padding_idx=1), np.array([[0, 1], [8, 1]])),
    "LayerNorm": (lambda nn: nn.LayerNorm(6), ROWS),
    "LayerNorm plain": (lambda nn: nn.LayerNorm((6, 5), 0.1, elementwise_affine=False), IMAGE),
    "LayerNorm no bias": (lambda nn: nn.LayerNorm(6, bias=False), ROWS),
    "RMSNorm": (lambda nn: nn.RMSNorm(6), ROWS),
    "RMSNorm eps": (lambda nn: nn.RMSNorm((6, 5), 0.1), IMAGE),
    "BatchNorm1d": (lambda nn: nn.BatchNorm1d(6), ROWS),
    "BatchNorm1d long": (lambda nn: nn.BatchNorm1d(4, momentum=None), IMAGE[..., 0].copy()),
    "BatchNorm2d": (lambda nn: nn.BatchNorm2d(4), IMAGE),
    "BatchNorm2d mean": (lambda nn: nn.BatchNorm2d(4, momentum=None, eps=0.1), IMAGE),
    "BatchNorm2d plain": (lambda nn: nn.BatchNorm2d(4, affine=False), IMAGE),
    "BatchNorm2d batch": (lambda nn: nn.BatchNorm2d(4, track_running_stats=False), IMAGE),
    "Conv2d": (lambda nn: nn.Conv2d(4, 6, 3), IMAGE),
    "Conv2d all": (lambda nn: nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 0), (1, 2), 2, False), IMAGE),
    "Conv2d same": (lambda nn: nn.Conv2d(4, 2, 3, padding="same"), IMAGE),
    "MaxPool2d": (lambda nn: nn.MaxPool2d(2), IMAGE),
    "MaxPool2d all": (lambda nn: nn.MaxPool2d((3, 2), 1, 1, ceil_mode=True), IMAGE),
    "AvgPool2d": (lambda nn: nn.AvgPool2d(2), IMAGE),
    "AvgPool2d all": (lambda nn: nn.AvgPool2d(3, 2, 1, True, False), IMAGE),
    "GELU": (lambda nn: nn.GELU(), ROWS),
    "GELU tanh": (lambda nn: nn.GELU("tanh"), ROWS),
    "ReLU": (lambda nn: nn.ReLU(), ROWS),
    "SiLU": (lambda nn: nn.SiLU(), ROWS),
    "Sigmoid": (lambda nn: nn.Sigmoid(), ROWS),
    "Tanh": (lambda nn: nn.Tanh(), ROWS),
    "Softplus": (lambda nn: nn.Softplus(2.0, 1.0), ROWS),
    "Softmax": (lambda nn: nn.Softmax(-1), ROWS),
    "Flatten": (lambda nn: nn.Flatten(), IMAGE),
    "Identity": (lambda nn: nn.Identity(3, a=2), ROWS),
    "Dropout": (lambda nn: nn.Dropout(0.0), ROWS),
    "Sequential": (lambda nn: nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2)), ROWS),
}


def copied(make: Make) -> tuple[Any, Any]:
    """A module of ours and torch's, in float64, with torch's values."""
    mine, other = make(OURS.nn).to(ta.float64), make(TORCH.nn).to(torch.float64)
    assert list(mine.state_dict()) == list(other.state_dict())
    mine.load_state_dict({k: ta.tensor(v.numpy()) for k, v in other.state_dict().items()})
    return mine, other


def close(mine: Any, other: Any) -> None:
    assert (mine is None) == (other is None)
    if mine is not None:
        other = other.detach().numpy()
        np.testing.assert_allclose(mine.detach().numpy(), other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", LAYERS)
def test_outputs_gradients_and_buffers(name: str) -> None:
    make, array = LAYERS[name]
    mine, other = copied(make)
    floating = array.dtype.kind == "f"
    for training in (True, True, False):
        mine.train(training)
        other.train(training)
        x = ta.tensor(array, requires_grad=floating)
        z = torch.tensor(array, requires_grad=floating)
        got, want = mine(x), other(z)
        close(got, want)
        (got * got).sum().backward()
        (want * want).sum().backward()
        close(x.grad, z.grad)
    for (name, p), (theirs, q) in zip(mine.named_parameters(), other.named_parameters()):
        assert name == theirs
        close(p.grad, q.grad)
    for key, value in mine.state_dict().items():
        close(value, other.state_dict()[key])


ATTENTION: dict[str, dict[str, Any]] = {
    "plain": {},
    "batch first": {"batch_first": True},
    "widths": {"kdim": 6, "vdim": 4},
    "no bias": {"bias": False},
}


@pytest.mark.parametrize("options", ATTENTION.values(), ids=ATTENTION.keys())
def test_attention(options: dict[str, Any]) -> None:
    mine, other = copied(lambda nn: nn.MultiHeadAttention(8, 2, **options))
    first = (3, 5) if options.get("batch_first") else (5, 3)
    q = numbers(*first, 8)
    k, v = numbers(*first, options.get("kdim", 8)), numbers(*first, options.get("vdim", 8))
    sees = np.tril(np.ones((5, 5), bool))
    padding = np.zeros((3, 5), bool)
    padding[1, 3:] = True
    forms: list[dict[str, Any]] = [{}, {"need_weights": False}, {"average_attn_weights": False}]
    forms += [{"attn_mask": sees}, {"key_padding_mask": padding}]
    forms += [{"attn_mask": sees, "key_padding_mask": padding}]
    forms += [{"attn_mask": np.where(sees, 0.3, -np.inf)}]
    for form in forms:
        ours = {k: ta.tensor(a) if isinstance(a, np.ndarray) else a for k, a in form.items()}
        # a boolean attn_mask of torch's layer is True where nothing is seen
        turned = {k: ~a if k == "attn_mask" and a.dtype == bool else a for k, a in form.items()}
        theirs = {k: torch.tensor(a) if isinstance(a, np.ndarray) else a for k, a in turned.items()}
        got, weights = mine(*map(ta.tensor, (q, k, v)), **ours)
        want, seen = other(*map(torch.tensor, (q, k, v)), **theirs)
        close(got, want)
        close(weights, seen)
        mine.zero_grad()
        other.zero_grad()
        (got * got).sum().backward()
        (want * want).sum().backward()
        for p, r in zip(mine.parameters(), other.parameters(), strict=True):
            close(p.grad, r.grad)


INITIAL: dict[str, Make] = {
    "Linear": lambda nn: nn.Linear(300, 200),
    "Embedding": lambda nn: nn.Embedding(200, 300, padding_idx=3),
    "Conv2d": lambda nn: nn.Conv2d(32, 64, (3, 5), groups=2),
    "LayerNorm": lambda nn: nn.LayerNorm(50),
    "RMSNorm": lambda nn: nn.RMSNorm(50),
    "BatchNorm2d": lambda nn: nn.BatchNorm2d(50),
    "MultiHeadAttention": lambda nn: nn.MultiHeadAttention(128, 4),
    "MultiHeadAttention of widths": lambda nn: nn.MultiHeadAttention(128, 4, kdim=64, vdim=96),
}


@pytest.mark.parametrize("name", INITIAL)
def test_initial_values_have_torchs_distribution(name: str) -> None:
    ta.manual_seed(2)
    torch.manual_seed(3)
    mine, other = INITIAL[name](OURS.nn), INITIAL[name](TORCH.nn)
    for (key, p), (theirs, q) in zip(mine.state_dict().items(), other.state_dict().items()):
        assert key == theirs and p.dtype.name == str(q.dtype).removeprefix("torch.")
        a, b = p.numpy().astype("f8"), q.numpy().astype("f8")
        assert a.shape == b.shape
        if (b == b.flat[0]).all():
            np.testing.assert_array_equal(a, b)
            continue
        error = 4 * b.std() / np.sqrt(a.size)  # of each of two means, four deviations away
        assert abs(a.mean() - b.mean()) < 2 * error
        assert abs(a.std() / b.std() - 1) < 8 / np.sqrt(a.size)
        normal = name == "Embedding"
        assert abs(np.abs(a).max() / np.abs(b).max() - 1) < (0.3 if normal else 20 / a.size)
    if name == "Embedding":
        assert not mine.weight.numpy()[3].any()
