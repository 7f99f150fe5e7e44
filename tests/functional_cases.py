"""More rows of the table: creation, casts, indexing, operators, writes in place, `nn.functional`.

Those of `nn.functional` have their formulas in test files of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tinyaot as ta
from tests.case import Case, distinct, normal, positive
from tests.function_cases import CASES
from tinyaot.nn import functional as F

X, Y, ROW, PART = normal(3, 4), normal(3, 4), normal(4), positive(3, 4)
PICK, MASK = np.array([2, 0, 2]), np.array([True, False, True])
DATA = "the shape of the result depends on the data"
NO_STEPS = "torch has no negative steps"


def written(x: Any, key: Any, value: Any) -> Any:
    y = x * 1
    y[key] = value
    return y


def creation() -> list[Case]:
    return [
        Case("zeros", lambda: ta.zeros(2, 3), lambda: np.zeros((2, 3), "f4"), ()),
        Case("ones", lambda: ta.ones((2, 3)), lambda: np.ones((2, 3), "f4"), ()),
        Case("full", lambda: ta.full((2,), 0.5), lambda: np.full(2, 0.5, "f4"), ()),
        Case("empty", lambda: ta.empty(2, 3) * 0 == 0, None, (), torch="any values"),
        Case("arange", lambda: ta.arange(1, 9, 3), lambda: np.arange(1, 9, 3), ()),
        Case("arange-float", lambda: ta.arange(0.0, 1.0, 0.25),
             lambda: np.arange(4, dtype="f4") / 4, ()),
        Case("eye", lambda: ta.eye(2, 3), lambda: np.eye(2, 3, dtype="f4"), ()),
        Case("tensor", lambda: ta.tensor([[1.5, 2], [3, 4]]),
             lambda: np.array([[1.5, 2], [3, 4]], "f4"), ()),
        Case("zeros_like", ta.zeros_like, np.zeros_like, (X,), False),
        Case("ones_like", ta.ones_like, np.ones_like, (X,), False),
        Case("full_like", lambda x: ta.full_like(x, 3), lambda x: np.full_like(x, 3), (X,), False),
        Case("empty_like", lambda x: ta.empty_like(x) * 0 == 0, None, (X,), False,
             torch="any values"),
    ]  # fmt: skip


RANDOM = "another generator"


def random() -> list[Case]:
    """What draws; the same seed gives the same numbers in every mode."""
    draws: list[tuple[str, Callable[..., Any], tuple[np.ndarray, ...]]] = [
        ("rand", lambda: ta.rand(2, 3), ()),
        ("randn", lambda: ta.randn(2, 3), ()),
        ("randint", lambda: ta.randint(0, 9, (2, 3)), ()),
        ("rand_like", lambda x: ta.rand_like(x), (X,)),
        ("randn_like", lambda x: ta.randn_like(x), (X,)),
        ("bernoulli", lambda p: ta.bernoulli(p), (PART,)),
        ("uniform_", lambda x: (x * 1).uniform_(-1, 2), (X,)),
        ("normal_", lambda x: (x * 1).normal_(1, 2), (X,)),
        ("dropout", lambda x: F.dropout(x, 0.3), (X,)),
    ]
    return [Case(n, f, None, xs, n == "dropout", torch=RANDOM) for n, f, xs in draws]


def casts() -> list[Case]:
    found = [
        Case("contiguous", lambda x: x.T.contiguous(), lambda x: x.T, (X,)),
        Case("to", lambda x: (x * 1).to(ta.float64), None, (X,)),
        Case("to-device", lambda x: (x * 1).to("cpu"), np.copy, (X,)),
        Case("cpu", lambda x: (x * 1).cpu(), np.copy, (X,)),
        Case("detach", lambda x: x.detach() * x, lambda x: x * x, (X,), False),
    ]
    for name in ("float", "double", "half", "bfloat16", "int", "long", "bool"):
        f = lambda x, name=name: getattr(x * 1, name)()  # noqa: E731
        found.append(Case(name, f, None, (3 * X,), name in ("double",)))
    return found


def indexing() -> list[Case]:
    keys: dict[str, tuple[Any, str]] = {
        "int": (1, ""),
        "slices": ((slice(1, None), slice(None, None, 2)), ""),
        "backwards": ((slice(None, None, -1), slice(3, 0, -2)), NO_STEPS),
        "none": ((None, Ellipsis, None, 2), ""),
        "list": ([2, 0, 2], ""),
        "pair": (([2, 0, 2], [1, 1, 0]), ""),
        "column": ((slice(None), [1, 3]), ""),
        "apart": (([0, 1], None, [1, 3]), ""),
        "empty": (slice(2, 2), ""),
    }
    found = []
    for name, (key, why) in keys.items():
        read = (lambda x, k=key: x[k]) if name != "int" else (lambda x: x[1])
        found.append(Case(f"__getitem__-{name}", read, read, (X,), torch=why))
        write = lambda x, v, k=key: written(x, k, v)  # noqa: E731
        # torch leaves open which of two writes to one place wins
        twice = "" if name not in ("list", "pair") else "which write wins is open there"
        value = np.array(0.5) if name == "empty" else X[key] * 2
        found.append(Case(f"__setitem__-{name}", write, write, (X, value), torch=why or twice))
    return [
        *found,
        Case("__getitem__-tensor", lambda x, i: x[i], lambda x, i: x[i], (X, PICK)),
        Case("__getitem__-mask", lambda x, m: x[m], lambda x, m: x[m], (X, MASK), traced=DATA),
        Case("__setitem__-mask", lambda x, m: written(x, m, 2.0), lambda x, m: written(x, m, 2.0),
             (X, MASK)),
        Case("__iter__", lambda x: [row * 2 for row in x], lambda x: list(x * 2), (X,)),
        Case("__len__", lambda x: x * len(x), lambda x: x * 3, (X,)),
        Case("__contains__", lambda x: ta.tensor(0.0 in x), lambda x: np.array(False), (X,), False,
             traced="it asks for the value of a tensor"),
    ]  # fmt: skip


def operators() -> list[Case]:
    forms: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
        "__neg__": (lambda x: -x, (X,)),
        "__pos__": (lambda x: +(x * 1), (X,)),
        "__abs__": (lambda x: abs(x), (X,)),
        "__round__": (lambda x: round(x), (X,)),
        "__add__": (lambda x, y: x + y, (X, ROW)),
        "__radd__": (lambda x: 2 + x, (X,)),
        "__sub__": (lambda x, y: x - y, (X, ROW)),
        "__rsub__": (lambda x: 2 - x, (X,)),
        "__mul__": (lambda x, y: x * y, (X, ROW)),
        "__rmul__": (lambda x: 2 * x, (X,)),
        "__truediv__": (lambda x, y: x / y, (X, PART)),
        "__rtruediv__": (lambda x: 2 / x, (PART,)),
        "__floordiv__": (lambda x, y: x // y, (X, PART)),
        "__rfloordiv__": (lambda x: 2 // x, (PART,)),
        "__mod__": (lambda x, y: x % y, (X, PART)),
        "__rmod__": (lambda x: 2 % x, (PART,)),
        "__pow__": (lambda x, y: x**y, (PART, ROW)),
        "__rpow__": (lambda x: 2**x, (X,)),
        "__matmul__": (lambda x, y: x @ y, (X, ROW)),
        "__rmatmul__": (lambda x, y: x.__rmatmul__(y), (X, Y[:, :3].copy())),
        "__eq__": (lambda x, y: x == y, (X, ROW)),
        "__ne__": (lambda x, y: x != y, (X, ROW)),
        "__lt__": (lambda x, y: x < y, (X, ROW)),
        "__le__": (lambda x, y: x <= y, (X, ROW)),
        "__gt__": (lambda x, y: x > y, (X, ROW)),
        "__ge__": (lambda x, y: x >= y, (X, ROW)),
        "__and__": (lambda x, y: (x > 0) & (y > 0), (X, ROW)),
        "__rand__": (lambda x: True & (x > 0), (X,)),
        "__or__": (lambda x, y: (x > 0) | (y > 0), (X, ROW)),
        "__ror__": (lambda x: False | (x > 0), (X,)),
        "__xor__": (lambda x, y: (x > 0) ^ (y > 0), (X, ROW)),
        "__rxor__": (lambda x: True ^ (x > 0), (X,)),
        "__invert__": (lambda x: ~(x > 0), (X,)),
    }
    particular = {"__rmatmul__": lambda x, y: y @ x, "__round__": np.round}
    truths = ("eq", "ne", "lt", "le", "gt", "ge", "and", "rand", "or", "ror", "xor", "rxor")
    return [
        Case(name, f, particular.get(name, f), xs, name.strip("_") not in (*truths, "invert"),
             torch="torch's tensors have no __round__" if name == "__round__" else "")
        for name, (f, xs) in forms.items()
    ]  # fmt: skip


def in_place() -> list[Case]:
    """Each writes a copy of its first operand, which is what it returns."""
    one = ("neg abs exp square sin cos tanh sigmoid relu floor ceil round tril triu zero").split()
    two = ("add sub mul maximum minimum copy").split()
    roots = ("log sqrt rsqrt reciprocal").split()
    found = [Case(f"{n}_", lambda x, n=n: getattr(x.clone(), n + "_")(), None, (X,)) for n in one]
    found += [
        Case(f"{n}_", lambda x, n=n: getattr(x.clone(), n + "_")(), None, (PART,)) for n in roots
    ]
    found += [
        Case(f"{n}_", lambda x, y, n=n: getattr(x.clone(), n + "_")(y), None, (X, ROW),
             torch="" if n not in ("maximum", "minimum") else f"torch has no {n}_")
        for n in two
    ]  # fmt: skip
    found += [
        Case(f"{n}_", lambda x, y, n=n: getattr(x.clone(), n + "_")(y), None, (X, PART),
             torch="" if n != "floordiv" else "floor_divide_ there")
        for n in ("div", "floordiv", "remainder")
    ]  # fmt: skip
    found += [
        Case(f"logical_{n}_", lambda x, y, n=n: getattr(x.clone(), f"logical_{n}_")(y), None,
             (X, ROW), False, torch="there the gradient of the value written over stays")
        for n in ("and", "or", "xor")
    ]  # fmt: skip

    def augmented(sign: str) -> Callable[..., Any]:
        scope: dict[str, Any] = {}
        exec(f"def f(x, y):\n    x = x.clone()\n    x {sign}= y\n    return x", scope)
        return scope["f"]  # type: ignore[no-any-return]

    names = {"iadd": "+", "isub": "-", "imul": "*", "itruediv": "/", "ifloordiv": "//"}
    names |= {"imod": "%", "ipow": "**"}
    found += [Case(f"__{n}__", augmented(s), None, (PART, ROW)) for n, s in names.items()]
    found += [
        Case(f"__{n}__", lambda x, y, f=f: f(x > 0, y > 0), None, (X, ROW), False)
        for n, f in (("iand", augmented("&")), ("ior", augmented("|")), ("ixor", augmented("^")))
    ]
    return [
        *found,
        Case("pow_", lambda x, y: x.clone().pow_(y), None, (PART, ROW)),
        Case("clamp_", lambda x: x.clone().clamp_(-0.5, 0.7), None, (X,)),
        Case("fill_", lambda x: x.clone().fill_(0.5), None, (X,), False),
        Case("logical_not_", lambda x: x.clone().logical_not_(), None, (X,), False),
        Case("masked_fill_", lambda x: x.clone().masked_fill_(x > 0, -1.0), None, (X,)),
        Case("addcmul_", lambda x, y, z: x.clone().addcmul_(y, z, value=0.5), None, (X, Y, ROW)),
        Case("addcdiv_", lambda x, y, z: x.clone().addcdiv_(y, z, value=0.5), None, (X, Y, PART)),
        Case("lerp_", lambda x, y: x.clone().lerp_(y, 0.25), None, (X, Y)),
        Case("scatter_", lambda x, i, s: x.clone().scatter_(1, i, s), None,
             (X, np.array([[0], [2]]), Y[:2, :1].copy())),
        Case("scatter_add_", lambda x, i, s: x.clone().scatter_add_(1, i, s), None,
             (X, np.array([[0, 0], [2, 1]]), Y[:2, :2].copy())),
    ]  # fmt: skip


def functional() -> list[Case]:
    image, kernel = normal(2, 4, 5, 6), normal(6, 2, 3, 2) / 4
    apart = distinct(1, 2, 5, 6) / 7
    logits, classes = normal(5, 4), np.array([3, 0, 1, 1, 2])
    chances = positive(5, 4)
    q, k, v = normal(2, 3, 4), normal(2, 5, 4), normal(2, 5, 3)
    sees = np.tril(np.ones((3, 5), bool), 1)
    mean, var = normal(4), positive(4)
    rows: list[tuple[str, Callable[..., Any], tuple[np.ndarray, ...]]] = [
        ("linear", lambda x, w, b: F.linear(x, w, b), (X, normal(2, 4), normal(2))),
        ("relu-F", lambda x: F.relu(x), (X,)),
        ("sigmoid-F", lambda x: F.sigmoid(x), (X,)),
        ("tanh-F", lambda x: F.tanh(x), (X,)),
        ("gelu", lambda x: F.gelu(x), (2 * X,)),
        ("gelu-tanh", lambda x: F.gelu(x, approximate="tanh"), (2 * X,)),
        ("silu", lambda x: F.silu(x), (2 * X,)),
        ("softplus", lambda x: F.softplus(x), (2 * X,)),
        ("softplus-beta", lambda x: F.softplus(x, 2.0, 1.5), (2 * X,)),
        ("softmax-F", lambda x: F.softmax(x, 0), (X,)),
        ("log_softmax-F", lambda x: F.log_softmax(x, dim=-1), (X,)),
        ("pad-F", lambda x: F.pad(x, (1, 2, 0, 1), value=0.5), (X,)),
        ("embedding-F", lambda t, i: F.embedding(i, t), (X, PICK)),
        ("one_hot-F", lambda i: F.one_hot(i, 4), (PICK,)),
        ("mse_loss", lambda x, y: F.mse_loss(x, y), (X, Y)),
        ("mse_loss-sum", lambda x, y: F.mse_loss(x, y, reduction="sum"), (X, Y)),
        ("nll_loss", lambda x, t: F.nll_loss(F.log_softmax(x, 1), t), (logits, classes)),
        ("nll_loss-weight", lambda x, t, w: F.nll_loss(F.log_softmax(x, 1), t, w, ignore_index=1),
         (logits, classes, positive(4))),
        ("cross_entropy", lambda x, t: F.cross_entropy(x, t), (logits, classes)),
        ("cross_entropy-none", lambda x, t: F.cross_entropy(x, t, reduction="none"),
         (logits, classes)),
        ("cross_entropy-all", lambda x, t, w: F.cross_entropy(
            x, t, w, ignore_index=2, label_smoothing=0.1), (logits, classes, positive(4))),
        ("cross_entropy-images", lambda x, t: F.cross_entropy(x, t),
         (normal(2, 4, 3), np.array([[0, 1, 3], [2, 2, 0]]))),
        ("cross_entropy-chances", lambda x, p: F.cross_entropy(x, p), (logits, chances)),
        ("binary_cross_entropy_with_logits",
         lambda x, y: F.binary_cross_entropy_with_logits(x, y), (logits, chances)),
        ("binary_cross_entropy_with_logits-weight",
         lambda x, y, w, p: F.binary_cross_entropy_with_logits(
             x, y, w, reduction="sum", pos_weight=p), (logits, chances, positive(4), positive(4))),
        ("layer_norm", lambda x, w, b: F.layer_norm(x, (4,), w, b), (X, ROW, normal(4))),
        ("layer_norm-plain", lambda x: F.layer_norm(x, (3, 4), eps=0.1), (normal(2, 3, 4),)),
        ("rms_norm", lambda x, w: F.rms_norm(x, (4,), w), (X, ROW)),
        ("rms_norm-eps", lambda x: F.rms_norm(x, (3, 4), eps=0.1), (normal(2, 3, 4),)),
        ("batch_norm-training",
         lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), (X, ROW, mean)),
        ("batch_norm", lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b),
         (image, mean, var, normal(4), mean)),
        ("scaled_dot_product_attention",
         lambda q, k, v: F.scaled_dot_product_attention(q, k, v), (q, k, v)),
        ("scaled_dot_product_attention-causal",
         lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), (q, q, q)),
        ("scaled_dot_product_attention-mask",
         lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), (q, k, v, sees)),
        ("scaled_dot_product_attention-bias",
         lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, scale=0.3),
         (q, k, v, normal(3, 5))),
        ("conv2d", lambda x, w, b: F.conv2d(x, w, b, 2, (1, 0), 1, 2), (image, kernel, normal(6))),
        ("conv2d-same", lambda x, w: F.conv2d(x, w, padding="same", dilation=2),
         (image[:, :2].copy(), kernel)),
        ("max_pool2d", lambda x: F.max_pool2d(x, 2, 1, 1), (apart,)),
        ("max_pool2d-ceil", lambda x: F.max_pool2d(x, (3, 2), ceil_mode=True), (apart,)),
        ("avg_pool2d", lambda x: F.avg_pool2d(x, 2, 2, 1), (apart,)),
        ("avg_pool2d-inside",
         lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False), (apart,)),
    ]  # fmt: skip
    padded = lambda t, i: F.embedding(i, t, padding_idx=0)  # noqa: E731
    return [
        Case("embedding-padded", padded, None, (X, PICK), False),  # a row without a gradient
        *(Case(name, f, None, xs, name != "one_hot-F") for name, f, xs in rows),
    ]


IN_PLACE, FUNCTIONAL = in_place(), functional()
EVERY = [
    *CASES,
    *creation(),
    *random(),
    *casts(),
    *indexing(),
    *operators(),
    *IN_PLACE,
    *FUNCTIONAL,
]
