"""Memory of compiled programs: aligned, and under TINYAOT_POISON=1 filled with NaN.

What was freed, or never written, then spoils every result that it reaches: a plan that is wrong
is found by running it.
"""

from __future__ import annotations

import os

import numpy as np

from tinyaot.passes.plan import ALIGNMENT

POISON = 0xFF  # every float made of it is a NaN


def wants_poison() -> bool:
    """Whether TINYAOT_POISON is set."""
    return os.environ.get("TINYAOT_POISON", "0") not in ("", "0")


def fill_with_nan(array: np.ndarray) -> None:
    """Fill an array in C order with NaN."""
    array.reshape(-1).view(np.uint8).fill(POISON)


def aligned_empty(nbytes: int) -> np.ndarray:
    """`nbytes` of uint8, beginning at a multiple of ALIGNMENT."""
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes]
