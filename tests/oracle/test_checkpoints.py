"""A checkpoint of torch goes on here: the same output, and the same next ten training steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import tinyaot as ta
from tests.agree import BACKENDS
from tests.oracle.models import OURS, TORCH, batch, cnn, mlp, transformer
from tests.oracle.names import torch_dtype
from tinyaot.nn import functional as F

STEPS = 10
# The gradient of the keys' bias is 0 up to rounding; a smaller eps blows that up to whole steps.
ADAMW = {"lr": 0.02, "eps": 1e-3, "weight_decay": 0.1}


def trained(model: Any, dtype: Any, path: Path) -> tuple[np.ndarray, list[float], dict[str, Any]]:
    """Train in torch for three steps and save model and optimizer to `path`; then its output, the
    losses of the next steps, and the state after them."""
    torch.manual_seed(1)
    kind = torch_dtype(dtype)
    m = model(TORCH).to(kind)
    optimizer = torch.optim.AdamW(m.parameters(), **ADAMW)

    def step(n: int) -> float:
        x, y = (torch.tensor(a) for a in batch(model, n))
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(m(x.to(kind) if x.is_floating_point() else x), y)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    for n in range(3):
        step(n)
    moments = optimizer.state_dict()["state"]
    save_file(
        {f"model.{k}": v for k, v in m.state_dict().items()}
        | {f"optimizer.{i}.{k}": v for i, s in moments.items() for k, v in s.items()},
        path,
    )
    x = torch.tensor(batch(model, 99)[0])
    m.eval()
    with torch.no_grad():
        output = m(x.to(kind) if x.is_floating_point() else x).numpy()
    m.train()
    losses = [step(n) for n in range(3, 3 + STEPS)]
    return output, losses, {k: v.numpy() for k, v in m.state_dict().items()}


@pytest.mark.parametrize("model", [mlp, transformer, cnn])
@pytest.mark.parametrize(
    ("mode", "dtype"),
    [("eager", ta.float64), ("eager", ta.float32), *((b, ta.float32) for b in BACKENDS)],
    ids=str,
)
def test_a_checkpoint_goes_on(model: Any, mode: str, dtype: Any, tmp_path: Path) -> None:
    output, losses, after = trained(model, dtype, tmp_path / "checkpoint.safetensors")
    loaded = ta.load(tmp_path / "checkpoint.safetensors")
    m = model(OURS).to(dtype)
    m.load_state_dict({k[6:]: v for k, v in loaded.items() if k.startswith("model.")})
    optimizer = ta.optim.AdamW(m.parameters(), **ADAMW)
    state = optimizer.state_dict()
    for number, moments in state["state"].items():
        for name in moments:
            moments[name] = loaded[f"optimizer.{number}.{name}"]
    optimizer.load_state_dict(state)
    tolerance = 1e-9 if dtype is ta.float64 else 1e-5

    m.eval()
    x = ta.tensor(batch(model, 99)[0])
    with ta.no_grad():
        got = m(x.to(dtype) if x.dtype.is_floating else x).numpy()
    np.testing.assert_allclose(got, output, rtol=tolerance, atol=tolerance)
    m.train()

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(m(x), y)
        loss.backward()
        optimizer.step()
        return loss

    run = step if mode == "eager" else ta.compile(step, backend=mode)
    found = []
    for n in range(3, 3 + STEPS):
        x, y = (ta.tensor(a) for a in batch(model, n))
        found.append(run(x.to(dtype) if x.dtype.is_floating else x, y).item())
    np.testing.assert_allclose(found, losses, rtol=10 * tolerance)
    assert m.state_dict().keys() == after.keys()
    for name, value in m.state_dict().items():
        np.testing.assert_allclose(
            value.numpy(), after[name], rtol=1e3 * tolerance, atol=100 * tolerance, err_msg=name
        )
