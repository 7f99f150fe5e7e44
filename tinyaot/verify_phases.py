"""The laws of phases: forward, backward and update, and what passes from one to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from tinyaot.ir import PHASES, Node, Program


def show(node: Node) -> str:
    """A node in a message: without its attributes, which may be what is wrong with it."""
    results = ", ".join(map(str, node.results))
    where = f" (at {node.loc})" if node.loc is not None else ""
    call = f"{node.op}({', '.join(map(str, node.inputs))})"
    return (f"{results} = {call}" if results else call) + where


def nodes_have_a_phase(program: Program) -> Iterator[str]:
    """After autodiff every node is of the forward, the backward or the update; the joint program of
    an ahead-of-time function has no update."""
    joint = program.is_joint
    for n in program.nodes:
        if n.phase is None or (n.phase == "update" and joint):
            yield f"{show(n)} has the phase {n.phase}"


def _phases(program: Program) -> dict[int, int]:
    """The phase that each value belongs to, as a number; inputs belong to the first that can."""
    phase = {i.value.id: int(i.role == "cotangent") for i in program.inputs}
    for n in program.nodes:
        number = PHASES.index(n.phase or "forward")
        for r in n.results:
            phase[r.id] = number
    return phase


def phases_run_forward(program: Program) -> Iterator[str]:
    """The forward reads nothing of the backward or of cotangents, and neither reads the update; but
    a region of a step may hold nodes of all three."""
    phase, joint = _phases(program), program.is_joint
    for n in program.nodes:
        if n.body is not None and not joint:
            continue
        own = PHASES.index(n.phase or "forward")
        for v in n.inputs:
            if phase[v.id] > own:
                yield f"{show(n)}, {n.phase}, reads {v}, which is {PHASES[phase[v.id]]}"


def the_forward_gives_its_outputs(program: Program) -> Iterator[str]:
    """In a joint program the user's, mutated and saved outputs are values of the forward."""
    if not program.is_joint:
        return
    phase = _phases(program)
    for o in program.outputs_of("user", "mutated", "saved"):
        if phase[o.value.id]:
            yield f"output {o.role} {o.value} is {PHASES[phase[o.value.id]]}"


def the_backward_reads_what_is_saved(program: Program) -> Iterator[str]:
    """After partitioning a joint program's backward reads inputs, saved values, cotangents and its
    own values: nothing else of the forward reaches it."""
    if not program.is_joint:
        return
    at_hand = {i.value.id for i in program.inputs}
    at_hand |= {o.value.id for o in program.outputs_of("saved")}
    for n in program.nodes:
        if n.phase == "backward":
            for v in n.inputs:
                if v.id not in at_hand:
                    yield f"{show(n)} reads {v} of the forward, which is not saved"
            at_hand |= {r.id for r in n.results}
    for o in program.outputs_of("gradient"):
        if o.value.id not in at_hand:
            yield f"output gradient {o.value} is a value of the forward that is not saved"


def saved_values_are_made(program: Program) -> Iterator[str]:
    """A saved value is the result of a node of the forward (inputs are at hand), saved once."""
    seen = set()
    for o in program.outputs_of("saved"):
        node = program.producers.get(o.value.id)
        if node is None or node.phase != "forward" or o.value.id in seen:
            yield f"output saved {o.value}" + (" (again)" if o.value.id in seen else "")
        seen.add(o.value.id)


def the_forward_runs_first(program: Program) -> Iterator[str]:
    """In a scheduled joint program all nodes of the forward stand before the backward's: between
    them is the caller's code."""
    backward = None
    for n in program.nodes if program.is_joint else ():
        if n.phase == "backward":
            backward = n
        elif backward is not None:
            yield f"{show(n)} stands after {show(backward)}"


PHASE_LAWS: tuple[tuple[Callable[[Program], Iterable[str]], str], ...] = (
    (nodes_have_a_phase, "autodiff"),
    (phases_run_forward, "autodiff"),
    (the_forward_gives_its_outputs, "autodiff"),
    (the_backward_reads_what_is_saved, "partition"),
    (saved_values_are_made, "partition"),
    (the_forward_runs_first, "schedule"),
)
