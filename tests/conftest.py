"""Fixtures."""

from __future__ import annotations

import os
from collections.abc import Iterator

# Tests that are not about a backend take the one without a compiler's wait.
os.environ.setdefault("TINYAOT_BACKEND", "numpy")

import pytest

from tests import agree


@pytest.fixture(params=agree.BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test once on every backend that works here."""
    before, agree.chosen = agree.chosen, request.param
    yield request.param
    agree.chosen = before
