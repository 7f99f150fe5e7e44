"""What compiled steps share: one pool of threads, and the products, each an object of its own.

They are compiled once for a machine. With an empty cache that takes as long as a small step does,
so `prepare` starts the compilers while the passes still run, and products are waited for when a
step is loaded.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from functools import cache
from importlib import resources
from pathlib import Path

from tinyaot.backends.toolchain import EXACT, FUSED, Build

POOL = 0
ELEMENT = {4: ("float", "int32_t"), 8: ("double", "int64_t")}  # of a product, by bytes


def prepare() -> None:
    """Start to compile what almost every step needs. Raises BackendError without a compiler."""
    start(POOL)
    start(4)


@cache
def start(what: int) -> Build:
    """The pool, or the product for elements of so many bytes, on its way."""
    folder = Path(str(resources.files("tinyaot.codegen") / "include"))
    if what == POOL:
        return Build([(folder / "runtime.c").read_text()], EXACT, folder)
    t, lane = ELEMENT[what]
    names = {"T": t, "LANE": lane, "NAME": "tinyaot_product"}
    source = "".join(f"#define {a} {b}\n" for a, b in names.items()) + '#include "gemm.h"\n'
    return Build([source], FUSED, folder)


def _load(what: int) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(start(what).path()))
    except Exception:
        start.cache_clear()  # another try may have another compiler
        raise


@cache
def load_pool() -> tuple[ctypes.CDLL, int]:
    """The pool's library, and the address of the table that steps are linked to."""
    library = _load(POOL)
    find = library.tinyaot_runtime
    find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_int]
    library.tinyaot_call.restype = ctypes.c_int
    library.tinyaot_call.argtypes = [ctypes.c_void_p]
    measure = library.tinyaot_pack_bytes
    measure.restype = ctypes.c_int64
    measure.argtypes = [ctypes.c_int, *[ctypes.c_int64] * 4, *[ctypes.c_int] * 2]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2
    return library, find(cores)


@cache
def load_product(itemsize: int) -> ctypes.CDLL:
    """The product's library, now in the table."""
    library = _load(itemsize)
    product, panels = library.tinyaot_product, library.tinyaot_product_panels
    load_pool()[0].tinyaot_provide(itemsize, product, panels)
    return library


def pack_bytes(products: Iterable[tuple[int, int, int, int, bool, bool, int]]) -> int:
    """Bytes that the largest of these products packs into (`Size` of codegen/products.py): rows,
    columns and terms, elements between two of a row's terms (0: not known), whether the sizes are
    exact or at most those, whether the right operand is packed, and bytes of an element."""
    measure = load_pool()[0].tinyaot_pack_bytes
    return max((measure(itemsize, *size) for *size, itemsize in products), default=0)
