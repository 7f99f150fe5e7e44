"""One printer of kernels, for every dialect.

A map's scalar expression is the one in the table of primitives: its calls get the operands' dtype
as a suffix (`exp({0})` prints as `exp_f32(v1)`), and a dialect brings headers that define these
names. What differs between C and CUDA C++ is a dozen words, listed in `Dialect`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tinyaot.codegen.loops import (
    Apply,
    Buffer,
    Checked,
    Expr,
    Finish,
    Fold,
    Index,
    Kernel,
    Let,
    Literal_,
    Load,
    Loop,
    Param,
    Position,
    Random,
    Report,
    Start,
    Stmt,
    Store,
    Total,
    Var,
    Within,
)
from tinyaot.ops.core import TABLE
from tinyaot.shapes import DType, float64

_CALL = re.compile(r"([a-z_][a-z0-9_]*)\(")
_ATOM = re.compile(r"[\w.]+(\([^()]*\))?|\w+\[[^\[\]]*\]")


@dataclass(frozen=True, slots=True)
class Dialect:
    """The words of a language. `scalar` and `memory`: a dtype's type in a register and in memory;
    `vector`: what announces a vector loop with its folds; `function`: a kernel's head."""

    name: str
    scalar: dict[str, str]
    memory: dict[str, str]
    vector: Callable[[Sequence[Start]], list[str]]
    function: Callable[[str, str], str]
    long: str = "int64_t"
    align: str = "__attribute__((aligned(64)))"


def number(x: bool | int | float, dtype: DType) -> str:
    """A literal that reads back as the same value of the dtype."""
    if dtype.kind == "bool":
        return str(int(bool(x)))
    if dtype.kind == "int":
        if dtype.short == "i64":
            return "INT64_MIN" if int(x) == -(2**63) else f"{int(x)}L"
        return f"{int(x)}u" if dtype.short == "u32" else str(int(x))
    suffix = "" if dtype is float64 else "f"
    x = float(dtype.numpy.type(x))
    if math.isnan(x):
        return "NAN" if dtype is not float64 else "(double)NAN"
    if math.isinf(x):
        return "INFINITY" if x > 0 else "-INFINITY"
    if dtype is float64:
        return repr(x)
    text = str(np.float32(x))
    return (text if any(c in text for c in ".e") else text + ".0") + suffix


def neutral(combine: str, dtype: DType) -> str:
    """Where an accumulation starts."""
    match combine:
        case "sum":
            return number(0, dtype)
        case "prod":
            return number(1, dtype)
        case "amax" if dtype.is_floating:
            return "-INFINITY"
        case "amin" if dtype.is_floating:
            return "INFINITY"
    if dtype.kind == "bool":
        return "0" if combine == "amax" else "1"
    info = np.iinfo(dtype.numpy)
    return number(int(info.min if combine == "amax" else info.max), dtype)


class Printer:
    """Prints kernels in a dialect."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect

    # ---- expressions ----------------------------------------------------------------------------
    def index(self, index: Index) -> str:
        terms = [name if c == 1 else f"{name} * {c}" for c, name in index.terms if c]
        if index.const or not terms:
            terms.append(str(index.const))
        return " + ".join(terms)

    def expr(self, e: Expr) -> str:
        match e:
            case Var(name):
                return name
            case Literal_(value, dtype):
                return number(value, dtype)
            case Load(array, index):
                return f"{array}[{self.index(index)}]"
            case Position(index, dtype):
                return f"({self.dialect.scalar[dtype.short]})({self.index(index)})"
            case Total(array, index, step, count):
                parts = [f"{array}[{self.index(index.shifted(t * step))}]" for t in range(count)]
                return " + ".join(parts)
            case Checked(value, size, slot):
                return f"checked_index({self.expr(value)}, {size}, error + {slot})"
            case Within(value, size, ignored):
                return f"not_within({self.expr(value)}, {size}, {ignored}L)"
            case Random(seed, base, ordinal, element):
                draw = f"{self.operand(base)} + {ordinal}"
                return f"random_bits({self.expr(seed)}, {draw}, {self.index(element)})"
            case Apply():
                return self.apply(e)

    def operand(self, e: Expr) -> str:
        """An expression that binds tighter than any operator around it."""
        text = self.expr(e)
        return text if _ATOM.fullmatch(text) else f"({text})"

    def apply(self, e: Apply) -> str:
        args = [self.operand(a) for a in e.args]
        if e.op == "copy":
            return args[0]
        if e.op == "cast":
            return self.cast(args[0], e.dtype, e.result)
        template = TABLE[e.op].expr
        if template is None:
            raise NotImplementedError(f"{e.op} has no scalar expression")
        text = _CALL.sub(rf"\1_{e.dtype.short}(", template).format(*args)
        if e.result.kind == "int" and e.dtype.itemsize < 4 and "(" not in template:
            return f"({self.dialect.scalar[e.result.short]})({text})"  # C computes in int
        return text

    def cast(self, text: str, source: DType, target: DType) -> str:
        if target.kind == "bool":
            return text if source.kind == "bool" else f"{text} != 0"
        if source is target:
            return text
        return f"({self.dialect.memory[target.short]}){text}"

    # ---- statements -----------------------------------------------------------------------------
    def fold(self, target: str, text: str, combine: str) -> str:
        match combine:
            case "=":
                return f"{target} = {text};"
            case "sum":
                return f"{target} += {text};"
            case "prod":
                return f"{target} *= {text};"
            case "amax":
                return f"{target} = {target} > {text} ? {target} : {text};"
            case _:
                return f"{target} = {target} < {text} ? {target} : {text};"

    def stmt(self, s: Stmt, pad: str) -> list[str]:
        d = self.dialect
        match s:
            case Let(name, dtype, expr, is_index):
                kind = d.long if is_index else d.scalar[dtype.short]
                return [f"{pad}{kind} {name} = {self.expr(expr)};"]
            case Store(array, index, expr, dtype, combine):
                place = f"{array}[{self.index(index)}]"
                if combine in ("amax", "amin"):
                    call = "maximum" if combine == "amax" else "minimum"
                    value = f"{call}_{dtype.short}({place}, {self.expr(expr)})"
                    return [f"{pad}{place} = {value};"]
                return [pad + self.fold(place, self.expr(expr), combine)]
            case Start(name, dtype, combine):
                lines = [f"{pad}{d.scalar[dtype.short]} {name} = {neutral(combine, dtype)};"]
                if sees_nan(combine, dtype):
                    lines.append(f"{pad}int {name}_nan = 0;")
                return lines
            case Fold(name, dtype, combine, expr):
                text = self.operand(expr)
                lines = []
                if sees_nan(combine, dtype):
                    lines.append(f"{pad}{name}_nan |= {text} != {text};")
                return [*lines, pad + self.fold(name, text, combine)]
            case Report(name, test, slot):
                return [f"{pad}if ({name} {test} 0) error[{slot}] = {name};"]
            case Finish(name, dtype, combine):
                return [f"{pad}{name} = {name}_nan ? {number(math.nan, dtype)} : {name};"]
            case Buffer(name, dtype, size):
                return [f"{pad}{d.scalar[dtype.short]} {name}[{size}] {d.align};"]
            case Loop(var, extent, body, vector, folds):
                head = [pad + line for line in d.vector(folds)] if vector else []
                head.append(f"{pad}for ({d.long} {var} = 0; {var} < {extent}; {var}++) {{")
                inside = [line for x in body for line in self.stmt(x, pad + "  ")]
                return [*head, *inside, pad + "}"]

    def param(self, p: Param) -> str:
        if p.dtype is None:
            return f"{self.dialect.long} {p.name}"
        return f"{self.dialect.memory[p.dtype.short]} *{p.name}"

    def kernel(self, name: str, kernel: Kernel) -> str:
        """The kernel as a function."""
        params = ", ".join([*map(self.param, kernel.params), "int64_t *error"])
        lines = [self.dialect.function(name, params) + " {"]
        lines += [line for s in kernel.body for line in self.stmt(s, "  ")]
        return "\n".join([*lines, "}"])


def sees_nan(combine: str, dtype: DType) -> bool:
    """Whether an accumulation must be told of NaN: a comparison forgets it."""
    return combine in ("amax", "amin") and dtype.is_floating


_OPERATOR = {"sum": "+", "prod": "*", "amax": "max", "amin": "min"}


def _simd(folds: Sequence[Start]) -> list[str]:
    by: dict[str, list[str]] = {}
    for f in folds:
        by.setdefault(_OPERATOR[f.combine], []).append(f.name)
        if sees_nan(f.combine, f.dtype):
            by.setdefault("|", []).append(f"{f.name}_nan")
    clauses = "".join(f" reduction({op}: {', '.join(names)})" for op, names in by.items())
    return [f"#pragma omp simd{clauses}"]


_TYPES = {
    "bool": "uint8_t",
    "u8": "uint8_t",
    "i8": "int8_t",
    "i16": "int16_t",
    "i32": "int32_t",
    "u32": "uint32_t",
    "i64": "int64_t",
    "f32": "float",
    "f64": "double",
}

C = Dialect(
    "C",
    {**_TYPES, "bool": "int"},
    _TYPES,
    _simd,
    lambda name, params: f"static __attribute__((noinline)) void {name}({params})",
)
