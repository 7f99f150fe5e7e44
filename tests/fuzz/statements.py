"""Random expressions and statements over the tensors at hand.

Each function takes the generator and gives Python text, or None if nothing at hand fits. What text
has no meaning after all is found out by running it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tinyaot as ta

G = Any  # the Generator
Template = Callable[[G], "str | None"]


def number(g: G) -> str:
    return str(g.one_of((2, 3, -1, 0.5, 1.5, -0.75, True, 1, 2.0)))


def axis(g: G, name: str) -> int:
    n = g.tensor(name).ndim
    return int(g.rng.randint(-n, n - 1)) if n else 0


def axes(g: G, name: str) -> str:
    """A `dim` argument, its comma in front, or nothing."""
    n = g.tensor(name).ndim
    if not n or g.chance(0.25):
        return ""
    keep = ", keepdim=True" if g.chance(0.4) else ""
    if n > 1 and g.chance(0.2):
        return f", dim={tuple(sorted(g.rng.sample(range(n), 2)))}{keep}"
    return f", dim={axis(g, name)}{keep}"


# ---- expressions --------------------------------------------------------------------------------

SMOOTH = (
    "ta.sin({})",
    "ta.cos({})",
    "ta.tanh({})",
    "ta.sigmoid({})",
    "ta.exp({} * 0.5)",
    "-{}",
    "ta.square({})",
    "ta.erf({})",
    "ta.log(ta.square({}) + 1.5)",
    "F.gelu({})",
    "F.silu({})",
    "ta.sqrt(ta.square({}) + 0.5)",
    "F.softplus({})",
    "{} * 1",
    "{}.clone()",
    "{} ** 3",
    "F.gelu({}, approximate='tanh')",
    "ta.reciprocal(ta.square({}) + 1.0)",
    "{} ** 2",
    "ta.rsqrt(ta.square({}) + 1.0)",
    "ta.log1p(ta.square({}))",
    "ta.expm1({} * 0.5)",
    "{}.contiguous()",
)
ROUGH = (
    "ta.abs({})",
    "ta.relu({})",
    "ta.sign({})",
    "ta.floor({})",
    "{}.clamp(-0.5, 0.5)",
    "{}.clamp(min=0.1)",
    "ta.round({})",
    "{}.long()",
    "{}.double()",
    "{}.float()",
    "{}.detach()",
    "ta.isnan({})",
    "ta.zeros_like({})",
    "ta.ones_like({})",
    "{}.to(ta.bool)",
    "ta.logical_not({})",
    "ta.sqrt(ta.abs({}))",
    "{}.half()",
    "{}.to(ta.bfloat16)",
)
RANDOM = (
    "F.dropout({}, 0.5)",
    "F.dropout({}, 0.25)",
    "ta.rand_like({})",
    "ta.randn_like({})",
    "{} * ta.bernoulli(ta.full_like({}, 0.5))",
)


def unary(g: G) -> str | None:
    kinds = [SMOOTH] if g.smooth else [SMOOTH, SMOOTH, ROUGH] + [RANDOM] * g.chance(0.4)
    x = g.pick() if not g.smooth else g.pick_float()
    return x and g.one_of(g.one_of(kinds)).replace("{}", x)


def binary(g: G) -> str | None:
    x = g.pick_float() if g.chance(0.8) else g.pick()
    y = x and g.fitting(x)
    if not y:
        return None
    if g.chance(0.25):
        y = number(g)
    if g.chance(0.3):
        x, y = y, x
    if g.smooth:
        return (
            g.one_of(("{} + {}", "{} * {}", "{} - {}", "{} / ({} * {} + 1.0)"))
            .replace("{}", x, 1)
            .replace("{}", y)
        )
    form = g.one_of(
        (
            "{} + {}",
            "{} * {}",
            "{} - {}",
            "ta.maximum({}, {})",
            "ta.minimum({}, {})",
            "{} / ({} + 2.5)",
            "ta.atan2({}, {})",
            "{} < {}",
            "{} == {}",
            "{} >= {}",
            "ta.where({0} > 0.1, {0}, {1})",
            "ta.lerp({}, {}, 0.3)",
            "{} % ({} + 2.5)",
            "ta.where({0} < {1}, {1}, 0.5)",
            "ta.logical_and({}, {})",
            "{} // ({} + 3.5)",
            "ta.masked_fill({0}, {1} > 0, 0.25)",
            "ta.add({}, {}, alpha=2)",
            "ta.sub({}, {}, alpha=0.5)",
            "{} + {}",
            "{} * {}",
            "{} - {}",
            "{} * {}",
        )
    )
    return form.format(x, y)


def reduce(g: G) -> str | None:
    x = g.pick_float() if g.smooth or g.chance(0.8) else g.pick()
    if not x:
        return None
    dims, one = axes(g, x), axis(g, x)
    smooth = (
        f"{x}.sum({dims[2:]})",
        f"{x}.mean({dims[2:]})",
        f"ta.logsumexp({x}{dims})",
        f"ta.cumsum({x}, {one})",
        f"ta.softmax({x}, dim={one})",
        f"ta.prod({x}{dims})",
        f"ta.var({x}{dims})",
        f"F.log_softmax({x}, dim={one})",
        f"ta.cumprod({x}, {one})",
        f"F.layer_norm({x}, {x}.shape[-1:])",
        f"F.rms_norm({x}, {x}.shape[-1:])",
        f"ta.sqrt(ta.var({x}{dims}) + 0.5)",
        f"{x}.sum({dims[2:]})",
    )
    rough = (
        f"ta.amax({x}{dims})",
        f"ta.amin({x}{dims})",
        f"ta.max({x}, dim={one})[0]",
        f"ta.argmax({x}, dim={one})",
        f"ta.any({x} > 0{dims})",
        f"ta.all({x} < 1{dims})",
        f"ta.std({x}{dims})",
        f"ta.norm({x}{dims.replace(', dim', ', dim')})",
        f"ta.max({x})",
        f"ta.sort({x}, {one})[0]",
        f"ta.topk({x}, 1, {one})[0]",
        f"ta.argsort({x}, {one})",
        f"ta.min({x}, dim={one})[1]",
    )
    return g.one_of(smooth if g.smooth or g.chance(0.6) else rough)


def product(g: G) -> str | None:
    x = g.pick_float(lambda t: t.ndim >= 1)
    if not x:
        return None
    n = g.tensor(x).shape[-1]
    y = g.pick_float(lambda t: t.ndim >= 1 and t.shape[-1] == n and t.dtype is g.tensor(x).dtype)
    y = y or x
    if g.tensor(x).ndim == g.tensor(y).ndim == 2:
        return g.one_of(
            (
                f"{x} @ {y}.T",
                f"ta.einsum('ij,kj->ik', {x}, {y})",
                f"F.linear({x}, {y})",
                f"ta.einsum('ij,kj->ki', {x}, {y})",
                f"({y} @ {x}.T).T",
                f"{x}.T @ {x}",
                f"F.scaled_dot_product_attention({x}, {y}, {y})",
                f"{x} @ {y}.mT",
            )
        )
    if g.tensor(x).ndim == g.tensor(y).ndim == 1:
        return g.one_of(
            (
                f"{x} @ {y}",
                f"ta.outer({x}, {y})",
                f"ta.dot({x}, {y})",
                f"ta.einsum('i,j->ji', {x}, {y})",
            )
        )
    return g.one_of(
        (
            f"{x} @ {y}.mT",
            f"ta.einsum('...i,...i->...', {x}, {y})",
            f"{x} @ {y}",
            f"F.linear({x}, {y})",
            f"ta.matmul({x}, {y}.transpose(-1, -2))",
        )
    )


def loss(g: G) -> str | None:
    x = g.pick_float(lambda t: t.ndim == 2 and t.shape[1] > 0 and t.shape[0] > 0)
    if not x:
        y = g.pick_float()
        return y and g.one_of((f"F.mse_loss({y}, {y} * 0.5)", f"({y} * {y}).mean()"))
    rows, classes = g.tensor(x).shape
    labels = [g.rng.randrange(classes) for _ in range(rows)]
    return g.one_of(
        (
            f"F.cross_entropy({x}, ta.tensor({labels}))",
            f"({x} * {x}).mean()",
            f"F.nll_loss(F.log_softmax({x}, 1), ta.tensor({labels}))",
            f"F.cross_entropy({x}, ta.tensor({labels}), label_smoothing=0.1)",
            f"F.binary_cross_entropy_with_logits({x}, ta.sigmoid({x}.detach()))"
            if not g.smooth
            else f"({x} ** 2).sum()",
        )
    )


def join(g: G) -> str | None:
    x = g.pick_float() if g.chance(0.8) or g.smooth else g.pick()
    if not x:
        return None
    t = g.tensor(x)
    y = g.pick(lambda u: u.shape == t.shape and (u.dtype is t.dtype or g.chance(0.2))) or x
    one = axis(g, x)
    d = g.rng.randint(-1, 1)
    return g.one_of(
        (
            f"ta.cat([{x}, {y}], dim={one})",
            f"ta.stack([{x}, {y}], dim={one})",
            f"ta.stack([{x}, {y}])",
            f"ta.flip({x}, {one})",
            f"ta.roll({x}, {d}, {one})",
            f"ta.repeat({x}, *[2] * {x}.ndim)",
            f"ta.tril({x}, {d})",
            f"ta.triu({x}, {d})",
            f"F.pad({x}, (1, 0))",
            f"ta.pad({x}, (-1, 2), value=0.5)",
            f"ta.cat([{x}[:1], {y}], dim=0)",
        )
    )


def windows(g: G) -> str | None:
    x = g.pick_float(lambda t: t.ndim == 2 and min(t.shape) > 1)
    if not x:
        return None
    image = f"{x}[None, None]"
    return g.one_of(
        (
            f"F.avg_pool2d({image}, 2, 1)",
            f"F.conv2d({image}, {image}[:, :, :2, :2])",
            f"F.conv2d({image}, {image}[:, :, :2, :2], padding=1, stride=2)",
            f"ta.einsum('ij,ik->jk', {x}, {x})" if g.smooth else f"F.max_pool2d({image}, 2, 1)",
        )
    )


# ---- views --------------------------------------------------------------------------------------


def basic_index(g: G, shape: tuple[int, ...]) -> str:
    """Ints, slices, None and ... that fit a shape."""
    items = []
    for n in shape[: g.rng.randint(0, len(shape))]:
        roll = g.rng.random()
        if roll < 0.3 and n:
            items.append(str(g.rng.randrange(-n, n)))
        elif roll < 0.45:
            items.append(g.one_of(("::-1", "::2", "::-2", "-1::-1")))
        elif roll < 0.8:
            items.append(g.one_of(("1:", ":-1", ":2", "1:3", "-2:", ":", "0:1", "1:1")))
        else:
            items.append(":")
    if g.chance(0.1):
        items.insert(g.rng.randint(0, len(items)), "None")
    if not items or g.chance(0.15):
        items.insert(g.one_of((0, len(items))), "...")
    return ", ".join(items)


def view(g: G) -> str | None:
    x = g.pick()
    return x and view_of(g, x)


def view_of(g: G, x: str) -> str:
    t = g.tensor(x)
    a = axis(g, x)
    b = axis(g, x)
    order = list(range(t.ndim))
    g.rng.shuffle(order)
    options = [f"{x}[{basic_index(g, t.shape)}]"] * 5 + [f"{x}.reshape(-1)", f"{x}.unsqueeze({a})"]
    options += [f"{x}.T", f"{x}.transpose({a}, {b})", f"{x}.permute({tuple(order)})"]
    options += [f"{x}.squeeze()", f"ta.flatten({x})", f"{x}.view({t.size or -1})"]
    if t.ndim >= 2:
        options += [f"ta.diagonal({x}, {g.rng.randint(-1, 1)})", f"{x}.reshape({t.shape[::-1]})"]
        options += [f"{x}.mT", f"ta.diagonal({x}, 0, {a}, {b})"]
    if t.size % 2 == 0 and t.size:
        options += [f"{x}.reshape(2, -1)", f"{x}.view(-1, 2)"]
    options += [f"{x}.expand(2, *{x}.shape)", f"{x}.broadcast_to((2, *{x}.shape))"]
    if t.ndim:
        options += [f"ta.chunk({x}, 2, {a})[0]", f"ta.unbind({x}, {a})[-1]"]
        options += [f"ta.split({x}, 1, {a})[-1]"]
    return g.one_of(options)


# ---- picking elements ---------------------------------------------------------------------------


def indices(g: G, n: int, count: int | None = None) -> str:
    count = g.rng.randint(0 if g.chance(0.1) else 1, 3) if count is None else count
    found = [g.rng.randrange(-n, n) for _ in range(count)]
    return f"ta.tensor({found}, dtype=ta.int64)" if g.chance(0.5) or not found else str(found)


def advanced_index(g: G, x: str) -> str | None:
    shape = g.tensor(x).shape
    if not shape or 0 in shape:
        return None
    roll = g.rng.random()
    if roll < 0.45:
        return indices(g, shape[0])
    if len(shape) > 1:
        if roll < 0.6:
            return f":, {indices(g, shape[1])}"
        if roll < 0.75:
            count = g.rng.randint(1, 3)
            return f"{indices(g, shape[0], count)}, {indices(g, shape[1], count)}"
        if roll < 0.85:
            return f"{g.rng.randrange(shape[0])}, {indices(g, shape[1])}"
        return f"::-1, {indices(g, shape[1])}"
    i = g.pick(lambda t: t.dtype is ta.int64 and t.ndim <= 2)
    return i or indices(g, shape[0])


def gather(g: G) -> str | None:
    x = g.pick(lambda t: t.ndim > 0 and t.size > 0)
    index = x and advanced_index(g, x)
    if not index:
        return None
    n = g.tensor(x).shape[0]
    picked = [g.rng.randrange(n) for _ in range(3)]
    return g.one_of(
        (
            f"{x}[{index}]",
            f"{x}[{index}]",
            f"ta.index_select({x}, 0, ta.tensor({picked}))",
            f"F.embedding(ta.tensor({picked}), {x})",
            f"ta.take_along_dim({x}, ta.argsort({x}, 0), 0)",
            f"ta.gather({x}, 0, ta.zeros_like({x}, dtype=ta.int64))",
            f"ta.gather({x}, -1, ta.argsort({x}, -1, descending=True))",
            f"ta.scatter_add({x}, 0, ta.zeros_like({x}, dtype=ta.int64), {x})",
            f"ta.scatter({x}, 0, ta.argsort({x}, 0), {x} * 2)",
            f"F.one_hot(ta.argmax({x}, 0), {n})",
        )
    )


def broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return len(a) <= len(b) and all(n in (1, m) for n, m in zip(reversed(a), reversed(b)))


EXPRESSIONS: list[tuple[Template, int]] = [
    (unary, 12),
    (binary, 14),
    (reduce, 8),
    (product, 5),
    (join, 4),
    (view, 14),
    (gather, 4),
    (loss, 1),
    (windows, 1),
]
