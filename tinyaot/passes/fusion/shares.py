"""What part of its loops an op runs, told before there are regions.

Fusion ends loops where a mask does (see `limits`) once all that reads such a loop shares a region.
The partitioner chooses what regions are made of, and has to know that price beforehand: this is the
share of each value, should nothing keep its readers apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tinyaot.ir import Output, Program, Value
from tinyaot.ops.core import TABLE
from tinyaot.passes.fusion.forms import to_forms
from tinyaot.passes.fusion.graph import build
from tinyaot.passes.fusion.limits import COMPARISONS, short_loops
from tinyaot.passes.fusion.machine import Machine

ROWS = 64  # of a usual tile; two of them are often taken as one, which has no end to stop at


@dataclass(frozen=True)
class Shares:
    """Of values by id. `run`: the part that is run of those whose loops a mask ends, such as masked
    scores and the products that read or give them; all others run whole. `wide`: those that are
    themselves cut off there, so that keeping one for later means to run it whole."""

    run: Mapping[int, float]
    wide: frozenset[int]


WHOLE = Shares({}, frozenset())


def shares_of(program: Program) -> Shares:
    """The shares of a program that is not partitioned yet."""
    if not has_masks(program):
        return WHOLE
    g = build(to_forms(without_update(program)), Machine())
    run: dict[int, float] = {}
    wide: set[int] = set()
    for op, (s, t) in short_loops(g).items():
        if s.size > 2 * ROWS:
            run[op.value] = (s.size + ROWS) / (2 * s.size)  # from one tile to all, on average
            if {s, t} <= set(g.flat[op]):
                wide.add(op.value)
    return Shares(run, frozenset(wide))


def has_masks(program: Program) -> bool:
    """Whether a program compares two ranges of indices: labels take a while to find."""
    made = {r.id: n for n in program.nodes for r in n.results}

    def is_range(value: Value) -> bool:
        node = made.get(value.id)
        while node and TABLE[node.op].kind == "view":
            node = made.get(node.inputs[0].id)
        return node is not None and node.op == "iota"

    return any(n.op in COMPARISONS and all(map(is_range, n.inputs)) for n in program.nodes)


def without_update(program: Program) -> Program:
    """Forward and backward, which give what the update reads: half of the nodes, often."""
    update = [n for n in program.nodes if n.phase == "update"]
    late = {r.id for n in update for r in n.results}
    given = [*(o.value for o in program.outputs), *(v for n in update for v in n.inputs)]
    return program.replace(
        nodes=tuple(n for n in program.nodes if n.phase != "update"),
        outputs=tuple(Output(v) for v in dict.fromkeys(given) if v.id not in late),
    )
