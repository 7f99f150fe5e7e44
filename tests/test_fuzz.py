"""Random user programs do the same eager and compiled, and the fuzzer finds what is broken."""

from __future__ import annotations

import warnings

import pytest

import tinyaot as ta
from tests.fuzz.compare import Difference, compare
from tests.fuzz.fuzz import fuzz_one, report
from tests.fuzz.program import Program


@pytest.mark.parametrize("first", range(0, 150, 15))
def test_eager_and_compiled_agree_on_random_programs(first):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(first, first + 15):
            _, failure = fuzz_one(seed, stages=seed % 5 == 0, seconds=5)
            assert failure is None, report(*failure)


def test_a_seed_gives_the_same_program():
    from tests.fuzz.generate import generate

    assert generate(7).text(True) == generate(7).text(True)


def test_a_wrong_rule_is_found_and_shrunk(monkeypatch):
    program = Program(
        setup=("x0 = ta.tensor([1.0, 2.0], requires_grad=True)",),
        parameters=("p0",),
        body=("v1 = p0 + 1", "v2 = ta.sin(v1)", "v3 = ta.tanh(p0)"),
        returns=("v2", "v3"),
        caller=("r0 = f(x0)", "pull(r0)"),
        options={"backend": "numpy"},
    )
    assert compare(program, stages=True) is None
    from tests.fuzz.shrink import shrink
    from tinyaot.passes import simplify as module

    def broken(program, **options):
        after = module(program, **options)
        nodes = [n for n in after.nodes if n.op == "sin"]
        wrong = {n.result.id: n.inputs[0] for n in nodes}
        outputs = tuple(
            type(o)(wrong.get(o.value.id, o.value), o.role, o.of, o.name, o.requires_grad)
            for o in after.outputs
        )
        return after.replace(outputs=outputs)

    monkeypatch.setattr(ta.passes, "simplify", broken)
    found = compare(program)
    assert isinstance(found, Difference) and found.kind == "values"
    small = shrink(
        program, lambda p: isinstance(d := compare(p), Difference) and d.kind == "values", 10
    )
    assert len(small.body) <= 2 and len(small.returns) == 1
    assert "ta.sin" in report(small, found)
