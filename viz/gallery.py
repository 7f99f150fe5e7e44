"""A folder of pictures, one a stage, and a page that shows them in order beside their IR text."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from .dot import draw
from .network import draw_network
from .render import REMEDY, RenderError, renderer, write
from .units import seconds_text

WHAT: dict[str, str] = {
    "trace": "The user's function as it ran, op by op, with its writes and views still in it.",
    "functionalize": "Every write has become a new value; views are plain values.",
    "autodiff": "The gradient, op by op, next to the forward it belongs to.",
    "simplify": "Equal ops merged, unused ops dropped, constants folded, exact identities applied.",
    "partition": "What forward keeps for backward (red), and what is computed again (dashed).",
    "layout": "Which products read transposes as strides, and which copies remain.",
    "fuse": "Which ops run as one loop.",
    "schedule": "The order of execution that needs the least memory.",
    "plan": "Where every value lives: its place in the arena, and whose bytes it takes over.",
    "emit": "What runs.",
}

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; }
nav { position: sticky; top: 0; background: #fff; padding: .6rem 0; border-bottom: 1px solid #ddd; }
nav a { margin-right: 1rem; } .facts { color: #667; } section { margin: 2.5rem 0; }
img { max-width: 100%; border: 1px solid #e4e6ea; border-radius: 6px; }
pre { overflow-x: auto; background: #f6f7f9; padding: 1rem; font-size: 12px; }
"""


@dataclass
class Gallery:
    """What was written. `notes` are lines for the user: how to get a renderer, what failed."""

    index: Path
    pictures: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def write_gallery(record: Any, folder: Path, *, fmt: str = "svg", by: str = "line") -> Gallery:
    """Write `00-trace.svg`, ..., `network.svg` and `index.html` into `folder`, making it. Without a
    renderer the pictures are `.dot` files and the page links to them. Raises OSError if it cannot
    write."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Gallery(folder / "index.html")
    if fmt != "dot" and renderer() is None:
        made.notes.append(REMEDY)
    sections, before = [], None
    for number, stage in enumerate(record.stages):
        path = folder / f"{number:02}-{stage.name}"
        dot = draw(stage.program, by=by, title=f"{stage.program.name}: {stage.name}").source
        try:
            picture = write(dot, path, fmt)
        except RenderError as error:
            picture = path.with_suffix(".dot")
            made.notes.append(f"{stage.name}: written as .dot, since the renderer failed: {error}")
        made.pictures.append(picture)
        sections.append(_section(stage, before, picture))
        before = stage.program
    if record.network:
        sections.append(_network(record, folder, fmt, made))
    made.index.write_text(_page(record, sections), encoding="utf-8")
    return made


def _network(record: Any, folder: Path, fmt: str, made: Gallery) -> str:
    """The flow network of the partition, drawn and printed."""
    try:
        picture = write(draw_network(record).source, folder / "network", fmt)
    except RenderError as error:
        picture = folder / "network.dot"
        made.notes.append(f"network: written as .dot, since the renderer failed: {error}")
    text = "\n".join(map(str, record.network))
    return f"""<section id="network">
<h2>network</h2>
<p>The flow network whose minimum cut decides what is saved (red) and computed again (dashed).
<span class="facts">{len(record.network)} storages</span></p>
{_shown(picture, "the flow network")}
<details><summary>text</summary><pre>{escape(text)}</pre></details>
</section>"""


def _shown(picture: Path, what: str) -> str:
    link = escape(picture.name)
    if picture.suffix == ".dot":
        return f'<a href="{link}">{link}</a>'
    return f'<a href="{link}"><img src="{link}" alt="diagram of {escape(what)}"></a>'


def _section(stage: Any, before: Any, picture: Path) -> str:
    program = stage.program
    facts = f"{len(program.all_nodes)} ops"
    if program.is_fused:
        facts += f" in {len(program.nodes)} regions"
    if before is not None:
        old = {r.id for n in before.all_nodes for r in n.results}
        new = {r.id for n in program.all_nodes for r in n.results}
        facts += f" (+{len(new - old)} −{len(old - new)})"
    return f"""<section id="{escape(stage.name)}">
<h2>{escape(stage.name)}</h2>
<p>{escape(WHAT.get(stage.name, ""))}
<span class="facts">{facts}, {seconds_text(stage.seconds)}</span></p>
{_shown(picture, stage.name)}
<details><summary>text</summary><pre>{escape(str(program))}</pre></details>
</section>"""


def _page(record: Any, sections: list[str]) -> str:
    name = escape(record.stages[0].program.name if record.stages else "empty record")
    names = [*(s.name for s in record.stages), *(["network"] if record.network else [])]
    links = " ".join(f'<a href="#{escape(name)}">{escape(name)}</a>' for name in names)
    body = "\n".join(sections)
    return f"""<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>{name}: stages</title><style>{STYLE}</style></head>
<body>
<h1>{name}: every stage</h1>
<nav>{links}</nav>
{body}
</body>
</html>
"""
