"""The benchmark harness runs, and tells training alike from training otherwise."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import pytest

import tinyaot as ta
from tests.bench import ablate, context, page, run
from tests.bench.field import PROGRAMS
from tests.bench.switches import RULE_NAMES, RULE_SWITCHES, SWITCHES
from tests.bench.workloads import WORKLOADS, workload
from tinyaot.backends import cpu, load_backend
from tinyaot.capture import capture

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

needs_compiler = pytest.mark.skipif(cpu.unavailable() is not None, reason="no C compiler")
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
    for made in WORKLOADS.values():
        assert made.gemm_flops() + made.elementwise > 0
        assert made.compulsory_bytes() > 0


def test_a_workload_in_another_size_is_another_workload() -> None:
    parameters, batch = workload("mlp_tiny@batch=61,sizes=64x32x16x10").make()
    assert batch["x"].shape == (61, 64) and parameters["w2"].shape == (16, 10)
    assert len(workload("mlp_deep@depth=3").make()[0]) == 4 * 3 + 2
    usual = WORKLOADS["gpt_block"]
    assert workload("gpt_block@blocks=4").gemm_flops() < 2 * usual.gemm_flops()
    for name in run.VARIANTS:
        assert workload(name).name == name
    with pytest.raises(ValueError, match="no workload 'mlp'"):
        workload("mlp@batch=61")


# ---- ablation -----------------------------------------------------------------------------------


def tables(name: str, backend: str, *, rules: bool = False) -> dict[str, dict[str, object]]:
    """Figures by what is off; nothing runs."""
    ta.manual_seed(0)
    step, batch = PROGRAMS[name]()
    captured = capture(step, batch, {})
    variants = ablate.variants_of(captured, backend, rules, load=False)
    return {row["off"]: row for row in ablate.rows(variants)}


@needs_compiler
def test_without_a_part_figures_are_worse_where_it_has_something_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TINYAOT_THREADS", "2")
    found = tables("rotary", "c")
    expected = {
        "simplify: cse": {"nodes"},
        "simplify: pieces": {"bytes", "flops"},
        "partition: all recomputed": {"flops"},
        "layout: transposes are strides": {"peak", "kernels", "bytes"},
        "fuse": {"kernels", "bytes"},
        "fuse: regions grow": {"kernels", "bytes"},
        "fuse: cheap maps in every loop": {"kernels"},
        "plan: memory reused": {"peak"},
        "plan: updates in place": {"kernels", "bytes"},
    }
    for off, figures in expected.items():
        assert figures <= set(found[off]["worse"]), off  # type: ignore[call-overload]
    assert found["simplify: casts"]["same"] and found["nothing"]["worse"] == []


def test_numpy_plans_are_worse_without_their_parts() -> None:
    found = tables("uncertain", "numpy")
    for off in ("schedule", "plan: memory reused", "plan: in place"):
        assert "peak" in found[off]["worse"], off  # type: ignore[operator]


@needs_compiler
def test_a_part_that_was_off_is_on_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINYAOT_THREADS", "2")
    captured, backend = capture(*PROGRAMS["mlp"](), {}), load_backend("c")[1]
    before = ablate.compiled(captured, backend, ablate.FULL, None, load=False)
    for switch in (*SWITCHES, *RULE_SWITCHES):
        with switch.off():
            pass
    after = ablate.compiled(captured, backend, ablate.FULL, None, load=False)
    assert after.code == before.code and after.figures == before.figures


def test_each_rule_is_a_switch_of_its_own() -> None:
    found = tables("segmentation", "numpy", rules=True)
    assert len(found) == 1 + len(RULE_NAMES)
    assert found["casts: cast-chain"]["worse"] and found["algebra: logic"]["worse"]
    assert found["pieces: diagonal-of-scatter"]["same"]


def test_steps_without_a_part_are_run_side_by_side() -> None:
    ta.manual_seed(0)
    step, batch = PROGRAMS["careful"]()
    variants = ablate.variants_of(capture(step, batch, {}), "numpy", False, load=True)
    ablate.measure(variants, rounds=2, block=0.001)
    for row in list(ablate.rows(variants)):
        assert row["same"] or row["step"] > 0
    variants[1].arrays[0][...] += 1  # a step that trains otherwise is no variant
    with pytest.raises(AssertionError, match=variants[1].off):
        ablate.measure(variants, rounds=1, block=0.001)


# ---- the page -----------------------------------------------------------------------------------


def a_run(name: str, **steps: float) -> dict[str, object]:
    made = {"first_call_s": 1.0, "first_call_cpu_s": 1.0, "baseline_kb": 1024, "mismatch": ""}
    results = {
        peer: {**made, "step_s": s, "first_call_s": 100 * s, "steady_kb": 1024 * (1 + i)}
        for i, (peer, s) in enumerate(steps.items())
    }
    return {"workload": name, "threads": 1, "results": results}


def test_the_page_compares_with_the_best_peer(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [
        a_run("mlp_tiny", jax=0.5, tinyaot_c=0.9),  # measured again below
        a_run("mlp_tiny", torch_compile=0.5, jax=0.25, hand_c=0.1, tinyaot_c=0.125),
        a_run("mlp_tiny@batch=61", torch_eager=0.5, tinyaot_c=0.125),
    ]
    page.step_times([{"machine": run.machine("x")}, *runs])
    page.other_sizes(runs)
    page.first_calls(runs)
    page.memory(runs)
    out = capsys.readouterr().out
    assert "| 125.00 ms | 0.50 | 1.25 |" in out
    assert "| mlp_tiny@batch=61 | 1 | torch_eager | 500.00 ms | 125.00 ms | 0.25 | yes |" in out
    assert "| mlp_tiny, 1 thread | 50.00 | 25.00 | 12.50 | 0.25 |" in out
    assert "| mlp_tiny, 1 thread | - | 0 | 1 | 2 | 3 |" in out


def test_a_section_without_figures_says_how_to_make_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page.ablation([])
    assert "python -m tests.bench.ablate" in capsys.readouterr().out


@pytest.mark.skipif(cpu.unavailable() is not None, reason="no C compiler")
def test_memory_grows_as_the_context_does() -> None:
    """Causal attention has no value of all pairs of tokens in memory, forward or backward."""
    half, whole = context.planned(256), context.planned(512)
    assert whole.largest == 2 * half.largest < 4 * context.HEADS * 512**2
    assert whole.peak < 2 * half.peak
