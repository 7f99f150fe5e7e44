"""Functions with a derivative rule of their own: both modes, all orders, JAX's meaning."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinyaot as ta
from tests import agree
from tests.agree import f32
from tinyaot import Tensor
from tinyaot.errors import DTypeError, GradError, MutationError, ShapeError, TinyaotError

X = f32([0.5, -1.0, 2.0])
W = np.linspace(-1, 1, 9, dtype=np.float32).reshape(3, 3)


def rule(fn: Any, fwd: Any, bwd: Any) -> Any:
    f = ta.custom_vjp(fn)
    f.defvjp(fwd, bwd)
    return f


# Each rule below is deliberately not the derivative, so that it shows which one was used.
tripled = rule(lambda x: x.sin(), lambda x: (x.sin(), x.cos()), lambda r, g: (3.0 * g * r,))
reverse = rule(lambda x: x, lambda x: (x, None), lambda _, g: (-g,))
stepped = rule(lambda x: x.round(), lambda x: (x.round(), None), lambda _, g: (g,))
scaled = rule(
    lambda x, n: x * n, lambda x, n: (x * n, {"n": n, "x": x}), lambda r, g: (r["n"] * g * 2, None)
)


@ta.custom_vjp
def product(pair: Any, w: Tensor, scale: float = 2.0) -> Any:
    """The pair's product with w, and a loss: a container in, two containers out."""
    return {"y": (pair[0] + pair[1]) @ w * scale, "s": (w.sum(), scale)}


def product_fwd(pair: Any, w: Tensor, scale: float) -> Any:
    return product(pair, w, scale), (pair, w, scale)


def product_bwd(residuals: Any, g: Any) -> Any:
    (a, b), w, scale = residuals
    gx = g["y"] @ w.T * scale
    gw = (a + b).reshape(-1, 1) @ g["y"].reshape(1, -1) * scale + g["s"][0]
    return [gx, 5.0 * gx], gw, None


product.defvjp(product_fwd, product_bwd)


def with_temporaries(fn: Any) -> Any:
    """A rule that writes in place to what it made itself."""

    def fwd(x: Tensor) -> Any:
        y = x * 2
        y[1:] += 1.0
        kept = y.clone()
        y *= x
        return y, (kept, x)

    def bwd(residuals: Any, g: Tensor) -> Any:
        kept, x = residuals
        out = ta.zeros(3)
        out += g * kept
        out[0] = out[0] * 10
        return (out + x * g,)

    return rule(fn, fwd, bwd)


temporaries = with_temporaries(lambda x: x * (x * 2))


def inner_bwd(residuals: Any, g: Tensor) -> Any:
    pulled = ta.vjp(lambda x: (x.tanh() * x).sin(), residuals)[1](g)
    return (pulled * 2,)


by_inner_vjp = rule(lambda x: (x.tanh() * x).sin(), lambda x: ((x.tanh() * x).sin(), x), inner_bwd)
composed = rule(
    lambda x: tripled(x) * x,
    lambda x: (tripled(x) * x, (tripled(x), x)),
    lambda r, g: (reverse(g) * r[0] + g * tripled(r[1]),),
)


@ta.custom_vjp
def halve(x: Tensor) -> Tensor:
    """Its own fwd calls it, and a residual is what that gives."""
    return x.exp() * 0.5


halve.defvjp(lambda x: (halve(x), halve(x)), lambda y, g: (7.0 * g * y,))


def views(x: Tensor) -> Any:
    y = x * 2
    v = tripled(y[1:])
    y[1:] = reverse(v)
    return y.reshape(3, 1) * v.sum(), v


def written_after(x: Tensor) -> Any:
    """Residuals and results are overwritten: the rule reads what they were."""
    y = x * 1
    z = scaled(y, 3)
    y *= 0.0
    u = tripled(z)
    z += 1.0
    u[0] = 5.0
    return u, z, y


def same_twice(x: Tensor) -> Any:
    f = rule(
        lambda a, b: (a, a), lambda a, b: ((a, a), (a, b)), lambda r, g: (g[0] * r[1], g[1] * r[0])
    )
    y, z = f(x, x)
    return y * 2, z * 3


def some_unused(x: Tensor) -> Any:
    out = product([x, x * 2], ta.ones(3, 3))
    with ta.no_grad():
        hidden = tripled(x) * 2
    return out["y"] + hidden, out["s"][1] * x, tripled(x.detach())


def integers(x: Tensor) -> Any:
    """Integers come and go; their cotangents are None."""

    def bwd(index: Tensor, g: Any) -> Any:
        if g[1] is not None:
            raise ValueError("an integer's cotangent")
        return g[0] * (index + 1).float(), None

    f = rule(lambda x, i: (x, i + 1), lambda x, i: ((x * 1, i + 1), i), bwd)
    y, i = f(x, ta.arange(3))
    return y * i.float()


ON_X: dict[str, Callable[[Tensor], Any]] = {
    "tripled": tripled,
    "of an intermediate": lambda x: tripled(x * 2).exp() + x,
    "a keyword and a default": lambda x: scaled(x, n=3) + product([x, x], ta.ones(3, 3))["y"],
    "identity": lambda x: (reverse(x), x),
    "straight through": lambda x: stepped(x) ** 2,
    "writes to its own": temporaries,
    "vjp inside bwd": by_inner_vjp,
    "of others": composed,
    "of itself": lambda x: halve(x) * x,
    "views": views,
    "written after": written_after,
    "same twice": same_twice,
    "some unused": some_unused,
    "integers": integers,
    "in a checkpoint": lambda x: ta.checkpoint(lambda t: tripled(t * 2).cos() * composed(t), x),
    "in a loop": lambda x: [x := tripled(x) for _ in range(3)],
    "no gradient": lambda x: rule(lambda a: a * 1, lambda a: (a * 1, None), lambda r, g: (None,))(
        x
    ),
}


@pytest.mark.parametrize("name", ON_X)
def test_both_modes_agree(name: str, backend: str) -> None:
    agree.check(ON_X[name], X)


def test_containers_agree(backend: str) -> None:
    want = agree.check(lambda x, w: product([x, x * 2], w, 1.5), X, W)
    gx, gw = want.gradients
    # cotangents: 1 for y, 2 for s; the second of the pair gets five times the first's
    pulled = 1.5 * W.sum(1)
    np.testing.assert_allclose(gx, pulled + 2 * 5 * pulled, rtol=1e-5)
    np.testing.assert_allclose(gw, 1.5 * (3 * X)[:, None] * np.ones(3) + 2.0, rtol=1e-5)


# ---- values, by hand ----------------------------------------------------------------------------


def orders(f: Any, n: int) -> Any:
    """The first n derivatives of sum(f), each of the sum of the one before."""

    def derivatives(x: Tensor) -> list[Tensor]:
        x = x.detach().requires_grad_()
        y, found = f(x), []
        for k in range(n):
            (y,) = ta.grad(y.sum(), x, create_graph=k + 1 < n)
            found.append(y.detach())
        return found

    return derivatives


S, C, E = np.sin(X), np.cos(X), np.exp(X) / 2
ORDERS: dict[str, tuple[Any, list[np.ndarray]]] = {
    # The residual cos(x) is differentiated as fwd computes it.
    "tripled": (tripled, [3 * C, -3 * S, -3 * C]),
    # out comes by the rule at every order: y**2, with y' = 1
    "straight through": (lambda x: stepped(x) ** 3, [3 * X.round() ** 2, 6 * X.round(), 6 + 0 * X]),
    # The residual is a call of the function itself, and so comes by the rule, too.
    "of itself": (halve, [7 * E, 49 * E, 343 * E]),
    "linear": (lambda x: reverse(x) * x, [0 * X, 0 * X - 2]),
}


@pytest.mark.parametrize("name", ORDERS)
def test_every_order_goes_by_the_rule(name: str, backend: str) -> None:
    f, want = ORDERS[name]
    derivatives = orders(f, len(want))
    for fn in (derivatives, agree.build(derivatives)):
        for found, wanted in zip(fn(ta.tensor(X)), want, strict=True):
            np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_jvp_is_the_vjp_of_bwd(backend: str) -> None:
    def tangent(x: Tensor, t: Tensor) -> Any:
        return ta.jvp(lambda x: tripled(x) * x, (x,), (t,))

    x, t = ta.tensor(X), ta.tensor(W[0])
    for fn in (tangent, agree.build(tangent)):
        y, dy = fn(x, t)
        np.testing.assert_allclose(y.numpy(), S * X, rtol=1e-5)
        np.testing.assert_allclose(dy.numpy(), (3 * C * X + S) * W[0], rtol=1e-5)


def test_gradcheck_of_right_rules() -> None:
    right = rule(
        lambda x: x.exp() * x, lambda x: (x.exp() * x, x), lambda x, g: (g * (x + 1) * x.exp(),)
    )
    x = ta.tensor([0.3, -0.7], dtype=ta.float64, requires_grad=True)
    assert ta.gradcheck(right, (x,), order=2)
    wrong = rule(lambda x: x.exp(), lambda x: (x.exp(), x), lambda x, g: (g * x,))
    with pytest.raises(TinyaotError):
        ta.gradcheck(wrong, (x,))


def test_a_step_of_training(backend: str) -> None:
    """Parameters, an optimizer, two calls in one step; the curves are the same."""

    def curve(compiled: bool) -> list[float]:
        ta.manual_seed(1)
        layer = ta.nn.Linear(3, 3)
        optimizer = ta.optim.Adam(layer.parameters(), lr=0.05)

        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = (tripled(layer(x)) - composed(layer(x))).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        run = agree.build(step) if compiled else step
        return [run(ta.tensor(W)).item() for _ in range(4)]

    np.testing.assert_allclose(curve(True), curve(False), rtol=1e-5)


def test_what_is_not_differentiated_costs_nothing(backend: str) -> None:
    seen: list[str] = []
    f = rule(
        lambda x: x.sin(),
        lambda x: seen.append("fwd") or (x.sin(), x.cos()),
        lambda r, g: (g * r,),
    )
    x = ta.tensor(X, requires_grad=True)
    with ta.no_grad():
        f(x)
    f(x.detach())
    assert seen == []

    def forward(x: Tensor) -> Tensor:
        return tripled(x).detach()

    fast = agree.build(forward)
    np.testing.assert_allclose(fast(x).numpy(), S, rtol=1e-6)
    assert [n.op for n in fast.records[-1].program("simplify").nodes] == ["sin"]


def test_eager_keeps_the_residuals_alone() -> None:
    """What fwd computes on the way is not kept: a second derivative computes it again."""
    big = ta.rand(1 << 16, requires_grad=True)
    alive: list[Any] = []

    def fwd(x: Tensor) -> Any:
        import weakref

        h = x.sin()
        for _ in range(3):
            h = h.exp().sin()
            alive.append(weakref.ref(h._data))
        return h, h.cos()

    f = rule(lambda x: x, fwd, lambda r, g: (g * r,))
    y = f(big)
    assert sum(r() is not None for r in alive) == 1  # y itself
    (g,) = ta.grad(y.sum(), big, create_graph=True)
    (second,) = ta.grad(g.sum(), big)
    assert np.isfinite(second.numpy()).all() and y.shape == second.shape


def test_random_draws_are_those_of_the_first_time(backend: str) -> None:
    def fwd(x: Tensor) -> Any:
        mask = (ta.rand(3) > 0.5).float()
        return x.exp() * mask, x.exp() * mask

    f = rule(lambda x: x, fwd, lambda r, g: (g * r,))
    twice = orders(f, 2)
    results = []
    for fn in (twice, agree.build(twice)):
        ta.manual_seed(5)
        a, b = fn(ta.tensor(X))
        assert np.array_equal(a.numpy(), b.numpy())
        results += [a.numpy(), ta.rand(2).numpy()]
    np.testing.assert_allclose(results[0], results[2], rtol=1e-6)  # zeros where there are zeros
    np.testing.assert_array_equal(results[1], results[3])


def test_a_graph_is_used_up_as_by_other_ops() -> None:
    x = ta.tensor(X, requires_grad=True)
    y = tripled(x).sum()
    y.backward()
    with pytest.raises(GradError, match="second time"):
        y.backward()
    z = reverse(x).sum()  # keeps nothing
    z.backward()
    z.backward()
    w = tripled(x).sum()
    w.backward(retain_graph=True)
    w.backward()


def test_gradients_have_bytes_of_their_own() -> None:
    keeps = rule(lambda x: x * 1, lambda x: (x * 1, x), lambda x, g: (x,))
    x = ta.tensor(X, requires_grad=True)
    keeps(x).sum().backward()
    x.grad.zero_()
    np.testing.assert_array_equal(x.numpy(), X)


def test_methods_and_names() -> None:
    class Layer:
        def __init__(self) -> None:
            self.w = 3.0

        @ta.custom_vjp
        def call(self, x: Tensor) -> Tensor:
            """Its own help."""
            return x * self.w

    Layer.call.defvjp(lambda self, x: (x * self.w, self.w), lambda w, g: (None, g * w * 2))
    x = ta.tensor(X, requires_grad=True)
    Layer().call(x).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), 6 + 0 * X)
    assert Layer.call.__name__ == "call" and "help" in Layer.call.__doc__


# ---- errors -------------------------------------------------------------------------------------

HIDDEN = ta.tensor(X, requires_grad=True)
COUNTER = ta.zeros(3)


def _writes(r: Any, g: Tensor) -> Any:
    g *= 2.0
    return (g,)


def _writes_outside(x: Tensor) -> Any:
    COUNTER.add_(1.0)
    return x * 1, None


WRONG: dict[str, tuple[Any, type[TinyaotError], str]] = {
    "no pair": (rule(lambda x: x, lambda x: x, None), GradError, "fwd of <lambda> .*residuals"),
    "a bare tensor": (
        rule(lambda x: x, lambda x: (x * 1, None), lambda r, g: g),
        GradError,
        r"bwd of <lambda> has to return a tuple of 1.*f32\[3\] tensor",
    ),
    "too many": (
        rule(lambda x: x, lambda x: (x * 1, None), lambda r, g: (g, g)),
        GradError,
        "a tuple of 1, .*not a tuple of 2",
    ),
    "shape": (
        rule(lambda x: x, lambda x: (x * 1, None), lambda r, g: (g.sum(),)),
        ShapeError,
        r"cotangent of argument 0 has the shape \(\), the argument is f32\[3\]",
    ),
    "dtype": (
        rule(lambda x: x, lambda x: (x * 1, None), lambda r, g: (g.double(),)),
        DTypeError,
        r"cotangent of argument 0 is f64\[3\]",
    ),
    "no tensor": (
        rule(lambda x: x, lambda x: (x * 1, None), lambda r, g: (1.0,)),
        GradError,
        "cotangent of argument 0 has to be a tensor or None, not 1.0",
    ),
    "a container's": (
        lambda x: rule(lambda p: p[0], lambda p: (p[0] * 1, None), lambda r, g: (g,))([x, x]),
        GradError,
        r"argument 0, a list of 2, has to be None or such a list",
    ),
    "within a container": (
        lambda x: rule(
            lambda p: p["a"], lambda p: (p["a"] * 1, None), lambda r, g: ({"a": g[:2]},)
        )({"a": x}),
        ShapeError,
        r"cotangent of argument 0\['a'\] has the shape \(2,\)",
    ),
    "a static argument's": (
        lambda x: rule(lambda x, n: x, lambda x, n: (x * n, None), lambda r, g: (g, g))(x, 2),
        GradError,
        "argument 1, which is not a tensor but 2, has to be None",
    ),
    "an integer's": (
        lambda x: rule(lambda x, i: x, lambda x, i: (x * i, None), lambda r, g: (g, g))(
            x, ta.arange(3)
        ),
        GradError,
        r"argument 1, a i64\[3\], has to be None",
    ),
    "reaches a parameter": (
        rule(lambda x: x, lambda x: (x * HIDDEN, None), lambda r, g: (g,)),
        GradError,
        "requires grad and is not among its arguments",
    ),
    "keeps a parameter": (
        rule(lambda x: x, lambda x: (x * 1, HIDDEN), lambda r, g: (g,)),
        GradError,
        "requires grad and is not among its arguments",
    ),
    "fwd writes outside": (
        rule(lambda x: x, _writes_outside, lambda r, g: (g,)),
        MutationError,
        "fwd of <lambda> writes in place",
    ),
    "fwd writes its argument": (
        rule(lambda x: x, lambda x: (x.mul_(2.0), None), lambda r, g: (g,)),
        MutationError,
        "fwd of <lambda> writes in place",
    ),
    "bwd writes a cotangent": (
        rule(lambda x: x, lambda x: (x * 1, None), _writes),
        MutationError,
        "bwd of <lambda> writes in place",
    ),
    "bwd draws": (
        rule(lambda x: x, lambda x: (x * 1, None), lambda r, g: (g * ta.rand(3),)),
        GradError,
        "bwd of <lambda> draws random numbers",
    ),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("compiled", [False, True])
def test_wrong_rules(name: str, compiled: bool) -> None:
    f, error, message = WRONG[name]

    def call(x: Tensor) -> Any:
        return f(x * 1).sum()

    run = ta.compile(call, backend="numpy") if compiled else call
    with pytest.raises(error, match=re.compile(message, re.S)):
        run(ta.tensor(X, requires_grad=True)).backward()


def test_a_function_without_a_rule() -> None:
    @ta.custom_vjp
    def lonely(x: Tensor, *, k: int = 1) -> Tensor:
        return x * k

    with pytest.raises(GradError, match=r"lonely has no rule yet: call lonely.defvjp"):
        lonely(ta.tensor(X))
    lonely.defvjp(lambda x: (x, None), lambda r, g: (g,))
    with pytest.raises(GradError, match="lonely takes k by keyword only"):
        lonely(ta.tensor(X), k=2)
    with pytest.raises(TypeError, match="missing"):
        lonely()
