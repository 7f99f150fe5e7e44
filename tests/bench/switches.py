"""What the compiler can do without, and how it is left out: patched from outside, one at a time.

Each switch is a context in which a program is lowered and loaded as if that part of the compiler
had not been written. Some parts are not here, since nothing runs without them: functionalize and
autodiff, and the form of a plan.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

from tinyaot import passes
from tinyaot.ir import Node, Program
from tinyaot.passes.fusion import forms, graph, order, regions, storage
from tinyaot.passes.fusion import plan as fusion_plan
from tinyaot.passes.fusion.graph import Graph
from tinyaot.passes.fusion.op import Op
from tinyaot.passes.identities import RULES
from tinyaot.passes.simplify import ALL_GROUPS

Patch = Callable[[], AbstractContextManager[Any]]
BOTH = ("c", "numpy")


@dataclass(frozen=True)
class Switch:
    """`name`: what is off. `patches`: how; `options`: of `compile`, where there is one for it.
    `backends`: where it makes a difference."""

    name: str
    patches: tuple[Patch, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    backends: Sequence[str] = BOTH

    @contextmanager
    def off(self) -> Iterator[None]:
        with ExitStack() as stack:
            for patch in self.patches:
                stack.enter_context(patch())
            yield


def attribute(owner: Any, name: str, value: Any) -> Patch:
    return lambda: mock.patch.object(owner, name, value)


def instead(stage: str, run: Callable[..., Program]) -> Patch:
    return lambda: mock.patch.dict(passes.PASSES, {stage: run})


def nothing(stage: str) -> Patch:
    """A pass that does nothing."""

    @functools.wraps(passes.PASSES[stage])
    def relabel(program: Program, **_: Any) -> Program:
        return program.replace(stage=stage)

    return instead(stage, relabel)


def without_rules(*groups: str) -> Patch:
    rest = [g for g in ALL_GROUPS if g not in groups]
    return instead("simplify", functools.partial(passes.simplify, rules=rest))


def without_rule(name: str) -> Patch:
    kept = {op: [r for r in found if r.name != name] for op, found in RULES.items()}
    return lambda: mock.patch.dict(RULES, kept)


# ---- fusion -------------------------------------------------------------------------------------

_grow, _levels, _build = regions.grow, fusion_plan.levels, fusion_plan.build
_dot = forms._Converter.dot


def grow_nothing(*args: Any) -> regions.Growth:
    """Only the seed: every op is a region of its own."""
    grown = _grow(*args)
    first = grown.members[:1]
    return regions.Growth(first, {op: grown.kind[op] for op in first}, {})


def copy_transposes(self: Any, node: Node, ins: Sequence[Op]) -> Op:
    """A product whose operands are copied into the order batch, rows, contracted and batch,
    contracted, columns, unless they are in it."""
    left, out = node.attrs["spec"].split("->")
    a, b = left.split(",")
    if any(c not in a and c not in b + out for c in b):
        return _dot(self, node, ins)
    orders = []
    for own, other in ((a, b), (b, a)):
        batch = [c for c in out if c in a and c in b]
        free = [c for c in out if c in own and c not in other]
        summed = [c for c in a if c in b and c not in out]
        alone = [c for c in own if c not in (*batch, *free, *summed)]
        parts = (batch, free, summed) if own is a else (batch, summed, free)
        orders.append("".join(c for part in parts for c in part) + "".join(alone))
    operands = [_ordered(self, node, x, *o) for x, o in zip(ins, zip((a, b), orders), strict=True)]
    spec = {"spec": f"{orders[0]},{orders[1]}->{out}"}
    return _dot(self, replace(node, attrs=spec), operands)


def _ordered(converter: Any, node: Node, x: Op, letters: str, wanted: str) -> Op:
    if letters != wanted:
        perm = tuple(letters.index(c) for c in wanted)
        shape = tuple(x.shape[p] for p in perm)
        x = converter.make("view", "permute", (x,), x.type.with_shape(shape), {"perm": perm}, node)
    root = x
    while root.form == "view" and root.name != "permute":
        root = root.ins[0]
    return converter.copy(x, "transposes are copied", node) if root.form == "view" else x


def barriers_everywhere(*args: Any) -> dict[Any, int]:
    """Every region in a level of its own."""
    level = _levels(*args)
    order = sorted(level, key=lambda r: (level[r], r.members[0].id))
    return {region: at for at, region in enumerate(order, 1)}


def end_to_end(placed: list[tuple[int, int, int, int]], size: int, first: int, last: int) -> int:
    """Memory that nothing had before."""
    at = max((start + n for start, n, _, _ in placed), default=0)
    placed.append((at, size, first, last))
    return at


def copies_at_the_end(*args: Any) -> Graph:
    """New values of parameters are computed elsewhere, and copied."""
    g = _build(*args)
    for op in list(g.overwrites):
        g.late.add(graph.add_copy(g, op, readers=False))
    return g


# ---- the NumPy backend's plan -------------------------------------------------------------------


def slots_end_to_end(slots: Sequence[Any]) -> int:
    """Every buffer has bytes of its own."""
    span = 0
    for slot in slots:
        slot.offset, span = span, span + -(-slot.nbytes // 64) * 64
    return span


def never(*_: Any) -> bool:
    return False


C, NUMPY = ("c",), ("numpy",)
INLINE = attribute(graph, "KEEP", -1.0)
SWITCHES = [
    Switch("simplify", (without_rules(*ALL_GROUPS),)),
    *(Switch(f"simplify: {group}", (without_rules(group),)) for group in ALL_GROUPS),
    Switch("partition: all saved", options={"partition": "save_all"}),
    Switch("partition: all recomputed", options={"partition": "recompute_all"}),
    Switch("layout: the pass", (nothing("layout"),), {}, C),
    Switch(
        "layout: transposes are strides",
        (attribute(forms._Converter, "dot", copy_transposes),),
        {},
        C,
    ),
    Switch("fuse", (attribute(regions, "grow", grow_nothing), INLINE), {}, C),
    Switch("fuse: regions grow", (attribute(regions, "grow", grow_nothing),), {}, C),
    Switch("fuse: cheap maps in every loop", (INLINE,), {}, C),
    Switch(
        "fuse: loops end with the tile",
        (attribute(regions, "find_limits", lambda *_: {}),),
        {},
        C,
    ),
    Switch(
        "fuse: recompute late", (attribute(order, "wait_for_gradients", lambda _: None),), {}, C
    ),
    Switch(
        "schedule: levels side by side",
        (attribute(fusion_plan, "levels", barriers_everywhere),),
        {},
        C,
    ),
    Switch("schedule", (nothing("schedule"),), {}, NUMPY),
    Switch("plan: memory reused", (attribute(storage, "first_fit", end_to_end),), {}, C),
    Switch("plan: updates in place", (attribute(fusion_plan, "build", copies_at_the_end),), {}, C),
    Switch(
        "plan: memory reused",
        (lambda: mock.patch("tinyaot.passes.plan.place_slots", slots_end_to_end),),
        {},
        NUMPY,
    ),
    Switch(
        "plan: in place",
        (
            lambda: mock.patch("tinyaot.passes.plan.may_write_over", never),
            lambda: mock.patch("tinyaot.passes.homes.may_write_over", never),
        ),
        {},
        NUMPY,
    ),
]
RULE_NAMES = sorted({(r.group, r.name) for found in RULES.values() for r in found})
RULE_SWITCHES = [Switch(f"{group}: {name}", (without_rule(name),)) for group, name in RULE_NAMES]
