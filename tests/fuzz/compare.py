"""Run a program in both modes and say how they differ."""

from __future__ import annotations

import itertools
import math
import random
import re
import traceback
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import tinyaot as ta
from tests.agree import check_stages
from tests.fuzz.program import PRELUDE, Block, Program, lines_of
from tinyaot.tensor import NotKept

# What a compiled function may refuse though eager does not (the first is trace-time by nature).
ALLOWED = (
    "inside a compiled function: ",
    "is not known in a trace",
    "reaches an argument that was computed outside it",
    "differentiating twice across the boundary",
    "did not keep gradients",
    "and they are not views of one tensor",
    "is a traced tensor",  # stored where it has no value
    "the function changes what it reaches: box.",  # a container of tensors assigned there
    "inside a compiled function of a tensor from outside it",
    "results have no gradients by one another",
)
HIDDEN = {"f", "ta", "np", "F", "Box", "tensors", "total", "pull"}
MISTAKES = (NameError, UnboundLocalError, SyntaxError)  # of a shrunk program


@dataclass
class Difference:
    """How the modes differ: `kind` groups causes, `detail` is for people."""

    kind: str
    detail: str = ""

    @property
    def cause(self) -> str:
        return re.sub(r"[-\d.]+", "#", self.kind)


@dataclass
class Seen:
    """All tensors that a run left behind, by path, in a fixed order."""

    tensors: dict[str, Any] = field(default_factory=dict)
    other: dict[str, Any] = field(default_factory=dict)

    def look(self, path: str, value: Any, depth: int = 0) -> None:
        if isinstance(value, ta.Tensor):
            self.tensors[path] = value
            grad = value._grad
            if isinstance(grad, ta.Tensor) and depth < 6:
                self.look(f"{path}.grad", grad, depth + 1)
            else:
                self.other[f"{path}.grad"] = "not kept" if isinstance(grad, NotKept) else grad
        elif isinstance(value, (list, tuple)):
            self.other[path] = type(value).__name__, len(value)
            for i, x in enumerate(value):
                self.look(f"{path}[{i}]", x, depth)
        elif isinstance(value, dict):
            self.other[path] = list(map(str, value))
            for k, x in value.items():
                self.look(f"{path}[{k!r}]", x, depth)
        elif isinstance(value, ta.optim.Optimizer):
            for g, group in enumerate(value.param_groups):
                self.look(f"{path}.groups[{g}].state", group.state, depth)
        elif isinstance(value, (int, float, bool, str, type(None))):
            self.other[path] = repr(value)
        elif isinstance(value, ta.nn.Module) or type(value).__name__ == "Box":
            for k, x in vars(value).items():
                if not k.startswith("_"):
                    self.look(f"{path}.{k}", x, depth)


def look(namespace: dict[str, Any]) -> Seen:
    seen = Seen()
    for name, value in namespace.items():
        if not name.startswith("_") and name not in HIDDEN:
            seen.look(name, value)
    return seen


def compare(program: Program, stages: bool = False) -> Difference | str | None:
    """None if both modes agree; "invalid" if eager makes no sense; otherwise the difference."""
    ran: list[dict[str, Any]] = []
    errors: list[Exception | None] = []
    for compiled in (False, True):
        try:
            ran.append(program.run(compiled))
            errors.append(None)
        except MISTAKES as error:
            if not compiled:
                return "invalid"
            return Difference(f"compiled raises {error!r}")
        except Exception as error:
            if not compiled and not isinstance(error, ta.errors.TinyaotError):
                return "invalid"
            errors.append(error)
    eager, compiled_ = errors
    if eager is not None or compiled_ is not None:
        at = 0 if eager is None else line_of(program, eager, False)
        if eager and compiled_:
            other = line_of(program, compiled_, True)
            if at == other and type(eager) is type(compiled_):
                return differences_before(program, at, eager, compiled_)
        if isinstance(eager, ta.errors.IndexingError) and "out of range" in str(eager):
            if compiled_ is None:
                return "refused: an index out of range of what nothing reads"
            if at <= caller_line(program):  # the call found it, or the trace what came behind it
                return "refused: an index out of range is found late"
        for a in ALLOWED:
            if a in str(compiled_):
                return f"refused: {a}"
        if type(eager) is type(compiled_):
            return Difference("error at another line", f"eager {eager}\ncompiled {compiled_}")
        message = str(compiled_ or eager).split("\n")[0]
        return Difference(
            f"error: eager {type(eager).__name__}, compiled {type(compiled_).__name__}: {message}"
        )
    found = conditioned(program, differences(program, look(ran[0]), look(ran[1])))
    if found is None and stages:
        found = check(program, ran[1])
    return found


def line_of(program: Program, error: Exception, compiled: bool) -> int:
    """The line of the eager program that raised."""
    prelude = len(PRELUDE.splitlines())
    numbers = [
        f.lineno or 0
        for f in traceback.extract_tb(error.__traceback__)
        if f.filename.startswith("<fuzz") and (f.lineno or 0) > prelude
    ]
    at = numbers[-1] if numbers else 0
    return at - (compiled and at > caller_line(program))  # `f = ta.compile(f)`


def caller_line(program: Program) -> int:
    """The line behind which the caller's part begins."""
    return len(program.text(False).splitlines()) - len(list(lines_of(program.caller)))


def differences_before(
    program: Program, line: int, eager: Exception, compiled: Exception
) -> Difference | None:
    """Both raised there: before it, all went alike. (Inside the function, eager has run half.)"""
    if line <= caller_line(program):
        return None
    a, b = (e.namespace for e in (eager, compiled))  # type: ignore[attr-defined]
    return conditioned(program, differences(program, look(a), look(b)))


def left_by(program: Program, compiled: bool) -> dict[str, Any]:
    """The namespace after a run, up to its error if it raises one."""
    try:
        return program.run(compiled)
    except ta.errors.TinyaotError as error:
        return error.namespace  # type: ignore[attr-defined,no-any-return]


def differences(program: Program, a: Seen, b: Seen) -> Difference | None:
    names = list(a.tensors)
    kept = not program.steps or bool(program.options.get("keep_grads"))
    if not kept:
        names = [n for n in names if ".grad" not in n]
    for name in [*a.other, *b.other]:
        x, y = a.other.get(name, "absent"), b.other.get(name, "absent")
        if name.endswith(".grad") and (not kept or name[:-5] not in a.tensors):
            continue
        if str(x) != str(y):
            return Difference(
                "grad None" if name.endswith(".grad") else "structure",
                f"{name}: eager {x}, compiled {y}",
            )
    for name in names:
        if name not in b.tensors:
            return Difference("structure", f"{name} is missing in compiled")
    for name in names:
        x, y = a.tensors[name], b.tensors[name]
        if y.is_traced:
            return Difference("escaped tensor", name)
        if x.type != y.type:
            return Difference("type", f"{name}: eager {x.type}, compiled {y.type}")
        if x.requires_grad != y.requires_grad:
            return Difference("requires_grad", f"{name}: eager {x.requires_grad}")
        if x.is_leaf != y.is_leaf:
            return Difference("is_leaf", f"{name}: eager {x.is_leaf}")
    for name in names:
        x, y = a.tensors[name].numpy(), b.tensors[name].numpy()
        if not close(x, y):
            kind = "values of a gradient" if ".grad" in name else "values"
            return Difference(kind, f"{name}: eager\n{x}\ncompiled\n{y}")
    for m, n in itertools.combinations(names, 2):
        same = [s.tensors[m] is s.tensors[n] for s in (a, b)]
        if same[0] != same[1]:
            return Difference("identity", f"{m} is {n}: eager {same[0]}, compiled {same[1]}")
    for m, n in itertools.combinations(names, 2):
        share = [np.shares_memory(s.tensors[m]._data, s.tensors[n]._data) for s in (a, b)]
        if share[0] != share[1]:
            return Difference("sharing", f"{m} with {n}: eager {share[0]}, compiled {share[1]}")
    for name in names:
        x, y = strides(a.tensors[name]), strides(b.tensors[name])
        if x != y:
            return Difference("strides", f"{name}: eager {x}, compiled {y}")
    return None


def strides(t: Any) -> Any:
    """What of the strides can be told apart."""
    return [s for s, n in zip(t._data.strides, t.shape) if n > 1] if t.size else []


def close(x: np.ndarray, y: np.ndarray, factor: float = 1.0) -> bool:
    """Equal up to the rounding of some tens of float32 operations."""
    if x.dtype.kind in "biu":
        return bool((x == y).all())
    a, b = x.astype(np.float64), y.astype(np.float64)
    finite = np.isfinite(a)
    if (
        not np.array_equal(a[~finite], b[~finite], equal_nan=True)
        or not np.isfinite(b[finite]).all()
    ):
        return False
    if not finite.any():
        return True
    eps = 1e-5 if x.dtype != np.float16 and x.dtype.itemsize > 2 else 2e-2
    scale = max(1.0, float(np.abs(a[finite]).max()))
    a, b = a[finite], b[finite]
    return bool((np.abs(a - b) <= factor * eps * (scale + 10 * np.abs(a))).all())


def conditioned(program: Program, found: Difference | None) -> Difference | None:
    """Drop a difference of values if eager itself moves as far when its inputs, and what modules
    begin with, move by rounding."""
    if found is None or not found.kind.startswith("values"):
        return found
    name = found.detail.split(":")[0]
    try:
        eager, compiled = (look(left_by(program, c)).tensors[name] for c in (False, True))
        x, z = (t.numpy().astype(np.float64) for t in (eager, compiled))
        if not np.isfinite(x).all() or not np.isfinite(z).all():
            return found
        moves = 0.0
        for seed in range(6):
            moved = look(left_by(_moved(program, seed), False)).tensors[name]
            moves = max(moves, float(np.abs(x - moved.numpy()).max()))
    except Exception:
        return found
    return None if np.abs(x - z).max() <= 100 * moves else found


def _moved(program: Program, seed: int) -> Program:
    """The program with other last digits."""
    rng = random.Random(seed)

    def digits(text: str) -> str:
        other = re.sub(
            r"\d\.\d+", lambda n: repr(float(n[0]) * rng.uniform(1 - 3e-7, 1 + 3e-7)), text
        )
        noise = f"(1 + np.random.default_rng({seed}).uniform(-3e-7, 3e-7, "
        other = re.sub(
            r"\.reshape(\(.*?\))\.round\(2\)(?=, dtype=ta.f)", rf"\g<0> * {noise}\1))", other
        )
        return other if not text.startswith("class") else text

    setup = [digits(s) if isinstance(s, str) else s for s in program.setup]
    at = next((i for i, s in enumerate(setup) if str(s).startswith(("m = ", "class"))), None)
    if at is not None:
        signs = f"np.random.default_rng({seed}).uniform(-3e-7, 3e-7, p.shape).astype(np.float32)"
        lines = ("for p in m.parameters():", f"    p.add_(p * ta.tensor({signs}))")
        setup.insert(at + 1, Block("with ta.no_grad():", ("\n".join(lines),)))
    return program.with_section("setup", tuple(setup))


def check(program: Program, namespace: dict[str, Any]) -> Difference | None:
    """Every stage of the last specialisation verifies, round-trips, and computes the same."""
    try:
        for record in namespace["f"].records:
            for stage in record.stages:
                ta.verify(stage.program)
                assert ta.parse(str(stage.program)) == stage.program, f"text of {stage.name}"
        before = Program(
            program.setup,
            program.parameters,
            program.body,
            program.returns,
            program.form,
            (),
            program.options,
            seed=program.seed,
        ).run(True)
        calls = [s for s in program.caller if isinstance(s, str) and " = f(" in s]
        before["given"] = lambda *args, **kwargs: check_stages(before["f"], *args, **kwargs)
        if calls:
            exec(calls[0].replace("= f(", "= given("), before)
    except Exception as error:
        return Difference(
            f"stages: {type(error).__name__}: {(str(error).strip() or '?').splitlines()[0]}",
            str(error),
        )
    return None


def finite_differences(program: Program) -> Difference | None:
    """The gradient of `total(f(...))` by the float64 leaves `x0`, `x1`, ..., along a direction.

    The first step is too long for what bends sooner, as a norm does whose epsilon is 1e-16.
    """
    plain = program.with_section(
        "caller", tuple(s for s in program.caller if isinstance(s, str) and s.startswith("r0 = f("))
    )

    def loss(shift: float) -> Any:
        text = plain.text(False)
        at = text.index("\ndef f(")
        namespace: dict[str, Any] = {}
        exec(PRELUDE, namespace)
        rng = np.random.default_rng(program.seed)
        leaves, ways = {}, {}
        for line in filter(None, text[len(PRELUDE) : at].splitlines()):
            exec(line, namespace)
            name = line.split(" ")[0]
            if name[0] == "x":
                leaves[name] = leaf = namespace[name]
                ways[name] = rng.standard_normal(leaf.shape)
                with ta.no_grad():
                    leaf.add_(ta.tensor(ways[name] * shift))
        exec(text[at:], namespace)
        return namespace["total"](namespace["r0"]), leaves, ways

    if not plain.caller:
        return None
    try:
        value, leaves, ways = loss(0.0)
    except (ta.errors.TinyaotError, *MISTAKES):
        return None
    if not isinstance(value, ta.Tensor) or not value.requires_grad:
        return None
    if not math.isfinite(value.item()):  # such as a variance of one element
        return None
    value.backward()
    slope = sum(
        float((v.grad.numpy() * ways[k]).sum()) for k, v in leaves.items() if v.grad is not None
    )
    wrong = None
    for h in (1e-6, 1e-8, 1e-9):
        ends = [loss(s * h)[0].item() for s in (1, -1, 3, -3)]
        near, far = (ends[0] - ends[1]) / (2 * h), (ends[2] - ends[3]) / (6 * h)
        if abs(near - slope) <= 1e-4 * (1 + abs(slope)) + 20 * abs(near - far):
            return None
        wrong = wrong or Difference("finite differences", f"gradient {slope}, difference {near}")
    return wrong
