"""Where in the *user's* code something happened: the nearest frame outside this package."""

from __future__ import annotations

import linecache
import os
import sys
from dataclasses import dataclass
from functools import cache

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_PROGRAMS = _PACKAGE + "models" + os.sep  # the built-in programs are written as a user would
_LIBRARY = os.path.dirname(os.__file__) + os.sep  # Python's own
LONGEST = 120  # characters of a source line that a message shows


@dataclass(frozen=True, slots=True)
class Loc:
    """A line of the user's source."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line}"

    @property
    def source(self) -> str:
        """The text of the line, stripped ('' where the source cannot be read), cut if long."""
        text = linecache.getline(self.file, self.line).strip()
        return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."


def is_user_file(filename: str) -> bool:
    """Whether code of `filename` is the user's (not tinyaot's own)."""
    return filename.startswith(_PROGRAMS) or not filename.startswith((_PACKAGE, "<frozen"))


@cache
def _is_users(filename: str) -> bool:
    return is_user_file(filename) and not _is_library(filename)


def _is_library(filename: str) -> bool:
    if is_installed(filename):
        return f"-packages{os.sep}numpy{os.sep}" in filename
    return is_standard(filename)


def is_installed(filename: str) -> bool:
    """Whether a file is of a package that was installed."""
    return "-packages" + os.sep in filename


def is_standard(filename: str) -> bool:
    """Whether a file is of Python's own library."""
    return filename.startswith(_LIBRARY) and not is_installed(filename)


def user_location() -> Loc | None:
    """The innermost stack frame outside tinyaot, Python's library (which calls back, as
    copy.deepcopy does) and NumPy; or None (a C caller)."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if _is_users(code.co_filename):
            return Loc(code.co_filename, frame.f_lineno)
        frame = frame.f_back  # type: ignore[assignment]
    return None
