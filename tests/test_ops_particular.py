"""What single primitives promise beyond the table's common laws."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from scipy import special

from tests.op_graph import evaluate, type_of
from tests.op_samples import (
    BY_NAME,
    NAMES,
    check_bits,
    garbage,
    layouts,
    numbers,
    slow_philox,
)
from tinyaot import ops
from tinyaot import shapes as S
from tinyaot.errors import MutationError
from tinyaot.ops import TABLE
from tinyaot.ops.random import philox_blocks
from tinyaot.shapes import TensorType


def test_the_last_write_wins_whatever_the_memory_order() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        rows, columns, size = (int(n) for n in rng.integers(1, 5, 3))
        index = layouts(rng.integers(-size, size, (rows, columns)))[rng.integers(4)]
        src = layouts(numbers(rows, columns, 2))[rng.integers(4)]
        base = np.zeros((2, size))
        want = base.copy()
        for at in np.ndindex(rows, columns):
            want[:, index[at]] = src[at]
        check_bits(TABLE["scatter"].array(base, src, index, axes=(1,), mode="set"), want, index)
        base, src = np.zeros((rows, size)), src[..., 0]
        want = base.copy()
        for at in np.ndindex(rows, columns):
            want[at[0], index[at]] = src[at]
        check_bits(TABLE["put_along"].array(base, src, index, axis=1, mode="set"), want, index)


@pytest.mark.parametrize("half", [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)])
def test_halves_compute_in_float32(half: np.dtype[Any]) -> None:
    x = numbers(64, 48).astype(half)
    wide = x.astype(np.float32)
    many = np.ones((1, 5000), half)  # in float16, 2048 + 1 is 2048
    for name, result, want in [
        ("sum", TABLE["sum"].array(many, axes=(1,)), np.array([[5000]])),
        ("cumsum", TABLE["cumsum"].array(many, axis=1)[0, -1:], np.array([5000])),
        ("prod", TABLE["prod"].array(x[:4], axes=(0,)), wide[:4].prod(0, keepdims=True)),
        ("dot", TABLE["dot"].array(many, many, spec="ij,kj->ik"), np.array([[5000]])),
        ("sigmoid", TABLE["sigmoid"].array(x), special.expit(wide)),
        ("erf", TABLE["erf"].array(x), special.erf(wide)),
        ("rsqrt", TABLE["rsqrt"].array(np.abs(x)), 1 / np.sqrt(np.abs(wide))),
        ("add", TABLE["add"].array(x, x), wide + wide),
        (
            "scatter",
            TABLE["scatter"].array(
                np.zeros(1, half), many[0], np.zeros(5000, int), axes=(0,), mode="add"
            ),
            np.array([5000]),
        ),
    ]:
        assert result.dtype == half, name
        check_bits(result, want.astype(half), name)
    for name in NAMES:  # and every primitive that takes float64 takes halves
        for case in BY_NAME[name]:
            arrays = [x.astype(half) if x.dtype == np.float64 else x for x in case.arrays]
            inferred = TABLE[name].infer([type_of(x) for x in arrays], case.attrs)
            with np.errstate(all="ignore"):
                result = np.asarray(TABLE[name].array(*arrays, **case.attrs))
                out = garbage(inferred)
                TABLE[name].into(out, *arrays, **case.attrs)  # type: ignore[misc]
            assert type_of(result) == inferred, case
            check_bits(out, result, case)


def test_integers_keep_their_dtype_and_wrap() -> None:
    small = np.full((1, 300), 1, np.uint8)
    assert TABLE["sum"].array(small, axes=(1,)).tolist() == [[44]]
    assert TABLE["dot"].array(small, small, spec="ij,kj->ik").tolist() == [[44]]
    assert TABLE["cumsum"].array(small, axis=1)[0, -1] == 44
    a, b = np.array([1, -1, -1, 2, 3]), np.array([-3, -3, -2, -1, 2])
    assert TABLE["pow"].array(a, b).tolist() == [1, -1, 1, 0, 9]


def test_nan_and_signed_zero() -> None:
    nan, zero = np.array([1.0, np.nan, 2.0]), np.array([-0.0])
    assert np.isnan(TABLE["amax"].array(nan, axes=(0,))).all()
    assert TABLE["argmax"].array(nan, axis=0).tolist() == [1]
    assert TABLE["argmin"].array(nan, axis=0).tolist() == [1]
    assert TABLE["argsort"].array(nan, axis=0, descending=False).tolist() == [0, 2, 1]
    assert TABLE["argsort"].array(nan, axis=0, descending=True).tolist() == [1, 2, 0]
    assert np.isnan(TABLE["maximum"].array(nan, np.zeros(3))[1])
    assert np.signbit(TABLE["copy"].array(zero)) and np.signbit(TABLE["mul"].array(zero, 1 + zero))


def test_write_puts_bytes_into_a_view() -> None:
    base = np.zeros((2, 3))
    TABLE["write"].array(TABLE["diagonal"].array(base, offset=1, axis1=0, axis2=1), np.ones(2))
    TABLE["write"].array(TABLE["permute"].array(base, perm=(1, 0))[0], np.array([5.0, 6.0]))
    assert base.tolist() == [[5, 1, 0], [6, 0, 1]]
    assert TABLE["write"].kind == "mutate" and not TABLE["write"].differentiable


def test_reshape_is_a_view_exactly_where_geometry_says() -> None:
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(300):
        x = np.zeros((2, 3, 4))[:, :: int(rng.choice([1, -1, 2])), :: int(rng.choice([1, 2]))]
        x = x.transpose(rng.permutation(3))
        shape = [(x.size,), (x.size // 2, 2), (2, -1), (1, *x.shape), (*x.shape[:2], 1, x.shape[2])]
        target = S.normalize_shape("", shape[rng.integers(len(shape))], x.size)
        item = x.itemsize
        geometry = S.reshape_geometry(
            S.Geometry(x.shape, tuple(s // item for s in x.strides)), target
        )
        result = TABLE["reshape"].array(x, shape=target)
        assert np.shares_memory(result, x) == (geometry is not None)
        seen.add(geometry is None)
    assert seen == {True, False}


def test_dot_reads_operands_where_they_lie() -> None:
    """Transposes and merged batches are strides: no hidden copies, whatever the letters."""
    n = 96
    for spec, a, b in [
        ("ij,jk->ik", (n, n), (n, n)),
        ("ji,jk->ki", (n, n), (n, n)),
        ("ij,kj->ki", (n, n), (n, n)),
        ("bti,io->bto", (4, n, n), (n, n)),
        ("bto,io->bti", (4, n, n), (n, n)),
        ("bti,bto->io", (4, n, n), (4, n, n)),
        ("bti,bto->oi", (4, n, n), (4, n, n)),
        ("bthd,bshd->bhts", (2, n, 2, 32), (2, n, 2, 32)),
        ("bhts,bshd->bthd", (2, 2, n, n), (2, n, 2, 32)),
        ("bhts,bthd->bshd", (2, 2, n, n), (2, n, 2, 32)),
    ]:
        x, y = numbers(*a), numbers(*b, seed=1)
        result = TABLE["dot"].infer([type_of(x), type_of(y)], {"spec": spec})
        assert TABLE["dot"].scratch([type_of(x), type_of(y)], result, {"spec": spec}) == 0
        out = garbage(result)
        TABLE["dot"].into(out, x, y, spec=spec)  # type: ignore[misc]
        np.testing.assert_allclose(out, np.einsum(spec, x, y, optimize=True), rtol=1e-10)
        tracemalloc.start()
        TABLE["dot"].into(out, x, y, spec=spec)  # type: ignore[misc]
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 8_000, spec


def test_dot_of_random_letters_and_strides() -> None:
    rng = np.random.default_rng(3)
    for _ in range(400):
        sizes = dict(zip("abcdef", rng.integers(1, 4, 6)))
        left, right = (
            "".join(rng.permutation(list("abcdef"))[: rng.integers(0, 5)]) for _ in range(2)
        )
        out = "".join(c for c in rng.permutation(list("abcdef")) if c in left + right)
        out = out[: rng.integers(0, len(out) + 1)]
        spec = f"{left},{right}->{out}"
        x, y = (
            layouts(numbers(*(sizes[c] for c in s), seed=i))[rng.integers(4 if s else 1)]
            for i, s in enumerate((left, right))
        )
        want = np.einsum(spec, x, y)
        np.testing.assert_allclose(TABLE["dot"].array(x, y, spec=spec), want, atol=1e-12)
    flops = TABLE["dot"].flops
    x, y = TensorType(S.float32, (4, 5)), TensorType(S.float32, (5, 6))
    assert flops([x, y], TensorType(S.float32, (4, 6)), {"spec": "ij,jk->ik"}) == 2 * 4 * 5 * 6
    assert TABLE["sum"].flops([x], x, {}) == 20


def test_philox_known_answers() -> None:
    """The vectors published with Random123 (kat_vectors: philox4x32 10)."""
    for counter, key, want in [
        ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ]:
        even, odd = philox_blocks(
            np.array(counter[0::2], np.uint64)[:, None],
            np.array(counter[1::2], np.uint64)[:, None],
            np.empty((2, 1), np.uint64),
            key,
        )
        assert (even[0, 0], odd[0, 0], even[1, 0], odd[1, 0]) == want


def test_philox_counts_elements_and_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    seed, draw = 2**63 + 12345, 2**32 + 1
    want = slow_philox(seed, draw, (3, 5))
    check_bits(ops.philox(seed, draw, (3, 5)), want, "row-major elements")
    monkeypatch.setattr("tinyaot.ops.random._BLOCK", 2)
    check_bits(ops.philox(seed, draw, (15,)), want.ravel(), "in blocks")
    assert ops.philox(-1, 0, (2,)).tolist() == ops.philox(2**64 - 1, 0, (2,)).tolist()
    assert ops.philox(0, 0, (4,)).tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_replay_and_scatter_back() -> None:
    """A write through a chain of views, in NumPy's memory and as a pure value."""
    chains: list[list[tuple[str, dict[str, Any]]]] = [
        [],
        [("slice", {"starts": (1, 4), "stops": (3, -1), "steps": (1, -2)})],
        [
            ("permute", {"perm": (1, 0)}),
            ("slice", {"starts": (2, 0), "stops": (3, 4), "steps": (1, 1)}),
            ("reshape", {"shape": (4,)}),
            ("detach", {}),
        ],
        [
            ("reshape", {"shape": (2, 2, 5)}),
            ("diagonal", {"offset": 0, "axis1": 0, "axis2": 1}),
            ("slice", {"starts": (4, 0), "stops": (0, 1), "steps": (-3, 1)}),
        ],
        [("detach", {}), ("slice", {"starts": (0, 0), "stops": (0, 5), "steps": (1, 1)})],
    ]
    for chain in chains:
        x = numbers(4, 5)
        want = x.copy()
        view = want
        for name, attrs in chain:
            view = TABLE[name].array(view, **attrs)
        check_bits(evaluate(lambda x, c=chain: ops.replay(x, c), x), view, chain)
        value = numbers(*view.shape, seed=1)
        view[...] = value
        found = evaluate(lambda x, v, c=chain: ops.scatter_back(x, c, v), x, value)
        check_bits(found, want, chain)
    with pytest.raises(MutationError, match="broadcast"):
        evaluate(lambda x: ops.scatter_back(x, [("broadcast", {"shape": (2, 3)})], x), x)


def test_unbroadcast_sums_what_broadcasting_repeated() -> None:
    for shape, full in [((3,), (2, 3)), ((2, 1), (2, 3)), ((), (2, 3)), ((4, 1), (4, 0))]:
        x = np.ones(full)
        found = evaluate(lambda x, s=shape: ops.unbroadcast(x, s), x)
        assert found.shape == shape and (found == x.size / max(math.prod(shape), 1)).all()
