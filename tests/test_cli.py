"""The command line: what it prints, what it writes, and how it answers mistakes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tinyaot as ta
from tinyaot import doctor
from tinyaot.backends import why_unavailable
from tinyaot.cli import main
from tinyaot.compare import Comparison, Run, relative_difference
from tinyaot.viz import render as rendering

needs_c = pytest.mark.skipif(why_unavailable("c") is not None, reason="no C compiler here")
COMMANDS = ("compare", "stages", "report", "why", "opt", "doctor")
SCHEMA = {
    "model",
    "mode",
    "backend",
    "steps",
    "losses",
    "step_seconds",
    "compile_seconds",
    "planned_peak_bytes",
    "measured_peak_bytes",
    "saved_bytes",
    "flops",
    "kernels",
    "accuracy",
}

Invoke = Callable[..., tuple[int, str, str]]


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Run a command in this process: (exit code, stdout, stderr)."""
    monkeypatch.setenv("COLUMNS", "120")

    def run(*argv: object) -> tuple[int, str, str]:
        try:
            code = main([str(a) for a in argv])
        except SystemExit as stop:  # argparse's own way out
            code = int(stop.code or 0)
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
def user_file(tmp_path: Path) -> Path:
    file = tmp_path / "programs.py"
    file.write_text(
        "import tinyaot as ta\n"
        "weight = ta.ones(3, requires_grad=True)\n"
        "def closed():\n"
        "    return (weight * 2).exp().sum()\n"
        "def open_(x, y):\n"
        "    return (x * y).tanh().sum()\n"
        "def example_inputs():\n"
        "    return ta.ones(4, 3, requires_grad=True), ta.ones(3)\n"
        "def three(x, y, z):\n"
        "    return x\n"
        "def broken():\n"
        "    return weight + ta.ones(2)\n"
        "def raises():\n"
        "    return {}['missing']\n"
    )
    return file


# ---- help and mistakes --------------------------------------------------------------------------


def test_help_lists_the_commands(invoke: Invoke) -> None:
    code, out, _ = invoke("--help")
    assert code == 0 and all(name in out for name in COMMANDS)
    assert "explore" not in out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_an_example(invoke: Invoke, command: str) -> None:
    code, out, _ = invoke(command, "--help")
    assert code == 0 and f"example:\n  tinyaot {command}" in out


def test_no_command_shows_the_help(invoke: Invoke) -> None:
    code, out, err = invoke()
    assert code == 2 and "commands" in err and not out


@pytest.mark.parametrize(
    "argv",
    [
        ("frobnicate",),
        ("compare", "resnet"),
        ("compare", "mlp", "--backend", "abacus"),
        ("compare", "mlp", "--steps", "0"),
        ("compare", "mlp", "--steps", "many"),
        ("compare", "mlp", "--budget", "1.5"),
        ("compare", "mlp", "--frob"),
        ("compare", "mlp", "--json", "no/such/folder/runs.json"),
        ("stages", "mlp"),
        ("stages", "resnet", "-o", "x"),
        ("stages", "mlp", "-o", "x", "--format", "gif"),
        ("report", "no-such-file.py:f"),
        ("report", "no-such-record.json"),
        ("why", "mlp", "seven"),
        ("why", "mlp", "%999999"),
        ("opt", "no-such-file.ir"),
    ],
)
def test_wrong_usage_is_one_line_and_2(invoke: Invoke, argv: tuple[str, ...]) -> None:
    code, out, err = invoke(*argv)
    assert code == 2 and not out
    assert err.startswith("tinyaot") and err.count("\n") == 1 and len(err) > 30


def test_an_unknown_model_names_what_exists(invoke: Invoke) -> None:
    _, _, err = invoke("compare", "resnet")
    assert "mlp" in err and "'resnet'" in err


def test_files_that_are_no_programs(invoke: Invoke, tmp_path: Path, user_file: Path) -> None:
    (tmp_path / "rec.json").write_text('{"some": "thing"}')
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    for program, words in {
        tmp_path / "rec.json": "not a saved Record",
        tmp_path / "bytes.json": "not a text file",
        f"{user_file}:absent": "no function 'absent'; it has closed, open_",
        f"{user_file}:weight": "no function 'weight'",
        f"{user_file}:three": "does not fit three(x, y, z)",
    }.items():
        code, out, err = invoke("report", program)
        assert (code, out) == (2, "") and words in err and err.count("\n") == 1


@pytest.mark.parametrize("name", ["net", "fast", "any_number"])
def test_a_module_or_any_callable_is_traced_with_the_example_inputs(
    invoke: Invoke, tmp_path: Path, name: str
) -> None:
    file = tmp_path / "user.py"
    file.write_text(
        "import tinyaot as ta\n"
        "net = ta.nn.Linear(3, 2)\n"
        "fast = ta.compile(net, backend='numpy')\n"
        "def any_number(*args):\n"
        "    return net(*args)\n"
        "def example_inputs():\n"
        "    return (ta.ones(4, 3),)\n"
    )
    code, out, err = invoke("why", f"{file}:{name}", "%0", "--backend", "numpy")
    assert (code, err) == (0, "") and "f32[4,3]" in out


def test_a_missing_example_inputs_is_explained(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("def f(x):\n    return x\n")
    code, _, err = invoke("report", f"{tmp_path / 'one.py'}:f")
    assert code == 2 and "example_inputs()" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def f(:\n", "SyntaxError"),
        ("import no_such_module\n", "no_such_module"),
        ("1/0\n", ":1: "),
    ],
)
def test_a_file_that_does_not_run(invoke: Invoke, tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "bad.py"
    file.write_text(text)
    code, out, err = invoke("stages", f"{file}:f", "-o", tmp_path / "out")
    assert (code, out) == (1, "") and words in err and "bad.py" in err
    assert "Traceback" not in err and err.count("\n") == 1


def test_a_function_that_fails_names_the_line(invoke: Invoke, user_file: Path) -> None:
    code, _, err = invoke("report", f"{user_file}:broken")
    assert code == 1 and "programs.py:12" in err and "Traceback" not in err
    code, _, err = invoke("report", f"{user_file}:raises")
    assert code == 1 and "programs.py:14: KeyError" in err and "Traceback" not in err


# ---- compare ------------------------------------------------------------------------------------


def test_compare_trains_both_ways(invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "runs.json"
    code, out, err = invoke("compare", "mlp", "--steps", 12, "--backend", "numpy", "--json", file)
    assert (code, err) == (0, "")
    for words in ("eager", "compiled", "step time", "paid for itself", "peak memory, planned",
                  "FLOPs, backward", "greatest relative difference", "test accuracy"):  # fmt: skip
        assert words in out
    assert "\x1b" not in out  # no colour in a pipe
    runs = json.loads(file.read_text())["runs"]
    assert [(r["model"], r["mode"]) for r in runs] == [("mlp", "eager"), ("mlp", "compiled")]
    eager, compiled = runs
    for run in runs:
        assert set(run) == SCHEMA
        assert set(run["flops"]) == {"forward", "backward", "recompute", "update"}
        assert run["steps"] == 12 and len(run["losses"]) == 12
        assert run["losses"][-1] < run["losses"][0] and 0 <= run["accuracy"] <= 1
    assert eager["compile_seconds"] is None and eager["planned_peak_bytes"] is None
    assert compiled["backend"] == "numpy" and compiled["flops"]["backward"] > 0
    assert compiled["compile_seconds"] > compiled["step_seconds"] > 0
    assert compiled["planned_peak_bytes"] == compiled["measured_peak_bytes"]
    assert compiled["measured_peak_bytes"] < eager["measured_peak_bytes"]
    assert relative_difference(eager["losses"], compiled["losses"]) < 1e-4


@needs_c
def test_compare_in_c(invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "runs.json"
    code, _, err = invoke("compare", "mlp", "--steps", 20, "--backend", "c", "--json", file)
    assert (code, err) == (0, "")
    eager, compiled = json.loads(file.read_text())["runs"]
    assert compiled["backend"] == "c" and compiled["kernels"] < 40
    assert relative_difference(eager["losses"], compiled["losses"]) < 1e-4


@pytest.mark.parametrize("model", ["gpt", "cnn"])
def test_the_other_models_train_both_ways(invoke: Invoke, tmp_path: Path, model: str) -> None:
    file = tmp_path / "runs.json"
    code, out, err = invoke("compare", model, "--steps", 4, "--backend", "numpy", "--json", file)
    assert (code, err) == (0, "") and f"{model}: 4 training steps" in out
    assert ("nats per character" in out.lower()) == (model == "gpt")
    runs = json.loads(file.read_text())["runs"]
    assert [r["mode"] for r in runs] == ["eager", "compiled"]
    for run in runs:
        assert set(run) == SCHEMA and run["losses"][-1] < run["losses"][0]
    assert relative_difference(runs[0]["losses"], runs[1]["losses"]) < 1e-4


@pytest.mark.parametrize(
    ("argument", "ran"), [((), ["mlp", "gpt"]), (("all",), ["mlp", "gpt", "cnn"])]
)
def test_which_models_compare_runs(
    invoke: Invoke,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    argument: tuple[str, ...],
    ran: list[str],
) -> None:
    def pretend(model: str, **options: object) -> Comparison:
        eager, compiled = (Run(model, mode, "numpy", 1, [2.0]) for mode in ("eager", "compiled"))
        return comparison(eager, compiled)

    monkeypatch.setattr("tinyaot.compare.compare", pretend)
    file = tmp_path / "runs.json"
    code, _, _ = invoke("compare", *argument, "--backend", "numpy", "--json", file)
    runs = json.loads(file.read_text())["runs"]
    assert code == 0 and [r["model"] for r in runs if r["mode"] == "eager"] == ran
    assert len(runs) == 2 * len(ran)


def test_without_a_compiler_auto_says_so_in_a_line(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tinyaot import backends
    from tinyaot.backends import cpu

    monkeypatch.delenv("TINYAOT_BACKEND", raising=False)
    monkeypatch.setattr(cpu, "unavailable", lambda: "backend 'c' needs a C compiler: set CC")
    assert backends.load_backend("auto")[0] == "numpy"
    code, _, err = invoke("compare", "mlp", "--steps", 2)
    assert code == 0 and err.count("\n") == 1 and "numpy: backend 'c' needs a C compiler" in err
    code, _, err = invoke("compare", "mlp", "--steps", 2, "--backend", "c")
    assert code == 2 and err.count("\n") == 1 and "C compiler" in err


def test_a_warning_is_a_line(invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "warns.py"
    file.write_text(
        "import warnings\nimport tinyaot as ta\n"
        "def f():\n    warnings.warn('look out')\n    return ta.ones(2) + 1\n"
    )
    code, _, err = invoke("stages", f"{file}:f", "-o", tmp_path / "out", "--format", "dot",
                          "--backend", "numpy")  # fmt: skip
    assert code == 0 and err == "tinyaot: look out\n"


def test_compare_with_a_budget(invoke: Invoke, tmp_path: Path) -> None:
    peaks = []
    for budget in ("0.0", "1.0"):
        file = tmp_path / f"{budget}.json"
        code, _, _ = invoke("compare", "mlp", "--steps", 2, "--budget", budget, "--json", file)
        assert code == 0
        peaks.append(json.loads(file.read_text())["runs"][1]["planned_peak_bytes"])
    assert peaks[0] <= peaks[1]


def comparison(eager: Run, compiled: Run) -> Comparison:
    return Comparison(eager, compiled, record=None)  # type: ignore[arg-type]


def test_when_compiling_has_paid_off() -> None:
    eager = Run("m", "eager", "numpy", 3, step_seconds=3.0)
    compiled = Run("m", "compiled", "numpy", 3, step_seconds=1.0, compile_seconds=10.0)
    result = comparison(eager, compiled)
    assert result.speedup == 3.0
    steps = result.paid_off_after  # the first step is in the compile time
    assert steps is not None and 10.0 + (steps - 1) * 1.0 <= steps * 3.0
    assert 10.0 + (steps - 2) * 1.0 > (steps - 1) * 3.0
    compiled.step_seconds = 4.0
    assert result.paid_off_after is None


def test_losses_that_part_are_noticed() -> None:
    nan = float("nan")
    assert relative_difference([1.0, 2.0], [1.0, 2.2]) == pytest.approx(0.2 / 2.2)
    assert relative_difference([nan], [nan]) == 0.0
    assert relative_difference([nan], [1.0]) == float("inf")
    assert relative_difference([0.0], [0.0]) == 0.0
    apart = comparison(
        Run("m", "eager", "numpy", 2, losses=[1.0, 0.5]),
        Run("m", "compiled", "numpy", 2, losses=[1.0, 0.6]),
    )
    assert not apart.agrees


# ---- stages, report, why ------------------------------------------------------------------------


@pytest.mark.parametrize("program", ["mlp", "closed", "open_"])
def test_stages(invoke: Invoke, tmp_path: Path, user_file: Path, program: str) -> None:
    named = program if program == "mlp" else f"{user_file}:{program}"
    code, out, err = invoke("stages", named, "-o", tmp_path / "out", "--format", "dot")
    assert (code, err) == (0, "") and "index.html" in out
    names = [p.name for p in sorted((tmp_path / "out").glob("*.dot"))]
    assert names[0] == "00-trace.dot" and "04-partition.dot" in names and "08-plan.dot" in names
    page = (tmp_path / "out" / "index.html").read_text()
    assert all(name in page for name in names) and "program " in page
    assert ("network.dot" in names) == ("-inf-&gt; " in page)  # the flow network, drawn and printed
    source = "programs.py" if program != "mlp" else "mlp.py"
    assert source in (tmp_path / "out" / "04-partition.dot").read_text()  # the user's lines


def test_stages_without_a_renderer(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user_file: Path
) -> None:
    monkeypatch.setattr(rendering, "renderer", lambda: None)
    monkeypatch.setattr("tinyaot.viz.gallery.renderer", lambda: None)
    code, _, err = invoke("stages", f"{user_file}:closed", "-o", tmp_path)
    assert code == 0 and err.count("\n") == 1 and "pygraphviz" in err
    assert (tmp_path / "00-trace.dot").exists()


def test_stages_where_nothing_can_be_written(
    invoke: Invoke, tmp_path: Path, user_file: Path
) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = invoke("stages", f"{user_file}:closed", "-o", tmp_path / "file" / "below")
    assert code == 2 and err.count("\n") == 1


@pytest.mark.parametrize("backend", ["numpy", pytest.param("c", marks=needs_c)])
def test_report(invoke: Invoke, backend: str) -> None:
    code, out, err = invoke("report", "mlp", "--backend", backend)
    assert (code, err) == (0, "")
    for words in (f"{backend} ", "time, median", "Stages of step", "functionalize",
                  "planned peak", "Memory over the step", "peak\n", "Kernels: ", "Largest of the",
                  "Saved from forward", "Ways to split forward from backward"):  # fmt: skip
        assert words in out.replace("  peak ", "  peak\n")
    assert "mlp.py:" in out
    if backend == "c":
        assert "kept inside" in out and "step_region_0" in out and "Why ops are not in" in out


def test_a_report_changes_nothing(invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "counts.py"
    file.write_text(
        "import tinyaot as ta\n"
        "weight = ta.ones(3, requires_grad=True)\n"
        "optimizer = ta.optim.SGD([weight], lr=0.5)\n"
        "def step():\n"
        "    optimizer.zero_grad()\n"
        "    loss = (weight * weight).sum()\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
        "    return loss\n"
    )
    code, out, _ = invoke("report", f"{file}:step", "--backend", "numpy")
    assert code == 0 and "One call, measured" in out
    assert sys.modules["counts"].weight.tolist() == [1.0, 1.0, 1.0]


def test_a_saved_record_tells_the_same(invoke: Invoke, tmp_path: Path, user_file: Path) -> None:
    from tinyaot.programs import load

    file = tmp_path / "record.json"
    file.write_text(load(f"{user_file}:open_").to_json())
    code, out, _ = invoke("report", file)
    assert code == 0 and "programs.py:6" in out
    code, _, _ = invoke("stages", file, "-o", tmp_path / "out", "--format", "dot")
    assert code == 0 and (tmp_path / "out" / "00-trace.dot").exists()


@pytest.mark.parametrize("backend", ["numpy", pytest.param("c", marks=needs_c)])
def test_why(invoke: Invoke, user_file: Path, backend: str) -> None:
    program = f"{user_file}:open_"
    for value in ("%2", "2"):
        code, out, err = invoke("why", program, value, "--backend", backend)
        assert (code, err) == (0, "") and "%2" in out and "programs.py:6" in out
        assert "  kernel: " in out
    code, out, _ = invoke("why", program, "%3", "--backend", backend)
    assert code == 0 and "  memory: " in out and " FLOPs" in out


# ---- opt, doctor --------------------------------------------------------------------------------


def test_opt_prints_ir(invoke: Invoke, tmp_path: Path) -> None:
    def f(x: ta.Tensor) -> ta.Tensor:
        y = x * 2
        y += 1
        return y

    file = tmp_path / "f.ir"
    file.write_text(str(ta.trace(f, ta.ones(3))) + "\n")
    code, out, err = invoke("opt", file)
    assert (code, err) == (0, "") and out == file.read_text() and "write(" in out
    code, out, _ = invoke("opt", file, "--passes", "functionalize,autodiff,simplify")
    assert code == 0 and "write(" not in out
    assert ta.parse(out).stage == "simplify"


def test_opt_refuses(invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "f.ir"
    file.write_text("program f @ trace next=%1\n  input %0: f32[3] argument\n  output user %0\n")
    code, out, err = invoke("opt", file, "--passes", "frobnicate")
    assert (code, out) == (2, "") and "frobnicate" in err and err.count("\n") == 1
    file.write_text("program f @ trace\n  what is this\n")
    code, out, err = invoke("opt", file)
    assert (code, out) == (1, "") and "Traceback" not in err and err.count("\n") == 1


def test_doctor(invoke: Invoke) -> None:
    code, out, err = invoke("doctor")
    assert (code, err) == (0, "")
    for words in ("Python", "BLAS", "C compiler", 'backend="c"', "compile cache", "Graphviz"):
        assert words in out


def test_the_doctor_says_what_to_do(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert doctor.compiler() is None
    monkeypatch.setattr(rendering, "renderer", lambda: None)
    code, out, _ = invoke("doctor")
    joined = " ".join(out.split())
    assert code == 0 and "tinyaot[viz]" in joined
    with_c = doctor._for_backend("numpy", "C compiler", None, "install gcc")
    assert "install gcc" in with_c.otherwise and "next backend" in with_c.otherwise


# ---- as a process -------------------------------------------------------------------------------


def test_importing_the_package_imports_no_picture() -> None:
    code = (
        "import sys, tinyaot; "
        "print([m for m in ('rich', 'graphviz', 'pygraphviz', 'tinyaot.viz', 'tinyaot.models', "
        "'scipy.sparse', 'safetensors') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_as_a_module_in_a_closed_pipe(user_file: Path) -> None:
    command = [sys.executable, "-m", "tinyaot", "report", f"{user_file}:closed"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 0
