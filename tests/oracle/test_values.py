"""docs/values.md says what torch does: the same value and gradient, or something else."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.oracle.names import TORCH
from tests.values_table import ROWS, Row


def agrees(row: Row) -> bool:
    """Whether torch gives the row's value and gradient; False if it raises."""
    x = torch.tensor(row.x, requires_grad=True)
    try:
        y = row.function(ta=TORCH, F=torch.nn.functional)(x)
        y.sum().backward()
    except RuntimeError:
        return False
    close = {"rtol": 1e-12, "atol": 1e-30, "equal_nan": True}
    return np.allclose(y.detach().numpy(), row.value, **close) and np.allclose(
        x.grad.numpy(), row.gradient, **close
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.program)
def test_the_last_column(row: Row) -> None:
    if "open in PyTorch" not in row.torch:
        assert agrees(row) == (row.torch == "same")
