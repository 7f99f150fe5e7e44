"""Seconds of one call, eager and compiled, and of each kernel of the compiled one.

No look leaves a trace, as in `measure`. The compiled program is timed on arrays that are bound
already, so without guards; its kernels in runs of their own, since a clock between them costs time.
What a steady call costs besides is timed with a step that does nothing.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from tinyaot.backends import load_backend
from tinyaot.backends.measure import run_whole
from tinyaot.guards import MISS
from tinyaot.measure import all_inputs, put_back, run_eager
from tinyaot.specialization import Bound, Specialization
from tinyaot.steady import guard_of, make_steady
from tinyaot.tensor import Tensor

TRIES, CALLS = 20, 50  # timings of the overhead, and calls in each
RUNS = 5  # timed, after one that is not; the median counts


class Stopwatch:
    """Context manager: `seconds` is how long it was open."""

    seconds = 0.0

    def __enter__(self) -> Stopwatch:
        self.began = time.perf_counter()
        return self

    def __exit__(self, *exc: object) -> None:
        self.seconds = time.perf_counter() - self.began


def time_call(
    fn: Callable[..., Any],
    call: Callable[..., Any],
    found: Specialization,
    bound: Bound,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[dict[str, float], list[float]]:
    """Median seconds of `eager` and `compiled` calls of `fn(*args, **kwargs)`, with what `overhead`
    of the compiled function `call` gives, and those of each kernel in the record's order. A
    function of tensors is followed by its backward."""
    program = found.record.stages[-1].program
    _, backend = load_backend(found.record.backend)
    arrays = all_inputs(program, found.peek(bound))
    given = {i.value.id: a.copy() for i, a in zip(program.inputs, arrays, strict=True)}

    def compiled(executable: Any) -> float:
        with Stopwatch() as watch:
            run_whole(executable, given)
        return watch.seconds

    plain, clocked = (backend.Executable(program, poison=False, clocked=c) for c in (False, True))
    whole, kernels = [], []
    for _ in range(RUNS + 1):
        whole.append(compiled(plain))
        compiled(clocked)
        kernels.append(clocked.kernel_seconds())
    eager = [
        run_eager(fn, found, bound, args, kwargs, Stopwatch()).seconds for _ in range(RUNS + 1)
    ]
    times = {"eager": statistics.median(eager[1:]), "compiled": statistics.median(whole[1:])}
    times |= overhead(call, found, bound, args, kwargs)
    return times, [statistics.median(runs) for runs in zip(*kernels[1:], strict=True)]


def overhead(
    call: Callable[..., Any],
    found: Specialization,
    bound: Bound,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> dict[str, float]:
    """Seconds of a steady call that are not the step's: `guards` alone, and `overhead`, which is
    all that the user's own `call(*args, **kwargs)` takes: to come to the guards, these, binding,
    the foreign call and the making of results. Empty for a call that is not steady, and without
    `overhead` where the backend has no step that does nothing."""
    make_steady(found, args, kwargs, bound)
    guard = guard_of(found, args, kwargs, bound)
    if guard is None or guard(args, kwargs) is MISS:
        return {}
    times = {"guards": _seconds(guard, (args, kwargs), {})}
    if found.captured.whole_step and hasattr(found.executable, "idle"):
        state = [x for x in bound[0] if isinstance(x, Tensor)]
        with put_back(found, state), found.executable.idle():
            times["overhead"] = _seconds(call, args, kwargs)
    return times


def _seconds(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """The least mean of some runs: it is microseconds, and what disturbs them only adds."""
    found = []
    for _ in range(TRIES):
        with Stopwatch() as watch:
            for _ in range(CALLS):
                call(*args, **kwargs)
        found.append(watch.seconds / CALLS)
    return min(found)
