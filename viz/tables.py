"""Tables in the terminal, coloured only where colour is wanted.

Rich takes care of pipes, of NO_COLOR and of the width. Nothing here parses markup, since source
lines and names of a user's program are full of brackets.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

MOST_ROWS = 20
PIPE_WIDTH = 110  # characters, where no terminal says


class _Stdout(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # the command decides what that means


def console() -> Console:
    """Where reports go: stdout."""
    out = _Stdout(highlight=False, markup=False, emoji=False)
    if not out.is_terminal and "COLUMNS" not in os.environ:
        out.width = PIPE_WIDTH
    return out


def table(title: str, *columns: str, numbers: Iterable[int] = ()) -> Table:
    """An empty table; the columns at `numbers` are right aligned."""
    made = Table(title=Text(title, style="bold"), title_justify="left", box=SIMPLE, pad_edge=False)
    for i, name in enumerate(columns):
        made.add_column(name, justify="right" if i in set(numbers) else "left", overflow="fold")
    return made


def and_more(rows: Table, total: int) -> None:
    """Say how many rows there is no room for."""
    if total > MOST_ROWS:
        rows.add_row(f"... {total - MOST_ROWS} more")
