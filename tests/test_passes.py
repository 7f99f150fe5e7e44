"""The pipeline: its text, its options, its hook and its errors."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import tinyaot
from tests.random_traces import build
from tinyaot import ops
from tinyaot.errors import ParseError
from tinyaot.ir import STAGES, Program
from tinyaot.passes import PASSES, differentiate, functionalize, pipeline, run_pass, simplify
from tinyaot.shapes import TensorType, float32

X = TensorType(float32, (4,))


@pytest.fixture
def program() -> Program:
    return build(lambda x: ops.mul(ops.exp(x), ops.exp(x)), X)


def test_passes_are_those_of_the_api() -> None:
    for name in (
        *("functionalize", "differentiate", "simplify", "partition"),
        *("assign_layouts", "fuse", "schedule", "plan"),
    ):
        assert callable(getattr(tinyaot.passes, name))
    assert list(PASSES) == list(STAGES[1:-1])


def test_pipeline_runs_passes_in_order(program: Program) -> None:
    done = pipeline("functionalize, differentiate,simplify")(program)
    assert done == simplify(differentiate(functionalize(program)))
    assert pipeline("functionalize,autodiff")(program).stage == "autodiff"
    assert pipeline("")(program) is program


def test_pipeline_to_the_end(program: Program) -> None:
    stages: list[str] = []
    text = ",".join(PASSES)
    done = pipeline(text, lambda name, before, after, seconds: stages.append(after.stage))(program)
    assert stages == list(STAGES[1:-1])
    assert done.plan is not None


def test_options(program: Program) -> None:
    pure = functionalize(program)
    given = pipeline("simplify{rules=[cse,dce]}")(pure)
    assert given == simplify(pure, rules=["cse", "dce"])
    assert pipeline("simplify{rules=[]}")(pure) == simplify(pure, rules=[])
    assert pipeline("autodiff{joint=false}")(pure) == differentiate(pure, joint=False)
    chosen = pipeline("autodiff{joint=true, cotangents=[0]},simplify{ rules=none }")(pure)
    assert chosen == simplify(differentiate(pure, joint=True, cotangents=[0]))


def test_numbers_of_options() -> None:
    from tinyaot.passes import _parse

    assert _parse("a{b=1024,c=0.5,d=-1e-3,e=min_cut},f") == [
        ("a", {"b": 1024, "c": 0.5, "d": -1e-3, "e": "min_cut"}),
        ("f", {}),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("functionalize,optimize", "no such pass: 'optimize'; there are functionalize, autodiff"),
        ("simplify{speed=9}", "simplify has no option 'speed'; it takes rules, log"),
        ("simplify{rules}", "no options: 'rules'"),
        ("simplify{rules=[cse}", "no options"),
        ("simplify{rules=[cse]", "no pipeline"),
        ("simplify fuse", "no pipeline: 'simplify fuse'"),
        ("__import__('os')", "no pipeline"),
    ],
)
def test_errors_come_before_anything_runs(text: str, message: str) -> None:
    with pytest.raises(ParseError, match=re.escape(message)):
        pipeline(text)


def test_hook_sees_before_after_and_seconds(program: Program) -> None:
    seen = []
    after = run_pass("functionalize", program, lambda *event: seen.append(event))
    ((name, given, made, seconds),) = seen
    assert (name, given, made) == ("functionalize", program, after)
    assert seconds >= 0


def test_a_docstring_has_its_three_parts() -> None:
    for run in PASSES.values():
        text = run.__doc__ or ""
        assert "What it does" in text and "What to look at" in text, run.__name__


def test_no_pass_names_a_composite() -> None:
    """What the compiler does for them it does by their structure."""
    words = re.compile(
        r"softmax|layer_?norm|rms_?norm|batch_?norm|gelu|silu|softplus|cross_entropy|attention|"
        r"dropout|conv2d|pool2d|embedding|adam|sgd|transformer|\bmlp\b|\bgpt\b",
        re.IGNORECASE,
    )
    folder = Path(tinyaot.passes.__file__ or "").parent
    for file in folder.rglob("*.py"):
        found = words.findall(_code(file))
        assert not found, f"{file.name}: {found}"


def _code(file: Path) -> str:
    """The source without its docstrings, which may give examples."""
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(
            node
        ):
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)
