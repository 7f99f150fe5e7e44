"""The parity page: what each public function does in every mode, found by doing it.

    python -m tests.parity        # writes docs/parity.md

A row is a name of `ta`, of `Tensor` or of `ta.nn.functional`, run on its cases of the table of
functions (tests/functional_cases.py). A cell says yes, or why not; none is blank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import tinyaot as ta
from tests.case import Case, outputs, tensors
from tests.functional_cases import EVERY
from tinyaot import Tensor
from tinyaot.errors import TinyaotError

PAGE = Path(__file__).resolve().parent.parent / "docs" / "parity.md"
HEAD = """# Parity

What each public function and method does in each mode. The page is written by
`python -m tests.parity`, which runs every cell; a test compares it with what would be written now.

- *eager*: the dtypes it takes, on all its cases in the table of functions;
- *compiled*: `ta.compile` on NumPy gives what eager code gives; *C*: so does `backend="c"`;
- *vjp*, *jvp*: `ta.vjp` gives what `ta.grad` gives, and `<u, jvp(v)> = <vjp(u), v>`.

Methods that end in an underscore write in place; they were run on a copy of their operand.

| function | eager | compiled | C | vjp | jvp |
|---|---|---|---|---|---|
"""
FLOATS = ("float32", "float64", "float16", "bfloat16")
INTS = ("int8", "int16", "int32", "int64", "uint8")
NO_TENSORS = "no operands"


def groups() -> dict[str, list[Case]]:
    """The cases by public name: functions and methods in order of the alphabet, then operators."""
    found: dict[str, list[Case]] = {}
    for case in sorted(EVERY, key=lambda c: (c.public.startswith("__"), c.public.lower())):
        found.setdefault(case.public, []).append(case)
    return found


# ---- cells --------------------------------------------------------------------------------------


def in_dtype(case: Case, dtype: str) -> list[Tensor]:
    """The case's operands, floats as numbers of the dtype."""
    kind = getattr(ta, dtype)
    found = []
    for a in case.operands:
        if a.dtype.kind == "f":
            a = a if kind.is_floating else np.round(3 * np.where(np.isfinite(a), a, 0))
            a = a - a.min(initial=0) if dtype in ("uint8", "bool") else a
            found.append(ta.tensor(a).to(kind))
        else:
            found.append(ta.tensor(a))
    return found


def takes(case: Case, dtype: str) -> bool:
    try:
        case.function(*in_dtype(case, dtype))
    except TinyaotError:
        return False
    return True


def eager(cases: list[Case]) -> str:
    """The dtypes that one or more of the cases take, in few words."""
    if not any(a.dtype.kind == "f" for c in cases for a in c.operands):
        return "indices" if cases[0].operands else NO_TENSORS
    names = {d for d in (*FLOATS, *INTS, "bool") if any(takes(c, d) for c in cases)}
    words = []
    for word, kinds in (("floats", FLOATS), ("ints", INTS), ("bool", ("bool",))):
        have = [d for d in kinds if d in names]
        words += [word] if len(have) == len(kinds) else have
    return ", ".join(words)


def results(case: Case, through: Callable[[Any], Any]) -> list[Tensor]:
    ta.manual_seed(5)
    return outputs(through(case.function)(*tensors(case.operands, ta.float64)))


def equal(got: list[Tensor], want: list[Tensor], case: Case) -> None:
    for a, b in zip(got, want, strict=True):
        assert a.dtype is b.dtype, case.name
        close(a, b, case.name)


def close(a: Tensor, b: Tensor, name: str) -> None:
    got, want = a.detach().double().numpy(), b.detach().double().numpy()
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-9, err_msg=name)


def compiled(cases: list[Case]) -> str:
    """On NumPy: every case alone."""
    refused = [c for c in cases if c.traced]
    for case in cases:
        if case in refused:
            try:
                results(case, lambda f: ta.compile(f, backend="numpy"))
            except TinyaotError:
                continue
            raise AssertionError(f"{case.name} is not refused")
        equal(results(case, lambda f: ta.compile(f, backend="numpy")), results(case, plain), case)
    return verdict(cases, [c.traced for c in refused])


def plain(function: Any) -> Any:
    return function


def verdict(cases: list[Case], refusals: list[str]) -> str:
    if not refusals:
        return "yes"
    reason = f"refused: {refusals[0]}"
    if len(refusals) == len(cases):
        return reason
    forms = [c.name.partition("-")[2] for c in cases if c.traced]
    return f"yes; {', '.join(forms)} {reason}"


def in_c(groups: dict[str, list[Case]]) -> dict[str, str]:
    """One case of each name, 60 to a program: what costs is calling the C compiler."""
    found = {}
    alone = []
    for name, cases in groups.items():
        traced = [c for c in cases if not c.traced]
        found[name] = verdict(cases, [c.traced for c in cases if c.traced])
        if traced:
            alone.append(traced[0])
    for i in range(0, len(alone), 60):
        check_together(alone[i : i + 60])
    return found


def check_together(cases: list[Case]) -> None:
    def together(*xs: Tensor) -> list[list[Tensor]]:
        given = iter(xs)
        results = [outputs(c.function(*[next(given) for _ in c.operands])) for c in cases]
        return [[y.clone() for y in ys] for ys in results]

    xs = [x for c in cases for x in tensors(c.operands, ta.float64)]
    ta.manual_seed(5)
    want = together(*xs)
    ta.manual_seed(5)
    for case, got, expected in zip(cases, ta.compile(together, backend="c")(*xs), want):
        equal(got, expected, case)


def derivatives(cases: list[Case]) -> tuple[str, str]:
    """The cells of vjp and jvp."""
    case = next((c for c in cases if c.smooth), cases[0])
    xs = tensors(case.operands, ta.float64)
    floats = [x for x in xs if x.dtype.is_floating]
    if not floats:
        why = "no float operand" if xs else NO_TENSORS
        return why, why
    leaves = [x.clone().requires_grad_() if x.dtype.is_floating else x for x in xs]
    ta.manual_seed(5)
    ys = outputs(case.function(*leaves))
    if not any(y.requires_grad for y in ys):
        kinds = {y.dtype.kind for y in ys}
        why = f"none: the result is {kinds.pop()}"
        if any(y.dtype.is_floating for y in ys):
            why = "none: the operand's values do not count"
        return why, why
    place = next(i for i, y in enumerate(ys) if y.requires_grad)

    def one(*moving: Tensor) -> Tensor:
        ta.manual_seed(5)
        given = iter(moving)
        y = outputs(case.function(*[next(given) if x.dtype.is_floating else x for x in xs]))[place]
        return y * 1

    rng = np.random.default_rng(0)
    u = ta.tensor(rng.normal(size=ys[place].shape), dtype=ys[place].dtype)
    v = [ta.tensor(rng.normal(size=x.shape)) for x in floats]
    wanted = [x for x in leaves if x.requires_grad]
    direct = ta.grad(ys[place], wanted, u, allow_unused=True)
    _, pull = ta.vjp(one, *floats)
    pulled = pull(u)
    pulled = (pulled,) if isinstance(pulled, Tensor) else pulled
    for a, b in zip(pulled, direct, strict=True):
        close(a, ta.zeros_like(a) if b is None else b, case.name)
    _, pushed = ta.jvp(one, floats, v)
    along = sum((a.double() * b).sum().item() for a, b in zip(pulled, v))
    rounding = 2.0 ** (2 - 4 * u.dtype.itemsize)
    np.testing.assert_allclose((pushed.double() * u).sum().item(), along, rounding, 1e-6)
    return "yes", "yes"


# ---- the page -----------------------------------------------------------------------------------


def lines(with_c: bool = True) -> Iterator[list[str]]:
    """The cells of each row, in the order of the columns; that of C empty without a compiler."""
    found = groups()
    c = in_c(found) if with_c else {}
    for name, cases in found.items():
        vjp, jvp = derivatives(cases)
        yield [f"`{name}`", eager(cases), compiled(cases), c.get(name, ""), vjp, jvp]


def row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |\n"


if __name__ == "__main__":
    PAGE.write_text(HEAD + "".join(map(row, lines())), encoding="utf-8")
