"""Fuse: which nodes share a loop, so that what passes between them stays out of memory."""

from __future__ import annotations

from tinyaot.ir import Program
from tinyaot.record import Decision


def fuse(program: Program, *, log: list[Decision] | None = None) -> Program:
    """Group nodes into kernels. For now: each node is a kernel of its own.

    What it does: nothing yet but mark the stage. A backend that calls a library an op (NumPy) has
    no use for regions; those that print loops do.

        %1: f32[64] = exp(%0)                      the same
        %2: f32[64] = mul(%1, %1)

    What to look at: every value that a later kernel reads is stored.
    """
    return program.replace(stage="fuse")
