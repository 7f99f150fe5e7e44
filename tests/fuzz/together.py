"""The C programs of many fuzzed programs, compiled by one run of the compiler.

Each job runs in a thread, one at a time: until it needs a shared object, when the next job has its
turn. Once all wait or are done, their sources are compiled as one file, with the headers that they
share read once, and each job goes on with its part. The random generator, which jobs share, is put
back at every turn.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tinyaot import random
from tinyaot.backends import cpu
from tinyaot.backends.cpu import load
from tinyaot.backends.toolchain import build
from tinyaot.codegen.c import _INT_PRODUCT, header
from tinyaot.codegen.source import Source
from tinyaot.errors import BackendError

T = TypeVar("T")
HEADERS_END = "#define UNUSED(x) ((void)(x))\n"
# What a line at file scope defines, and an integer product.
DEFINED = re.compile(r"^(?![/}#\s])[^({=;\[]*?\b(\w+)\s*[({=;\[]", re.MULTILINE)
ATTRIBUTE = re.compile(r"__attribute__\(\(\w+\)\)")
SORTS = header("sort.h")  # its macro makes names that DEFINED does not see
PRODUCT = re.compile(r"^INT_PRODUCT\(.*\)$", re.MULTILINE)


class Part:
    """The functions of one source in a library of several."""

    def __init__(self, library: ctypes.CDLL, suffix: str) -> None:
        self.loaded, self.suffix = library, suffix

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loaded, name + self.suffix)


def compile_together(codes: Sequence[Source]) -> dict[str, Any]:
    """A library, or a part of one, for each source, by its text."""
    if len(codes) < 2:
        return {code.text(): load(code) for code in codes}
    sources = [code.text() for code in codes]
    headers, _, _ = sources[0].partition(HEADERS_END)
    products: dict[str, None] = {}
    bodies = []
    for i, source in enumerate(sources):
        own, mark, body = source.partition(HEADERS_END)
        if own != headers or not mark:
            raise AssertionError("C sources do not begin alike any more: see HEADERS_END")
        products.update(dict.fromkeys(PRODUCT.findall(body)))
        body = PRODUCT.sub("", body.replace(_INT_PRODUCT, "").replace(SORTS, ""))
        names = DEFINED.findall(ATTRIBUTE.sub("", body))
        known = re.compile(rf"\b({'|'.join(sorted(set(names)))})\b")
        bodies.append(known.sub(rf"\1__{i}", body))
    text = "\n".join([headers, HEADERS_END, SORTS, _INT_PRODUCT, *products, *bodies])
    try:
        library = ctypes.CDLL(str(build(text)))
    except BackendError as error:
        raise AssertionError(f"C sources do not fit together any more: {error}") from error
    return {s: Part(library, f"__{i}") for i, s in enumerate(sources)}


class Turns:
    """Runs jobs by turns, all waiting for the same compile."""

    def __init__(self, jobs: Sequence[Callable[[], Any]]) -> None:
        self.results: list[Any] = [None] * len(jobs)
        self.wanted: list[Source | None] = [None] * len(jobs)  # what a job waits for
        self.states = [random.generator.get_state()] * len(jobs)
        self.libraries: dict[str, Any] = {}
        self.turns = [threading.Event() for _ in jobs]
        self.back = threading.Event()
        self.threads = [
            threading.Thread(target=self._work, args=(i, job), daemon=True)
            for i, job in enumerate(jobs)
        ]
        self.of = {t: i for i, t in enumerate(self.threads)}

    def run(self) -> list[Any]:
        for thread in self.threads:
            thread.start()
        left = list(range(len(self.threads)))
        while left:
            for i in left:
                self._give_turn(i)
            left = [i for i in left if self.wanted[i] is not None]
            wanted = {s.text(): s for i in left if (s := self.wanted[i]) is not None}
            new = sorted(wanted.keys() - self.libraries.keys())
            self.libraries.update(compile_together([wanted[text] for text in new]))
        return self.results

    def _give_turn(self, i: int) -> None:
        random.generator.set_state(self.states[i])
        self.turns[i].set()
        self.back.wait()
        self.back.clear()
        self.states[i] = random.generator.get_state()

    def _work(self, i: int, job: Callable[[], Any]) -> None:
        self._wait(i)
        try:
            self.results[i] = job()
        except BaseException as error:
            self.results[i] = error
        self.wanted[i] = None
        self.back.set()

    def _wait(self, i: int) -> None:
        self.turns[i].wait()
        self.turns[i].clear()

    def load(self, source: Source, whole: bool = False) -> Any:
        """What stands for `cpu.load` in a job."""
        text = source.text()
        if text not in self.libraries:
            i = self.of[threading.current_thread()]
            self.wanted[i] = source
            self.back.set()
            self._wait(i)
            self.wanted[i] = None
        return self.libraries[text]


def run_together(jobs: Sequence[Callable[[], T]]) -> list[T]:
    """The results of the jobs, whose C programs are compiled together; an error is raised."""
    turns = Turns(jobs)
    kept, cpu.load = cpu.load, turns.load
    try:
        found = turns.run()
    finally:
        cpu.load = kept
    for x in found:
        if isinstance(x, BaseException):
            raise x
    return found
