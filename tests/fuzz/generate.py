"""Writes a random program while running it eagerly."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import tinyaot as ta
from tests.fuzz import effects, modules
from tests.fuzz import statements as s
from tests.fuzz.caller import caller
from tests.fuzz.program import PRELUDE, Block, Program, Statement

SHAPES = ((), (1,), (3,), (4,), (2, 3), (3, 3), (2, 2), (1, 3), (4, 1), (2, 1, 3), (0, 3), (4, 2))
PARTITIONS = ("min_cut", "save_all", "recompute_all")
LARGE = ((31,), (33, 2), (257,), (2, 33), (65, 3))
LIMIT, LARGEST = 1200, 1e3  # elements, absolute values


class Unexpected(Exception):
    """Eager raised what is no TinyaotError: `text`, `error`."""


def generate(seed: int, backend: str = "numpy") -> Program:
    """The program of a seed, always the same."""
    with np.errstate(all="ignore"):
        return Generator(seed, backend).program()


class Generator:
    """`names`: tensors in sight, the newest last; `local`: those that the scope may rebind."""

    def __init__(self, seed: int, backend: str) -> None:
        self.seed, self.rng, self.backend = seed, random.Random(seed), backend
        self.space: dict[str, Any] = {}
        self.names: list[str] = []
        self.local: set[str] = set()
        self.count = 0
        self.smooth = self.chance(0.12)
        self.step = not self.smooth and self.chance(0.25)

    # ---- choices ----

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def one_of(self, things: Any) -> Any:
        return things[self.rng.randrange(len(things))]

    def weighted(self, table: Any) -> Any:
        return self.rng.choices([t for t, _ in table], [w for _, w in table])[0]

    def fresh(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def tensor(self, name: str) -> Any:
        return self.space[name]

    def evaluate(self, text: str) -> Any:
        return eval(text, self.space)

    def pick(self, wanted: Callable[[Any], Any] = lambda t: True) -> str | None:
        fits = [
            n
            for n in self.names
            if isinstance(self.space.get(n), ta.Tensor) and wanted(self.space[n])
        ]
        if not fits:
            return None
        at = len(fits) - 1 - int(abs(self.rng.gauss(0, 0.4 * len(fits))))
        return fits[max(0, at)] if at >= 0 else self.one_of(fits)

    def pick_float(self, wanted: Callable[[Any], Any] = lambda t: True) -> str | None:
        return self.pick(lambda t: t.dtype.is_floating and wanted(t))

    def fitting(self, x: str) -> str | None:
        shape = self.tensor(x).shape
        return self.pick(
            lambda t: (
                s.broadcasts(t.shape, shape) or s.broadcasts(shape, t.shape)
                if not self.smooth
                else t.dtype.is_floating and s.broadcasts(t.shape, shape)
            )
        )

    # ---- running a statement as it is written ----

    def run(self, text: str) -> bool:
        """Run text; whether it made sense, and what it made is neither huge nor long."""
        before = dict(self.space)
        try:
            exec(text, self.space)
        except ta.errors.TinyaotError:
            self.space.clear()
            self.space.update(before)
            return False
        except IndexError:  # of the tuple that unbind or split gave
            self.space.clear()
            self.space.update(before)
            return False
        except Exception as error:
            raise Unexpected(text, error) from error
        new = [n for n, v in self.space.items() if before.get(n) is not v and n[0] == "v"]
        if any(not self.is_fine(self.space[n]) for n in new):
            self.space.clear()
            self.space.update(before)
            return False
        self.names += [n for n in new if n not in self.names]
        self.local |= set(new)
        return True

    def is_fine(self, x: Any) -> bool:
        if not isinstance(x, ta.Tensor):
            return True
        if x.size > LIMIT:
            return False
        if not x.dtype.is_floating or not x.size:
            return True
        a = np.abs(x.numpy().astype(np.float64))
        return bool(np.isfinite(a).all() and a.max() < LARGEST) or self.chance(0.02)

    # ---- a program ----

    def program(self) -> Program:
        exec(PRELUDE, self.space)
        setup = [f"ta.manual_seed({self.seed % 1000})", *self.inputs()]
        for line in setup:
            exec(line, self.space)
        parameters, arguments, known = self.parameters()
        self.names += [p for p in parameters if isinstance(self.space.get(p), ta.Tensor)]
        self.local = set(self.names) & set(parameters)
        body = [*known, *self.body(self.rng.randint(2, 11))]
        if self.step:
            body += self.training()
        returns, form = self.returns()
        options = {"backend": self.backend, "partition": self.one_of(PARTITIONS)}
        if options["partition"] == "min_cut" and self.chance(0.5):
            options["memory_budget"] = self.one_of((0.0, 0.5))
        if self.step and self.chance(0.7):
            options["keep_grads"] = True
        program = Program(
            tuple(setup),
            tuple(parameters),
            tuple(body),
            returns,
            form,
            (),
            options,
            self.smooth,
            self.step or any("ta.grad" in x or "backward" in x for x in map(str, body)),
            self.seed,
        )
        return program.with_section("caller", tuple(caller(self, arguments)))

    def array(self, shape: tuple[int, ...], dtype: str) -> str:
        if dtype == "bool":
            values: Any = np.array([self.chance(0.5) for _ in range(int(np.prod(shape)))], bool)
        elif dtype == "int64":
            values = np.array([self.rng.randint(0, 2) for _ in range(int(np.prod(shape)))], int)
        else:
            values = np.array(
                [round(self.rng.uniform(-1.5, 1.5), 2) for _ in range(int(np.prod(shape)))], float
            )
        if shape in LARGE:
            ends = "0, 2" if dtype == "int64" else "-1, 1" if dtype == "bool" else "-1.5, 1.4"
            points = f"np.linspace({ends}, {int(np.prod(shape))}).reshape{shape}"
            return f"ta.tensor({points}.round(2), dtype=ta.{dtype})"
        if 0 in shape:
            return f"ta.zeros({shape}, dtype=ta.{dtype})"
        return f"ta.tensor({values.reshape(shape).tolist()}, dtype=ta.{dtype})"

    def inputs(self) -> Iterator[str]:
        """Leaves x, arguments a made of them, captured c, state w."""
        shapes = LARGE if self.chance(0.06) else SHAPES
        shape = self.one_of(shapes)
        for i in range(self.rng.randint(1, 3)):
            if self.chance(0.5):
                shape = self.one_of(shapes)
            dtype = (
                "float64"
                if self.smooth
                else self.weighted(
                    (("float32", 10), ("float64", 2), ("float16", 1), ("int64", 1), ("bool", 1))
                )
            )
            grad = ".requires_grad_()" if dtype[0] == "f" and self.chance(0.85) else ""
            if self.smooth:
                grad = ".requires_grad_()"
            yield f"x{i} = {self.array(shape, dtype)}{grad}"
            roll = self.rng.random() + (0.6 if self.step and self.chance(0.7) else 0)
            if dtype[0] == "f" and roll < 0.5:
                yield f"a{i} = x{i} * 1"
            elif dtype[0] == "f" and roll < 0.6 and not self.smooth:
                yield f"a{i} = x{i}.detach()"
            elif roll < 0.7 and not self.smooth:
                yield f"a{i} = x{i}.clone().{self.one_of(('T', 'reshape(-1)', 'unsqueeze(0)'))}"
            else:
                yield f"a{i} = x{i}"
        if self.chance(0.35):
            yield f"c0 = {self.array(self.one_of(SHAPES), 'float64' if self.smooth else 'float32')}"
            self.names.append("c0")
        if self.smooth:
            return
        if self.chance(0.3):
            yield "box = Box()"
            yield f"box.s = {self.array(shape, 'float32')}"
        if self.chance(0.15):
            yield "k = 2"
        if self.step or self.chance(0.25):
            if self.chance(0.4):
                yield modules.module(self)
                parameters = "list(m.parameters())"
            else:
                w = self.array(self.one_of(((3,), (2, 3), (3, 3))), "float32")
                yield f"w = ta.nn.Parameter({w})"
                self.names.append("w")
                parameters = "[w]"
            if self.step:
                yield from modules.optimizer(self, parameters)

    def parameters(self) -> tuple[list[str], list[str], list[Statement]]:
        """Names, what is passed for them, and statements that unpack containers."""
        given = [n for n in self.space if n[0] == "a" and n[1:].isdigit()]
        names, arguments, known = [], [], []
        for i, a in enumerate(given):
            names.append(f"p{i}")
            arguments.append(a)
        if self.chance(0.25):
            a = self.one_of(given)
            names.append("q")
            arguments.append(a if self.chance(0.4) else s.view_of(self, a))
        for p, a in list(zip(names, arguments)):
            try:
                self.space[p] = self.evaluate(a)
            except (ta.errors.TinyaotError, IndexError):
                at = names.index(p)
                del names[at], arguments[at]
        if self.chance(0.1):
            names.append("n")
            arguments.append("2")
            self.space["n"] = 2
        if self.chance(0.1) and len(names) > 1 and not self.smooth:
            names.append("packed")
            arguments.append(f"({given[0]}, {{'k': {given[-1]}}})")
            self.space["packed"] = self.evaluate(arguments[-1])
            known.append("v0, v00 = packed[0], packed[1]['k']")
            exec(known[0], self.space)
            self.names += ["v0", "v00"]
        if self.chance(0.15) and "box" in self.space:
            known.append("u = box.s")
            exec("u = box.s", self.space)
            self.names.append("u")
        return names, arguments, known

    def body(self, length: int, nested: int = 0) -> list[Statement]:
        found: list[Statement] = []
        for _ in range(6 * length):
            if len(found) >= length:
                break
            made = self.statement(nested)
            if made is not None:
                found.append(made)
        return found

    def statement(self, nested: int) -> Statement | None:
        roll = self.rng.random()
        if roll < 0.07 and not self.smooth and nested < 3:
            return self.block(nested)
        if roll < 0.10 and nested < 2:
            return self.inner(nested)
        if roll < 0.17 and not self.smooth:
            text = self.special()
        elif roll < 0.40:
            text = self.weighted(effects.EFFECTS)(self)
        else:
            text = self.weighted(s.EXPRESSIONS)(self)
            text = text and f"{self.fresh()} = {text}"
        if text is None:
            return None
        return text if self.run(text) else None

    def block(self, nested: int) -> Statement | None:
        """no_grad or enable_grad, entered while its body is written; or a loop."""
        if self.chance(0.2):
            x = self.pick_float()
            if x is None or x not in self.local:
                return None
            text = f"for i in range(2):\n    {x} = ta.tanh({x} * 0.5 + i)"
            return text if self.run(text) else None
        kind = self.one_of(("no_grad", "no_grad", "enable_grad"))
        with getattr(ta, kind)():
            body = self.body(self.rng.randint(1, 3), nested + 1)
        return Block(f"with ta.{kind}():", tuple(body)) if body else None

    def inner(self, nested: int) -> Statement | None:
        """A nested function of one parameter, called once; its body has run when it is written."""
        x = self.pick_float()
        if x is None:
            return None
        self.count += 1
        h, p = f"h{self.count}", f"v{self.count}p"
        names, local = list(self.names), self.local
        self.space[p] = self.space[x]
        self.names.append(p)
        self.local = {p}
        body = self.body(self.rng.randint(1, 3), nested + 1)
        result = self.pick(lambda t: True)
        out = self.fresh()
        value = self.space.get(result) if result else None
        self.names, self.local = [*names, out], {*local, out}
        self.space[out] = value
        checkpoint = hasattr(ta, "checkpoint") and self.chance(0.3)
        call = f"ta.checkpoint({h}, {x})" if checkpoint else f"{h}({x})"
        inner = Block(f"def {h}({p}):", (*body, f"return {result}"))
        return Block("if True:", (inner, f"{out} = {call}"))

    def special(self) -> str | None:
        """Things a program seldom does."""
        x = self.pick_float()
        if x is None:
            return None
        v = self.fresh()
        y = self.pick_float()
        choices = [
            f"{v}, = ta.grad(({x} * {x}).sum(), [{y}], allow_unused=True)",
            f"{v}, = ta.grad(({x} * {x}).sum(), [{y}], allow_unused=True, create_graph=True)",
            f"{v}, = ta.grad(({x} * {x}).sum(), [{y}], allow_unused=True, retain_graph=True)",
            f"{v} = {x}.detach().requires_grad_()",
            f"{v} = {x}.detach().clone().requires_grad_()",
            f"{v} = ta.vjp(lambda t: ta.sin(t) * {y}, {x})[1](ta.ones_like(ta.sin({x}) * {y}))",
            f"{v} = ta.jvp(lambda t: t * t * {y}, [{x}], [ta.ones_like({x})])[1]",
            f"{v} = ta.value_and_grad(lambda t: (t * {y}).sum())({x})[1]",
            f"{v} = {x}.detach()",
            f"{v} = {x}.detach()[...]",
            f"{v} = ta.tensor([1.0, 2.0, 3.0])",
            f"{v} = ta.arange(3)",
            f"{v} = ta.zeros(2, 3)",
            f"{v} = ta.randn(3)",
            f"{v} = {x}.detach_()",
        ]
        if "box" in self.space:
            choices += [f"{v} = box.s", "box.s.mul_(0.5)", f"box.s = {x}", f"box.t = {x}"]
            choices += [f"{v} = box.s * {x}", f"box.s.copy_({x})", f"box.s.add_({x}.sum())"] * 2
        if "k" in self.space:
            choices += [f"{v} = {x} * k"]
        if "m" in self.space:
            m = self.pick_float(lambda t: t.ndim == 2 and t.shape[1] == 3 and t.shape[0] > 0)
            choices += [f"{v} = m({m})"] * 6 if m else []
        if self.step:
            choices += [
                f"({x} * {x}).sum().backward()",
                f"{v} = {x}.grad",
                f"{x}.retain_grad()",
                f"({x} * {y}).sum().backward(retain_graph=True)",
                f"{x}.grad = None",
            ]
        return self.one_of(choices)

    def training(self) -> list[Statement]:
        found: list[Statement] = []
        if "m" in self.space:
            m = self.pick_float(lambda t: t.ndim == 2 and t.shape[1] == 3 and t.shape[0] > 0)
            text = f"y = m({m})" if m else "y = m(ta.ones(2, 3))"
        else:
            y = self.pick_float() or "w"
            text = f"y = {y} * w" if self.chance(0.5) else f"y = ta.sin(w) + {y}.sum()"
        x = self.pick_float()
        for line in (
            text,
            f"l = (y * y).mean(){f' + {x}.sum()' if x and self.chance(0.4) else ''}",
        ):
            if not self.run(line):
                line = line[0] + (" = w * 1" if "w" in self.space else " = ta.ones(1)")
                if line[0] == "l":
                    line = "l = (y * y).sum()"
                self.run(line)
            found.append(line)
        lines = ["o.zero_grad()", "l.backward()"]
        if self.chance(0.2):
            lines = ["l.backward()"]
        if self.chance(0.2):
            p = "m.parameters()" if "m" in self.space else "[w]"
            lines.append(f"ta.nn.clip_grad_norm_({p}, 0.5)")
        if self.chance(0.9):
            lines.append("o.step()")
        for text in lines:
            if self.run(text):
                found.append(text)
        self.names += ["l", "y"]
        return [*found, *(self.body(2) if self.chance(0.3) else [])]

    def returns(self) -> tuple[tuple[str, ...], str]:
        count = self.rng.choice((1, 1, 2, 2, 3, 4))
        found = [n for n in (self.pick() for _ in range(count)) if n]
        if self.names and self.names[-1] not in found:
            found.append(self.names[-1])
        for i, n in enumerate(found):
            if self.chance(0.12):
                text = s.view_of(self, n)
                if self.run(f"_t = {text}"):
                    found[i] = text
        if self.chance(0.1):
            found.append(self.one_of(("None", "3", "'text'")))
        form = "({})"
        if len(found) == 1 and self.chance(0.5):
            return (f"{found[0]}",), "{}"
        if self.chance(0.2):
            form = self.one_of(("[{}]", "{{'a': ({})}}", "(({}), 1)"))
        return tuple(found), form
