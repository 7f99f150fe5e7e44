"""Fuse: which nodes share a loop, so that what passes between them stays out of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from tinyaot.ir import Node, Output, Phase, Program
from tinyaot.passes.entries import split_entries
from tinyaot.passes.fusion.export import Exporter, region_nodes
from tinyaot.passes.fusion.figures import decisions_on
from tinyaot.passes.fusion.machine import Machine
from tinyaot.passes.fusion.plan import FusionPlan, plan_fusion
from tinyaot.record import Decision

ANY_MACHINE = Machine()


@dataclass(frozen=True, slots=True)
class Fusion:
    """What fuse leaves for schedule, plan and emission in `Program.notes`: the entry points as they
    were, each one's plan, and how its ops are named. It belongs to the program that has these
    nodes."""

    nodes: tuple[Node, ...]
    entries: Mapping[str, Program]
    plans: Mapping[str, FusionPlan]
    names: Mapping[str, Exporter]


def fuse(
    program: Program,
    *,
    machine: Machine | None = ANY_MACHINE,
    threads: int = 1,
    log: list[Decision] | None = None,
) -> Program:
    """Group nodes into regions, each a loop over tiles.

    What it does: gives axes labels, grows regions of nodes that share tile labels as long as the
    cost model for `machine` and `threads` gains by it (see `fusion.regions`), and makes each one
    node with a body. What is read only inside a region never reaches memory; a cheap map has no
    place at all and is computed by every loop that reads it.

        %1: f32[64] = exp(%0)                    %2: f32[64] = region(%0) body
        %2: f32[64] = mul(%1, %1)       ->         %1: f32[64] = exp(%0)
                                                   %2: f32[64] = mul(%1, %1)
                                                 end

    `machine=None`, for a backend that calls a library an op, changes nothing.
    What to look at: a region's results, which are all that is stored; why ops are apart. Raises
    BackendError for an op that has no form.
    """
    if machine is None:
        return program.replace(stage="fuse")
    fresh = count(program.next_id)
    taken: set[int] = {i.value.id for i in program.inputs}
    nodes: list[Node] = []
    outputs: dict[int, Output] = {}
    entries = split_entries(program)
    steps = [step for node in program.nodes for step in node.origin]
    repeated = {step.id for step in steps if step.relation == "recompute-of"}
    plans: dict[str, FusionPlan] = {}
    names: dict[str, Exporter] = {}
    for name, part in entries.items():
        plan = plan_fusion(part, threads, machine)
        plan.graph.repeated |= repeated
        phase: Phase = "backward" if name == "backward" else "forward"
        to = Exporter(plan.graph.forms, taken, fresh, phase)
        plans[name], names[name] = plan, to
        made = region_nodes(name, plan, to)
        if log is not None:
            for node, region in zip(made, plan.regions, strict=True):
                log += decisions_on(region, str(node.attrs["name"]), plan)
        outputs |= to.outputs(part, made)
        nodes += made
    last = next(fresh)
    fused = program.replace(
        stage="fuse", outputs=tuple(outputs[id(o)] for o in program.outputs), next_id=last
    )
    return with_regions(fused, nodes, Fusion((), entries, plans, names))


def with_regions(program: Program, nodes: Sequence[Node], fusion: Fusion) -> Program:
    """The program with these nodes, and what is known of them."""
    bodies = [n.body and n.body.replace(next_id=program.next_id) for n in nodes]
    made = tuple(replace(n, body=body) for n, body in zip(nodes, bodies, strict=True))
    return program.replace(nodes=made, notes=replace(fusion, nodes=made))


def fusion_of(program: Program, machine: Machine = ANY_MACHINE, threads: int = 1) -> Fusion:
    """What fuse found out, or finds out now: of a program that was parsed, or never fused."""
    if isinstance(program.notes, Fusion) and program.notes.nodes is program.nodes:
        return program.notes
    again = fuse(flatten(program), machine=machine, threads=threads).notes
    assert isinstance(again, Fusion)
    return again


def flatten(program: Program) -> Program:
    """The program without regions. A value that several computed is computed once."""
    nodes = tuple(program.computed.values())
    return program.replace(stage="layout", nodes=nodes, plan=None, notes=None)
