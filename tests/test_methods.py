"""Methods and operators of Tensor: the names, views, in-place writes."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinyaot as ta
from tinyaot import Tensor

PUBLIC = """
    shape dtype device ndim size requires_grad grad is_leaf numpy item tolist detach clone
    contiguous to float double long cpu cuda backward requires_grad_ retain_grad detach_
    add_ sub_ mul_ div_ pow_ neg_ exp_ sqrt_ clamp_ relu_ copy_ zero_ fill_ masked_fill_ addcmul_
    addcdiv_ lerp_ uniform_ normal_ reshape view flatten T transpose permute squeeze unsqueeze
    expand broadcast_to diagonal split chunk unbind
    neg abs sign exp log log1p expm1 sqrt rsqrt square reciprocal sin cos tan tanh sigmoid relu erf
    floor ceil round isnan isinf isfinite logical_not clamp add sub mul div floordiv remainder pow
    maximum minimum atan2 where masked_fill lerp sum mean max min amax amin argmax argmin prod var
    std norm logsumexp any all cumsum cumprod softmax log_softmax flip roll tril triu repeat gather
    scatter scatter_add index_select take_along_dim sort topk nonzero matmul dot outer
"""
FUNCTIONS = """
    tensor from_numpy zeros ones full empty arange eye zeros_like ones_like full_like empty_like
    rand randn randint bernoulli manual_seed cat stack pad einsum embedding one_hot
"""


def test_the_public_names_are_there() -> None:
    assert [n for n in PUBLIC.split() if not hasattr(Tensor, n)] == []
    methods = "T shape dtype device ndim size requires_grad grad is_leaf numpy item tolist detach"
    methods += " to float double long cpu cuda backward requires_grad_ retain_grad detach_"
    functions = [n for n in PUBLIC.split() if n not in methods.split() and not n.endswith("_")]
    assert [n for n in functions + FUNCTIONS.split() if not hasattr(ta, n)] == []


# ---- operators ----------------------------------------------------------------------------------


def test_operators_and_their_reflections() -> None:
    a, n = np.array([1.0, -2.0, 3.0]), np.array([2.0, 3.0, 0.5])
    x, y = ta.tensor(a), ta.tensor(n)
    pairs = [
        (x + y, a + n), (x - y, a - n), (x * y, a * n), (x / y, a / n), (x // y, a // n),
        (x % y, a % n), (y**x, n**a), (2 + x, 2 + a), (2 - x, 2 - a), (2 * x, 2 * a),
        (2 / x, 2 / a), (7 // y, 7 // n), (7 % y, 7 % n), (2**x, 2**a), (-x, -a), (+x, a),
        (abs(x), abs(a)), (x < y, a < n), (x <= 1, a <= 1), (x >= y, a >= n),
        (x == [1, 2, 3], a == [1, 2, 3]), (x != y, a != n), (n * x, n * a), (n - x, n - a),
        (np.float64(2) - x, 2 - a), (n < x, n < a), (round(x), a),
    ]  # fmt: skip
    for got, want in pairs:
        assert isinstance(got, Tensor)
        np.testing.assert_allclose(got.numpy(), want)


def test_matrix_product_operator() -> None:
    a, b = np.arange(6.0).reshape(2, 3), np.arange(6.0).reshape(3, 2)
    for got in (ta.tensor(a) @ ta.tensor(b), a @ ta.tensor(b), ta.tensor(a) @ b):
        assert isinstance(got, Tensor)
        np.testing.assert_allclose(got.numpy(), a @ b)


def test_bools_and_or_not() -> None:
    a, b = ta.tensor([True, True, False]), ta.tensor([True, False, False])
    assert (a & b).tolist() == [True, False, False]
    assert (a | b).tolist() == [True, True, False]
    assert (a ^ b).tolist() == [False, True, False]
    assert (~a).tolist() == [False, False, True]
    a &= b
    assert a.tolist() == [True, False, False]


def test_what_is_no_operand_is_left_to_python() -> None:
    x = ta.ones(2)
    assert (x == None) is False  # noqa: E711
    assert (x != "a") is True
    with pytest.raises(TypeError):
        _ = x + "a"
    with pytest.raises(TypeError):
        _ = x < None
    assert {x: 1}[x] == 1  # hashed by identity


def test_len_iteration_and_membership() -> None:
    x = ta.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert len(x) == 2
    assert [row.tolist() for row in x] == [[1, 2], [3, 4]]
    first, _ = x
    first += 10
    assert x.tolist() == [[11, 12], [3, 4]]
    assert 3 in x and 7 not in x


def test_dtypes_by_method() -> None:
    x = ta.tensor([1.7, -0.0])
    assert x.double().dtype is ta.float64
    assert x.half().dtype is ta.float16
    assert x.bfloat16().dtype is ta.bfloat16
    assert x.long().tolist() == x.int().tolist() == [1, 0]
    assert x.bool().tolist() == [True, False]
    assert x.float() is x
    assert x.to("cpu") is x.cpu() is x.to(ta.float32) is x
    assert x.to(ta.int8).dtype is x.to(ta.ones(1, dtype=ta.int8)).dtype is ta.int8
    assert x.to("cpu", ta.float64).dtype is x.to("float64").dtype is ta.float64
    assert x.to(ta.float32, copy=True) is not x


def test_axis_and_keepdims_are_other_names() -> None:
    x = ta.arange(6).reshape(2, 3).float()
    assert x.sum(axis=1, keepdims=True).shape == (2, 1)
    assert x.mean(axis=(0, 1)).item() == 2.5
    assert x.max(axis=1).indices.tolist() == [2, 2]
    assert ta.softmax(x, axis=-1).shape == (2, 3)
    assert ta.flip(x, axis=1).tolist() == ta.flip(x, dims=[1]).tolist() == x[:, ::-1].tolist()
    assert ta.roll(x, 1, axis=1).tolist() == ta.roll(x, 1, 1).tolist()
    assert x.permute(dims=(1, 0)).shape == x.permute((1, 0)).shape == (3, 2)
    assert ta.cat([x, x], axis=1).shape == ta.stack([x, x], axis=1).reshape(2, 6).shape
    with pytest.raises(ta.errors.ArgumentError, match="same thing"):
        x.sum(dim=0, axis=0)


# ---- views --------------------------------------------------------------------------------------

VIEWS: dict[str, Callable[[Any], Any]] = {
    "reshape": lambda x: x.reshape(6, 2),
    "view": lambda x: x.view(-1),
    "flatten": lambda x: x.flatten(),
    "T": lambda x: x.T,
    "transpose": lambda x: x.transpose(0, 1),
    "permute": lambda x: x.permute(1, 0),
    "squeeze": lambda x: x[None].squeeze(0),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "expand": lambda x: x.expand(3, 4),
    "broadcast_to": lambda x: x.broadcast_to((1, 3, 4)),
    "diagonal": lambda x: x.diagonal(1),
    "split": lambda x: x.split(2, 1)[1],
    "chunk": lambda x: x.chunk(2)[0],
    "unbind": lambda x: x.unbind(1)[2],
    "slices": lambda x: x[::-1, 1::2],
    "chain": lambda x: x.T[1:].reshape(3, 3, 1)[:, ::2],
    "detach": lambda x: x.detach(),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_write_to_a_view_reaches_the_base(name: str) -> None:
    x = ta.arange(12).reshape(3, 4).float()
    view = VIEWS[name](x)
    view += 100
    assert (x >= 100).sum().item() == view.size
    x.zero_()
    assert not view.any().item()


@pytest.mark.parametrize("name", VIEWS)
def test_views_in_a_trace(name: str) -> None:
    def f(x: Tensor) -> Any:
        y = x * 1
        view = VIEWS[name](y)
        view *= 3
        y[0] += 1
        return y, view * 1

    x = ta.arange(12).reshape(3, 4).float()
    for got, want in zip(ta.compile(f, backend="numpy")(x), f(x)):
        np.testing.assert_array_equal(got.numpy(), want.numpy())


def test_a_reshape_that_must_copy_is_no_view() -> None:
    y = ta.arange(6).reshape(2, 3).float()
    v = y.T.reshape(-1)
    v *= 0
    assert y.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_copies_share_nothing() -> None:
    x = ta.arange(6).reshape(2, 3).float()
    for y in (
        x.clone(),
        x.flip(0),
        x.roll(0, 0),
        x.tril(),
        x.repeat(1, 1),
        x[[0, 1]],
        x.T.contiguous(),
    ):
        assert not np.may_share_memory(x.numpy(), y.numpy())
        assert y.is_contiguous()
    assert x.contiguous() is x


# ---- in place -----------------------------------------------------------------------------------

IN_PLACE: list[tuple[str, tuple[Any, ...], Callable[..., Any]]] = [
    ("add_", (2.0,), lambda x: x + 2), ("sub_", (2,), lambda x: x - 2),
    ("mul_", (3,), lambda x: x * 3), ("div_", (4,), lambda x: x / 4),
    ("pow_", (2,), lambda x: x**2), ("neg_", (), lambda x: -x),
    ("exp_", (), np.exp), ("sqrt_", (), np.sqrt),
    ("clamp_", (0.5, 1.5), lambda x: np.clip(x, 0.5, 1.5)),
    ("relu_", (), lambda x: np.maximum(x, 0)),
    ("copy_", (7.0,), lambda x: x * 0 + 7), ("zero_", (), lambda x: x * 0),
    ("fill_", (3,), lambda x: x * 0 + 3), ("abs_", (), np.abs), ("tanh_", (), np.tanh),
    ("sigmoid_", (), lambda x: 1 / (1 + np.exp(-x))), ("log_", (), np.log),
    ("floordiv_", (0.5,), lambda x: x // 0.5), ("remainder_", (0.5,), lambda x: x % 0.5),
    ("masked_fill_", (np.array([True, False, True]), 9.0), lambda x: np.where([1, 0, 1], 9, x)),
    ("addcmul_", (np.full(3, 2.0, "f4"), 5.0), lambda x: x + 10),
    ("addcdiv_", (np.full(3, 6.0, "f4"), 2.0), lambda x: x + 3),
    ("lerp_", (1.0, 0.25), lambda x: x + 0.25 * (1 - x)),
    ("round_", (), np.round), ("reciprocal_", (), lambda x: 1 / x),
]  # fmt: skip


@pytest.mark.parametrize(("name", "args", "reference"), IN_PLACE, ids=lambda v: str(v)[:12])
def test_in_place(name: str, args: tuple[Any, ...], reference: Callable[..., Any]) -> None:
    a = np.array([[0.3, 1.0, 2.6], [0.7, 1.4, 0.9]], np.float32)
    x = ta.tensor(a)
    memory = x.numpy()
    row = x[1]
    assert getattr(x, name)(*args) is x
    np.testing.assert_allclose(x.numpy(), reference(a), rtol=1e-6)
    assert np.shares_memory(memory, x.numpy())
    np.testing.assert_array_equal(row.numpy(), x.numpy()[1])


def test_in_place_keywords() -> None:
    x = ta.zeros(2)
    x.add_(ta.ones(2), alpha=-2)
    x.addcmul_(ta.ones(2), ta.ones(2), value=0.5).addcdiv_(ta.ones(2), ta.full((2,), 4.0), value=2)
    assert x.tolist() == [-1, -1]
    x.clamp_(min=0.25)
    assert x.tolist() == [0.25, 0.25]


def test_augmented_operators_write_in_place() -> None:
    x = ta.tensor([6.0, 8.0])
    y = x
    x += 2
    x -= 1
    x *= 3
    x /= 2
    assert x is y
    np.testing.assert_allclose(y.numpy(), [10.5, 13.5])
    x //= 4
    x %= 2
    x **= 2
    assert x.tolist() == [0, 1] and y is x


def test_in_place_computes_in_the_promoted_dtype_and_casts_back() -> None:
    x = ta.ones(2)
    x += ta.full((2,), 1e-12, dtype=ta.float64)
    assert x.dtype is ta.float32
    i = ta.tensor([1, 2], dtype=ta.int8)
    i += ta.tensor([3, 4])
    assert i.dtype is ta.int8 and i.tolist() == [4, 6]
    f = ta.ones(2)
    f += ta.tensor([True, False])
    assert f.tolist() == [2, 1]


def test_gradients_through_in_place_ops() -> None:
    x = ta.tensor([1.0, 2.0, 3.0], requires_grad=True)
    y = x * 2
    y *= y
    y.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [8, 16, 24]


def test_in_place_scatter() -> None:
    x = ta.zeros(3)
    x.scatter_add_(0, ta.tensor([1, 1, 2]), ta.ones(3)).scatter_(0, ta.tensor([0]), 9.0)
    assert x.tolist() == [9, 2, 1]


def test_what_others_call_it() -> None:
    x = ta.ones(2)
    with pytest.raises(AttributeError, match="a Tensor has no attribute 'numel'; use size"):
        _ = x.numel  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"a Tensor has no attribute 'colour'$"):
        _ = x.colour  # type: ignore[attr-defined]
    assert not hasattr(x, "mm") and pickle.loads(pickle.dumps(x)).tolist() == [1, 1]
