"""The benchmark's workloads in a framework-neutral form.

A workload is a set of initial parameters and one fixed batch (both numpy,
made from a seed), an optimizer with its hyperparameters, and a loss written
against a small namespace of operations `F` that each peer supplies (see
`peer_api.py`).  Every peer therefore trains the same model on the same data
from the same start; the driver checks losses and parameter movement.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

SEED = 1234


@dataclass(frozen=True)
class Optimizer:
    kind: str  # "sgd", "momentum" or "adamw"
    lr: float
    momentum: float = 0.0
    betas: tuple = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    @property
    def states_per_param(self):
        return {"sgd": 0, "momentum": 1, "adamw": 2}[self.kind]


ADAMW = Optimizer("adamw", 1e-3, weight_decay=0.01)


@dataclass(frozen=True)
class Workload:
    name: str
    init: Callable  # rng -> ({name: array} parameters, {name: array} batch)
    loss: Callable  # (F, params, batch) -> scalar
    optimizer: Optimizer
    gemms: Callable  # () -> [(count, m, n, k)] matrix products of one step
    elementwise: float = 0.0  # transcendental evaluations of one step
    note: str = ""

    def make(self, seed=SEED):
        params, batch = self.init(np.random.default_rng(seed))
        as_f32 = {k: np.ascontiguousarray(v, np.float32) for k, v in params.items()}
        return as_f32, {k: np.ascontiguousarray(v) for k, v in batch.items()}

    def gemm_flops(self):
        return sum(2.0 * c * m * n * k for c, m, n, k in self.gemms())

    def compulsory_bytes(self):
        """Parameters and optimizer state read and written once, batch read once."""
        params, batch = self.make()
        p = sum(v.nbytes for v in params.values())
        return p * 2 * (1 + self.optimizer.states_per_param) + sum(v.nbytes for v in batch.values())


def dense(rng, n_in, n_out):
    return rng.standard_normal((n_in, n_out)) / np.sqrt(n_in)


def linear_gemms(m, n, k, input_grad=True):
    """Forward, weight gradient and (unless it is the first layer) input gradient."""
    products = [(1, m, n, k), (1, k, n, m)]
    return [*products, (1, m, k, n)] if input_grad else products


# ---- multilayer perceptrons -------------------------------------------------


def mlp(name, batch, sizes, activation, optimizer):
    layers = list(itertools.pairwise(sizes))

    def init(rng):
        params = {}
        for i, (a, b) in enumerate(layers):
            params[f"w{i}"] = dense(rng, a, b)
            params[f"b{i}"] = np.zeros(b)
        x = rng.standard_normal((batch, sizes[0])).astype(np.float32)
        return params, {"x": x, "y": rng.integers(0, sizes[-1], batch, dtype=np.int64)}

    def loss(F, p, data):
        h = data["x"]
        for i in range(len(layers)):
            h = F.linear(h, p[f"w{i}"], p[f"b{i}"])
            if i + 1 < len(layers):
                h = getattr(F, activation)(h)
        return F.cross_entropy(h, data["y"])

    def gemms():
        return [g for i, (a, b) in enumerate(layers) for g in linear_gemms(batch, b, a, i > 0)]

    return Workload(name, init, loss, optimizer, gemms)


def mlp_deep(name, batch=64, width=256, depth=16, classes=10):
    def init(rng):
        params = {}
        for i in range(depth):
            params[f"w{i}"] = dense(rng, width, width)
            params[f"b{i}"] = np.zeros(width)
            params[f"g{i}"] = np.ones(width)
            params[f"s{i}"] = np.zeros(width)
        params["w_out"], params["b_out"] = dense(rng, width, classes), np.zeros(classes)
        x = rng.standard_normal((batch, width)).astype(np.float32)
        return params, {"x": x, "y": rng.integers(0, classes, batch, dtype=np.int64)}

    def loss(F, p, data):
        h = data["x"]
        for i in range(depth):
            h = F.gelu(F.layernorm(F.linear(h, p[f"w{i}"], p[f"b{i}"]), p[f"g{i}"], p[f"s{i}"]))
        return F.cross_entropy(F.linear(h, p["w_out"], p["b_out"]), data["y"])

    def gemms():
        hidden = [g for i in range(depth) for g in linear_gemms(batch, width, width, i > 0)]
        return hidden + linear_gemms(batch, classes, width)

    return Workload(name, init, loss, Optimizer("momentum", 0.01, momentum=0.9), gemms)


# ---- an elementwise chain ---------------------------------------------------


def chain(name, rows=4096, cols=1024):
    """Twelve elementwise operations on `rows * cols` values, then a sum.

    x and the two broadcast vectors are the parameters, so the step reads and
    writes all of x; the sum is divided by `rows` to keep the step stable.
    """

    def init(rng):
        return {
            "x": rng.standard_normal((rows, cols)),
            "w": 1.0 + 0.1 * rng.standard_normal(cols),
            "b": 0.1 * rng.standard_normal(cols),
        }, {}

    def loss(F, p, data):
        u = p["x"] * p["w"] + p["b"]
        t = F.tanh(u)
        s = F.sigmoid(u)
        g = F.gelu(t)
        e = F.exp(-s)
        return F.sum(g * s + e * t - s * s) * (1.0 / rows)

    return Workload(
        name, init, loss, Optimizer("sgd", 0.1), lambda: [], elementwise=5.0 * rows * cols
    )


# ---- a small GPT ------------------------------------------------------------


def gpt(name, B, T, D, H, blocks=2, vocab=256):
    def init(rng):
        p = {
            "tok": 0.02 * rng.standard_normal((vocab, D)),
            "pos": 0.02 * rng.standard_normal((T, D)),
        }
        for i in range(blocks):
            p[f"ln1_g{i}"], p[f"ln1_b{i}"] = np.ones(D), np.zeros(D)
            p[f"qkv_w{i}"], p[f"qkv_b{i}"] = dense(rng, D, 3 * D), np.zeros(3 * D)
            p[f"out_w{i}"], p[f"out_b{i}"] = dense(rng, D, D), np.zeros(D)
            p[f"ln2_g{i}"], p[f"ln2_b{i}"] = np.ones(D), np.zeros(D)
            p[f"up_w{i}"], p[f"up_b{i}"] = dense(rng, D, 4 * D), np.zeros(4 * D)
            p[f"down_w{i}"], p[f"down_b{i}"] = dense(rng, 4 * D, D), np.zeros(D)
        p["lnf_g"], p["lnf_b"] = np.ones(D), np.zeros(D)
        p["head_w"], p["head_b"] = dense(rng, D, vocab), np.zeros(vocab)
        ids = rng.integers(0, vocab, (B, T + 1), dtype=np.int64)
        return p, {"ids": ids[:, :-1], "y": ids[:, 1:]}

    def loss(F, p, data):
        h = F.embedding(p["tok"], data["ids"]) + p["pos"]
        for i in range(blocks):
            a = F.layernorm(h, p[f"ln1_g{i}"], p[f"ln1_b{i}"])
            qkv = F.linear(a, p[f"qkv_w{i}"], p[f"qkv_b{i}"])
            h = h + F.linear(F.causal_attention(qkv, H), p[f"out_w{i}"], p[f"out_b{i}"])
            a = F.layernorm(h, p[f"ln2_g{i}"], p[f"ln2_b{i}"])
            a = F.gelu(F.linear(a, p[f"up_w{i}"], p[f"up_b{i}"]))
            h = h + F.linear(a, p[f"down_w{i}"], p[f"down_b{i}"])
        h = F.layernorm(h, p["lnf_g"], p["lnf_b"])
        logits = F.linear(h, p["head_w"], p["head_b"])
        return F.cross_entropy(F.reshape(logits, (B * T, vocab)), F.reshape(data["y"], (B * T,)))

    def gemms():
        m, d = B * T, D // H
        block = [
            g
            for n, k in ((3 * D, D), (D, D), (4 * D, D), (D, 4 * D))
            for g in linear_gemms(m, n, k)
        ]
        block += [
            (3 * B * H, T, T, d),
            (3 * B * H, T, d, T),
        ]  # scores and values, forward and backward
        return block * blocks + linear_gemms(m, vocab, D)

    return Workload(
        name,
        init,
        loss,
        ADAMW,
        gemms,
        note="attention products counted dense; a causal kernel may skip half of them",
    )


# ---- a small convolutional net ----------------------------------------------


def cnn(name, batch=64, side=28, c1=16, c2=32, classes=10):
    flat = c2 * (side // 4) ** 2

    def init(rng):
        return {
            "k1": rng.standard_normal((c1, 1, 3, 3)) / 3.0,
            "b1": np.zeros(c1),
            "k2": rng.standard_normal((c2, c1, 3, 3)) / np.sqrt(9 * c1),
            "b2": np.zeros(c2),
            "w": dense(rng, flat, classes),
            "b": np.zeros(classes),
        }, {
            "x": rng.standard_normal((batch, 1, side, side)).astype(np.float32),
            "y": rng.integers(0, classes, batch, dtype=np.int64),
        }

    def loss(F, p, data):
        h = F.maxpool2(F.relu(F.conv3x3(data["x"], p["k1"], p["b1"])))
        h = F.maxpool2(F.relu(F.conv3x3(h, p["k2"], p["b2"])))
        return F.cross_entropy(F.linear(F.reshape(h, (batch, flat)), p["w"], p["b"]), data["y"])

    def gemms():
        first = linear_gemms(batch * side * side, c1, 9, input_grad=False)
        second = linear_gemms(batch * (side // 2) ** 2, c2, 9 * c1)
        return first + second + linear_gemms(batch, classes, flat)

    return Workload(name, init, loss, Optimizer("sgd", 0.05), gemms)


MAKERS = {  # by name: a function of the name and of what may be changed
    "mlp_tiny": partial(
        mlp, batch=32, sizes=(64, 128, 10), activation="relu", optimizer=Optimizer("sgd", 0.1)
    ),
    "mlp_wide": partial(
        mlp, batch=256, sizes=(784, 1024, 1024, 10), activation="gelu", optimizer=ADAMW
    ),
    "mlp_deep": mlp_deep,
    "chain": chain,
    "gpt_block": partial(gpt, B=8, T=128, D=256, H=4),
    "gpt_long": partial(gpt, B=1, T=1024, D=128, H=4),
    "cnn_small": cnn,
}


def workload(text):
    """The workload of that name, or, after an `@`, one changed in some numbers (joined by `x` where
    there are several): `mlp_deep@depth=32,batch=61`, `mlp_tiny@sizes=64x128x10`."""
    name, _, changes = text.partition("@")
    if name not in MAKERS:
        raise ValueError(f"no workload {name!r}; there are {', '.join(MAKERS)}")
    changed = {}
    for change in changes.split(",") if changes else ():
        key, _, numbers = change.partition("=")
        found = tuple(map(int, numbers.split("x")))
        changed[key] = found if key == "sizes" else found[0]
    return MAKERS[name](text, **changed)


WORKLOADS = {name: workload(name) for name in MAKERS}
