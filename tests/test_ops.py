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
        out = garbage(result)
        allowed = primitive.scratch(types, result, case.attrs) + NUMPYS_BUFFERS
        with np.errstate(all="ignore"):
            primitive.into(out, *case.arrays, **case.attrs)  # fills caches
            tracemalloc.start()
            primitive.into(out, *case.arrays, **case.attrs)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak <= allowed, f"{case}: {peak} bytes, {allowed} allowed"


def test_names_are_exported_under_their_own_names() -> None:
    for name, primitive in TABLE.items():
        assert getattr(ops, name) is primitive and isinstance(primitive, Primitive)
