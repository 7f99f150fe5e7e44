"""Partition's flow network as a Graphviz graph, with its capacities and the cut.

A box is a storage, its two halves `in` and `out` with the capacity between them. What the cut saves
is red, what it computes again is reached from the source by a dashed orange edge, and what the
backward does not need at all stays grey. Edges without a number have no end to their capacity.
"""

from __future__ import annotations

from typing import Any

import graphviz

from .labels import FONT, GREY, PHASE_LOOKS, RED, SLATE, html
from .units import bytes_text, count_text, seconds_text

AGAIN = PHASE_LOOKS["backward"].line
CUT = {"color": AGAIN, "fontcolor": AGAIN, "style": "dashed", "penwidth": "1.8"}
PICO = 1e-12


def draw_network(record: Any) -> graphviz.Digraph:
    """The graph of `record.network`."""
    g = graphviz.Digraph("network")
    g.attr("graph", bgcolor="white", fontname=FONT, nodesep="0.25", ranksep="0.4")
    g.attr("node", shape="box", style="rounded", fontname=FONT, fontsize="10", color=GREY)
    g.attr("edge", fontname=FONT, fontsize="9", color=GREY, arrowsize="0.6")
    for end in ("source", "sink"):
        g.node(end, shape="circle", color=SLATE)
    before = next((s.program for s in record.stages if s.name == "simplify"), None)
    values, producers = (before.values, before.producers) if before else ({}, {})
    price = count_text if _in_flops(record) else _time
    for s in record.network:
        g.node(f"s{s.id}", id=f"s{s.id}", **_box(s, values, producers, price))
        look = CUT if s.cut == "again" else {}
        g.edge("source", f"s{s.id}", label=_label(s.again, price), **look)
        for user in s.users:
            g.edge(f"s{s.id}", f"s{user}")
        if s.read:
            g.edge(f"s{s.id}", "sink")
    return g


def _box(s: Any, values: Any, producers: Any, price: Any) -> dict[str, str]:
    lines = [f"%{s.id}"]
    if s.id in producers:
        lines[0] += f" {producers[s.id].op}"
    if s.id in values:
        type_ = values[s.id].type
        lines.append(f"{type_}  {bytes_text(type_.nbytes)}")
    lines.append(f"keep: {_label(s.keep, price)}")
    label = "<" + "<BR/>".join(html(x) for x in lines) + ">"
    if s.cut == "keep":
        return {"label": label, "color": RED, "fontcolor": RED, "penwidth": "1.8"}
    return {"label": label}


def _label(capacity: float | None, price: Any) -> str:
    return "inf" if capacity is None else str(price(capacity))


def _time(picoseconds: float) -> str:
    return seconds_text(picoseconds * PICO)


def _in_flops(record: Any) -> bool:
    return any("gap_flops" in d.numbers for d in record.decisions if d.kind == "partition")
