"""What PROGRAM on the command line names, compiled and recorded but not run.

A built-in name (`mlp`); `file.py:function`, where the function takes no arguments, or the file also
has an `example_inputs()` that gives them; or the JSON file of a saved Record.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import tinyaot as ta
from tinyaot.compile import Compiled
from tinyaot.errors import ParseError, TinyaotError
from tinyaot.location import is_user_file
from tinyaot.nn import Module
from tinyaot.record import Record


class UsageError(Exception):
    """What was typed names nothing that can be done; the message is one line."""


class ProgramError(Exception):
    """The user's program failed; the message is one line, with the place."""


def load(
    program: str,
    *,
    backend: str = "auto",
    budget: int | float | None = None,
    measured: bool = False,
) -> Record:
    """The Record of what `program` names. `measured`: run it, eager and compiled, for the figures
    that only a run gives (a saved Record has those that it was saved with).

    Raises UsageError, ProgramError or a TinyaotError.
    """
    from tinyaot.models import BUILTIN  # brings nn, optim and data along

    options: dict[str, Any] = {"backend": backend, "memory_budget": budget}
    if program in BUILTIN:
        training = BUILTIN[program]()
        return _explain(ta.compile(training.step, **options), training.batch(0), measured)
    file, colon, name = program.rpartition(":")
    if colon and file.endswith(".py"):
        function, arguments = from_file(Path(file), name)
        compiled = function if isinstance(function, Compiled) else ta.compile(function, **options)
        try:
            return _explain(compiled, arguments, measured)
        except TinyaotError:
            raise
        except Exception as error:
            raise ProgramError(describe(error)) from error
    path = Path(program)
    if path.suffix == ".json" or path.is_file():
        return saved(path)
    raise UsageError(
        f"no program {program!r}: it is a built-in name ({', '.join(BUILTIN)}), "
        "FILE.py:FUNCTION, or a Record saved as JSON"
    )


def _explain(compiled: Compiled, arguments: tuple[Any, ...], measured: bool) -> Record:
    record = compiled.explain(*arguments)
    return record.measure(*arguments).time(*arguments) if measured else record


def saved(path: Path) -> Record:
    """The Record in a JSON file."""
    text = read(path)
    try:
        return Record.from_json(text)
    except ParseError as error:
        why = str(error).splitlines()[0].removeprefix("Record.from_json: ")
        raise UsageError(
            f"{path} is not a saved Record (write one with record.to_json()): {why}"
        ) from None


def read(path: Path) -> str:
    """A text file's content; UsageError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not a text file") from None


def from_file(path: Path, name: str) -> tuple[Any, tuple[Any, ...]]:
    """The function of that name in a Python file, and the arguments to trace it with."""
    module = _import(path)
    function = getattr(module, name, None)
    if not callable(function):
        known = [k for k, v in vars(module).items() if inspect.isfunction(v) and k[0] != "_"]
        raise UsageError(f"{path} has no function {name!r}; it has {', '.join(known) or 'none'}")
    signature = inspect.signature(_called(function))
    examples = getattr(module, "example_inputs", None)
    takes_any = any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values())
    try:
        signature.bind()
        if not (takes_any and callable(examples)):
            return function, ()
    except TypeError:
        pass
    if not callable(examples):
        raise UsageError(
            f"{name}{signature} takes arguments: define example_inputs() in {path}, "
            "which returns a tuple of them"
        )
    try:
        arguments = examples()
    except Exception as error:
        raise ProgramError(describe(error)) from error
    arguments = arguments if isinstance(arguments, tuple) else (arguments,)
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise UsageError(
            f"example_inputs() of {path} does not fit {name}{signature}: {error}"
        ) from None
    return function, arguments


def _called(function: Any) -> Any:
    """What says which arguments it takes: of a Module, compiled or not, its forward."""
    inner = getattr(function, "__wrapped__", function)
    return inner.forward if isinstance(inner, Module) else function


def _import(path: Path) -> ModuleType:
    """Run the file as a module, with its folder first on the path, as `python file.py` has it."""
    if not path.is_file():
        raise UsageError(f"no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except TinyaotError:
        raise
    except Exception as error:
        raise ProgramError(describe(error)) from error
    return module


def describe(error: BaseException) -> str:
    """`file.py:7: ValueError: what it says`, with the user's innermost line."""
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: {type(error).__name__}: {error.msg}"
    place, trace = "", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if is_user_file(file) and file != __file__:
            place = f"{file}:{trace.tb_lineno}: "
        trace = trace.tb_next
    return place + text
