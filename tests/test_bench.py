"""The benchmark harness runs, and tells training alike from training otherwise."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.bench import run
from tests.bench.workloads import WORKLOADS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

STEPS = 5
TINYAOT = ("tinyaot_eager", "tinyaot_numpy")


def trained_by_hand() -> dict[str, object]:
    """The steps of mlp_tiny with its derivatives worked out, in float64."""
    workload = WORKLOADS["mlp_tiny"]
    start, batch = workload.make()
    p = {k: v.astype(np.float64) for k, v in start.items()}
    x, y = batch["x"].astype(np.float64), batch["y"]
    rows, losses = np.arange(len(y)), []
    for _ in range(STEPS):
        h = np.maximum(x @ p["w0"] + p["b0"], 0)
        z = h @ p["w1"] + p["b1"]
        e = np.exp(z - z.max(1, keepdims=True))
        probabilities = e / e.sum(1, keepdims=True)
        losses.append(-np.log(probabilities[rows, y]).mean())
        probabilities[rows, y] -= 1
        dz = probabilities / len(y)
        dh = dz @ p["w1"].T * (h > 0)
        grads = {"w0": x.T @ dh, "b0": dh.sum(0), "w1": h.T @ dz, "b1": dz.sum(0)}
        for k, g in grads.items():
            p[k] -= workload.optimizer.lr * g
    moved = {k: float(np.linalg.norm(p[k] - start[k])) for k in p}
    return {"losses": losses, "moved": moved}


def test_tinyaot_trains_the_smallest_workload_like_the_formulas() -> None:
    args = argparse.Namespace(
        envs=Path(), build_timeout=60, check_steps=STEPS, rounds=1, seconds=0.01
    )
    results = run.run_workload("mlp_tiny", list(TINYAOT), args, threads=1)
    reference = trained_by_hand()
    for name in TINYAOT:
        result = results[name]
        assert "error" not in result, result["error"]
        assert run.mismatch(reference, result, 1e-5, 1e-4) == ""
        assert result["mismatch"] == "" and result["step_s"] > 0 and result["first_call_s"] > 0
        assert result["steady_kb"] > 0


def test_a_mismatch_names_what_differs() -> None:
    reference = trained_by_hand()
    later = {**reference, "losses": [*reference["losses"][:-1], 9.0]}
    assert run.mismatch(reference, later).startswith(f"loss {STEPS - 1}: 9 against")
    elsewhere = {**reference, "moved": {**reference["moved"], "b1": 9.0}}
    assert run.mismatch(reference, elsewhere).startswith("moved b1: 9 against")
    assert run.mismatch(reference, {**reference, "losses": [float("nan")] * STEPS})


def test_every_workload_counts_its_work() -> None:
    assert list(WORKLOADS) == run.ALL_WORKLOADS
    for workload in WORKLOADS.values():
        assert workload.gemm_flops() + workload.elementwise > 0
        assert workload.compulsory_bytes() > 0
