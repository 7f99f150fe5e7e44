"""The entry points of a Program: one step, or the two halves of an ahead-of-time function."""

from __future__ import annotations

from dataclasses import replace

from tinyaot.ir import Input, Program


def split_entries(program: Program) -> dict[str, Program]:
    """The straight-line programs of the entry points, by name: "step", or "forward" and "backward".
    A backward takes the inputs that it reads, then saved values, then cotangents."""
    if not program.is_joint:
        return {"step": program}
    first = [n for n in program.nodes if n.phase != "backward"]
    second = [n for n in program.nodes if n.phase == "backward"]
    plain = tuple(i for i in program.inputs if i.role != "cotangent")
    gives = tuple(o for o in program.outputs if o.role != "gradient")
    gradients = program.outputs_of("gradient")
    forward = replace(program, inputs=plain, nodes=tuple(first), outputs=gives, plan=None)
    kept = program.outputs_of("saved")
    saved = tuple(Input(o.value, "argument", f"saved {o.value}") for o in kept)
    read = {v.id for n in second for v in n.inputs} | {o.value.id for o in gradients}
    taken = tuple(i for i in plain if i.value.id in read)
    backward = replace(
        program,
        inputs=taken + saved + program.inputs_of("cotangent"),
        nodes=tuple(second),
        outputs=gradients,
        plan=None,
    )
    return {"forward": forward, "backward": backward}
