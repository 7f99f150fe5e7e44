"""The errors a user sees. Each names the op, the shapes or dtypes, the user's line and the remedy.

All derive from `TinyaotError`, a `RuntimeError` (what a torch user catches); each also derives from
the builtin a NumPy user expects. Eager and traced code raise the same type for the same mistake.
"""

from __future__ import annotations

from tinyaot.location import Loc, user_location


class TinyaotError(RuntimeError):
    """Base of all. The user's source line is appended to the message: `at`, where what failed was
    written, or else the line that is running. `locate` False: no line."""

    def __init__(self, message: str, *, locate: bool = True, at: Loc | None = None) -> None:
        loc = at or (user_location() if locate else None)
        if loc is not None:
            source = loc.source
            message += f"\n  at {loc}" + (f": {source}" if source else "")
        super().__init__(message)


class ShapeError(TinyaotError, ValueError):
    """Shapes, axes or sizes that do not fit the op."""


class DTypeError(TinyaotError, TypeError):
    """A dtype (or a Python type) that the op does not take."""


class ArgumentError(TinyaotError, ValueError):
    """An argument whose value is out of range, or not one of the choices."""


class UnknownError(TinyaotError, KeyError):
    """A name or an id that stands for nothing here."""

    def __str__(self) -> str:  # KeyError's own shows the text with quotes and escapes
        return str(self.args[0])


class IndexingError(TinyaotError, IndexError):
    """An index that is out of range or of a kind that cannot index."""


class MutationError(TinyaotError):
    """An in-place write that cannot be given a meaning."""


class GradError(TinyaotError):
    """A derivative that does not exist, or a graph that was freed."""


class TraceError(TinyaotError, TypeError):
    """A traced tensor was used where its value is needed, or escaped from the trace."""


class VerifyError(TinyaotError):
    """A Program that breaks a law of its stage."""


class ParseError(TinyaotError, ValueError):
    """IR text that is not a Program."""


class BackendError(TinyaotError):
    """A backend or device that does not exist, cannot work here, or lacks what is asked of it."""


class FileError(TinyaotError, OSError):
    """A file that cannot be read or written, or is of another format."""


class MissingFileError(FileError, FileNotFoundError):
    """A file or folder that is not there."""


class BudgetError(TinyaotError, ValueError):
    """A memory budget that is neither bytes nor a fraction, or that no plan keeps."""
