"""Composites against closed formulas in NumPy and SciPy, their gradients against differences."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tinyaot as ta
from scipy import special, stats
from tinyaot.errors import ArgumentError, DTypeError, IndexingError, ShapeError
from tinyaot.nn import functional as F


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def close(got: Any, want: Any, rtol: float = 1e-10, atol: float = 1e-12) -> None:
    np.testing.assert_allclose(np.asarray(got), want, rtol=rtol, atol=atol)


def check_gradients(fn: Callable[..., Any], *arrays: np.ndarray, rtol: float = 1e-6) -> None:
    """The gradient of a random weighting of fn's result by every argument, by central differences."""
    tensors = [ta.tensor(a, requires_grad=True) for a in arrays]
    y = fn(*tensors)
    weights = numbers(*y.shape, seed=99)
    grads = ta.grad((y * ta.tensor(weights)).sum(), tensors)
    for i, (array, grad) in enumerate(zip(arrays, grads)):
        expected = np.empty_like(array)
        for place in np.ndindex(array.shape):
            moved = []
            for sign in (1, -1):
                changed = [a.copy() for a in arrays]
                changed[i][place] += sign * 1e-6
                result = fn(*[ta.tensor(a) for a in changed])
                moved.append(float((result.numpy() * weights).sum()))
            expected[place] = (moved[0] - moved[1]) / 2e-6
        np.testing.assert_allclose(grad.numpy(), expected, rtol=rtol, atol=1e-7)


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    return special.softmax(x, axis=axis)


# ---- linear and activations ---------------------------------------------------------------------


@pytest.mark.parametrize("lead", [(), (5,), (2, 5), (2, 3, 5)])
def test_linear(lead: tuple[int, ...]) -> None:
    x, w, b = numbers(*lead, 4), numbers(3, 4, seed=1), numbers(3, seed=2)
    close(F.linear(ta.tensor(x), ta.tensor(w), ta.tensor(b)), x @ w.T + b)
    close(F.linear(ta.tensor(x), ta.tensor(w)), x @ w.T)
    close(F.linear(ta.tensor(x), ta.tensor(w[0])), x @ w[0])
    check_gradients(F.linear, x, w, b)


def test_linear_errors_name_both_shapes() -> None:
    with pytest.raises(ShapeError, match=r"linear.*\(2, 4\).*\(3, 5\)"):
        F.linear(ta.zeros(2, 4), ta.zeros(3, 5))
    with pytest.raises(DTypeError, match="linear.*float32 does not fit one of float64"):
        F.linear(ta.zeros(2, 4), ta.zeros(3, 4, dtype=ta.float64))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "relu": (F.relu, lambda x: np.maximum(x, 0)),
    "gelu": (F.gelu, lambda x: x * stats.norm.cdf(x)),
    "gelu tanh": (lambda x: F.gelu(x, approximate="tanh"), gelu_tanh),
    "silu": (F.silu, lambda x: x * special.expit(x)),
    "sigmoid": (F.sigmoid, special.expit),
    "tanh": (F.tanh, np.tanh),
    "softplus": (F.softplus, lambda x: np.logaddexp(0, x)),
    "softplus beta": (lambda x: F.softplus(x, beta=2.0), lambda x: np.logaddexp(0, 2 * x) / 2),
    "softmax": (lambda x: F.softmax(x, 1), lambda x: softmax(x, 1)),
    "log_softmax": (lambda x: F.log_softmax(x, 0), lambda x: special.log_softmax(x, axis=0)),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str) -> None:
    fn, formula = ACTIVATIONS[name]
    x = 2 * numbers(3, 4)
    close(fn(ta.tensor(x)), formula(x))
    check_gradients(fn, x)
    assert fn(ta.tensor(x.astype(np.float32))).dtype is ta.float32


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", ["gelu", "gelu tanh", "silu", "softplus", "softmax"])
def test_half_precision_rounds_once(name: str, dtype: Any) -> None:
    fn, _ = ACTIVATIONS[name]
    x = (2 * numbers(4, 5)).astype(dtype)
    wide = fn(ta.tensor(x.astype(np.float32))).numpy()
    got = fn(ta.tensor(x))
    assert got.numpy().dtype == dtype
    np.testing.assert_array_equal(got.numpy(), wide.astype(dtype))


def test_softplus_far_out() -> None:
    x = ta.tensor(
        np.array([-800.0, -40.0, 0.0, 19.0, 20.0, 21.0, 800.0, np.inf]), requires_grad=True
    )
    y = F.softplus(x)
    close(y, [0, np.exp(-40), np.log(2), *np.logaddexp(0, [19, 20]), 21, 800, np.inf], atol=0)
    y[:-1].sum().backward()
    close(x.grad[:-1], [0, np.exp(-40), 0.5, *special.expit([19, 20]), 1, 1])


def test_gelu_rejects_other_approximations() -> None:
    with pytest.raises(ArgumentError, match="'none' or 'tanh'"):
        F.gelu(ta.zeros(2), approximate="erf")
    with pytest.raises(DTypeError, match="gelu"):
        F.gelu(ta.tensor([1, 2]))


def test_inplace_writes_the_input() -> None:
    x = ta.tensor([-1.0, 2.0])
    assert F.relu(x, inplace=True) is x
    close(x, [0, 2])
    assert F.silu(x, inplace=True) is x
    close(x, [0, 2 * special.expit(2)], rtol=1e-6)


# ---- dropout ------------------------------------------------------------------------------------


def test_dropout_keeps_a_share_and_scales_it() -> None:
    ta.manual_seed(3)
    x = ta.ones(200, 300, requires_grad=True)
    y = F.dropout(x, 0.3)
    kept = y.numpy() != 0
    assert abs(kept.mean() - 0.7) < 0.01
    close(y.numpy()[kept], 1 / 0.7, rtol=1e-6)
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), y.numpy())  # the same mask and scale


def test_dropout_repeats_with_the_seed_and_not_from_call_to_call() -> None:
    x = ta.ones(64)
    masks = []
    for seed in (1, 1, 2):
        ta.manual_seed(seed)
        masks.append([F.dropout(x, 0.5).numpy() for _ in range(2)])
    np.testing.assert_array_equal(masks[0], masks[1])
    assert (masks[0][0] != masks[0][1]).any() and (masks[0][0] != masks[2][0]).any()


def test_dropout_off() -> None:
    x = ta.ones(8)
    assert F.dropout(x, 0.5, training=False) is x
    assert F.dropout(x, 0.0) is x
    close(F.dropout(x, 1.0), np.zeros(8))
    y = F.dropout(x, 0.5, inplace=True)
    assert y is x
    for p in (-0.1, 1.1, math.nan):
        with pytest.raises(ArgumentError, match="between 0 and 1"):
            F.dropout(x, p)


# ---- losses -------------------------------------------------------------------------------------


def nll(log_p: np.ndarray, y: np.ndarray, w: np.ndarray, ignore: int = -100) -> tuple[Any, Any]:
    """Losses and weights of each row, zero where ignored; classes on axis 1."""
    rows = np.moveaxis(log_p, 1, -1).reshape(-1, log_p.shape[1])
    flat = y.reshape(-1)
    losses, weights = np.zeros(flat.size), np.zeros(flat.size)
    for i, target in enumerate(flat):
        if target != ignore:
            losses[i], weights[i] = -w[target] * rows[i, target], w[target]
    return losses.reshape(y.shape), weights.reshape(y.shape)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("tail", [(), (2,), (2, 3)])
def test_cross_entropy(tail: tuple[int, ...], weighted: bool) -> None:
    rng = np.random.default_rng(0)
    x, y = 3 * numbers(5, 4, *tail), rng.integers(0, 4, (5, *tail))
    y.flat[1] = -100
    w = rng.uniform(0.5, 2, 4) if weighted else np.ones(4)
    weight = ta.tensor(w) if weighted else None
    losses, weights = nll(special.log_softmax(x, axis=1), y, w)
    target = ta.tensor(y)
    for reduction, want in (
        ("none", losses),
        ("sum", losses.sum()),
        ("mean", losses.sum() / weights.sum()),
    ):
        close(F.cross_entropy(ta.tensor(x), target, weight, reduction=reduction), want)
        log_p = ta.tensor(special.log_softmax(x, axis=1))
        close(F.nll_loss(log_p, target, weight, reduction=reduction), want)
    check_gradients(lambda t: F.cross_entropy(t, target, weight), x)
    check_gradients(lambda t: F.nll_loss(t, target, weight, reduction="none"), x)


@pytest.mark.parametrize("weighted", [False, True])
def test_label_smoothing(weighted: bool) -> None:
    x, y, s = 3 * numbers(5, 4), np.array([0, 3, 1, -100, 2]), 0.2
    w = np.array([0.5, 1.0, 2.0, 1.5]) if weighted else np.ones(4)
    weight = ta.tensor(w) if weighted else None
    log_p = special.log_softmax(x, axis=1)
    losses, weights = nll(log_p, y, w)
    spread = np.where(y == -100, 0, -(log_p * w).sum(1))
    both = (1 - s) * losses + s / 4 * spread
    options: dict[str, Any] = {"weight": weight, "label_smoothing": s}
    close(F.cross_entropy(ta.tensor(x), ta.tensor(y), reduction="none", **options), both)
    got = F.cross_entropy(ta.tensor(x), ta.tensor(y), **options)
    close(got, both.sum() / weights.sum())
    check_gradients(lambda t: F.cross_entropy(t, ta.tensor(y), **options), x)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_with_probabilities(smoothing: float) -> None:
    x, p, w = numbers(5, 4, 2), softmax(numbers(5, 4, 2, seed=1), 1), np.array([1.0, 2, 3, 4])
    q = p * (1 - smoothing) + smoothing / 4
    terms = -(special.log_softmax(x, axis=1) * q * w[:, None]).sum(1)

    def loss(t: Any, u: Any) -> Any:
        return F.cross_entropy(t, u, ta.tensor(w), label_smoothing=smoothing)

    close(loss(ta.tensor(x), ta.tensor(p)), terms.mean())
    check_gradients(loss, x, p)


def test_cross_entropy_of_one_row() -> None:
    x = numbers(4)
    got = F.cross_entropy(ta.tensor(x), ta.tensor(2))
    assert got.shape == ()
    close(got, -special.log_softmax(x)[2])


def test_cross_entropy_keeps_its_range() -> None:
    x = ta.tensor(np.array([[1e4, 0.0, -1e4], [-np.inf, 3.0, 3.0]]), requires_grad=True)
    loss = F.cross_entropy(x, ta.tensor([2, 1]), reduction="none")
    close(loss, [2e4, np.log(2)])
    loss.sum().backward()
    close(x.grad, [[1, 0, -1], [0, -0.5, 0.5]])


def test_cross_entropy_of_nothing_that_counts_is_nan() -> None:
    assert math.isnan(F.cross_entropy(ta.zeros(2, 3), ta.tensor([-100, -100])).item())
    assert F.cross_entropy(ta.zeros(2, 3), ta.tensor([-100, -100]), reduction="sum").item() == 0


def test_cross_entropy_errors() -> None:
    x = ta.zeros(2, 3)
    for wrong in ([0, 3], [-1, 0]):
        with pytest.raises(IndexingError, match="is no class: there are 3"):
            F.cross_entropy(x, ta.tensor(wrong))
    F.cross_entropy(x, ta.tensor([0, 3]), ignore_index=3)
    with pytest.raises(ShapeError, match=r"\(2, 3\) needs targets of shape \(2,\)"):
        F.cross_entropy(x, ta.tensor([[0, 1]]))
    with pytest.raises(DTypeError, match="integers"):
        F.cross_entropy(x, ta.tensor([True, False]))
    with pytest.raises(ShapeError, match="one for each class"):
        F.cross_entropy(x, ta.tensor([0, 1]), ta.ones(2))
    with pytest.raises(ArgumentError, match="'none', 'sum' or 'mean'"):
        F.cross_entropy(x, ta.tensor([0, 1]), reduction="avg")


def test_traced_loss_of_a_wrong_target_is_nan() -> None:
    x, y = ta.zeros(2, 3), ta.tensor([0, 1])
    program = ta.trace(lambda a, b: F.cross_entropy(a, b), x, y)
    (good,) = ta.interpret(program, x.numpy(), y.numpy())
    (bad,) = ta.interpret(program, x.numpy(), np.array([0, 3]))
    close(good, np.log(3), rtol=1e-6)
    assert np.isnan(bad)


def test_mse_loss() -> None:
    x, y = numbers(3, 4), numbers(3, 4, seed=1)
    close(F.mse_loss(ta.tensor(x), ta.tensor(y)), ((x - y) ** 2).mean())
    close(F.mse_loss(ta.tensor(x), ta.tensor(y), reduction="none"), (x - y) ** 2)
    check_gradients(F.mse_loss, x, y)
    with pytest.warns(UserWarning, match=r"\(3, 4\) and target \(4,\)"):
        F.mse_loss(ta.tensor(x), ta.tensor(y[0]))


def test_binary_cross_entropy_with_logits() -> None:
    x, y = 3 * numbers(3, 4), np.random.default_rng(1).uniform(0, 1, (3, 4))
    w, pos = np.array([1.0, 2, 3, 4]), np.array([0.5, 2, 1, 3])
    log_p, log_q = special.log_expit(x), special.log_expit(-x)
    name = F.binary_cross_entropy_with_logits
    close(name(ta.tensor(x), ta.tensor(y)), -(y * log_p + (1 - y) * log_q).mean())
    full = -w * (pos * y * log_p + (1 - y) * log_q)

    def weighted(t: Any, u: Any) -> Any:
        return name(t, u, ta.tensor(w), pos_weight=ta.tensor(pos), reduction="none")

    close(weighted(ta.tensor(x), ta.tensor(y)), full)
    check_gradients(weighted, x, y)
    with pytest.raises(ShapeError, match=r"\(4,\) must have input's shape \(3, 4\)"):
        name(ta.tensor(x), ta.tensor(y[0]))


def test_binary_cross_entropy_at_its_corners() -> None:
    x = ta.tensor(np.array([-1e3, 0.0, 1e3]), requires_grad=True)
    y = ta.tensor(np.array([1.0, 1.0, 0.0]))
    loss = F.binary_cross_entropy_with_logits(x, y, reduction="none")
    close(loss, [1e3, np.log(2), 1e3])
    loss.sum().backward()
    close(x.grad, [-1, -0.5, 1])


# ---- normalisations -----------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(6,), (5, 6)])
def test_layer_norm(shape: tuple[int, ...]) -> None:
    x, w, b = numbers(3, 5, 6), numbers(*shape, seed=1), numbers(*shape, seed=2)
    axes = tuple(range(3 - len(shape), 3))
    plain = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)
    close(F.layer_norm(ta.tensor(x), shape), plain)
    close(F.layer_norm(ta.tensor(x), shape, ta.tensor(w), ta.tensor(b)), plain * w + b)
    check_gradients(lambda t, u, v: F.layer_norm(t, shape, u, v), x[:2], w, b)


def test_rms_norm() -> None:
    x, w = numbers(3, 6), numbers(6, seed=1)
    close(
        F.rms_norm(ta.tensor(x), (6,), ta.tensor(w), eps=0.1),
        x / np.sqrt((x**2).mean(-1, keepdims=True) + 0.1) * w,
    )
    check_gradients(lambda a, b: F.rms_norm(a, 6, b), x, w)
    small = np.full((1, 4), 2.0**-12)  # eps=None: that of float32, in which halves are computed
    got = F.rms_norm(ta.tensor(small.astype(np.float16)), 4)
    close(got.double(), small / np.sqrt(small**2 + 2.0**-23), rtol=1e-3)


def test_norms_check_shapes() -> None:
    with pytest.raises(ShapeError, match=r"layer_norm.*\(2, 3\) does not end in \(4,\)"):
        F.layer_norm(ta.zeros(2, 3), 4)
    with pytest.raises(ShapeError, match=r"weight must have shape \(3,\)"):
        F.rms_norm(ta.zeros(2, 3), 3, ta.ones(2))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_layer_norm_in_half_precision(dtype: Any) -> None:
    x = (100 + numbers(2, 64)).astype(dtype)
    wide = x.astype(np.float64)
    want = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    got = F.layer_norm(ta.tensor(x), 64)
    assert got.numpy().dtype == dtype
    close(
        got.numpy().astype(np.float64), want, rtol=2 * float(ml_dtypes.finfo(dtype).eps), atol=1e-2
    )


@pytest.mark.parametrize("tail", [(), (2, 3)])
def test_batch_norm(tail: tuple[int, ...]) -> None:
    x, w, b = numbers(4, 3, *tail), numbers(3, seed=1), numbers(3, seed=2)
    axes = tuple(a for a in range(x.ndim) if a != 1)
    column = (3,) + (1,) * len(tail)
    mean, var = x.mean(axes), x.var(axes)
    n = x.size / 3
    running_mean, running_var = ta.tensor(np.full(3, 2.0)), ta.tensor(np.full(3, 4.0))
    args = ta.tensor(w), ta.tensor(b)
    got = F.batch_norm(ta.tensor(x), running_mean, running_var, *args, True, 0.25)
    plain = (x - mean.reshape(column)) / np.sqrt(var.reshape(column) + 1e-5)
    close(got, plain * w.reshape(column) + b.reshape(column))
    close(running_mean, 0.75 * 2 + 0.25 * mean)
    close(running_var, 0.75 * 4 + 0.25 * var * n / (n - 1))
    still = F.batch_norm(ta.tensor(x), running_mean, running_var, *args)
    scale = np.sqrt(running_var.numpy() + 1e-5).reshape(column)
    shifted = (x - running_mean.numpy().reshape(column)) / scale
    close(still, shifted * w.reshape(column) + b.reshape(column))
    check_gradients(lambda t, u, v: F.batch_norm(t, None, None, u, v, True), x, w, b, rtol=1e-5)


def test_batch_norm_errors() -> None:
    with pytest.raises(ShapeError, match="more than one value a channel"):
        F.batch_norm(ta.zeros(1, 3), None, None, training=True)
    with pytest.raises(ArgumentError, match="running_mean and running_var are needed"):
        F.batch_norm(ta.zeros(2, 3), None, None)
    with pytest.raises(ShapeError, match=r"weight must have shape \(3,\), got \(2,\)"):
        F.batch_norm(ta.zeros(2, 3), None, None, ta.ones(2), training=True)


# ---- tables -------------------------------------------------------------------------------------


def test_embedding() -> None:
    table, ids = numbers(5, 3), np.array([[0, 4], [2, 4]])
    close(F.embedding(ta.tensor(ids), ta.tensor(table)), table[ids])
    check_gradients(lambda t: F.embedding(ta.tensor(ids), t), table)
    t = ta.tensor(table, requires_grad=True)
    F.embedding(ta.tensor(ids), t, padding_idx=-1).sum().backward()
    close(t.grad, [[1] * 3, [0] * 3, [1] * 3, [0] * 3, [0] * 3])
    with pytest.raises(IndexingError):
        F.embedding(ta.tensor([5]), ta.tensor(table))
    with pytest.raises(ta.errors.TinyaotError, match="embedding"):
        F.embedding(ta.tensor([0.5]), ta.tensor(table))


def test_one_hot() -> None:
    ids = np.array([[0, 2], [1, 1]])
    np.testing.assert_array_equal(F.one_hot(ta.tensor(ids)).numpy(), np.eye(3, dtype=int)[ids])
    got = F.one_hot(ta.tensor(ids), 5)
    assert got.dtype is ta.int64 and got.shape == (2, 2, 5)


def test_pad() -> None:
    x = numbers(2, 3)
    close(F.pad(ta.tensor(x), (1, 2)), np.pad(x, ((0, 0), (1, 2))))
    close(
        F.pad(ta.tensor(x), (0, 1, 2, 0), value=7.0), np.pad(x, ((2, 0), (0, 1)), constant_values=7)
    )
    close(F.pad(ta.tensor(x), (-1, 0)), x[:, 1:])
    check_gradients(lambda t: F.pad(t, (1, 0, 0, 1)), x)


# ---- attention ----------------------------------------------------------------------------------


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


# ---- how they are decomposed --------------------------------------------------------------------


def ops_of(fn: Callable[..., Any], *args: Any) -> list[str]:
    return [n.op for n in ta.trace(fn, *args).nodes]


def test_linear_is_one_product_without_a_transpose() -> None:
    ops = ops_of(F.linear, ta.zeros(2, 3, 4), ta.zeros(5, 4), ta.zeros(5))
    assert [op for op in ops if op != "full"] == ["dot", "add"]


def test_cross_entropy_gathers_nothing() -> None:
    ops = ops_of(lambda x, y: F.cross_entropy(x, y), ta.zeros(4, 3), ta.tensor([0, 1, 2, 0]))
    assert "gather" not in ops and "take_along" not in ops
    assert ops.count("iota") == 1


def test_causal_mask_is_a_map_of_positions() -> None:
    q = ta.zeros(2, 8, 4)
    program = ta.trace(lambda t: F.scaled_dot_product_attention(t, t, t, is_causal=True), q)
    assert [n.op for n in program.nodes].count("iota") == 2
    assert all(i.role == "argument" for i in program.inputs)


def test_dropout_masks_are_equal_when_interpreted() -> None:
    x = ta.ones(50)
    ta.manual_seed(5)
    eager = F.dropout(F.dropout(x, 0.3), 0.4).numpy()
    ta.manual_seed(5)
    compiled = ta.compile(lambda t: F.dropout(F.dropout(t, 0.3), 0.4), backend="numpy")
    np.testing.assert_array_equal(compiled(x).numpy(), eager)
