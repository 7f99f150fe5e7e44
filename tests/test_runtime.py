"""The runtime's products: right at every kind of size, in the scratch that they say they need."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tinyaot.backends import cpu
from tinyaot.backends.runtime import load_product

pytestmark = pytest.mark.skipif(cpu.unavailable() is not None, reason="no C compiler")

SIZES = [
    *[(1, 1, 1), (3, 5, 7), (8, 32, 16), (9, 33, 17), (96, 31, 321), (97, 64, 40)],
    *[(200, 40, 330), (5, 1100, 9), (100, 1030, 12), (64, 128, 0)],
]


def multiply(a: np.ndarray, b: np.ndarray, c: np.ndarray, accumulate: bool) -> None:
    """c (+)= a b by the runtime, in scratch of just the size that it asks for."""
    item = c.itemsize
    library = load_product(item)
    m, n, k = *c.shape, a.shape[1]
    if c.strides[1] != item and (c.strides[0] == item or n == 1) and m > 1:
        m, n = n, m
    need = library.tinyaot_product_pack_bytes(m, n, k)
    scratch = np.full(need + 128 + 64, 0xA5, np.uint8)
    start = -scratch.ctypes.data % 64
    pointer, size = ctypes.c_void_p, ctypes.c_int64

    def operand(x: np.ndarray) -> list[object]:
        return [pointer(x.ctypes.data), *(size(s // item) for s in x.strides)]

    library.tinyaot_product(
        *(size(x) for x in (*c.shape, a.shape[1])),
        *operand(a),
        *operand(b),
        *operand(c),
        ctypes.c_int(accumulate),
        pointer(scratch.ctypes.data + start),
    )
    assert (scratch[start + need :] == 0xA5).all(), "written beyond its scratch"


@pytest.mark.parametrize("m, n, k", SIZES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_product_of_any_size_stays_in_its_scratch(m: int, n: int, k: int, dtype: type) -> None:
    rng = np.random.default_rng(m * n + k)

    def make(rows: int, columns: int, turned: bool) -> np.ndarray:
        x = rng.standard_normal((columns, rows) if turned else (rows, columns)).astype(dtype)
        return x.T if turned else x

    tolerance = 1e-4 if dtype is np.float32 else 1e-12
    for turned in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 1)):
        a, b, c = (
            make(*shape, bool(t)) for shape, t in zip(((m, k), (k, n), (m, n)), turned, strict=True)
        )
        before = c.copy()
        multiply(a, b, c, accumulate=True)
        np.testing.assert_allclose(c, before + a @ b, rtol=tolerance, atol=tolerance * 10)
        if k:
            multiply(a, b, c, accumulate=False)
            np.testing.assert_allclose(c, a @ b, rtol=tolerance, atol=tolerance * 10)
