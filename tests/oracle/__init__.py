"""torch as the oracle: the same inputs, the same numbers. Skipped where torch is not installed."""

import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)  # small tensors: more threads would only wait for each other
