"""The random state: seeds and the count of draws."""

from __future__ import annotations

import pytest

import tinyaot as ta
from tinyaot.errors import ArgumentError
from tinyaot.random import Generator, generator, manual_seed


def test_seeds_are_64_bits() -> None:
    g = Generator()
    for seed in (0, 1, 2**63 - 1, 2**63, 2**64 - 1, -1, -(2**63)):
        g.manual_seed(seed)
        assert -(2**63) <= g.seed < 2**63
        assert g.initial_seed() == seed % 2**64
    for seed in (2**64, -(2**63) - 1):
        with pytest.raises(ArgumentError, match="64 bits"):
            g.manual_seed(seed)
    with pytest.raises(TypeError):
        g.manual_seed(1.5)  # type: ignore[arg-type]
    assert repr(g.manual_seed(-1)) == "Generator(seed=18446744073709551615, draw=0)"


def test_draws_are_counted_and_state_goes_on() -> None:
    g = Generator(3)
    assert (g.take(), g.take(4), g.take()) == (0, 1, 5)
    state = g.get_state()
    assert state == (3, 6)
    other = Generator()
    other.set_state(state)
    assert other.take() == 6 and other.seed == 3
    assert g.manual_seed(3).draw == 0


def test_the_default_generator_feeds_random_tensors() -> None:
    assert manual_seed(11) is generator
    state = generator.get_state()
    first = ta.rand(5).numpy()
    assert generator.draw > 0
    generator.set_state(state)
    assert (ta.rand(5).numpy() == first).all()
    assert (ta.rand(5).numpy() != first).any()
