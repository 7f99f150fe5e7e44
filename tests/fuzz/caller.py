"""What the caller of a function does: calls, derivatives, writes to what it holds."""

from __future__ import annotations

from typing import Any

from tests.fuzz import modules
from tests.fuzz.program import Block, Statement

G = Any  # the Generator


def caller(g: G, arguments: list[str]) -> list[Statement]:
    call = f"f({', '.join(arguments)})"
    found: list[Statement] = [f"r0 = {call}"]
    inputs = [n for n in g.space if (n[0] in "axcw" and n[1:].isdigit()) or n == "w"]
    if g.smooth:
        return [*found, "pull(r0)"]
    for i in range(g.rng.randint(1, 4)):
        roll = g.rng.random()
        if roll < 0.35:
            found.append(disturb(g, inputs))
        elif roll < 0.55:
            found.append(f"r{i + 1} = {call}")
        elif roll < 0.62 and len(arguments) > 1:
            other = list(arguments)
            other[g.rng.randrange(len(other))] = g.one_of(arguments)
            found.append(f"r{i + 1} = f({', '.join(other)})")
        elif roll < 0.8:
            found.append(f"pull(r0{g.one_of(('', ', retain_graph=True', ', retain_graph=True'))})")
        elif roll < 0.88 and "k" in g.space:
            found.append("k = 3")
        elif roll < 0.92 and (changes := modules.changes(g)):
            found.append(g.one_of(changes))
        elif roll < 0.96:
            leaf = g.one_of([n for n in inputs if n[0] == "x"])
            found.append(
                f"d = ta.grad(total(r0), [{leaf}], allow_unused=True) "
                f"if {leaf}.requires_grad and total(r0) is not 0 else None".replace(
                    "total(r0) is not 0", "isinstance(total(r0), ta.Tensor)"
                )
            )
    last = [n.split(" ")[0] for n in map(str, found) if n[0] == "r"]
    if g.chance(0.9):
        found.append(f"pull({', '.join(last[-2:])})")
    for _ in range(g.rng.choice((0, 1, 1, 2))):
        found.append(probe(g, last[-1]))
    return found


def disturb(g: G, inputs: list[str]) -> Statement:
    """A write by the caller, hidden or not."""
    if g.chance(0.3):  # a visible one, to an output
        k = g.rng.randrange(2)
        body = ("t.mul_(0.5)", "t.add_(t)", "t[...] = 1")[g.rng.randrange(3)]
        guard = Block("if t.dtype.is_floating and not (t.is_leaf and t.requires_grad):", (body,))
        return Block(f"for t in tensors(r0)[{k}:{k + 1}]:", (guard,))
    if "m" in g.space and g.chance(0.3):
        write = g.one_of(("mul_(0.5)", "add_(1)", "zero_()"))
        name = g.one_of(("p", "p", "b"))
        of = {"p": "m.parameters()", "b": "m.buffers()"}[name]
        return Block("with ta.no_grad():", (Block(f"for {name} in {of}:", (f"{name}.{write}",)),))
    x = g.one_of(inputs)
    if x[0] == "a" and g.tensor(x).dtype.is_floating and g.chance(0.5):
        return f"{x}.mul_(0.5)" if g.space.get(f"x{x[1:]}") is not g.space[x] else "pass"
    write = g.one_of((f"{x}.mul_(0.5)", f"{x}.add_(1)", f"{x}[...] = 1", f"{x}.zero_()"))
    return Block("with ta.no_grad():", (write,))


def probe(g: G, result: str) -> Statement:
    """Write to an output: who else sees it?"""
    i = g.rng.randrange(3)
    block = Block("with ta.no_grad():", ("t.add_(1)",))
    return Block(f"for t in tensors({result})[{i}:{i + 1}]:", (block,))
