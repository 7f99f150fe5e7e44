"""One C source as several: each region in one of them, and the same step from all together."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.trainer import Trainer
from tinyaot.backends import cpu
from tinyaot.codegen import split as splitting
from tinyaot.codegen.source import Function, Source, Step
from tinyaot.codegen.split import split

pytestmark = pytest.mark.skipif(cpu.unavailable() is not None, reason="no C compiler")


def test_every_region_is_in_one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Trainer(2).code()
    assert split(source, 1) == [source]
    assert split(source, 2) == [source], "too short to share out"
    monkeypatch.setattr(splitting, "ENOUGH", 100)
    parts = [part.text() for part in split(source, 3)]
    assert len(parts) == 3
    assert len(source.regions) >= 3
    for name in (r.name for r in source.regions):
        defined = [len(re.findall(rf"^[^ ].* {name}\([^)]*\) {{$", p, re.M)) for p in parts]
        declared = [len(re.findall(rf"^[^ ].* {name}\([^)]*\);$", p, re.M)) for p in parts]
        assert sorted(defined) == [0, 0, 1] and declared == [1 - defined[0], 0, 0]
    exported = [len(re.findall(r"^int tinyaot_step\(", p, re.M)) for p in parts]
    assert exported == [1, 0, 0]


def test_parts_are_even() -> None:
    kernels = {f"kernel_{i}": "  x;" * 40 for i in range(2)}
    regions = tuple(
        Function(f"region_{i}", "", "  x;", frozenset({f"kernel_{i % 2}"})) for i in range(8)
    )
    owner = splitting.balance(Source("", "", kernels, (Step("step", regions, (), ""),)), 2)
    assert owner == [0, 1] * 4 or owner == [1, 0] * 4, "each part makes one of the kernels"


def test_a_step_in_parts_is_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, parted = Trainer(2), Trainer(2)
    losses = [[whole.step().item() for _ in range(5)]]
    monkeypatch.setattr(splitting, "ENOUGH", 100)
    monkeypatch.setenv("TINYAOT_CACHE", "0")
    losses.append([parted.step().item() for _ in range(5)])
    assert losses[0] == losses[1]
    for p, q in zip(whole.net.parameters(), parted.net.parameters(), strict=True):
        np.testing.assert_array_equal(p.numpy(), q.numpy())
