"""Compare one program in every way it can run: eager, compiled, and interpreted at every stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import tinyaot as ta
from tinyaot.backends import why_unavailable
from tinyaot.tree import leaves

# What works here; tests that run on all of them use the fixture `backend` of conftest.py.
BACKENDS = [name for name in ("numpy", "c") if why_unavailable(name) is None]
chosen = "numpy"  # the backend of `build` and `check`, set by that fixture

RTOL, ATOL = 2e-5, 2e-6  # float32: a few ulps of sums of up to ~100 terms


@dataclass
class Ran:
    """What a run left behind."""

    outputs: list[Any]
    values: list[np.ndarray]
    flags: list[bool]
    gradients: list[np.ndarray | None]
    inputs: list[np.ndarray]


def make_inputs(arrays: Sequence[np.ndarray], nonleaf: bool) -> tuple[list[Any], list[Any]]:
    """Leaves that require grad (floats), and what the program is given: them, or `leaf * 1`."""
    sources = [ta.tensor(np.array(a), requires_grad=a.dtype.kind == "f") for a in arrays]
    given = [s * 1 if nonleaf and s.requires_grad else s for s in sources]
    return sources, given


def run(
    fn: Callable[..., Any],
    arrays: Sequence[np.ndarray],
    *,
    nonleaf: bool = False,
    backward: bool = True,
    seed: int = 0,
) -> Ran:
    """Call `fn` on fresh tensors and pull `sum_i (i + 1) * sum(out_i)` back."""
    ta.manual_seed(seed)
    sources, given = make_inputs(arrays, nonleaf)
    outputs = [x for _, x in leaves(fn(*given)) if isinstance(x, ta.Tensor)]
    flags = [o.requires_grad for o in outputs]
    values = [np.array(o.numpy()) for o in outputs]
    inputs = [np.array(g.numpy()) for g in given]
    if backward and any(flags):
        loss = sum((o * float(i + 1)).sum() for i, o in enumerate(outputs) if o.requires_grad)
        loss.backward()
    gradients = [None if s.grad is None else np.array(s.grad.numpy()) for s in sources]
    return Ran(outputs, values, flags, gradients, inputs)


def same(a: np.ndarray | None, b: np.ndarray | None, what: str) -> None:
    """Equal in type, and in value to float32 rounding."""
    if a is None or b is None:
        assert a is None and b is None, f"{what}: {a} and {b}"
        return
    assert a.dtype == b.dtype and a.shape == b.shape, (
        f"{what}: {a.dtype}{a.shape}, {b.dtype}{b.shape}"
    )
    np.testing.assert_allclose(a, b, rtol=RTOL, atol=ATOL, err_msg=what)


def agree(eager: Ran, compiled: Ran) -> None:
    """Both runs gave the same outputs, flags, gradients and mutated inputs."""
    assert eager.flags == compiled.flags
    for i, (a, b) in enumerate(zip(eager.values, compiled.values, strict=True)):
        same(a, b, f"output {i}")
    for i, (g, h) in enumerate(zip(eager.gradients, compiled.gradients, strict=True)):
        same(g, h, f"gradient {i}")
    for i, (a, b) in enumerate(zip(eager.inputs, compiled.inputs, strict=True)):
        same(a, b, f"input {i} afterwards")


def check_stages(compiled: Any, *args: Any) -> None:
    """Every stage verifies, prints and parses back to itself, and computes the same."""
    record = compiled.explain(*args)
    arrays = compiled.inputs(*args)
    first: dict[Any, np.ndarray] = {}
    for stage in record.stages:
        program = stage.program
        ta.verify(program)
        assert ta.parse(str(program)) == program, f"round trip of {stage.name}"
        given = [*arrays]
        for extra in program.inputs[len(arrays) :]:  # cotangents
            given.append(np.ones(extra.value.type.shape, extra.value.type.dtype.numpy))
        results = ta.interpret(program, *given)
        counts: dict[str, int] = {}
        for o, value in zip(program.outputs, results, strict=True):
            if o.role == "saved":
                continue
            key = (o.role, counts.setdefault(o.role, 0))
            counts[o.role] += 1
            if key in first:
                same(first[key], value, f"{key} at {stage.name}")
            else:
                first[key] = value


def check(
    fn: Callable[..., Any],
    *arrays: np.ndarray,
    nonleaf: bool = False,
    **options: Any,
) -> Ran:
    """Run eager and compiled (twice), compare them and all stages; give the eager run."""
    want = run(fn, arrays, nonleaf=nonleaf)
    fast = build(fn, **options)
    agree(want, run(fast, arrays, nonleaf=nonleaf))
    agree(want, run(fast, arrays, nonleaf=nonleaf))
    assert len(fast.records) == 1, "the second call was compiled again"
    check_stages(fast, *make_inputs(arrays, nonleaf)[1])
    check_step(fn, want, arrays, nonleaf, **options)
    return want


def check_step(
    fn: Callable[..., Any], want: Ran, arrays: Sequence[np.ndarray], nonleaf: bool, **options: Any
) -> None:
    """The same program inside a step that differentiates it: one program for both halves."""
    if not any(want.flags):
        return

    def step(*leaves_: Any) -> Any:
        given = [x * 1 if nonleaf and x.requires_grad else x for x in leaves_]
        outputs = [o for _, o in leaves(fn(*given)) if isinstance(o, ta.Tensor)]
        terms = [(o * float(i + 1)).sum() for i, o in enumerate(outputs) if o.requires_grad]
        wrt = [x for x in leaves_ if x.requires_grad]
        found = ta.grad(sum(terms), wrt, allow_unused=True)
        return [o.detach() for o in outputs], found, [x.detach() for x in given]

    fast = build(step, **options)
    for _ in range(2):
        ta.manual_seed(0)
        sources, _ = make_inputs(arrays, False)
        outputs, gradients, after = fast(*sources)
        for a, o in zip(want.values, outputs, strict=True):
            same(a, np.array(o.numpy()), "output of the step")
        found = iter(gradients)
        for source, g in zip(sources, want.gradients, strict=True):
            h = next(found) if source.requires_grad else None
            same(g, None if h is None else np.array(h.numpy()), "gradient of the step")
        for a, x in zip(want.inputs, after, strict=True):
            same(a, np.array(x.numpy()), "input after the step")
    assert len(fast.records) == 1


def build(fn: Callable[..., Any], **options: Any) -> Any:
    """`ta.compile` for the backend under test."""
    return ta.compile(fn, **{"backend": chosen, **options})


def f32(*values: Any) -> np.ndarray:
    """A float32 array of the values."""
    return np.array(values[0] if len(values) == 1 else values, np.float32)
