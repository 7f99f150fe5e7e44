"""Fixtures."""

from __future__ import annotations

import os
from collections.abc import Iterator

# Tests that are not about a backend take the one without a compiler's wait.
os.environ.setdefault("TINYAOT_BACKEND", "numpy")

import pytest

from tests import agree
from tinyaot.backends import numpy as numpy_backend
from tinyaot.cost import NUMPY_RATES


@pytest.fixture(params=agree.BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test once on every backend that works here."""
    before, agree.chosen = agree.chosen, request.param
    yield request.param
    agree.chosen = before


@pytest.fixture(autouse=True)
def fixed_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decisions by the constants, and not by what this machine was measured to be."""
    monkeypatch.setattr(numpy_backend, "rates", lambda: NUMPY_RATES)
