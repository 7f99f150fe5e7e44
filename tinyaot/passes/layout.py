"""Layout: every node in a form whose operands strides can express.

Values are in C order and views are strides, so a loop reads a transpose or a slice where it lies,
and a product of transposed operands runs without a copy. What strides cannot express becomes
explicit here, as in XLA's layout assignment, so that everything later may rely on it.
"""

from __future__ import annotations

from itertools import count

from tinyaot.ir import Node, Output, Program
from tinyaot.passes.entries import split_entries
from tinyaot.passes.fusion.export import Exporter, flat_nodes
from tinyaot.passes.fusion.forms import to_forms
from tinyaot.record import Decision


def assign_layouts(
    program: Program, *, loops: bool = True, log: list[Decision] | None = None
) -> Program:
    """Write down the copies that remain, and bring the rest to forms that loops can read.

    What it does: a product's operand that repeats elements is copied, an operand that an op without
    a loop of its own reads as a whole is copied into C order, a letter that one operand of a
    product alone has is summed beforehand, a slice that is scattered into zeros becomes a
    concatenation with them, an output that shares memory gets its own. `loops=False`, for a backend
    that calls a library an op, changes nothing.

        %1: f32[4,4] = broadcast(%0)             %1: f32[4,4] = broadcast(%0)
        %2: f32[4] = dot(%1, %9)          ->     %3: f32[4,4] = copy(%1)
                                                 %2: f32[4] = dot(%3, %9)

    What to look at: the copies, each a decision with its bytes and its reason. Raises BackendError
    for an op that has no such form.
    """
    if not loops:
        return program.replace(stage="layout")
    fresh = count(program.next_id)
    taken: set[int] = {i.value.id for i in program.inputs}
    nodes: list[Node] = []
    outputs: dict[int, Output] = {}
    for name, part in split_entries(program).items():
        forms = to_forms(part)
        to = Exporter(forms, taken, fresh, "backward" if name == "backward" else "forward")
        made = flat_nodes(forms, to)
        outputs |= to.outputs(part, made)
        nodes += made
        for op in forms.ops if log is not None else ():
            if op.reason and log is not None:
                numbers = {"bytes": op.type.nbytes}
                log.append(Decision("layout", op.value, "copy", op.reason, numbers))
    return program.replace(
        stage="layout",
        nodes=tuple(nodes),
        outputs=tuple(outputs[id(o)] for o in program.outputs),
        next_id=next(fresh),
    )
