"""The product kernel: every layout and accumulation, at sizes around its blocks."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinyaot.backends import cpu
from tinyaot.backends.buffers import aligned_empty
from tinyaot.backends.runtime import load_product, pack_bytes

pytestmark = pytest.mark.skipif(cpu.unavailable() is not None, reason="no C compiler")

SIZES = [  # rows, columns, contracted
    *((1, 1, 1), (6, 16, 8), (7, 17, 9), (5, 8, 3), (13, 31, 33), (12, 10, 70), (97, 65, 40)),
    *((2, 400, 21), (25, 385, 323), (100, 9, 641), (11, 1030, 5), (1, 70, 30), (70, 1, 30)),
    *((391, 49, 330), (193, 410, 25)),  # several blocks of rows, panels that are fetched ahead
    *((1, 37, 701), (46, 1, 701), (1, 5203, 6)),  # a row times a matrix, and a matrix by a column
]


@pytest.fixture(scope="module")
def products() -> dict[str, Callable[..., None]]:
    number, pointer = ctypes.c_int64, ctypes.c_void_p
    tensor = [pointer, number, number]
    kind = ctypes.CFUNCTYPE(None, *[number] * 3, *tensor * 3, ctypes.c_int, pointer)
    return {
        name: kind(ctypes.cast(load_product(size).tinyaot_product, pointer).value)
        for name, size in (("f32", 4), ("f64", 8))
    }


def laid_out(x: np.ndarray, layout: str) -> np.ndarray:
    """x in rows, in columns, or spread out in both directions."""
    if layout == "rows":
        return np.array(x, order="C")
    if layout == "columns":
        return np.array(x, order="F")
    spread = np.full((x.shape[0] * 2, x.shape[1] * 3), np.nan, x.dtype)
    spread[::2, ::3] = x
    return spread[::2, ::3]


def run(
    product: Callable[..., None],
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray,
    add: bool,
    ahead: bool = False,
) -> None:
    """c (+)= a b, its right operand packed ahead or not."""
    (m, k), n, itemsize = a.shape, b.shape[1], a.itemsize
    turned = c.strides[1] != itemsize and (c.strides[0] == itemsize or n == 1) and m > 1
    rows, columns, step = (n, m, b.strides[0]) if turned else (m, n, a.strides[1])
    nbytes = pack_bytes([(rows, columns, k, step // itemsize, True, ahead, itemsize)])
    pack = aligned_empty(nbytes + 64)
    pack[nbytes:] = 77
    tensors = []
    for x in (a, b, c):
        tensors += [x.ctypes.data, *(s // itemsize for s in x.strides)]
    if ahead:
        at, size, row, column = (0, m, 2, 1) if turned else (3, n, 4, 5)
        panels = aligned_empty(k * (size + 32) * itemsize)
        steps = [ctypes.c_int64(tensors[i]) for i in (row, column)]
        source, to = ctypes.c_void_p(tensors[at]), ctypes.c_void_p(panels.ctypes.data)
        pack_panels = load_product(itemsize).tinyaot_product_panels
        pack_panels(ctypes.c_int64(size), ctypes.c_int64(k), source, *steps, to)
        tensors[at : at + 3] = [panels.ctypes.data, 0, 0]
    product(m, n, k, *tensors, int(add), pack.ctypes.data)
    assert (pack[nbytes:] == 77).all(), "packed beyond the end"


def random_operands(size: tuple[int, int, int], kind: str) -> tuple[Any, Any, Any]:
    """A, B and C of m, n, k."""
    m, n, k = size
    rng = np.random.default_rng(0)
    dtype = np.float32 if kind == "f32" else np.float64
    a, b, c = (rng.standard_normal(s).astype(dtype) for s in ((m, k), (k, n), (m, n)))
    return a, b, c


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("size", SIZES)
def test_products(
    products: dict[str, Callable[..., None]], kind: str, size: tuple[int, int, int]
) -> None:
    a, b, c = random_operands(size, kind)
    right = a.astype(np.float64) @ b.astype(np.float64)
    layouts = ("rows", "columns", "spread")
    for add in (False, True):
        for la in layouts:
            for lb in layouts:
                for lc in layouts:
                    out = laid_out(c, lc)
                    around = out.base if lc == "spread" else None
                    holes = None if around is None else np.isnan(around)
                    run(products[kind], laid_out(a, la), laid_out(b, lb), out, add)
                    np.testing.assert_allclose(
                        out, right + c * add, rtol=1e-4 if kind == "f32" else 1e-9, atol=1e-3
                    )
                    assert around is None or np.array_equal(np.isnan(around), holes)


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("size", SIZES)
def test_what_is_packed_ahead_gives_the_same(
    products: dict[str, Callable[..., None]], kind: str, size: tuple[int, int, int]
) -> None:
    m, n, k = size
    a, b, c = random_operands(size, kind)
    layouts = ("rows", "columns", "spread")
    for la, lb, lc in [(x, y, z) for x in layouts for y in layouts for z in layouts]:
        plain, ahead = laid_out(c, lc), laid_out(c, lc)
        operands = laid_out(a, la), laid_out(b, lb)
        run(products[kind], *operands, plain, add=True)
        run(products[kind], *operands, ahead, add=True, ahead=True)
        if 1 in (m, n):  # a row reads where its matrix lies, and adds up in another order
            bound = k * np.finfo(a.dtype).eps * (np.abs(a) @ np.abs(b) + np.abs(c)).max()
            np.testing.assert_allclose(plain, ahead, rtol=0, atol=bound)
        else:
            np.testing.assert_array_equal(plain, ahead)


@pytest.mark.parametrize("itemsize", [4, 8])
def test_smaller_products_pack_no_more(itemsize: int) -> None:
    """The end of a ragged tile, or of a loop that a mask cuts short, has the room of a whole."""

    def room(m: int, k: int, exact: bool) -> int:
        return pack_bytes([(m, 500, k, 0, exact, False, itemsize)])

    for edge in (6, 96, 97, 192, 193, 320, 321, 1000, 1026, 1100):
        most = room(edge, edge, exact=False)
        needed = [room(m, edge, exact=True) for m in range(1, edge + 1)]
        needed += [room(edge, k, exact=True) for k in range(1, edge + 1)]
        assert max(needed) <= most
    assert room(2100, 30, exact=True) < room(2000, 30, exact=True)  # more blocks, of fewer rows
