"""The random state: a seed and a count of draws. Nothing else decides what comes next.

Random numbers are a function of a counter (Salmon et al., "Parallel random numbers: as easy as 1,
2, 3", 2011): the seed is the key, and each random tensor takes the next *draw*, whose number goes
into the counter beside the element's index. A compiled program takes all its draws at once, as a
base number that is an input plus ordinals fixed at trace; so it sees the same bits as eager code,
whatever is recomputed, reordered or fused.
"""

from __future__ import annotations

import operator

from tinyaot.errors import ArgumentError
from tinyaot.shapes import as_int


class Generator:
    """A stream of random tensors. `seed`: the key, as a signed 64-bit integer; `draw`: the number
    of the next draw."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = 0
        self.draw = 0
        self.seedings = 0  # how often it was set: no trace may do that
        self.manual_seed(seed)

    def manual_seed(self, seed: int) -> Generator:
        """Start over from `seed`, an int from -2**63 to 2**64 - 1 (taken modulo 2**64).

        Raises ArgumentError for a seed out of range.
        """
        seed = as_int("manual_seed", seed, "the seed")
        if not -(2**63) <= seed < 2**64:
            raise ArgumentError(f"manual_seed: {seed} is not a seed; it must fit 64 bits")
        self.seed = seed - 2**64 if seed >= 2**63 else seed
        self.draw = 0
        self.seedings += 1
        return self

    def initial_seed(self) -> int:
        """The seed, as a non-negative number below 2**64."""
        return self.seed % 2**64

    def take(self, draws: int = 1) -> int:
        """Reserve the next `draws` draws; returns the number of the first."""
        base = self.draw
        self.draw = base + draws
        return base

    def get_state(self) -> tuple[int, int]:
        """Seed and draw: all there is to save."""
        return self.seed, self.draw

    def set_state(self, state: tuple[int, int]) -> None:
        """Go on from what `get_state` gave."""
        self.seed, self.draw = map(operator.index, state)
        self.seedings += 1

    def __repr__(self) -> str:
        return f"Generator(seed={self.initial_seed()}, draw={self.draw})"


generator = Generator()  # the one that dropout, rand and initialisation draw from


def manual_seed(seed: int) -> Generator:
    """Make every random number that follows repeat: seeds the default generator."""
    return generator.manual_seed(seed)
