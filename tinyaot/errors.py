"""The errors a user sees. Each names the op, the shapes or dtypes, the user's line and the remedy.

All derive from `TinyaotError`, a `RuntimeError` (what a torch user catches); each also derives from
the builtin a NumPy user expects. Eager and traced code raise the same type for the same mistake.
"""

from __future__ import annotations

from tinyaot.location import user_location


class TinyaotError(RuntimeError):
    """Base of all. The user's source line is appended to the message where one is known."""

    def __init__(self, message: str, *, locate: bool = True) -> None:
        loc = user_location() if locate else None
        if loc is not None:
            source = loc.source
            message += f"\n  at {loc}" + (f": {source}" if source else "")
        super().__init__(message)


class ShapeError(TinyaotError, ValueError):
    """Shapes, axes or sizes that do not fit the op."""


class DTypeError(TinyaotError, TypeError):
    """A dtype (or a Python type) that the op does not take."""


class ArgumentError(TinyaotError, ValueError):
    """An argument whose value is out of its range, or that names no choice there is."""


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
    """A backend that cannot work here, or an option that it does not know."""


class BudgetError(TinyaotError, ValueError):
    """A memory budget that is no budget, or that no plan keeps."""
