"""Random user programs do the same eager and compiled, and the fuzzer finds what is broken."""

from __future__ import annotations

import functools
import os
import warnings
from functools import partial

import pytest

import tinyaot as ta
from tests.agree import BACKENDS
from tests.fuzz import together, worker
from tests.fuzz.compare import Difference, compare
from tests.fuzz.fuzz import fuzz_one, report
from tests.fuzz.program import Program
from tinyaot.backends import why_unavailable


@pytest.mark.parametrize("first", range(0, 150, 15))
def test_eager_and_compiled_agree_on_random_programs(first, monkeypatch):
    monkeypatch.setenv("TINYAOT_POISON", str(first // 15 % 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(first, first + 15):
            _, failure = fuzz_one(seed, stages=seed % 5 == 0, seconds=5)
            assert failure is None, report(*failure)


@pytest.mark.skipif(why_unavailable("c") is not None, reason="no C compiler")
def test_c_programs_are_compiled_together(monkeypatch):
    monkeypatch.setenv("TINYAOT_POISON", "1")
    compiled = []
    compile_together = together.compile_together

    def counted(sources):
        compiled.append(sources)
        return compile_together(sources)

    monkeypatch.setattr(together, "compile_together", counted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        jobs = [partial(fuzz_one, seed, "c", seconds=0) for seed in range(16)]
        for _, failure in together.run_together(jobs):
            assert failure is None, report(*failure)
    assert len(compiled[0]) > 12 and len(compiled) < 8


@pytest.mark.skipif(why_unavailable("c") is not None, reason="no C compiler")
def test_sources_that_share_a_header_of_macros_are_compiled_together():
    def job(dim):
        return ta.compile(lambda x: ta.argsort(x, dim), backend="c")(ta.tensor([[3.0, 1.0]]))

    found = together.run_together([partial(job, dim) for dim in (0, 1)])
    assert [x.tolist() for x in found] == [[[0, 0]], [[1, 0]]]


def test_jobs_run_together_draw_what_they_draw_alone():
    def job(seed):
        ta.manual_seed(seed)
        program = Program(
            setup=(f"ta.manual_seed({seed})", "x0 = ta.ones(9)"),
            parameters=("p0",),
            body=("v = F.dropout(p0, 0.5)",),
            returns=("v", "v * 2"),
            caller=("r0 = f(x0)", "e = ta.rand(3)", "r1 = f(x0)"),
            options={"backend": BACKENDS[-1]},
        )
        return [program.run(True)[name] for name in ("r0", "e", "r1")]

    alone = [job(seed) for seed in (1, 2, 3)]
    found = together.run_together([partial(job, seed) for seed in (1, 2, 3)])
    assert str(found) == str(alone)


def test_the_program_that_crashes_is_found(monkeypatch):
    def crash_on_3(seed, *args, **kwargs):
        return os._exit(7) if seed == 3 else ("agree", None)

    monkeypatch.setattr(worker, "fuzz_one", crash_on_3)
    found = worker.fuzz_chunk("numpy", 10, range(2, 5))
    assert [verdict for verdict, _, _ in found] == ["agree", "differ", "agree"]
    assert found[1][1] == "crash: exit code #" and "seed 3" in found[1][2]


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
    from tinyaot.passes import PASSES

    simplify = PASSES["simplify"]

    @functools.wraps(simplify)
    def broken(program, **options):
        after = simplify(program, **options)
        nodes = [n for n in after.nodes if n.op == "sin"]
        wrong = {n.result.id: n.inputs[0] for n in nodes}
        outputs = tuple(
            type(o)(wrong.get(o.value.id, o.value), o.role, o.of, o.name, o.requires_grad)
            for o in after.outputs
        )
        return after.replace(outputs=outputs)

    monkeypatch.setitem(PASSES, "simplify", broken)
    found = compare(program)
    assert isinstance(found, Difference) and found.kind == "values"
    small = shrink(
        program, lambda p: isinstance(d := compare(p), Difference) and d.kind == "values", 10
    )
    assert len(small.body) <= 2 and len(small.returns) == 1
    assert "ta.sin" in report(small, found)


X = ("x0 = ta.tensor([1.0, 2.0, 3.0], requires_grad=True)", "a0 = x0 * 1")
CALL = ("r0 = f(a0)", "r1 = f(a0)", "pull(r0, r1)")
FOUND = {  # name: (body, returns, caller), with p0 = a0
    "a literal is new at every call": (("v = ta.tensor([1.0])", "v += 1"), ("v", "p0 * v"), CALL),
    "a literal is not handed out": (("v = ta.tensor([1.0])",), ("v", "p0 * v"), CALL),
    "a constant broadcast is memory": ((), ("ta.where(p0[0] > 0, p0[0], ta.zeros(2, 3))",), CALL),
    "an expanded output cannot be written": (
        (),
        ("(p0 * 2).expand(2, 3)",),
        (*CALL, "r0[0].add_(1)"),
    ),
    "a leaf made inside": ((), ("p0.detach().requires_grad_()",), CALL),
    "a view of a leaf made inside": (("v = p0.detach().requires_grad_()",), ("v[1:]", "v"), CALL),
    "a view of a hidden leaf": (("v = p0.detach().requires_grad_()",), ("v[1:]",), CALL),
    "... of an intermediate that became one": (
        ("v = p0.detach().clone().requires_grad_()",),
        ("v.reshape(3, 1)",),
        (*CALL, "r0[0].mul_(0.5)"),
    ),
    "a detached alias that is written": (("v = p0.detach()", "v[0] = p0[1]"), ("v", "v[1:]"), CALL),
    "... of an intermediate": (("y = p0 * 2", "v = y.detach()", "v[0] = p0[1]"), ("y", "v"), CALL),
    "its part only": (("v = p0.detach()[...]", "v[None, 0] += p0[1]"), ("v[:1]",), CALL),
    "an argument in a new attribute": (("box.t = p0",), (), CALL),
    "an argument in an old attribute": (("v = box.s * 2", "box.s = p0"), ("v",), CALL),
    "detach_ of a tensor without history": ((), ("c0.detach_()",), CALL),
    "a row of an expanded tensor": (("v = p0.expand(2, 3)", "v[1, 0] = 5.0"), ("v",), CALL),
    "... under no_grad": (("with ta.no_grad():\n    w.expand(2, 3).T[1].mul_(3)",), ("p0",), CALL),
    "an empty view of a leaf": (("w[1:1].clamp_(-1, 1)",), ("p0 * 2",), CALL),
    "a crop of more than there is": ((), ("ta.pad(p0[1:1], (-1, 2))",), CALL),
    "backward twice without saved values": ((), ("-p0",), ("r0 = f(a0)", "pull(r0)", "pull(r0)")),
    "outputs are used up apart": (
        (),
        ("p0 * w", "p0 * c0"),
        ("r0 = f(a0)", "pull(r0[0])", "pull(r0[1])"),
    ),
    "no cotangent is not zeros": ((), ("p0 * 2", "ta.log(p0 - 1)"), ("r0 = f(a0)", "pull(r0[0])")),
    "inputs that a backward does not reach": (
        (),
        ("p0 * 2", "w * 3"),
        ("r0 = f(a0)", "pull(r0[1])"),
    ),
    "grad of what is not reached uses nothing up": (
        (),
        ("p0 * p0", "w * w"),
        ("r0 = f(a0)", "d = ta.grad(total(r0[1]), [x0], allow_unused=True)", "pull(r0)"),
    ),
    "gradients of hidden leaves only": (("v = c0.clone().requires_grad_()",), ("v * v",), CALL),
    "the gradient of a leaf made inside": (
        ("v = w.detach().requires_grad_()", "(v * v * w).sum().backward()"),
        ("v",),
        CALL,
    ),
    "written with what was used up": (
        ("y = w * w", "(y * y).sum().backward()", "p0[0] = y[0]"),
        ("p0 * 2",),
        CALL,
    ),
    "the used up by an input that was written on the way": (
        ("c0[:] = w * w", "y = c0 * w", "y.sum().backward()"),
        ("y",),
        ("r0 = f(a0)", "d = ta.grad(total(r0), [c0], allow_unused=True)"),
    ),
    "the graph of a gradient is used up": (
        ("v, = ta.grad((w * w).sum(), [w], create_graph=True)",),
        ("v",),
        ("r0 = f(a0)", "d = ta.grad(total(r0), [w])", "e = ta.grad(total(r0), [w])"),
    ),
    "what reads nothing saved is never used up": (
        ("y = (w * w).sum() + (p0[1:] * 1).sum()", "y.backward()"),
        ("y",),
        ("r0 = f(x0)", "d = ta.grad(total(r0), [x0])", "e = ta.grad(total(r0), [x0])"),
    ),
    "... beside what was": (
        ("y = w * w + p0", "y.sum().backward()"),
        ("y[1:]", "p0 * w", "y"),
        ("r0 = f(x0)", "d = ta.grad(total(r0), [x0])", "pull(r0[1])", "pull(r0[0])"),
    ),
    "... and is a view": (
        ("y = w * w + p0.sum()", "y.sum().backward()"),
        ("y.reshape(3, 1)", "p0 * w"),
        ("r0 = f(x0)", "d = ta.grad(total(r0[0]), [x0])", "d = ta.grad(total(r0), [x0])"),
    ),
    "a detached transpose that is written": (
        ("v = (p0 * w.reshape(3, 1)).T.detach()", "v[0] = p0[1]"),
        ("v",),
        CALL,
    ),
    "a view under no_grad, written, and a view of that": (
        ("with ta.no_grad():\n    v = p0[...]", "v[0] += w[1]"),
        ("v[0:1]", "p0 * 2"),
        CALL,
    ),
    "a gradient by a view of which another argument is one": (
        ("v, = ta.grad((p0 * q).sum(), [p0], create_graph=True)",),
        ("v",),
        ("a1 = a0.reshape(3, 1)", "r0 = f(a1, a1.T)", "pull(r0)"),
    ),
    "a view beside one that is written": (
        ("q.mul_(w[0])",),
        ("p0 * 2",),
        ("r0 = f(a0[:1], a0[2:])", "pull(r0)"),
    ),
    "... with nothing in it": (
        ("p0.sub_(w)",),
        ("q * 2",),
        ("r0 = f(a0, a0[3:])", "pull(r0)"),
    ),
    "... for the first time": (
        ("q.mul_(w[0])", "(p0 * 2).sum().backward()"),
        ("p0",),
        ("r0 = f(c0[:1], c0[2:])", "pass"),
    ),
    "a view of what detach_ cut off": (
        ("v = w * 2", "u = v[1:]", "v.detach_()", "y = u * p0[1:]", "v[1] = p0[0]"),
        ("y", "u", "u * w[1:]"),
        CALL,
    ),
    "what was detached and then written": (
        ("v = (w * 2).detach_()", "v[1:] = p0[:2]"),
        ("v", "v.reshape(3)", "v[0]"),
        CALL,
    ),
    "... beside what was detached before": (
        ("v = w * 2", "u = v.detach()", "v.detach_()", "v[1:] = p0[:2]"),
        ("u", "v", "v[1:]", "u[:2]"),
        CALL,
    ),
    "zeros flow where a write cut a path": (
        ("v = ta.sqrt(p0 - 1)", "v.zero_()"),
        ("v * 2", "p0 * 3"),
        ("r0 = f(a0)", "pull(r0[0], retain_graph=True)", "b = x0.grad", "pull(r0[1])"),
    ),
    "... and where another value was copied": (
        ("v = w * 2", "v.copy_(p0)"),
        ("v * 2",),
        CALL,
    ),
    "a chain of calls of which one leads to what is asked for": (
        ("v = p0 * w", "p0[ta.tensor([0, 1])] = 1.5"),
        ("p0", "ta.sin(v)"),
        ("r0 = f(a0)", "r1 = f(a0)", "d = ta.grad(total(r0), [w])", "pull(r1)"),
    ),
    "a lone transpose keeps its strides": (("v = p0.expand(2, 3) * 2",), ("v.T",), CALL),
    "a lone part does, too": (("v = p0.expand(2, 3) * 2",), ("v[:, ::2]",), CALL),
    "a leaf made inside beside what depends on it": (
        ("v = p0.detach().requires_grad_()",),
        ("v * p0", "v"),
        ("r0 = f(a0)", "d = ta.grad(r0[0].sum(), [x0])"),
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_the_fuzzer_found(name):
    setup = (
        *X,
        "c0 = ta.tensor([1.0, 2.0, 3.0])",
        "box = Box()",
        "box.s = ta.ones(3)",
        "w = ta.nn.Parameter(ta.tensor([0.5, 1.5, 2.5]))",
    )
    body, returns, caller = FOUND[name]
    program = Program(
        setup,
        ("p0", "q") if any(s.startswith("r0 = f(") and ", " in s for s in caller) else ("p0",),
        body,
        returns,
        caller=caller,
        options={"backend": "numpy", "keep_grads": True},
    )
    assert compare(program) is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_narrowed_backward_of_nothing(backend):
    """It takes what the whole does not: of a result without elements nothing is computed."""
    program = Program(
        ("x0 = ta.tensor(1.5, requires_grad=True)", "a0 = x0 * 1", "c0 = ta.zeros(0, 3)"),
        ("p0", "q"),
        ("q.clamp_(-1, 1)", "v = c0 @ c0.T / (p0 * 2 + 2.5)"),
        ("v",),
        caller=("r0 = f(x0, a0)", "pull(r0)"),
        options={"backend": backend},
    )
    assert compare(program) is None
