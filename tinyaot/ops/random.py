"""Random bits: Philox4x32-10, a counter-based generator (Salmon et al., "Parallel random numbers:
as easy as 1, 2, 3", SC 2011).

Every word is a pure function of (seed, draw, element): the key is the seed; the 128-bit counter is
the element's number divided by 4, then the draw, 64 bits each; the element's number modulo 4 picks
one of the block's four words. So a draw can be recomputed anywhere, in any order.
"""

from __future__ import annotations

import numpy as np

from tinyaot.errors import DTypeError, ShapeError
from tinyaot.ops.core import Primitive, declare
from tinyaot.shapes import Shape, TensorType, int64, uint32

_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], np.uint64)
_WEYL = (0x9E3779B9, 0xBB67AE85)  # what each round adds to the two words of the key
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_ROUNDS = 10
_BLOCK = 1 << 12  # counters worked on at a time, so that they stay in cache


def philox_blocks(
    even: np.ndarray, odd: np.ndarray, key: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Encrypt counters: `even` is uint64[2, n] with words 0 and 2 of each, `odd` with words 1 and
    3. Both are used up; the result has the same form."""
    spare = np.empty_like(even)
    for r in range(_ROUNDS):
        words = [[(k + r * w) & 0xFFFFFFFF] for k, w in zip(key, _WEYL, strict=True)]
        np.multiply(even, _MULTIPLIERS, out=even)  # 32 x 32 -> 64 bits
        np.right_shift(even, _HALF, out=spare)
        np.bitwise_and(even, _LOW, out=even)
        crossed = spare[::-1]  # each half goes to the other's side
        np.bitwise_xor(crossed, odd, out=crossed)
        np.bitwise_xor(crossed, np.array(words, np.uint64), out=crossed)
        even, odd, spare = crossed, even[::-1], odd
    return even, odd


def philox_into(out: np.ndarray, seed: int, draw: int) -> None:
    """Fill `out`, uint32 in C order, with the words of one draw."""
    flat = out.reshape(-1)
    key = (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)
    low, high = draw & 0xFFFFFFFF, (draw >> 32) & 0xFFFFFFFF
    for first in range(0, (flat.size + 3) // 4, _BLOCK):
        part = flat[4 * first : 4 * (first + _BLOCK)]
        blocks = (part.size + 3) // 4
        numbers = np.arange(first, first + blocks, dtype=np.uint64)
        even, odd = np.empty((2, blocks), np.uint64), np.empty((2, blocks), np.uint64)
        even[0], even[1] = numbers & _LOW, low
        odd[0], odd[1] = numbers >> _HALF, high
        even, odd = philox_blocks(even, odd, key)
        words = np.empty((blocks, 4), np.uint32)
        words[:, 0::2], words[:, 1::2] = even.T, odd.T
        part[...] = words.reshape(-1)[: part.size]


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
        raise ShapeError(f"random_bits: {tuple(shape)} is no shape")
    return TensorType(uint32, tuple(shape))


def _array(seed: np.ndarray, base: np.ndarray, ordinal: int, shape: Shape) -> np.ndarray:
    return philox(int(seed), int(base) + ordinal, shape)


def _into(out: np.ndarray, seed: np.ndarray, base: np.ndarray, ordinal: int, shape: Shape) -> None:
    philox_into(out, int(seed), int(base) + ordinal)


random_bits = declare(
    Primitive(
        "random_bits",
        "random",
        _type_rule,
        _array,
        _into,
        None,
        weight=1.0,
        doc="uint32 words of draw base + ordinal, by Philox4x32-10 under `seed`.",
        scratch=lambda ins, out, attrs: 96 * min((out.size + 3) // 4, _BLOCK),
    )
)
