"""Attention: the function and the module, against the formula written out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import special

import tinyaot as ta
from tests.numeric import check_gradients, close, near, numbers, tensor
from tinyaot import nn
from tinyaot.errors import ArgumentError, DTypeError, ShapeError
from tinyaot.nn import functional as F


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    return special.softmax(x, axis=axis)


# ---- scaled_dot_product_attention ---------------------------------------------------------------


def attention(q: Any, k: Any, v: Any, mask: Any = None, scale: float | None = None) -> np.ndarray:
    """The formula, with the weights of a row that is masked whole set to zero."""
    scores = q @ k.swapaxes(-1, -2) * (1 / np.sqrt(q.shape[-1]) if scale is None else scale)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    with np.errstate(all="ignore"):
        weights = np.nan_to_num(softmax(scores))
    return weights @ v


def test_attention() -> None:
    q, k, v = numbers(2, 3, 5, 4), numbers(2, 3, 6, 4, seed=1), numbers(2, 3, 6, 7, seed=2)
    tensors = [ta.tensor(a) for a in (q, k, v)]
    close(F.scaled_dot_product_attention(*tensors), attention(q, k, v))
    close(F.scaled_dot_product_attention(*tensors, scale=0.3), attention(q, k, v, scale=0.3))
    causal = np.tril(np.ones((5, 6), bool))
    close(F.scaled_dot_product_attention(*tensors, is_causal=True), attention(q, k, v, causal))
    mask = np.random.default_rng(3).uniform(size=(2, 1, 5, 6)) < 0.5
    mask[0, 0, 2] = False  # attends to nothing
    got = F.scaled_dot_product_attention(*tensors, ta.tensor(mask))
    close(got, attention(q, k, v, mask))
    close(got[0, :, 2], np.zeros((3, 7)))
    added = np.where(mask, numbers(2, 1, 5, 6, seed=4), -np.inf)
    close(F.scaled_dot_product_attention(*tensors, ta.tensor(added)), attention(q, k, v, added))


@pytest.mark.parametrize("kind", ["none", "causal", "bool", "float"])
def test_attention_gradients(kind: str) -> None:
    q, k, v = numbers(2, 3, 4), numbers(2, 4, 4, seed=1), numbers(2, 4, 2, seed=2)
    mask = np.array([[True, False, True, True], [False] * 4, [True] * 4])
    options: dict[str, Any] = {
        "none": {},
        "causal": {"is_causal": True},
        "bool": {"attn_mask": ta.tensor(mask)},
        "float": {"attn_mask": ta.tensor(np.where(mask, 0.5, -np.inf))},
    }[kind]
    check_gradients(lambda *t: F.scaled_dot_product_attention(*t, **options), q, k, v)


def test_attention_broadcasts_and_groups_heads() -> None:
    q, k, v = numbers(2, 4, 5, 3), numbers(1, 5, 3, seed=1), numbers(2, 4, 5, 3, seed=2)
    close(
        F.scaled_dot_product_attention(ta.tensor(q), ta.tensor(k), ta.tensor(v)),
        attention(q, k, v),
    )
    k, v = numbers(2, 2, 5, 3, seed=1), numbers(2, 2, 5, 3, seed=2)
    mask = np.tril(np.ones((2, 4, 5, 5), bool))
    got = F.scaled_dot_product_attention(
        *(ta.tensor(a) for a in (q, k, v)), ta.tensor(mask), enable_gqa=True
    )
    close(got, attention(q, k.repeat(2, 1), v.repeat(2, 1), mask))


def test_attention_dropout_is_of_the_weights() -> None:
    ta.manual_seed(0)
    q, k, v = ta.zeros(1, 2, 3), ta.zeros(1, 400, 3), ta.ones(1, 400, 1)
    y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.5).numpy()
    assert (abs(y - 1) < 0.25).all() and y.std() > 0


def test_attention_errors() -> None:
    q = ta.zeros(2, 3)
    with pytest.raises(ArgumentError, match="not both"):
        F.scaled_dot_product_attention(q, q, q, ta.ones(2, 2), is_causal=True)
    with pytest.raises(ShapeError, match=r"\(2, 3\) and key \(2, 4\)"):
        F.scaled_dot_product_attention(q, ta.zeros(2, 4), q)
    with pytest.raises(ShapeError, match="keys"):
        F.scaled_dot_product_attention(q, q, ta.zeros(3, 3))
    with pytest.raises(DTypeError, match="bool or floating"):
        F.scaled_dot_product_attention(q, q, q, ta.ones(2, 2, dtype=ta.int64))


def test_causal_mask_is_a_map_of_positions() -> None:
    q = ta.zeros(2, 8, 4)
    program = ta.trace(lambda t: F.scaled_dot_product_attention(t, t, t, is_causal=True), q)
    assert [n.op for n in program.nodes].count("iota") == 2
    assert all(i.role == "argument" for i in program.inputs)


# ---- MultiHeadAttention -------------------------------------------------------------------------


def reference(m: Any, q: Any, k: Any, v: Any, mask: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """Multi-head attention head by head, batch first, in float64; `mask` is added to the scores."""
    weight, bias = m.in_proj_weight.numpy().astype(float), m.in_proj_bias.numpy()
    e, d = m.embed_dim, m.head_dim
    q, k, v = (
        np.asarray(x, float) @ weight[i * e : (i + 1) * e].T + bias[i * e : (i + 1) * e]
        for i, x in enumerate((q, k, v))
    )
    outs, shares = [], []
    for h in range(m.num_heads):
        at = slice(h * d, (h + 1) * d)
        scores = q[..., at] @ k[..., at].swapaxes(-1, -2) / np.sqrt(d)
        scores = scores if mask is None else scores + mask
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        outs.append(weights @ v[..., at])
        shares.append(weights)
    y = np.concatenate(outs, -1) @ m.out_proj.weight.numpy().T + m.out_proj.bias.numpy()
    return y, np.stack(shares, 1)


def biased(m: Any) -> Any:
    """Biases are zero at first, and would hide a mistake."""
    with ta.no_grad():
        m.in_proj_bias.uniform_(-1, 1)
        m.out_proj.bias.uniform_(-1, 1)
    return m


def test_multi_head_attention() -> None:
    m = biased(nn.MultiHeadAttention(8, 2, batch_first=True))
    x, y = tensor(3, 5, 8), tensor(3, 4, 8, seed=1)
    for args in ((x, x, x), (x, y, y)):
        want, shares = reference(m, *args)
        got, weights = m(*args)
        near(got, want)
        near(weights, shares.mean(1))
        near(m(*args, average_attn_weights=False)[1], shares)
        assert m(*args, need_weights=False)[1] is None
    sequence_first = biased(nn.MultiHeadAttention(8, 2))
    sequence_first.load_state_dict(m.state_dict())
    turned = [t.transpose(0, 1) for t in (x, y, y)]
    near(sequence_first(*turned)[0].transpose(0, 1), reference(m, x, y, y)[0])
    alone, shares_alone = m(x[0], y[0], y[0])
    near(alone, reference(m, x, y, y)[0][0])
    assert shares_alone.shape == (5, 4)


def test_multi_head_attention_masks() -> None:
    m = biased(nn.MultiHeadAttention(8, 2, batch_first=True))
    x = tensor(3, 4, 8)
    causal = np.where(np.tril(np.ones((4, 4), bool)), 0, -np.inf)
    near(m(x, x, x, is_causal=True)[0], reference(m, x, x, x, causal)[0])
    near(m(x, x, x, attn_mask=ta.tensor(causal == 0))[0], reference(m, x, x, x, causal)[0])
    padding = np.array([[0, 0, 0, 1], [0, 0, 1, 1], [0, 0, 0, 0]], bool)
    added = np.where(padding, -np.inf, 0)[:, None, :]
    near(m(x, x, x, ta.tensor(padding))[0], reference(m, x, x, x, added)[0])
    both = m(x, x, x, ta.tensor(padding), is_causal=True)[0]
    near(both, reference(m, x, x, x, causal + added)[0])
    floats = numbers(6, 4, 4)
    per_head = m(x, x, x, attn_mask=ta.tensor(floats), average_attn_weights=False)[1]
    for h in range(2):
        want = reference(m, x, x, x, floats.reshape(3, 2, 4, 4)[:, h])[1][:, h]
        near(per_head[:, h], want)
    with pytest.raises(ShapeError, match=r"key_padding_mask must have shape \(3, 4\)"):
        m(x, x, x, ta.tensor(padding[:2]))


def test_multi_head_attention_parameters() -> None:
    m = nn.MultiHeadAttention(8, 2)
    names = ["in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"]
    assert list(m.state_dict()) == names
    assert (m.in_proj_bias.numpy() == 0).all() and (m.out_proj.bias.numpy() == 0).all()
    bound = math.sqrt(6 / 32)
    assert 0.9 * bound < abs(m.in_proj_weight.numpy()).max() <= bound
    apart = nn.MultiHeadAttention(8, 2, kdim=3, vdim=5, bias=False)
    assert list(apart.state_dict()) == [
        "q_proj_weight",
        "k_proj_weight",
        "v_proj_weight",
        "out_proj.weight",
    ]
    assert apart(tensor(4, 1, 8), tensor(6, 1, 3), tensor(6, 1, 5))[0].shape == (4, 1, 8)
    with pytest.raises(ArgumentError, match="3 heads do not divide 8"):
        nn.MultiHeadAttention(8, 3)
