"""Rates are measured once and kept, and never trusted blindly."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from tinyaot.backends import rates
from tinyaot.cost import NUMPY_RATES, Rates


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TINYAOT_CACHE", str(tmp_path / "cache"))
    rates.numpy_rates.cache_clear()
    yield tmp_path / "cache"
    rates.numpy_rates.cache_clear()


def test_they_are_measured_once_and_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = rates.numpy_rates()
    assert first.origin.startswith("measured here")
    assert len(list(folder.glob("rates-*.json"))) == 1
    rates.numpy_rates.cache_clear()  # as in another process
    monkeypatch.setattr(rates, "measured", lambda: pytest.fail("measured again"))
    assert rates.numpy_rates() == first


def test_other_threads_other_rates(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for threads in ("1", "2"):
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", threads)
        rates.numpy_rates.cache_clear()
        rates.numpy_rates()
    assert len(list(folder.glob("rates-*.json"))) == 2


@pytest.mark.parametrize("text", ["", "nonsense", "{}", "[1]", '{"product": "fast"}'])
def test_a_damaged_file_is_measured_anew(folder: Path, text: str) -> None:
    rates.numpy_rates()
    (path,) = folder.glob("rates-*.json")
    path.write_text(text)
    rates.numpy_rates.cache_clear()
    assert rates.numpy_rates().origin.startswith("measured here")
    assert path.read_text() != text


def test_without_a_cache_the_constants_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINYAOT_CACHE", "0")
    rates.numpy_rates.cache_clear()
    assert rates.numpy_rates() is NUMPY_RATES
    rates.numpy_rates.cache_clear()


def test_every_figure_is_positive_and_credible() -> None:
    found: Rates = rates.measured()
    pairs = [(found.ops[op], ns) for op, ns in NUMPY_RATES.ops.items()]
    pairs += [
        (getattr(found, name), getattr(NUMPY_RATES, name))
        for name in ("product", "bandwidth", "product_start", "node", "element")
    ]
    for figure, constant in pairs:
        assert math.isfinite(figure) and constant / 30 < figure < constant * 30
