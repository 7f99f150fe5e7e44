"""Laws that every row of the table of primitives keeps: types, values, and `into`."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from tests.op_graph import type_of
from tests.op_samples import (
    BY_NAME,
    NAMES,
    Case,
    all_cases,
    check_bits,
    garbage,
    variants,
)
from tinyaot import ops
from tinyaot.ops import TABLE, Primitive
from tinyaot.ops.core import same_buffer


def test_every_primitive_has_a_sample() -> None:
    assert set(BY_NAME) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_type_and_values(name: str) -> None:
    primitive = TABLE[name]
    for case in BY_NAME[name]:
        for arrays in variants(case):
            frozen = [x.view() for x in arrays]
            for x in frozen:
                x.flags.writeable = False
            result = np.asarray(primitive.array(*frozen, **case.attrs))
            inferred = primitive.infer([type_of(x) for x in arrays], case.attrs)
            assert inferred == type_of(result), case
            if primitive.kind != "view":
                assert result.flags.c_contiguous, case
                assert not any(np.may_share_memory(result, x) for x in arrays), case
            expected = np.asarray(case.expected(*arrays, **case.attrs))
            exact = result.dtype.kind in "biu"
            if exact:
                expected = expected.astype(result.dtype)
            tolerance = 0 if exact else 1e-5 if result.dtype == np.float32 else 1e-12
            np.testing.assert_allclose(
                result, expected, rtol=tolerance, atol=tolerance, err_msg=str(case)
            )


@pytest.mark.parametrize("name", NAMES)
def test_into_is_array_bit_for_bit(name: str) -> None:
    primitive = TABLE[name]
    assert primitive.into is not None
    for case in BY_NAME[name]:
        for arrays in variants(case):
            want = np.asarray(primitive.array(*arrays, **case.attrs))
            t = type_of(want)
            out = garbage(t)
            primitive.into(out, *arrays, **case.attrs)
            check_bits(out, want, case)
            for i, x in enumerate(arrays):
                if not (primitive.may_overwrite(i) and type_of(x) == t):
                    continue
                out = np.array(x, order="C")
                operands = [out if j == i else y.copy() for j, y in enumerate(arrays)]
                want = np.asarray(primitive.array(*(y.copy() for y in operands), **case.attrs))
                primitive.into(out, *operands, **case.attrs)
                check_bits(out, want, f"{case} in place of operand {i}")


NUMPYS_BUFFERS = 3 * 8192 * 8 + 10_000  # what a ufunc may use to iterate, whatever the size
BIG: dict[str, list[Case]] = {}
for _case in all_cases(400):
    BIG.setdefault(_case.name, []).append(_case)


@pytest.mark.parametrize("name", NAMES)
def test_into_allocates_no_more_than_it_says(name: str) -> None:
    """Only operands of over 1 MB are looked at here, so fixed blocks do not matter."""
    primitive = TABLE[name]
    assert primitive.into is not None
    for case in BIG[name]:
        types = [type_of(x) for x in case.arrays]
        result = primitive.infer(types, case.attrs)
        if max([result.nbytes, *(t.nbytes for t in types)]) < 1_000_000:
            continue
        allowed = primitive.scratch(types, result, case.attrs) + NUMPYS_BUFFERS
        in_place = [i for i, t in enumerate(types) if primitive.may_overwrite(i) and t == result]
        want = np.asarray(primitive.array(*case.arrays, **case.attrs))
        for place in (None, *in_place):
            out = garbage(result) if place is None else case.arrays[place].copy()
            arrays = [out if i == place else x for i, x in enumerate(case.arrays)]
            tracemalloc.start()
            with np.errstate(all="ignore"):
                primitive.into(out, *arrays, **case.attrs)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak <= allowed, f"{case}: {peak} bytes, {allowed} allowed"
            check_bits(out, want, case)


def test_where_into_any_of_its_operands() -> None:
    """It may overwrite only the last without a copy, but is right with all, and with overlaps."""
    assert [TABLE["where"].may_overwrite(i) for i in range(3)] == [False, False, True]
    bits = np.array([1, 0, 1, 1, 0, 0, 1, 0, 1], bool)
    for shift in (-1, 0, 1):
        for place in range(3):
            memory = np.tile(bits, 3)
            arrays = [bits, np.roll(bits, 1), np.roll(bits, 3)]
            arrays[place] = memory[9 + shift : 18 + shift]
            want = TABLE["where"].array(*(x.copy() for x in arrays))
            TABLE["where"].into(memory[9:18], *arrays)  # type: ignore[misc]
            check_bits(memory[9:18], want, (shift, place))


def test_same_buffer() -> None:
    x = np.zeros((3, 3))
    assert same_buffer(x, x.view()) and same_buffer(x[1:], x[1:])
    assert not any(same_buffer(x, y) for y in (x.T, x.copy(), x[:2], x[::-1]))


def test_names_are_exported_under_their_own_names() -> None:
    for name, primitive in TABLE.items():
        assert getattr(ops, name) is primitive and isinstance(primitive, Primitive)
