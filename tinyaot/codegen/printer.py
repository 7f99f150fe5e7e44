"""One printer of kernels, for every dialect.

A map's scalar expression is the one in the table of primitives: its calls get the operands' dtype
as a suffix (`exp({0})` prints as `exp_f32(v1)`), and a dialect brings headers that define these
names. What differs between C and CUDA C++ is a dozen words, listed in `Dialect`. In CUDA a tile
belongs to one thread, for which every loop is a loop, or to a *team*, the threads of a block: they
share out vector loops, fold what each has folded, and one of them stores what all have computed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

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
    RandomRow,
    Report,
    Start,
    Stmt,
    Store,
    Total,
    Var,
    Within,
)
from tinyaot.ops.core import TABLE, is_half
from tinyaot.shapes import DType, float32, float64, int32, int64, uint32

_CALL = re.compile(r"([a-z_][a-z0-9_]*)\(")
_ATOM = re.compile(r"[\w.]+(e-\d+f?)?(\([^()]*\))?|\w+\[[^\[\]]*\]")


@dataclass(frozen=True, slots=True)
class Dialect:
    """The words of a language. `scalar` and `memory`: a dtype's type in a register and in memory;
    `vector`: what announces a vector loop; `loop`: the head of a loop (variable, extent, whether a
    vector loop); `folded`: what completes an accumulator after its vector loop; `once`: what guards
    a store outside vector loops; `row`: declares elements that are kept between vector loops;
    `spare`: declares scratch of a fallback; `function`: a kernel's head; `cuts`: whether long
    chains of slow maps are cut into several loops; `keeps`: whether rows are kept between vector
    loops, or computed again; `random_rows`: whether random bits are made a row at a time; `across`:
    whether short rows are computed side by side."""

    name: str
    scalar: dict[str, str]
    memory: dict[str, str]
    function: Callable[[str, str], str]
    vector: Callable[[Loop], list[str]] = lambda loop: []
    folded: Callable[[Start], list[str]] = lambda start: []
    first: str = "0"  # iteration of a vector loop, and the step to the next
    step: str = "1"
    once: str = ""
    row: str = "{0} {1}[{2}]"
    spare: str = "static {0} {1}[{2}]"
    long: str = "int64_t"
    cuts: bool = False
    keeps: bool = True
    random_rows: bool = False
    across: bool = False


def literal(x: bool | int | float, dtype: DType) -> str:
    """A literal that reads back as the same value of the dtype."""
    if dtype.kind == "bool":
        return str(int(bool(x)))
    if dtype.kind == "int":
        if dtype.short == "i64":
            return "INT64_MIN" if int(x) == -(2**63) else f"{int(x)}L"
        return f"{int(x)}u" if dtype.short == "u32" else str(int(x))
    if is_half(dtype.numpy):
        return str(int(dtype.numpy.type(x).view(np.uint16)))
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


def neutral(combine: str, dtype: DType) -> bool | int | float:
    """Where an accumulation starts."""
    match combine:
        case "sum":
            return 0
        case "prod":
            return 1
    if dtype.is_floating:
        return -math.inf if combine == "amax" else math.inf
    if dtype.kind == "bool":
        return combine == "amin"
    info = np.iinfo(dtype.numpy)
    return int(info.min if combine == "amax" else info.max)


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
                return literal(value, dtype)
            case Load(array, index):
                return f"{array}[{self.index(index)}]"
            case Position(index, dtype):
                return f"({self.dialect.scalar[dtype.short]})({self.index(index)})"
            case Total(array, index, step, count):
                parts = [f"{array}[{self.index(index.plus(t, step))}]" for t in range(count)]
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
        if is_half(source.numpy):
            return self.cast(f"f32_of_{source.short}({text})", float32, target)
        if is_half(target.numpy):
            wide = text if source is float64 else self.cast(text, source, float32)
            return f"{target.short}_of_{'f64' if source is float64 else 'f32'}({wide})"
        if source.is_floating and target.kind == "int" and target.short not in ("i32", "i64"):
            # what is no number of the target is undefined in C; NumPy's is the low bits of a wider
            whole = int64 if target is uint32 else int32
            text = f"({self.dialect.memory[whole.short]}){text}"
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

    def stmt(self, s: Stmt, pad: str, shared: bool = False) -> list[str]:
        """Lines of a statement. `shared`: inside a vector loop, whose iterations a team shares."""
        d = self.dialect
        match s:
            case Let(name, dtype, expr, is_index):
                kind = d.long if is_index else d.scalar[dtype.short]
                return [f"{pad}{kind} {name} = {self.expr(expr)};"]
            case Store(array, index, expr, dtype, combine):
                place = f"{array}[{self.index(index)}]"
                pad += "" if shared else d.once
                if combine in ("amax", "amin"):
                    call = "maximum" if combine == "amax" else "minimum"
                    value = f"{call}_{dtype.short}({place}, {self.expr(expr)})"
                    return [f"{pad}{place} = {value};"]
                return [pad + self.fold(place, self.expr(expr), combine)]
            case Start(name, dtype, combine):
                value = literal(neutral(combine, dtype), dtype)
                lines = [f"{pad}{d.scalar[dtype.short]} {name} = {value};"]
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
                return [f"{pad}{name} = {name}_nan ? {literal(math.nan, dtype)} : {name};"]
            case Buffer(name, dtype, size):
                return [pad + d.row.format(d.scalar[dtype.short], name, size) + ";"]
            case RandomRow(array, seed, base, ordinal, element, count):
                draw = f"{self.operand(base)} + {ordinal}"
                where = f"{self.index(element)}, {count}, {array}"
                return [f"{pad}rt->random_row({self.expr(seed)}, {draw}, {where});"]
            case Loop(var, extent, body, vector, folds):
                lines = [pad + line for line in d.vector(s)] if vector else []
                first, step = (d.first, d.step) if vector else ("0", "1")
                more = f"{var}++" if step == "1" else f"{var} += {step}"
                lines.append(f"{pad}for ({d.long} {var} = {first}; {var} < {extent}; {more}) {{")
                inside = shared or vector
                lines += [line for x in body for line in self.stmt(x, pad + "  ", inside)]
                done = [pad + line for f in folds if vector for line in d.folded(f)]
                return [*lines, pad + "}", *done]

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


def _simd(loop: Loop) -> list[str]:
    if any(isinstance(s, Let) and isinstance(s.expr, Checked) for s in loop.body):
        return []  # it reports through a pointer
    by: dict[str, list[str]] = {}
    for f in loop.folds:
        by.setdefault(_OPERATOR[f.combine], []).append(f.name)
        if sees_nan(f.combine, f.dtype):
            by.setdefault("|", []).append(f"{f.name}_nan")
    clauses = "".join(f" reduction({op}: {', '.join(names)})" for op, names in by.items())
    return [f"#pragma omp simd{clauses}"]


def _fold_team(start: Start) -> list[str]:
    lines = [f"{start.name} = fold_team({start.name}, {start.combine}_of());"]
    if sees_nan(start.combine, start.dtype):
        lines.append(f"{start.name}_nan = __syncthreads_or({start.name}_nan);")
    return lines


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

_REGISTERS = {**_TYPES, "bool": "int"}
_HALVES = {"f16": "uint16_t", "bf16": "uint16_t"}  # bits: only casts know more (half.h)

C = Dialect(
    "C",
    _REGISTERS | _HALVES,
    _TYPES | _HALVES,
    lambda name, params: f"static __attribute__((noinline)) void {name}({params})",
    vector=_simd,
    row="{0} {1}[{2}] __attribute__((aligned(64)))",
    spare="{0} *const {1} = ({0} *)pack",
    cuts=True,
    random_rows=True,
    across=True,
)

CUDA = Dialect(
    "CUDA",
    _REGISTERS,
    _TYPES,
    lambda name, params: f'extern "C" __global__ void {name}({params})',
    spare="static __device__ {0} {1}[{2}]",
)

CUDA_TEAM = replace(
    CUDA,
    first="threadIdx.x",
    step="blockDim.x",
    once="if (threadIdx.x == 0) ",
    folded=_fold_team,
    row="__shared__ {0} {1}[{2}]",
)
