"""A chunk of seeds in a process of its own: its memory, its libraries and its crash end with it."""

from __future__ import annotations

import multiprocessing
import warnings
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

from tests.fuzz.compare import Difference
from tests.fuzz.fuzz import fuzz_one, report
from tests.fuzz.generate import generate
from tests.fuzz.together import run_together

Found: TypeAlias = tuple[str, str, str]  # a verdict; the cause of a difference, and its report

PATIENCE = 90.0  # seconds for a program, and as many for ten more

_processes = multiprocessing.get_context("fork")


def fuzz_chunk(backend: str, every: int, seeds: range) -> list[Found]:
    """What was found for each seed; the stages of `every` n-th program are checked."""
    here, there = _processes.Pipe(duplex=False)
    worker = _processes.Process(target=_work, args=(there, backend, every, seeds))
    worker.start()
    there.close()
    found: list[Found] = []
    what = "hangs"
    if here.poll(PATIENCE * (1 + len(seeds) / 10)):
        with suppress(EOFError):
            found = here.recv()
        worker.join()
        what = f"crash: exit code {worker.exitcode}"
    worker.kill()
    worker.join()
    if found:
        return found
    if len(seeds) > 1:  # find out of what
        return [x for s in seeds for x in fuzz_chunk(backend, every, range(s, s + 1))]
    difference = Difference(what)
    return [("differ", difference.cause, report(generate(seeds[0], backend), difference))]


def _work(pipe: Any, backend: str, every: int, seeds: range) -> None:
    warnings.simplefilter("ignore")
    jobs = [partial(fuzz_one, seed, backend, seed % every == 0) for seed in seeds]
    found: list[Any] = run_together(jobs) if backend == "c" else [job() for job in jobs]
    pipe.send(
        [
            (verdict, failure[1].cause, report(*failure)) if failure else (verdict, "", "")
            for verdict, failure in found
        ]
    )
