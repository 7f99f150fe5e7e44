"""Which ops of a Program share a box in its picture.

A training step has a hundred ops, and a hundred boxes are read by nobody. Ops that came from one
line of the user's source and feed one another share a box, as rows; a box never swallows an op if
that would make two boxes need each other, so the picture stays acyclic (the convexity that a fuser
asks of a group, asked here for the eye). A region is a box of its own. Constants and scalar inputs
are written into the rows that read them and get no box at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tinyaot.cost import is_recomputed
from tinyaot.ir import Node, Phase, Program
from tinyaot.location import Loc

MOST_ROWS = 14
LEAVES = ("full", "iota")


@dataclass(eq=False)
class Box:
    """Ops drawn together. `number` is its position in order of its first op."""

    number: int
    phase: Phase | None
    loc: Loc | None
    recomputed: bool
    nodes: list[Node] = field(default_factory=list)
    needs: set[int] = field(default_factory=set)  # boxes whose values it reads
    region: Node | None = None  # whose body it shows

    @property
    def key(self) -> tuple[Phase | None, Loc | None, bool]:
        """What ops of one box have in common."""
        return self.phase, self.loc, self.recomputed


def is_inlined(program: Program, node: Node) -> bool:
    """Whether the op is written into its readers' rows: a constant that is no output."""
    return node.op in LEAVES and not any(
        o.value.id == r.id for o in program.outputs for r in node.results
    )


def boxes_of(program: Program, most_rows: int = MOST_ROWS) -> list[Box]:
    """The Program's ops in boxes of at most `most_rows`; 1 gives every op its own."""
    boxes: list[Box] = []
    home: dict[int, Box] = {}  # value id -> the box that makes it
    for node in program.nodes:
        if is_inlined(program, node):
            continue
        if node.body is not None:
            rows = [n for n in node.body.nodes if n.op not in LEAVES]
            boxes.append(Box(len(boxes), node.phase, node.loc, False, rows, region=node))
            continue
        makers = {v.id: home[v.id] for v in node.inputs if v.id in home}
        box = _box_for(node, makers, boxes, most_rows)
        box.nodes.append(node)
        box.needs.update(m.number for m in makers.values() if m is not box)
        home.update((r.id, box) for r in node.results)
    return boxes if program.is_fused else _joined(program, boxes, most_rows)


def _joined(program: Program, boxes: list[Box], most_rows: int) -> list[Box]:
    """Boxes after those that began apart and met later have been put together, renumbered."""
    position = {id(node): i for i, node in enumerate(program.nodes)}
    alive = {b.number: b for b in boxes}
    # scalars such as a learning rate connect what has nothing else to do with each other
    shared = {i for i, v in program.values.items() if not v.type.ndim and len(program.users[i]) > 1}
    for box in boxes:
        if box.number not in alive:  # put into a later one already
            continue
        for number in sorted(box.needs):
            other = alive[number]
            if box.key != other.key or len(box.nodes) + len(other.nodes) > most_rows:
                continue
            given = {r.id for n in other.nodes for r in n.results} - shared
            if given.isdisjoint(v.id for n in box.nodes for v in n.inputs):
                continue
            if _reaches(box.needs - {number}, number, alive):
                continue  # a third box stands between
            box.nodes = sorted(other.nodes + box.nodes, key=lambda n: position[id(n)])
            box.needs = (box.needs | other.needs) - {number}
            del alive[number]
            for b in alive.values():
                if number in b.needs:
                    b.needs = (b.needs - {number}) | ({box.number} - {b.number})
    left = sorted(alive.values(), key=lambda b: position[id(b.nodes[0])])
    numbers = {b.number: i for i, b in enumerate(left)}
    for b in left:
        b.number, b.needs = numbers[b.number], {numbers[n] for n in b.needs}
    return left


def _box_for(node: Node, makers: Mapping[int, Box], boxes: list[Box], most_rows: int) -> Box:
    """The maker of the largest operand that may take the node in, or a new box."""
    recomputed = is_recomputed(node)
    by_size = sorted(node.inputs, key=lambda v: -v.type.nbytes)
    for box in dict.fromkeys(makers[v.id] for v in by_size if v.id in makers):
        if box.key == (node.phase, node.loc, recomputed) and len(box.nodes) < most_rows:
            others = {m.number for m in makers.values() if m is not box}
            if not _reaches(others, box.number, dict(enumerate(boxes))):
                return box
    box = Box(len(boxes), node.phase, node.loc, recomputed)
    boxes.append(box)
    return box


def _reaches(start: set[int], goal: int, boxes: Mapping[int, Box]) -> bool:
    """Whether any box of `start` is, or needs, directly or not, the box `goal`."""
    if goal in start:
        return True
    todo, seen = list(start), set(start)
    while todo:
        needs = boxes[todo.pop()].needs
        if goal in needs:
            return True
        todo.extend(needs - seen)
        seen |= needs
    return False
