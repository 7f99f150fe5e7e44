#!/usr/bin/env python3
"""Runs every peer on every workload side by side and prints the comparison.

    python3 run.py                          all peers, all workloads, 2 threads
    python3 run.py -w mlp_tiny -p torch_eager jax -t 1 --rounds 3
    python3 run.py -w mlp_tiny@batch=61 gpt_block@blocks=4    in other sizes (see workloads.py)
    python3 run.py -w all variants                            VARIANTS, below, too

Each (workload, peer) pair gets a process of its own in the peer's virtual
environment.  The processes of a workload are alive together and timed in
turn, in an order that rotates every round, so drift of a shared machine falls
on all of them alike.  Compiler caches start empty.

The environments are folders below --envs (or BENCH_ENVS, default
~/.cache/tinyaot-bench); tinyaot itself runs in that of the Python that runs this file.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import platform
import select
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
HERE_PYTHON = ""  # in place of an environment: the Python that runs this file
# peer -> (virtual environment, file below this folder, variant)
PEERS = {
    "torch_eager": ("torchcpu", "peers/torch_eager.py", ""),
    "torch_compile": ("torchcpu", "peers/torch_compile.py", "fused"),
    "torch_compile_split": ("torchcpu", "peers/torch_compile.py", "split"),
    "torch_compile_whole": ("torchcpu", "peers/torch_compile.py", "whole"),
    "torch_compile_autotune": ("torchcpu", "peers/torch_compile.py", "autotune"),
    "jax": ("jax", "peers/jax_jit.py", ""),
    "tinygrad": ("tinygrad", "peers/tinygrad_jit.py", ""),
    "pytensor": ("pytensor", "peers/pytensor_fn.py", ""),
    "hips_autograd": ("autograd", "peers/hips_autograd.py", ""),
    "hand_c": (HERE_PYTHON, "hand_c/peer.py", ""),
    "tinyaot_eager": (HERE_PYTHON, "peers/tinyaot_eager.py", ""),
    "tinyaot_numpy": (HERE_PYTHON, "peers/tinyaot_step.py", "numpy"),
    "tinyaot_c": (HERE_PYTHON, "peers/tinyaot_step.py", "c"),
}
ALL_WORKLOADS = ["mlp_tiny", "mlp_wide", "mlp_deep", "chain", "gpt_block", "gpt_long", "cnn_small"]
# Sizes that nothing was chosen for: a compiler should fall off no cliff there.
VARIANTS = [
    "mlp_tiny@batch=1",
    "mlp_tiny@batch=61",
    "mlp_tiny@batch=512",
    "mlp_tiny@sizes=64x128x128x128x128x10",
    "mlp_wide@batch=61",
    "mlp_wide@sizes=784x300x100x10",
    "mlp_deep@depth=4",
    "mlp_deep@depth=32",
    "mlp_deep@batch=61,width=100",
    "mlp_deep@batch=256,width=512,depth=4",
    "chain@rows=61",
    "chain@rows=1000,cols=1000",
    "gpt_block@blocks=1",
    "gpt_block@blocks=4",
    "gpt_block@B=3,T=61",
    "gpt_block@D=96,H=3,B=16",
    "gpt_long@T=512",
    "gpt_long@T=2048",
    "gpt_long@B=2,T=1000",
    "cnn_small@batch=61",
    "cnn_small@batch=8,side=32,c1=24,c2=48",
]
HAND = "hand_c"
OURS = ("tinyaot_", HAND)  # no peers: what is compared with them
QUIET = 0.3  # seconds for the previous peer's spinning threads to go to sleep
Answer = dict[str, Any]


# ---- one peer in its process --------------------------------------------------------------------


def interpreter(envs: Path, venv: str) -> str:
    return str(envs / venv / "bin" / "python") if venv else sys.executable


def environment(variant: str, threads: int, cache: str) -> dict[str, str]:
    """The process's variables: its thread counts, its caches, and nothing that tunes a peer."""
    tuning = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
    env = {k: v for k, v in os.environ.items() if k not in tuning and not k.startswith("TINYAOT_")}
    for name in ("OMP", "MKL", "OPENBLAS", "NUMBA"):
        env[f"{name}_NUM_THREADS"] = str(threads)
    return env | {
        "BENCH_THREADS": str(threads),
        "BENCH_VARIANT": variant,
        "TINYAOT_THREADS": str(threads),
        "TINYAOT_CACHE": f"{cache}/tinyaot",
        "NUM_CPU_THREADS": str(threads),
        "PYTHONPATH": str(HERE),
        "PYTHONDONTWRITEBYTECODE": "1",
        "JAX_PLATFORMS": "cpu",
        "DEV": "CPU",
        "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
        "CACHEDB": f"{cache}/tinygrad.db",
        "XDG_CACHE_HOME": f"{cache}/xdg",
        "PYTENSOR_FLAGS": f"base_compiledir={cache}/pytensor,floatX=float32",
    }


def pin(threads: int) -> None:
    """Keep this process to as many cores as it may have threads."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


class Peer:
    """A peer's process, asked one request a line (see `peer_api.py`)."""

    def __init__(self, name: str, envs: Path, threads: int, cache: str) -> None:
        venv, script, variant = PEERS[name]
        self.name = name
        cache = f"{cache}/{name}"  # its own, so that no peer finds another's compiled code
        os.makedirs(cache)
        self.log = Path(cache, "log")
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [interpreter(envs, venv), "-W", "ignore", str(HERE / script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=cache,
                env=environment(variant, threads, cache),
                preexec_fn=lambda: pin(threads),
            )
        self.versions = self.read(120).get("versions")

    def read(self, timeout: float) -> Answer:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], timeout)
        line = self.process.stdout.readline() if ready else ""
        if line:
            return json.loads(line)
        why = "process ended" if ready else "no answer in time"
        return {"error": f"{why}\n{self.log.read_text()[-1500:]}"}

    def ask(self, timeout: float = 600, **request: Any) -> Answer:
        assert self.process.stdin is not None
        if self.process.poll() is not None:
            return {"error": f"process ended\n{self.log.read_text()[-1500:]}"}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self.read(timeout)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


# ---- a workload ---------------------------------------------------------------------------------


def mismatch(reference: Answer, other: Answer, rtol: float = 2e-3, moved_rtol: float = 2e-2) -> str:
    """Why two peers did not train alike, or '' if they did."""
    for i, (a, b) in enumerate(zip(reference["losses"], other["losses"], strict=True)):
        if not abs(a - b) <= rtol * max(abs(a), 1e-3):
            return f"loss {i}: {b:.6g} against {a:.6g}"
    scale = max(reference["moved"].values())
    for k, a in reference["moved"].items():
        b = other["moved"][k]
        if not abs(a - b) <= moved_rtol * max(a, 1e-3 * scale):
            return f"moved {k}: {b:.6g} against {a:.6g}"
    return ""


def run_workload(
    workload: str, names: list[str], args: argparse.Namespace, threads: int
) -> dict[str, Answer]:
    """What every peer answered, with the median of its times and whether it trained alike."""
    results: dict[str, Answer] = {}
    peers = []
    with tempfile.TemporaryDirectory() as cache:
        for name in names:
            python = interpreter(args.envs, PEERS[name][0])
            if not Path(python).exists():
                results[name] = {"error": f"no environment {PEERS[name][0]!r}", "times": []}
                continue
            peer = Peer(name, args.envs, threads, cache)
            built = peer.ask(cmd="build", name=workload, timeout=args.build_timeout)
            if "error" not in built:
                built.update(peer.ask(cmd="check", steps=args.check_steps))
            results[name] = built | {"versions": peer.versions, "times": []}
            if "error" in built:
                print(f"  {name}: {last_line(built['error'])[:300]}", file=sys.stderr)
                peer.close()
            else:
                peers.append(peer)
        steal = stolen()
        for i in range(args.rounds):
            first = i % len(peers) if peers else 0
            for peer in peers[first:] + peers[:first]:
                time.sleep(QUIET)
                answer = peer.ask(cmd="time", seconds=args.seconds)
                if "error" in answer:
                    results[peer.name]["error"] = answer["error"]
                else:
                    results[peer.name]["times"].append(answer["step_s"])
        steal = stolen() - steal
        for peer in peers:
            results[peer.name].update(peer.ask(cmd="memory"), steal_ticks=steal)
            peer.close()
    good = [n for n in names if results[n].get("losses") and results[n]["times"]]
    for name in good:
        results[name]["step_s"] = statistics.median(results[name]["times"])
        results[name]["mismatch"] = mismatch(results[good[0]], results[name])
    return results


def stolen() -> int:
    """CPU time that other guests of the host took from this machine so far, in ticks."""
    with open("/proc/stat") as stat:
        return int(stat.readline().split()[8])


# ---- the machine's limits -----------------------------------------------------------------------


def show_limits(envs: Path, threads: int) -> Answer:
    """The machine's own bounds, measured by limits.py with each library."""
    print(f"\n## limits, {plural(threads)}\n")
    found = {}
    for library, venv in (("numpy", "autograd"), ("torch", "torchcpu"), ("jax", "jax")):
        python = interpreter(envs, venv)
        if not Path(python).exists():
            continue
        done = subprocess.run(
            [python, "-W", "ignore", str(HERE / "limits.py"), library],
            env=environment("", threads, tempfile.gettempdir()),
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: pin(threads),
        )
        if done.returncode == 0:
            answer = json.loads(done.stdout)
            found[library] = answer["gflops"] | answer["gb_per_s"]
            if "kernels" in answer:
                print(f"{library}: {answer['kernels']}\n")
        time.sleep(QUIET)
    print("| GFLOP/s of m x n x k, GB/s of copies | " + " | ".join(found) + " |")
    print("|---" * (1 + len(found)) + "|")
    for row in next(iter(found.values()), {}):
        print(f"| {row} | " + " | ".join(str(f[row]) for f in found.values()) + " |")
    return found


# ---- printing -----------------------------------------------------------------------------------

COLUMNS = (
    "peer",
    "median step",
    "min..max",
    "/ best torch.compile",
    "first call",
    "build peak MB",
    "steady peak MB",
    "last checked loss",
    "same training",
)


def plural(threads: int) -> str:
    return f"{threads} thread{'s' * (threads > 1)}"


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1]


def seconds(value: float) -> str:
    if value < 1e-3:
        return f"{value * 1e6:.0f} us"
    return f"{value * 1e3:.2f} ms" if value < 1 else f"{value:.2f} s"


def megabytes(result: Answer, field: str) -> str:
    """Memory above what the process held before its step was built."""
    return f"{(result[field] - result['baseline_kb']) / 1024:.0f}" if field in result else "-"


def show(workload: str, threads: int, results: dict[str, Answer]) -> None:
    timed = {name: r["step_s"] for name, r in results.items() if "step_s" in r}
    best = min((t for name, t in timed.items() if name.startswith("torch_compile")), default=None)
    print(f"\n## {workload}, {plural(threads)}\n")
    print("| " + " | ".join(COLUMNS) + " |")
    print("|---" * len(COLUMNS) + "|")
    for name, r in results.items():
        if name not in timed:
            why = last_line(r.get("error", "no time measured"))[:100]
            row = [name, f"not run: {why}"] + [""] * (len(COLUMNS) - 2)
        else:
            row = [
                name,
                seconds(timed[name]),
                f"{seconds(min(r['times']))}..{seconds(max(r['times']))}",
                f"{timed[name] / best:.2f}" if best else "-",
                f"{r['first_call_s']:.2f} s",
                megabytes(r, "build_peak_kb"),
                megabytes(r, "steady_kb"),
                f"{r['losses'][-1]:.6g}",
                r["mismatch"] or "yes",
            ]
        print("| " + " | ".join(row) + " |", flush=True)


def best_peer(results: dict[str, Answer]) -> str | None:
    """The fastest peer of a workload."""
    timed = {n: r["step_s"] for n, r in results.items() if "step_s" in r}
    peers = [n for n in timed if not n.startswith(OURS)]
    return min(peers, key=timed.__getitem__, default=None)


def show_ratios(runs: list[Answer]) -> None:
    """One line for each workload and tinyaot peer: its step against the best peer's, and against
    hand-written C."""
    print("\n## against the best peer\n")
    print("| workload | threads | peer | step | best | / best | / hand C |")
    print("|---" * 7 + "|")
    for run in runs:
        results = run["results"]
        steps = {n: r["step_s"] for n, r in results.items() if "step_s" in r}
        best = best_peer(results)
        for mine in (n for n in steps if n.startswith("tinyaot_")):
            ratios = [f"{steps[mine] / steps[n]:.2f}" if n in steps else "-" for n in (best, HAND)]
            row = [run["workload"], str(run["threads"]), mine, seconds(steps[mine]), best or "-"]
            print("| " + " | ".join(row + ratios) + " |")


def append(path: Path | None, line: Answer) -> None:
    if path is not None:
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")


# ---- the command line ---------------------------------------------------------------------------


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "-w",
        "--workloads",
        nargs="+",
        default=ALL_WORKLOADS,
        metavar="NAME[@KEY=NUMBER,...]",
        help=f"{', '.join(ALL_WORKLOADS)}, one of these in other sizes; all, variants, none",
    )
    add("-p", "--peers", nargs="+", default=list(PEERS), choices=[*PEERS, "none"])
    add(
        "-x",
        "--extra",
        nargs="+",
        default=[],
        metavar="NAME=ENV:FILE[:VARIANT]",
        help="peers kept elsewhere, run after the others (no ENV: this Python)",
    )
    add("-t", "--threads", nargs="+", type=int, default=[2])
    envs = os.environ.get("BENCH_ENVS", Path.home() / ".cache" / "tinyaot-bench")
    add("--envs", type=Path, default=Path(envs))
    add("--rounds", type=int, default=7)
    add("--seconds", type=float, default=0.5, help="length of one timed block")
    add("--check-steps", type=int, default=8)
    add("--build-timeout", type=float, default=240)
    add("--limits", action="store_true", help="measure the machine's limits first")
    add("-o", "--output", type=Path, help="append one JSON line per workload")
    args = parser.parse_args()
    for extra in args.extra:
        name, _, where = extra.partition("=")
        venv, file, variant = (where + "::").split(":")[:3]
        PEERS[name] = (venv, str(Path(file).resolve()), variant)
        args.peers.append(name)
    args.peers = [p for p in args.peers if p != "none"]
    named = {"all": ALL_WORKLOADS, "variants": VARIANTS, "none": []}
    args.workloads = [x for w in args.workloads for x in named.get(w, [w])]
    unknown = [w for w in args.workloads if w.partition("@")[0] not in ALL_WORKLOADS]
    if unknown:
        parser.error(f"no workload {unknown[0]!r}; there are {', '.join(ALL_WORKLOADS)}")
    args.envs = args.envs.resolve()
    return args


def machine(program: str) -> Answer:
    """What figures depend on, besides versions, and the command that makes them."""
    info = Path("/proc/cpuinfo").read_text()
    models = [x.partition(":")[2].strip() for x in info.splitlines() if x.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
        "load": os.getloadavg()[0],
        "commit": commit(),
        "command": " ".join(
            [program, *(a if a[:1] != "/" else Path(a).name for a in sys.argv[1:])]
        ),
    }


def commit() -> str:
    """Of tinyaot, where this is a working copy."""
    git = ["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:  # no git
        return ""


def main() -> None:
    args = options()
    if ours := find_spec("tinyaot"):  # with bytecode, as an installer leaves the other peers
        compileall.compile_dir(str(Path(str(ours.origin)).parent), quiet=2)
    append(args.output, {"machine": machine("python tests/bench/run.py")})
    runs = []
    for threads in args.threads:
        if args.limits:
            append(args.output, {"limits": show_limits(args.envs, threads), "threads": threads})
        for workload in args.workloads:
            results = run_workload(workload, args.peers, args, threads)
            show(workload, threads, results)
            runs.append({"workload": workload, "threads": threads, "results": results})
            append(args.output, runs[-1])
    show_ratios(runs)


if __name__ == "__main__":
    main()
