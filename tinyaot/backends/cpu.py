"""The C backend: a planned Program as one C function for each entry point, and how it is called.

`compile_program` fuses and emits; `CompiledC` is the result, as text and as facts for the record;
`Executable` builds it, keeps its buffers, and makes one foreign call a step. Pointers are bound
once, and again only when an array is another one.
"""

from __future__ import annotations

import ctypes
import threading
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from tinyaot.backends.binding import Binding
from tinyaot.backends.buffers import aligned_empty, fill_with_nan, wants_poison
from tinyaot.backends.clock import c_with_laps
from tinyaot.backends.machine import core_count, this_machine, thread_count
from tinyaot.backends.machine import rates as rates
from tinyaot.backends.runtime import load_pool, load_product, pack_bytes, start
from tinyaot.backends.runtime import prepare as prepare
from tinyaot.backends.toolchain import Build, find_compiler
from tinyaot.backends.watch import Watch, can_watch
from tinyaot.codegen.alike import fold
from tinyaot.codegen.c import Emitter
from tinyaot.codegen.nests import Check
from tinyaot.codegen.scratch import Scratch, scratch_of
from tinyaot.codegen.source import Source
from tinyaot.codegen.split import split
from tinyaot.errors import BackendError
from tinyaot.ir import Output, Program, Value
from tinyaot.passes.fuse import fusion_of
from tinyaot.passes.fusion.figures import bytes_inside, region_bytes, region_flops, tile_text
from tinyaot.passes.fusion.machine import Machine
from tinyaot.passes.fusion.plan import FusionPlan
from tinyaot.passes.fusion.storage import padded
from tinyaot.record import Buffer, Kernel

SIDE_BY_SIDE = 2  # compilers at most, and no more than cores


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """A region for the record: the ids of the values it makes, the bytes that cross its border and
    those that do not, the FLOPs that it runs, and the seconds that the model expects."""

    name: str
    entry: str
    members: tuple[int, ...]
    tile: str
    bytes: int
    inside: int
    flops: int
    seconds: float
    source: str


@dataclass(slots=True)
class EntryPoint:
    """One C function: `takes` its inputs in order, `gives` its outputs in order."""

    name: str
    program: Program
    takes: list[Value]
    gives: list[Output]
    plan: FusionPlan
    checks: list[Check]  # what its error slots report


@dataclass
class CompiledC:
    """C text of a program, with what the record wants to know."""

    program: Program
    threads: int
    code: Source
    entries: dict[str, EntryPoint]
    kernels: list[KernelInfo] = field(default_factory=list)

    @cached_property
    def source(self) -> str:
        """The C text."""
        return self.code.text()

    @property
    def products(self) -> set[int]:
        """Bytes of an element, of the products that it calls."""
        return {
            op.dtype.itemsize
            for e in self.entries.values()
            for op in e.plan.graph.work
            if op.form == "dot" and op.dtype.is_floating
        }

    @cached_property
    def scratch(self) -> Scratch:
        """What its shares have."""
        return scratch_of([e.plan for e in self.entries.values()], pack_bytes)

    @property
    def memory(self) -> dict[str, int]:
        """See `memory_of`."""
        return memory_of([e.plan for e in self.entries.values()], self.scratch.nbytes)


def memory_of(plans: Collection[FusionPlan], scratch: int) -> dict[str, int]:
    """Bytes beyond the inputs: of the arena, all shares' scratch, and the outputs and saved values
    of a call; `planned_peak` is their sum."""
    arena, outputs, saved = 0, 0, 0
    for plan in plans:
        arena = max(arena, plan.storage.arena)
        fresh = [o for _, o in plan.graph.forms.outputs if o.role != "mutated"]
        saved += sum(o.value.type.nbytes for o in fresh if o.role == "saved")
        outputs += sum(o.value.type.nbytes for o in fresh if o.role != "saved")
    peak = arena + scratch + outputs + saved
    return {"planned_peak": peak, "arena": arena, "scratch": scratch, "outputs": outputs}


def compile_program(
    program: Program, threads: int | None = None, machine: Machine | None = None
) -> CompiledC:
    """Emit a Program, fused already or now: one entry "step", or "forward" and "backward".

    threads: how many a step may use (default: `$TINYAOT_THREADS`, or the cores this process has).
    """
    threads = threads or thread_count()
    emitter = Emitter()
    fusion = fusion_of(program, machine or this_machine(), threads)
    entries: dict[str, EntryPoint] = {}
    kernels: list[KernelInfo] = []
    for name, part in fusion.entries.items():
        plan = fusion.plans[name]
        emitted = emitter.entry(name, plan)
        takes = [i.value for i in part.inputs]
        entries[name] = EntryPoint(name, part, takes, list(part.outputs), plan, emitted.checks)
        for region, function in zip(emitted.regions, emitted.step.regions, strict=True):
            kernels.append(
                KernelInfo(
                    function.name,
                    name,
                    tuple(op.value for op in region.members),
                    tile_text(region),
                    region_bytes(plan.graph, region, plan.schedule),
                    bytes_inside(region, plan.storage),
                    region_flops(plan.graph, region),
                    region.ns * 1e-9,
                    function.text(),
                )
            )
    return CompiledC(program, threads, emitter.source(), entries, kernels)


def loops() -> dict[str, Any]:
    """The options of fuse for code that is printed here."""
    return {"machine": this_machine(), "threads": thread_count()}


def planned_peak(program: Program) -> int:
    """Bytes that a call of a fused program will take, beyond its inputs."""
    plans = fusion_of(program, this_machine(), thread_count()).plans.values()
    return memory_of(plans, scratch_of(plans, pack_bytes).nbytes)["planned_peak"]


def unavailable() -> str | None:
    """Why there is no C backend here; None if there is."""
    try:
        find_compiler()
    except BackendError as error:
        return str(error)
    return None


# ---- running ------------------------------------------------------------------------------------


def load(source: Source, whole: bool = False) -> ctypes.CDLL:
    """The library of a compiled step, whose parts compile side by side unless it is `whole`."""
    most = min(SIDE_BY_SIDE, core_count())
    parts = [source] if whole else split(fold(source), most)
    return ctypes.CDLL(str(Build([p.text(marked=not whole) for p in parts]).path()))


class Executable:
    """A loaded program. One call runs at a time: the arena is shared, a lock guards it.

    `poison`: fill the arena and fresh memory with NaN before every run (default: whether
    TINYAOT_POISON is set). `threads`: as for `compile_program`. `spare`: bytes of arena and scratch
    beyond the plan's, for measuring. `clocked`: time every kernel of a run. Raises BackendError
    when there is no compiler, or for what C cannot do.
    """

    def __init__(
        self,
        program: Program,
        *,
        poison: bool | None = None,
        threads: int | None = None,
        spare: int = 0,
        clocked: bool = False,
    ) -> None:
        self.program = program
        self.compiled = compiled = compile_program(program, threads)
        self.poison = wants_poison() if poison is None else poison
        source = c_with_laps(compiled.code, compiled.threads) if clocked else compiled.code
        products = compiled.products
        for itemsize in products:
            start(itemsize)
        self.loaded = load(source, whole=clocked)
        for itemsize in products:
            load_product(itemsize)
        pool = ctypes.c_void_p(load_pool()[1])
        self.loaded.tinyaot_link(pool, ctypes.c_int64(compiled.scratch.share))
        self.lock = threading.Lock()
        memory = compiled.memory
        self.arena = aligned_empty(memory["arena"] + spare)
        self.scratch = aligned_empty(memory["scratch"] + spare)
        self.entries = {e.name: Binding(self, e) for e in compiled.entries.values()}

    @property
    def kernels(self) -> list[Kernel]:
        """The regions, for the record."""
        return [
            Kernel(k.name, k.source, k.members, k.bytes, k.flops, k.seconds)
            for k in self.compiled.kernels
        ]

    @property
    def buffers(self) -> list[Buffer]:
        """Where values that regions share live, and outputs: in use from kernel to kernel."""
        found: list[Buffer] = []
        done = 0  # kernels of the entries before
        for bound in self.entries.values():
            plan, last = bound.entry.plan, len(self.compiled.kernels) - 1
            level = [plan.level[r] for r in plan.regions]
            at = {r: done + i for i, r in enumerate(plan.regions)}
            for op, (nbytes, _, until) in plan.storage.sizes.items():
                end = done + bisect_right(level, until) - 1
                home, first = plan.storage.homes[op], at[plan.schedule.where[op][0]]
                nbytes -= padded(op.type.nbytes) - op.type.nbytes
                found.append(Buffer(op.value, "arena", home.at, nbytes, first, end, (op.value,)))
            for op, o in plan.graph.forms.outputs:
                if o.role != "mutated" and op in plan.schedule.where:
                    space, nbytes = "saved" if o.role == "saved" else "output", op.type.nbytes
                    first = at[plan.schedule.where[op][0]]
                    found.append(Buffer(op.value, space, 0, nbytes, first, last, (op.value,)))
            done += len(level)
        return found

    def kernel_seconds(self) -> list[float]:
        """What each of `kernels` took in the run since this was last asked, of its shares the
        longest, where `clocked`."""
        shape = self.compiled.threads, max(len(self.compiled.kernels), 1)
        laps = (ctypes.c_double * (shape[0] * shape[1])).in_dll(self.loaded, "tinyaot_laps")
        seconds = np.ctypeslib.as_array(laps).reshape(shape)
        longest = seconds.max(axis=0)[: len(self.compiled.kernels)].tolist()
        seconds[:] = 0
        return [float(x) for x in longest]

    @property
    def buffers_reused(self) -> list[np.ndarray]:
        """The memory that calls share."""
        return [self.arena, self.scratch]

    @property
    def memory(self) -> dict[str, int]:
        """See `CompiledC.memory`."""
        return self.compiled.memory

    def inputs(self, entry: str) -> list[Value]:
        """What `run(entry, ...)` takes."""
        return self.entries[entry].entry.takes

    def outputs(self, entry: str) -> list[Output]:
        """What `run(entry, ...)` gives."""
        return self.entries[entry].entry.gives

    def run(self, entry: str, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run once. Arrays must have the types that `inputs(entry)` says (not checked). Outputs are
        fresh, but a mutated one is the input's own array. Raises IndexingError for an index out of
        range."""
        with self.lock:
            if self.poison:
                fill_with_nan(self.arena)
                fill_with_nan(self.scratch)
            return self.entries[entry].run(inputs)

    def watch(self) -> Watch | None:
        """What takes the guards of a steady call, if C can look at them."""
        return None if self.poison or not can_watch() else Watch()

    def lines(
        self,
        entry: str,
        inputs: Sequence[np.ndarray],
        given: Mapping[int, str],
        watch: Watch,
        prepare: Sequence[str],
    ) -> tuple[list[str], dict[str, Any]] | None:
        """Lines of Python that run once, as `run` does, with `inputs` but for those that the text
        names in `given`, of the same types; and the objects that they name. They return MISS where
        a fact of `watch` does not hold, do what the lines `prepare` say where what is written was
        saved, and leave each fresh output in `u<position>`. None where there is more to do for a
        run."""
        bound = self.entries[entry]
        if bound.empty or not all(a.flags.c_contiguous for a in inputs):
            return None
        lines, names = bound.lines(inputs, given, watch, prepare)
        return ["with c_lock:", *(f"  {line}" for line in lines)], {**names, "c_lock": self.lock}

    @contextmanager
    def idle(self) -> Iterator[None]:
        """A while in which a run computes nothing: what is left is what else a call costs."""
        entries = list(self.entries.values())
        for bound in entries:
            bound.frame.step = bound.nothing
        try:
            yield
        finally:
            for bound in entries:
                bound.frame.step = bound.step
