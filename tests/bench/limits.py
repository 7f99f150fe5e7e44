#!/usr/bin/env python3
"""The machine's limits: matrix product rate and memory bandwidth, per library.

Run in a peer's environment:  BENCH_THREADS=2 PYTHONPATH=. ENV/bin/python limits.py numpy|torch|jax
Prints one JSON line.  `run.py --limits` runs it for every library.
"""

import json
import os
import statistics
import sys
import time

import numpy as np
from workloads import WORKLOADS


def shapes():
    """1024 cubed and the distinct products of the GEMM-heavy workloads."""
    found = [(1024, 1024, 1024)]
    for name in ("mlp_tiny", "mlp_wide", "mlp_deep", "gpt_block", "gpt_long"):
        for count, m, n, k in WORKLOADS[name].gemms():
            if count == 1 and (m, n, k) not in found:
                found.append((m, n, k))
    return found


def rate(call, work, seconds=0.15):
    call()
    began = time.perf_counter()
    call()
    n = max(1, int(seconds / 3 / max(time.perf_counter() - began, 1e-7)))
    times = []
    for _ in range(3):
        began = time.perf_counter()
        for _ in range(n):
            call()
        times.append((time.perf_counter() - began) / n)
    return work / statistics.median(times) / 1e9


def numpy_calls():
    def gemm(a, b):
        out = a @ b
        return lambda: np.matmul(a, b, out=out)

    return gemm, lambda a, b: lambda: np.copyto(b, a)


def torch_calls():
    import torch

    torch.set_num_threads(int(os.environ["BENCH_THREADS"]))

    def gemm(a, b):
        a, b = torch.from_numpy(a), torch.from_numpy(b)
        out = a @ b
        return lambda: torch.mm(a, b, out=out)

    def copy(a, b):
        a, b = torch.from_numpy(a), torch.from_numpy(b)
        return lambda: b.copy_(a)

    return gemm, copy


def jax_calls():
    import jax
    import jax.numpy as jnp

    def gemm(a, b):
        a, b, f = jnp.array(a), jnp.array(b), jax.jit(jnp.matmul)
        return lambda: f(a, b).block_until_ready()

    def copy(a, b):
        a, f = jnp.array(a), jax.jit(lambda x: x + 1)
        return lambda: f(a).block_until_ready()

    return gemm, copy


def kernels():
    """Which BLAS and OpenMP libraries are loaded, if threadpoolctl is here to say."""
    try:
        import threadpoolctl
    except ImportError:
        return {}
    facts = ("internal_api", "version", "architecture", "threading_layer")
    pools = threadpoolctl.threadpool_info()
    return {"kernels": [{fact: pool.get(fact) for fact in facts} for pool in pools]}


def main():
    library = sys.argv[1]
    gemm, copy = {"numpy": numpy_calls, "torch": torch_calls, "jax": jax_calls}[library]()
    rng = np.random.default_rng(0)
    rates = {}
    for m, n, k in shapes():
        a, b = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n)))
        rates[f"{m}x{n}x{k}"] = round(rate(gemm(a, b), 2.0 * m * n * k), 1)
    a = np.ones(1 << 26, np.float32)
    bandwidth = {"copy_256MB": round(rate(copy(a, np.zeros_like(a)), 2 * a.nbytes), 1)}
    a = np.ones(1 << 22, np.float32)
    bandwidth["copy_16MB"] = round(rate(copy(a, np.zeros_like(a)), 2 * a.nbytes), 1)
    found = {
        "library": library,
        "threads": int(os.environ["BENCH_THREADS"]),
        "gflops": rates,
        "gb_per_s": bandwidth,
    }
    print(json.dumps(found | kernels()))


if __name__ == "__main__":
    main()
