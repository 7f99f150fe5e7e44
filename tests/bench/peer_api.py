"""What a peer must offer, and the loop that runs one peer in its own process.

A peer is a file that hands `serve` a function of (workload, params, batch, threads) that
gives a `Trainer` (the class itself will do).  The driver (`run.py`) speaks one JSON object
per line:

    {"cmd": "build", "name": WORKLOAD}       -> {"first_call_s", "baseline_kb", ...}
    {"cmd": "check", "steps": K}            -> {"losses": [...], "moved": {...}}
    {"cmd": "time", "seconds": S}           -> {"step_s": ...}
    {"cmd": "memory"}                       -> {"steady_kb"}

`build` covers everything up to and including the first finished step.
"""

import gc
import json
import os
import sys
import time
import traceback

import numpy as np
from workloads import workload


class Trainer:
    """One training step at a time; `step` may return before the work is done."""

    def step(self):
        """Start one step and return its loss in the peer's own form."""
        raise NotImplementedError

    def wait(self, loss):
        """Block until every step so far is done; return the loss as a float."""
        return float(loss)

    def params(self):
        """The current parameters as numpy arrays."""
        raise NotImplementedError


def proc_kb(field):
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(field + ":"):
                return int(line.split()[1])
    raise KeyError(field)


def reset_peak():
    with open("/proc/self/clear_refs", "w") as f:
        f.write("5")


def cpu_seconds():
    t = os.times()
    return t.user + t.system + t.children_user + t.children_system


class Worker:
    def __init__(self, build, threads):
        self.build_trainer, self.threads, self.trainer = build, threads, None
        self.losses, self.repeat = [], 1

    def build(self, name):
        self.workload = workload(name)
        self.start, batch = self.workload.make()
        baseline = proc_kb("VmRSS")
        params = {k: v.copy() for k, v in self.start.items()}
        reset_peak()
        began, cpu = time.perf_counter(), cpu_seconds()
        self.trainer = self.build_trainer(self.workload, params, batch, self.threads)
        self.losses = [self.trainer.wait(self.trainer.step())]
        first, cpu = time.perf_counter() - began, cpu_seconds() - cpu
        # some peers warm up in stages (tinygrad captures on the second call)
        began = time.perf_counter()
        for _ in range(3):
            self.losses.append(self.trainer.wait(self.trainer.step()))
        return {
            "first_call_s": first,
            "warmup3_s": time.perf_counter() - began,
            "first_call_cpu_s": cpu,
            "baseline_kb": baseline,
            "build_peak_kb": proc_kb("VmHWM"),
        }

    def check(self, steps):
        while len(self.losses) < steps:
            self.losses.append(self.trainer.wait(self.trainer.step()))
        now = self.trainer.params()
        moved = {
            k: float(np.linalg.norm(np.asarray(now[k], np.float64) - v))
            for k, v in self.start.items()
        }
        return {"losses": self.losses, "moved": moved}

    def block(self, count):
        step, began = self.trainer.step, time.perf_counter()
        for _ in range(count):
            loss = step()
        self.trainer.wait(loss)
        return (time.perf_counter() - began) / count

    def time(self, seconds):
        """One block of steps lasting about `seconds`, synchronised at its end."""
        pilot = self.block(self.repeat)
        self.repeat = max(1, min(20000, int(seconds / pilot)))
        return {"step_s": self.block(self.repeat), "steps": self.repeat}

    def memory(self):
        gc.collect()
        reset_peak()
        self.block(3)
        return {"steady_kb": proc_kb("VmHWM")}


def serve(build, versions):
    threads = int(os.environ["BENCH_THREADS"])
    # keep the protocol's channel clear of whatever a library prints
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    worker = Worker(build, threads)
    print(json.dumps({"versions": versions()}), file=channel)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(worker, request.pop("cmd"))(**request)
        except Exception:
            answer = {"error": traceback.format_exc()[-2000:]}
        print(json.dumps(answer), file=channel)
