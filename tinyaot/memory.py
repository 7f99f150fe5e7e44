"""The memory figures of a planned Program, in bytes beyond its inputs.

`planned_peak` is what a call takes at most: the arena, the block of saved values, the outputs and
gradients that are the caller's afterwards, and what an op allocates beside its result while it
runs. All are read off the plan; what is measured never is.
"""

from __future__ import annotations

from tinyaot.ir import Place, Plan, Program


def buffers_of(program: Program, *spaces: str) -> dict[int, Place]:
    """The buffers in these spaces (all, if none is named): root id -> its place."""
    places = _planned(program).places
    return {
        id_: p for id_, p in places.items() if p.root == id_ and (not spaces or p.space in spaces)
    }


def saved_bytes(program: Program) -> int:
    """The block of saved values that a forward half hands to its backward."""
    return max((p.offset + p.nbytes for p in buffers_of(program, "saved").values()), default=0)


def output_bytes(program: Program) -> int:
    """Fresh memory that a call gives to the caller."""
    return sum(p.nbytes for p in buffers_of(program, "output").values())


def scratch_bytes(program: Program) -> int:
    """The most that a node allocates beside its result while it runs, or what lives in regions."""
    return _planned(program).scratch


def planned_peak(program: Program) -> int:
    """Arena, saved block, outputs and scratch."""
    return _planned(program).arena + beside_arena(program)


def beside_arena(program: Program) -> int:
    """The part of the peak that no placement changes."""
    return saved_bytes(program) + output_bytes(program) + scratch_bytes(program)


def live_bytes(program: Program) -> list[int]:
    """Bytes of the arena's buffers alive at each node."""
    change = [0] * (len(program.nodes) + 1)
    for p in buffers_of(program, "arena").values():
        change[p.first] += p.nbytes
        change[p.last + 1] -= p.nbytes
    alive, found = 0, []
    for c in change[:-1]:
        alive += c
        found.append(alive)
    return found


def lower_bound(program: Program) -> int:
    """No placement of these buffers, in this order of nodes, has a smaller peak."""
    return max(live_bytes(program), default=0) + beside_arena(program)


def _planned(program: Program) -> Plan:
    if program.plan is None:
        raise ValueError(f"{program.name} has no memory plan: run the pass `plan` first")
    return program.plan
