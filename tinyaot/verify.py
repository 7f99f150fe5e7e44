"""The laws that a Program obeys at each stage.

A law is a small named function in a table: it yields what breaks it, one message a violation, and
its docstring states it. Adding a law is adding a function. Laws are checked in the order they stand
here, and each may rely on those above it (a type rule is asked only about values that are defined).
What holds for a node alone is asked once: passes share the nodes that they do not touch. MLIR's
verifiers have this role between passes. The laws of memory plans are in `verify_plan`, those of
regions in `verify_regions`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, get_args

from tinyaot.errors import DTypeError, VerifyError
from tinyaot.ir import (
    PHASES,
    STAGES,
    Input,
    InputRole,
    Node,
    OutputRole,
    Program,
    Relation,
    Value,
)
from tinyaot.ops.core import TABLE
from tinyaot.shapes import DType, TensorType, brief
from tinyaot.structural import STRUCTURAL
from tinyaot.verify_custom import CUSTOM_LAWS, listed
from tinyaot.verify_phases import PHASE_LAWS, show
from tinyaot.verify_plan import PLAN_LAWS
from tinyaot.verify_regions import REGION_LAWS, REGION_PLAN_LAWS

Check = Callable[[Program], Iterable[str]]


@dataclass(frozen=True, slots=True)
class Law:
    """A named law and the stages, from `since` to `until`, where it holds. `alone`: it speaks of
    inputs, outputs and each node for itself."""

    name: str
    check: Check
    since: int
    until: int
    alone: bool

    @property
    def statement(self) -> str:
        return " ".join((self.check.__doc__ or "").split())


LAWS: dict[str, Law] = {}


def law(
    since: str = STAGES[0], until: str = STAGES[-1], alone: bool = False
) -> Callable[[Check], Check]:
    """Enter a function in the table of laws."""

    def enter(check: Check) -> Check:
        name = check.__name__.replace("_", " ")
        LAWS[name] = Law(name, check, STAGES.index(since), STAGES.index(until), alone)
        return check

    return enter


def verify(program: Program, before: Program | None = None) -> None:
    """Raise VerifyError, naming the node and the law, if the program breaks a law of its stage.

    `before`: a program that was verified; its nodes are not asked again what they were asked.
    """
    if not isinstance(program, Program):
        hint = "; parse the text first: ta.parse(text)" if isinstance(program, str) else ""
        raise DTypeError(f"verify: needs a Program, got {brief(program)}{hint}")
    if program.stage not in STAGES:
        raise VerifyError(
            f"{program.name}: there is no stage {program.stage!r}; stages are {', '.join(STAGES)}"
        )
    known, asked = _Known(before), STAGES.index(before.stage) if before else -1
    _verify(program, _FUSED if program.is_fused else _UNFUSED, known, asked)
    for n in program.nodes:
        if n.body is not None:
            _verify(n.body, _BODY, known, asked)


class _Known:
    """Nodes and bodies of a program, by identity; of a node that a pass made with another phase,
    line or origin, what laws of nodes alone look at is the same."""

    def __init__(self, program: Program | None) -> None:
        nodes = program.nodes if program else ()
        bodies = [n.body for n in nodes if n.body is not None]
        self.nodes = {
            id(n.results): n for part in (nodes, *(b.nodes for b in bodies)) for n in part
        }
        self.bodies = {self.body(b): b.next_id for b in bodies}

    def without(self, program: Program) -> Program:
        """The program with only its unknown nodes."""
        if not self.nodes:
            return program
        pairs = [(n, self.nodes.get(id(n.results))) for n in program.nodes]
        new = [n for n, m in pairs if m is not n and (m is None or not _is_like(n, m))]
        return program.replace(nodes=tuple(new))

    def body(self, program: Program) -> tuple[int, ...]:
        return id(program.inputs), id(program.nodes), id(program.outputs)

    def has(self, program: Program) -> bool:
        """Whether it is one of the bodies, if at another stage."""
        return self.bodies.get(self.body(program), program.next_id + 1) <= program.next_id


def _is_like(n: Node, m: Node) -> bool:
    same = n.op == m.op and n.inputs is m.inputs and n.results is m.results and n.attrs is m.attrs
    return same and n.checkpoint is m.checkpoint and (n.body is None) == (m.body is None)


def _verify(program: Program, but: Collection[Check], known: _Known, asked: int) -> None:
    """`known` obeys the laws until the stage `asked`."""
    stage = STAGES.index(program.stage)
    again = known.has(program)
    new = program if again else known.without(program)
    for rule in LAWS.values():
        if not rule.since <= stage <= rule.until or rule.check in but:
            continue
        if again and rule.since <= asked:
            continue
        for broken in rule.check(new if rule.alone and rule.since <= asked else program):
            raise VerifyError(
                f"{program.name} at stage {program.stage} breaks the law '{rule.name}': {broken}\n"
                f"  the law: {rule.statement}"
            )


# ---- values -------------------------------------------------------------------------------------


def _definitions(program: Program) -> Iterator[tuple[Value, Input | Node]]:
    for i in program.inputs:
        yield i.value, i
    for n in program.nodes:
        for r in n.results:
            yield r, n


def _definer(by: Input | Node) -> str:
    return show(by) if isinstance(by, Node) else f"input {by.value}"


@law(alone=True)
def types_are_types(program: Program) -> Iterator[str]:
    """A value has a dtype of tinyaot's and sizes that are whole numbers from 0 up."""
    for v, by in _definitions(program):
        ok = isinstance(v.type, TensorType) and isinstance(v.type.dtype, DType)
        if not ok or [s for s in v.type.shape if type(s) is not int or s < 0]:
            yield f"{_definer(by)} has the type {v.type}"


@law()
def ids_are_below_next(program: Program) -> Iterator[str]:
    """Ids are whole numbers from 0 up and below the program's next_id."""
    for v, by in _definitions(program):
        if type(v.id) is not int or not 0 <= v.id < program.next_id:
            yield f"{_definer(by)} defines {v}; next_id is {program.next_id}"


@law()
def defined_once(program: Program) -> Iterator[str]:
    """A value is defined once, by an input or a node."""
    seen: dict[int, Input | Node] = {}
    for v, by in _definitions(program):
        if v.id in seen:
            yield f"{v} is defined by {_definer(seen[v.id])} and by {_definer(by)}"
        seen[v.id] = by


@law()
def defined_before_use(program: Program) -> Iterator[str]:
    """A node reads values that are defined above it; an output gives a value that is defined."""
    known = {i.value.id for i in program.inputs}
    for n in program.nodes:
        for v in n.inputs:
            if v.id not in known:
                yield f"{show(n)} reads {v}, which is not defined above it"
        for r in n.results:
            known.add(r.id)
    for o in program.outputs:
        if o.value.id not in known:
            yield f"output {o.role} {o.value}: nothing defines it"


@law()
def one_type_a_value(program: Program) -> Iterator[str]:
    """A value has the same type where it is read as where it is defined."""
    defined = program.values
    for n in program.nodes:
        for v in n.inputs:
            if v is not defined[v.id] and v.type != defined[v.id].type:
                yield f"{show(n)} reads {v} as {v.type}, but it is {defined[v.id].type}"
    for o in program.outputs:
        if o.value.type != defined[o.value.id].type:
            wanted = defined[o.value.id].type
            yield f"output {o.value} is given as {o.value.type}, but it is {wanted}"


# ---- nodes --------------------------------------------------------------------------------------


@law(alone=True)
def ops_are_declared(program: Program) -> Iterator[str]:
    """An op is of the table, structural, or, from fuse on, a `region`, which alone has a body."""
    fused = STAGES.index(program.stage) >= STAGES.index("fuse")
    for n in program.nodes:
        if (n.op == "region") != (n.body is not None) or (n.body is not None and not fused):
            yield f"{show(n)} has {'no' if n.body is None else 'a'} body"
        elif n.op not in TABLE and n.op not in (*STRUCTURAL, "region"):
            yield f"{show(n)}: there is no primitive {n.op!r}"


def _is_plain(x: Any) -> bool:
    if type(x) is tuple:
        return all(map(_is_plain, x))
    return type(x) in (bool, int, float, str, DType)


@law(alone=True)
def attributes_are_plain(program: Program) -> Iterator[str]:
    """Attributes are numbers, bools, strings, dtypes and tuples of these, under string names."""
    for n in program.nodes:
        for key, x in n.attrs.items():
            if type(key) is not str or not _is_plain(x):
                yield f"{show(n)} has {key} = {x!r} ({type(x).__name__})"


@law()
def origins_are_known(program: Program) -> Iterator[str]:
    """A node's phase and the relations of its origin are of the lists in ir.py, and an origin
    names an id that was given out."""
    phases, relations = (None, *PHASES), get_args(Relation)
    for n in program.nodes:
        if n.phase not in phases:
            yield f"{show(n)} has the phase {n.phase!r}"
        for o in n.origin:
            if o.relation not in relations or not 0 <= o.id < program.next_id:
                yield f"{show(n)} has the origin {o.relation} %{o.id}"


@law(alone=True)
def results_follow_the_type_rule(program: Program) -> Iterator[str]:
    """A node's results have the types that its op's type rule gives."""
    for n in program.nodes:
        if n.op in (*STRUCTURAL, "region"):
            continue
        primitive = TABLE[n.op]
        try:
            inferred = primitive.infer([v.type for v in n.inputs], n.attrs)
        except Exception as error:  # an op may refuse in any way: a TypeError for a lacking attr
            yield f"{show(n)}: {str(error).splitlines()[0]}"
            continue
        wanted = () if primitive.kind == "mutate" else (inferred,)
        found = tuple(r.type for r in n.results)
        if found != wanted:
            yield f"{show(n)} has {listed(found)}, but the type rule gives {listed(wanted)}"


@law(alone=True)
def grad_nodes_are_well_formed(program: Program) -> Iterator[str]:
    """`grad` reads floating outputs (one element each, unless their cotangents follow), cotangents
    of the same types, then floating values to differentiate by, whose types its results have."""
    for n in program.nodes:
        if n.op != "grad":
            continue
        a = n.attrs
        kinds = {key: type(x) for key, x in a.items()}
        if kinds != {"outputs": int, "cotangents": bool, "wrt": int} or a["outputs"] < 1:
            yield f"{show(n)} has the attributes {dict(a)}"
            continue
        count, types = a["outputs"], [v.type for v in n.inputs]
        seeds = count if a["cotangents"] else 0
        outputs, given, wrt = types[:count], types[count : count + seeds], types[count + seeds :]
        if len(wrt) != a["wrt"] or len(types) < count + seeds:
            yield f"{show(n)}: {len(types)} operands do not fit the attributes {dict(a)}"
        elif seeds and given != outputs:
            yield f"{show(n)}: cotangents {listed(given)} of outputs {listed(outputs)}"
        elif not seeds and any(t.size != 1 for t in outputs):
            yield f"{show(n)}: outputs {listed(outputs)} need cotangents"
        elif [r.type for r in n.results] != wrt:
            yield f"{show(n)}: results {listed(r.type for r in n.results)} for {listed(wrt)}"
        elif not all(t.dtype.is_floating for t in outputs + wrt):
            yield f"{show(n)}: {listed(outputs + wrt)} are not all floating"


# ---- inputs and outputs -------------------------------------------------------------------------


@law()
def roles_are_legal(program: Program) -> Iterator[str]:
    """Roles are those of ir.py; cotangents and gradients exist from autodiff on, saved values from
    partition on, and only in a program that has cotangents."""
    stage, joint = STAGES.index(program.stage), program.is_joint
    first_stages = {"saved": STAGES.index("partition"), "gradient": STAGES.index("autodiff")}
    given, asked = get_args(OutputRole), get_args(InputRole)
    for i in program.inputs:
        if i.role not in asked:
            yield f"input {i.value} has the role {i.role!r}"
        if i.role == "cotangent" and stage < STAGES.index("autodiff"):
            yield f"input {i.value} is a cotangent"
        if i.requires_grad and not i.value.type.dtype.is_floating:
            yield f"input {i.value}: {i.value.type} requires grad"
    for o in program.outputs:
        first = first_stages.get(o.role, 0)
        if o.role not in given:
            yield f"output {o.value} has the role {o.role!r}"
        if stage < first or (first and not joint):
            yield f"output {o.value} is {o.role}"


@law()
def outputs_of_inputs(program: Program) -> Iterator[str]:
    """A mutated or gradient output is `of` an input of its own type, and the only such one; other
    outputs are of nothing."""
    types = {i.value.id: i.value.type for i in program.inputs if i.role != "cotangent"}
    seen = set()
    for o in program.outputs:
        if (o.role in ("mutated", "gradient")) != (o.of is not None):
            yield f"output {o.role} {o.value} is of {_id(o.of)}"
        elif o.of is not None:
            if types.get(o.of) != o.value.type:
                found = types.get(o.of, "no input")
                yield f"output {o.role} {o.value}: {o.value.type} is of {_id(o.of)}: {found}"
            if (o.role, o.of) in seen:
                yield f"output {o.role} {o.value}: there is another one of {_id(o.of)}"
            seen.add((o.role, o.of))


def _id(id_: int | None) -> str:
    return "nothing" if id_ is None else f"%{id_}"


@law()
def cotangents_are_of_outputs(program: Program) -> Iterator[str]:
    """Cotangents have the types of outputs that require grad, in the order of these."""
    outputs = iter([o.value.type for o in program.outputs if o.requires_grad])
    for i in program.inputs_of("cotangent"):
        if not any(t == i.value.type for t in outputs):
            yield f"input {i.value}: {i.value.type} is the cotangent of no output"


@law(until="trace")
def written_inputs_are_outputs(program: Program) -> Iterator[str]:
    """An input that a write reaches, directly or through views, is a mutated output."""
    root = {i.value.id: i.value.id for i in program.inputs}
    mutated = {o.of for o in program.outputs_of("mutated")}
    for n in program.nodes:
        if n.op == "write" and root.get(n.inputs[0].id, -1) not in {-1, *mutated}:
            yield f"{show(n)} reaches input %{root[n.inputs[0].id]}"
        if n.op in TABLE and TABLE[n.op].kind == "view" and n.inputs[0].id in root:
            root[n.result.id] = root[n.inputs[0].id]


# ---- what a stage leaves behind -----------------------------------------------------------------


@law(since="functionalize", alone=True)
def writes_are_gone(program: Program) -> Iterator[str]:
    """After functionalization nothing is written: every op is pure."""
    for n in program.nodes:
        if n.op in TABLE and TABLE[n.op].kind == "mutate":
            yield show(n)


@law(since="autodiff", alone=True)
def markers_are_gone(program: Program) -> Iterator[str]:
    """Structural nodes, `detach` and `set_value` mean something to autodiff, and nothing after."""
    for n in program.nodes:
        if n.op in STRUCTURAL or n.op in ("detach", "set_value"):
            yield show(n)


for _check, _since in PHASE_LAWS:
    law(_since)(_check)


# ---- memory plans -------------------------------------------------------------------------------


@law(until="schedule")
def plans_come_last(program: Program) -> Iterator[str]:
    """Only a planned program has a plan."""
    if program.plan is not None:
        yield f"a plan of {program.plan.arena} bytes"


for _check, _since, _until, _alone in CUSTOM_LAWS:
    law(_since, _until, _alone)(_check)
for _check in REGION_LAWS:
    law(since="fuse")(_check)
for _check in (*PLAN_LAWS, *REGION_PLAN_LAWS):
    law(since="plan")(_check)

_FUSED = frozenset(PLAN_LAWS)  # what is not asked of programs with regions, of others, of bodies
_UNFUSED = frozenset((*REGION_LAWS, *REGION_PLAN_LAWS))
_BODY = _FUSED | _UNFUSED
