"""Pieces of Graphviz's HTML-like labels, and the colours that every picture shares.

Tables survive any text once `& < > "` are escaped, which record labels do not; and a cell with a
title becomes an element with an id in the SVG, so that a page can find a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from tinyaot.ir import Input, Node, Phase
from tinyaot.shapes import DType

FONT = "Helvetica"
RED, GREY, SLATE = "#c8102e", "#8a8f98", "#5b6472"
NAME, SOURCE = 30, 48  # longest name and source line shown, in characters


@dataclass(frozen=True)
class Look:
    """Colours of a box: its line, the band of its heading, its body, the ground around it."""

    line: str
    band: str
    body: str
    ground: str = "#ffffff"


PHASE_LOOKS: dict[Phase | None, Look] = {
    "forward": Look("#2f6fd0", "#cfe0fa", "#f4f8ff", "#fafcff"),
    "backward": Look("#d9770a", "#fbdcb4", "#fff8ee", "#fffdf9"),
    "update": Look("#2e8b57", "#c9ead6", "#f2fbf5", "#fafefb"),
    None: Look(SLATE, "#dde1e7", "#f8f9fb"),
}
STATE = Look("#8c6d1f", "#f6e7b4", "#fdf8e6")
ARGUMENT = Look("#5f4b8b", "#e1d8f3", "#f8f5fd")


def html(text: str) -> str:
    """Escaped for a label; control characters, which XML refuses, become spaces."""
    return escape("".join(c if c.isprintable() else " " for c in text), quote=True)


def font(text: str, color: str, size: int | None = None) -> str:
    points = f' POINT-SIZE="{size}"' if size else ""
    return f'<FONT COLOR="{color}"{points}>{html(text)}</FONT>' if text else ""


def cell(inner: str, anchor: str = "", hint: str = "", **attributes: str) -> str:
    """A table cell, left aligned. With `anchor` it is an element of that id, and `hint` is what
    the pointer finds there."""
    if anchor:
        attributes |= {"ID": anchor, "PORT": anchor, "TITLE": html(hint)}
    listed = "".join(f' {k}="{v}"' for k, v in attributes.items())
    return f'<TD ALIGN="LEFT"{listed}>{inner}</TD>'


def table(rows: str, look: Look, dashed: bool = False) -> str:
    """A rounded box around rows."""
    return (
        f'<TABLE BORDER="1" CELLBORDER="0" CELLSPACING="0" CELLPADDING="2" COLOR="{look.line}" '
        f'BGCOLOR="{look.body}" STYLE="ROUNDED{",DASHED" if dashed else ""}">{rows}</TABLE>'
    )


def plain_table(rows: str) -> str:
    """Rows without a box."""
    return f'<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="0" CELLPADDING="2">{rows}</TABLE>'


def input_table(inputs: list[Input]) -> str:
    """The box of the inputs that one box of ops reads."""
    rows = ""
    for i in inputs:
        look = STATE if i.role == "state" else ARGUMENT
        name = cell(f"<B>{html(short_name(i.name) or i.role)}</B>", BGCOLOR=look.band)
        id_, type_ = (cell(font(str(x), SLATE)) for x in (i.value, i.value.type))
        rows += f"<TR>{id_}{name}{type_}</TR>"
    return f"<{table(rows, PHASE_LOOKS[None])}>"


def legend(title: str, facts: str) -> str:
    """What heads every picture: its name, its size and the meaning of the colours."""
    looks = [(look, str(phase)) for phase, look in PHASE_LOOKS.items() if phase]
    looks += [(STATE, "state"), (ARGUMENT, "argument")]
    chips = "".join(cell(font(name, look.line), BGCOLOR=look.band) for look, name in looks)
    chips += cell(f'<FONT COLOR="{RED}"><B>&#8594;</B> saved for backward</FONT>')
    chips += cell(font("recomputed", SLATE), STYLE="DASHED", BORDER="1", COLOR=GREY)
    chips += cell(font("scalars stand in the rows that read them", GREY))
    head = f'<FONT POINT-SIZE="16"><B>{html(title)}</B></FONT>   {font(facts, GREY)}'
    return (
        '<<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="4" CELLPADDING="3">'
        f"<TR>{cell(head, COLSPAN='8')}</TR><TR>{chips}</TR></TABLE>>"
    )


def hint(node: Node) -> str:
    """What the pointer finds on a row: the op, where it comes from and the user's line."""
    made = ", ".join(f"{o.relation} %{o.id}" for o in node.origin)
    return " · ".join(x for x in (node.op, made, str(node.loc or "")) if x)


def plain(x: object) -> str:
    """An attribute's value, briefly."""
    if isinstance(x, DType):
        return x.short
    if isinstance(x, tuple):
        return "[" + ",".join(plain(i) for i in x) + "]"
    return f"{x:.6g}" if isinstance(x, float) else str(x)


def short_name(name: str) -> str:
    """A long name keeps its end, which tells it from others."""
    return name if len(name) <= NAME else "…" + name[-NAME + 1 :]


def short_source(line: str) -> str:
    """A long line keeps its start."""
    return line if len(line) <= SOURCE else line[: SOURCE - 1] + "…"
