"""The laws that a Program obeys at each stage.

A law is a small named function in a table: it yields what breaks it, one message a violation, and
its docstring states it. Adding a law is adding a function. Laws are checked in the order they stand
here, and each may rely on those above it (a type rule is asked only about values that are defined).
MLIR's verifiers have this role between passes. The laws of memory plans are in `verify_plan`, those
of regions in `verify_regions`.
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
from tinyaot.verify_plan import PLAN_LAWS
from tinyaot.verify_regions import REGION_LAWS, REGION_PLAN_LAWS

Check = Callable[[Program], Iterable[str]]


@dataclass(frozen=True, slots=True)
class Law:
    """A named law and the stages, from `since` to `until`, where it holds."""

    name: str
    check: Check
    since: int
    until: int

    @property
    def statement(self) -> str:
        return " ".join((self.check.__doc__ or "").split())


LAWS: dict[str, Law] = {}


def law(since: str = STAGES[0], until: str = STAGES[-1]) -> Callable[[Check], Check]:
    """Enter a function in the table of laws."""

    def enter(check: Check) -> Check:
        name = check.__name__.replace("_", " ")
        LAWS[name] = Law(name, check, STAGES.index(since), STAGES.index(until))
        return check

    return enter


def verify(program: Program) -> None:
    """Raise VerifyError, naming the node and the law, if the program breaks a law of its stage."""
    if not isinstance(program, Program):
        hint = "; parse the text first: ta.parse(text)" if isinstance(program, str) else ""
        raise DTypeError(f"verify: needs a Program, got {brief(program)}{hint}")
    if program.stage not in STAGES:
        raise VerifyError(
            f"{program.name}: there is no stage {program.stage!r}; stages are {', '.join(STAGES)}"
        )
    _verify(program, PLAN_LAWS if program.is_fused else (*REGION_LAWS, *REGION_PLAN_LAWS))
    for n in program.nodes:
        if n.body is not None:
            _verify(n.body, (*PLAN_LAWS, *REGION_LAWS, *REGION_PLAN_LAWS))


def _verify(program: Program, but: Collection[Check]) -> None:
    stage = STAGES.index(program.stage)
    for rule in LAWS.values():
        if not rule.since <= stage <= rule.until or rule.check in but:
            continue
        for broken in rule.check(program):
            raise VerifyError(
                f"{program.name} at stage {program.stage} breaks the law '{rule.name}': {broken}\n"
                f"  the law: {rule.statement}"
            )


def show(node: Node) -> str:
    """A node in a message: without its attributes, which may be what is wrong with it."""
    results = ", ".join(map(str, node.results))
    where = f" (at {node.loc})" if node.loc is not None else ""
    call = f"{node.op}({', '.join(map(str, node.inputs))})"
    return (f"{results} = {call}" if results else call) + where


# ---- values -------------------------------------------------------------------------------------


def _definitions(program: Program) -> Iterator[tuple[Value, Input | Node]]:
    for i in program.inputs:
        yield i.value, i
    for n in program.nodes:
        for r in n.results:
            yield r, n


def _definer(by: Input | Node) -> str:
    return show(by) if isinstance(by, Node) else f"input {by.value}"


@law()
def types_are_types(program: Program) -> Iterator[str]:
    """A value has a dtype of tinyaot's and sizes that are whole numbers from 0 up."""
    for v, by in _definitions(program):
        ok = isinstance(v.type, TensorType) and isinstance(v.type.dtype, DType)
        if not ok or not all(type(s) is int and s >= 0 for s in v.type.shape):
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
        known.update(r.id for r in n.results)
    for o in program.outputs:
        if o.value.id not in known:
            yield f"output {o.role} {o.value}: nothing defines it"


@law()
def one_type_a_value(program: Program) -> Iterator[str]:
    """A value has the same type where it is read as where it is defined."""
    types = {v.id: v.type for v, _ in _definitions(program)}
    for n in program.nodes:
        for v in n.inputs:
            if v.type != types[v.id]:
                yield f"{show(n)} reads {v} as {v.type}, but it is {types[v.id]}"
    for o in program.outputs:
        if o.value.type != types[o.value.id]:
            yield f"output {o.value} is given as {o.value.type}, but it is {types[o.value.id]}"


# ---- nodes --------------------------------------------------------------------------------------


@law()
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


@law()
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
    for n in program.nodes:
        if n.phase not in (None, *PHASES):
            yield f"{show(n)} has the phase {n.phase!r}"
        for o in n.origin:
            if o.relation not in get_args(Relation) or not 0 <= o.id < program.next_id:
                yield f"{show(n)} has the origin {o.relation} %{o.id}"


@law()
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


@law()
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
    for i in program.inputs:
        if i.role not in get_args(InputRole):
            yield f"input {i.value} has the role {i.role!r}"
        if i.role == "cotangent" and stage < STAGES.index("autodiff"):
            yield f"input {i.value} is a cotangent"
        if i.requires_grad and not i.value.type.dtype.is_floating:
            yield f"input {i.value}: {i.value.type} requires grad"
    for o in program.outputs:
        first = {"saved": "partition", "gradient": "autodiff"}.get(o.role, "trace")
        if o.role not in get_args(OutputRole):
            yield f"output {o.value} has the role {o.role!r}"
        if stage < STAGES.index(first) or (first != "trace" and not joint):
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


@law(since="functionalize")
def writes_are_gone(program: Program) -> Iterator[str]:
    """After functionalization nothing is written: every op is pure."""
    for n in program.nodes:
        if n.op in TABLE and TABLE[n.op].kind == "mutate":
            yield show(n)


@law(since="autodiff")
def markers_are_gone(program: Program) -> Iterator[str]:
    """Structural nodes, `detach` and `set_value` mean something to autodiff, and nothing after."""
    for n in program.nodes:
        if n.op in STRUCTURAL or n.op in ("detach", "set_value"):
            yield show(n)


@law(since="autodiff")
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
    phase.update(
        (r.id, PHASES.index(n.phase or "forward")) for n in program.nodes for r in n.results
    )
    return phase


@law(since="autodiff")
def phases_run_forward(program: Program) -> Iterator[str]:
    """The forward reads nothing of the backward or of cotangents, and neither reads the update; but
    a region of a step may hold nodes of all three."""
    phase = _phases(program)
    for n in program.nodes:
        if n.body is not None and not program.is_joint:
            continue
        for v in n.inputs:
            if phase[v.id] > PHASES.index(n.phase or "forward"):
                yield f"{show(n)}, {n.phase}, reads {v}, which is {PHASES[phase[v.id]]}"


@law(since="autodiff")
def the_forward_gives_its_outputs(program: Program) -> Iterator[str]:
    """In a joint program the user's, mutated and saved outputs are values of the forward."""
    if not program.is_joint:
        return
    phase = _phases(program)
    for o in program.outputs_of("user", "mutated", "saved"):
        if phase[o.value.id]:
            yield f"output {o.role} {o.value} is {PHASES[phase[o.value.id]]}"


@law(since="partition")
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


@law(since="partition")
def saved_values_are_made(program: Program) -> Iterator[str]:
    """A saved value is the result of a node of the forward (inputs are at hand), saved once."""
    seen = set()
    for o in program.outputs_of("saved"):
        node = program.producers.get(o.value.id)
        if node is None or node.phase != "forward" or o.value.id in seen:
            yield f"output saved {o.value}" + (" (again)" if o.value.id in seen else "")
        seen.add(o.value.id)


@law(since="schedule")
def the_forward_runs_first(program: Program) -> Iterator[str]:
    """In a scheduled joint program all nodes of the forward stand before the backward's: between
    them is the caller's code."""
    backward = None
    for n in program.nodes if program.is_joint else ():
        if n.phase == "backward":
            backward = n
        elif backward is not None:
            yield f"{show(n)} stands after {show(backward)}"


# ---- memory plans -------------------------------------------------------------------------------


@law(until="schedule")
def plans_come_last(program: Program) -> Iterator[str]:
    """Only a planned program has a plan."""
    if program.plan is not None:
        yield f"a plan of {program.plan.arena} bytes"


for _check, *_stages in CUSTOM_LAWS:
    law(*_stages)(_check)
for _check in REGION_LAWS:
    law(since="fuse")(_check)
for _check in (*PLAN_LAWS, *REGION_PLAN_LAWS):
    law(since="plan")(_check)
