"""Modules: registration, state, modes, layers against their functional forms, initial values."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import tinyaot as ta
from tinyaot import nn
from tinyaot.errors import (
    ArgumentError,
    BackendError,
    DTypeError,
    GradError,
    IndexingError,
    ShapeError,
    TinyaotError,
)
from tinyaot.nn import functional as F


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def tensor(*shape: int, seed: int = 0) -> ta.Tensor:
    return ta.tensor(numbers(*shape, seed=seed).astype(np.float32))


def close(got: Any, want: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=rtol, atol=atol)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(ta.ones(3))
        self.fc = nn.Linear(3, 3)
        self.register_buffer("count", ta.zeros(1))
        self.register_buffer("cache", ta.zeros(2), persistent=False)
        self.constant = ta.zeros(4)  # neither parameter nor buffer

    def forward(self, x: Any) -> Any:
        return self.fc(x) * self.scale


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(3, 2, bias=False)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


BLOCK_NAMES = ["scale", "fc.weight", "fc.bias"]


# ---- registration -------------------------------------------------------------------------------


def test_parts_are_found_by_name_and_in_order() -> None:
    m = Model()
    names = [f"blocks.{i}.{n}" for i in (0, 1) for n in BLOCK_NAMES] + ["head.weight"]
    assert [n for n, _ in m.named_parameters()] == names
    assert [n for n, _ in m.named_buffers()] == [
        f"blocks.{i}.{n}" for i in (0, 1) for n in ("count", "cache")
    ]
    assert [n for n, _ in m.named_modules()] == [
        "",
        "blocks",
        "blocks.0",
        "blocks.0.fc",
        "blocks.1",
        "blocks.1.fc",
        "head",
    ]
    assert [n for n, _ in m.named_children()] == ["blocks", "head"]
    assert m.get_submodule("blocks.1.fc") is m.blocks[1].fc
    assert len(list(m.parameters(recurse=False))) == 0
    with pytest.raises(ArgumentError, match=r"no submodule 'blocks\.2'"):
        m.get_submodule("blocks.2")


def test_shared_parameters_are_given_once_but_saved_twice() -> None:
    m = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    m[1].weight = m[0].weight
    assert [n for n, _ in m.named_parameters()] == ["0.weight", "0.bias", "1.bias"]
    assert list(m.state_dict()) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert len(list(nn.ModuleList([m, m]).modules())) == 4


def test_a_parameter_is_not_replaced_by_a_tensor() -> None:
    layer = nn.Linear(2, 2)
    with pytest.raises(DTypeError, match="cannot assign a Tensor as the parameter 'weight'"):
        layer.weight = ta.zeros(2, 2)
    layer.weight = nn.Parameter(ta.zeros(2, 2))
    layer.bias = None
    assert list(layer.state_dict()) == ["weight"]


def test_registering_by_name() -> None:
    m = nn.Module()
    m.add_module("part", nn.Linear(1, 1))
    m.register_parameter("none", None)
    m.register_buffer("table", ta.zeros(2))
    assert list(m.state_dict()) == ["table", "part.weight", "part.bias"]
    for name in ("a.b", "", "forward"):
        with pytest.raises(ArgumentError):
            m.register_buffer(name, ta.zeros(1))
    m.table = ta.ones(3)  # still the buffer
    assert m.state_dict()["table"].shape == (3,)


def test_parameter() -> None:
    data = ta.zeros(3)
    p = nn.Parameter(data)
    assert isinstance(p, ta.Tensor) and p.requires_grad and p.is_leaf
    with ta.no_grad():
        p += 1.0
    close(data, np.ones(3))  # shared memory
    assert not nn.Parameter(ta.zeros(1), requires_grad=False).requires_grad
    assert type(p * 2) is ta.Tensor
    assert "Parameter" in repr(p)
    with pytest.raises((GradError, DTypeError)):
        nn.Parameter(ta.tensor([1, 2]))


def test_a_gradient_survives_a_write_to_the_memory_it_shares() -> None:
    data = ta.tensor([2.0, 3.0])
    p = nn.Parameter(data)
    y = (p * p).sum()
    data.mul_(10.0)
    y.backward()
    close(p.grad, [4, 6])


def test_forward_must_be_written() -> None:
    with pytest.raises(NotImplementedError, match="Module has no forward"):
        nn.Module()(1)


def test_deepcopy_is_apart() -> None:
    m = Model()
    other = copy.deepcopy(m)
    with ta.no_grad():
        other.head.weight.zero_()
    assert (m.head.weight.numpy() != 0).all()
    assert isinstance(other.head.weight, nn.Parameter)
    assert list(other.state_dict()) == list(m.state_dict())


def test_repr() -> None:
    lines = repr(nn.Sequential(nn.Linear(2, 3), nn.ModuleList([nn.ReLU()]))).splitlines()
    assert lines == [
        "Sequential(",
        "  (0): Linear(in_features=2, out_features=3, bias=True)",
        "  (1): ModuleList(",
        "    (0): ReLU()",
        "  )",
        ")",
    ]


# ---- modes, dtypes, gradients -------------------------------------------------------------------


def test_train_and_eval_reach_everything() -> None:
    m = Model()
    assert m.eval() is m and not any(part.training for part in m.modules())
    assert all(part.training for part in m.train().modules())


def test_requires_grad_and_zero_grad() -> None:
    m = nn.Linear(2, 2)
    m(tensor(3, 2)).sum().backward()
    m.zero_grad(set_to_none=False)
    close(m.weight.grad, np.zeros((2, 2)))
    m.zero_grad()
    assert m.weight.grad is None
    m.requires_grad_(False)
    assert not m(tensor(3, 2)).requires_grad


def test_to_casts_in_place() -> None:
    m = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    weight = m[0].weight
    optimizer_sees = list(m.parameters())
    m(tensor(4, 2)).sum().backward()
    assert m.to(ta.float64) is m
    assert m[0].weight is weight and weight.dtype is ta.float64 and weight.requires_grad
    assert weight.grad is not None and weight.grad.dtype is ta.float64
    assert all(a is b for a, b in zip(optimizer_sees, m.parameters()))
    assert m[1].running_mean.dtype is ta.float64
    assert m[1].num_batches_tracked.dtype is ta.int64
    assert m(ta.tensor(numbers(4, 2))).dtype is ta.float64
    assert m.to("cpu") is m and m.float()[0].weight.dtype is ta.float32
    assert m.to("bfloat16")[0].weight.dtype is ta.bfloat16
    with pytest.raises(BackendError):
        m.to("cuda")
    with pytest.raises(DTypeError, match="floating dtypes only"):
        m.to(ta.int64)


def test_apply_calls_children_first() -> None:
    seen: list[str] = []
    nn.Sequential(nn.ReLU(), nn.GELU()).apply(lambda part: seen.append(type(part).__name__))
    assert seen == ["ReLU", "GELU", "Sequential"]


# ---- state --------------------------------------------------------------------------------------


def test_state_is_detached_and_shares_memory() -> None:
    m = Model()
    state = m.state_dict()
    names = [f"blocks.{i}.{n}" for i in (0, 1) for n in ("scale", "count", "fc.weight", "fc.bias")]
    assert list(state) == [*names, "head.weight"]  # and no cache
    assert not any(t.requires_grad for t in state.values())
    with ta.no_grad():
        m.head.weight.zero_()
    close(state["head.weight"], np.zeros((2, 3)))


def test_load_state_dict_copies() -> None:
    ta.manual_seed(0)
    a, b = Model(), Model()
    weight = b.head.weight
    assert b.load_state_dict(a.state_dict()) == ([], [])
    assert b.head.weight is weight
    close(weight, a.head.weight, rtol=0, atol=0)
    x = tensor(4, 3)
    np.testing.assert_array_equal(a(x).numpy(), b(x).numpy())
    b.load_state_dict({k: v.numpy().astype(np.float64) for k, v in a.state_dict().items()})
    assert weight.dtype is ta.float32


def test_load_state_dict_says_all_that_is_wrong_and_copies_nothing() -> None:
    m = nn.Linear(2, 3)
    before = m.bias.numpy().copy()
    state = {"weight": ta.zeros(3, 4), "bias": ta.zeros(3), "other": ta.zeros(1)}
    with pytest.raises(TinyaotError) as caught:
        m.load_state_dict(state)
    for part in ("unexpected keys: other", r"weight: the state has shape (3, 4)", "(3, 2)"):
        assert part in str(caught.value)
    with pytest.raises(TinyaotError, match="missing keys: weight, bias"):
        m.load_state_dict({})
    np.testing.assert_array_equal(m.bias.numpy(), before)
    result = m.load_state_dict({"bias": ta.ones(3), "other": ta.zeros(1)}, strict=False)
    assert result.missing_keys == ["weight"] and result.unexpected_keys == ["other"]
    close(m.bias, np.ones(3))
    with pytest.raises(TinyaotError, match="size mismatch"):
        m.load_state_dict({"bias": ta.ones(4)}, strict=False)


# ---- containers ---------------------------------------------------------------------------------


def test_sequential() -> None:
    m = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    x = tensor(4, 2)
    close(m(x), m[2](m[1](m[0](x))))
    assert len(m) == 3 and m[-1] is m[2] and [type(p).__name__ for p in m[:2]] == ["Linear", "ReLU"]
    assert isinstance(m[1:], nn.Sequential)
    m.append(nn.Tanh())
    assert len(m) == 4
    named = nn.Sequential({"first": nn.Linear(2, 2), "act": nn.ReLU()})
    assert list(named.state_dict()) == ["first.weight", "first.bias"] and named[1] is named.act


def test_module_list() -> None:
    a, b, c, d = (nn.Linear(i + 1, 1) for i in range(4))
    parts = nn.ModuleList([a, b])
    parts.append(c)
    parts.insert(1, d)
    assert list(parts) == [a, d, b, c]
    del parts[0]
    assert list(parts) == [d, b, c] and [n for n, _ in parts.named_children()] == ["0", "1", "2"]
    parts[-1] = a
    assert list(parts) == [d, b, a]
    parts.extend([c])
    assert parts[3] is c
    with pytest.raises(IndexingError, match="4 modules"):
        parts[4]
    with pytest.raises(DTypeError, match="cannot hold a int"):
        parts.append(3)


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
    close(layer(ids), layer.weight.numpy()[ids.numpy()])
    close(layer.weight[4], np.zeros(3))
    layer(ids).sum().backward()
    close(layer.weight.grad[4], np.zeros(3))


def test_dropout_follows_the_mode() -> None:
    layer, x = nn.Dropout(0.5), ta.ones(100)
    assert set(np.unique(layer(x).numpy())) == {0.0, 2.0}
    assert layer.eval()(x) is x
    with pytest.raises(ArgumentError):
        nn.Dropout(1.5)


def test_batch_norm_tracks_statistics() -> None:
    layer, x = nn.BatchNorm2d(3, momentum=0.2), tensor(4, 3, 2, 2)
    y = layer(x)
    close(y.numpy().mean((0, 2, 3)), np.zeros(3))
    mean = x.numpy().mean((0, 2, 3))
    var = x.numpy().var((0, 2, 3), ddof=1)
    close(layer.running_mean, 0.2 * mean)
    close(layer.running_var, 0.8 + 0.2 * var)
    assert layer.num_batches_tracked.item() == 1
    layer.eval()
    close(layer(x[:1]), F.batch_norm(x[:1], layer.running_mean, layer.running_var))
    assert layer.num_batches_tracked.item() == 1
    with pytest.raises(ShapeError, match="BatchNorm2d takes 4-d input"):
        layer(tensor(4, 3))


def test_batch_norm_variants() -> None:
    plain = nn.BatchNorm1d(3, momentum=None)
    xs = [tensor(5, 3, seed=i) for i in range(3)]
    for x in xs:
        plain(x)
    close(plain.running_mean, np.mean([x.numpy().mean(0) for x in xs], 0))
    untracked = nn.BatchNorm1d(3, track_running_stats=False).eval()
    assert untracked.running_mean is None and list(untracked.state_dict()) == ["weight", "bias"]
    close(untracked(xs[0]), F.batch_norm(xs[0], None, None, training=True))


# ---- initial values -----------------------------------------------------------------------------


def test_initial_values_repeat_with_the_seed() -> None:
    def draw(seed: int) -> list[np.ndarray]:
        ta.manual_seed(seed)
        return [p.numpy() for p in Model().parameters()]

    for a, b in zip(draw(1), draw(1)):
        np.testing.assert_array_equal(a, b)
    assert (draw(1)[1] != draw(2)[1]).all()


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
    close(nn.init.constant_(w, 3.0), np.full((200, 100), 3))
    p = nn.Parameter(w)
    assert nn.init.uniform_(p) is p and p.requires_grad  # a leaf may be filled
    assert abs(nn.Embedding(1000, 10).weight.numpy().std() - 1) < 0.05
    with pytest.raises(ShapeError, match="to have a fan"):
        nn.init.kaiming_uniform_(ta.zeros(3))


# ---- attention ----------------------------------------------------------------------------------


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
        close(got, want)
        close(weights, shares.mean(1))
        close(m(*args, average_attn_weights=False)[1], shares)
        assert m(*args, need_weights=False)[1] is None
    sequence_first = biased(nn.MultiHeadAttention(8, 2))
    sequence_first.load_state_dict(m.state_dict())
    turned = [t.transpose(0, 1) for t in (x, y, y)]
    close(sequence_first(*turned)[0].transpose(0, 1), reference(m, x, y, y)[0])
    alone, shares_alone = m(x[0], y[0], y[0])
    close(alone, reference(m, x, y, y)[0][0])
    assert shares_alone.shape == (5, 4)


def test_multi_head_attention_masks() -> None:
    m = biased(nn.MultiHeadAttention(8, 2, batch_first=True))
    x = tensor(3, 4, 8)
    causal = np.where(np.tril(np.ones((4, 4), bool)), 0, -np.inf)
    close(m(x, x, x, is_causal=True)[0], reference(m, x, x, x, causal)[0])
    close(m(x, x, x, attn_mask=ta.tensor(causal == 0))[0], reference(m, x, x, x, causal)[0])
    padding = np.array([[0, 0, 0, 1], [0, 0, 1, 1], [0, 0, 0, 0]], bool)
    added = np.where(padding, -np.inf, 0)[:, None, :]
    close(m(x, x, x, ta.tensor(padding))[0], reference(m, x, x, x, added)[0])
    both = m(x, x, x, ta.tensor(padding), is_causal=True)[0]
    close(both, reference(m, x, x, x, causal + added)[0])
    floats = numbers(6, 4, 4)
    per_head = m(x, x, x, attn_mask=ta.tensor(floats), average_attn_weights=False)[1]
    for h in range(2):
        want = reference(m, x, x, x, floats.reshape(3, 2, 4, 4)[:, h])[1][:, h]
        close(per_head[:, h], want)
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


# ---- clipping -----------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [2.0, 1.0, 3.0, math.inf])
def test_clip_grad_norm(p: float) -> None:
    params = [nn.Parameter(ta.zeros(3)), nn.Parameter(ta.zeros(2, 2)), nn.Parameter(ta.zeros(1))]
    grads = [numbers(3), numbers(2, 2, seed=1)]
    for param, grad in zip(params, grads):
        param.grad = ta.tensor(grad.astype(np.float32))
    whole = np.linalg.norm(np.concatenate([g.ravel() for g in grads]), p)
    close(nn.clip_grad_norm_(params, 0.5, p), whole)
    for param, grad in zip(params, grads):
        close(param.grad, grad * 0.5 / whole)
    close(nn.clip_grad_norm_(params, 10.0, p), 0.5)  # small enough: not scaled up
    close(params[0].grad, grads[0] * 0.5 / whole)
    assert params[2].grad is None


def test_clip_grad_norm_of_bad_gradients() -> None:
    p = nn.Parameter(ta.zeros(2))
    assert nn.clip_grad_norm_([p], 1.0).item() == 0
    p.grad = ta.tensor([math.nan, 1.0])
    with pytest.raises(GradError, match="norm of the gradients is nan"):
        nn.clip_grad_norm_(p, 1.0, error_if_nonfinite=True)
