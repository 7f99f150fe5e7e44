"""Layout: which strides each value has, so that products read transposes in place."""

from __future__ import annotations

from tinyaot.ir import Program
from tinyaot.record import Decision


def assign_layouts(program: Program, *, log: list[Decision] | None = None) -> Program:
    """Choose the layout of every value. For now: C order for all, as each op writes it.

    What it does: nothing yet but mark the stage. Views are strides already (see `storage`), so
    products read transposed operands without a copy where the backend can.

        %1: f32[3,2] = permute(%0) {perm=[1,0]}    the same

    What to look at: a reshape of a permuted value is the one view that needs a copy.
    """
    return program.replace(stage="layout")
