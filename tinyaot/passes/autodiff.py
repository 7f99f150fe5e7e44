"""Autodiff: the backward, written ahead of time by substituting vjp rules.

Reverse mode on SSA: walk the nodes between the inputs asked for and the outputs from the last to
the first, and let every node's vjp rule write the nodes that pull its cotangent back (the joint
graph of PyTorch's AOTAutograd; the rule table of HIPS autograd). The rules are those that the eager
tape calls, in the same order, and fan-out is summed in the same order, so both modes add the same
numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tinyaot import ops
from tinyaot.builder import Builder, Sym
from tinyaot.errors import GradError
from tinyaot.ir import Input, Node, Origin, Output, Phase, Program, Value, live_nodes, substitute
from tinyaot.ops.core import TABLE, using
from tinyaot.passes.apart import keep_apart
from tinyaot.record import Decision
from tinyaot.structural import (
    COTANGENT,
    CUSTOM,
    STRUCTURAL,
    custom_parts,
    custom_wrt,
    depending,
    grad_parts,
)


def differentiate(
    program: Program,
    *,
    cotangents: Iterable[int] | None = None,
    joint: bool | None = None,
    log: list[Decision] | None = None,
) -> Program:
    """Write the backward.

    What it does: each `grad` node is replaced, in program order, by the vjps of what its outputs
    depend on. A program without one whose outputs and inputs require grad becomes a joint graph:
    it takes a `cotangent` for each differentiable output, and gives a `gradient` for each input
    that one of them depends on (an input without has none). The rule of a `custom_vjp` node is the
    part of the program that it names, written again. Nodes get their phase. Then what means
    something to autodiff only (`detach`, `set_value`, `custom_vjp`) is removed.

    `cotangents` limits the joint graph to outputs that will have one (positions among the
    program's outputs); `joint` forces or forbids it.

        input %0: f32[2] argument "x" grad         input %0: f32[2] argument "x" grad
        %1: f32[2] = exp(%0)                       input %2: f32[2] cotangent "out"
        output user %1 "out" grad                  %1: f32[2] = exp(%0) forward
                                                   %3: f32[2] = mul(%2, %1) backward <vjp-of %1.0>
                                                   output user %1 "out" grad
                                                   output gradient %3 of %0 "x"

    What to look at: every backward node's origin names the forward value and operand whose rule
    wrote it, and its line is the forward's. The same primitives serve both directions: the
    backward of a product is two products.

    Raises GradError for a wrt or output that is not floating, and for a missing rule.
    """
    grads = [i for i, n in enumerate(program.nodes) if n.op == "grad"]
    if joint is None:
        joint = not grads
    work = _Backward(program, "forward" if joint else "backward")
    for position, node in enumerate(program.nodes):
        if node.op == "grad":
            work.expand(node)
        else:
            work.append(node, "update" if not joint and grads and position > grads[-1] else None)
    outputs = tuple(replace(o, value=work.current(o.value)) for o in program.outputs)
    seeds, gradients = _join(work, program.inputs, outputs, cotangents, log) if joint else ((), ())
    nodes, new = _without_markers(work.builder.nodes)
    after = program.replace(
        stage="autodiff",
        inputs=(*program.inputs, *seeds),
        nodes=tuple(nodes),
        outputs=tuple(
            replace(o, value=new.get(o.value.id, o.value)) for o in (*outputs, *gradients)
        ),
        next_id=work.builder.next_id,
    )
    return keep_apart(program, after)


def _join(
    work: _Backward,
    inputs: Sequence[Input],
    outputs: Sequence[Output],
    cotangents: Iterable[int] | None,
    log: list[Decision] | None,
) -> tuple[list[Input], list[Output]]:
    """The cotangent inputs and the gradient outputs of a joint graph, its backward emitted."""
    chosen = set(range(len(outputs)) if cotangents is None else cotangents)
    wrt = [i for i in inputs if i.requires_grad and i.value.type.dtype.is_floating]
    sources = [o for n, o in enumerate(outputs) if n in chosen and _is_differentiable(o)]
    if not wrt or not sources:
        return [], []
    work.builder.phase, work.builder.loc = "backward", None
    seeds = [
        Input(work.builder.fresh(o.value.type), "cotangent", o.name or f"output {n}")
        for n, o in enumerate(sources)
    ]
    pairs = [(o.value, s.value) for o, s in zip(sources, seeds, strict=True)]
    gradients = []
    for i, gradient in zip(wrt, work.sweep(pairs, [i.value for i in wrt]), strict=True):
        if gradient is not None:
            gradients.append(Output(gradient, "gradient", i.value.id, i.name))
        elif log is not None:
            log.append(Decision("gradient", i.value.id, "none", "no-path-to-an-output"))
    return seeds, gradients


def _is_differentiable(output: Output) -> bool:
    floating = output.value.type.dtype.is_floating
    return floating and output.requires_grad and output.role in ("user", "mutated")


class _Backward:
    """The program written so far, and the sweeps back through it."""

    def __init__(self, program: Program, phase: Phase) -> None:
        self.builder = Builder(program.next_id)
        self.builder.phase = phase  # of what the sweeps emit
        self.results: dict[int, Value] = {}  # results of expanded grad nodes
        self.position: dict[int, int] = {}  # of the node that makes a value
        self.paths: list[tuple[int, ...]] = []  # of each node: the operands a cotangent goes to

    def append(self, node: Node, phase: Phase | None) -> None:
        """Keep a node of the program. Its phase is forward unless it reads a gradient."""
        if phase is None:
            self._index()
            made = [self.position.get(self.current(v).id) for v in node.inputs]
            late = any(self.builder.nodes[p].phase == "backward" for p in made if p is not None)
            phase = "backward" if late else "forward"
        self.builder.nodes.append(substitute(node, self.results, phase))

    def current(self, value: Value) -> Value:
        return self.results.get(value.id, value)

    def expand(self, node: Node) -> None:
        """Replace a `grad` node: its results are, from now on, the gradients."""
        outputs, given, wrt = grad_parts(substitute(node, self.results))
        for v in (*outputs, *wrt):
            if not v.type.dtype.is_floating:
                raise GradError(f"grad: {v}: {v.type} is not floating and has no gradient")
        self.builder.loc, self.builder.checkpoint = node.loc, node.checkpoint
        with using(self.builder):
            seeds = given or [self._full(1.0, v) for v in outputs]
            gradients = self.sweep(list(zip(outputs, seeds, strict=True)), wrt)
            self.builder.loc = node.loc
            for result, v, gradient in zip(node.results, wrt, gradients, strict=True):
                self.results[result.id] = self._full(0.0, v) if gradient is None else gradient

    def _full(self, number: float, like: Value) -> Value:
        self.builder.origin = (Origin("vjp-of", like.id),)
        made: Sym = ops.full(value=number, shape=like.type.shape, dtype=like.type.dtype)
        return made.value

    def sweep(self, seeds: list[tuple[Value, Value]], wrt: Sequence[Value]) -> list[Value | None]:
        """The gradient of each of `wrt` (None: nothing flows to it), given pairs of an output and
        its cotangent."""
        self._index()
        nodes = self.builder.nodes
        active, order = self._between([v for v, _ in seeds], wrt)
        total: dict[int, Value] = {}
        with using(self.builder):
            for output, cotangent in seeds:
                if output.id in active:
                    self.builder.origin = (Origin("vjp-of", output.id),)
                    self._arrive(total, output, cotangent)
            for position in reversed(order):
                node = nodes[position]
                if node.op == CUSTOM:
                    self._pull_custom(node, total, active)
                    continue
                cotangent_ = total.get(node.result.id)
                if cotangent_ is None:
                    continue
                for operand in self.paths[position]:
                    target = node.inputs[operand]
                    if target.id not in active:
                        continue
                    contribution = self._pull(node, operand, cotangent_)
                    if contribution is not None:
                        self._arrive(total, target, contribution)
        return [total.get(v.id) for v in wrt]

    def _between(self, outputs: list[Value], wrt: Sequence[Value]) -> tuple[set[int], list[int]]:
        """The values on a path from wrt to the outputs (or beyond), and the nodes on them."""
        found: set[int] = set()
        stack = [self.position[v.id] for v in outputs if v.id in self.position]
        while stack:
            position = stack.pop()
            if position in found:
                continue
            found.add(position)
            operands = self.builder.nodes[position].inputs
            made = (self.position.get(operands[i].id) for i in self.paths[position])
            stack.extend(p for p in made if p is not None)
        active = {v.id for v in wrt}
        order = []
        for position in sorted(found):
            node = self.builder.nodes[position]
            if any(node.inputs[i].id in active for i in self.paths[position]):
                active.update(r.id for r in node.results)
                order.append(position)
        return active, order

    def _index(self) -> None:
        """Take note of the nodes that were added since the last sweep."""
        for position in range(len(self.paths), len(self.builder.nodes)):
            node = self.builder.nodes[position]
            self.paths.append(paths(node))
            for result in node.results:
                self.position[result.id] = position

    def _arrive(self, total: dict[int, Value], target: Value, contribution: Value) -> None:
        """Add a contribution to what has arrived at `target`."""
        have = total.get(target.id)
        if have is not None:
            summed: Sym = ops.add(Sym(have), Sym(contribution))
            contribution = summed.value
        total[target.id] = contribution

    def _pull(self, node: Node, operand: int, cotangent: Value) -> Value | None:
        """What the rule of one operand makes of the result's cotangent."""
        self.builder.loc = node.loc
        self.builder.origin = (Origin("vjp-of", node.result.id, operand),)
        operands = [Sym(v) for v in node.inputs]
        g, y = Sym(cotangent), Sym(node.result)
        made: Sym | None = ops.pull(TABLE[node.op], operand, g, y, operands, node.attrs)
        if made is None:
            return None
        target, value = node.inputs[operand], made.value
        if value.type != target.type:
            raise GradError(
                f"{node.op}: the vjp rule of operand {operand} gave {value.type}, but a gradient "
                f"has its operand's type, {target.type}"
            )
        return value

    def _pull_custom(self, node: Node, total: dict[int, Value], active: set[int]) -> None:
        """Write a custom rule for the cotangents that arrived, zeros for those that did not."""
        rule = custom_parts(node)
        if not any(r.id in total for r in node.results):
            return
        self.builder.loc = node.loc
        new = {
            seed.id: total[r.id] if r.id in total else self._full(0.0, r)
            for seed, r in zip(rule.cotangents, node.results, strict=True)
        }
        first = min(self.position[seed.id] for seed in rule.cotangents)
        inside = self.builder.nodes[first + 1 : self.position[node.results[0].id]]
        pairs = [(x, g) for x, g in zip(rule.wrt, rule.gradients, strict=True) if x.id in active]
        for made in live_nodes(depending(inside, rule.cotangents), (g for _, g in pairs)):
            results = tuple(self.builder.fresh(r.type) for r in made.results)
            new.update((r.id, v) for r, v in zip(made.results, results, strict=True))
            again = replace(
                substitute(made, new),
                results=results,
                phase=self.builder.phase,
                origin=(*made.origin, Origin("vjp-of", node.results[0].id)),
                checkpoint=self.builder.checkpoint,
            )
            self.builder.nodes.append(again)
        for x, g in pairs:
            self._arrive(total, x, new.get(g.id, g))


def paths(node: Node) -> tuple[int, ...]:
    """The operands that the node's cotangent goes on to: floating ones that have a rule."""
    if node.op in STRUCTURAL:
        return tuple(custom_wrt(node)) if node.op == CUSTOM else ()
    rules = TABLE[node.op].vjp
    if rules is None or not all(r.type.dtype.is_floating for r in node.results):
        return ()
    floating = (i for i, v in enumerate(node.inputs) if v.type.dtype.is_floating)
    if callable(rules):
        return tuple(floating)
    return tuple(i for i in floating if i >= len(rules) or rules[i] is not None)


def _without_markers(nodes: Iterable[Node]) -> tuple[list[Node], Mapping[int, Value]]:
    """The nodes without `detach(x)` (it is x), `set_value(old, new)` (it is new) and `custom_vjp`
    (the values that it gives) with its rule, and what stands for their results."""
    new: dict[int, Value] = {}
    kept = []
    idle: set[int] = set()  # what rules compute with no cotangent
    for node in nodes:
        node = substitute(node, new)
        if node.op in ("detach", "set_value"):
            new[node.result.id] = node.inputs[-1]
        elif node.op == CUSTOM:
            given = custom_parts(node).outputs
            new.update((r.id, v) for r, v in zip(node.results, given, strict=True))
        elif node.op == COTANGENT or (idle and any(v.id in idle for v in node.inputs)):
            idle.update(r.id for r in node.results)
        else:
            kept.append(node)
    return kept, new
