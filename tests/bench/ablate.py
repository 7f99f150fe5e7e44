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
import os
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import tinyaot as ta
from tests.bench.field import PROGRAMS
from tests.bench.run import append, machine, plural
from tests.bench.switches import RULE_SWITCHES, SWITCHES, Switch
from tinyaot import passes
from tinyaot.backends import load_backend
from tinyaot.capture import Capture, capture
from tinyaot.cost import NUMPY_RATES, node_cost
from tinyaot.ir import Program
from tinyaot.memory import planned_peak
from tinyaot.pipeline import Options, loops_of, lower

FULL = Switch("nothing")
SLOWER = 1.03  # from this ratio on a step counts as slower, and as faster below its inverse
SHOWN = 4  # programs in the summary
KINDS = ("worse", "better")
MOST = 200  # steps in a block
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

    def run(self, count: int) -> list[np.ndarray]:
        """The outputs of the last of `count` steps from the start. (Thousands of steps on one batch
        would end in subnormal numbers, which processors are slow on.)"""
        now = [a.copy() for a in self.arrays]
        self.executable.run("step", now)
        began = time.perf_counter()
        for _ in range(count):
            found: list[np.ndarray] = self.executable.run("step", now)
        self.seconds.append((time.perf_counter() - began) / count)
        return found


def compiled(
    captured: Capture, backend: Any, switch: Switch, full: Variant | None, *, load: bool
) -> Variant:
    """The program lowered under `switch`; loaded, if it is to run and is not the full program's
    code."""
    rates = backend.rates() if hasattr(backend, "rates") else NUMPY_RATES
    with switch.off():
        options = Options(**switch.options)
        program, pipeline = lower(
            captured.program,
            options,
            False,
            rates,
            loops_of(backend),
            getattr(backend, "planned_peak", None),
        )
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


def simplified(captured: Capture, switch: Switch) -> Program:
    with switch.off():
        return passes.pipeline("functionalize,autodiff,simplify")(captured.program)


def variants_of(captured: Capture, backend_name: str, rules: bool, load: bool) -> list[Variant]:
    """The full program, and it without each part."""
    backend = load_backend(backend_name)[1]
    full = compiled(captured, backend, FULL, None, load=load)
    found, usual = [full], simplified(captured, FULL)
    for switch in RULE_SWITCHES if rules else SWITCHES:
        if rules and simplified(captured, switch) == usual:  # it has nothing to do here
            found.append(replace(full, off=switch.name, seconds=[]))
        elif backend_name in switch.backends:
            found.append(compiled(captured, backend, switch, full, load=load))
    return found


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
    full = variants[0]
    timed = [full, *(v for v in variants if v.executable is not full.executable)]
    results = [v.run(4) for v in timed]
    for v, found in zip(timed, results, strict=True):
        for a, b in zip(results[0], found, strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-3, atol=1e-4, err_msg=v.off)
    count = min(MOST, max(1, int(block / full.seconds[0])))
    for v in timed:
        v.seconds.clear()
    for i in range(rounds):
        at = i % len(timed)
        for v in timed[at:] + timed[:at]:
            v.run(count)


def rows(variants: Sequence[Variant]) -> Iterable[dict[str, Any]]:
    """The figures of each variant, by what is off; `step`, the least of the rounds, as a ratio to
    the full program's (None: not timed)."""
    full = variants[0]
    for v in variants:
        step = min(v.seconds) / min(full.seconds) if v.seconds else None
        same = v is not full and v.code == full.code
        row: dict[str, Any] = {"off": v.off, "same": same, "step": step, **v.figures}
        change = {f: v.figures[f] - full.figures[f] for f in FIGURES[1:]}
        if step is not None:
            row["worse"], row["better"] = ["step"] * (step > SLOWER), ["step"] * (step * SLOWER < 1)
        else:
            row["worse"], row["better"] = [], []
        row["worse"] += [f for f, x in change.items() if x > 0]
        row["better"] += [f for f, x in change.items() if x < 0]
        yield row


def show(title: str, table: Sequence[dict[str, Any]]) -> None:
    print(f"\n{title}\n")
    print("| off | step | planned peak | saved | kernels | bytes moved | FLOPs | nodes |")
    print("|---|" + "---:|" * 7)
    for row in table:
        step = "-" if row["step"] is None else f"{row['step']:.2f}x"
        step = "same code" if row["same"] else step
        cells = [f"{row[f]:,}" for f in FIGURES[1:]]
        print("| " + " | ".join([row["off"], step, *cells]) + " |", flush=True)


def summary(results: Sequence[dict[str, Any]], title: str = "## Summary") -> None:
    """Of each part: on how many programs there is other code without it, a worse figure, and a
    better one; and which are worse."""
    counts: dict[str, dict[str, set[str]]] = {}
    worse: dict[str, list[str]] = {}
    for result in results:
        where = f"{result['program']} ({result['backend']})"
        for row in result["rows"][1:]:
            found = counts.setdefault(row["off"], {"other": set(), "worse": set(), "better": set()})
            which = worse.setdefault(row["off"], [])
            for kind, is_so in (("other", not row["same"]), *((k, row[k]) for k in KINDS)):
                if is_so:
                    found[kind].add(result["program"])
            if row["worse"]:
                which.append(f"{where}: {', '.join(row['worse'])}")
    print(f"\n{title}, on {len({r['program'] for r in results})} programs\n")
    print("| off | other code | worse | better | what is worse |\n|---|---:|---:|---:|---|")
    for off, which in worse.items():
        if len(which) > SHOWN:
            which = [*which[:SHOWN], f"{len(which) - SHOWN} more"]
        numbers = [str(len(programs)) for programs in counts[off].values()]
        print("| " + " | ".join([off, *numbers, "; ".join(which)]) + " |")


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
    append(args.output, {"machine": machine("python -m tests.bench.ablate")})
    for threads in args.threads:
        os.environ["TINYAOT_THREADS"] = str(threads)
        for name in args.programs:
            ta.manual_seed(0)
            step, batch = PROGRAMS[name]()
            captured = capture(step, batch, {})
            for backend_name in args.backends:
                variants = variants_of(captured, backend_name, args.rules, args.rounds > 0)
                if args.rounds:
                    measure(variants, args.rounds, args.block)
                table = list(rows(variants))
                result = {"program": name, "backend": backend_name, "threads": threads}
                results.append({**result, "rules": args.rules, "rows": table})
                show(f"## {name}, {backend_name}, {plural(threads)}", table)
                append(args.output, results[-1])
    summary(results)


if __name__ == "__main__":
    main()
