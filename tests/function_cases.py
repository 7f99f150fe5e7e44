"""The table of functions, each with what NumPy or SciPy says it is, and operands for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

import tinyaot as ta
from tests.case import INF, NAN, Case, distinct, normal, positive


def softmax(x: np.ndarray, axis: Any) -> np.ndarray:
    return special.softmax(x, axis=axis)


INDEX = np.array([[0, 2, 1], [1, 0, 2]])
UNARY: list[tuple[str, Callable[..., Any], Callable[..., np.ndarray]]] = [
    ("neg", np.negative, normal),
    ("abs", np.abs, normal),
    ("sign", np.sign, normal),
    ("exp", np.exp, normal),
    ("expm1", np.expm1, normal),
    ("log", np.log, positive),
    ("log1p", np.log1p, positive),
    ("sqrt", np.sqrt, positive),
    ("rsqrt", lambda x: 1 / np.sqrt(x), positive),
    ("square", np.square, normal),
    ("reciprocal", lambda x: 1 / x, positive),
    ("sin", np.sin, normal),
    ("cos", np.cos, normal),
    ("tan", np.tan, positive),
    ("tanh", np.tanh, normal),
    ("sigmoid", special.expit, normal),
    ("relu", lambda x: np.maximum(x, 0), normal),
    ("erf", special.erf, normal),
    ("floor", np.floor, normal),
    ("ceil", np.ceil, normal),
    ("round", np.round, normal),
]
BINARY: list[tuple[str, Callable[..., Any], Callable[..., np.ndarray]]] = [
    ("add", np.add, normal),
    ("sub", np.subtract, normal),
    ("mul", np.multiply, normal),
    ("div", np.divide, positive),
    ("floordiv", np.floor_divide, positive),
    ("remainder", np.remainder, positive),
    ("pow", np.power, positive),
    ("maximum", np.maximum, normal),
    ("minimum", np.minimum, normal),
    ("atan2", np.arctan2, normal),
]
PAIRS = [((3,), (3,)), ((2, 3), (3,)), ((2, 1), (1, 3)), ((), (2, 2)), ((2, 0), (1, 1))]


def reductions() -> list[Case]:
    found = []
    plain: list[tuple[str, Any, Callable[..., np.ndarray]]] = [
        ("sum", np.sum, normal),
        ("mean", np.mean, normal),
        ("prod", np.prod, positive),
        ("amax", np.max, distinct),
        ("amin", np.min, distinct),
        ("var", lambda x, **k: np.var(x, ddof=1, **k), normal),
        ("std", lambda x, **k: np.std(x, ddof=1, **k), normal),
        ("logsumexp", special.logsumexp, normal),
        ("norm", lambda x, **k: np.sqrt(np.sum(x * x, **k)), normal),
    ]
    for name, reference, draw in plain:
        for dim in (None, 0, -1, (0, 2)):
            alone = name == "prod" and not isinstance(dim, int)
            needed = name == "logsumexp" and dim is None
            for keep in (False, True):
                found.append(
                    Case(
                        f"{name}-{dim}-{keep}",
                        lambda x, name=name, d=dim, k=keep: getattr(ta, name)(x, dim=d, keepdim=k),
                        lambda x, f=reference, d=dim, k=keep: f(x, axis=d, keepdims=k),
                        (draw(2, 3, 2),),
                        torch="takes one dim there" if alone else "needs a dim" if needed else "",
                    )
                )
    for p in (1, 2.5, 0.5, 3, INF, -INF, 0):
        found.append(
            Case(
                f"norm-p{p}",
                lambda x, p=p: ta.norm(x, p, 1),
                lambda x, p=p: np.linalg.norm(x, p, axis=1),
                (distinct(2, 4) / 3 + 0.1,),
                p != 0,
            )
        )
    return found


def cases() -> list[Case]:
    found = [Case(name, getattr(ta, name), f, (draw(2, 3) + 0.0,)) for name, f, draw in UNARY]
    found += [
        Case(f"{name}-{a}-{b}", getattr(ta, name), f, (draw(*a), draw(*b) * 1.7))
        for name, f, draw in BINARY
        for a, b in PAIRS
    ]
    found += reductions()
    x34, y34 = normal(3, 4), normal(3, 4)
    found += [
        # elementwise choices
        Case("clamp", lambda x: ta.clamp(x, -0.5, 0.7), lambda x: np.clip(x, -0.5, 0.7), (x34,)),
        Case("clamp-min", lambda x: ta.clamp(x, min=0.1), lambda x: np.maximum(x, 0.1), (x34,)),
        Case("clamp-tensor", ta.clamp, lambda x, a, b: np.minimum(np.maximum(x, a), b),
             (x34, normal(4) - 1, normal(3, 1) + 1)),
        Case("where", lambda a, b: ta.where(a > b, a * 2, b),
             lambda a, b: np.where(a > b, a * 2, b), (x34, normal(4))),
        Case("masked_fill", lambda x: ta.masked_fill(x, x > 0, -1.0),
             lambda x: np.where(x > 0, -1.0, x), (x34,)),
        Case("lerp", lambda a, b, w: ta.lerp(a, b, w), lambda a, b, w: a + w * (b - a),
             (x34, y34, positive(4))),
        Case("addcmul", lambda a, b, c: ta.addcmul(a, b, c, value=0.5),
             lambda a, b, c: a + 0.5 * b * c, (x34, y34, positive(4))),
        Case("addcdiv", lambda a, b, c: ta.addcdiv(a, b, c, value=-2.0),
             lambda a, b, c: a - 2 * b / c, (x34, y34, positive(4))),
        Case("add-alpha", lambda a, b: ta.add(a, b, alpha=3), lambda a, b: a + 3 * b, (x34, y34)),
        Case("div-floor", lambda a: ta.div(a, 0.3, rounding_mode="floor"),
             lambda a: np.floor(a / 0.3), (x34,)),
        Case("div-trunc", lambda a: ta.div(a, 0.3, rounding_mode="trunc"),
             lambda a: np.trunc(a / 0.3), (x34,)),
        Case("round-2", lambda a: ta.round(a, decimals=2), lambda a: np.round(a, 2), (x34,)),
        *(Case(f"pow-{p}", lambda x, p=p: x**p, lambda x, p=p: np.power(x, p), (positive(5),))
          for p in (2, 3, 0.5, -1, -2, 2.5, 0, 1)),
        Case("pow-of-number", lambda x: 2.0**x, lambda x: 2.0**x, (x34,)),
        # reductions that are not plain
        Case("max-dim", lambda x: ta.max(x, 1), lambda x: (x.max(1), x.argmax(1)),
             (distinct(3, 4),)),
        Case("min-dim", lambda x: ta.min(x, 0, keepdim=True),
             lambda x: (x.min(0, keepdims=True), x.argmin(0)[None]), (distinct(3, 4),)),
        Case("max-all", ta.max, np.max, (distinct(3, 4),)),
        Case("max-other", ta.max, np.maximum, (x34, y34)),
        Case("argmax", lambda x: ta.argmax(x), np.argmax, (x34,), False),
        Case("argmin", lambda x: ta.argmin(x, -1, True),
             lambda x: np.argmin(x, -1, keepdims=True), (x34,), False),
        Case("var-0", lambda x: ta.var(x, 1, correction=0), lambda x: np.var(x, axis=1), (x34,)),
        Case("var-biased", lambda x: x.var(False), lambda x: np.var(x), (x34,)),
        Case("cumsum", lambda x: ta.cumsum(x, 1), lambda x: np.cumsum(x, 1), (x34,)),
        Case("cumprod", lambda x: ta.cumprod(x, 0), lambda x: np.cumprod(x, 0), (x34,)),
        Case("softmax", lambda x: ta.softmax(x, -1), lambda x: softmax(x, -1), (x34,)),
        Case("softmax-0", lambda x: ta.softmax(x, 0), lambda x: softmax(x, 0), (x34,)),
        Case("log_softmax", lambda x: ta.log_softmax(x, 1),
             lambda x: special.log_softmax(x, axis=1), (x34,)),
        # shapes
        Case("reshape", lambda x: x.reshape(2, -1), lambda x: x.reshape(2, -1), (x34,)),
        Case("reshape-copy", lambda x: x.T.reshape(-1), lambda x: x.T.reshape(-1), (x34,)),
        Case("view", lambda x: x.view(4, 3), lambda x: x.reshape(4, 3), (x34,)),
        Case("flatten", lambda x: ta.flatten(x, 1), lambda x: x.reshape(2, 6), (normal(2, 3, 2),)),
        Case("squeeze", lambda x: ta.squeeze(x), lambda x: np.squeeze(x), (normal(1, 3, 1),)),
        Case("squeeze-1", lambda x: ta.squeeze(x, (0, 1)), lambda x: x[0], (normal(1, 3, 1),)),
        Case("unsqueeze", lambda x: ta.unsqueeze(x, -1), lambda x: x[..., None], (x34,)),
        Case("transpose", lambda x: ta.transpose(x, 0, -1), lambda x: x.swapaxes(0, -1),
             (normal(2, 3, 4),)),
        Case("permute", lambda x: ta.permute(x, 2, 0, 1), lambda x: x.transpose(2, 0, 1),
             (normal(2, 3, 4),)),
        Case("movedim", lambda x: ta.movedim(x, (0, 1), (2, 0)),
             lambda x: np.moveaxis(x, (0, 1), (2, 0)), (normal(2, 3, 4),)),
        Case("T", lambda x: x.T, lambda x: x.T, (normal(2, 3, 4),)),
        Case("mT", lambda x: x.mT, lambda x: x.swapaxes(-1, -2), (normal(2, 3, 4),)),
        Case("expand", lambda x: x.expand(2, -1, 3), lambda x: np.broadcast_to(x, (2, 4, 3)),
             (normal(4, 1),)),
        Case("broadcast_to", lambda x: ta.broadcast_to(x, (2, 3, 4)),
             lambda x: np.broadcast_to(x, (2, 3, 4)), (x34,)),
        Case("repeat", lambda x: x.repeat(2, 1, 2), lambda x: np.tile(x, (2, 1, 2)), (x34,)),
        Case("diagonal", lambda x: ta.diagonal(x, 1, 0, 2), lambda x: np.diagonal(x, 1, 0, 2),
             (normal(3, 2, 4),)),
        Case("split", lambda x: ta.split(x, 2, 1), lambda x: np.split(x, [2], 1), (normal(2, 3),)),
        Case("split-sizes", lambda x: ta.split(x, [1, 0, 3], 1),
             lambda x: np.split(x, [1, 1], 1), (x34,)),
        Case("chunk", lambda x: ta.chunk(x, 2, 1), lambda x: np.split(x, [2], 1), (normal(2, 3),)),
        Case("unbind", lambda x: ta.unbind(x, 1), lambda x: list(x.T), (x34,)),
        Case("cat", lambda a, b: ta.cat([a, b], 1), lambda a, b: np.concatenate([a, b], 1),
             (x34, normal(3, 2))),
        Case("stack", lambda a, b: ta.stack([a, b], -1), lambda a, b: np.stack([a, b], -1),
             (x34, y34)),
        Case("pad", lambda x: ta.pad(x, (1, 2, 0, 1), value=-1),
             lambda x: np.pad(x, ((0, 1), (1, 2)), constant_values=-1), (x34,)),
        Case("pad-crop", lambda x: ta.pad(x, (-1, 2)),
             lambda x: np.pad(x[:, 1:], ((0, 0), (0, 2))), (x34,)),
        Case("flip", lambda x: ta.flip(x, 0, 1), lambda x: np.flip(x, (0, 1)), (x34,)),
        Case("roll", lambda x: ta.roll(x, (1, -2), (0, 1)),
             lambda x: np.roll(x, (1, -2), (0, 1)), (x34,)),
        Case("roll-flat", lambda x: ta.roll(x, 5), lambda x: np.roll(x, 5), (x34,)),
        Case("tril", lambda x: ta.tril(x, -1), lambda x: np.tril(x, -1), (normal(2, 3, 4),)),
        Case("triu", lambda x: ta.triu(x, 1), lambda x: np.triu(x, 1), (normal(2, 3, 4),)),
        Case("clone", ta.clone, np.copy, (x34,)),
        # picking and placing
        Case("gather", lambda x, i: ta.gather(x, 1, i),
             lambda x, i: np.take_along_axis(x[:2], i, 1), (x34, INDEX)),
        Case("scatter", lambda x, s, i: ta.scatter(x, 1, i, s),
             lambda x, s, i: put(x, s, "set"), (x34, normal(2, 3), INDEX)),
        Case("scatter-number", lambda x, i: ta.scatter(x, 1, i, 2.0),
             lambda x, i: put(x, np.full((2, 3), 2.0), "set"), (x34, INDEX)),
        Case("scatter_add", lambda x, s, i: ta.scatter_add(x, 1, i, s),
             lambda x, s, i: put(x, s, "add"), (x34, normal(2, 4), INDEX)),
        Case("index_select", lambda x, i: ta.index_select(x, 1, i), lambda x, i: x[:, i],
             (x34, INDEX[0])),
        Case("take_along_dim", lambda x, i: ta.take_along_dim(x, i, 1),
             lambda x, i: np.take_along_axis(x, i, 1), (x34, INDEX[:1].T.copy())),
        Case("take_along_dim-flat", lambda x, i: ta.take_along_dim(x, i),
             lambda x, i: x.ravel()[i].ravel(), (x34, INDEX)),
        Case("embedding", lambda t, i: ta.embedding(i, t), lambda t, i: t[i],
             (normal(3, 4), INDEX)),
        Case("sort", lambda x: ta.sort(x, 0), lambda x: (np.sort(x, 0), np.argsort(x, 0)),
             (distinct(3, 4),)),
        Case("sort-down", lambda x: ta.sort(x, descending=True),
             lambda x: (-np.sort(-x), np.argsort(-x)), (distinct(3, 4),)),
        Case("topk", lambda x: ta.topk(x, 2),
             lambda x: (-np.sort(-x)[:, :2], np.argsort(-x)[:, :2]), (distinct(3, 4),)),
        Case("topk-least", lambda x: ta.topk(x, 2, 0, largest=False),
             lambda x: (np.sort(x, 0)[:2], np.argsort(x, 0)[:2]), (distinct(3, 4),)),
        # products
        *(Case(f"matmul-{a}-{b}", ta.matmul, np.matmul, (normal(*a), normal(*b)))
          for a, b in [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((2, 3), (3, 4)),
                       ((2, 2, 3), (3, 4)), ((2, 3), (2, 3, 4)), ((2, 1, 2, 3), (3, 3, 2)),
                       ((1, 2, 3), (2, 3, 1)), ((2, 2, 3), (3,)), ((3,), (2, 3, 2)),
                       ((2, 0), (0, 3)), ((0, 3), (3, 2)), ((1, 2, 3), (1, 3, 2))]),
        Case("dot", ta.dot, np.dot, (normal(4), normal(4))),
        Case("outer", ta.outer, np.outer, (normal(4), normal(3))),
        *(Case(f"einsum-{spec}", lambda *xs, s=spec: ta.einsum(s, *xs),
               lambda *xs, s=spec: np.einsum(s, *xs), tuple(normal(*s) for s in shapes))
          for spec, shapes in [
              ("ij,jk->ik", [(2, 3), (3, 4)]), ("ij,jk", [(2, 3), (3, 4)]), ("ii", [(3, 3)]),
              ("ii->i", [(3, 3)]), ("ij->ji", [(2, 3)]), ("ij->", [(2, 3)]), ("ij->i", [(2, 3)]),
              ("...ij,...jk->...ik", [(2, 1, 2, 3), (4, 3, 2)]), ("ij,ij->", [(2, 3), (2, 3)]),
              ("bij,bjk,kl->bil", [(2, 3, 4), (2, 4, 2), (2, 3)]), ("ij,k->i", [(2, 3), (4,)]),
              ("...i->...", [(2, 3, 4)]), ("iij,jk->ik", [(2, 2, 3), (3, 2)]),
              ("...,...", [(2, 3), (3,)]), ("ba,b", [(2, 3), (2,)]),
              ("ij,jk->ik", [(2, 1), (3, 2)]),
              ("i,j,k->kji", [(2,), (3,), (4,)]), ("ab,bc,cd->ad", [(2, 3), (3, 2), (2, 3)]),
          ]),
    ]  # fmt: skip
    return found


NUMPYS = {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater"}
NUMPYS |= {"ge": "greater_equal"}


def truths() -> list[Case]:
    """Functions whose result is a bool or an index: they have no derivative."""
    x, y = np.round(normal(3, 4)), np.round(normal(4))
    odd = np.array([0.0, -1.0, INF, -INF, NAN])
    found = [
        Case(name, getattr(ta, name), getattr(np, NUMPYS.get(name, name)), (x, y), False)
        for name in [*NUMPYS, "logical_and", "logical_or", "logical_xor"]
    ]
    found += [
        Case(name, getattr(ta, name), getattr(np, name), (odd,), False)
        for name in ("isnan", "isinf", "isfinite", "logical_not")
    ]
    found += [
        Case(f"{name}-{dim}-{keep}", lambda x, name=name, d=dim, k=keep: getattr(ta, name)(x, d, k),
             lambda x, f=f, d=dim, k=keep: f(x, axis=d, keepdims=k), (x,), False)
        for name, f in (("any", np.any), ("all", np.all))
        for dim, keep in ((0, False), (-1, True), ((0, 1), False))
    ]  # fmt: skip
    return [
        *found,
        Case("any", ta.any, np.any, (x,), False),
        Case("all", ta.all, np.all, (x,), False),
        Case("argsort", lambda x: ta.argsort(x, 0), lambda x: np.argsort(x, 0),
             (distinct(3, 4),), False),
        Case("argsort-down", lambda x: ta.argsort(x, -1, descending=True),
             lambda x: np.argsort(-x, -1), (distinct(3, 4),), False),
        Case("one_hot", lambda i: ta.one_hot(i, 4), lambda i: np.eye(4, dtype=int)[i],
             (INDEX,), False),
        Case("one_hot-greatest", lambda i: ta.one_hot(i), lambda i: np.eye(3, dtype=int)[i],
             (INDEX,), False, traced="the number of classes depends on the data"),
        Case("nonzero", ta.nonzero, lambda x: np.argwhere(x), (x,), False,
             traced="the shape of the result depends on the data"),
    ]  # fmt: skip


def put(x: np.ndarray, src: np.ndarray, mode: str) -> np.ndarray:
    out = x.copy()
    for i in range(INDEX.shape[0]):
        for j in range(INDEX.shape[1]):
            old = out[i, INDEX[i, j]] if mode == "add" else 0.0
            out[i, INDEX[i, j]] = old + src[i, j]
    return out


CASES = cases() + truths()
