"""`compile`: a function that is traced and compiled once for each kind of call."""

from __future__ import annotations

import functools
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, Literal, cast, overload

import numpy as np

from tinyaot import collector, passes
from tinyaot.backends import load_backend
from tinyaot.capture import Capture, capture
from tinyaot.cost import NUMPY_RATES
from tinyaot.errors import (
    ArgumentError,
    BackendError,
    BudgetError,
    DTypeError,
    TinyaotError,
    TraceError,
)
from tinyaot.guards import MISS
from tinyaot.halves import Executable
from tinyaot.inside import Inside
from tinyaot.ir import Output, Program
from tinyaot.ops.core import mode
from tinyaot.pipeline import Options, Pipeline, loops_of, lower, place
from tinyaot.record import Record, Stage
from tinyaot.shapes import brief
from tinyaot.slots import COMPILED_METHODS
from tinyaot.specialization import Bound, Specialization
from tinyaot.steady import make_steady
from tinyaot.trace import TraceEngine

RECOMPILE_WARNING = 8  # specialisations of one function, from which on a warning says so once


class Compiled:
    """A function that is traced, compiled and cached for each kind of call.

    `records` holds what happened for every specialisation; `explain(*args)` compiles without
    running; `clear()` forgets. Other attributes are read and set on the function or module.
    """

    _own = ("_options", "_specializations", "_warned", "_retraces")

    def __init__(self, fn: Callable[..., Any], options: Options) -> None:
        self.__wrapped__ = fn
        self._options = options
        self._specializations: list[Specialization] = []
        self._warned = False
        self._retraces = os.environ.get("TINYAOT_RETRACE") == "1"
        functools.update_wrapper(self, fn, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for candidate in reversed(self._specializations):
            done = candidate.steady(args, kwargs)
            if done is not MISS:
                return done
        if isinstance(mode.engine, TraceEngine | Inside):  # in a trace or checkpoint: inlined
            return self.__wrapped__(*args, **kwargs)
        known = len(self._specializations)
        found, bound = self._find(args, kwargs)
        if self._retraces:
            self._retrace(found, args, kwargs)
        elif len(self._specializations) == known:  # it is called again
            make_steady(found, args, kwargs, bound)
        return found(bound)

    def _find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Specialization, Bound]:
        why = None
        for candidate in reversed(self._specializations):
            bound = candidate.bind(args, kwargs)
            if not isinstance(bound, str):
                return candidate, bound
            why = why or bound
        made = self._specialize(args, kwargs, why)
        if isinstance(bound := made.bind(args, kwargs), str):
            raise TinyaotError(
                f"{self._name}: the function changes what it reaches: {bound}; compiled code "
                f"sets attributes to tensors, numbers and strings alone: do the rest outside of it"
            )
        return made, bound

    @property
    def _name(self) -> str:
        return getattr(self.__wrapped__, "__name__", type(self.__wrapped__).__name__)

    @collector.paused()
    def _specialize(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], why: str | None
    ) -> Specialization:
        """Trace and compile for this kind of call."""
        name, backend = load_backend(self._options.backend)
        if hasattr(backend, "prepare"):
            backend.prepare()
        began = time.perf_counter()
        captured = capture(self.__wrapped__, args, kwargs, self._options.keep_grads)
        traced = time.perf_counter() - began
        try:
            pipeline, executable = self._build(captured, backend)
        except BackendError as refused:
            if self._options.backend != "auto" or name == "numpy":
                raise
            warnings.warn(f"{self._name} runs on numpy: {refused}", stacklevel=4)
            name, backend = load_backend("numpy")
            pipeline, executable = self._build(captured, backend)
        pipeline.stages[0].seconds += traced
        record = Record.of(captured.program.name, name, pipeline.stages, pipeline.decisions)
        record.kernels = list(executable.kernels)
        record.memory.update(executable.memory)
        peak = record.memory["planned_peak"]
        record.pareto = [
            replace(p, planned_peak=peak, is_exact=True) if p.chosen and peak is not None else p
            for p in record.pareto
        ]
        if executable.buffers is not None:
            record.buffers, record.clock = executable.buffers, "kernel"
        self._check_budget(record)
        record.recompiled_because = why
        partitioned = record.program("partition")

        def narrow(used: frozenset[int]) -> Executable:
            half = place(passes.narrow(partitioned, used), Pipeline(), loops_of(backend))
            return cast(Executable, backend.Executable(half))

        def linear(k: int) -> Executable:
            out = Output(captured.dead_values[k], "user", None, "", requires_grad=True)
            joint = passes.functionalize(captured.program.replace(outputs=(out,)))
            joint = passes.simplify(passes.differentiate(joint, joint=True))
            names = {captured.inputs[i].value.id: str(i) for i in captured.dead[k].linear}
            half = place(passes.linear(joint, names), Pipeline(), loops_of(backend))
            return cast(Executable, backend.Executable(half))

        made = Specialization(captured, executable, record, args, kwargs, narrow, linear)
        record.measurer, record.timer = self._measure, self._time
        if not self._options.record:  # only what it runs
            record.stages, record.decisions = record.stages[-1:], []
        self._specializations.append(made)
        if len(self._specializations) >= RECOMPILE_WARNING and not self._warned:
            self._warned = True
            warnings.warn(
                f"{self._name} was compiled {len(self._specializations)} times; last because: "
                f"{why}{' (the function itself sets it)' if captured.settings else ''}",
                stacklevel=4,
            )
        return made

    def _build(self, captured: Capture, backend: Any) -> tuple[Pipeline, Any]:
        """The planned program as the last of its stages, and what runs it."""
        rates = backend.rates() if hasattr(backend, "rates") else NUMPY_RATES
        program, pipeline = lower(
            captured.program,
            self._options,
            captured.joint,
            rates,
            loops_of(backend),
            getattr(backend, "planned_peak", None),
        )
        began = time.perf_counter()
        executable = backend.Executable(program)
        pipeline.stages.append(Stage("emit", program, time.perf_counter() - began))
        return pipeline, executable

    def _check_budget(self, record: Record) -> None:
        """A number of bytes is a hard bound, also where the backend plans memory of its own."""
        budget, peak = self._options.memory_budget, record.memory["planned_peak"]
        if isinstance(budget, int) and peak is not None and peak > budget:
            raise BudgetError(
                f"memory_budget={budget}: the {record.backend} backend plans {peak} bytes; that is "
                f"the least it found"
            )

    def _measure(self, *args: Any, **kwargs: Any) -> dict[str, int]:
        """What `record.measure(*args)` calls."""
        from tinyaot.measure import measure_call  # needs ctypes, which no compiled call does

        found, bound = self._find(args, kwargs)
        return measure_call(self.__wrapped__, found, bound, args, kwargs)

    def _time(self, *args: Any, **kwargs: Any) -> tuple[dict[str, float], list[float]]:
        """What `record.time(*args)` calls."""
        from tinyaot.timing import time_call

        found, bound = self._find(args, kwargs)
        return time_call(self.__wrapped__, self, found, bound, args, kwargs)

    def _retrace(
        self, found: Specialization, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """TINYAOT_RETRACE=1: what lies outside reach must not change what is traced, either."""
        now = capture(self.__wrapped__, args, kwargs, self._options.keep_grads).program
        if now != found.captured.program:
            raise TraceError(
                f"{self._name}: tracing it again gives another program: it depends on something "
                f"that is not reached from its arguments, closures and globals"
            )

    @property
    def records(self) -> list[Record]:
        """One Record for each specialisation, newest last."""
        return [s.record for s in self._specializations]

    def explain(self, *args: Any, **kwargs: Any) -> Record:
        """The Record of the specialisation for such a call. Compiles if needed; runs nothing."""
        return self._find(args, kwargs)[0].record

    def inputs(self, *args: Any, **kwargs: Any) -> list[np.ndarray]:
        """The arrays that the lifted Program takes for such a call, for `interpret`."""
        found, bound = self._find(args, kwargs)
        return [a.copy() for a in found.peek(bound)]

    def clear(self) -> None:
        """Forget every specialisation."""
        self._specializations.clear()

    def __getattr__(self, name: str) -> Any:
        if name == "__wrapped__":
            raise AttributeError(name)
        return getattr(self.__wrapped__, name)

    def __get__(self, instance: Any, owner: type) -> Any:
        """As a decorator of a method: bound to its object at each access."""
        if instance is None:
            return self
        if isinstance(mode.engine, TraceEngine | Inside):  # inlined; nothing is to be kept
            return self.__wrapped__.__get__(instance, owner)
        cache = own_methods(instance, self)
        if self not in cache:
            cache[self] = Compiled(self.__wrapped__.__get__(instance, owner), self._options)
        return cache[self]

    def __setattr__(self, name: str, value: Any) -> None:
        own = name.startswith("__") or name in self._own
        (object.__setattr__ if own else setattr)(self if own else self.__wrapped__, name, value)

    def __reduce__(self) -> Any:  # to copy and pickle it: without specialisations
        return Compiled, (self.__wrapped__, self._options)

    def __repr__(self) -> str:
        return f"<compiled {self._name}: {len(self._specializations)} specialisations>"


class OwnMethods(dict[Any, Any]):
    """An object's compiled methods. A copy of the object, or a pickled one, begins with none."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return OwnMethods, ()


def own_methods(owner: Any, method: Any) -> OwnMethods:
    """The compiled methods of an object or class, to look for one in. A shallow copy of an object
    gets others than those that it came with."""
    found: OwnMethods | None = vars(owner).get(COMPILED_METHODS)
    if found is None or (method in found and found[method].__wrapped__.__self__ is not owner):
        found = OwnMethods()
        if isinstance(owner, type):
            setattr(owner, COMPILED_METHODS, found)
        else:
            vars(owner)[COMPILED_METHODS] = found
    return found


# ---- what a user calls --------------------------------------------------------------------------


@overload
def compile(fn: Callable[..., Any], **options: Any) -> Compiled: ...
@overload
def compile(fn: None = None, **options: Any) -> Callable[[Callable[..., Any]], Compiled]: ...
def compile(
    fn: Any = None,
    *,
    backend: str = "auto",
    partition: Any = "min_cut",
    memory_budget: int | float | None = None,
    time_slack: float = 0.05,
    cost: Literal["time", "flops"] = "time",
    keep_grads: bool = False,
    record: bool = True,
    **unknown: Any,
) -> Any:
    """Compile a function of tensors, a training step, or a Module. Also a decorator.

    A *function of tensors* gives forward and backward halves that join the eager tape. A *training
    step*, which itself calls `backward()` and `opt.step()`, becomes one program.

    backend: "auto", "numpy", "c", "cupy"; partition: "min_cut", "save_all", "recompute_all", or a
    function `(Program) -> set of value ids to save`; memory_budget: None, bytes (int), or a
    fraction (float) between the least planned peak (0) and that of saving all (1); time_slack: how
    much slower than the fastest a plan may be to save memory; cost: "time" or "flops"; keep_grads:
    leave behind the `.grad` of what the function updates, too; record: keep stage programs and
    decisions.

    Raises ArgumentError (BudgetError) for a wrong option, and BackendError for a backend that
    cannot work here.
    """
    if unknown:
        known = ", ".join(f.name for f in fields(Options))
        raise ArgumentError(f"compile: no option {min(unknown)!r}; there are {known}")
    if fn is not None and not callable(fn):
        raise DTypeError(
            f"compile: needs a function or a Module, got {brief(fn)}; options go by name, as in "
            f"ta.compile(fn, backend='numpy')"
        )
    options = Options(backend, partition, memory_budget, time_slack, cost, keep_grads, record)
    options.check()
    load_backend(backend)
    if fn is None:
        return lambda f: Compiled(f, options)
    return Compiled(fn, options)


def trace(fn: Callable[..., Any], *example_args: Any, **kwargs: Any) -> Program:
    """The Program that `fn(*example_args)` writes down: views, writes and `grad` still in it."""
    wrapped = fn.__wrapped__ if isinstance(fn, Compiled) else fn
    if not callable(wrapped):
        raise DTypeError(f"trace: needs a function or a Module, got {brief(wrapped)}")
    return capture(wrapped, example_args, kwargs).program


__all__ = ["Compiled", "compile", "trace"]
