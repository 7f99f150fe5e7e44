"""Outputs with storages of their own keep them.

A caller may write to what it is given, so two outputs share bytes only where the user's program
made them share. A rewrite that finds two values equal, or an output equal to an input, must not
merge their storages: where it would, a `copy` keeps them apart. Nor may it give him a view that
repeats or skips elements in place of a tensor in C order.
"""

from __future__ import annotations

from dataclasses import replace

from tinyaot.ir import STAGES, Node, Program, Value
from tinyaot.passes.storage import storage_of
from tinyaot.shapes import overlaps_itself


def keep_apart(before: Program, after: Program) -> Program:
    """`after`, with a `copy` for each user's or mutated output that shares a storage, with another
    or with an input, which it did not share in `before`, and for each of the user's that was in
    C order and is not any more. Outputs correspond by position."""
    owner = {i.value.id: i.value.id for i in after.inputs}  # new root: the old one it stands for
    copies: dict[int, list[Node]] = {}  # by the value that is copied
    copied: dict[tuple[int, int], Value] = {}  # (value, old root): the copy
    outputs = list(after.outputs)
    next_id = after.next_id
    for position, was in enumerate(before.outputs):
        now = after.outputs[position]
        value = now.value
        if now.role not in ("user", "mutated"):
            continue
        storage, then = storage_of(before, was.value)
        root, seen = storage_of(after, value)
        ordered = now.role == "mutated" or seen.is_contiguous
        ordered = ordered or not (
            then.is_contiguous or overlaps_itself(seen) > overlaps_itself(then)
        )
        if ordered and owner.setdefault(root, storage) == storage:
            continue
        key = value.id, storage
        if key not in copied:
            kept = was.value.id in after.values
            copied[key] = Value(next_id if kept else was.value.id, value.type)
            next_id += kept
            copies.setdefault(value.id, []).append(_copy(after, value, copied[key]))
        outputs[position] = replace(now, value=copied[key])
    if not copies:
        return after
    nodes = [n for i in after.inputs for n in copies.get(i.value.id, ())]
    for node in after.nodes:
        nodes.append(node)
        nodes += [n for r in node.results for n in copies.get(r.id, ())]
    return after.replace(nodes=tuple(nodes), outputs=tuple(outputs), next_id=next_id)


def _copy(program: Program, value: Value, result: Value) -> Node:
    """The copy takes its phase, line and origin from the node it follows."""
    made = program.producers.get(value.id)
    if made is not None:
        return replace(made, op="copy", inputs=(value,), results=(result,), attrs={})
    phased = STAGES.index(program.stage) >= STAGES.index("autodiff")
    return Node("copy", (value,), (result,), phase="forward" if phased else None)
