"""The command line: `tinyaot`, also `python -m tinyaot`.

Parses, calls what does the work, prints. Exit codes: 0 it worked, 1 the work failed, 2 wrong usage.
A user's mistake is one line on stderr, never a traceback. The work and the pictures are imported by
the command that needs them, so that `tinyaot --help` is quick.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import tinyaot
from tinyaot.backends import BACKENDS, load_backend, why_unavailable
from tinyaot.errors import BackendError, ParseError, TinyaotError

PROGRAM = "a built-in name (mlp, gpt, cnn), FILE.py:FUNCTION, or a Record saved as JSON"
PROGRAM_HELP = (
    "PROGRAM is a built-in name such as mlp, FILE.py:FUNCTION, or a Record saved as JSON.\n"
    "A function that takes arguments needs an example_inputs() in its file, which returns\n"
    "a tuple of them."
)


_started_by = ""  # the file that called main, which errors take for the user's


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    global _started_by
    _started_by = Path(sys._getframe(1).f_code.co_filename).name
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character gets a '?'
    _find_viz()
    from tinyaot.programs import ProgramError, UsageError

    parser = build_parser()
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help(sys.stderr)
        return 2
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            code: int = args.run(args)
        sys.stdout.flush()
        return code
    except (UsageError, BackendError) as error:
        return _complain(args.command, error, 2)
    except (TinyaotError, ProgramError) as error:
        return _complain(args.command, error, 1)
    except BrokenPipeError:  # the reader of the pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return _complain(args.command, "interrupted", 1)


def _complain(command: str, error: object, code: int) -> int:
    """Say what is wrong. A line of the script that started us is nobody's program: left out."""
    lines = str(error).splitlines() or [type(error).__name__]
    kept = [x for i, x in enumerate(lines) if not i or not x.startswith(f"  at {_started_by}:")]
    print(f"tinyaot {command}: error: " + "\n".join(kept), file=sys.stderr)
    return code


def _find_viz() -> None:
    """In a clone that is not installed, `viz/` lies beside the package, not in it."""
    beside = Path(tinyaot.__path__[0]).parent
    if importlib.util.find_spec("tinyaot.viz") is None and (beside / "viz").is_dir():
        tinyaot.__path__.append(str(beside))


# ---- the commands -------------------------------------------------------------------------------


def run_compare(args: argparse.Namespace) -> int:
    from tinyaot.compare import compare
    from tinyaot.models import BUILTIN, USUAL
    from tinyaot.viz.report import console
    from tinyaot.viz.training import Progress, show

    names = {None: USUAL, "all": tuple(BUILTIN)}.get(args.model, (args.model,))
    if names[0] not in BUILTIN:
        known = ", ".join(BUILTIN)
        return _complain("compare", f"no model {args.model!r} here; there is {known}, all", 2)
    if args.json is not None:
        _writable(args.json)
    _say_which(args.backend)
    out = console()
    results = []
    for name in names:
        with Progress(out, name) as progress:
            result = compare(
                name, steps=args.steps, backend=args.backend, budget=args.budget, on_step=progress
            )
        show(out, result)
        results.append(result)
    if args.json is not None:
        runs = [run.to_dict() for r in results for run in (r.eager, r.compiled)]
        args.json.write_text(json.dumps({"runs": runs}, indent=1) + "\n", encoding="utf-8")
    return 0 if all(r.agrees for r in results) else 1


def run_stages(args: argparse.Namespace) -> int:
    from tinyaot.viz.gallery import write_gallery

    record = _record(args)
    try:
        made = write_gallery(record, args.output, fmt=args.format, by=args.by)
    except OSError as error:
        return _complain("stages", f"cannot write to {args.output}: {error.strerror}", 2)
    for line in made.notes:
        print(line, file=sys.stderr)
    print(f"{len(made.pictures)} stages: open {made.index}")
    return 0


def run_report(args: argparse.Namespace) -> int:
    from tinyaot.viz.report import console, show_record

    show_record(console(), _record(args, measured=True))
    return 0


def run_why(args: argparse.Namespace) -> int:
    text = args.value.removeprefix("%")
    if not text.isdecimal():
        return _complain("why", f"{args.value!r} is not a value: write %7 or 7", 2)
    record = _record(args)
    known = {id_ for stage in record.stages for id_ in stage.program.values}
    if int(text) not in known:
        return _complain("why", f"no value %{text} in this program; ids go up to %{max(known)}", 2)
    print(record.why(int(text)))
    return 0


def run_opt(args: argparse.Namespace) -> int:
    from tinyaot import passes
    from tinyaot.programs import UsageError, read

    text = sys.stdin.read() if str(args.file) == "-" else read(args.file)
    try:
        run = passes.pipeline(args.passes)
    except ParseError as error:
        raise UsageError(str(error)) from None
    # A file may hold several programs. Each is parsed at its own place, so that line numbers hold.
    starts = [m.start() for m in re.finditer(r"^program\b", text, re.M)]
    for at, end in zip([0, *starts[1:]], [*starts[1:], len(text)], strict=True):
        program = tinyaot.parse("\n" * text.count("\n", 0, at) + text[at:end])
        print("\n" * (at > 0) + str(run(program)))
    return 0


def run_doctor(args: argparse.Namespace) -> int:
    from tinyaot.doctor import examine, healthy
    from tinyaot.viz.report import console, show_checks

    checks = examine()
    show_checks(console(), checks)
    return 0 if healthy(checks) else 1


def _record(args: argparse.Namespace, measured: bool = False) -> Any:
    from tinyaot.programs import load

    if not args.program.endswith(".json"):
        _say_which(args.backend)
    return load(args.program, backend=args.backend, budget=args.budget, measured=measured)


def _say_which(backend: str) -> None:
    """A line when "auto" has no choice."""
    if backend == "auto" and not os.environ.get("TINYAOT_BACKEND"):
        why = why_unavailable("c")
        if why is not None:
            found = load_backend("auto")[0]
            print(f"tinyaot: running on {found}: {why.splitlines()[0]}", file=sys.stderr)


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning as one line, instead of `warnings`' two with a place in this package."""
    print(f"tinyaot: {str(message).splitlines()[0]}", file=sys.stderr)


def _writable(path: Path) -> None:
    """Find out before the work, not after it, that its result cannot be written."""
    from tinyaot.programs import UsageError

    try:
        path.open("a").close()
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


# ---- what can be typed --------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def build_parser() -> argparse.ArgumentParser:
    """The parser of every command."""
    parser = _Parser(
        prog="tinyaot", description="A small machine-learning compiler for training, and its views."
    )
    parser.add_argument("--version", action="version", version=f"tinyaot {tinyaot.__version__}")
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", parser_class=_Parser, title="commands"
    )

    def command(
        name: str, run: Callable[[argparse.Namespace], int], text: str, example: str
    ) -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            epilog=f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.set_defaults(run=run)
        return sub

    sub = command(
        "compare",
        run_compare,
        "train the same model eager and compiled, and compare",
        "tinyaot compare mlp --steps 200 --json runs.json",
    )
    sub.add_argument(
        "model", nargs="?", help="mlp, gpt, cnn, or all of them; mlp and gpt when left out"
    )
    sub.add_argument("--steps", type=_positive, metavar="N", help="training steps of each run")
    _add_compile_options(sub)
    sub.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")

    sub = command(
        "stages",
        run_stages,
        "draw every stage of a program's compilation, with an index.html",
        "tinyaot stages mlp -o stages",
    )
    _add_program(sub)
    sub.add_argument(
        "-o", "--output", type=Path, required=True, metavar="DIR", help="folder to fill"
    )
    sub.add_argument(
        "--format", choices=("svg", "png", "dot"), default="svg", help="of the pictures (svg)"
    )
    sub.add_argument(
        "--by", choices=("line", "op"), default="line", help="a box for each source line, or op"
    )

    sub = command(
        "report",
        run_report,
        "print a program's memory, FLOPs, measured times and decisions",
        "tinyaot report mlp",
    )
    _add_program(sub)

    sub = command("why", run_why, "print the life of one value", "tinyaot why mlp %7")
    _add_program(sub)
    sub.add_argument("value", metavar="ID", help="a value's id, such as %%7")

    sub = command(
        "opt",
        run_opt,
        "run passes on IR text, and print IR text",
        "tinyaot opt tests/ir/step.ir --passes functionalize,differentiate,simplify",
    )
    sub.add_argument(
        "file",
        type=Path,
        metavar="FILE.ir",
        help="IR text of a program, or several; - reads standard input",
    )
    sub.add_argument("--passes", default="", metavar="A,B", help="pass names, in order")

    command("doctor", run_doctor, "say what works on this machine", "tinyaot doctor")
    return parser


def _add_program(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("program", metavar="PROGRAM", help=PROGRAM)
    sub.epilog = f"{PROGRAM_HELP}\n\n{sub.epilog}"
    _add_compile_options(sub)


def _add_compile_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--backend", choices=("auto", *BACKENDS), default="auto", help="what runs it (auto)"
    )
    sub.add_argument(
        "--budget",
        type=_budget,
        metavar="BYTES|FRACTION",
        help="bound on the planned peak: bytes (65536), or from 0.0 (least) to 1.0 (save all)",
    )


def _positive(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of steps (1 or more)")
    return number


def _budget(text: str) -> int | float:
    try:
        if text.isdecimal():
            return int(text)
        share = float(text)
        if 0.0 <= share <= 1.0:
            return share
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(
        f"{text!r} is neither bytes (65536) nor a share between 0.0 and 1.0"
    )
