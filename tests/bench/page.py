"""Renders docs/benchmarks.md from what `run.py -o` and `ablate -o` wrote; no figure is typed.

    python -m tests.bench.page --run run.jsonl --eager eager.jsonl --first first.jsonl \
        --ablation ablation.jsonl > docs/benchmarks.md

--run: steps (workloads, variants); --eager, --first: the eager mode; first calls and memory
(default: the same); --ablation: passes and rules. A section whose file is not given says what
makes it. In a file the last line about a workload and a number of threads counts.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from tests.bench.ablate import FIGURES, USUAL, summary
from tests.bench.ablate import show as show_ablation
from tests.bench.run import ALL_WORKLOADS, HAND, best_peer, plural, seconds

Line: TypeAlias = dict[str, Any]
Row: TypeAlias = Sequence[str]
MINE, EAGER, HIPS = "tinyaot_c", "tinyaot_eager", "hips_autograd"
COMPILE = "torch_compile"  # the forms of torch.compile begin so
PEERS = "torch_eager torch_compile torch_compile_whole jax"
COMMANDS = {
    "run": f"python tests/bench/run.py -t 1 2 -p {PEERS} hips_autograd hand_c tinyaot_eager "
    "tinyaot_c -w all variants --limits -o run.jsonl",
    "eager": f"python tests/bench/run.py -t 1 2 -p {HIPS} {EAGER} -o eager.jsonl",
    "first": f"python tests/bench/run.py -p {PEERS} tinyaot_c --build-timeout 900 -o first.jsonl",
    "ablation": "python -m tests.bench.ablate -b c numpy -t 1 2 -o ablation.jsonl; "
    "python -m tests.bench.ablate --rules -p all -b c numpy -o ablation.jsonl",
}


def lines(path: Path | None) -> list[Line]:
    if path is None:
        return []
    return [json.loads(x) for x in path.read_text(encoding="utf-8").splitlines()]


def runs(found: Iterable[Line]) -> list[Line]:
    """The last line of each workload and number of threads, in the order of the first."""
    last = {(x["workload"], x["threads"]): x for x in found if "workload" in x}
    return list(last.values())


def table(head: Sequence[str], rows: Iterable[Row]) -> None:
    print("\n| " + " | ".join(head) + " |\n|---" + "|---:" * (len(head) - 1) + "|")
    for row in rows:
        print("| " + " | ".join(row) + " |")


def origin(found: Sequence[Line], which: str) -> bool:
    """What the figures below come from; False if there are none."""
    if not found:
        print(f"\nNot measured on a quiet machine yet: `{COMMANDS[which]}`.")
        return False
    alike: dict[str, list[tuple[str, float]]] = {}  # runs of one command for several workloads
    for m in (line["machine"] for line in found if "machine" in line):
        before, mark, rest = m["command"].partition(" -w ")
        workloads, dash, after = rest.partition(" -")
        text = (
            f"`{before}{mark}{'...' if mark else ''}{dash}{after}` on {m['cpu']}, {m['cores']} "
            f"cores, {m['system']}, Python {m['python']}, {m['date']}, commit "
            f"{m.get('commit') or 'unknown'}"
        )
        alike.setdefault(text, []).append((workloads, m["load"]))
    for text, group in alike.items():
        parts = [f"{w} {load:.1f}".strip() for w, load in group]
        print(f"\n{text}; load before it began: {', '.join(parts)}.")
    versions: dict[str, str] = {}
    for line in runs(found):
        for result in line["results"].values():
            versions |= {k: v for k, v in (result.get("versions") or {}).items() if k != "variant"}
    if versions:
        print("\nVersions: " + ", ".join(f"{k} {v}" for k, v in sorted(versions.items())) + ".")
    return True


# ---- figures ------------------------------------------------------------------------------------


def steps(run: Line) -> dict[str, float]:
    return {name: r["step_s"] for name, r in run["results"].items() if "step_s" in r}


def least(run: Line, field: str, prefix: str) -> float | None:
    """The least of a figure among the peers whose names begin so."""
    found = [r[field] for n, r in run["results"].items() if n.startswith(prefix) and field in r]
    return min(found, default=None)


def steady(run: Line, prefix: str) -> float | None:
    """MB in steady steps above what the process held before: the least of these peers."""
    kinds = [r for n, r in run["results"].items() if n.startswith(prefix) and "steady_kb" in r]
    return min(((r["steady_kb"] - r["baseline_kb"]) / 1024 for r in kinds), default=None)


def text(x: float | None, form: str = "{:.2f}") -> str:
    return "-" if x is None else form.format(x)


def time_text(x: float | None) -> str:
    return "-" if x is None else seconds(x)


def ratio(a: float | None, b: float | None) -> str:
    return "-" if a is None or not b else f"{a / b:.2f}"


# ---- sections -----------------------------------------------------------------------------------


def step_times(found: Sequence[Line]) -> None:
    print("\n## Step times\n\nMedians of a whole training step; torch.compile in its best form.")
    if not origin(found, "run"):
        return
    for threads in sorted({x["threads"] for x in runs(found)}):
        print(f"\n{plural(threads).capitalize()}:")
        rows = []
        for run in runs(found):
            if run["threads"] == threads and run["workload"] in ALL_WORKLOADS:
                s, best = steps(run), best_peer(run["results"])
                compiled = least(run, "step_s", COMPILE)
                given = [s.get("torch_eager"), compiled, *map(s.get, ("jax", HIPS, HAND, MINE))]
                against = [ratio(s.get(MINE), s.get(n or "")) for n in (best, HAND)]
                rows.append([run["workload"], *map(time_text, given), *against])
        head = "workload, torch eager, torch.compile, jax, HIPS autograd, hand C, tinyaot c"
        table([*head.split(", "), "/ best peer", "/ hand C"], rows)


def other_sizes(found: Sequence[Line]) -> None:
    print("\n## Other sizes\n\nBatch sizes, widths and depths that nothing was chosen for.\n")
    print("`a@b=c` is the workload `a` with its number `b` changed.")
    rows = []
    for run in runs(found):
        s, best = steps(run), best_peer(run["results"])
        if "@" in run["workload"] and MINE in s and best is not None:
            same = run["results"][MINE]["mismatch"] or "yes"
            given = [best, seconds(s[best]), seconds(s[MINE]), ratio(s[MINE], s[best]), same]
            rows.append([run["workload"], str(run["threads"]), *given])
    head = ["workload", "threads", "best peer", "its step", "tinyaot c", "ratio", "same training"]
    if rows or origin([], "run"):
        table(head, rows)


def eager(found: Sequence[Line]) -> None:
    print("\n## Eager\n\nThe eager mode beside HIPS autograd, on the same models.")
    rows = []
    for run in runs(found):
        s = steps(run)
        if EAGER in s and HIPS in s:
            given = [seconds(s[HIPS]), seconds(s[EAGER]), ratio(s[EAGER], s[HIPS])]
            rows.append([run["workload"], str(run["threads"]), *given])
    if origin(found if rows else [], "eager"):
        table(["workload", "threads", "HIPS autograd", "tinyaot eager", "ratio"], rows)


def first_calls(found: Sequence[Line]) -> None:
    print("\n## First calls\n")
    print("From building the step to the end of the first one, with empty compiler caches: seconds")
    print("by the clock, and of CPU time (of helper processes, only those that had ended).")
    if not origin(found, "first"):
        return
    rows = []
    for run in runs(found):
        prefixes = (COMPILE, "jax", MINE)
        wall = [least(run, "first_call_s", p) for p in prefixes]
        cpu = [least(run, "first_call_cpu_s", p) for p in prefixes]
        name = f"{run['workload']}, {plural(run['threads'])}"
        rows.append([name, *map(text, wall), ratio(wall[2], wall[0]), *map(text, cpu)])
    head = ["workload", "torch.compile", "jax", "tinyaot c", "tinyaot / torch.compile"]
    table([*head, "torch.compile CPU", "jax CPU", "tinyaot c CPU"], rows)


def memory(found: Sequence[Line]) -> None:
    print("\n## Memory\n")
    print("Peak resident memory during steps, above what the process held after importing its")
    print("framework and making the data, in MB.")
    if not found:
        origin(found, "first")
        return
    rows = []
    for run in runs(found):
        peaks = [steady(run, p) for p in ("torch_eager", COMPILE, "jax", HAND, MINE)]
        best = min((x for x in peaks[1:3] if x is not None), default=None)
        name = f"{run['workload']}, {plural(run['threads'])}"
        rows.append([name, *(text(x, "{:.0f}") for x in peaks), ratio(peaks[4], best)])
    head = ["workload", "torch eager", "torch.compile", "jax", "hand C", "tinyaot c"]
    table([*head, "/ better of compile and jax"], rows)


def ablation(found: Sequence[Line]) -> None:
    print("\n## What each pass buys\n")
    print("One part of the compiler off at a time: the time of a step against that of the full")
    print(f"compiler, timed in turn in one process, and the plan's {', '.join(FIGURES[1:])}.")
    if not origin(found, "ablation"):
        return
    key = "rules", "program", "backend", "threads"
    tables = {tuple(x[k] for k in key): x for x in found if "program" in x}.values()
    passes, rules = ([x for x in tables if x["rules"] is is_rules] for is_rules in (False, True))
    for x in passes:
        if x["program"] not in USUAL:
            continue  # in the summary
        show_ablation(f"### {x['program']}, {x['backend']}, {plural(x['threads'])}", x["rows"])
    for name, results in (("Passes", passes), ("Rules of simplify", rules)):
        if results:
            summary(results, f"### {name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in COMMANDS:
        parser.add_argument(f"--{name}", type=Path)
    args = parser.parse_args()
    run = lines(args.run)
    first = lines(args.first) or run
    print("# Benchmarks\n")
    print("Made by `python -m tests.bench.page` from what [the harness](../tests/bench/README.md)")
    print("measured. Times come from machines that others may use, too: trust ratios within a run.")
    step_times(run)
    other_sizes(run)
    eager(lines(args.eager) or run)
    first_calls(first)
    memory(first)
    ablation(lines(args.ablation))


if __name__ == "__main__":
    main()
