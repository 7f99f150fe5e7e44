"""The hand-written C steps: what a compiler's output is measured against.

One function a workload, for these shapes and two threads at most; BENCH_VARIANT: more flags.
"""

import ctypes
import os
import subprocess
from pathlib import Path

import numpy as np
from peer_api import Trainer, serve

HERE = Path(__file__).resolve().parent
COMPILE = ["gcc", "-O3", "-march=native", "-ffast-math", "-fopenmp", "-shared", "-fPIC"]
GPT_LONG = ["-DBATCH=1", "-DT=1024", "-DD=128", "-DNH=4"]
ATTENTION = ["ln1_g", "ln1_b", "qkv_w", "qkv_b", "out_w", "out_b"]
MLP = ["ln2_g", "ln2_b", "up_w", "up_b", "down_w", "down_b"]
# In this order the parameters of a workload lie in one block, as the C structs say.
FLAT = {
    "mlp_wide": [f"{k}{i}" for i in range(3) for k in "wb"],
    "mlp_deep": [*(f"{k}{i}" for i in range(16) for k in "wbgs"), "w_out", "b_out"],
    "gpt": [
        *("tok", "pos"),
        *(f"{k}{i}" for i in range(2) for k in ATTENTION + MLP),
        *("lnf_g", "lnf_b", "head_w", "head_b"),
    ],
}


def pointer(array):
    return ctypes.c_void_p(array.ctypes.data)


class HandC(Trainer):
    def __init__(self, workload, params, batch, threads):
        if "@" in workload.name:
            raise NotImplementedError("written for the workload's own shapes")
        if workload.name == "cnn_small" and " avx512f " not in Path("/proc/cpuinfo").read_text():
            raise NotImplementedError("its convolutions are written for AVX-512")
        source = "gpt" if workload.name.startswith("gpt") else workload.name
        flags = os.environ["BENCH_VARIANT"].split()
        if workload.name == "gpt_long":
            flags += GPT_LONG
        library = Path.cwd() / f"{workload.name}.so"
        command = [*COMPILE, *flags, str(HERE / f"{source}.c"), "-o", str(library), "-lm"]
        subprocess.run(command, check=True)
        self.c = ctypes.CDLL(str(library))
        self.c.step.restype = ctypes.c_float
        self.count, self.p = 0, params
        arrays = list(params.values())
        if source in FLAT:
            flat = np.concatenate([params[k].ravel() for k in FLAT[source]])
            assert flat.size == self.c.param_floats()
            ends = np.cumsum([params[k].size for k in FLAT[source]])[:-1]
            parts = zip(FLAT[source], np.split(flat, ends), strict=True)
            self.p = {k: part.reshape(params[k].shape) for k, part in parts}
            states = workload.optimizer.states_per_param
            arrays = [flat, *(np.zeros_like(flat) for _ in range(states))]
        self.kept = [*batch.values(), *arrays]
        self.arguments = [pointer(a) for a in self.kept]
        self.counts = workload.optimizer.kind == "adamw"

    def step(self):
        if not self.counts:
            return self.c.step(*self.arguments)
        self.count += 1
        return self.c.step(*self.arguments, self.count)

    def params(self):
        return self.p


if __name__ == "__main__":
    serve(HandC, lambda: {"compiler": " ".join(COMPILE)})
