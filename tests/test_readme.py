"""The README keeps its word: its commands, its program and its map are those of the repository."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.agree import BACKENDS
from tests.test_house import GRAPH

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.M | re.S)


def test_two_commands_of_one_line_each() -> None:
    commands = blocks("sh")
    assert len(commands) == 2
    for command in commands:
        assert command.count("\n") == 1 and command.startswith("python3 -m venv .venv && ")
    assert commands[0].strip().endswith("tinyaot compare")
    assert commands[1].strip().endswith("pytest")


def test_ci_runs_exactly_the_test_command() -> None:
    script = ROOT / ".ci" / "run"
    assert blocks("sh")[1] in script.read_text(encoding="utf-8").splitlines(keepends=True)
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", str(script)], check=True)


def run(program: str, tmp_path: Path) -> str:
    file = tmp_path / "program.py"
    file.write_text(program, encoding="utf-8")
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_program_runs(tmp_path: Path) -> None:
    assert "@ partition" in run(blocks("python")[0], tmp_path)


def test_the_derivatives_run(tmp_path: Path) -> None:
    check = "assert w.grad is not None and abs(w.grad.numpy()).max() > 0"
    run(f"{blocks('python')[2]}\n{check}", tmp_path)


CHECKS = """
want = 2 * np.cosh(2 * x.detach().numpy())
np.testing.assert_allclose(x.grad.numpy(), want, rtol=1e-6)
def slope(z):
    return ta.grad(ops.sinh(z).sum(), z, create_graph=True)[0].sum()
for backend in BACKENDS:
    y = ta.compile(f, backend=backend)(x)
    np.testing.assert_allclose(y.item(), f(x).item(), rtol=1e-6)
    np.testing.assert_allclose(ta.grad(y, x)[0].numpy(), want, rtol=1e-6)
    for dtype in ("float32", "float64"):
        z = ta.tensor([0.5, -1e-3], dtype=dtype, requires_grad=True)
        curve = ta.grad(ta.compile(slope, backend=backend)(z), z)[0]
        np.testing.assert_allclose(curve.numpy(), np.sinh(z.detach().numpy()), rtol=1e-6)
half = ta.tensor([0.5, 2.0], dtype=ta.bfloat16)
assert sinh(half).dtype is ta.bfloat16
program = ta.trace(f, x)
assert ta.parse(str(program)) == program
ta.verify(program)
np.testing.assert_allclose(ta.interpret(program, x.detach().numpy())[0], f(x).item(), rtol=1e-6)
try:
    sinh(ta.tensor([1, 2]))
except ta.errors.DTypeError as error:
    assert "sinh is not defined for int64" in str(error)
"""


def test_a_primitive_is_one_declaration(tmp_path: Path) -> None:
    """The README's example, then what else has to work after it."""
    program = blocks("python")[1]
    out = run(f"{program}\nBACKENDS = {BACKENDS}\n{CHECKS}", tmp_path)
    assert "= sinh(" in out


@pytest.mark.parametrize("line", re.findall(r"^\| (`\S+/.*?) \| ", README, re.M))
def test_the_map_names_what_is_there(line: str) -> None:
    folder = ROOT
    for name in re.findall(r"`(.*?)`", line):
        # the first name of a line carries the folder, later ones may leave it out
        path = ROOT / name if (ROOT / name).exists() else folder / name
        assert path.exists(), name
        if name.startswith("tinyaot/"):
            folder = ROOT / "tinyaot"


def test_the_map_is_in_the_order_of_imports() -> None:
    """A module imports those of its own line and of the lines above."""
    lines = re.findall(r"^\| (`tinyaot/.*?) \| ", README, re.M)
    line = {
        Path(name).stem: number
        for number, names in enumerate(lines)
        for name in re.findall(r"`(.*?)`", names)
    }
    of = {module: line[module.split(".")[1]] for module in GRAPH if module.split(".")[1] in line}
    found = {(m, o) for m in of for o in GRAPH[m] if of.get(o, 0) > of[m]}
    assert len(of) > 100 and not found


def test_the_variables_are_read() -> None:
    code = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "tinyaot").rglob("*.py"))
    named = re.findall(r"^\| `(TINYAOT_\w+)", README, re.M)
    assert named and all(f'"{name}"' in code for name in named)


def test_the_commands_exist() -> None:
    from tinyaot.cli import build_parser

    usage = build_parser().format_help()
    named = re.findall(r"^\| `tinyaot (\w+)", README, re.M)
    assert named and all(re.search(rf"^ +{name} ", usage, re.M) for name in named)


def test_pictures_and_links_are_there() -> None:
    for target in re.findall(r"\]\((?!http)(.*?)\)", README):
        assert (ROOT / target).exists(), target


def test_every_package_is_installed() -> None:
    """A folder that pyproject.toml does not list is missing from a plain install."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found = {
        ".".join(p.parent.relative_to(ROOT).parts) for p in (ROOT / "tinyaot").rglob("__init__.py")
    }
    assert set(project["tool"]["setuptools"]["packages"]) == found | {"tinyaot.viz"}
