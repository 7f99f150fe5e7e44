"""Partition forward from backward: what to save, what to compute again.

Candidates come from minimum cuts (see `splitgraph`), but bytes saved are only a proxy: what counts
is the planned peak, which the order of the backward and its temporaries also decide. So every
candidate is scheduled and planned as it would run, and the choice is made by the planner's own
figures (the peak) and the cost model's (the time).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from tinyaot.cost import NUMPY_RATES, Rates
from tinyaot.errors import ArgumentError, BudgetError
from tinyaot.ir import Program
from tinyaot.memory import planned_peak
from tinyaot.passes.rematerialize import rematerialize
from tinyaot.passes.schedule import best_order, plan_order
from tinyaot.passes.splitgraph import Choice, SplitGraph
from tinyaot.record import Decision

STRATEGIES = ("min_cut", "save_all", "recompute_all")
Strategy = Literal["min_cut", "save_all", "recompute_all"] | Callable[[Program], Iterable[int]]

CUTS = 12  # minimum cuts that a partition may take
LOWERED = (
    3  # choices that are scheduled in full to find the least peak; the others are only planned
)


def partition(
    program: Program,
    *,
    strategy: Strategy = "min_cut",
    memory_budget: int | float | None = None,
    cost: Literal["time", "flops"] = "time",
    time_slack: float = 0.05,
    rates: Rates = NUMPY_RATES,
    log: list[Decision] | None = None,
) -> Program:
    """Decide for every forward value that the backward reads: save it, or compute it again.

    What it does: finds choices by minimum cuts, plans each, and takes the least planned peak among
    those whose predicted step is within `time_slack` of the fastest; under a `memory_budget` (an
    int: bytes; a float: 0 for the least peak found, 1 for that of saving everything) the fastest
    whose planned peak keeps it. The backward then reads saved values and clones of the rest. A
    joint program gets a `saved` output for each value that crosses from one half to the other.

        %2 = tanh(%1) forward               %2 = tanh(%1) forward
        ...                                 ...
        %9 = mul(%8, %2) backward     ->    %12 = tanh(%1) backward <recompute-of %2>
                                            %9 = mul(%8, %12) backward

    What to look at: the clones' origins, and in the record what each flip would have cost.

    `rates`: the machine's. Where they price saved bytes (fused code), the choice is the fewest
    saved bytes instead of the least planned peak.

    `cost`: what recomputation costs, in predicted seconds or in FLOPs. `strategy`: "save_all",
    "recompute_all", or a function that returns the ids of the values to save. Raises BudgetError
    (a ValueError) for a budget that is none, or that no plan found keeps.
    """
    check_options("partition", strategy, memory_budget, cost, time_slack)
    if not any(n.phase == "backward" for n in program.nodes) and not program.outputs_of("gradient"):
        return program.replace(stage="partition")
    graph = SplitGraph(program, cost, rates)
    candidates, chosen, reason = _choose(graph, strategy, memory_budget, time_slack)
    if log is not None:
        log.append(_summary(candidates, chosen, strategy, memory_budget, reason))
        log += explain(graph, chosen.choice, reason)
    return chosen.program


def check_options(op: str, strategy: Any, memory_budget: Any, cost: Any, time_slack: Any) -> None:
    """ArgumentError or BudgetError for options that are none; `op` is whose they are."""
    if not (callable(strategy) or strategy in STRATEGIES):
        raise ArgumentError(
            f"{op}: there is no strategy {strategy!r}: use {', '.join(map(repr, STRATEGIES))}, or "
            f"a function (Program) -> set of the ids of values to save"
        )
    if cost not in ("time", "flops"):
        raise ArgumentError(f"{op}: cost is 'time' or 'flops', got {cost!r}")
    if isinstance(time_slack, bool) or not (
        isinstance(time_slack, (int, float)) and 0 <= time_slack < math.inf
    ):
        raise ArgumentError(f"{op}: time_slack is a finite number >= 0, got {time_slack!r}")
    if memory_budget is not None:
        check_budget(memory_budget)


def check_budget(budget: Any) -> None:
    """BudgetError unless `budget` is a number of bytes (int) or a fraction (float, 0 to 1)."""
    if isinstance(budget, bool) or not isinstance(budget, (int, float)):
        problem = f"got {budget!r}, a {type(budget).__name__}"
    elif isinstance(budget, int):
        problem = f"{budget} is negative" if budget < 0 else ""
    else:
        problem = "" if 0 <= budget <= 1 else f"{budget!r} is no fraction from 0.0 to 1.0"
    if problem:
        raise BudgetError(
            f"memory_budget: {problem}; give an int of bytes, a float from 0.0 (the least peak "
            f"found) to 1.0 (that of saving everything), or None"
        )


# ---- candidates ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """A choice, with the program it gives and the figures of running that."""

    name: str
    graph: SplitGraph
    choice: Choice

    @cached_property
    def program(self) -> Program:
        return rematerialize(self.graph, self.choice)

    @cached_property
    def as_given(self) -> int:
        """Planned peak in bytes in the order that the program comes in: no less than `peak`, and
        found in a third of the time."""
        return planned_peak(plan_order(self.program))

    @cached_property
    def peak(self) -> int:
        """Planned peak in bytes, after scheduling and planning as the pipeline will."""
        return planned_peak(best_order(self.program)[2])

    @property
    def seconds(self) -> float:
        """Predicted time of the whole step."""
        return self.graph.seconds(self.choice)

    @property
    def is_lowered(self) -> bool:
        """Whether `peak` is known already."""
        return "peak" in self.__dict__

    def keeps(self, budget: float) -> bool:
        return self.as_given <= budget or self.peak <= budget


def least_of(candidates: list[Candidate]) -> Candidate:
    """The least planned peak, looked for among those that are least as given."""
    promising = sorted(candidates, key=lambda c: (c.as_given, c.seconds))[:LOWERED]
    return min(promising, key=lambda c: (c.peak, c.seconds))


def _choose(
    graph: SplitGraph, strategy: Strategy, budget: int | float | None, slack: float
) -> tuple[list[Candidate], Candidate, str]:
    """All candidates looked at, the one taken, and the reason code."""
    save_all = Candidate("save_all", graph, graph.save_all())
    if strategy == "min_cut" and budget is None and graph.rates.saved:
        return _fewest_bytes(graph, save_all, slack)
    if callable(strategy):
        candidates = [Candidate("function", graph, graph.choice(_roots(graph, strategy)))]
    elif strategy == "save_all":
        candidates = [save_all]
    elif strategy == "recompute_all":
        candidates = [Candidate("recompute_all", graph, graph.recompute_all())]
    else:
        limit = math.inf if budget is not None else slack * graph.step.seconds
        hull = [Candidate("min_cut", graph, c) for c in graph.hull(CUTS, limit)]
        candidates = [save_all]
        candidates += [
            c
            for c in hull
            if c.choice.saved != save_all.choice.saved and c.choice.cost.seconds <= limit
        ]
    if budget is not None:
        return candidates, _within(budget, candidates, save_all), "budget"
    if strategy == "min_cut":
        return candidates, least_of(candidates), "least-peak"
    return candidates, candidates[0], "strategy"


def _fewest_bytes(
    graph: SplitGraph, save_all: Candidate, slack: float
) -> tuple[list[Candidate], Candidate, str]:
    """Where fusion decides what has memory at all, no plan of single nodes tells the peak: the
    fewest saved bytes among the choices within `slack` of the fastest."""
    corners = [save_all.choice, *graph.hull(CUTS), graph.cut(graph.rates.saved)]
    fastest = min(corners, key=graph.seconds)
    limit = (1 + slack) * graph.seconds(fastest)
    least = min((c for c in corners if graph.seconds(c) <= limit), key=lambda c: c.bytes)
    found = {c.saved: Candidate("min_cut", graph, c) for c in (fastest, least)}
    found[save_all.choice.saved] = save_all
    return list(found.values()), found[least.saved], "fewest-bytes"


def _within(budget: int | float, candidates: list[Candidate], save_all: Candidate) -> Candidate:
    """The fastest candidate whose planned peak keeps the budget."""
    limit: float = budget
    if isinstance(budget, float):
        least = min(c.peak for c in candidates)
        limit = least + budget * max(save_all.peak - least, 0)
    for candidate in sorted(candidates, key=lambda c: c.seconds):
        if candidate.keeps(limit):
            return candidate
    least = min(c.peak for c in candidates)
    raise BudgetError(
        f"memory_budget={budget}: no plan found keeps it; the least planned peak found is {least} "
        f"bytes (saving everything takes {save_all.peak})"
    )


def _roots(graph: SplitGraph, strategy: Callable[[Program], Iterable[int]]) -> set[int]:
    found = strategy(graph.program)
    if not isinstance(found, Iterable):
        raise ArgumentError(
            f"partition: the function given must return a set of value ids, got {found!r}"
        )
    ids = set(found)
    unknown = sorted(map(str, ids - set(graph.program.values)))
    if unknown:
        raise ArgumentError(
            f"partition: the function given saves {', '.join(unknown)}, which the program "
            f"{graph.program.name} has not; ids are the numbers in program.values"
        )
    return {graph.storages.root[id_] for id_ in ids}


# ---- the record ---------------------------------------------------------------------------------


def _summary(
    candidates: list[Candidate],
    chosen: Candidate,
    strategy: Strategy,
    budget: int | float | None,
    reason: str,
) -> Decision:
    alternatives = tuple(
        {
            "name": c.name,
            "saved_bytes": c.choice.bytes,
            "planned_peak": c.peak if c.is_lowered else c.as_given,
            "extra_flops": c.choice.cost.flops,
            "extra_seconds": c.choice.cost.seconds,
            "chosen": c is chosen,
        }
        for c in candidates
    )
    numbers: dict[str, float] = {
        "saved_bytes": chosen.choice.bytes,
        "planned_peak": chosen.peak,
        "extra_flops": chosen.choice.cost.flops,
        "extra_seconds": chosen.choice.cost.seconds,
        "step_seconds": chosen.seconds,
    }
    if budget is not None:
        numbers["budget"] = budget
    name = strategy if isinstance(strategy, str) else "function"
    return Decision("partition", None, name, reason, numbers, alternatives)


def explain(graph: SplitGraph, choice: Choice, reason: str) -> list[Decision]:
    """One decision for each storage that the backward reads or computes again."""
    found = []
    for id_ in graph.nodes:
        if id_ in choice.saved:
            flip = graph.cost_of_recomputing(choice, id_)
            code = "overwritten" if graph.nodes[id_] is None else reason
            numbers = _numbers(graph.size[id_], flip.flops, flip.seconds)
            found.append(Decision("save", id_, "save", code, numbers))
        elif id_ in choice.recomputed:
            own, flip = graph.cost[id_], graph.cost_of_saving(choice, id_)
            code = reason if own.seconds else "runs-once"
            numbers = {
                **_numbers(graph.size[id_], own.flops, own.seconds),
                "flip_seconds": -flip.seconds,
                "flip_bytes": graph.size[id_],
            }
            found.append(Decision("recompute", id_, "recompute", code, numbers))
    return found


def _numbers(nbytes: int, flops: int, seconds: float) -> Mapping[str, float]:
    return {"bytes": nbytes, "flops": flops, "seconds": seconds}
