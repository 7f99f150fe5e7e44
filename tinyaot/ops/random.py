"""Random bits: Philox4x32-10, a counter-based generator (Salmon et al., "Parallel random numbers:
as easy as 1, 2, 3", SC 2011).

Every word is a pure function of (seed, draw, element): the key is the seed; the 128-bit counter is
the element's number divided by 4, then the draw, 64 bits each; the element's number modulo 4 picks
one of the block's four words. So a draw can be recomputed anywhere, in any order.
"""

from __future__ import annotations

import numpy as np

from tinyaot.errors import DTypeError, ShapeError
from tinyaot.ops.core import declare
from tinyaot.shapes import Shape, TensorType, int64, uint32

_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], np.uint64)
_WEYL = (0x9E3779B9, 0xBB67AE85)  # what each round adds to the two words of the key
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_ROUNDS = 10
_BLOCK = 1 << 12  # counters worked on at a time, so that they stay in cache
_COUNT = np.arange(_BLOCK, dtype=np.uint64)


def philox_blocks(
    even: np.ndarray, odd: np.ndarray, spare: np.ndarray, key: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Encrypt counters: `even` is uint64[2, n] with words 0 and 2 of each, `odd` with words 1 and
    3, `spare` is as large. All are used up; the result has the form of `even` and `odd`."""
    words = np.empty((2, 1), np.uint64)
    for r in range(_ROUNDS):
        for i in range(2):
            words[i, 0] = (key[i] + r * _WEYL[i]) & 0xFFFFFFFF
        np.multiply(even, _MULTIPLIERS, out=even)  # 32 x 32 -> 64 bits
        np.right_shift(even, _HALF, out=spare)
        np.bitwise_and(even, _LOW, out=even)
        crossed = spare[::-1]  # each half goes to the other's side
        np.bitwise_xor(crossed, odd, out=crossed)
        np.bitwise_xor(crossed, words, out=crossed)
        even, odd, spare = crossed, even[::-1], odd
    return even, odd


def philox_into(out: np.ndarray, seed: int, draw: int) -> None:
    """Fill `out`, uint32 in C order, with the words of one draw."""
    flat = out.reshape(-1)
    key = (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)
    low, high = draw & 0xFFFFFFFF, (draw >> 32) & 0xFFFFFFFF
    counters = (flat.size + 3) // 4
    buffers = np.empty((3, 2, min(counters, _BLOCK)), np.uint64)
    for first in range(0, counters, _BLOCK):
        part = flat[4 * first : 4 * (first + _BLOCK)]
        blocks = (part.size + 3) // 4
        even, odd, spare = buffers[:, :, :blocks]
        np.add(_COUNT[:blocks], np.uint64(first), out=even[0])
        np.right_shift(even[0], _HALF, out=odd[0])
        np.bitwise_and(even[0], _LOW, out=even[0])
        even[1], odd[1] = low, high
        even, odd = philox_blocks(even, odd, spare, key)
        whole = part.size // 4
        quads = part[: 4 * whole].reshape(whole, 4)
        quads[:, 0::2], quads[:, 1::2] = even.T[:whole], odd.T[:whole]
        for i in range(part.size - 4 * whole):
            part[4 * whole + i] = (even, odd)[i % 2][i // 2, -1]


def philox(seed: int, draw: int, shape: Shape) -> np.ndarray:
    """uint32 words of `shape`; seed and draw count modulo 2**64."""
    out = np.empty(shape, np.uint32)
    philox_into(out, seed, draw)
    return out


def _type_rule(seed: TensorType, base: TensorType, ordinal: int, shape: Shape) -> TensorType:
    for t in (seed, base):
        if t.dtype is not int64 or t.shape:
            raise DTypeError(f"random_bits: seed and base must be i64[], got {t}")
    if any(n < 0 for n in shape):
        raise ShapeError(f"random_bits: {tuple(shape)} is not a shape")
    return TensorType(uint32, tuple(shape))


def _array(seed: np.ndarray, base: np.ndarray, ordinal: int, shape: Shape) -> np.ndarray:
    return philox(int(seed), int(base) + ordinal, shape)


def _into(out: np.ndarray, seed: np.ndarray, base: np.ndarray, ordinal: int, shape: Shape) -> None:
    philox_into(out, int(seed), int(base) + ordinal)


random_bits = declare(
    "random_bits",
    "random",
    _type_rule,
    _array,
    _into,
    None,
    weight=1.0,
    doc="uint32 words of draw base + ordinal, by Philox4x32-10 under `seed`.",
    scratch=lambda ins, out, attrs: 48 * min((out.size + 3) // 4, _BLOCK) + 16 if out.size else 0,
)
