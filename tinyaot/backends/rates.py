"""How fast NumPy is here: measured once on a machine, and kept beside the compiler's cache.

A roofline has few figures: what a product, a loop, a byte and a call take. Each is the best of some
short runs, since whatever else the machine does only ever adds. All of it takes about 50 ms; the
file is found again by processor, NumPy's version and the number of BLAS's threads. Where nothing
can be kept (`TINYAOT_CACHE=0`), the constants of `cost.NUMPY_RATES` hold, so that one program is
not split in two ways by two processes.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tinyaot.backends.toolchain import cache_directory, processor
from tinyaot.cost import NUMPY_RATES, Rates
from tinyaot.ops.core import TABLE

FORMAT = 1  # of the file
SIDE = 128  # of the product
ELEMENTS = 20_000  # of a loop: it stays in the cache
THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
CREDIBLE = 30.0  # a figure further than this factor from the constant is no measurement


@cache
def numpy_rates() -> Rates:
    """The rates of NumPy on this machine: those kept, or else measured now and kept."""
    folder = cache_directory()
    if folder is None:
        return NUMPY_RATES
    path = folder / f"rates-{_key()}.json"
    found = _read(path)
    if found is None:
        found = measured()
        _write(path, found)
    return found


def measured() -> Rates:
    """Measure now. A figure that is beyond belief is left as the constant."""
    rng = np.random.default_rng(0)
    a, b = (rng.uniform(0.1, 0.9, (SIDE, SIDE)).astype(np.float32) for _ in range(2))
    x, y = (rng.uniform(0.1, 0.9, ELEMENTS).astype(np.float32) for _ in range(2))
    tiny, out, result = x[:4].copy(), np.empty_like(x), np.empty_like(a)
    small = np.empty(4, np.float32)
    call = _best(lambda: np.add(tiny, tiny, small), 30)
    start = _best(lambda: np.matmul(a[:4, :4], b[:4, :4], result[:4, :4]), 30) - call
    product = _best(lambda: np.matmul(a, b, result), 10) - call - max(start, 0.0)
    loop = _best(lambda: np.add(x, y, out), 10) - call
    constant = NUMPY_RATES
    return replace(
        constant,
        product=_credible(2 * SIDE**3 / max(product, 1e-9), constant.product),
        bandwidth=_credible(12 * ELEMENTS / max(loop, 1e-9), constant.bandwidth),
        product_start=_credible(start, constant.product_start),
        ops={op: _credible(_nanoseconds(op, x, y), ns) for op, ns in constant.ops.items()},
        origin=f"measured here: products of {SIDE}^3, loops over {ELEMENTS:,} float32",
    )


def _nanoseconds(op: str, x: np.ndarray, y: np.ndarray) -> float:
    """An element's time in a loop of the op."""
    primitive = TABLE[op]
    into = primitive.into
    assert into is not None
    if primitive.kind == "random":
        words, zero = np.empty(x.shape, np.uint32), np.zeros((), np.int64)
        run: Callable[[], Any] = lambda: into(words, zero, zero, ordinal=0, shape=x.shape)  # noqa: E731
    else:
        operands = [x > 0.5, x, y] if op == "where" else [x, y]
        given = operands[: 1 + max(i for i in range(3) if f"{{{i}}}" in (primitive.expr or "{0}"))]
        out = np.empty_like(x)
        run = lambda: into(out, *given)  # noqa: E731
    return 1e9 * _best(run, 3) / x.size


def _best(run: Callable[[], Any], times: int) -> float:
    """Seconds of the quickest of some runs."""
    run()
    best = math.inf
    for _ in range(times):
        began = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - began)
    return best


def _credible(found: float, constant: float) -> float:
    return found if constant / CREDIBLE < found < constant * CREDIBLE else constant


# ---- keeping them -------------------------------------------------------------------------------


def _key() -> str:
    threads = [os.environ.get(name, "") for name in THREADS]
    texts = [str(FORMAT), processor(), np.__version__, *threads]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def _read(path: Path) -> Rates | None:
    """What is kept there; None if it is not there, or not whole."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        found = Rates(**data)
        figures = [found.product, found.element, found.bandwidth, found.node, found.product_start]
        figures += [found.ops[op] for op in NUMPY_RATES.ops]
        return found if all(x > 0 and math.isfinite(x) for x in figures) else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _write(path: Path, rates: Rates) -> None:
    """Keep them, in one step: another process may be reading."""
    try:
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            json.dump(asdict(rates), file)
        os.replace(file.name, path)
    except OSError:
        return  # nothing can be kept here, after all
