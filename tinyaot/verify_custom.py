"""The laws of custom derivative rules, and of checkpoint regions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from tinyaot.ir import Node, Program
from tinyaot.ops.core import TABLE
from tinyaot.shapes import TensorType
from tinyaot.structural import COTANGENT, CUSTOM, custom_parts
from tinyaot.text import print_node as show


def custom_rules_are_well_formed(program: Program) -> Iterator[str]:
    """`custom_vjp` reads floating outputs, as many `cotangent` nodes' results of the same types,
    floating values to differentiate by and gradients of the same types; its results are like the
    outputs. Nothing but its gradients depends on a `cotangent` of it."""
    if not any(n.op in (COTANGENT, CUSTOM) for n in program.nodes):
        return
    idle: dict[int, frozenset[int]] = {}  # the cotangents that a value depends on
    for n in program.nodes:
        depends = frozenset[int]().union(*(idle.get(v.id, ()) for v in n.inputs))
        if n.op == COTANGENT:
            if n.inputs or len(n.results) != 1 or not n.results[0].type.dtype.is_floating:
                yield f"{show(n)} is not one floating value made of nothing"
            depends = frozenset(r.id for r in n.results)
        elif n.op == CUSTOM:
            yield from _custom(program, n, idle)
            if {key: type(x) for key, x in n.attrs.items()} == {"outputs": int, "wrt": int}:
                depends -= {v.id for v in custom_parts(n).cotangents}
        if depends:
            idle.update((r.id, depends) for r in n.results)
    for o in program.outputs:
        if o.value.id in idle:
            yield f"output {o.value} depends on a cotangent that only a rule has"


def _custom(program: Program, n: Node, idle: dict[int, frozenset[int]]) -> Iterator[str]:
    if {key: type(x) for key, x in n.attrs.items()} != {"outputs": int, "wrt": int}:
        yield f"{show(n)} has the attributes {dict(n.attrs)}"
        return
    rule = custom_parts(n)
    given, cotangents, wrt, gradients = (tuple(v.type for v in part) for part in rule)
    results = tuple(r.type for r in n.results)
    makers = [program.producers.get(c.id) for c in rule.cotangents]
    own = {c.id for c in rule.cotangents}
    if not given or given != cotangents or given != results:
        yield f"{show(n)}: {listed(results)} of {listed(given)} and {listed(cotangents)}"
    elif wrt != gradients or n.attrs["wrt"] != len(wrt):
        yield f"{show(n)}: gradients {listed(gradients)} of {listed(wrt)}"
    elif not all(t.dtype.is_floating for t in given + wrt):
        yield f"{show(n)}: {listed(given + wrt)} are not all floating"
    elif len(own) < len(given) or any(m is None or m.op != COTANGENT for m in makers):
        yield f"{show(n)}: its cotangents are not as many results of `cotangent`"
    elif not all(own.isdisjoint(idle.get(v.id, ())) for v in rule.outputs + rule.wrt):
        yield f"{show(n)} gives a value that depends on its cotangent"


def checkpoints_keep_to_themselves(program: Program) -> Iterator[str]:
    """What the forward computes in a checkpoint region is read by the backward, or saved, only if
    it is read outside the region, or given back, as well."""
    base: dict[int, int] = {}  # of the views
    region: dict[int, int] = {}
    outside = {o.value.id for o in program.outputs_of("user", "mutated")}
    late = {o.value.id: "saved" for o in program.outputs_of("saved")}
    for n in program.nodes:
        again = any(o.relation == "recompute-of" for o in n.origin)  # stands for one of the forward
        for v in n.inputs:
            if v.id not in region:
                continue
            if n.phase == "backward" and not (again and n.checkpoint[:1] != (region[v.id],)):
                late.setdefault(v.id, f"read by {show(n)}")
            elif n.checkpoint[:1] != (region[v.id],):
                outside.add(v.id)
        if n.checkpoint and n.phase == "forward" and n.op != "full":
            region.update((r.id, n.checkpoint[0]) for r in n.results)
        if n.op in TABLE and TABLE[n.op].may_alias:
            base[n.results[0].id] = n.inputs[0].id
    escaped = set(outside)
    for id_ in outside:
        while id_ in base:
            id_ = base[id_]
            escaped.add(id_)
    for id_, how in late.items():
        root = id_
        while root in base and root not in escaped:
            root = base[root]
        if root in region and root not in escaped:
            yield f"%{id_} is in region {region[root]} and {how}"


def listed(types: Iterable[TensorType]) -> str:
    """Types in a message."""
    return "(" + ", ".join(map(str, types)) + ")"


def checkpoints_are_numbered(program: Program) -> Iterator[str]:
    """Checkpoint regions are numbered from 1, from the outermost to the innermost."""
    for n in program.nodes:
        if n.checkpoint == ():
            continue
        ok = all(type(region) is int and region > 0 for region in n.checkpoint)
        if not ok or tuple(sorted(set(n.checkpoint))) != n.checkpoint:
            yield f"{show(n)} is in the checkpoint regions {n.checkpoint!r}"


CUSTOM_LAWS: tuple[tuple[Callable[[Program], Iterator[str]], str, str, bool], ...] = (
    (custom_rules_are_well_formed, "trace", "functionalize", False),
    (checkpoints_are_numbered, "trace", "emit", True),
    (checkpoints_keep_to_themselves, "partition", "partition", False),
)
