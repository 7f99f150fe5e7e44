"""What each pass and each rule buys: training steps compiled with one part off at a time.

    python -m tests.bench.ablate                         mlp, gpt and cnn, on C
    python -m tests.bench.ablate -b c numpy -t 1 2
    python -m tests.bench.ablate --rules -p all          each rule of simplify, on all programs

A line is one program without one part of the compiler (`switches` says how it is left out), beside
the full one: the time of a step, timed in turn in one process, the planned peak, the kernels that a
step runs, the bytes that cross their borders, its FLOPs, and the nodes that code was made from.
Where the code is the same, nothing is timed. Steps without a part must train as the full one does.
At the end: on which programs each part made a figure worse. A part that did so nowhere has to show
a program where it does, or go.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import tinyaot as ta
from tests.bench.field import PROGRAMS
from tests.bench.switches import RULE_SWITCHES, SWITCHES, Switch
from tinyaot.backends import load_backend
from tinyaot.capture import Capture, capture
from tinyaot.compile import Options, loops_of, lower
from tinyaot.cost import NUMPY_RATES, node_cost
from tinyaot.memory import planned_peak

FULL = Switch("nothing")
SLOWER = 1.03  # a step that takes longer than that counts as slower
FIGURES = ("step", "peak", "saved", "kernels", "bytes", "flops", "nodes")
USUAL = ("mlp", "gpt", "cnn")


@dataclass
class Variant:
    """A program compiled without a part: its figures, and what runs it. `seconds`: of a step, by
    round; empty where the code is that of the full program."""

    off: str
    figures: dict[str, float]
    code: str
    executable: Any
    arrays: list[np.ndarray]
    seconds: list[float] = field(default_factory=list)

    def run(self, count: int) -> Any:
        for _ in range(count):
            found = self.executable.run("step", self.arrays)
        return found


def compiled(
    captured: Capture, backend: Any, switch: Switch, full: Variant | None, *, load: bool
) -> Variant:
    """The program lowered under `switch`; loaded, if it is to run and is not the full program's
    code."""
    rates = backend.rates() if hasattr(backend, "rates") else NUMPY_RATES
    with switch.off():
        options = Options(**switch.options)
        program, pipeline = lower(captured.program, options, False, rates, loops_of(backend))
        if hasattr(backend, "compile_program"):
            made = backend.compile_program(program)
            code, kernels, peak = made.source, made.kernels, made.memory["planned_peak"]
            code = re.sub(r"/\*.*?\*/|//[^\n]*", "", code, flags=re.S)  # comments
        else:
            kernels, peak = backend.Executable(program).kernels, planned_peak(program)
            code = "\n".join(k.source for k in kernels)
        executable = full.executable if full is not None else None
        if load and (full is None or code != full.code):
            executable = backend.Executable(program)
    figures = {
        "peak": peak,
        "saved": sum(d.numbers["saved_bytes"] for d in pipeline.decisions if d.kind == "partition"),
        "kernels": len(kernels),
        "bytes": sum(k.bytes for k in kernels),
        "flops": sum(node_cost(n).flops for n in program.nodes),
        "nodes": sum(len(n.body.nodes) if n.body else 1 for n in program.nodes),
    }
    return Variant(switch.name, figures, code, executable, arrays_of(captured))


def arrays_of(captured: Capture) -> list[np.ndarray]:
    """Fresh arrays for a run that overwrites some of them."""
    return [
        np.array(x.source._data)
        if isinstance(x.source, ta.Tensor)
        else np.array(getattr(*x.source), x.value.type.dtype.numpy)
        for x in captured.inputs
    ]


def measure(variants: Sequence[Variant], rounds: int, block: float) -> None:
    """Time a block of steps of each in turn, the order rotating; check that all train alike."""
    full, timed = variants[0], [v for v in variants if v.executable is not variants[0].executable]
    timed = [full, *timed]
    results = [v.run(4) for v in timed]
    for v, found in zip(timed, results, strict=True):
        for a, b in zip(results[0], found, strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-3, atol=1e-4, err_msg=v.off)
    began = time.perf_counter()
    full.run(3)
    count = max(1, int(block * 3 / (time.perf_counter() - began)))
    for i in range(rounds):
        at = i % len(timed)
        for v in timed[at:] + timed[:at]:
            began = time.perf_counter()
            v.run(count)
            v.seconds.append((time.perf_counter() - began) / count)


def rows(variants: Sequence[Variant]) -> Iterable[dict[str, Any]]:
    """The figures of each variant, by what is off; `step` as a ratio to the full program's."""
    full = variants[0]
    for v in variants:
        ratio = [a / b for a, b in zip(v.seconds, full.seconds)]
        step = statistics.median(ratio) if ratio else 1.0
        same = v is not full and v.code == full.code
        row: dict[str, Any] = {"off": v.off, "same": same, "step": step, **v.figures}
        worse = [f for f in FIGURES[1:] if v.figures[f] > full.figures[f]]
        row["worse"] = (["step"] if step > SLOWER else []) + worse
        row["better"] = [f for f in FIGURES[1:] if v.figures[f] < full.figures[f]]
        yield row


def show(title: str, table: Sequence[dict[str, Any]]) -> None:
    print(f"\n## {title}\n")
    print("| off | step | planned peak | saved | kernels | bytes moved | FLOPs | nodes |")
    print("|---|" + "---:|" * 7)
    for row in table:
        step = "same code" if row["same"] else f"{row['step']:.2f}x"
        cells = [f"{row[f]:,}" for f in FIGURES[1:]]
        print("| " + " | ".join([row["off"], step, *cells]) + " |", flush=True)


def summary(results: Sequence[dict[str, Any]]) -> None:
    """Of each part: where a figure is worse without it, and which."""
    worse: dict[str, dict[str, list[str]]] = {}
    for result in results:
        for row in result["rows"][1:]:
            on = worse.setdefault(row["off"], {})
            if row["worse"]:
                on[f"{result['program']} ({result['backend']})"] = row["worse"]
    print("\n## worse without it\n\n| off | programs | which |\n|---|---:|---|")
    for off, on in worse.items():
        programs = {name.split()[0] for name in on}
        which = "; ".join(f"{name}: {', '.join(figures)}" for name, figures in on.items())
        print(f"| {off} | {len(programs)} | {which or 'NOWHERE'} |")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("-p", "--programs", nargs="+", choices=[*PROGRAMS, "all"], default=USUAL)
    add("-b", "--backends", nargs="+", choices=["c", "numpy"], default=["c"])
    add("-t", "--threads", type=int, nargs="+", default=[2])
    add("--rules", action="store_true", help="each rule of simplify instead of each pass")
    add("--rounds", type=int, default=15, help="0: no times")
    add("--block", type=float, default=0.05, help="seconds of the full step in one timed block")
    add("-o", "--output", type=Path, help="append one JSON line for each table")
    args = parser.parse_args()
    if "all" in args.programs:
        args.programs = list(PROGRAMS)
    return args


def main() -> None:
    args = options()
    results = []
    for threads in args.threads:
        os.environ["TINYAOT_THREADS"] = str(threads)
        for name in args.programs:
            ta.manual_seed(0)
            step, batch = PROGRAMS[name]()
            captured = capture(step, batch, {})
            for backend_name in args.backends:
                backend = load_backend(backend_name)[1]
                load = args.rounds > 0
                full = compiled(captured, backend, FULL, None, load=load)
                variants = [full]
                for switch in RULE_SWITCHES if args.rules else SWITCHES:
                    if backend_name in switch.backends:
                        variants.append(compiled(captured, backend, switch, full, load=load))
                if args.rounds:
                    measure(variants, args.rounds, args.block)
                table = list(rows(variants))
                result = {"program": name, "backend": backend_name, "threads": threads}
                results.append({**result, "rules": args.rules, "rows": table})
                show(", ".join(f"{k} {v}" for k, v in result.items()), table)
                if args.output is not None:
                    with args.output.open("a") as file:
                        file.write(json.dumps(results[-1]) + "\n")
    summary(results)


if __name__ == "__main__":
    main()
