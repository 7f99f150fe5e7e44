"""The measured peaks of one call: of the compiled program, and of the same function run eagerly.

Neither look leaves a trace: the program runs on copies, and what eager code may change (tensors in
reach, their `.grad`, attributes, the random state) is put back afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import numpy as np

from tinyaot.backends.measure import Allocations, measure_peak
from tinyaot.derivatives import grad
from tinyaot.functions.shape import clone
from tinyaot.ir import Program
from tinyaot.random import generator
from tinyaot.specialization import Bound, Specialization
from tinyaot.tensor import Tensor
from tinyaot.tree import leaves, map_tensors

Watch = TypeVar("Watch", bound=AbstractContextManager[Any])


def measure_call(
    fn: Callable[..., Any],
    found: Specialization,
    bound: Bound,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> dict[str, int]:
    """`measured_peak` and `eager_peak` of `fn(*args, **kwargs)`, in bytes beyond its inputs. A
    function of tensors is followed by its backward, with cotangents of one."""
    program = found.record.stages[-1].program
    return {
        "measured_peak": measure_peak(
            program, all_inputs(program, found.peek(bound)), found.record.backend
        ).peak,
        "eager_peak": run_eager(fn, found, bound, args, kwargs, Allocations()).peak,
    }


def all_inputs(program: Program, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """`arrays`, and ones for the cotangents that a function's backward takes besides."""
    given = iter(arrays)
    return [
        np.ones(i.value.type.shape, i.value.type.dtype.numpy)
        if i.role == "cotangent"
        else next(given)
        for i in program.inputs
    ]


def run_eager(
    fn: Callable[..., Any],
    found: Specialization,
    bound: Bound,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    watch: Watch,
) -> Watch:
    """Call `fn` eagerly, with its backward, inside the context manager `watch`; returns that."""
    leaf_of: dict[int, Tensor] = {}
    copies: dict[int, Tensor] = {}

    def copy(tensor: Tensor) -> Tensor:
        """A tensor like an argument, once for each: a leaf for a leaf, which its gradient is of."""
        if id(tensor) not in copies:
            leaf = leaf_of[id(tensor)] = clone(tensor.detach())
            if tensor.requires_grad:
                leaf.requires_grad_()
            copies[id(tensor)] = leaf if tensor.is_leaf else clone(leaf)
        return copies[id(tensor)]

    args, kwargs = map_tensors(args, copy), map_tensors(kwargs, copy)
    state = [x for x in bound[0] if isinstance(x, Tensor) and id(x) not in copies]
    with put_back(found, state), watch:
        result = fn(*args, **kwargs)
        if not found.captured.whole_step:
            outputs = [t for _, t in leaves(result) if isinstance(t, Tensor) and t.requires_grad]
            wanted = [t for t in (*leaf_of.values(), *state) if t.requires_grad and t.is_leaf]
            ones = [Tensor(np.ones(t.shape, t._data.dtype)) for t in outputs]
            gradients = grad(outputs, wanted, ones, allow_unused=True) if outputs and wanted else ()
            del gradients, ones
    return watch


@contextmanager
def put_back(found: Specialization, state: list[Tensor]) -> Iterator[None]:
    """Undo what a call does to tensors in reach, attributes and the random state."""
    values = [(t, t._data.copy(), t._grad) for t in state]
    captured = found.captured
    attributes = [(slot, slot.read()) for slot, _ in [*captured.rebinds, *captured.settings]]
    random = generator.get_state()
    try:
        yield
    finally:
        generator.set_state(random)
        for slot, value in attributes:
            slot.write(value)
        for tensor, data, gradient in values:
            if tensor._data.flags.writeable:
                np.copyto(tensor._data, data)
            tensor._grad = gradient
