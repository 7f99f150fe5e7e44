"""`compile`: its options, what it wraps, how it fails, and what a trace writes down."""

from __future__ import annotations

import copy
import dataclasses
import functools
import pickle
import types
from typing import Any

import numpy as np
import pytest

import tinyaot as ta
import tinyaot.nn.functional as F
from tests import agree
from tests.agree import check
from tinyaot import nn


def test_as_a_decorator_with_and_without_options() -> None:
    @ta.compile
    def f(x: Any) -> Any:
        return x * 2

    @ta.compile(backend="numpy", partition="save_all")
    def g(x: Any) -> Any:
        return x * 3

    x = ta.ones(2)
    assert f(x).tolist() == [2, 2] and g(x).tolist() == [3, 3]
    assert f.__name__ == "f"


def test_a_module_keeps_its_methods() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5))
    compiled = ta.compile(net, backend="numpy")
    assert len(list(compiled.parameters())) == 2
    compiled.eval()
    x = ta.ones(1, 3)
    np.testing.assert_allclose(compiled(x).numpy(), net(x).numpy(), rtol=1e-6)


def test_a_method() -> None:
    class Scaler:
        def __init__(self, k: float) -> None:
            self.k = ta.tensor([k])

        @ta.compile(backend="numpy")
        def scale(self, x: Any) -> Any:
            return x * self.k

    a, b = Scaler(2.0), Scaler(3.0)
    assert a.scale(ta.ones(1)).item() == 2 and b.scale(ta.ones(1)).item() == 3
    assert len(a.scale.records) == 1


def test_a_class_method() -> None:
    class Scaled:
        k = 4.0

        @classmethod
        @ta.compile(backend="numpy")
        def of(cls, x: ta.Tensor) -> ta.Tensor:
            return x * cls.k

    assert Scaled.of(ta.ones(1)).item() == Scaled().of(ta.ones(1)).item() == 4
    Scaled.k = 5.0
    assert Scaled.of(ta.ones(1)).item() == 5


class Times(ta.nn.Module):
    def __init__(self, by: float = 1.0) -> None:
        super().__init__()
        self.weight = ta.nn.Parameter(ta.full((2,), by))
        self.scale = 1.0

    @ta.compile(backend="numpy")
    def forward(self, x: ta.Tensor) -> ta.Tensor:
        return x * self.weight * self.scale


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_a_copy_has_compiled_methods_of_its_own(again: Any) -> None:
    one = Times()
    one(ta.ones(2))
    other = again(one)
    other.weight = ta.nn.Parameter(ta.full((2,), 5.0))
    for _ in range(2):
        assert one(ta.ones(2)).tolist() == [1, 1]
        assert other(ta.ones(2)).tolist() == [5, 5]


def test_copies_of_what_is_compiled() -> None:
    fast = ta.compile(ta.nn.Linear(2, 2), backend="numpy")
    x = ta.ones(1, 2)
    fast(x)
    for other in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        assert other(x).tolist() == fast(x).tolist()
        with ta.no_grad():
            other.weight.mul_(2.0)
        assert other(x).tolist() != fast(x).tolist()


def test_attributes_are_set_on_the_module() -> None:
    net = Times()
    fast = ta.compile(net, backend="numpy")
    fast(ta.ones(2))
    fast.scale = 3.0
    assert net.scale == 3 and fast(ta.ones(2)).tolist() == [3, 3]


def test_dataclasses_come_back_as_they_were() -> None:
    @dataclasses.dataclass(frozen=True)
    class Out:
        x: Any
        both: Any
        n: int = 1

    def f(x: ta.Tensor) -> Out:
        return Out(x, [x * 2, None], 3)

    x = ta.ones(2)
    fast = ta.compile(f, backend="numpy")
    for _ in range(3):
        out = fast(x)
        assert isinstance(out, Out) and out.x is x and out.n == 3
        assert out.both[0].tolist() == [2, 2] and out.both[1] is None


def test_another_object_as_an_argument_compiles_again_and_says_why() -> None:
    fast = ta.compile(lambda box: box.x * 2, backend="numpy")
    for call in range(2):
        assert fast(types.SimpleNamespace(x=ta.full((1,), float(call)))).item() == 2 * call
    assert "another SimpleNamespace" in (fast.records[1].recompiled_because or "")


def test_a_dataclass_in_reach_stays_itself() -> None:
    @dataclasses.dataclass
    class State:
        hidden: Any

    def f(state: State, x: ta.Tensor) -> State:
        state.hidden = state.hidden * 0.5 + x
        return state

    state, fast = State(ta.zeros(1)), ta.compile(f, backend="numpy")
    for want in (1.0, 1.5, 1.75):
        assert fast(state, ta.ones(1)) is state and state.hidden.item() == want
    assert len(fast.records) == 1


def test_a_result_that_no_call_can_make_again_is_refused() -> None:
    def f(x: ta.Tensor) -> Any:
        return {"y": types.SimpleNamespace(inner=x * 2)}

    with pytest.raises(ta.errors.TraceError, match=r"result\['y'\].inner is a traced tensor"):
        ta.compile(f, backend="numpy")(ta.ones(1))


def test_a_compiled_function_inside_a_trace_is_inlined() -> None:
    inner = ta.compile(lambda x: ta.exp(x), backend="numpy")
    out = ta.compile(lambda x: inner(x) * 2, backend="numpy")(ta.tensor([0.0]))
    assert out.item() == 2 and not inner.records


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "fortran"}, "no such backend: 'fortran'"),
        ({"partition": "all"}, "'min_cut', 'save_all', 'recompute_all'"),
        ({"cost": "money"}, "'time' or 'flops'"),
        ({"budget": 3}, "no option 'budget'"),
    ],
)
def test_options_that_are_none(options: dict[str, Any], message: str) -> None:
    wrong = ta.errors.BackendError if "backend" in options else ta.errors.ArgumentError
    with pytest.raises(wrong, match=message):
        ta.compile(lambda x: x, **options)


@pytest.mark.parametrize("budget", [float("nan"), float("inf"), -1, -0.5, 1.5, True, "1 GB"])
def test_budgets_that_are_none(budget: Any) -> None:
    with pytest.raises(ValueError, match="memory_budget"):
        ta.compile(lambda x: (x * x).sum(), memory_budget=budget)(ta.ones(2).requires_grad_())


@pytest.mark.parametrize(
    ("fn", "remedy"),
    [
        (lambda x: x if x.sum() > 0 else -x, "where"),
        (lambda x: x * x.sum().item(), "0-d tensor"),
        (lambda x: x.numpy(), "outside"),
        (lambda x: x.tolist(), "outside"),
        (lambda x: float(x.sum()), "0-d tensor"),
        (lambda x: ta.nonzero(x), "eager"),
        (lambda x: x[x > 0], "where"),
    ],
)
def test_values_are_not_there_under_trace(fn: Any, remedy: str) -> None:
    with pytest.raises(ta.errors.TraceError) as error:
        ta.compile(fn, backend="numpy")(ta.ones(3))
    assert remedy in str(error.value)
    assert "test_compile.py" in str(error.value)


def test_a_shape_error_names_op_shapes_and_line_in_both_modes() -> None:
    def f(x: Any, y: Any) -> Any:
        return x @ y  # the user's line

    for g in (f, ta.compile(f, backend="numpy")):
        with pytest.raises(ta.errors.ShapeError) as error:
            g(ta.ones(2, 3), ta.ones(4, 5))
        text = str(error.value)
        assert "matmul" in text and "(2, 3)" in text and "(4, 5)" in text
        assert "return x @ y  # the user's line" in text


def test_a_numpy_argument_is_refused() -> None:
    with pytest.raises(ta.errors.TraceError, match="argument x is a NumPy array"):
        ta.compile(lambda x: x * 2)(np.ones(2))


def test_a_leaked_tensor_says_what_it_is() -> None:
    leak: Any = np.zeros(1, object)

    def f(x: Any) -> Any:
        leak[0] = x * 2  # which no reach leads to
        return x

    ta.trace(f, ta.ones(2))
    with pytest.raises(ta.errors.TraceError, match="outside"):
        leak[0] + 1


def test_an_error_in_the_function_leaves_no_trace_behind() -> None:
    def f(x: Any) -> Any:
        with ta.no_grad():
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        ta.compile(f)(ta.ones(2))
    assert (ta.ones(1).requires_grad_() * 2).requires_grad


def test_containers_come_back_as_they_were() -> None:
    def f(batch: dict[str, Any], *rest: Any) -> Any:
        return {"sum": batch["x"] + rest[0][1], "list": [batch["x"], None, (3, "s")]}

    x, y = ta.ones(2), ta.ones(2)
    out = ta.compile(f, backend="numpy")({"x": x}, (None, y))
    assert out["sum"].tolist() == [2, 2]
    assert out["list"][0] is x and out["list"][1:] == [None, (3, "s")]


def test_explain_runs_nothing() -> None:
    net = nn.Linear(3, 2)
    opt = ta.optim.SGD(net.parameters(), lr=0.5)

    def step(x: Any) -> Any:
        opt.zero_grad()
        loss = F.dropout(net(x), 0.5).sum()
        loss.backward()
        opt.step()
        return loss

    before = net.weight.numpy().copy()
    ta.manual_seed(1)
    record = ta.compile(step, backend="numpy").explain(ta.ones(2, 3))
    draw = ta.random.generator.draw if hasattr(ta, "random") else 0
    assert (net.weight.numpy() == before).all() and draw == 0
    assert [s.name for s in record.stages] == list(ta.ir.STAGES)
    assert record.flops["forward"] > 0 and record.memory["planned_peak"] > 0


def test_a_whole_step_is_one_program() -> None:
    net = nn.Linear(3, 2)
    opt = ta.optim.AdamW(net.parameters(), lr=0.5)

    def step(x: Any) -> Any:
        opt.zero_grad()
        loss = net(x).sum()
        loss.backward()
        opt.step()
        return loss

    compiled = ta.compile(step, backend="numpy")
    loss = compiled(ta.ones(2, 3))
    program = compiled.records[-1].program("autodiff")
    assert {n.phase for n in program.nodes} == {"forward", "backward", "update"}
    assert {o.name for o in program.outputs_of("mutated")} >= {"net.weight", "net.bias"}
    with pytest.raises(ta.errors.GradError, match="second time"):
        loss.backward()


def test_the_trace_says_where_and_from_what() -> None:
    w = ta.tensor([[1.0], [2.0]], requires_grad=True)

    def f(x: Any) -> Any:
        return (x @ w).relu()

    program = ta.trace(f, ta.ones(3, 2))
    assert [(i.role, i.name, i.requires_grad) for i in program.inputs] == [
        ("argument", "x", False),
        ("state", "w", True),
    ]
    assert [n.op for n in program.nodes] == ["dot", "relu"]
    assert all(n.loc is not None and "test_compile" in n.loc.file for n in program.nodes)


def test_ids_are_the_same_from_run_to_run() -> None:
    def f(x: Any) -> Any:
        y = F.gelu(x) * 2
        y[0] = 1.0
        return F.softmax(y, dim=-1).sum()

    texts = []
    for _ in range(2):
        record = ta.compile(f, backend="numpy").explain(ta.ones(3, 4).requires_grad_())
        texts.append([str(s.program) for s in record.stages])
    assert texts[0] == texts[1]


def test_poison(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINYAOT_POISON", "1")
    rng = np.random.default_rng(0)
    w = rng.standard_normal((4, 4)).astype(np.float32)

    def f(x: Any, w: Any) -> Any:
        for _ in range(3):
            x = F.layer_norm(F.gelu(x @ w), (4,))
        return x

    for budget in (None, 0.0, 1.0):
        check(f, rng.standard_normal((5, 4)).astype(np.float32), w, memory_budget=budget)


def test_check_names_the_pass_that_changes_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    from tinyaot.passes import PASSES

    simplify = PASSES["simplify"]

    @functools.wraps(simplify)
    def broken(program: Any, **options: Any) -> Any:
        good = simplify(program, **options)
        nodes = tuple(
            n if n.op != "add" else type(n)("sub", n.inputs, n.results, n.attrs, n.phase)
            for n in good.nodes
        )
        return good.replace(nodes=nodes)

    monkeypatch.setitem(PASSES, "simplify", broken)
    monkeypatch.setenv("TINYAOT_CHECK", "1")
    with pytest.raises(ta.errors.VerifyError, match="simplify"):
        ta.compile(lambda x: x + x * 2, backend="numpy")(ta.ones(2))


def test_record_false_keeps_only_what_runs() -> None:
    compiled = ta.compile(lambda x: (x * x).sum(), backend="numpy", record=False)
    x = ta.ones(3).requires_grad_()
    compiled(x).backward()
    (record,) = compiled.records
    assert [s.name for s in record.stages] == ["emit"] and not record.decisions
    assert x.grad.tolist() == [2, 2, 2]


@pytest.mark.parametrize("backend", agree.BACKENDS)
def test_a_number_of_bytes_is_a_hard_bound_on_every_backend(backend: str) -> None:
    net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    x = ta.ones(32, 8)
    for budget in (5_000, 10_000, 100_000):
        compiled = ta.compile(lambda x: net(x).sum(), backend=backend, memory_budget=budget)
        try:
            peak = compiled.explain(x).memory["planned_peak"]
        except ta.errors.BudgetError:
            assert budget < 100_000
        else:
            assert peak is not None and peak <= budget
