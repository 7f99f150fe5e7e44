"""What happened: the one account that reports, diagrams, pages, lessons and tests read.

Plain data, made while a function is compiled, and the same on a cache hit: every stage's Program,
every decision with its reason and its numbers, every buffer, and what things cost. `to_json` and
`from_json` are exactly inverse; Programs are stored as their text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tinyaot.cost import flops_by_phase
from tinyaot.errors import ArgumentError, DTypeError, ParseError, TinyaotError, UnknownError
from tinyaot.ir import Node, Program
from tinyaot.memory import buffers_of, lower_bound, output_bytes, planned_peak, scratch_bytes
from tinyaot.memory import saved_bytes as saved_block
from tinyaot.shapes import brief
from tinyaot.text import parse, print_node, print_program

FORMAT = 3  # of the JSON
UNATTACHED = (
    "this record is not attached to a compiled function; take it from `compiled.explain(...)` or "
    "`compiled.records`, in the process that compiled"
)


@dataclass(frozen=True)
class Decision:
    """One choice that a pass made.

    kind: what was decided: "partition", "save", "recompute", "schedule", "in-place", "simplify" ...
    subject: the id of the value it is about (None: the whole program). choice: what was taken.
    reason: a code from the pass's closed list. numbers: what the choice was made by, in bytes,
    FLOPs and seconds. alternatives: what else there was, each with its own numbers.
    """

    kind: str
    subject: int | None
    choice: str
    reason: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    alternatives: tuple[Mapping[str, Any], ...] = ()

    def __str__(self) -> str:
        numbers = ", ".join(f"{name} {_number(name, x)}" for name, x in self.numbers.items())
        return f"{self.kind}: {self.choice} ({self.reason})" + (f": {numbers}" if numbers else "")


@dataclass
class Stage:
    """A Program as a pass left it, and the seconds that the pass took."""

    name: str
    program: Program
    seconds: float


@dataclass(frozen=True)
class Saved:
    """A forward value kept for the backward. `cost_to_recompute`: seconds, chains included."""

    id: int
    type: str
    bytes: int
    reason: str
    cost_to_recompute: float


@dataclass(frozen=True)
class Recomputed:
    """A forward value computed again in the backward, by nodes of origin `recompute-of` it.
    Saving it would take `bytes_to_save`, and spare `seconds_to_save`, what is computed again for it
    alone included."""

    id: int
    flops: int
    seconds: float
    reason: str
    bytes_to_save: int
    seconds_to_save: float


@dataclass(frozen=True)
class Kernel:
    """A piece of emitted code: its text, the ids of the values it computes, what it costs: bytes
    that cross its border, FLOPs that it runs (a loop that ends with a mask runs fewer than its ops
    have), the seconds that the cost model expects, and those of a run (None until `Record.time`).
    """

    name: str
    source: str
    members: tuple[int, ...]
    bytes: int
    flops: int
    expected_seconds: float | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Buffer:
    """Bytes that values live in, one after another or as views: `space` and `offset` as in
    `ir.Place`; `first` and `last` are the positions of its first and last use, of nodes or of
    kernels as `Record.clock` says."""

    id: int
    space: str
    offset: int
    nbytes: int
    first: int
    last: int
    values: tuple[int, ...]


@dataclass(frozen=True)
class Point:
    """One way to partition that was looked at. `planned_peak`: None where nobody needed to know it.
    `is_exact`: it is that of a finished plan; else of a quick one, in the given order of nodes."""

    name: str
    saved_bytes: int
    planned_peak: int | None
    extra_flops: int
    extra_seconds: float
    chosen: bool
    is_exact: bool


@dataclass(frozen=True)
class Split:
    """A storage in partition's flow network: edges source -> in -> out -> sink or users.

    again: capacity of source -> in, the price of computing it again (None: that cannot be). keep:
    capacity of in -> out, the price of its bytes (None: they may not be kept). users: the storages
    computed from it, reached over edges without end. read: by the backward, so the sink is reached
    like them. cut: which of the two edges is, "again", "keep" or "neither". Prices are in
    picoseconds, or in FLOPs where they are what counts.
    """

    id: int
    again: int | None
    keep: float | None
    users: tuple[int, ...]
    read: bool
    cut: str

    def __str__(self) -> str:
        again, keep = ("inf" if x is None else f"{x:.4g}" for x in (self.again, self.keep))
        if self.cut == "again":
            again = f"|{again}|"
        elif self.cut == "keep":
            keep = f"|{keep}|"
        to = [*(f"%{u}" for u in self.users), *(["sink"] if self.read else [])]
        return f"source -{again}-> %{self.id} in -{keep}-> %{self.id} out -inf-> {', '.join(to)}"


@dataclass
class Record:
    """The account of one compilation.

    memory: bytes beyond parameters, optimizer state and batch: planned_peak, lower_bound,
    saved_bytes, save_all_bytes, arena, scratch, outputs; measured_peak and eager_peak are None
    until `measure` is called. network: the flow network whose cut decided what is saved; its lines
    print. flops: of forward, backward, recompute and update. times: seconds of a call, `eager` and
    `compiled`, and of what a steady call costs besides its step, `guards` and `overhead` (guards,
    binding, results and the way there); empty until `time` is called. clock: what the positions of
    buffers count, "node" or "kernel".
    """

    name: str
    backend: str
    stages: list[Stage] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    saved: list[Saved] = field(default_factory=list)
    recomputed: list[Recomputed] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    pareto: list[Point] = field(default_factory=list)
    network: list[Split] = field(default_factory=list)
    memory: dict[str, int | None] = field(default_factory=dict)
    flops: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    times: dict[str, float] = field(default_factory=dict)
    clock: str = "node"
    recompiled_because: str | None = None
    measurer: Callable[..., Mapping[str, int]] | None = field(
        default=None, repr=False, compare=False
    )
    timer: Callable[..., tuple[Mapping[str, float], Sequence[float]]] | None = field(
        default=None, repr=False, compare=False
    )

    @classmethod
    def of(
        cls, name: str, backend: str, stages: Sequence[Stage], decisions: Sequence[Decision]
    ) -> Record:
        """The record of a compilation whose last stage has a memory plan."""
        record = cls(name, backend, list(stages))
        record.decisions = [d for d in decisions if d.kind != "network"]
        program = stages[-1].program
        values = {id_: v for stage in stages for id_, v in stage.program.values.items()}
        record.flops = flops_by_phase(program)
        record.buffers = _buffers(program)
        for d in decisions:
            if d.kind == "save" and d.subject is not None:
                nbytes, seconds = int(d.numbers["bytes"]), float(d.numbers["seconds"])
                type_ = str(values[d.subject].type)
                record.saved.append(Saved(d.subject, type_, nbytes, d.reason, seconds))
            elif d.kind == "recompute" and d.subject is not None:
                flops, seconds = int(d.numbers["flops"]), float(d.numbers["seconds"])
                flip = int(d.numbers["flip_bytes"]), -float(d.numbers["flip_seconds"])
                record.recomputed.append(Recomputed(d.subject, flops, seconds, d.reason, *flip))
            elif d.kind == "partition":
                record.pareto = [Point(**point) for point in d.alternatives]
            elif d.kind == "network":
                record.network = [Split(**row) for row in d.alternatives]
        record.memory = _memory(program, record)
        record.seconds = {stage.name: stage.seconds for stage in stages}
        return record

    def program(self, name: str) -> Program:
        """The Program of a stage. Raises UnknownError (a KeyError) listing the stages there are."""
        for stage in self.stages:
            if stage.name == name:
                return stage.program
        raise UnknownError(f"no stage {name!r}; there are {', '.join(s.name for s in self.stages)}")

    def measure(self, *args: Any, **kwargs: Any) -> Record:
        """Fill `memory`'s measured figures by running on these arguments. Returns itself.

        Raises a TinyaotError for a record that is not attached to a compiled function (one that was
        read from JSON).
        """
        if self.measurer is None:
            raise TinyaotError(UNATTACHED)
        self.memory.update(self.measurer(*args, **kwargs))
        return self

    def time(self, *args: Any, **kwargs: Any) -> Record:
        """Fill `times`, and the `seconds` of every kernel, by some runs on these arguments, on
        copies of all state. Returns itself. Raises as `measure` does."""
        if self.timer is None:
            raise TinyaotError(UNATTACHED)
        times, kernels = self.timer(*args, **kwargs)
        self.times.update(times)
        self.kernels = [replace(k, seconds=s) for k, s in zip(self.kernels, kernels, strict=True)]
        return self

    # ---- the life of one value ----

    def why(self, id_: int | str) -> str:
        """The life of one value, in words: what computes it and for whom, from which of the user's
        lines, what was decided about it, and where it lives. Raises UnknownError (a
        KeyError) for an unknown id."""
        number = str(id_).removeprefix("%")
        if not number.isdecimal():
            raise ArgumentError(f"why: {id_!r} is not a value id: write '%7' or 7")
        id_ = int(number)
        seen = [s for s in self.stages if id_ in s.program.values or id_ in s.program.computed]
        if not seen:
            raise UnknownError(f"no value %{id_} at any stage of {self.name}")
        last = seen[-1].program
        node = last.computed.get(id_)
        types = {r.id: r.type for r in node.results} if node else {}
        lines = [f"%{id_}: {types[id_] if node else last.values[id_].type}"]
        if node is None:
            entry = next(i for i in last.inputs if i.value.id == id_)
            lines.append(f"  input: {entry.role} {entry.name}".rstrip())
        else:
            lines += _story(node)
        lines.append(f"  stages: {seen[0].name} to {seen[-1].name}")
        reading = (n for n in last.computed.values() if any(v.id == id_ for v in n.inputs))
        readers = [str(n.results[0]) for n in reading]
        given = [f"{o.role} output" for o in last.outputs if o.value.id == id_]
        lines.append(f"  read by: {', '.join([*readers, *given]) or 'nobody'}")
        lines += self._clones(id_)
        lines += [f"  {d}" for d in self.decisions if d.subject == id_]
        within = [k for k in self.kernels if id_ in k.members]
        lines += [_kernel(k) for k in within]
        if not within and node is not None:
            lines += self._inlined(id_)
        places = [_where(b, id_, self.clock) for b in self.buffers if id_ in b.values]
        if within and not places:
            over = [
                f"written over %{o.of}" for o in last.outputs_of("mutated") if o.value.id == id_
            ]
            places = [f"  memory: {over[0] if over else f'never leaves {within[0].name}'}"]
        lines += places
        return "\n".join(lines)

    def _inlined(self, id_: int) -> list[str]:
        """Of a value that no kernel makes on its own: the kernels that it is a part of."""
        found = [
            str(n.attrs["name"])
            for n in self.stages[-1].program.nodes
            if n.body is not None and id_ in n.body.computed
        ]
        return [f"  kernel: none of its own, a part of {', '.join(found)}"] if found else []

    def _clones(self, id_: int) -> list[str]:
        clones = [
            str(n.results[0])
            for n in self.stages[-1].program.computed.values()
            for o in n.origin
            if o.relation == "recompute-of" and o.id == id_
        ]
        return [f"  recomputed as: {', '.join(clones)}"] if clones else []

    # ---- JSON ----

    def to_json(self) -> str:
        """The record as JSON text."""
        data: dict[str, Any] = {"format": FORMAT}
        for name in _PLAIN:
            data[name] = getattr(self, name)
        data["stages"] = [
            {"name": s.name, "text": print_program(s.program), "seconds": s.seconds}
            for s in self.stages
        ]
        for name in _ROWS:
            data[name] = [asdict(row) for row in getattr(self, name)]
        return json.dumps(data)

    @classmethod
    def from_json(cls, text: str) -> Record:
        """The record that `to_json` wrote. Raises ParseError for any other text."""
        if not isinstance(text, str):
            raise DTypeError(f"Record.from_json: needs the text itself, got {brief(text)}")
        try:
            data = json.loads(text)
        except ValueError as error:
            raise ParseError(f"Record.from_json: the text is not JSON: {error}") from None
        if not isinstance(data, dict) or "format" not in data:
            raise ParseError("Record.from_json: this JSON is not a Record; to_json() writes one")
        if data["format"] != FORMAT:
            raise ParseError(
                f"Record.from_json: a Record of format {data['format']!r}, and this is tinyaot "
                f"with format {FORMAT}; make the Record anew"
            )
        try:
            record = cls(**{name: data[name] for name in _PLAIN})
            record.stages = [
                Stage(s["name"], parse(s["text"]), s["seconds"]) for s in data["stages"]
            ]
            for name, row in _ROWS.items():
                setattr(record, name, [row(**_tuples(x)) for x in data[name]])
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            why = why.splitlines()[0]
            raise ParseError(f"Record.from_json: the Record is damaged: {why}") from None
        return record


_PLAIN = "name backend memory flops seconds times clock recompiled_because".split()
_ROWS: dict[str, Callable[..., Any]] = {
    "decisions": Decision,
    "saved": Saved,
    "recomputed": Recomputed,
    "kernels": Kernel,
    "buffers": Buffer,
    "pareto": Point,
    "network": Split,
}


def _tuples(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(x) if isinstance(x, list) else x for key, x in row.items()}


def _buffers(program: Program) -> list[Buffer]:
    assert program.plan is not None
    values: dict[int, list[int]] = {}
    for id_, place in program.plan.places.items():
        values.setdefault(place.root, []).append(id_)
    return [
        Buffer(root, p.space, p.offset, p.nbytes, p.first, p.last, tuple(values[root]))
        for root, p in buffers_of(program).items()
    ]


def _memory(program: Program, record: Record) -> dict[str, int | None]:
    assert program.plan is not None
    save_all = [p for p in record.pareto if p.name == "save_all"]
    chosen = [p for p in record.pareto if p.chosen]
    return {
        "planned_peak": planned_peak(program),
        "lower_bound": lower_bound(program),
        "saved_bytes": chosen[0].saved_bytes if chosen else saved_block(program),
        "save_all_bytes": save_all[0].saved_bytes if save_all else None,
        "arena": program.plan.arena,
        "scratch": scratch_bytes(program),
        "outputs": output_bytes(program),
        "measured_peak": None,
        "eager_peak": None,
    }


def _story(node: Node) -> list[str]:
    lines = [f"  computed by: {print_node(node)}"]
    if node.loc is not None:
        lines.append(f"  line: {node.loc}: {node.loc.source}".rstrip(": "))
    for step in node.origin:
        operand = "" if step.operand is None else f", gradient of operand {step.operand}"
        lines.append(f"  origin: {step.relation} %{step.id}{operand}")
    return lines


def _kernel(kernel: Kernel) -> str:
    others = len(kernel.members) - 1
    text = f"  kernel: {kernel.name}, {kernel.bytes} bytes, {kernel.flops} FLOPs"
    text += f", with {others} other value{'s' * (others > 1)}" if others else ""
    for name, seconds in (
        ("expected", kernel.expected_seconds),
        ("measured", kernel.seconds),
    ):
        text += "" if seconds is None else f", {name} {_number('seconds', seconds)}"
    return text


def _where(buffer: Buffer, id_: int, clock: str) -> str:
    others = [f"%{v}" for v in buffer.values if v != id_]
    shared = f", shared with {', '.join(others)}" if others else ""
    return (
        f"  memory: {buffer.space} at {buffer.offset}, {buffer.nbytes} bytes, in use from {clock} "
        f"{buffer.first} to {buffer.last}{shared}"
    )


def _number(name: str, x: float) -> str:
    if "seconds" in name:
        return f"{x * 1e6:.3g} us"
    return str(x)
