"""A Program as a Graphviz graph, in one visual language for every stage.

Three columns: forward runs down in blue, backward runs up beside it in orange, so that a layer
stands level with its gradient, and the update is green. A red edge is a value kept from forward to
backward, with its bytes; a dashed box repeats forward work instead. A box is headed by the user's
line that it came from and has a row an op. Boxes, rows, edges and clusters have ids to find them by
(`b3`, `a_v12` for value %12, `e3_7`, `phase_forward`).
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

import graphviz

from tinyaot.ir import PHASES, STAGES, Node, Output, OutputRole, Phase, Program, Value

from .boxes import MOST_ROWS, Box, boxes_of, is_inlined
from .labels import (
    ARGUMENT,
    FONT,
    GREY,
    PHASE_LOOKS,
    RED,
    SLATE,
    cell,
    font,
    hint,
    html,
    input_table,
    legend,
    plain,
    plain_table,
    short_name,
    short_source,
    table,
)
from .units import bytes_text

MOST_OPERANDS = 5  # written out in a row
MOST_OF_A_REGION = 40  # rows
MOST_READERS = 3  # boxes that a scalar has edges to; beyond, its name in the rows has to do
VERBS: dict[OutputRole, str] = {
    "user": "returned",
    "mutated": "overwrites",
    "saved": "saved",
    "gradient": "gradient of",
}


def draw(program: Program, *, by: str = "line", title: str | None = None) -> graphviz.Digraph:
    """The graph of a Program. `by`: 'line' puts connected ops of one source line in one box, 'op'
    gives every op its own."""
    return _Drawing(program, MOST_ROWS if by == "line" else 1).graph(title)


def _region_head(node: Node) -> str:
    """A region's name, and how much of each label a tile takes."""
    a = node.attrs
    tile = ", ".join(f"{b} of {n}" for b, n in zip(a["block"], a["tile"], strict=True))
    level = f", level {a['level']}" if "level" in a else ""
    place = font(f"tile {tile or 'of all'}{level}", SLATE, 9)
    return f'{place}<BR ALIGN="LEFT"/><B>{html(a["name"])}</B><BR ALIGN="LEFT"/>'


class _Drawing:
    def __init__(self, program: Program, most_rows: int) -> None:
        self.program = program
        self.boxes = boxes_of(program, most_rows)
        self.home = {
            r.id: box
            for box in self.boxes
            for n in ([box.region] if box.region else box.nodes)
            for r in n.results
        }
        self.inputs = {i.value.id: i for i in program.inputs}
        self.names = self._names()
        self.phases = [p for p in PHASES if any(b.phase == p for b in self.boxes)]
        self.columns: dict[Phase | None, list[str]] = defaultdict(list)  # names of nodes
        self.below: set[str] = set()  # nodes that have another above them
        self.outputs: dict[int, list[Output]] = defaultdict(list)
        for o in program.outputs:
            self.outputs[o.value.id].append(o)
        split = STAGES[STAGES.index("partition") :]
        self.split = program.stage in split  # what is saved has been decided

    def graph(self, title: str | None) -> graphviz.Digraph:
        p = self.program
        regions = f" in {len(p.nodes)} regions" if p.is_fused else ""
        facts = f"{len(p.computed)} ops{regions}, {len(p.inputs)} inputs, {len(p.outputs)} outputs"
        if p.plan is not None:
            facts += f", arena {bytes_text(p.plan.arena)}"
        g = graphviz.Digraph(p.name)
        g.attr("graph", newrank="true", ranksep="0.45", nodesep="0.3", bgcolor="white")
        g.attr("graph", label=legend(title or f"{p.name} @ {p.stage}", facts))
        g.attr("graph", fontname=FONT, fontsize="11", labelloc="t", labeljust="l")
        g.attr("node", shape="plain", fontname=FONT, fontsize="10")
        g.attr("edge", fontname=FONT, fontsize="9", color=GREY, arrowsize="0.6")
        self._columns(g)
        self._edges(g)
        self._left_to_right(g)
        self._passed_through(g)
        return g

    def _columns(self, g: graphviz.Digraph) -> None:
        """The boxes, phase by phase."""
        for phase in self.phases:
            look = PHASE_LOOKS[phase]
            with g.subgraph(name=f"cluster_{phase}") as c:
                c.attr(id=f"phase_{phase}", label=phase, labeljust="l", style="rounded,filled")
                c.attr(color=look.line, fillcolor=look.ground, fontcolor=look.line, fontsize="13")
                for box in self.boxes:
                    if box.phase == phase:
                        self._add(c, box)
        for box in self.boxes:
            if box.phase is None:
                self._add(g, box)
        updates = [b for b in self.boxes if b.phase == "update"]
        for above, below in pairwise(updates):  # one below another, or the column is very wide
            self._link(g, f"b{above.number}", f"b{below.number}", style="invis")

    def _left_to_right(self, g: graphviz.Digraph) -> None:
        """Keep the columns' order: Graphviz orders nodes of one rank, not clusters, so a point
        above each column, tied to what heads it, makes any other order cost crossings."""
        with g.subgraph() as level:
            level.attr(rank="min")
            for phase in self.phases:
                level.node(f"top_{phase}", style="invis", shape="point")
            for left, right in pairwise(self.phases):
                level.edge(f"top_{left}", f"top_{right}", style="invis")
        for phase in self.phases:
            for name in self.columns[phase]:
                if name not in self.below:
                    g.edge(f"top_{phase}", name, style="invis")

    def _link(self, g: Any, above: str, below: str, **look: str) -> None:
        """An edge that the layout follows downwards."""
        self.below.add(below)
        g.edge(above, below, **look)

    def _add(self, g: Any, box: Box) -> None:
        """A box and, above it, the inputs that it reads; scalars are in its rows. An input that
        several boxes read is drawn at each, which spares long edges."""
        name = f"b{box.number}"
        g.node(name, label=self._box(box), id=name)
        self.columns[box.phase].append(name)
        read = dict.fromkeys(v.id for n in box.nodes for v in n.inputs)
        given = [
            self.inputs[i] for i in read if i in self.inputs and self.inputs[i].value.type.ndim
        ]
        if given:
            g.node(f"i{box.number}", label=input_table(given), id=f"i{box.number}")
            self.columns[box.phase].append(f"i{box.number}")
            self._link(g, f"i{box.number}", name, weight="4")

    # ---- boxes and rows -------------------------------------------------------------------------

    def _box(self, box: Box) -> str:
        look = PHASE_LOOKS[box.phase]
        head = self._head(box)
        band = f"<TR>{cell(head, BGCOLOR=look.band)}</TR>" if head else ""
        # a table of its own keeps the rows' columns together under a long heading
        shown = box.nodes[:MOST_OF_A_REGION]
        text = "".join(self._row(node) for node in shown)
        if left := len(box.nodes) - len(shown):
            text += f"<TR>{cell(font(f'and {left} more', SLATE))}</TR>"
        rows = plain_table(text)
        return f"<{table(f'{band}<TR>{cell(rows)}</TR>', look, box.recomputed)}>"

    def _head(self, box: Box) -> str:
        if box.region is not None:
            return _region_head(box.region)
        if box.loc is None:
            return "recomputed" if box.recomputed else ""
        done = {"backward": "gradient of "}.get(box.phase or "", "")
        place = font(("recomputed: " if box.recomputed else done) + str(box.loc), SLATE, 9)
        source = short_source(box.loc.source)
        if not source:
            return place
        return f'{place}<BR ALIGN="LEFT"/><B>{html(source)}</B><BR ALIGN="LEFT"/>'

    def _row(self, node: Node) -> str:
        ids = [r.id for r in node.results]
        many = len(ids) > 1
        result = f"%{ids[0]}..%{ids[-1]}" if many else f"%{ids[0]}" if ids else ""
        type_ = f"{len(ids)} values" if many else str(node.result.type) if ids else ""
        given = ", ".join(t for i in ids for t in self._given_back(i))
        cells = [
            cell(font(result, SLATE), anchor=f"v{ids[0]}" if ids else "", hint=hint(node)),
            cell(f"<B>{html(node.op)}</B>{html(self._arguments(node))}"),
            cell(font(type_, SLATE)),
        ]
        if self.program.plan is not None:
            cells.append(cell(font(self._place(ids[0]) if ids else "", SLATE)))
        cells.append(cell(font(given and f"→ {given}", PHASE_LOOKS[node.phase].line)))
        return f"<TR>{''.join(cells)}</TR>"

    def _arguments(self, node: Node) -> str:
        """Operands by name, and the attributes that the type does not show."""
        operands = [self.names.get(v.id, str(v)) for v in node.inputs]
        if len(operands) > MOST_OPERANDS:
            operands = [*operands[:2], f"... {len(operands) - 2} more"]
        shown = {k: v for k, v in node.attrs.items() if k not in ("shape", "dtype")}
        details = [str(v) if k == "spec" else f"{k}={plain(v)}" for k, v in shown.items()]
        return f"({', '.join(operands)})  {' '.join(details)}".rstrip()

    def _given_back(self, id_: int) -> list[str]:
        """What a value is to the caller: 'returned', 'overwrites model.weight', ..."""
        texts = []
        for o in self.outputs[id_]:
            target = self.inputs.get(o.of) if o.of is not None else None
            name = target.name or str(target.value) if target else ""
            texts.append(f"{VERBS[o.role]} {short_name(name)}".rstrip())
        return texts

    def _place(self, id_: int) -> str:
        place = self.program.plan.places.get(id_) if self.program.plan else None
        if place is None:
            return ""
        if place.root != id_:
            return f"in %{place.root}"
        return f"{place.space} +{place.offset:,}" if place.space == "arena" else place.space

    def _names(self) -> dict[int, str]:
        """How operands are written: inputs by name, constants by value."""
        names = {id_: short_name(i.name) for id_, i in self.inputs.items() if i.name}
        for node in self.program.all_nodes:
            if is_inlined(self.program, node):
                value = node.attrs["value"] if node.op == "full" else f"iota {node.attrs['size']}"
                names.update((r.id, plain(value)) for r in node.results)
        return names

    def _passed_through(self, g: graphviz.Digraph) -> None:
        """Inputs that are given back as they are have no row to say so."""
        for o in self.program.outputs:
            given = self.inputs.get(o.value.id)
            if given is not None and o.of != given.value.id:
                text = f"{short_name(given.name) or given.value} → {VERBS[o.role]} as it is"
                row = f"<TR>{cell(font(text, ARGUMENT.line))}</TR>"
                g.node(f"o{o.value.id}", label=f"<{table(row, ARGUMENT)}>")

    # ---- edges ----------------------------------------------------------------------------------

    def _edges(self, g: graphviz.Digraph) -> None:
        readers: dict[int, set[int]] = defaultdict(set)
        between: dict[tuple[int, int], dict[int, Value]] = defaultdict(dict)
        for box in self.boxes:
            for v in (v for n in box.nodes for v in n.inputs if v.id in self.home):
                readers[v.id].add(box.number)
                if self.home[v.id] is not box:
                    between[self.home[v.id].number, box.number][v.id] = v
        for (source, target), values in between.items():
            few = (v for v in values.values() if v.type.ndim or len(readers[v.id]) <= MOST_READERS)
            if drawn := list(few):
                self._edge(g, self.boxes[source], self.boxes[target], drawn)
        self._recomputations(g)
        self._write_order(g)

    def _edge(self, g: graphviz.Digraph, source: Box, target: Box, values: list[Value]) -> None:
        look = {
            "id": f"e{source.number}_{target.number}",
            "tooltip": ", ".join(f"{v}: {v.type}" for v in values),
        }
        if self.split and (source.phase, target.phase) == ("forward", "backward"):
            names = " ".join(map(str, values)) if len(values) <= 3 else f"{len(values)} values"
            size = bytes_text(sum(v.type.nbytes for v in values))
            look |= {
                "color": RED,
                "fontcolor": RED,
                "penwidth": "1.8",
                "label": f" {names}  {size}",
            }
        elif source.phase == target.phase:
            look["color"] = PHASE_LOOKS[source.phase].line
        if source.phase != target.phase:
            look["minlen"] = "0"  # what belongs together may stand level
        ends = [f"b{source.number}", f"b{target.number}"]
        if source.phase == target.phase == "backward":  # laid out upwards
            ends.reverse()
            look["dir"] = "back"
        self._link(g, *ends, **look)

    def _recomputations(self, g: graphviz.Digraph) -> None:
        """From a box to the one that does part of its work again."""
        for box in (b for b in self.boxes if b.recomputed):
            olds = {o.id for n in box.nodes for o in n.origin if o.relation == "recompute-of"}
            sources = {self.home[i].number for i in olds if i in self.home} - {box.number}
            for source in sorted(sources):
                look = {"style": "dashed", "constraint": "false", "tooltip": "recomputed"}
                g.edge(f"b{source}", f"b{box.number}", id=f"r{source}_{box.number}", **look)

    def _write_order(self, g: graphviz.Digraph) -> None:
        """Before functionalization: from each write to the boxes that read its target later."""
        where = {id(n): box for box in self.boxes for n in box.nodes}
        last: dict[int, Box] = {}
        pairs: set[tuple[int, int]] = set()
        for node in self.program.nodes:
            box = where.get(id(node))
            if box is None:
                continue
            writers = (last[v.id] for v in node.inputs if v.id in last)
            pairs.update((w.number, box.number) for w in writers if w is not box)
            if node.op == "write":
                last[node.inputs[0].id] = box
        for source, target in sorted(pairs):
            ends = (f"b{source}", f"b{target}")
            self._link(g, *ends, style="dotted", tooltip="reads what was written")
