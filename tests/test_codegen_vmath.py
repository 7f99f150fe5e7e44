"""The vector functions: within 4 ulp, and right at NaN, infinities, zeros and subnormals."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy import special

from tinyaot.backends import cpu
from tinyaot.backends.toolchain import build
from tinyaot.codegen.c import header

pytestmark = pytest.mark.skipif(cpu.unavailable() is not None, reason="no C compiler")

FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "erf": special.erf,
    "sin": np.sin,
    "cos": np.cos,
}


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    loops = [
        f"void t_{f}(float *x, float *y, long n) {{\n#pragma omp simd\n"
        f"  for (long i = 0; i < n; i++) y[i] = {f}_f32(x[i]);\n}}"
        for f in (*FUNCTIONS, "sigmoid")
    ]
    return ctypes.CDLL(str(build("\n".join([header("vmath.h"), *loops]))))


def run(library: ctypes.CDLL, name: str, x: np.ndarray) -> np.ndarray:
    y = np.empty_like(x)
    function = getattr(library, f"t_{name}")
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long]
    function(x.ctypes.data, y.ctypes.data, x.size)
    return y


def samples() -> np.ndarray:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 400_000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    near = [rng.uniform(-w, w, 100_000).astype(np.float32) for w in (1e-3, 1, 10, 110)]
    return np.concatenate([bits, *near])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_within_4_ulp(library: ctypes.CDLL, name: str) -> None:
    x = samples()
    with np.errstate(all="ignore"):
        exact = FUNCTIONS[name](x.astype(np.float64))
        rounded = exact.astype(np.float32)
    y = run(library, name, x)
    finite = np.isfinite(rounded) & np.isfinite(y)
    ulp = np.abs(y[finite] - exact[finite]) / np.spacing(np.abs(rounded[finite]))
    assert ulp.max() <= 4
    others = ~finite
    assert np.array_equal(y[others], rounded[others], equal_nan=True)


def test_special_values(library: ctypes.CDLL) -> None:
    inf, nan = np.inf, np.nan
    x = np.array([0.0, -0.0, inf, -inf, nan], np.float32)
    expected = {
        "exp": [1, 1, inf, 0, nan],
        "expm1": [0.0, -0.0, inf, -1, nan],
        "log": [-inf, -inf, inf, nan, nan],
        "log1p": [0.0, -0.0, inf, nan, nan],
        "tanh": [0.0, -0.0, 1, -1, nan],
        "erf": [0.0, -0.0, 1, -1, nan],
        "sin": [0.0, -0.0, nan, nan, nan],
        "cos": [1, 1, nan, nan, nan],
    }
    for name, values in expected.items():
        y = run(library, name, x)
        assert np.array_equal(y, np.array(values, np.float32), equal_nan=True), name
        signs = ~np.isnan(y)
        wanted = np.signbit(np.array(values, np.float32))
        assert np.array_equal(np.signbit(y)[signs], wanted[signs]), name


def test_headers_are_package_data() -> None:
    assert "tinyaot_runtime" in header("runtime.h")
    assert Path(cpu.__file__).exists()


def test_sigmoid(library: ctypes.CDLL) -> None:
    x = samples()
    x = x[~(x < -87)]  # beyond, the result is subnormal
    with np.errstate(all="ignore"):
        exact = special.expit(x.astype(np.float64))
    y = run(library, "sigmoid", x)
    assert np.array_equal(np.isnan(x), np.isnan(y))
    kept = ~np.isnan(x)
    ulp = np.abs(y - exact)[kept] / np.spacing(exact[kept].astype(np.float32))
    assert ulp.max() <= 4
    ends = np.array([-np.inf, np.inf], np.float32)
    assert run(library, "sigmoid", ends).tolist() == [0, 1]
