"""A user's mistakes: the error names the function, what does not fit, the user's line, a remedy.

Every wrong call is made in eager code and in a trace, which must raise the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinyaot as ta
from tinyaot import Tensor
from tinyaot.errors import (
    ArgumentError,
    BackendError,
    DTypeError,
    GradError,
    IndexingError,
    MutationError,
    ShapeError,
    TinyaotError,
    TraceError,
)
from tinyaot.nn import functional as F

Call = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Any]


def set_item(x: Tensor, index: Any, value: Any) -> None:
    y = x * 1
    y[index] = value


def operands() -> list[Tensor]:
    """m: f32[2,3], v: f32[4], i: i64[3] (0 1 2), b: bool[3], s: f32[]."""
    return [
        ta.arange(6).reshape(2, 3).float(),
        ta.ones(4),
        ta.tensor([0, 1, 2]),
        ta.tensor([True, False, True]),
        ta.tensor(2.0),
    ]


# name, call, error, what the message holds
WRONG: list[tuple[str, Call, type[TinyaotError], list[str]]] = [
    # shapes that do not broadcast
    ("add", lambda m, v, i, b, s: m + v, ShapeError, ["add", "(2, 3)", "(4,)", "reshape"]),
    ("rsub", lambda m, v, i, b, s: np.ones(4) - m, ShapeError, ["sub", "(2, 3)", "(4,)"]),
    ("div", lambda m, v, i, b, s: ta.div(m, v), ShapeError, ["div", "(2, 3)", "(4,)"]),
    ("eq", lambda m, v, i, b, s: m == v, ShapeError, ["eq", "(2, 3)", "(4,)"]),
    ("where", lambda m, v, i, b, s: ta.where(b, m, v), ShapeError, ["where", "(2, 3)", "(4,)"]),
    ("clamp", lambda m, v, i, b, s: m.clamp(v), ShapeError, ["clamp", "(2, 3)", "(4,)"]),
    ("masked_fill", lambda m, v, i, b, s: v.masked_fill(b, 0.0), ShapeError,
     ["masked_fill", "(4,)"]),
    # products
    ("matmul", lambda m, v, i, b, s: m @ m, ShapeError,
     ["matmul", "(2, 3)", "size 3", "transpose"]),
    ("matmul-1d", lambda m, v, i, b, s: m @ v, ShapeError,
     ["matmul", "(2, 3)", "(4,)", "only dim"]),
    ("matmul-0d", lambda m, v, i, b, s: m @ s, ShapeError, ["matmul", "(2, 3)", "()", "use mul"]),
    ("matmul-batch", lambda m, v, i, b, s: m.reshape(2, 1, 3) @ ta.ones(3, 3, 2), ShapeError,
     ["matmul", "(2, 1, 3)", "(3, 3, 2)", "broadcast"]),
    ("matmul-bool", lambda m, v, i, b, s: b @ b, DTypeError, ["matmul", "bool", "cast"]),
    ("dot", lambda m, v, i, b, s: ta.dot(m, v), ShapeError, ["dot", "(2, 3)", "(4,)", "matmul"]),
    ("outer", lambda m, v, i, b, s: ta.outer(m, v), ShapeError, ["outer", "1-d", "(2, 3)"]),
    ("einsum-size", lambda m, v, i, b, s: ta.einsum("ij,j->i", m, v), ShapeError,
     ["einsum", "'j'", "3 and 4", "(2, 3)"]),
    ("einsum-dims", lambda m, v, i, b, s: ta.einsum("ijk->i", m), ShapeError,
     ["einsum", "'ijk'", "(2, 3)"]),
    ("einsum-count", lambda m, v, i, b, s: ta.einsum("ij,jk->ik", m), ShapeError,
     ["einsum", "2 operands", "1 were given"]),
    ("einsum-output", lambda m, v, i, b, s: ta.einsum("ij->ik", m), ShapeError,
     ["einsum", "'ij->ik'"]),
    ("einsum-syntax", lambda m, v, i, b, s: ta.einsum("i2->i", m), ShapeError,
     ["einsum", "'i2->i'"]),
    # dims
    ("sum-dim", lambda m, v, i, b, s: m.sum(2), ShapeError, ["sum", "dim 2", "2 dims"]),
    ("mean-twice", lambda m, v, i, b, s: m.mean((0, -2)), ShapeError, ["mean", "twice"]),
    ("softmax-dim", lambda m, v, i, b, s: ta.softmax(m, 5), IndexError,
     ["softmax", "dim 5", "-2 .. 1"]),
    ("softmax-none", lambda m, v, i, b, s: ta.softmax(m), ArgumentError, ["softmax", "dim=-1"]),
    ("sum-float-dim", lambda m, v, i, b, s: m.sum(1.0), DTypeError, ["sum", "dim must be an int"]),
    ("argmax-tuple", lambda m, v, i, b, s: m.argmax((0, 1)), DTypeError, ["argmax", "(0, 1)"]),
    ("max-tuple", lambda m, v, i, b, s: m.max((0, 1)), DTypeError, ["max", "(0, 1)", "amax"]),
    ("max-empty", lambda m, v, i, b, s: m[:0].max(), ShapeError, ["amax", "(0, 3)", "no elements"]),
    ("argmin-empty", lambda m, v, i, b, s: m[:0].argmin(0), ShapeError, ["argmin", "(0, 3)"]),
    ("transpose", lambda m, v, i, b, s: m.transpose(0, 2), ShapeError, ["transpose", "dim 2"]),
    ("permute", lambda m, v, i, b, s: m.permute(0, 0), ShapeError, ["permute", "(0, 0)", "(2, 3)"]),
    ("unsqueeze", lambda m, v, i, b, s: m.unsqueeze(4), ShapeError, ["unsqueeze", "dim 4"]),
    ("diagonal", lambda m, v, i, b, s: v.diagonal(), ShapeError, ["diagonal", "dim 1", "1 dims"]),
    ("tril", lambda m, v, i, b, s: v.tril(), ShapeError, ["tril", "two dims", "(4,)"]),
    ("topk", lambda m, v, i, b, s: m.topk(4), ShapeError, ["topk", "4", "(2, 3)"]),
    # sizes
    ("reshape", lambda m, v, i, b, s: m.reshape(4, 2), ShapeError, ["reshape", "(2, 3)", "(4, 2)"]),
    ("reshape-two", lambda m, v, i, b, s: m.reshape(-1, -1), ShapeError, ["reshape", "(-1, -1)"]),
    ("reshape-type", lambda m, v, i, b, s: m.reshape("a"), DTypeError, ["reshape", "'a'", "int"]),
    ("view", lambda m, v, i, b, s: m.T.view(-1), ShapeError, ["view", "(3, 2)", "reshape"]),
    ("expand", lambda m, v, i, b, s: m.expand(4, 3), ShapeError, ["expand", "(2, 3)", "(4, 3)"]),
    ("broadcast_to", lambda m, v, i, b, s: v.broadcast_to((2, 3)), ShapeError,
     ["broadcast_to", "(4,)", "(2, 3)"]),
    ("repeat", lambda m, v, i, b, s: m.repeat(2), ShapeError, ["repeat", "(2,)", "(2, 3)"]),
    ("flatten", lambda m, v, i, b, s: m.flatten(1, 0), ShapeError, ["flatten", "start_dim 1"]),
    ("cat", lambda m, v, i, b, s: ta.cat([m, m.T]), ShapeError,
     ["cat", "(2, 3)", "(3, 2)", "dim 0"]),
    ("cat-none", lambda m, v, i, b, s: ta.cat([]), ShapeError, ["cat", "at least one"]),
    ("cat-scalar", lambda m, v, i, b, s: ta.cat([s, s]), ShapeError,
     ["cat", "without dims", "stack"]),
    ("stack", lambda m, v, i, b, s: ta.stack([m, v]), ShapeError,
     ["stack", "(2, 3)", "(4,)", "cat"]),
    ("split", lambda m, v, i, b, s: m.split([1, 1], 1), ShapeError, ["split", "(1, 1)", "3"]),
    ("split-zero", lambda m, v, i, b, s: m.split(0), ShapeError, ["split", "positive"]),
    ("chunk", lambda m, v, i, b, s: m.chunk(0), ShapeError, ["chunk", "positive"]),
    ("pad", lambda m, v, i, b, s: ta.pad(m, (1, 2, 3)), ShapeError, ["pad", "(1, 2, 3)", "(2, 3)"]),
    ("pad-mode", lambda m, v, i, b, s: ta.pad(m, (1, 1), "circular"), ArgumentError,
     ["pad", "circular"]),
    ("roll", lambda m, v, i, b, s: ta.roll(m, (1, 1), (0,)), ShapeError, ["roll", "2 shifts"]),
    ("zeros", lambda m, v, i, b, s: ta.zeros(2, -1), ShapeError, ["zeros", "(2, -1)"]),
    ("zeros-type", lambda m, v, i, b, s: ta.zeros(2.5), DTypeError, ["zeros", "2.5", "int"]),
    ("arange", lambda m, v, i, b, s: ta.arange(0, 5, -1), ShapeError, ["arange", "-1"]),
    # dtypes
    ("mean-int", lambda m, v, i, b, s: i.mean(), DTypeError, ["mean", "int64", ".float()"]),
    ("var-bool", lambda m, v, i, b, s: b.var(), DTypeError, ["var", "bool"]),
    ("norm-int", lambda m, v, i, b, s: i.norm(), DTypeError, ["norm", "int64"]),
    ("neg-bool", lambda m, v, i, b, s: -b, DTypeError, ["neg", "bool", "logical_not"]),
    ("sub-bools", lambda m, v, i, b, s: b - b, DTypeError, ["sub", "bools", "cast"]),
    ("where-float", lambda m, v, i, b, s: ta.where(m, m, m), DTypeError,
     ["where", "float32", "!= 0"]),
    ("mask-int", lambda m, v, i, b, s: m.masked_fill(i, 0.0), DTypeError, ["masked_fill", "int64"]),
    ("and-float", lambda m, v, i, b, s: m & m, DTypeError, ["&", "float32", "logical_and"]),
    ("not-int", lambda m, v, i, b, s: ~i, DTypeError, ["~", "int64"]),
    ("int-negative-power", lambda m, v, i, b, s: i**-1, DTypeError, ["pow", "-1"]),
    ("int-by-zero", lambda m, v, i, b, s: i // 0, DTypeError, ["floordiv", "zero", "float"]),
    ("too-wide", lambda m, v, i, b, s: i.to(ta.int8) + 300, DTypeError,
     ["add", "300", "int8", "127"]),
    ("no-dtype", lambda m, v, i, b, s: m.to("complex64"), DTypeError, ["complex64", "float32"]),
    ("zeros-dtype", lambda m, v, i, b, s: ta.zeros(2, dtype="f5"), DTypeError, ["'f5'", "float32"]),
    ("tensor-type", lambda m, v, i, b, s: ta.tensor({"a": 1}), DTypeError,
     ["tensor", "{'a': 1}", "array"]),
    ("tensor-text", lambda m, v, i, b, s: ta.tensor(["a"]), DTypeError, ["tensor", "dtype"]),
    ("tensor-ragged", lambda m, v, i, b, s: ta.tensor([[1], [1, 2]]), ShapeError,
     ["tensor", "lengths", "pad"]),
    ("none-operand", lambda m, v, i, b, s: m + None, DTypeError, ["add", "None", "number"]),
    ("text-operand", lambda m, v, i, b, s: "a" + m, DTypeError, ["add", "'a'", "number"]),
    ("less-than-none", lambda m, v, i, b, s: m < None, DTypeError, ["lt", "None"]),
    ("complex", lambda m, v, i, b, s: m * 1j, DTypeError, ["mul", "1j"]),
    ("dropout-p", lambda m, v, i, b, s: F.dropout(m, "a"), DTypeError, ["dropout", "'a'"]),
    ("no-operand", lambda m, v, i, b, s: ta.add(m, None), DTypeError, ["add", "None", "number"]),
    ("rand-int", lambda m, v, i, b, s: ta.rand(2, dtype=ta.int64), ArgumentError,
     ["rand", "int64"]),
    ("randint", lambda m, v, i, b, s: ta.randint(3, 3, (2,)), ArgumentError,
     ["randint", "low (3)", "high (3)"]),
    ("bernoulli", lambda m, v, i, b, s: ta.bernoulli(m, 1.5), ArgumentError, ["bernoulli", "1.5"]),
    ("cuda", lambda m, v, i, b, s: m.cuda(), BackendError, ["cuda", "CPU", "compile"]),
    ("device", lambda m, v, i, b, s: ta.zeros(2, device="tpu"), BackendError, ["zeros", "tpu"]),
    ("int-grad", lambda m, v, i, b, s: ta.tensor([1], requires_grad=True), GradError, ["i64[1]"]),
    # indices
    ("too-many", lambda m, v, i, b, s: m[0, 0, 0], IndexingError, ["index", "3", "(2, 3)"]),
    ("out-of-range", lambda m, v, i, b, s: m[0, 3], IndexingError,
     ["index", "3", "dim 1", "(2, 3)"]),
    ("below-range", lambda m, v, i, b, s: m[-3], IndexingError, ["index", "-3", "dim 0", "size 2"]),
    ("float-index", lambda m, v, i, b, s: m[1.0], IndexingError, ["index", "float", "slices"]),
    ("float-array", lambda m, v, i, b, s: v[v], IndexingError, ["index", "float32", "int64"]),
    ("text-index", lambda m, v, i, b, s: m["a"], IndexingError, ["index", "str"]),
    ("bool-index", lambda m, v, i, b, s: m[True], IndexingError, ["index", "True"]),
    ("two-dots", lambda m, v, i, b, s: m[..., ...], IndexingError, ["index", "f32[2,3]"]),
    ("mask-shape", lambda m, v, i, b, s: m[b], IndexingError, ["index", "(3,)", "(2,)", "(2, 3)"]),
    ("arrays", lambda m, v, i, b, s: m[i[:2], i], IndexingError,
     ["index", "(2,)", "(3,)", "new dim"]),
    ("zero-step", lambda m, v, i, b, s: m[::0], IndexingError, ["index", "zero"]),
    ("index-of-0d", lambda m, v, i, b, s: s[0], IndexingError, ["index", "()"]),
    ("set-shape", lambda m, v, i, b, s: set_item(m, 0, v), ShapeError, ["setitem", "(4,)", "(3,)"]),
    ("set-index", lambda m, v, i, b, s: set_item(m, 5, 0.0), IndexingError,
     ["index", "5", "(2, 3)"]),
    ("set-nan", lambda m, v, i, b, s: set_item(i, 0, float("nan")), DTypeError, ["setitem", "nan"]),
    ("gather", lambda m, v, i, b, s: m.gather(0, i), ShapeError, ["gather", "(3,)", "(2, 3)"]),
    ("gather-float", lambda m, v, i, b, s: v.gather(0, v), DTypeError,
     ["gather", "f32[4]", "int64"]),
    ("scatter-dtype", lambda m, v, i, b, s: v.scatter(0, i, i), DTypeError, ["scatter", "i64[3]"]),
    ("scatter-src", lambda m, v, i, b, s: v.scatter_add(0, i, v[:2]), ShapeError,
     ["scatter_add", "(2,)", "(3,)"]),
    ("index_select", lambda m, v, i, b, s: m.index_select(0, i[None]), ShapeError,
     ["index_select", "1-d", "(1, 3)"]),
    ("take_along_dim", lambda m, v, i, b, s: m.take_along_dim(i, 1), ShapeError,
     ["take_along_dim", "(3,)", "(2, 3)"]),
    ("embedding", lambda m, v, i, b, s: ta.embedding(i, v), ShapeError,
     ["embedding", "(4,)", "table"]),
    ("embedding-order", lambda m, v, i, b, s: ta.embedding(m, i), DTypeError,
     ["embedding", "integers", "order"]),
    ("len", lambda m, v, i, b, s: len(s), DTypeError, ["len", "without dims"]),
    ("iter", lambda m, v, i, b, s: list(s), DTypeError, ["iter", "without dims"]),
    # in place
    ("iadd-shape", lambda m, v, i, b, s: v.add_(ta.ones(2, 4)), ShapeError,
     ["add_", "(2, 4)", "(4,)"]),
    ("iadd-dtype", lambda m, v, i, b, s: i.add_(0.5), DTypeError,
     ["add_", "float32", "int64", "cast"]),
    ("idiv-int", lambda m, v, i, b, s: i.div_(2), DTypeError, ["div_", "int64"]),
    ("imul-bool", lambda m, v, i, b, s: b.mul_(2), DTypeError, ["mul_", "int64", "bool"]),
    ("copy-shape", lambda m, v, i, b, s: (m * 1).copy_(v), ShapeError,
     ["copy_", "(4,)", "(2, 3)"]),
    ("fill-tensor", lambda m, v, i, b, s: (m * 1).fill_(v), ShapeError, ["fill_", "(4,)", "copy_"]),
    ("fill-float", lambda m, v, i, b, s: (i * 1).fill_(float("inf")), DTypeError, ["fill_", "inf"]),
    ("expanded", lambda m, v, i, b, s: v.expand(2, 4).add_(1), MutationError, ["(2, 4)", "clone"]),
    ("uniform-int", lambda m, v, i, b, s: (i * 1).uniform_(), DTypeError, ["uniform_", "int64"]),
]  # fmt: skip
each_wrong = pytest.mark.parametrize("wrong", WRONG, ids=lambda w: w[0])


@pytest.fixture(params=["eager", "traced"])
def run(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Calls a function of tensors, or traces it."""
    if request.param == "eager":
        return lambda f, *xs: f(*xs)
    return ta.trace


@each_wrong
def test_a_wrong_call(wrong: Any, run: Callable[..., Any]) -> None:
    _, call, error, fragments = wrong
    with pytest.raises(error) as caught:
        run(call, *operands())
    assert isinstance(caught.value, TinyaotError)
    check_message(str(caught.value), fragments, caught_line(call))


def check_message(message: str, fragments: list[str], line: int) -> None:
    """The fragments stand in what is said, not only in the user's line, which is shown, too."""
    said, at, shown = message.partition("\n  at ")
    assert [f for f in fragments if f not in said] == []
    assert at and shown.startswith(f"test_errors.py:{line}: ")


def caught_line(call: Call) -> int:
    """Where the mistake is: in the call itself, or in the helper it goes through."""
    if "set_item" in call.__code__.co_names:
        return set_item.__code__.co_firstlineno + 2
    return call.__code__.co_firstlineno


def test_there_are_many() -> None:
    assert len(WRONG) == len({w[0] for w in WRONG}) > 100


# ---- what only a trace cannot do ----------------------------------------------------------------

DATA_DEPENDENT: list[tuple[str, Call, list[str]]] = [
    ("bool", lambda m, v, i, b, s: 1 if s > 0 else 2, ["bool", "where"]),
    ("item", lambda m, v, i, b, s: s.item(), ["item"]),
    ("float", lambda m, v, i, b, s: float(s), ["float()", "keep it a tensor"]),
    ("int", lambda m, v, i, b, s: int(s), ["int()", "shapes"]),
    ("numpy", lambda m, v, i, b, s: m.numpy(), ["numpy"]),
    ("tolist", lambda m, v, i, b, s: m.tolist(), ["tolist"]),
    ("range", lambda m, v, i, b, s: range(i[2]), ["int()", "shapes"]),
    ("contains", lambda m, v, i, b, s: 1.0 in m, ["bool"]),
    ("nonzero", lambda m, v, i, b, s: m.nonzero(), ["nonzero", "f32[2,3]", "where"]),
    ("expand", lambda m, v, i, b, s: v[None].expand(i[2], 4), ["expand", "size", "shapes"]),
    ("repeat", lambda m, v, i, b, s: v.repeat(i[2]), ["repeat", "count", "shapes"]),
    ("topk", lambda m, v, i, b, s: v.topk(i[2]), ["topk", "k depends on data", "shapes"]),
    ("split", lambda m, v, i, b, s: v.split(i[2]), ["split", "size", "shapes"]),
    ("chunk", lambda m, v, i, b, s: v.chunk(i[2]), ["chunk", "chunks", "shapes"]),
    ("slice", lambda m, v, i, b, s: v[: i[2]], ["slices", "shapes", "index with the tensor"]),
    ("slice-2", lambda m, v, i, b, s: m[None, 0, i[1] :], ["slices", "shapes"]),
    ("roll", lambda m, v, i, b, s: v.roll(i[2], 0), ["roll", "shift", "shapes"]),
    ("arange", lambda m, v, i, b, s: ta.arange(i[2]), ["arange", "depends on data", "shapes"]),
    ("dim", lambda m, v, i, b, s: m.sum(i[1]), ["sum", "dim depends on data"]),
    ("softmax-dim", lambda m, v, i, b, s: m.softmax(i[1]), ["softmax", "dim depends on data"]),
    ("pool", lambda m, v, i, b, s: F.max_pool2d(ta.ones(1, 1, 4, 4), i[2]),
     ["max_pool2d", "kernel_size depends on data"]),
    ("zeros", lambda m, v, i, b, s: ta.zeros(i[2]), ["zeros", "depends on data", "shapes"]),
    ("reshape", lambda m, v, i, b, s: m.reshape(i.sum() * 0 + 6), ["reshape", "depends on data"]),
    ("mask", lambda m, v, i, b, s: i[b], ["index", "(3,)", "where", "masked_fill"]),
    ("one_hot", lambda m, v, i, b, s: ta.one_hot(i), ["one_hot", "num_classes"]),
    ("mask-rows", lambda m, v, i, b, s: set_item(i, b, i[:2]), ["index", "where"]),
]  # fmt: skip


@pytest.mark.parametrize("case", DATA_DEPENDENT, ids=lambda c: c[0])
def test_a_trace_has_no_values(case: Any) -> None:
    _, call, fragments = case
    call(*operands())  # fine in eager code
    with pytest.raises(TraceError) as caught:
        ta.trace(call, *operands())
    check_message(str(caught.value), fragments, caught_line(call))


# ---- what shows only when the op runs -----------------------------------------------------------


def test_values_out_of_range() -> None:
    m, v, i, _, _ = operands()
    for call in (
        lambda: m[i],
        lambda: ta.embedding(i + 5, m),
        lambda: v.gather(0, i + 2),
        lambda: m.index_select(0, i),
        lambda: set_item(v, i + 2, 0.0),
        lambda: v.scatter(0, i - 5, 1.0),
    ):
        with pytest.raises(IndexingError, match="out of range"):
            call()
    with pytest.raises(IndexingError, match=r"one_hot: class 2 is out of range.*0 \.\. 1"):
        ta.one_hot(i, 2)


def test_a_mistake_changes_nothing() -> None:
    x = ta.tensor([1, 2, 3])
    y = ta.ones(2, requires_grad=True)
    for wrong in (lambda: x.add_(0.5), lambda: x.add_(ta.ones(2, 3, dtype=ta.int64))):
        with pytest.raises(TinyaotError):
            wrong()
    with pytest.raises(MutationError, match=r"no_grad|clone"):
        y += 1
    with pytest.raises(MutationError):
        y[0] = 5.0
    assert x.tolist() == [1, 2, 3] and y.tolist() == [1, 1]


def test_errors_are_pythons_own_kinds_too() -> None:
    m, v, i, _, _ = operands()
    for builtin, call in [
        (ValueError, lambda: m + v),
        (TypeError, lambda: i.mean()),
        (IndexError, lambda: m[7]),
        (IndexError, lambda: m.sum(7)),
        (RuntimeError, lambda: m @ m),
    ]:
        with pytest.raises(builtin):
            call()
