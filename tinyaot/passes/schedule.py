"""Order the nodes so that little is alive at once.

Least-peak list scheduling: among the nodes that are ready, run next the one that leaves the least
memory alive. An order found greedily may be worse than the one the program came in, so both are
planned and the better kept: the planner's own accounting decides, not an estimate.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from tinyaot.ir import Node, Program
from tinyaot.passes.plan import plan_storages
from tinyaot.passes.regions import schedule_regions
from tinyaot.passes.storage import Storages, is_constant, raising, storages_of
from tinyaot.record import Decision


def schedule(program: Program, *, log: list[Decision] | None = None) -> Program:
    """Reorder nodes for the least planned peak.

    What it does: keeps what data demands, lets an input's overwriting wait for every reader of the
    old value and for what may raise, and runs the forward half of a joint program before the
    backward; within that, a node that frees much goes first. Chooses between the given order and
    two greedy ones.

        %2 = exp(%0)                     %2 = exp(%0)
        %3 = exp(%1)                     %4 = sum(%2)       <- frees %2
        %4 = sum(%2)             ->      %3 = exp(%1)
        %5 = sum(%3)                     %5 = sum(%3)

    Regions are put in levels instead: a region runs after what it reads and after the readers of
    what it overwrites, and those of one level run side by side.

    What to look at: how soon after its birth a large value is read for the last time.
    """
    if program.is_fused:
        return schedule_regions(program, log)
    name, arenas, _, nodes = best_order(program)
    if log is not None:
        alternatives = tuple({"order": order, "arena": arena} for order, arena in arenas.items())
        log.append(
            Decision("schedule", None, name, "least-peak", {"arena": arenas[name]}, alternatives)
        )
    return program.replace(stage="schedule", nodes=nodes)


def best_order(program: Program) -> tuple[str, dict[str, int], Program, tuple[Node, ...]]:
    """The best order's name, every order's arena, and the best one planned and as nodes."""
    graph = _Dependences(program)
    orders = {
        "given": graph.settle(range(len(program.nodes))),
        "least-growth": graph.greedy(),
        "as-late-as-possible": graph.greedy_from_the_end(),
    }
    arenas: dict[str, int] = {}
    planned: dict[str, tuple[Program, tuple[Node, ...]]] = {}
    for name, order in orders.items():
        candidate, nodes = _plan_in(program, order, graph)
        assert candidate.plan is not None
        arenas[name], planned[name] = candidate.plan.arena, (candidate, nodes)
    best = min(arenas, key=arenas.__getitem__)  # of equals the first
    return best, arenas, *planned[best]


def plan_order(program: Program) -> Program:
    """The program planned in the order it comes in (as far as dependences let it)."""
    graph = _Dependences(program)
    return _plan_in(program, graph.settle(range(len(program.nodes))), graph)[0]


def _plan_in(
    program: Program, order: Sequence[int], graph: _Dependences
) -> tuple[Program, tuple[Node, ...]]:
    nodes = tuple(program.nodes[at] for at in order)
    ordered = program.replace(stage="schedule", nodes=nodes)
    return plan_storages(ordered, graph.storages), nodes


class _Dependences:
    """Who waits for whom, by position in the given order, and what each storage weighs."""

    def __init__(self, program: Program) -> None:
        self.program, self.nodes = program, program.nodes
        self.storages: Storages = storages_of(program)
        self.joint = program.is_joint
        position = {r.id: at for at, n in enumerate(self.nodes) for r in n.results}
        self.before: list[set[int]] = [
            {position[v.id] for v in n.inputs if v.id in position} for n in self.nodes
        ]
        self.after: list[set[int]] = [set() for _ in self.nodes]
        for at, earlier in enumerate(self.before):
            for e in earlier:
                self.after[e].add(at)
        self._wait_for_readers(position)
        self._weigh()

    def half(self, at: int) -> int:
        return int(self.joint and self.nodes[at].phase == "backward")

    def _wait_for_readers(self, position: dict[int, int]) -> None:
        """The node that computes an input's new value waits for the readers of the old one, where
        no cycle forbids it: the new value can then be written in place. It waits, too, for what
        may raise: the input is then as it was."""
        given = {o.value.id for o in self.program.outputs}  # the planner will copy what they see
        readers: dict[int, set[int]] = {}
        for at, node in enumerate(self.nodes):
            if not self.storages.is_view(node) or node.results[0].id in given:
                for v in node.inputs:
                    readers.setdefault(self.storages.root[v.id], set()).add(at)
        checks = [at for at in raising(self.nodes) if not self.half(at)]
        self.updates: set[int] = set()
        for output in self.program.outputs_of("mutated"):
            update = position.get(output.value.id)
            if update is None or output.value.id == output.of:
                continue
            waits = readers.get(output.of or 0, set()) - {update}
            if waits and not waits.isdisjoint(self._reached_from(update)):
                continue
            self.updates.add(update)
            for reader in waits.union(checks).difference(self._reached_from(update), {update}):
                self.before[update].add(reader)
                self.after[reader].add(update)

    def _reached_from(self, start: int) -> set[int]:
        found, stack = set(), [start]
        while stack:
            for at in self.after[stack.pop()]:
                if at not in found:
                    found.add(at)
                    stack.append(at)
        return found

    def _weigh(self) -> None:
        """`weight[at]`: bytes of arena that the node's result takes; `reads[at]`: the storages
        that it reads and that can die."""
        nodes, root = self.nodes, self.storages.root
        kept = {root[o.value.id] for o in self.program.outputs}
        self.weight: list[int] = []
        weight_of: dict[int, int] = {}
        for node in nodes:
            weight = 0
            if not self.storages.is_view(node) and not is_constant(node):
                weight = sum(r.type.nbytes for r in node.results if r.id not in kept)
            self.weight.append(weight)
            for r in node.results:
                weight_of[r.id] = weight
        self.reads: list[list[int]] = []
        self.readers: dict[int, list[int]] = {}
        for at, node in enumerate(nodes):
            mine: list[int] = []
            if not self.storages.is_view(node):
                mine = list({root[v.id]: None for v in node.inputs if weight_of.get(root[v.id])})
            self.reads.append(mine)
            for storage in mine:
                self.readers.setdefault(storage, []).append(at)
        self.weight_of = weight_of

    # ---- orders ----

    def settle(self, preferred: Sequence[int]) -> list[int]:
        """The order nearest to `preferred` that keeps every dependence."""
        waiting = [len(b) for b in self.before]
        rank = {at: i for i, at in enumerate(preferred)}
        heap = [(self.half(at), rank[at], at) for at, w in enumerate(waiting) if not w]
        heapq.heapify(heap)
        order = []
        while heap:
            at = heapq.heappop(heap)[2]
            order.append(at)
            for later in self.after[at]:
                waiting[later] -= 1
                if not waiting[later]:
                    heapq.heappush(heap, (self.half(later), rank[later], later))
        return order

    def greedy(self) -> list[int]:
        """From the beginning: next the ready node after which the fewest bytes are alive."""
        waiting = [len(b) for b in self.before]
        left = {root: len(readers) for root, readers in self.readers.items()}
        done = [False] * len(self.nodes)

        def growth(at: int) -> int:
            return self.weight[at] - sum(self.weight_of[r] for r in self.reads[at] if left[r] == 1)

        heap = [(self.half(at), growth(at), at) for at, w in enumerate(waiting) if not w]
        heapq.heapify(heap)
        order = []
        while heap:
            _, key, at = heapq.heappop(heap)
            if done[at] or key != growth(at):
                continue  # an older entry; the right one is in the heap
            done[at] = True
            order.append(at)
            for later in self.after[at]:
                waiting[later] -= 1
                if not waiting[later]:
                    heapq.heappush(heap, (self.half(later), growth(later), later))
            for root in self.reads[at]:
                left[root] -= 1
                if left[root] == 1:  # its last reader now frees it
                    for reader in self.readers[root]:
                        if not done[reader] and not waiting[reader]:
                            heapq.heappush(heap, (self.half(reader), growth(reader), reader))
        return self._just_in_time(order)

    def greedy_from_the_end(self) -> list[int]:
        """From the end: last the node before which the fewest bytes are alive. Whatever nobody
        waits for is computed as late as it can be, recomputed values above all."""
        waiting = [len(a) for a in self.after]
        alive: set[int] = set()
        done = [False] * len(self.nodes)

        def growth(at: int) -> int:
            born = sum(self.weight_of[r] for r in self.reads[at] if r not in alive)
            return born - self.weight[at]

        heap = [(-self.half(at), growth(at), -at) for at, w in enumerate(waiting) if not w]
        heapq.heapify(heap)
        order = []
        while heap:
            _, key, at = heapq.heappop(heap)
            at = -at
            if done[at] or key != growth(at):
                continue
            done[at] = True
            order.append(at)
            for earlier in self.before[at]:
                waiting[earlier] -= 1
                if not waiting[earlier]:
                    heapq.heappush(heap, (-self.half(earlier), growth(earlier), -earlier))
            for root in self.reads[at]:
                if root not in alive:
                    alive.add(root)
                    for reader in self.readers[root]:
                        if not done[reader] and not waiting[reader]:
                            heapq.heappush(heap, (-self.half(reader), growth(reader), -reader))
        order.reverse()
        return self._just_in_time(order)

    def _just_in_time(self, order: list[int]) -> list[int]:
        """The same order with leaves and views moved to just before their first reader."""
        given = {o.value.id for o in self.program.outputs}
        lazy = [
            (self.storages.is_view(n) or not n.inputs) and n.results[0].id not in given
            for n in self.nodes
        ]
        emitted = [False] * len(self.nodes)
        result: list[int] = []

        def emit(at: int) -> None:
            stack = [at]
            while stack:
                top = stack[-1]
                pending = [b for b in self.before[top] if lazy[b] and not emitted[b]]
                if pending:
                    stack += pending
                    continue
                stack.pop()
                if not emitted[top]:
                    emitted[top] = True
                    result.append(top)

        for half in (0, 1):
            mine = [at for at in order if self.half(at) == half]
            for at in (*(at for at in mine if not lazy[at]), *mine):
                emit(at)
        return result
