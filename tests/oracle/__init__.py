"""torch as the oracle: the same inputs, the same numbers. Skipped where torch is not installed."""

import pytest

pytest.importorskip("torch")
