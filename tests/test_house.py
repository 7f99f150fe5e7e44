"""The structure keeps its word: imports run down, and the compiler knows no composite by name."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "tinyaot"

# Names of composites, models and workloads: what the compiler does for them it does by structure.
FORBIDDEN = (
    "softmax layer_norm layernorm gelu cross_entropy attention dropout conv2d conv adam adamw sgd "
    "rms_norm batch_norm embedding mlp gpt cnn transformer silu"
).split()

FLOORS = (  # from the ground up; a module may import its own floor and those below
    ("location", "collector"),
    ("errors",),
    ("shapes",),
    ("ir",),
    ("ops",),
    ("structural", "builder", "text", "random", "cost", "memory"),
    (
        "verify",
        "verify_custom",
        "verify_phases",
        "verify_plan",
        "verify_regions",
        "record",
        "tensor",
    ),
    ("tape", "recorder", "passes", "codegen"),
    ("eager", "overlap", "tree", "again"),
    ("inside", "rules"),
    ("checkpoint", "custom_vjp"),
    ("functions", "derivatives", "device", "gradcheck", "interpret", "backends"),
    ("functional",),
    ("nn", "optim", "io", "datasets"),
    (
        "traced",
        "op_tracer",
        "rule_tracer",
        "trace",
        "slots",
        "state",
        "assigned",
        "results",
        "capture",
        "guards",
        "halves",
        "specialization",
        "steady",
        "measure",
        "timing",
    ),
    ("pipeline", "compile"),
    ("models", "programs", "compare", "doctor"),
    ("cli", "__main__"),
)
FLOOR = {name: level for level, names in enumerate(FLOORS) for name in names}


def modules() -> list[Path]:
    return sorted(p for p in PACKAGE.rglob("*.py") if p.parent != PACKAGE or p.stem != "__init__")


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {name_of(p) for p in modules()}


def imported(path: Path) -> set[str]:
    """The modules of the package that a file imports when it is loaded (not inside functions)."""
    found: set[str] = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    todo: list[ast.AST] = list(tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tinyaot"):
            for a in node.names:  # a module of a package, or a name in a module
                inner = f"{node.module}.{a.name}"
                found.add(inner if inner in NAMES else node.module or "")
        elif isinstance(node, ast.Import):
            found |= {a.name for a in node.names if a.name.startswith("tinyaot")}
        elif isinstance(node, ast.If | ast.Try):
            if "TYPE_CHECKING" not in ast.dump(getattr(node, "test", node)):
                todo += ast.iter_child_nodes(node)
    return found


GRAPH = {name_of(p): imported(p) for p in modules()}


@pytest.mark.parametrize("module", GRAPH)
def test_imports_run_down(module: str) -> None:
    own = module.split(".")[1]
    assert own in FLOOR, f"{own} has no floor: give it one in FLOORS"
    for other in GRAPH[module]:
        parts = other.split(".")
        if len(parts) > 1 and parts[1] in FLOOR:
            assert FLOOR[parts[1]] <= FLOOR[own], f"{module} imports {other}, a floor above"


def test_no_circles() -> None:
    """No module imports itself through others."""
    edges = {m: {o for o in GRAPH[m] if o in GRAPH and o != m} for m in GRAPH}
    done: set[str] = set()
    path: list[str] = []

    def visit(m: str) -> None:
        if m in path:
            raise AssertionError(" -> ".join([*path[path.index(m) :], m]))
        if m in done:
            return
        path.append(m)
        for other in sorted(edges[m]):
            visit(other)
        path.pop()
        done.add(m)

    for m in sorted(edges):
        visit(m)


@pytest.mark.parametrize("folder", ["passes", "codegen", "backends"])
def test_the_compiler_names_no_composite(folder: str) -> None:
    pattern = re.compile(r"(?<![a-z])(" + "|".join(FORBIDDEN) + r")(?![a-z])", re.I)
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted((PACKAGE / folder).rglob("*"))
        if path.suffix in (".py", ".h", ".c")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found, "\n".join(found)


def test_the_core_does_not_import_the_pictures() -> None:
    allowed = {"tinyaot.cli", "tinyaot.compare"}
    for module, names in GRAPH.items():
        if module not in allowed:
            assert not any(n.startswith("tinyaot.viz") for n in names), module


ANEW = """
import importlib, sys
for module in sys.argv[1:]:
    for name in [n for n in sys.modules if n.split(".")[0] == "tinyaot"]:
        del sys.modules[name]
    importlib.import_module(module)
    ta = importlib.import_module("tinyaot")
    assert all(callable(f) for f in (ta.compile, ta.trace, ta.verify, ta.interpret)), module
"""


def test_any_module_may_be_imported_first() -> None:
    """Though `ta.compile`, `trace`, `verify` and `interpret` are functions of modules' names."""
    first = ["capture", "compile", "interpret", "record", "results", "state", "trace", "verify"]
    modules = [f"tinyaot.{name}" for name in first]
    done = subprocess.run([sys.executable, "-c", ANEW, *modules], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
