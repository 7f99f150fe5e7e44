"""Fixtures."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import agree


@pytest.fixture(params=agree.BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test once on every backend that works here."""
    before, agree.chosen = agree.chosen, request.param
    yield request.param
    agree.chosen = before
