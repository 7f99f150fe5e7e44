"""What is taken where saved bytes have a price: the fastest, or what plans a smaller peak."""

from __future__ import annotations

import math

import pytest

from tests.random_programs import random_program
from tests.test_partition import chain
from tinyaot.cost import Rates
from tinyaot.ir import Program
from tinyaot.passes import partition
from tinyaot.record import Decision


def test_of_fused_code_the_fastest_is_taken_unless_a_plan_is_smaller() -> None:
    cheap = Rates(1.0, 1.0, math.inf, 0.0, "a test: saving is cheap", saved=1e-12, inline=1e-12)
    peaks: list[int] = []

    def chosen(sign: int) -> tuple[str, int]:
        """By planned peaks that fall (-1) or rise (1) with what is saved: the reason and peak."""

        def peak_of(candidate: Program) -> int:
            saved = sum(o.value.type.nbytes for o in candidate.outputs_of("saved"))
            peaks.append(10**6 + sign * saved)
            return peaks[-1]

        log: list[Decision] = []
        made = partition(chain(), rates=cheap, time_slack=1e9, peak_of=peak_of, log=log)
        return next(d.reason for d in log if d.kind == "partition"), peak_of(made)

    assert chosen(1) == ("least-peak", min(peaks)) and len(set(peaks)) > 1
    peaks.clear()
    assert chosen(-1) == ("fastest", min(peaks)) and len(set(peaks)) > 1


@pytest.mark.parametrize("seed", [2, 5, 18, 25])
def test_without_slack_the_fastest_is_found(seed: int) -> None:
    """At the price of a byte it may be none of the corners that are looked at."""
    program = random_program(seed, joint=False)
    for saved in (m * 10.0**e for m in (1, 2, 5) for e in range(-12, -7)):
        rates = Rates(1e9, 1.0, math.inf, 0.0, "a test", saved=saved, inline=1e-12)
        log: list[Decision] = []
        partition(program, rates=rates, time_slack=0.0, log=log)
        (summary,) = (d for d in log if d.kind == "partition")
        told = (summary.numbers, *summary.alternatives)
        times = [t["extra_seconds"] + saved * t["saved_bytes"] for t in told]
        assert times[0] == pytest.approx(min(times), rel=1e-9)
