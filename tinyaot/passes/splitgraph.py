"""What the backward wants of the forward: which storages, what they are computed from, prices.

The backward reads values of the forward. Each of them either stays in memory until then or is
computed again from what does. Both have a price: bytes kept, and the cost of every node that has to
run twice. `frontier` finds the best choices.

Prices are whole numbers (FLOPs, or picoseconds), so that sums and comparisons of choices are exact:
an optimum is one, and not one up to rounding.

Where a loop ends with a mask (`fusion.shares`), its ops cost the part that is run. What such a loop
makes has to be made whole if it is kept, which takes the other part: about as much as computing the
part again, and the bytes. So no cut saves it.

Where loops are fused, a cheap map is no choice: every loop that reads it computes it from what is
stored (`Rates.inline`), forward or backward. Such a map is not in the network; who reads it reads
what lies behind it.

What a checkpoint region computes for itself alone has an infinite price per byte, and what it
computes of that for others cannot be computed again: every choice computes the one again, from the
other. A sum that would have to come out the same to the last bit is not computed again, either.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tinyaot.cost import FREE, Cost, Rates, node_cost
from tinyaot.ir import Node, Program, Value, live_nodes
from tinyaot.ops.core import TABLE
from tinyaot.passes.fusion.shares import WHOLE, shares_of
from tinyaot.passes.mincut import INFINITY
from tinyaot.passes.storage import is_constant, storages_of

PICO = 1e12  # picoseconds in a second: the unit of prices in time


@dataclass(frozen=True)
class Choice:
    """What to save and, as it follows, what to compute again; ids are of storages.

    `bytes` are those of the saved storages, `cost` is that of everything computed again (and of
    what loops that a mask ends early run beyond it, where all they make is saved), and `price` the
    same in the objective's unit."""

    saved: frozenset[int]
    recomputed: tuple[int, ...]
    bytes: int
    cost: Cost
    price: int


class SplitGraph:
    """The forward storages that the backward may want, with their prices.

    `nodes`: id -> the node that computes it, in program order, for every storage that the backward
    reads, or would have to read to compute another one again; None for an input that is
    overwritten before the backward runs (its old value can only be saved). What is at hand anyway
    does not occur: inputs, outputs, constants.
    """

    def __init__(self, program: Program, objective: str, rates: Rates) -> None:
        self.program = program
        self.storages = storages_of(program)
        self.joint = program.is_joint
        self.forward = {
            r.id: n for n in program.nodes if n.phase in (None, "forward") for r in n.results
        }
        self.inputs = {i.value.id for i in program.inputs}
        self.overwritten = self._overwritten()
        root = self.storages.root
        given = {root[o.value.id] for o in program.outputs_of("user", "mutated")}
        self.free = (self.inputs | given) - self.overwritten
        self.rates, self.objective = rates, objective
        self.inside = self._inside_checkpoints() - self.free
        self.borders, self.compared = self._borders(), self._compared()
        self.once = self.borders | self.compared  # never computed again
        self.behind = self._behind()
        self.read = self._read_by_backward()
        self.needs = self._needs()
        order = [*(i.value.id for i in program.inputs), *self.forward]
        self.nodes = {id_: self.forward.get(id_) for id_ in order if id_ in self.needs}
        self.users: dict[int, list[int]] = {id_: [] for id_ in self.nodes}
        for user in self.nodes:
            for id_ in self.needs[user]:
                self.users[id_].append(user)
        self.size = {id_: program.values[id_].type.nbytes for id_ in self.nodes}
        self.shares = shares_of(program) if rates.inline else WHOLE
        self.wide = self.shares.wide - self.once
        self.never_saved = self.inside | self.wide  # by a best choice
        self._set_prices(objective, rates)

    def _overwritten(self) -> set[int]:
        """Inputs whose old value is lost between the halves of a joint program. In a whole step
        the planner sees every read, and keeps the old value until the last."""
        if not self.joint:
            return set()
        mutated = self.program.outputs_of("mutated")
        return {o.of for o in mutated if o.of is not None and o.value.id != o.of}

    def _inside_checkpoints(self) -> set[int]:
        """Storages made in a checkpoint region and, but by the backward, read nowhere else."""
        root = self.storages.root
        region = {
            id_: n.checkpoint[0]
            for id_, n in self.forward.items()
            if n.checkpoint and root[id_] == id_ and not is_constant(n)
        }
        inside = set(region)
        for node in self.program.nodes if region else ():
            if node.phase != "backward":
                reader = node.checkpoint[0] if node.checkpoint else None
                inside -= {root[v.id] for v in node.inputs if region.get(root[v.id]) != reader}
        return inside

    def _borders(self) -> set[int]:
        """Storages computed from what is inside a checkpoint, and not inside themselves."""
        root = self.storages.root
        inside = {id_ for id_ in root if root[id_] in self.inside} if self.inside else set()
        made = (n for n in self.forward.values() if not inside.isdisjoint(v.id for v in n.inputs))
        return {root[r.id] for n in made for r in n.results} - self.inside - self.free

    def _compared(self) -> set[int]:
        """Sums behind what the backward tests for equality, as with the greatest of a row. Loops of
        another shape add in another order: computed again, nothing might be equal to what was."""
        tests = (n for n in self.program.nodes if n.phase == "backward" and n.op in ("eq", "ne"))
        stack = [v for n in tests for v in n.inputs] if self.rates.inline else []
        seen: set[int] = set()
        sums: set[int] = set()
        while stack:
            id_ = self.storages.root[stack.pop().id]
            node = self.forward.get(id_)
            if node is None or id_ in seen:
                continue
            seen.add(id_)
            if TABLE[node.op].kind in ("dot", "scan", "scatter") or node.op in ("sum", "prod"):
                sums.add(id_)
            else:
                stack += node.inputs
        return sums - self.inside - self.free

    def _read_by_backward(self) -> set[int]:
        read: set[int] = set()
        for node in self.program.nodes:
            if node.phase not in (None, "forward"):
                read.update(self.wanted(node.inputs))
        read.update(self.wanted(o.value for o in self.program.outputs_of("gradient")))
        return read

    def _needs(self) -> dict[int, list[int]]:
        """Of each storage in question, those that it is computed from."""
        needs: dict[int, list[int]] = {}
        stack = sorted(self.read)
        while stack:
            id_ = stack.pop()
            if id_ not in needs:
                node = self.forward.get(id_)
                again = node is not None and id_ not in self.once
                needs[id_] = self.wanted(node.inputs) if node and again else []
                stack += needs[id_]
        return needs

    def _behind(self) -> dict[int, tuple[int, ...]]:
        """For each inlined map, the storages in question that its loops read."""
        behind: dict[int, tuple[int, ...]] = {}
        self.behind = behind
        seconds: dict[int, float] = {}  # an element, with the maps before it
        for id_, node in self.forward.items() if self.rates.inline else ():
            if TABLE[node.op].kind != "map" or id_ in self.free:
                continue
            if id_ in self.inside or id_ in self.once:
                continue
            roots = {self.storages.root[v.id] for v in node.inputs}
            weight = TABLE[node.op].weight * 1e-9 / self.rates.element
            total = weight + sum(seconds.get(root, 0.0) for root in roots)
            sources = self.wanted(node.inputs)
            size = self.program.values[id_].type.nbytes
            if total <= self.rates.inline and all(
                self.program.values[s].type.nbytes <= size for s in sources
            ):
                seconds[id_], behind[id_] = total, tuple(sources)
        return behind

    def wanted(self, values: Iterable[Value]) -> list[int]:
        """The storages that reading `values` takes, but for those that are at hand anyway."""
        found: dict[int, None] = {}
        for value in values:
            id_ = self.storages.root[value.id]
            node = self.forward.get(id_)
            is_forward = node is not None or id_ in self.inputs
            if id_ in self.behind:
                found.update(dict.fromkeys(self.behind[id_]))
            elif is_forward and id_ not in self.free and not (node and is_constant(node)):
                found[id_] = None
        return list(found)

    def _inlined(self, node: Node) -> list[Node]:
        """The maps that a node's loop makes anew to read them. (That of a map is the loop of who
        reads it, which may make them anyway.)"""
        found: dict[int, Node] = {}
        stack = list(node.inputs) if TABLE[node.op].kind != "map" else []
        while stack:
            id_ = self.storages.root[stack.pop().id]
            if id_ in self.behind and id_ not in found:
                found[id_] = self.forward[id_]
                stack += found[id_].inputs
        return list(found.values())

    def _set_prices(self, objective: str, rates: Rates) -> None:
        # A node that only the backward needs runs once, wherever that is.
        given = [o.value for o in self.program.outputs_of("user", "mutated")]
        forward = [n for n in self.program.nodes if n.phase in (None, "forward")]
        runs_anyway = {r.id for n in live_nodes(forward, given) for r in n.results}
        self.cost: dict[int, Cost] = {}
        self.rest: dict[int, Cost] = {}  # of what is wide: what is not run of it
        self.price: dict[int, float] = {}  # whole, or infinite
        for id_, node in self.nodes.items():
            if node is None:
                self.cost[id_], self.price[id_] = FREE, INFINITY
                continue
            cost = FREE
            if id_ in runs_anyway:
                made = [self._run_cost(n, copies=True) for n in (node, *self._inlined(node))]
                cost = sum(made, FREE)
            self.cost[id_], self.price[id_] = cost, self._price(cost)
            if id_ in self.once:
                self.price[id_] = INFINITY
            if id_ in self.wide:
                self.rest[id_] = node_cost(node, rates).part(1 - self.shares.run[id_])
        is_view = self.storages.is_view
        self.step = sum(
            (self._run_cost(n, copies=not is_view(n)) for n in self.program.nodes), FREE
        )

    def _run_cost(self, node: Node, *, copies: bool) -> Cost:
        """What is run of a node, where loops end with the tile."""
        cost = node_cost(node, self.rates, copies=copies)
        return cost.part(self.shares.run.get(node.results[0].id, 1.0)) if self.shares.run else cost

    def _price(self, cost: Cost) -> int:
        return round(cost.seconds * PICO) if self.objective == "time" else cost.flops

    # ---- choices ----

    def choice(self, saved: Iterable[int]) -> Choice:
        """The choice of saving (at most) these storages: those that nobody would read, or that a
        checkpoint keeps to itself, are left out, those that cannot be computed again added."""
        allowed, kept = (set(saved) | self.once) - self.inside, set()
        again: dict[int, None] = {}
        stack = sorted(self.read, reverse=True)
        while stack:
            id_ = stack.pop()
            if id_ in again or id_ in kept:
                continue
            if id_ in allowed or self.nodes[id_] is None:
                kept.add(id_)
            else:
                again[id_] = None
                stack += self.needs[id_]
        more = [self.rest[id_] for id_ in sorted(kept & self.wide)]
        return Choice(
            frozenset(kept),
            tuple(id_ for id_ in self.nodes if id_ in again),
            sum(self.size[id_] for id_ in kept),
            sum((self.cost[id_] for id_ in again), sum(more, FREE)),
            sum(int(self.price[id_]) for id_ in again) + sum(map(self._price, more)),
        )

    def seconds_of(self, price: int) -> float:
        """About the seconds of a price: of one in FLOPs, as long as the whole step's take."""
        if self.objective == "time":
            return price / PICO
        return price * self.step.seconds / (self.step.flops or 1)

    def seconds(self, choice: Choice) -> float:
        """Predicted time of the whole step."""
        return self.step.seconds + choice.cost.seconds + self.rates.saved * choice.bytes

    def save_all(self) -> Choice:
        """Nothing is computed twice."""
        return self.choice(self.read)

    def recompute_all(self) -> Choice:
        """Everything that can be is computed again."""
        return self.choice(())

    # ---- what the flip of one decision would cost ----

    def cost_of_recomputing(self, choice: Choice, id_: int) -> Cost:
        """The cost added if a saved storage were computed again, with all that this takes."""
        again, total, stack = set(choice.recomputed), FREE, [id_]
        while stack:
            at = stack.pop()
            if at in again or (at in choice.saved and at != id_) or self.nodes[at] is None:
                continue
            again.add(at)
            total = total + self.cost[at]
            stack += self.needs[at]
        return total

    def cost_of_saving(self, choice: Choice, id_: int) -> Cost:
        """The cost that goes away if a recomputed storage were saved: its own, and that of what
        is computed again for it alone."""
        again, total, stack = set(choice.recomputed), FREE, [id_]
        while stack:
            at = stack.pop()
            needed = at in self.read or any(user in again for user in self.users[at])
            if at not in again or (at != id_ and needed):
                continue
            again.discard(at)
            total = total + self.cost[at]
            stack += self.needs[at]
        return total
