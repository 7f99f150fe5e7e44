"""Random statements that write, and assignments of several names."""

from __future__ import annotations

from typing import Any

import tinyaot as ta
from tests.fuzz.statements import (
    Template,
    advanced_index,
    basic_index,
    broadcasts,
    number,
    view_of,
)

G = Any  # the Generator


def parts(g: G) -> str | None:
    """Several views at once: an assignment."""
    x = g.pick(lambda t: (t.ndim and t.shape[0] == 2) or (t.ndim and t.shape[0] == 4))
    if not x:
        return None
    how = g.one_of(("ta.chunk({}, 2)", f"ta.split({{}}, {g.tensor(x).shape[0] // 2})"))
    return f"{g.fresh()}, {g.fresh()} = {how.format(x)}"


def value_for(g: G, shape: tuple[int, ...]) -> str:
    """Something that broadcasts to the shape."""
    y = g.pick_float(lambda t: broadcasts(t.shape, shape)) if g.chance(0.8) else None
    if not y:
        return number(g) if not g.smooth else "0.5"
    return g.one_of((y, y, f"{y} * 2", f"ta.sin({y})", f"{y} + {number(g)}"))


def write(g: G) -> str | None:
    x = g.pick_float() if g.smooth or g.chance(0.9) else g.pick()
    if not x:
        return None
    t = g.tensor(x)
    y = value_for(g, t.shape)
    target = x
    if g.chance(0.25) and not g.smooth:
        target = f"{view_of(g, x)}"
        y = number(g)
    if g.smooth:
        return g.one_of(
            (
                f"{target}.add_({y})",
                f"{target}.mul_({y})",
                f"{target}.copy_({y})",
                f"{target}.sub_({y})",
                f"{target}.tanh_()",
                f"{target}.fill_(0.3)",
            )
        )
    choices = [
        f"{target}.add_({y})",
        f"{target}.mul_({y})",
        f"{target}.copy_({y})",
        f"{target}.sub_({y})",
        f"{target}.tanh_()",
        f"{target}.fill_(0.3)",
        f"{target}.zero_()",
        f"{target}.neg_()",
        f"{target}.clamp_(-1, 1)",
        f"{target}.relu_()",
        f"{target}.masked_fill_({x} > 0.3, 0.5)",
        f"{target}.add_({y})",
        f"{target}.lerp_({y}, 0.5)",
        f"{target}.uniform_()",
        f"{target}.addcmul_({x}, {x})",
    ]
    if x in g.local and target == x:
        choices += [f"{x} += {y}", f"{x} *= {y}", f"{x} -= {y}", f"{x} /= ({y} + 2.5)"] * 2
    return g.one_of(choices)


def assign(g: G) -> str | None:
    x = g.pick_float(lambda t: t.ndim > 0) if g.chance(0.9) else g.pick(lambda t: t.ndim > 0)
    if not x:
        return None
    t = g.tensor(x)
    roll = g.rng.random()
    if roll < 0.6:
        index = basic_index(g, t.shape)
    elif roll < 0.85 or g.smooth:
        index = advanced_index(g, x) or "..."
    else:
        m = g.pick(lambda u: u.dtype is ta.bool and u.shape == t.shape[: u.ndim] and u.ndim)
        index = m or f"{x} > 0.2"
        return f"{x}[{index}] = {number(g)}"
    try:
        shape = g.evaluate(f"{x}[{index}].shape")
    except Exception:
        shape = ()
    operator = "=" if g.chance(0.6) else g.one_of(("+=", "*=", "-="))
    return f"{x}[{index}] {operator} {value_for(g, shape)}"


EFFECTS: list[tuple[Template, int]] = [(write, 8), (assign, 8), (parts, 2)]
