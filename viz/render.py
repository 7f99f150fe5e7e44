"""DOT to pictures, with the renderer that is there.

In order: the `dot` command, pygraphviz (Graphviz itself inside a wheel, called in process), and the
`graphviz-pure` command (a port of Graphviz in a wheel). None of them is needed to compile or train,
so without one the DOT text is written instead, with a line that says how to get one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

REMEDY = (
    "no Graphviz here, so the pictures are .dot files: "
    "pip install 'pygraphviz>=2.0' (or install the dot command), then run this again"
)
LONGEST = 120.0  # seconds for one picture


class RenderError(Exception):
    """The renderer that was found failed; the message is its own, in one line."""


def renderer() -> str | None:
    """What would draw: 'dot', 'pygraphviz', 'graphviz-pure', or None."""
    if shutil.which("dot"):
        return "dot"
    if importlib.util.find_spec("pygraphviz"):
        return "pygraphviz"
    if shutil.which("graphviz-pure"):
        return "graphviz-pure"
    return None


def render(dot: str, fmt: str) -> bytes | None:
    """The picture of `dot` as 'svg' or 'png' bytes, or None when nothing here can draw.

    Raises RenderError when the renderer does not take the text.
    """
    tool = renderer()
    if tool is None:
        return None
    if tool == "pygraphviz":
        return _in_process(dot, fmt)
    try:
        done = subprocess.run(
            [tool, f"-T{fmt}"], input=dot.encode(), capture_output=True, timeout=LONGEST
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RenderError(f"{tool}: {error}") from None
    if done.returncode or not done.stdout:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise RenderError(f"{tool}: {said[0] if said else 'failed'}")
    return done.stdout


def _in_process(dot: str, fmt: str) -> bytes:
    try:
        import pygraphviz

        with _quiet_stderr(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            picture = pygraphviz.AGraph(string=dot).draw(prog="dot", format=fmt)
    except Exception as error:  # whatever it raises, the text of the graph is still worth having
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise RenderError(f"pygraphviz: {first}") from None
    return bytes(picture)


@contextlib.contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Drop what C code writes to stderr: fontconfig inside the wheel complains of files of the
    system that it does not know, and the layout of its own splines."""
    try:
        sys.stderr.flush()
        kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    except (OSError, ValueError, AttributeError):  # no stderr to speak of
        yield
        return
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def write(dot: str, path: Path, fmt: str) -> Path:
    """Write the picture at `path` with `fmt` as its suffix, or the text as `.dot`; returns where.

    `fmt` is 'svg', 'png' or 'dot'. Raises RenderError as `render` does, having written the text.
    """
    text = path.with_suffix(".dot")
    if fmt == "dot" or renderer() is None:
        text.write_text(dot, encoding="utf-8")
        return text
    try:
        picture = render(dot, fmt)
    except RenderError:
        text.write_text(dot, encoding="utf-8")
        raise
    assert picture is not None
    target = path.with_suffix(f".{fmt}")
    target.write_bytes(picture)
    return target
