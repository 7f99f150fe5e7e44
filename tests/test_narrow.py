"""Narrow: the backward for some of the cotangents gives what the whole gives for zeros elsewhere,
and computes nothing that they alone would reach."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinyaot as ta
from tests.agree import BACKENDS
from tests.random_traces import Generator, build, random_inputs
from tinyaot import ops
from tinyaot.interpret import interpret
from tinyaot.ir import Program
from tinyaot.passes import pipeline
from tinyaot.passes.narrow import narrow
from tinyaot.passes.storage import storages_of
from tinyaot.shapes import TensorType, float64
from tinyaot.verify import verify

X = TensorType(float64, (3,))
JOINT = pipeline("functionalize,autodiff{joint=true},simplify,partition")


def run_narrowed(program: Program, used: list[int], arrays: list[np.ndarray]) -> dict[int, Any]:
    """The gradients of a narrowed backward, by input, for all of the whole program's inputs."""
    narrowed = narrow(program, used)
    verify(narrowed)
    storages = storages_of(narrowed)
    roots = [storages.root[o.value.id] for o in narrowed.outputs]
    assert len(set(roots)) == len(roots)  # gradients are accumulated in place later on
    values = {i.value.id: x for i, x in zip(program.inputs, arrays, strict=True)}
    given = interpret(program, *arrays)
    for output, x in zip(program.outputs, given, strict=True):
        if output.role == "saved":
            values[output.value.id] = x
    found = interpret(narrowed, *(values[i.value.id] for i in narrowed.inputs))
    return {int(o.name): x for o, x in zip(narrowed.outputs, found, strict=True)}


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed: int) -> None:
    program = JOINT(Generator(seed).program(steps=20, writes=seed % 2 == 0))
    seeds = program.inputs_of("cotangent")
    rng = np.random.default_rng(seed)
    used = [k for k in range(len(seeds)) if rng.random() < 0.5]
    arrays = random_inputs(program, seed)
    first = len(program.inputs) - len(seeds)
    for k in set(range(len(seeds))).difference(used):
        arrays[first + k] = np.zeros_like(arrays[first + k])
    narrowed = run_narrowed(program, used, arrays)
    for output, want in zip(program.outputs, interpret(program, *arrays), strict=True):
        if output.role == "gradient":
            assert output.of is not None
            got = narrowed.pop(output.of, np.zeros(()))
            np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-10)
    assert not narrowed


def test_sums_with_what_is_not_there() -> None:
    """Of x's three contributions one is left, and neither a sum nor another's rule."""
    program = JOINT(build(lambda x: (ops.sin(x), ops.exp(x), ops.tanh(x)), X))
    x = np.array([0.5, -1.0, 2.0])
    for k, slope in enumerate((np.cos(x), np.exp(x), 1 - np.tanh(x) ** 2)):
        assert "add" not in [n.op for n in narrow(program, [k]).nodes]
        found = run_narrowed(
            program, [k], [x, *(np.full(3, np.inf) if j != k else np.ones(3) for j in range(3))]
        )
        np.testing.assert_allclose(found[program.inputs[0].value.id], slope)


def test_a_gradient_that_is_not_there_is_no_output() -> None:
    program = JOINT(build(lambda x, y: (ops.mul(x, x), ops.mul(y, y)), X, X))
    narrowed = narrow(program, [1])
    assert [int(o.name) for o in narrowed.outputs] == [program.inputs[1].value.id]
    assert program.inputs[2].value.id not in {i.value.id for i in narrowed.inputs}


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_from_one_cotangent_share_no_memory(backend: str) -> None:
    """Two inputs of a sum get the same gradient, and each its own."""
    x, y, z = (ta.tensor([0.5, -1.0, 2.0], requires_grad=True) for _ in range(3))
    both = ta.compile(lambda a, b, c: (a + b, c - (a + b)), backend=backend)
    both(x, y, z)[0].sum().backward()
    assert x.grad is not None and y.grad is not None and z.grad is None
    x.grad.add_(1)
    assert (x.grad.tolist(), y.grad.tolist()) == ([2, 2, 2], [1, 1, 1])
