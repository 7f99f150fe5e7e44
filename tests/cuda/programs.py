"""Small programs without products, whose CUDA text is kept in this folder, a file each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import tinyaot as ta
from tinyaot import nn, optim
from tinyaot.codegen.cuda import emit_cuda
from tinyaot.compile import trace
from tinyaot.ir import Program
from tinyaot.nn import functional as F
from tinyaot.passes import assign_layouts
from tinyaot.pipeline import Options, lower
from tinyaot.tensor import Tensor

FOLDER = Path(__file__).parent


def tensor(*shape: int, grad: bool = False) -> Tensor:
    return ta.ones(*shape, requires_grad=grad)


def maps() -> Program:
    """Chained maps with broadcasting: a thread an element."""

    def run(x: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return ta.tanh(x * row + column) * ta.sigmoid(x)

    return program(run, tensor(6, 100), tensor(100), tensor(6, 1))


def normalization() -> Program:
    """Normalised rows and their gradients: a block a row, and a thread a column for the sums over
    rows."""

    def run(x: Tensor, w: Tensor, b: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
        y = F.layer_norm(x, (x.shape[-1],), w, b)
        return (y, *ta.grad((y * dy).sum(), (x, w, b)))

    return program(
        run, tensor(40, 96, grad=True), tensor(96, grad=True), tensor(96, grad=True), tensor(40, 96)
    )


def classes() -> Program:
    """A loss over classes and its gradient: maxima and sums of rows, and one sum over all rows."""

    def run(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        loss = F.cross_entropy(x, y)
        return (loss, *ta.grad(loss, (x,)))

    return program(run, tensor(33, 10, grad=True), ta.zeros(33, dtype=ta.int64))


def masks() -> Program:
    """Random masks: Philox by the element's index."""

    def run(x: Tensor) -> tuple[Tensor, ...]:
        y = F.dropout(ta.exp(x), 0.25)
        return (y, *ta.grad((y * y).sum(), (x,)))

    return program(run, tensor(7, 45, grad=True))


def update() -> Program:
    """An optimizer's step: parameter and state in place, a thread an element."""
    weight = nn.Parameter(ta.ones(20, 31))
    opt = optim.AdamW([weight], lr=0.01)

    def run(x: Tensor) -> Tensor:
        loss = (weight * x).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return program(run, tensor(20, 31))


def columns() -> Program:
    """A softmax along an outer axis: a thread a column."""
    return program(lambda x: F.softmax(x, 0), tensor(17, 70))


PROGRAMS: dict[str, Callable[[], Program]] = {
    f.__name__: f for f in (maps, normalization, classes, masks, update, columns)
}


def program(run: Callable[..., object], *arguments: Tensor) -> Program:
    """The program of a function of tensors, ready for regions."""
    return assign_layouts(lower(trace(run, *arguments), Options(), joint=False)[0])


def text(name: str) -> str:
    """What is kept: the kernels, without the headers, and the launches."""
    module = emit_cuda(PROGRAMS[name]())
    steps = "".join(f"// {step}\n" for step in module.steps)
    return "\n\n".join([*module.kernels.values(), steps])


def path(name: str) -> Path:
    return FOLDER / f"{name}.cu"
