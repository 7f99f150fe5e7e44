"""Run a Program node by node with NumPy: the reference meaning of every stage.

No plan, no reuse of memory, no cleverness: what a compiled program gives is right if it gives what
this gives. The rules are few. A view is a NumPy view, so that before functionalization a write
through one reaches its base; everything else is fresh memory in C order; the caller's arrays are
never written. A program that still has `grad` nodes runs on the eager tape instead, which then says
what the derivatives are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tinyaot import ops
from tinyaot.eager import EagerEngine
from tinyaot.errors import DTypeError, ShapeError, TinyaotError, VerifyError
from tinyaot.ir import Input, Node, Program, Value
from tinyaot.ops.core import TABLE, Primitive, using
from tinyaot.shapes import TensorType, brief, numpy_to_dtype
from tinyaot.structural import CUSTOM, GRAD, STRUCTURAL, custom_parts, grad_parts
from tinyaot.tape import TapeNode, enable_grad, quiet, unpack
from tinyaot.tensor import Tensor

Observer = Callable[[int, np.ndarray], None]


def interpret(program: Program, *arrays: Any, observe: Observer | None = None) -> list[np.ndarray]:
    """The values of the program's outputs, in order, as new arrays.

    `arrays` are the inputs in order, of exactly their types (a Python number will do for a 0-d
    input). `observe(id, array)` is called with every input and every value when it is computed
    (not a copy: look, or copy, but do not write). Raises ShapeError or DTypeError for an array
    that does not fit its input.
    """
    if not isinstance(program, Program):
        raise DTypeError(f"interpret: needs a Program, got {brief(program)}")
    given = _check_arrays(program, arrays)
    ops_used = {n.op for n in program.nodes}
    if GRAD in ops_used:
        return _interpret_on_tape(program, given, observe)
    if "write" in ops_used:
        given = [a.copy() for a in given]
    values = {i.value.id: a for i, a in zip(program.inputs, given, strict=True)}
    if observe is not None:
        for id_, array in values.items():
            observe(id_, array)
    run_nodes(program.nodes, values, observe)
    return [values[o.value.id].copy() for o in program.outputs]


def run_nodes(
    nodes: Iterable[Node], values: dict[int, np.ndarray], observe: Observer | None = None
) -> None:
    """Run `nodes` (no `grad` among them) in order: operands are read from `values`, results are
    added to it."""
    with np.errstate(all="ignore"):
        for node in nodes:
            operands = [values[v.id] for v in node.inputs]
            if node.body is not None:
                inside = {v.id: x for v, x in zip(node.inputs, operands, strict=True)}
                run_nodes(node.body.nodes, inside, observe)
                values.update((r.id, inside[r.id]) for r in node.results)
                continue
            if node.op in STRUCTURAL:
                for result, array in zip(node.results, _idle(node, operands), strict=True):
                    values[result.id] = array
                    if observe is not None:
                        observe(result.id, array)
                continue
            if node.op == "write":
                target = operands[0].view()
                target.flags.writeable = True  # NumPy's broadcast views are not, even of themselves
                np.copyto(target, operands[1])
                continue
            array = _run(node, operands)
            values[node.result.id] = array
            if observe is not None:
                observe(node.result.id, array)


def _idle(node: Node, operands: list[np.ndarray]) -> list[np.ndarray]:
    """What the nodes of a custom rule give while nobody differentiates."""
    if node.op == CUSTOM:
        return [x.copy() for x in operands[: len(node.results)]]
    return [np.zeros(r.type.shape, r.type.dtype.numpy) for r in node.results]


def _run(node: Node, operands: list[np.ndarray]) -> np.ndarray:
    primitive = _primitive(node)
    array = np.asarray(primitive.array(*operands, **node.attrs))
    if primitive.kind != "view":
        # NumPy's own results follow the operands' order and may be an operand.
        array = np.asarray(array, order="C")
        if any(np.may_share_memory(array, x) for x in operands):
            array = array.copy()
    _check_result(node, array)
    return array


def _primitive(node: Node) -> Primitive:
    if node.op not in TABLE:
        raise VerifyError(f"interpret: there is no primitive {node.op!r}")
    return TABLE[node.op]


def _check_result(node: Node, array: np.ndarray) -> None:
    found = TensorType(numpy_to_dtype(array.dtype), array.shape)
    if found != node.result.type:
        raise VerifyError(
            f"interpret: {node.op} gave {found} for {node.result}: {node.result.type}. Either the "
            f"program is not well-typed (verify says where), or the op's type rule is wrong"
        )


# ---- programs with grad nodes -------------------------------------------------------------------


def _interpret_on_tape(
    program: Program, arrays: list[np.ndarray], observe: Observer | None
) -> list[np.ndarray]:
    """`interpret` on eager tensors: `grad` nodes ask the tape that the nodes above them left."""
    run = _OnTape(program, observe)
    values: dict[int, Tensor] = {}
    with using(run.engine), quiet(), enable_grad():
        for i, array in zip(program.inputs, arrays, strict=True):
            tensor = Tensor(array.copy())
            run.define(values, i.value, _asking_for_grad(tensor) if i.requires_grad else tensor)
        for position in range(len(program.nodes)):
            run.step(position, values)
    return [values[o.value.id]._data.copy() for o in program.outputs]


class _OnTape:
    """Runs the nodes of a program on eager tensors."""

    def __init__(self, program: Program, observe: Observer | None) -> None:
        self.engine = EagerEngine()
        self.program = program
        self.observe = observe
        self.wrt = {v.id for n in program.nodes if n.op == GRAD for v in grad_parts(n).wrt}
        for n in reversed(program.nodes):  # what a view shows: a write to that reaches the view
            is_view = n.op in TABLE and TABLE[n.op].kind == "view" and n.op != "detach"
            if is_view and n.result.id in self.wrt:
                self.wrt.add(n.inputs[0].id)
        self.position = {r.id: at for at, n in enumerate(program.nodes) for r in n.results}

    def define(
        self, values: dict[int, Tensor], value: Value, tensor: Tensor, is_view: bool = False
    ) -> None:
        floating = value.type.dtype.is_floating
        if value.id in self.wrt and floating and self.engine.edge(tensor) is None:
            tensor = tensor.requires_grad_() if is_view else _asking_for_grad(tensor)
        values[value.id] = tensor
        if self.observe is not None:
            self.observe(value.id, tensor._data)

    def step(self, position: int, values: dict[int, Tensor]) -> None:
        """Run one node: operands are read from `values`, results are added to it."""
        node = self.program.nodes[position]
        operands = [values[v.id] for v in node.inputs]
        if node.op == "write":
            self.engine.write(*operands)
        elif node.op in STRUCTURAL:
            for value, tensor in zip(node.results, self._structural(node, values), strict=True):
                self.define(values, value, tensor)
        else:
            primitive = _primitive(node)
            result = self.engine.bind(primitive, tuple(operands), dict(node.attrs))
            _check_result(node, result._data)
            self.define(values, node.result, result, is_view=primitive.kind == "view")

    def _structural(self, node: Node, values: dict[int, Tensor]) -> list[Tensor]:
        if node.op == GRAD:
            return _grad(self.engine, node, values)
        arrays = _idle(node, [values[v.id]._data for v in node.inputs])
        made = [Tensor(array) for array in arrays]
        if node.op == CUSTOM:
            rule = _CustomNode(self, node, values)
            differentiable = any(e is not None for e in rule.edges)
            for index, tensor in enumerate(made if differentiable else ()):
                tensor._history.edge = rule, index
                tensor._history.requires_grad = True
        return made


class _CustomNode(TapeNode):
    """The rule of a `custom_vjp` node: the nodes from its cotangents to it, run again."""

    __slots__ = ("node", "read", "run")
    name = CUSTOM

    def __init__(self, run: _OnTape, node: Node, values: dict[int, Tensor]) -> None:
        wrt = [values[v.id] for v in custom_parts(node).wrt]
        super().__init__([run.engine.edge(x) for x in wrt], outputs=len(node.results))
        self.node, self.run = node, run
        nodes = [run.program.nodes[at] for at in self._steps()]
        made = {r.id for n in nodes for r in n.results}
        read = {v.id for n in (*nodes, node) for v in n.inputs} - made
        self.read = {i: run.engine.save(values[i], run.engine.edge(values[i])) for i in read}

    def _steps(self) -> range:
        at = self.run.position
        first = min(at[c.id] for c in custom_parts(self.node).cotangents)
        return range(first + 1, at[self.node.results[0].id])

    def pull(self, cotangents: list[Tensor | None], create_graph: bool) -> list[Tensor | None]:
        rule = custom_parts(self.node)
        values: dict[int, Tensor] = {i: unpack(x, True) for i, x in self.read.items()}
        for seed, given in zip(rule.cotangents, cotangents, strict=True):
            zeros = np.zeros(seed.type.shape, seed.type.dtype.numpy)
            values[seed.id] = Tensor(zeros) if given is None else given
        for at in self._steps():
            results = self.run.program.nodes[at].results
            if not results or results[0] not in rule.cotangents:
                self.run.step(at, values)
        return [values[g.id] for g in rule.gradients]


def _asking_for_grad(tensor: Tensor) -> Tensor:
    """The same value, requiring grad: not a leaf, which could not be written."""
    copied: Tensor = ops.copy(tensor.requires_grad_())
    return copied


def _grad(engine: EagerEngine, node: Node, values: dict[int, Tensor]) -> list[Tensor]:
    """The gradients as tensors on bytes of their own, zero where nothing is connected."""
    outputs, seeds, wrt = ([values[v.id] for v in part] for part in grad_parts(node))
    cotangents: list[Tensor | None] = [*seeds] if seeds else [None] * len(outputs)
    roots = [(y, g) for y, g in zip(outputs, cotangents, strict=True) if engine.edge(y) is not None]
    found: list[Tensor | None] = [None] * len(wrt)
    if roots:
        ys, given = zip(*roots, strict=True)
        found = engine.grad(ys, wrt, given, retain_graph=True, create_graph=True)
    return [
        Tensor(np.zeros(x.shape, x.dtype.numpy)) if g is None else ops.copy(g)
        for x, g in zip(wrt, found, strict=True)
    ]


# ---- what is given ------------------------------------------------------------------------------


def _check_arrays(program: Program, arrays: tuple[Any, ...]) -> list[np.ndarray]:
    """The inputs as arrays in C order."""
    if len(arrays) != len(program.inputs):
        wanted = ", ".join(map(_describe, program.inputs)) or "none"
        raise TinyaotError(
            f"interpret: {program.name} has {len(program.inputs)} inputs ({wanted}), "
            f"got {len(arrays)} arrays"
        )
    return [_check_array(i, x) for i, x in zip(program.inputs, arrays, strict=True)]


_NUMBERS = {"bool": (bool,), "int": (bool, int), "float": (bool, int, float)}


def _check_array(i: Input, x: Any) -> np.ndarray:
    wanted = i.value.type
    if type(x) in _NUMBERS[wanted.dtype.kind]:
        x = np.asarray(x, wanted.dtype.numpy)
    array = np.asarray(x, order="C")
    if numpy_to_dtype(array.dtype) is not wanted.dtype:
        raise DTypeError(
            f"interpret: input {_describe(i)} was given an array of dtype {array.dtype.name}; "
            f"convert it with astype"
        )
    if array.shape != wanted.shape:
        raise ShapeError(
            f"interpret: input {_describe(i)} was given an array of shape {array.shape}; a program "
            f"has fixed shapes: reshape the array, or trace again"
        )
    return array


def _describe(i: Input) -> str:
    return f"{i.name or i.value}: {i.value.type}"
