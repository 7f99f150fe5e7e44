"""A user's mistakes beside tensor functions: derivatives, modules, optimizers, files, IR, compile.

Each message was read as a person would: it names what was called, what does not fit, and what to
do. What a call raises is one of tinyaot's errors, and shows the user's line.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinyaot as ta
from tinyaot import cli, nn, optim
from tinyaot.backends import load_backend
from tinyaot.errors import (
    ArgumentError,
    BackendError,
    BudgetError,
    DTypeError,
    FileError,
    GradError,
    IndexingError,
    MissingFileError,
    MutationError,
    ParseError,
    ShapeError,
    TinyaotError,
    TraceError,
    UnknownError,
    VerifyError,
)
from tinyaot.nn import functional as F

TEXT = """program p @ trace next=%2
  input %0: f32[3] argument "x"
  %1: f32[3] = exp(%0)
  output user %1
"""

Call = Callable[..., Any]  # of x: f32[2,3], w: f32[3], a leaf that requires grad, and i: i64[3]


def twice(w: Any) -> None:
    y = (w * w).sum()
    y.backward()
    y.backward()


def compiled(fn: Any, *args: Any, **options: Any) -> Any:
    return ta.compile(fn, **{"backend": "numpy", **options})(*args)


def across(w: Any) -> Any:
    return ta.grad(compiled(lambda t: (t * t).sum(), w), w, create_graph=True)


def product(t: Any) -> Any:
    return (t.exp() * t).sum()


def record() -> Any:
    return ta.compile(lambda t: t * 2, backend="numpy").explain(ta.ones(2))


GRAD: list[tuple[str, Call, type[TinyaotError], list[str]]] = [
    ("no-grad", lambda x, w, i: x.sum().backward(), GradError, ["backward", "f32[]", "detach()"]),
    ("vector", lambda x, w, i: (w * 2).backward(), GradError,
     ["backward", "(3,)", "gradient=", "sum()"]),
    ("cotangent-shape", lambda x, w, i: (w * 2).backward(x), GradError, ["f32[2,3]", "f32[3]"]),
    ("cotangent-number", lambda x, w, i: (w * 2).backward(3.0), GradError, ["3.0", "Tensor"]),
    ("freed", lambda x, w, i: twice(w), GradError, ["second time", "mul", "retain_graph=True"]),
    ("leaf-in-place", lambda x, w, i: w.add_(1), MutationError, ["leaf", "no_grad()", "clone()"]),
    ("leaf-item", lambda x, w, i: w.__setitem__(0, 1.0), MutationError, ["leaf", "no_grad()"]),
    ("unused", lambda x, w, i: ta.grad(w.sum(), [ta.ones(2, requires_grad=True)]), GradError,
     ["input 0", "f32[2]", "allow_unused=True"]),
    ("asks-not", lambda x, w, i: ta.grad(w.sum(), x), GradError,
     ["input 0", "f32[2,3]", "requires_grad_()"]),
    ("outputs", lambda x, w, i: ta.grad(3.0, w), GradError, ["outputs", "3.0"]),
    ("grad-outputs", lambda x, w, i: ta.grad([w.sum()], [w], [w, w]), GradError,
     ["1 outputs", "2 grad_outputs"]),
    ("boundary", lambda x, w, i: across(w), GradError, ["compiled function", "inside"]),
    ("integers", lambda x, w, i: i.requires_grad_(), GradError, ["i64[3]", "float"]),
    ("grad-shape", lambda x, w, i: setattr(w, "grad", x), GradError, ["f32[3]", "f32[2,3]"]),
    ("vjp-function", lambda x, w, i: ta.vjp(3, x), DTypeError, ["vjp", "function", "3"]),
    ("vjp-result", lambda x, w, i: ta.vjp(lambda t: 3, x), GradError, ["vjp", "results", "3"]),
    ("vjp-cotangents", lambda x, w, i: ta.vjp(lambda t: t, x)[1]((x, x)), GradError,
     ["vjp", "1 results", "2"]),
    ("jvp-tangents", lambda x, w, i: ta.jvp(lambda t: t, (x,), (w,)), GradError,
     ["jvp", "f32[2,3]", "f32[3]"]),
    ("value_and_grad", lambda x, w, i: ta.value_and_grad(lambda t: t)(i), GradError,
     ["value_and_grad", "floating"]),
    ("gradcheck", lambda x, w, i: ta.gradcheck(lambda t: t.sum(), (x,)), DTypeError,
     ["gradcheck", "float32", ".double()"]),
    ("no_grad", lambda x, w, i: ta.no_grad(3), DTypeError, ["no_grad", "3"]),
    ("deepcopy", lambda x, w, i: __import__("copy").deepcopy(w * 2), GradError,
     ["leaf", "detach()"]),
    ("from_numpy", lambda x, w, i: ta.from_numpy([1]), DTypeError, ["from_numpy", "list"]),
    ("item", lambda x, w, i: x.item(), ShapeError, ["item", "(2, 3)", "tolist()"]),
    ("truth", lambda x, w, i: bool(x), ShapeError, ["bool", "(2, 3)", "any()"]),
    ("seed", lambda x, w, i: ta.manual_seed("a"), DTypeError, ["manual_seed", "'a'"]),
]  # fmt: skip

MODULES: list[tuple[str, Call, type[TinyaotError], list[str]]] = [
    ("linear", lambda x, w, i: nn.Linear(4, 2)(x), ShapeError, ["linear", "(2, 3)", "(2, 4)"]),
    ("linear-dtype", lambda x, w, i: nn.Linear(3, 2)(x.double()), DTypeError,
     ["linear", "float64", "float32", "x.to("]),
    ("linear-int", lambda x, w, i: nn.Linear(3, 2)(i), DTypeError, ["linear", "x.to(ta.float32)"]),
    ("linear-none", lambda x, w, i: nn.Linear(3, 2)(None), DTypeError, ["linear", "None"]),
    ("linear-size", lambda x, w, i: nn.Linear(-3, 2), ShapeError, ["(2, -3)", "negative"]),
    ("linear-float", lambda x, w, i: nn.Linear(3.5, 2), DTypeError, ["size", "int", "3.5"]),
    ("embedding-id", lambda x, w, i: nn.Embedding(2, 2)(i), IndexingError,
     ["embedding", "id 2", "0 .. 1"]),
    ("embedding-below", lambda x, w, i: nn.Embedding(3, 2)(i - 1), IndexingError,
     ["embedding", "id -1", "0 .. 2"]),
    ("layer_norm", lambda x, w, i: nn.LayerNorm(4)(x), ShapeError,
     ["layer_norm", "(2, 3)", "(4,)"]),
    ("batch-norm", lambda x, w, i: nn.BatchNorm2d(3)(x), ShapeError, ["BatchNorm2d", "(2, 3)"]),
    ("one-value", lambda x, w, i: nn.BatchNorm2d(3)(ta.ones(1, 3, 1, 1)), ShapeError,
     ["batch_norm", "(1, 3, 1, 1)", "eval()"]),
    ("channels", lambda x, w, i: nn.Conv2d(3, 4, 3)(ta.ones(1, 2, 8, 8)), ShapeError,
     ["conv2d", "2 channels", "(4, 3, 3, 3)"]),
    ("window", lambda x, w, i: nn.Conv2d(3, 4, 3)(ta.ones(1, 3, 2, 2)), ShapeError,
     ["conv2d", "window of 3", "size 2"]),
    ("padding", lambda x, w, i: nn.Conv2d(3, 4, 3, padding="all"), ArgumentError,
     ["Conv2d", "'all'", "same"]),
    ("groups", lambda x, w, i: nn.Conv2d(3, 4, 3, groups=2), ArgumentError,
     ["Conv2d", "2 groups", "3 and 4"]),
    ("pool", lambda x, w, i: F.max_pool2d(x, 2), ShapeError, ["max_pool2d", "(2, 3)"]),
    ("dropout", lambda x, w, i: nn.Dropout(1.5), ArgumentError, ["Dropout", "1.5"]),
    ("heads", lambda x, w, i: nn.MultiHeadAttention(5, 2), ArgumentError, ["2 heads", "5"]),
    ("gelu", lambda x, w, i: F.gelu(x, approximate="fast"), ArgumentError,
     ["gelu", "'fast'", "tanh"]),
    ("query", lambda x, w, i: F.scaled_dot_product_attention(x, x[:, :2], x), ShapeError,
     ["scaled_dot_product_attention", "(2, 3)", "(2, 2)"]),
    ("targets", lambda x, w, i: F.cross_entropy(x, i), ShapeError,
     ["cross_entropy", "(2, 3)", "(2,)", "(3,)"]),
    ("target", lambda x, w, i: F.cross_entropy(x, i[1:] + 1), IndexingError,
     ["cross_entropy", "target 3", "0 .. 2", "-100"]),
    ("nll-target", lambda x, w, i: F.nll_loss(x, i[:2] - 1), IndexingError,
     ["nll_loss", "target -1", "0 .. 2"]),
    ("reduction", lambda x, w, i: F.cross_entropy(x, i[:2], reduction="avg"), ArgumentError,
     ["cross_entropy", "'avg'", "'mean'"]),
    ("mse", lambda x, w, i: F.mse_loss(x, ta.ones(4)), ShapeError, ["mse_loss", "(2, 3)", "(4,)"]),
    ("container", lambda x, w, i: nn.Sequential(nn.ReLU(), "relu"), DTypeError, ["str", "Module"]),
    ("assign", lambda x, w, i: setattr(nn.Linear(3, 2), "weight", x), DTypeError,
     ["'weight'", "Linear", "Parameter"]),
    ("buffer", lambda x, w, i: nn.Linear(3, 2).register_buffer("b", 3), DTypeError, ["'b'", "3"]),
    ("to-int", lambda x, w, i: nn.Linear(3, 2).to(ta.int64), DTypeError, ["Module.to", "int64"]),
    ("to-cuda", lambda x, w, i: nn.Linear(3, 2).to("cuda"), BackendError,
     ["Module.to", "cuda", "ta.compile"]),
    ("missing", lambda x, w, i: nn.Linear(3, 2).load_state_dict({}), TinyaotError,
     ["Linear", "missing keys: weight, bias", "strict=False"]),
    ("unexpected", lambda x, w, i: nn.ReLU().load_state_dict({"a": x}), TinyaotError,
     ["ReLU", "unexpected keys: a"]),
    ("mismatch", lambda x, w, i: nn.Linear(3, 2).load_state_dict(nn.Linear(4, 2).state_dict()),
     TinyaotError, ["weight", "(2, 4)", "(2, 3)"]),
    ("no-state", lambda x, w, i: nn.Linear(3, 2).load_state_dict(None), DTypeError,
     ["load_state_dict", "None"]),
    ("no-params", lambda x, w, i: optim.SGD([], 0.1), ArgumentError, ["SGD", "empty"]),
    ("one-tensor", lambda x, w, i: optim.SGD(w, 0.1), DTypeError, ["SGD", "list"]),
    ("a-module", lambda x, w, i: optim.SGD(nn.Linear(3, 2), 0.1), DTypeError,
     ["SGD", "parameters()"]),
    ("no-tensor", lambda x, w, i: optim.SGD([3], 0.1), DTypeError, ["SGD", "int"]),
    ("no-leaf", lambda x, w, i: optim.SGD([w * 2], 0.1), ArgumentError, ["SGD", "(3,)", "leaf"]),
    ("given-twice", lambda x, w, i: optim.SGD([w, w], 0.1), ArgumentError, ["SGD", "twice"]),
    ("lr", lambda x, w, i: optim.SGD([w], -0.1), ArgumentError, ["SGD", "lr", "-0.1"]),
    ("lr-text", lambda x, w, i: optim.AdamW([w], lr="0.1"), DTypeError, ["AdamW", "lr", "'0.1'"]),
    ("betas", lambda x, w, i: optim.Adam([w], betas=(1.0, 0.9)), ArgumentError,
     ["Adam", "betas", "(1.0, 0.9)"]),
    ("one-beta", lambda x, w, i: optim.Adam([w], betas=0.9), ArgumentError, ["Adam", "betas"]),
    ("nesterov", lambda x, w, i: optim.SGD([w], 0.1, nesterov=True), ArgumentError,
     ["nesterov", "momentum"]),
    ("group-option", lambda x, w, i: optim.SGD([{"params": [w], "decay": 1}], 0.1), ArgumentError,
     ["SGD", "'decay'", "weight_decay"]),
    ("optim-state", lambda x, w, i: optim.SGD([w], 0.1).load_state_dict({}), DTypeError,
     ["SGD", "param_groups"]),
    ("schedule", lambda x, w, i: optim.CosineLR(3, 10), DTypeError, ["CosineLR", "optimizer", "3"]),
    ("no-steps", lambda x, w, i: optim.CosineLR(optim.SGD([w], 0.1), 0), ArgumentError,
     ["CosineLR", "total_steps", "0"]),
]  # fmt: skip

COMPILER: list[tuple[str, Call, type[TinyaotError], list[str]]] = [
    ("compile", lambda x, w, i: ta.compile(3), DTypeError, ["compile", "function", "3"]),
    ("trace", lambda x, w, i: ta.trace(3), DTypeError, ["trace", "function", "3"]),
    ("option", lambda x, w, i: ta.compile(product, budget=1), ArgumentError,
     ["'budget'", "memory_budget"]),
    ("backend", lambda x, w, i: ta.compile(product, backend="fortran"), BackendError,
     ["'fortran'", "numpy"]),
    ("partition", lambda x, w, i: ta.compile(product, partition="all"), ArgumentError,
     ["'all'", "'min_cut'"]),
    ("partition-none", lambda x, w, i: compiled(product, w, partition=lambda p: None),
     ArgumentError, ["partition", "set of value ids", "None"]),
    ("partition-ids", lambda x, w, i: compiled(product, w, partition=lambda p: {999}),
     ArgumentError, ["partition", "999", "product"]),
    ("slack", lambda x, w, i: ta.compile(product, time_slack=-1), ArgumentError,
     ["time_slack", "-1"]),
    ("slack-nan", lambda x, w, i: ta.compile(product, time_slack=float("nan")), ArgumentError,
     ["time_slack", "nan"]),
    ("cost", lambda x, w, i: ta.compile(product, cost="money"), ArgumentError,
     ["'money'", "'flops'"]),
    ("budget", lambda x, w, i: ta.compile(product, memory_budget=1.5), BudgetError,
     ["1.5", "bytes", "1.0"]),
    ("too-little", lambda x, w, i: compiled(product, w, memory_budget=1), BudgetError,
     ["memory_budget=1", "least"]),
    ("array", lambda x, w, i: compiled(product, np.ones(3)), TraceError,
     ["argument t", "ta.tensor("]),
    ("parse-none", lambda x, w, i: ta.parse(None), DTypeError, ["parse", "None"]),
    ("parse-empty", lambda x, w, i: ta.parse(""), ParseError, ["line 1", "program"]),
    ("parse-value", lambda x, w, i: ta.parse(TEXT.replace("exp(%0)", "exp(%7)")), ParseError,
     ["line 3", "%7"]),
    ("parse-dtype", lambda x, w, i: ta.parse(TEXT.replace("f32[3] =", "f33[3] =")), ParseError,
     ["line 3", "'f33'", "f32"]),
    ("parse-two", lambda x, w, i: ta.parse(TEXT + TEXT), ParseError, ["line 5", "second program"]),
    ("verify-text", lambda x, w, i: ta.verify(TEXT), DTypeError, ["verify", "ta.parse(text)"]),
    ("verify-op", lambda x, w, i: ta.verify(ta.parse(TEXT.replace("exp", "expo"))), VerifyError,
     ["'expo'", "the law"]),
    ("verify-type", lambda x, w, i: ta.verify(ta.parse(TEXT.replace("%1: f32[3]", "%1: f32[4]"))),
     VerifyError, ["exp(%0)", "f32[4]", "f32[3]"]),
    ("interpret", lambda x, w, i: ta.interpret("p"), DTypeError, ["interpret", "'p'"]),
    ("interpret-count", lambda x, w, i: ta.interpret(ta.parse(TEXT)), TinyaotError,
     ["1 inputs", "x: f32[3]", "0"]),
    ("interpret-shape", lambda x, w, i: ta.interpret(ta.parse(TEXT), x.numpy()), ShapeError,
     ["x: f32[3]", "(2, 3)"]),
    ("pass-text", lambda x, w, i: ta.passes.simplify(TEXT), DTypeError, ["simplify", "ta.parse"]),
    ("pipeline", lambda x, w, i: ta.passes.pipeline(None), DTypeError, ["pipeline", "None"]),
    ("no-json", lambda x, w, i: ta.Record.from_json(""), ParseError, ["Record.from_json", "JSON"]),
    ("no-record", lambda x, w, i: ta.Record.from_json("{}"), ParseError,
     ["not a Record", "to_json"]),
    ("old-record", lambda x, w, i: ta.Record.from_json('{"format": 0}'), ParseError,
     ["format 0", "anew"]),
    ("damaged", lambda x, w, i: ta.Record.from_json(record().to_json().replace("mul", "m%")),
     ParseError, ["damaged"]),
    ("stage", lambda x, w, i: record().program("fuze"), UnknownError, ["'fuze'", "fuse"]),
    ("why", lambda x, w, i: record().why(999), UnknownError, ["%999"]),
    ("why-text", lambda x, w, i: record().why("seven"), ArgumentError, ["'seven'", "%7"]),
]  # fmt: skip


@pytest.mark.parametrize("wrong", [*GRAD, *MODULES, *COMPILER], ids=lambda w: w[0])
def test_a_wrong_call(wrong: Any) -> None:
    _, call, error, fragments = wrong
    x, w, i = ta.ones(2, 3), ta.ones(3, requires_grad=True), ta.tensor([0, 1, 2])
    with pytest.raises(error) as caught:
        call(x, w, i)
    said, at, shown = str(caught.value).partition("\n  at ")
    assert isinstance(caught.value, TinyaotError)
    assert [f for f in fragments if f not in said] == []
    assert at and shown.startswith("test_errors_surface.py:")


# ---- files --------------------------------------------------------------------------------------


def test_files(tmp_path: Path) -> None:
    x, bad = ta.ones(2), tmp_path / "bad.safetensors"
    bad.write_text("hello")
    with pytest.raises(MissingFileError, match=r"load: there is no file .*none\.safetensors"):
        ta.load(tmp_path / "none.safetensors")
    with pytest.raises(FileNotFoundError):  # Python's own kind, too
        ta.load(str(tmp_path / "none.safetensors"))
    with pytest.raises(ArgumentError, match=r"bad\.safetensors is not a safetensors file"):
        ta.load(bad)
    with pytest.raises(FileError, match="load: cannot read"):
        ta.load(tmp_path)
    with pytest.raises(DTypeError, match="load: needs the path of a file first, got None"):
        ta.load(None)  # type: ignore[arg-type]
    with pytest.raises(MissingFileError, match=r"save: there is no folder .*nowhere; make it"):
        ta.save(tmp_path / "nowhere" / "x.safetensors", {"x": x})
    with pytest.raises(DTypeError, match=r"save: a set at 'x' cannot be saved"):
        ta.save(tmp_path / "x.safetensors", {"x": {1}})
    with pytest.raises(DTypeError, match=r"save: needs the path"):
        ta.save({"x": x}, tmp_path / "x.safetensors")  # type: ignore[arg-type]
    assert [p.name for p in tmp_path.iterdir()] == ["bad.safetensors"]


# ---- the environment ----------------------------------------------------------------------------


def test_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TINYAOT_BACKEND", "fortran")
    with pytest.raises(BackendError, match="TINYAOT_BACKEND='fortran' names no backend"):
        ta.compile(product)
    assert ta.compile(product, backend="numpy") is not None
    monkeypatch.delenv("TINYAOT_BACKEND")
    if load_backend("numpy") and ta.backends.why_unavailable("c") is None:
        monkeypatch.setenv("TINYAOT_THREADS", "many")
        with pytest.raises(BackendError, match="TINYAOT_THREADS='many' is not a number of threads"):
            ta.compile(product, backend="c")(ta.ones(3))
    monkeypatch.setenv("CC", 'cc "')
    with pytest.raises(BackendError, match=r"set CC, or install gcc.*CC=cc \": No closing"):
        ta.compile(product, backend="c")
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path))  # what was found on another PATH is not here
    with pytest.raises(BackendError, match="Tried cc: not found; gcc: not found"):
        ta.compile(product, backend="c")


# ---- indices in compiled code -------------------------------------------------------------------

BACKENDS = ["numpy", "c"] if ta.backends.why_unavailable("c") is None else ["numpy"]
INDEXED: list[tuple[str, Call, int, str]] = [  # of x: f32[4,3], i: i64[4]; an index that is wrong
    ("cross_entropy", lambda x, i: F.cross_entropy(x, i), 3, "cross_entropy: target 3 .* 0 .. 2"),
    ("weighted", lambda x, i: F.cross_entropy(x, i, ta.ones(3)), -1, "target -1 .* 0 .. 2"),
    ("sum", lambda x, i: F.cross_entropy(x, i, reduction="sum"), 9, "target 9"),
    ("columns", lambda x, i: F.cross_entropy(x.reshape(2, 3, 2), i.reshape(2, 2)), 3, "target 3"),
    ("below", lambda x, i: F.cross_entropy(x.reshape(2, 3, 2), i.reshape(2, 2)), -7, "target -7"),
    ("nll_loss", lambda x, i: F.nll_loss(x, i), 3, "nll_loss: target 3"),
    ("one_hot", lambda x, i: F.one_hot(i, 3), 3, "one_hot: class 3 .* 0 .. 2"),
    ("one_hot-below", lambda x, i: F.one_hot(i, 3), -1, "one_hot: class -1"),
    ("embedding", lambda x, i: F.embedding(i, x), 4, "embedding: id 4 .* 0 .. 3"),
    ("embedding-below", lambda x, i: F.embedding(i, x), -1, "embedding: id -1"),
    ("gather", lambda x, i: x.gather(1, i[:, None]), 3, "gather: index 3 .* 0 .. 2"),
    ("index_select", lambda x, i: x.index_select(0, i), 4, "index_select: index 4"),
    ("take", lambda x, i: x.take_along_dim(i[:, None], 1), -1, "take_along_dim: index -1"),
    ("scatter", lambda x, i: x.scatter(1, i[:, None], 1.0), 3, "scatter: index 3"),
    ("scatter_add", lambda x, i: x.scatter_add(1, i[:, None], x), 3, "scatter_add: index 3"),
    ("x[i]", lambda x, i: x[i], 4, "^index: 4 is out of range for a dim of size 4"),
    ("x[:, i]", lambda x, i: x[:, i], -4, "^index: -4 is out of range for a dim of size 3"),
    ("x[i] =", lambda x, i: set_rows(x, i), 4, "^index: 4 is out of range for a dim of size 4"),
]  # fmt: skip


def set_rows(x: Any, i: Any) -> Any:
    y = x * 1
    y[i] = 0.0
    return y


@pytest.mark.parametrize("backend", [None, *BACKENDS])
@pytest.mark.parametrize("case", INDEXED, ids=lambda c: c[0])
def test_an_index_out_of_range(case: Any, backend: str | None) -> None:
    _, call, wrong, message = case
    x = ta.arange(12).reshape(4, 3).float()
    good = ta.tensor([0, 2, 1, 2])
    run = call if backend is None else ta.compile(call, backend=backend)
    before = run(x, good).tolist()
    for at in range(4):
        bad = good.clone()
        bad[at] = wrong
        with pytest.raises(IndexingError, match=message) as caught:
            run(x, bad)
        line = (set_rows if "set_rows" in call.__code__.co_names else call).__code__
        number = line.co_firstlineno + 2 * (line is not call.__code__)
        assert f"\n  at test_errors_surface.py:{number}: " in str(caught.value)
    assert run(x, good).tolist() == before


@pytest.mark.parametrize("backend", BACKENDS)
def test_ignored_targets_are_let_through(backend: str) -> None:
    x, t = ta.randn(4, 3), ta.tensor([0, -100, 2, -100])
    for ignored in (-100, 7):
        t = ta.where(t < 0, ignored, t)

        def loss(x: Any, t: Any, ignored: int = ignored) -> Any:
            return F.cross_entropy(x, t, ignore_index=ignored)

        np.testing.assert_allclose(
            ta.compile(loss, backend=backend)(x, t).numpy(), loss(x, t).numpy(), rtol=1e-6
        )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("make", [optim.AdamW, lambda p, lr: optim.SGD(p, lr, momentum=0.9)])
@pytest.mark.parametrize("wrong", ["id", "target", "index"])
def test_a_step_that_raises_moves_nothing(backend: str, make: Any, wrong: str) -> None:
    """Not even what eager has changed by then, as an index that is read after the update."""
    net = nn.Sequential(nn.Embedding(5, 8), nn.Linear(8, 3))
    opt = make(net.parameters(), lr=0.1)

    @ta.compile(backend=backend)
    def step(tokens: Any, targets: Any, picks: Any) -> Any:
        opt.zero_grad()
        y = net(tokens)
        loss = F.cross_entropy(y, targets)
        loss.backward()
        opt.step()
        return loss, y.detach()[picks]

    good = ta.tensor([0, 1, 2])
    step(good, good, good)
    state = [*net.parameters(), *(t for s in opt.state.values() for t in s.values())]
    before = [t.tolist() for t in state]
    with pytest.raises(IndexingError, match=f"{wrong}:? [567]"):
        step(*(good + 5 * (name == wrong) for name in ("id", "target", "index")))
    assert [t.tolist() for t in state] == before


def adds_rows(x: Any, table: Any, at: Any) -> None:
    with ta.no_grad():
        x += table[at]


def takes_rows(x: Any, table: Any, at: Any) -> None:
    with ta.no_grad():
        x.copy_(table[at])


def learns(x: Any, table: Any, at: Any) -> None:
    by_x, by_table = ta.grad(table[at].sum() + (x * x).sum(), [x, table])
    with ta.no_grad():
        x -= by_x
        table -= by_table


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("step", [adds_rows, takes_rows, learns])
def test_what_waits_for_its_own_check(backend: str, step: Any) -> None:
    """Two could check in the loop that writes; what `learns` gathers nobody reads, so that only its
    vjp checks."""
    call = ta.compile(step, backend=backend)
    x, table = (ta.randn(n, 3).requires_grad_(step is learns) for n in (4, 5))
    call(x, table, ta.tensor([0, 1, 2, 3]))
    before = x.tolist(), table.tolist()
    with pytest.raises(IndexingError, match="index: 5"):
        call(x, table, ta.tensor([3, 2, 1, 5]))
    assert (x.tolist(), table.tolist()) == before


@pytest.mark.skipif("c" not in BACKENDS, reason="no C compiler")
def test_a_counter_that_is_needed_before_a_check_is_put_back() -> None:
    @ta.compile(backend="c")
    def step(count: Any, x: Any, at: Any) -> Any:
        count += 1
        return ta.cumsum(x * count, 0)[at]

    count, x = ta.zeros(()), ta.ones(4, 3)
    step(count, x, ta.tensor([0, 3]))
    with pytest.raises(IndexingError, match="index: 4"):
        step(count, x, ta.tensor([0, 4]))
    assert count.item() == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_check_that_is_computed_where_it_is_read(backend: str) -> None:
    """It has no place of its own that a write could wait for."""

    def f(x: Any, state: Any) -> Any:
        hot = F.one_hot(ta.argmax(x, 0), 65)
        state.mul_(2)
        return hot, x.sum(0)

    x, state = ta.randn(65, 3), ta.ones(4)
    hot, total = ta.compile(f, backend=backend)(x, state)
    assert hot.tolist() == F.one_hot(ta.argmax(x, 0), 65).tolist()
    assert state.tolist() == [2] * 4
    np.testing.assert_allclose(total.numpy(), x.numpy().sum(0), rtol=1e-4, atol=1e-5)


# ---- what escapes from a trace ------------------------------------------------------------------


def test_an_escape_shows_where_the_tensor_is_made() -> None:
    kept: dict[str, Any] = {}

    def f(x: Any) -> Any:
        y = x * 2
        kept["y"] = y
        return y

    with pytest.raises(TraceError, match=r"f32\[2\].*stored in a dict.*return it") as caught:
        compiled(f, ta.ones(2))
    assert str(caught.value).endswith(": y = x * 2")


def test_long_lines_are_cut() -> None:
    with pytest.raises(ShapeError) as caught:
        _ = ta.ones(2) + ta.ones(3)  # a long line, of which a message shows as much as helps: after that it is cut and ends in dots  # noqa: E501  # fmt: skip
    assert str(caught.value).endswith(" ...") and len(str(caught.value).splitlines()[-1]) < 180


# ---- the command line ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["report", "empty.json"], 2, "empty.json is not a saved Record .*not JSON"),
        (["report", "half.json"], 2, "half.json is not a saved Record .*'backend' is missing"),
        (["why", "empty.json", "3"], 2, "empty.json is not a saved Record"),
        (["report", "user.py:wrong"], 1, r"add: shapes \(2,\) and \(3,\)(.|\n)*at user.py:3"),
        (["opt", "hello.ir"], 1, "line 1: expected 'program', found 'hello'"),
        (["opt", "two.ir", "--passes", "simplfy"], 2, "no such pass: 'simplfy'; .*simplify"),
        (["opt", "nowhere.ir"], 2, "cannot read nowhere.ir"),
        (["compare", "vgg"], 2, "no model 'vgg'"),
    ],
)
def test_command_line_misuse(
    words: list[str],
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert cli.main(words) == code
    out, err = capsys.readouterr()
    assert not out and "Traceback" not in err
    assert re.search(rf"^tinyaot {words[0]}: error: {message}", err)


def write_files(folder: Path) -> None:
    (folder / "empty.json").write_text("")
    (folder / "half.json").write_text('{"format": 3, "name": "x"}')
    (folder / "hello.ir").write_text("hello\n")
    (folder / "two.ir").write_text(TEXT + TEXT.replace("program p", "program q"))
    text = "import tinyaot as ta\ndef wrong():\n    return ta.ones(2) + ta.ones(3)\n"
    (folder / "user.py").write_text(text)


def test_opt_takes_several_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_files(tmp_path)
    assert cli.main(["opt", str(tmp_path / "two.ir"), "--passes", "functionalize"]) == 0
    first, second = capsys.readouterr().out.split("\n\n")
    assert first.startswith("program p @ functionalize")
    assert second.startswith("program q @ functionalize")
    (tmp_path / "two.ir").write_text(TEXT + TEXT.replace("exp(%0)", "exp(%9)"))
    assert cli.main(["opt", str(tmp_path / "two.ir")]) == 1
    assert "line 7: expected a value that some line defines" in capsys.readouterr().err
