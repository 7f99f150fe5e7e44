"""The rows of behaviour that eager and compiled must both get right.

Numbers in the names are those of the list of behaviours below. Where a row gives values, they
are asserted; everywhere eager, compiled and the interpretation of every stage are compared.
Unless said otherwise gradients are of `sum_i (i + 1) * sum(out_i)`.
"""

from __future__ import annotations

import numpy as np
import pytest

import tinyaot as ta
import tinyaot.nn.functional as F
from tests.agree import Ran, build, check, f32, run, same

pytestmark = pytest.mark.usefixtures("backend")


def values(ran: Ran, *want: object) -> None:
    for got, w in zip(ran.values, want, strict=True):
        np.testing.assert_allclose(got, np.array(w), rtol=1e-6)


def gradients(ran: Ran, *want: object) -> None:
    for got, w in zip(ran.gradients, want, strict=True):
        if w is None:
            assert got is None
        else:
            np.testing.assert_allclose(got, np.array(w), rtol=1e-6)


# ---- mutation and views inside the program ------------------------------------------------------


def test_01_in_place_on_an_intermediate():
    def f(x):
        y = x * 2
        y *= x
        return y

    ran = check(f, f32(1, 2, 3))
    values(ran, [2, 8, 18])
    gradients(ran, [4, 8, 12])


def test_02_in_place_that_discards_the_old_value():
    def f(x):
        y = x * 5
        y.fill_(3)
        return y * x

    ran = check(f, f32(1, 2))
    values(ran, [3, 6])
    gradients(ran, [3, 3])


def test_03_a_write_through_a_view_changes_the_base():
    def f(x):
        y = x * 1
        v = y[1:3]
        v *= 10
        return y * x

    ran = check(f, f32(1, 2, 3, 4))
    values(ran, [1, 40, 90, 16])
    gradients(ran, [2, 40, 60, 8])


def test_04_a_write_to_the_base_is_seen_in_an_older_view():
    def f(x):
        y = x * 1
        v = y[0]
        y *= 3
        return v

    ran = check(f, f32([[1, 2], [3, 4]]))
    values(ran, [3, 6])
    gradients(ran, [[3, 3], [0, 0]])


@pytest.mark.parametrize(
    "view",
    [
        lambda y: y.T[0],
        lambda y: y[1:][:, ::2],
        lambda y: y[:, ::-1][0],
        lambda y: ta.diagonal(y),
        lambda y: y.reshape(-1)[2:5],
        lambda y: y.T.unsqueeze(0)[0, 1:],
        lambda y: y.permute(1, 0)[::-1, 1:2],
    ],
)
def test_05_views_of_views(view):
    def f(x):
        y = x * 1
        v = view(y)
        v += 1
        return y

    gradients(check(f, np.arange(12, dtype=np.float32).reshape(3, 4)), np.ones((3, 4)))


def test_06_siblings_that_overlap():
    def f(x):
        y = ta.zeros(4)
        y[:2] = x[:2]
        y[1:3] += x[2:]
        return y * y

    ran = check(f, f32(1, 2, 3, 4))
    values(ran, [1, 25, 16, 0])
    gradients(ran, [2, 10, 10, 8])


def test_07_a_write_to_an_expanded_view_raises():
    def f(x):
        y = (x * 1).expand(3, 2)
        y += 1
        return y

    for g in (f, build(f)):
        with pytest.raises(ta.errors.MutationError, match="expanded"):
            g(ta.tensor([1.0, 2.0]))


def test_08_in_place_may_not_change_shape_or_category():
    def grow(x, y):
        x += y
        return x

    for g in (grow, build(grow)):
        with pytest.raises(ta.errors.ShapeError, match=r"\(5, 1\)"):
            g(ta.zeros(5, 1), ta.zeros(5, 20))
        with pytest.raises(ta.errors.DTypeError):
            g(ta.zeros(3, dtype=ta.int64), ta.zeros(3))


def test_09_duplicate_indices_last_one_wins():
    def f(x):
        y = x * 1
        y[ta.tensor([0, 0])] = y[ta.tensor([0, 0])] * 2
        return y

    ran = check(f, f32(1, 5))
    values(ran, [2, 5])
    gradients(ran, [2, 1])


def test_10_a_reshape_that_must_copy_is_no_view():
    def f(x):
        y = x * 1
        v = y.T.reshape(-1)
        v *= 0
        return y

    values(check(f, f32([[1, 2], [3, 4]])), [[1, 2], [3, 4]])


# ---- inputs -------------------------------------------------------------------------------------


def test_13_a_mutated_input():
    def f(x):
        x *= 2
        return x * x

    ran = check(f, f32(1, 2), nonleaf=True)
    values(ran, [4, 16])
    same(ran.inputs[0], f32(2, 4), "x afterwards")
    gradients(ran, [8, 16])


@pytest.mark.parametrize("compiled", [False, True])
def test_14_a_mutated_input_used_afterwards(compiled):
    def f(x):
        x *= 2
        return x * x

    g = build(f) if compiled else f
    leaf = ta.tensor([1.0, 2.0], requires_grad=True)
    x = leaf * 1
    out = g(x)
    (out.sum() + x.sum()).backward()
    np.testing.assert_allclose(leaf.grad.numpy(), [10, 18])


def test_15_the_old_value_of_a_mutated_input_is_needed():
    def f(x):
        y = ta.sin(x)
        x *= 2
        return y + x

    ran = check(f, f32(1, 2), nonleaf=True)
    gradients(ran, np.cos([1.0, 2.0]) + 2)


def test_16_a_hidden_mutation():
    def f(x, running):
        with ta.no_grad():
            running.mul_(0.9).add_(x.mean(dim=0) * 0.1)
        return x - running.detach()

    ran = check(f, f32([[1, 2], [3, 4]]), f32(1, 1))
    gradients(ran, np.ones((2, 2)), None)
    same(ran.inputs[1], f32(0.9 + 0.2, 0.9 + 0.3), "running afterwards")


def test_18_the_same_array_twice():
    def f(a, b):
        return a * b

    for g in (f, build(f)):
        x = ta.tensor([1.0, 2.0], requires_grad=True)
        g(x, x).sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), [2, 4])


def test_20_aliased_inputs_unmutated():
    def f(a, b):
        return a[1:] * b

    for g in (f, build(f)):
        x = ta.tensor([1.0, 2.0, 3.0], requires_grad=True)
        g(x, x[1:]).sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), [0, 4, 6])


@pytest.mark.parametrize("compiled", [False, True])
def test_19_21_aliased_inputs_one_mutated(compiled):
    def f(b, v):
        b *= 2
        return b.sum() * v

    g = build(f) if compiled else f
    one, two = ta.tensor([1.0, 2.0, 3.0]), ta.tensor([5.0, 6.0])
    np.testing.assert_allclose(g(one, two).numpy(), [60, 72])
    leaf = ta.tensor([1.0, 2.0, 3.0], requires_grad=True)
    b = leaf * 1
    out = g(b, b[1:])
    np.testing.assert_allclose(out.numpy(), [48, 72])
    out.sum().backward()
    np.testing.assert_allclose(leaf.grad.numpy(), [20, 44, 44])


@pytest.mark.parametrize("compiled", [False, True])
def test_19_21_views_of_one_tensor_that_share_nothing(compiled):
    """A write is history of all that its base is the base of, as in torch."""

    def f(w, v, y):
        w.mul_(y)
        return v * 3

    g = build(f) if compiled else f
    y = ta.tensor([1.0, 2.0], requires_grad=True)
    out = g(ta.ones(2), ta.ones(3), y)
    assert not out.requires_grad
    b = ta.ones(5)
    out = g(b[:2], b[2:], y)
    assert out.requires_grad
    out.sum().backward()
    np.testing.assert_array_equal(y.grad.numpy(), [0, 0])


def test_22_an_unused_input_has_no_gradient():
    gradients(check(lambda x, y: 2 * x, f32(1, 2), f32(3, 4)), [2, 2], None)


def test_23_a_zero_contribution_is_zeros():
    gradients(check(lambda x, y: 2 * x + 0 * y, f32(1, 2), f32(3, 4)), [2, 2], [0, 0])


def test_24_integer_inputs():
    def f(x, i):
        return x[i] * ta.tensor([1.0, 10.0, 100.0])

    gradients(check(f, f32(1, 2, 3), np.array([0, 0, 2])), [11, 0, 100], None)


@pytest.mark.parametrize("compiled", [False, True])
def test_25_an_input_that_only_flows_through_detach(compiled):
    def f(x, y):
        return x * y.detach()

    g = build(f) if compiled else f
    x = ta.tensor([2.0], requires_grad=True)
    w = ta.tensor([3.0], requires_grad=True)
    y = w * w
    g(x, y).sum().backward()
    y.sum().backward()  # y's history was not consumed
    assert w.grad.item() == 6 and x.grad.item() == 9


def test_26_static_arguments_are_part_of_the_key():
    def f(x, n, mode=None):
        return x * n if mode is None else x + n

    g = build(f)
    x = ta.tensor([1.0, 2.0])
    assert g(x, 2).tolist() == [2, 4]
    assert g(x, 3).tolist() == [3, 6]
    assert g(x, 3, mode="add").tolist() == [4, 5]
    assert len(g.records) == 3


def test_27_a_view_that_the_caller_holds():
    def f(x):
        x += 1
        return x.sum()

    for g in (f, build(f)):
        x = ta.tensor([1.0, 2.0, 3.0])
        v = x[1:]
        g(x)
        assert v.tolist() == [3, 4]


# ---- outputs ------------------------------------------------------------------------------------


def test_28_an_output_that_is_an_input():
    def f(x):
        return x, 2 * x

    ran = check(f, f32(1, 2))
    gradients(ran, [5, 5])
    x = ta.tensor([1.0, 2.0])
    assert build(f)(x)[0] is x


def test_29_an_output_that_views_an_input():
    def f(x):
        return x.reshape(2, 2), 3 * x

    gradients(check(f, f32(1, 2, 3, 4)), [7, 7, 7, 7])
    for g in (f, build(f)):
        x = ta.tensor([1.0, 2.0, 3.0, 4.0])
        g(x)[0][0, 0] = 9.0
        assert x.tolist() == [9, 2, 3, 4]


def test_30_outputs_that_share_an_intermediate():
    def f(x):
        y = 2 * x
        return y[0:2], y[1:3]

    check(f, f32(1, 2, 3))
    for g in (f, build(f)):
        a, b = g(ta.tensor([1.0, 2.0, 3.0]))
        a[1] = 100.0
        assert b.tolist() == [100, 6]


def test_31_an_output_and_its_view():
    def f(x):
        y = x * x
        return y, y.T

    gradients(check(f, f32([[1, 2], [3, 4]])), 6 * f32([[1, 2], [3, 4]]))
    for g in (f, build(f)):
        y, t = g(ta.tensor([[1.0, 2.0], [3.0, 4.0]]))
        y[0, 1] = 50.0
        assert t[1, 0].item() == 50


def test_32_the_same_value_twice():
    def f(x):
        y = x * x
        return y, y

    gradients(check(f, f32(1, 2)), [6, 12])
    a, b = build(f)(ta.tensor([1.0]))
    assert a is b


def test_33_a_mutated_input_returned():
    def f(x):
        x *= 2
        return x

    ran = check(f, f32(1, 2), nonleaf=True)
    gradients(ran, [2, 2])
    x = ta.tensor([1.0, 2.0])
    assert build(f)(x) is x


def test_34_flags_differ_though_values_are_equal():
    def f(x):
        with ta.no_grad():
            a = x + 1
        b = x + 1
        return a, b

    ran = check(f, f32(1, 2))
    assert ran.flags == [False, True]
    a, b = build(f)(ta.tensor([1.0, 2.0], requires_grad=True))
    assert a is not b
    a[0] = 7.0
    assert b.tolist() == [2, 3]


def test_35_outputs_that_depend_on_nothing():
    values(check(lambda x: (x * 1, ta.zeros(3)), f32(1, 2)), [1, 2], [0, 0, 0])


@pytest.mark.parametrize("compiled", [False, True])
def test_36_only_some_outputs_used(compiled):
    def f(x, y):
        return x * 2, y * 3

    g = build(f) if compiled else f
    x, y = ta.tensor([1.0], requires_grad=True), ta.tensor([1.0], requires_grad=True)
    a, _ = g(x, y)
    a.sum().backward()
    assert x.grad.item() == 2


def test_37_gradient_of_one_output_by_another_raises():
    def f(x):
        y = x * 2
        return y, y * y

    x = ta.tensor([1.0], requires_grad=True)
    y, z = build(f)(x)
    with pytest.raises(ta.errors.GradError):
        ta.grad(z.sum(), y)


def test_37_nor_is_it_none():
    def a_view_of_an_argument(x):
        v = x[:1]
        return v, v * v

    def a_leaf_made_inside(x):
        v = x.detach().requires_grad_()
        return v, v * x

    def a_written_argument(x):
        x.mul_(2)
        return x, x * x

    for f in (a_view_of_an_argument, a_leaf_made_inside, a_written_argument):
        x = ta.tensor([1.0], requires_grad=True)
        y, z = build(f)(x * 1)
        with pytest.raises(ta.errors.GradError, match="by one another"):
            ta.grad(z.sum(), y, allow_unused=True)
        y.retain_grad()
        with pytest.raises(ta.errors.GradError, match="by one another"):
            z.backward()
        y, z = build(f)(x * 1)  # nobody asks for it
        ta.grad(z.sum(), x)


def test_37_a_result_retains_its_gradient():
    def f(x):
        y = x * 2
        rows = y.reshape(2, 2)
        z = y.exp()
        for t in (rows, z):
            t.retain_grad()
        return rows, z, y

    found = []
    for g in (f, build(f)):
        x = ta.tensor([0.0, 1.0, 2.0, 3.0], requires_grad=True)
        for _ in range(2):
            rows, z, y = g(x)
            (rows.sum() * 3).backward(retain_graph=True)
            z.sum().backward()
            assert y.grad is None
            found.append([rows.grad.numpy(), z.grad.numpy(), x.grad.numpy()])
    for was, now in zip(found[:2], found[2:]):
        for a, b in zip(was, now):
            np.testing.assert_allclose(a, b, rtol=1e-6)  # exp has 4 ulp on C


def test_a_leaf_is_not_even_given_what_it_has():
    def f(x, view):
        x[...] = view
        return x * 1

    for g in (f, build(f)):
        x = ta.tensor([1.0, 2.0], requires_grad=True)
        with pytest.raises(ta.errors.MutationError, match="leaf"):
            g(x, x[:])


def test_38_an_expanded_output():
    def f(x):
        return x.sum(dim=0, keepdim=True).broadcast_to(x.shape)

    gradients(check(f, f32([[1, 2], [3, 4], [5, 6]])), 3 * np.ones((3, 2)))


def test_39_a_transposed_cotangent():
    for compiled in (False, True):
        f = lambda x: x * 2  # noqa: E731
        g = build(f) if compiled else f
        x = ta.tensor(np.arange(6.0, dtype=np.float32).reshape(2, 3), requires_grad=True)
        cotangent = ta.tensor(np.arange(6.0, dtype=np.float32).reshape(3, 2)).T
        g(x).backward(cotangent)
        np.testing.assert_allclose(x.grad.numpy(), 2 * cotangent.numpy())


# ---- autodiff -----------------------------------------------------------------------------------


def test_40_fan_out():
    gradients(check(lambda x: x * x + x, f32(1, 2)), [3, 5])


@pytest.mark.parametrize(
    ("a", "b"), [((2,), (1,)), ((4, 1), (4, 0)), ((), (3,)), ((2, 1, 3), (4, 1)), ((1, 1), (2, 3))]
)
def test_41_broadcasting_is_summed_back(a, b):
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(s).astype(np.float32) for s in (a, b))
    check(lambda x, y: x * y + x, x, y)


def test_42_detach():
    gradients(check(lambda x: x * x.detach(), f32(1, 2)), [1, 2])


def test_43_no_grad_with_enable_grad_inside():
    def f(x):
        with ta.no_grad():
            s = 3 * x
            with ta.enable_grad():
                t = 2 * x
        return x * s + t

    gradients(check(f, f32(1, 2)), [5, 8])

    def of_a_view(x):
        v = x[:1]
        with ta.no_grad():
            s = 3 * v
        return x[:1] * s

    gradients(check(of_a_view, f32(1, 2)), [3, 0])


def test_44_saved_then_overwritten_inside():
    def f(x):
        y = ta.sigmoid(x)
        z = y * y
        y += 1
        return z

    x = f32(0.5, -1)
    s = 1 / (1 + np.exp(-x))
    gradients(check(f, x), 2 * s * s * (1 - s))


@pytest.mark.parametrize("compiled", [False, True])
def test_45_saved_then_overwritten_by_the_caller(compiled):
    f = lambda x, w: x * w  # noqa: E731
    g = build(f) if compiled else f
    x = ta.tensor([1.0, 2.0], requires_grad=True)
    w = ta.tensor([3.0, 4.0])
    out = g(x, w)
    w.zero_()
    w[0:1].fill_(7)
    out.sum().backward()
    assert x.grad.tolist() == [3, 4]


@pytest.mark.parametrize("compiled", [False, True])
def test_46_backward_twice(compiled):
    f = lambda x: (x * x).sum()  # noqa: E731
    g = build(f) if compiled else f
    x = ta.tensor([1.0, 2.0], requires_grad=True)
    y = g(x)
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.tolist() == [4, 8]
    with pytest.raises(ta.errors.GradError, match="second time"):
        y.backward()


def test_46_two_forwards_before_one_backward():
    g = build(lambda x: ta.exp(x) * x)
    x, z = (ta.tensor(v, requires_grad=True) for v in ([1.0, 2.0], [3.0, 4.0]))
    a, b = g(x), g(z)
    a.sum().backward()
    b.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), np.exp([1, 2]) * [2, 3], rtol=1e-6)
    np.testing.assert_allclose(z.grad.numpy(), np.exp([3, 4]) * [4, 5], rtol=1e-6)


def test_47_differentiating_twice_across_the_boundary_raises():
    g = build(lambda x: x * x * x)
    x = ta.tensor([2.0], requires_grad=True)
    with pytest.raises(ta.errors.GradError, match="twice"):
        ta.grad(g(x).sum(), x, create_graph=True)


def test_47_differentiating_twice_inside_works():
    def f(x):
        (d,) = ta.grad((x * x * x).sum(), x, create_graph=True)
        return (d * d).sum()

    gradients(check(f, f32(2.0)), 2 * 12 * 12.0)


def test_48_gradients_have_the_dtype_of_their_input():
    ran = check(lambda a, b: a * b, f32(1, 2), np.array([3.0, 4.0]))
    assert [g.dtype for g in ran.gradients] == [np.float32, np.float64]


def test_50_a_value_used_before_it_was_overwritten():
    def f(x):
        y = x * 1
        z = y * y
        y *= 0
        return z + y

    gradients(check(f, f32(1, 2)), [2, 4])


# ---- randomness, side effects -------------------------------------------------------------------


def test_51_the_same_mask_forward_and_backward():
    ran = check(lambda x: F.dropout(x, 0.5), np.ones((8, 8), np.float32))
    assert ((ran.values[0] != 0) == (ran.gradients[0] != 0)).all()


@pytest.mark.parametrize("partition", ["save_all", "recompute_all", "min_cut"])
def test_52_the_same_mask_when_it_is_recomputed(partition):
    def f(x, w):
        h = F.dropout(F.gelu(x @ w), 0.5)
        return F.dropout(h @ w, 0.3) * h

    # Small numbers: the 1 + erf of gelu cancels at large negative ones, where 4 ulp are many.
    rng = np.random.default_rng(0)
    x, w = (0.3 * rng.standard_normal((6, 6)).astype(np.float32) for _ in "xw")
    check(f, x, w, partition=partition)


def test_53_two_dropouts_differ():
    ran = check(lambda x: F.dropout(x, 0.5) + F.dropout(x, 0.5), np.ones(256, np.float32))
    assert set(np.unique(ran.values[0])) == {0, 2, 4}
    check(lambda x: [F.dropout(x, 0.5) for _ in range(3)], np.ones(256, np.float32))


def test_54_two_calls_differ_and_reseeding_repeats():
    g = build(lambda x: F.dropout(x, 0.5))
    x = ta.ones(64)
    ta.manual_seed(3)
    a, b = g(x).numpy(), g(x).numpy()
    ta.manual_seed(3)
    c = g(x).numpy()
    assert (a != b).any() and (a == c).all() and len(g.records) == 1


def test_55_eager_and_compiled_masks_are_equal():
    f = lambda x: F.dropout(x, 0.5)  # noqa: E731
    x = np.ones(1000, np.float32)
    assert (run(f, [x]).values[0] == run(build(f), [x]).values[0]).all()


def test_58_a_recomputed_value_is_not_mutated_twice():
    buffer = ta.zeros(3)

    def f(x):
        with ta.no_grad():
            buffer.add_(x.sum(dim=0))
        return ta.exp(x) * buffer

    x = ta.ones(2, 3).requires_grad_()
    build(f, partition="recompute_all")(x).sum().backward()
    assert buffer.tolist() == [2, 2, 2]
    np.testing.assert_allclose(x.grad.numpy(), np.e * 2 * np.ones((2, 3)), rtol=1e-6)


def test_59_captured_arrays_are_inputs_and_numbers_are_guarded():
    scale = ta.tensor([2.0])
    factor = 3

    def f(x):
        return x * scale * factor

    g = build(f)
    x = ta.tensor([1.0])
    assert g(x).item() == 6
    scale.fill_(10)
    assert g(x).item() == 30
    scale = ta.tensor([1.0])
    assert g(x).item() == 3
    factor = 5
    assert g(x).item() == 5
    assert len(g.records) == 2 and "factor" in g.records[1].recompiled_because


def test_60_branches_on_values_raise():
    def f(x):
        return x if x.sum() > 0 else -x

    with pytest.raises(ta.errors.TraceError, match="where"):
        build(f)(ta.tensor([1.0]))


# ---- more of the same kind ----------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [False, True])
def test_a_strided_argument_that_is_written(compiled):
    def f(v):
        v += 1
        w = v.reshape(-1)
        w *= 2
        return w.sum()

    g = build(f) if compiled else f
    x = ta.tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    assert g(x.T[1:]).item() == 2 * (1 + 4 + 2 + 5 + 4)
    leaf = ta.tensor(np.arange(6, dtype=np.float32).reshape(2, 3), requires_grad=True)
    y = leaf * 3
    (g(y.T[1:]) + y.sum()).backward()
    eager = leaf.grad.tolist()
    assert eager[0][0] == 3 and eager[1][0] == 3


def test_containers_are_part_of_the_key():
    def f(a, b):
        return a[0] * 2 if isinstance(a, list) else a * 3

    g = build(f)
    x, y = ta.ones(2), ta.ones(2)
    assert g([x], y).tolist() == [2, 2]
    assert g(x, [y]).tolist() == [3, 3]
    assert g(b=[y], a=x).tolist() == [3, 3]


def test_copies_do_not_share_an_edge():
    def f(a, b):
        c = b * 1
        c.copy_(a)
        return (c * c).sum()

    gradients(check(f, f32(1, 2), f32(3, 4)), [2, 4], [0, 0])  # zeros where it was cut, as in torch
    x0 = ta.tensor([1.0, 2.0], requires_grad=True)
    x1 = ta.tensor([3.0, 4.0]) * 1
    x1.copy_(x0)
    assert ta.grad((x0 * x0).sum(), x1, allow_unused=True) == (None,)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_hidden_write_leaves_the_history_of_an_argument(compiled):
    def f(x):
        y = x * 2
        with ta.no_grad():
            x.mul_(10)
        return y + x

    g = build(f) if compiled else f
    leaf = ta.tensor([1.0, 2.0], requires_grad=True)
    x = leaf * 1
    node = x.grad_fn
    out = g(x)
    assert x.grad_fn is node and out.tolist() == [12, 24]
    (out.sum() + x.sum()).backward()
    assert leaf.grad.tolist() == [4, 4]


def test_a_gradient_that_is_constant_does_not_require_grad():
    def f(x, y):
        (a,) = ta.grad((ta.floor(x) * y).sum(), x, create_graph=True)
        (b,) = ta.grad((x * y).sum(), x, create_graph=True)
        (c,) = ta.grad((x * 2 + y).sum(), x, create_graph=True)
        return a, b, c

    ran = check(f, f32(1.5, 2.5), f32(3, 4))
    assert ran.flags == [False, True, False]
    gradients(ran, None, [2, 2])  # b is y: a constant to x


def test_gradients_given_away_have_bytes_of_their_own():
    def f(x, y):
        a, b = ta.grad((x + y).mean(), [x, y])
        a += 1
        return a, b

    ran = check(f, f32(1, 2), f32(3, 4))
    values(ran, [1.5, 1.5], [0.5, 0.5])


def test_a_gradient_inside_does_not_miss_a_path_outside():
    def f(a, b):
        (d,) = ta.grad((b * b).sum() + a.sum(), a, allow_unused=True, create_graph=True)
        return d * b

    g = build(f)
    leaf = ta.tensor([1.0, 2.0], requires_grad=True)
    a, apart = leaf * 1, ta.tensor([3.0, 4.0], requires_grad=True) * 1
    np.testing.assert_allclose(g(a, apart).detach().numpy(), f(a, apart).detach().numpy())
    with pytest.raises(ta.errors.TraceError, match="computed outside it from a"):
        g(a, a * 3)


def test_a_gradient_without_dims_through_a_live_and_a_used_up_result():
    w = ta.ones(2, requires_grad=True)

    def f(q):
        loss = (w * w).mean() + q.sum()
        loss.backward()
        return q * 3, loss

    for g in (f, build(f)):
        q = ta.tensor(0.5, requires_grad=True)
        y, loss = g(q)
        (slope,) = ta.grad(y.sum() + loss.sum(), [q])
        assert slope.shape == () and slope.item() == 4
