"""Capture: run the user's function once under the tracer and write down all that a call must do.

Besides the Program itself a call has to find its inputs again (arguments, and state in reach),
return the right objects (an input itself, a view of it, results that share memory), put back
what was assigned to attributes, and leave `.grad` as the function left it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinyaot.assigned import Assigned, refuse_leaks
from tinyaot.errors import MutationError, TraceError
from tinyaot.halves import Uses
from tinyaot.ir import Output, Program, Value
from tinyaot.ops.core import mode, using
from tinyaot.overlap import overlapping, siblings
from tinyaot.results import Result, Results, freed_ops, is_dead, retains_grad, uses_of
from tinyaot.slots import Slot
from tinyaot.state import Reach, find_reach
from tinyaot.tensor import Chain, Edge, History, Tensor, base_of
from tinyaot.trace import TraceEngine
from tinyaot.traced import Lifted, NeedBases, NeedDepth
from tinyaot.tree import Place, leaves, map_tensors


@dataclass(frozen=True, slots=True)
class Argument:
    """A tensor argument: the position of the input that it is, or is a view of."""

    position: int
    views: Chain = ()


@dataclass(slots=True, eq=False)
class Capture:
    """A traced function: the Program, where its inputs come from, and what a call gives back."""

    program: Program
    inputs: list[Lifted]
    slots: dict[int, Slot]  # position of an input -> the place in reach that holds it
    twins: list[tuple[Slot, int]]  # the other places that hold the tensor of an input
    arguments: list[Argument]  # the tensor arguments, in call order
    results: list[Result]
    tree: Any  # the returned containers, with a Place in `results` for each tensor
    rebinds: list[tuple[Slot, int]]  # places to set to a result
    settings: list[tuple[Slot, Any]]  # places to set to a number, a flag, a string ...
    grads: list[tuple[int, int | None]]  # `.grad` of an input after the call: a result, or None
    by_grad: dict[int, int]  # inputs that are found as the `.grad` of another: which
    grads_read: dict[int, int | None]  # inputs whose `.grad` was read: which input it was, or None
    detached: list[int]  # inputs that were detach_ed, and may not be views
    reach: Reach
    draws: int  # random draws that a call takes
    whole_step: bool  # differentiates inside; otherwise the backward is joined to the tape
    recorded: frozenset[int]  # inputs that are written in a way that autograd records
    uses: list[Uses]  # by each differentiable program output
    dead: list[Uses]  # of what a backward inside used up ...
    dead_values: list[Value]  # ... which are these of the trace ...
    freed: frozenset[int]  # ... by freeing these saving ops
    dead_inputs: dict[int, int]  # inputs so written: which of `dead`
    leaves: set[int]  # user outputs that are leaves requiring grad
    inner_grads: list[tuple[int, int]]  # `.grad` of results
    retained: list[int]  # results that retain their `.grad`
    outside: list[tuple[int, int]]  # see TraceEngine.outside

    @property
    def joint(self) -> bool:
        """Whether there is a backward half: something to give gradients of, and for."""
        return not self.whole_step and any(x.requires_grad for x in self.inputs)


def capture(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], keep_grads: bool = False
) -> Capture:
    """Trace `fn(*args, **kwargs)`. Nothing is computed, and no state is changed.

    Raises TraceError where a value is needed (`bool`, `item`, data-dependent shapes) and where a
    traced tensor escapes to a place that cannot be written back.
    """
    bases: dict[History, Tensor] = {}
    depth = 0
    while True:
        try:
            return _attempt(fn, args, kwargs, keep_grads, bases, depth)
        except NeedBases as need:
            bases = bases | need.bases
        except NeedDepth as need:
            depth = need.depth


def _attempt(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    keep_grads: bool,
    bases: dict[History, Tensor],
    depth: int,
) -> Capture:
    engine = TraceEngine(bases, depth)
    named = _argument_leaves(fn, args, kwargs)
    tensors: list[Tensor] = []
    with using(engine):
        for path, leaf in named:
            if isinstance(leaf, np.ndarray):
                raise TraceError(
                    f"argument {path} is a NumPy array: pass a tensor (ta.tensor(array))"
                )
            if isinstance(leaf, Tensor):
                if not any(leaf is t for t in tensors):
                    engine.lift(leaf, "argument", path)
                tensors.append(leaf)
    reach = find_reach(fn, [(p, x) for p, x in named if _is_object(x)])
    grad_mode = mode.grad_enabled
    assigned = Assigned(reach)
    try:
        with using(engine):
            out = fn(*args, **kwargs)
    except BaseException:
        with suppress(MutationError):
            _check_bases(engine)  # without them the error may be none
        raise
    finally:
        mode.grad_enabled = grad_mode
        assigned.put_back(engine)
    assigned.check()
    with using(engine):
        found = _finish(engine, fn, out, tensors, reach, assigned, keep_grads)
    _check_bases(engine)
    return found


def _check_bases(engine: TraceEngine) -> None:
    """Raise NeedBases where a written input overlaps another, or is in its history, and the base
    of both is not lifted; MutationError where they are not views of one base."""
    lifted = [x for x in engine.lifted if isinstance(x.source, Tensor)]
    tensors: list[Tensor] = [x.source for x in lifted]
    written = [x.shadow is not None and x.shadow._data.root.written for x in lifted]
    bases: dict[History, Tensor] = {}
    for t, w, x in zip(tensors, written, lifted, strict=True):
        if w and not t.is_contiguous():
            # The passes know C order only: a view that is written is one of its base, then.
            if not t._chain:
                raise MutationError(
                    f"{x.name or 'an input'} is written, and its memory is not in C order: pass a "
                    f"contiguous() tensor",
                    locate=False,
                )
            bases[t._history] = base_of(t)
    recorded = [_written_edge(engine, x) is not None for x in lifted]
    for i, j in overlapping(tensors, written) + siblings(tensors, recorded):
        a, b = tensors[i], tensors[j]
        if a._history is not b._history:
            raise MutationError(
                f"{lifted[i].name or 'an input'} and {lifted[j].name or 'another'} share memory, "
                f"one of them is written, and they are not views of one tensor: pass one, and make "
                f"the other from it inside the function",
                locate=False,
            )
        bases[a._history] = base_of(a)
    for t in tensors:  # the base itself, where it is an input, too
        if t._history in bases and not t._chain:
            bases[t._history] = t
    if bases.keys() - engine.bases.keys():
        raise NeedBases(engine.bases | bases)


def _written_edge(engine: TraceEngine, lifted: Lifted) -> Edge:
    """The history of an input that was written, if autograd has recorded that."""
    assert lifted.shadow is not None
    edge = engine.edge(lifted.shadow) if lifted.shadow._data.root.written else None
    outside = edge is lifted.shadow or (isinstance(edge, tuple) and edge[0] is lifted.outer)
    return None if outside else edge


def _is_object(x: Any) -> bool:
    return not isinstance(x, (Tensor, Place, bool, int, float, str, type(None)))


def _argument_leaves(
    fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[tuple[str, Any]]:
    code = getattr(getattr(fn, "__func__", fn), "__code__", None)
    names = list(code.co_varnames[: code.co_argcount]) if code is not None else []
    if names and getattr(fn, "__self__", None) is not None:
        names = names[1:]
    found: list[tuple[str, Any]] = []
    for i, arg in enumerate(args):
        found += leaves(arg, names[i] if i < len(names) else f"arg{i}")
    for key, arg in kwargs.items():
        found += leaves(arg, key)
    return found


def _finish(
    engine: TraceEngine,
    fn: Any,
    out: Any,
    tensors: list[Tensor],
    reach: Reach,
    assigned: Assigned,
    keep_grads: bool,
) -> Capture:
    arguments = []
    for t in tensors:
        base = engine.bases[t._history] if t._chain and t._history in engine.bases else t
        position = next(i for i, x in enumerate(engine.lifted) if x.source is base)
        arguments.append(Argument(position, () if base is t else t._chain))
    results = Results(engine, [engine.resolve(t) for t in tensors])
    tree = map_tensors(out, lambda t: Place(results.add(t)), reach.objects)
    refuse_leaks([(path, x) for path, x in leaves(tree, "the result") if _is_object(x)])
    rebinds = [(slot, results.add(t)) for slot, t in assigned.tensors]
    grads: list[tuple[int, int | None]] = []
    for lifted, value in engine.grads.values():
        index = engine.lifted.index(lifted)
        assert lifted.shadow is not None
        if value is None:
            grads.append((index, None))
        elif value._data.root.input is not None:  # accumulated in place
            continue
        elif keep_grads or not lifted.shadow._data.root.written or value._data.root.filled:
            grads.append((index, results.add(value)))
        else:  # an update has used it, in a kernel of both
            grads.append((index, -1))
    inner_grads = [
        (results.index[id(t)], results.add(t._grad))
        for t in list(results.tensors)
        if isinstance(t._grad, Tensor)
    ]
    retained = [i for i, t in enumerate(results.tensors) if retains_grad(engine, t)]
    results.resolve()
    slots, twins, by_grad = _find_slots(engine, reach, arguments)
    sources = [x.source for x in engine.lifted if isinstance(x.source, Tensor)]
    reach.guard_rest({id(y) for x in sources for y in (x, x._data)})
    outputs, alive = list(results.outputs), list(results.edges)
    written: dict[int, Tensor] = {}  # inputs, where autograd recorded it
    dead_inputs: dict[int, int] = {}
    for position, lifted in enumerate(engine.lifted):
        assert lifted.shadow is not None
        if not lifted.shadow._data.root.written:
            continue
        edge = _written_edge(engine, lifted)
        lives = edge is not None and not is_dead(engine, edge)
        if edge is not None:
            written[position] = lifted.shadow
        if lives:
            alive.append(edge)
        elif edge is not None:
            dead_inputs[position] = len(results.dead)
            results.dead.append((lifted.value, edge))
        outputs.append(Output(lifted.value, "mutated", lifted.value.id, lifted.name, lives))
    used_up = [e for _, e in results.dead]
    engine.closed = True
    program = Program(
        getattr(fn, "__name__", type(fn).__name__),
        "trace",
        engine.inputs(),
        tuple(engine.builder.nodes),
        tuple(outputs),
        engine.builder.next_id,
    )
    return Capture(
        program,
        engine.lifted,
        slots,
        twins,
        arguments,
        results.results,
        tree,
        rebinds,
        assigned.plain,
        grads,
        by_grad,
        grads_read=_grads_read(engine),
        detached=[engine.lifted.index(x) for x in engine.detached_inputs],
        reach=reach,
        draws=engine.draws,
        whole_step=not any(o.requires_grad for o in outputs),
        recorded=frozenset(written),
        uses=[uses_of(engine, e, results.tensors, written) for e in alive],
        dead=[uses_of(engine, e, results.tensors, written) for e in used_up],
        dead_values=[v for v, _ in results.dead],
        freed=freed_ops([*alive, *used_up]),
        dead_inputs=dead_inputs,
        leaves=results.leaves,
        inner_grads=inner_grads,
        retained=retained,
        outside=[(engine.lifted.index(x), engine.lifted.index(y)) for x, y in engine.outside],
    )


def _find_slots(
    engine: TraceEngine, reach: Reach, arguments: list[Argument]
) -> tuple[dict[int, Slot], list[tuple[Slot, int]], dict[int, int]]:
    """Where each lifted tensor is kept, and its name for people; all other places that hold one,
    which have to go on holding the same; and which are found as the `.grad` of which other.

    A tensor that is nowhere in reach is a constant of the trace (documented: trace-time).
    """
    found: dict[int, Slot] = {}
    twins: list[tuple[Slot, int]] = []
    by_grad: dict[int, int] = {}
    owners = {k: position for position, k in _grads_read(engine).items()}
    positions = {a.position for a in arguments}
    for index, lifted in enumerate(engine.lifted):
        if not isinstance(lifted.source, Tensor):
            continue
        slots = reach.tensors.get(id(lifted.source))
        if slots is None:
            slots = reach.tensors.get(id(lifted.source._data))  # a NumPy array in reach
        if index in positions:
            twins += [(slot, index) for slot in slots or ()]
            continue
        if slots is not None:
            found[index] = slots[0]
            twins += [(slot, index) for slot in slots[1:]]
            # the plainest of its paths: model.weight rather than optimizer.params[0]
            plainest = min((s.path for s in slots), key=lambda path: (path.count("["), len(path)))
            lifted.name = lifted.name or plainest
        elif index in owners:
            by_grad[index] = owners[index]
            lifted.name = lifted.name or f"{engine.lifted[owners[index]].name}.grad"
        else:
            lifted.role = "constant"
    return found, twins, by_grad


def _grads_read(engine: TraceEngine) -> dict[int, int | None]:
    """Positions of the inputs whose `.grad` was read: of the input that it was, or None. One that
    was lifted as a view of its base is no input."""
    position = {id(x.source): i for i, x in enumerate(engine.lifted)}
    return {
        position[id(x.source)]: None if grad is None else position[id(grad)]
        for x, grad in engine.grads_read.values()
        if grad is None or id(grad) in position
    }
