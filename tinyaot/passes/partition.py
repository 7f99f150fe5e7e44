"""Partition forward from backward: what to save, what to compute again.

The objective is declared: bytes saved, and the price of what is computed again. Minimum cuts find
the best choices for it (see `frontier`, and `exact` between them); which of these is taken the
planner's own figures decide (the peak) and the cost model's (the time): see `candidates`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from tinyaot.cost import NUMPY_RATES, Rates
from tinyaot.errors import ArgumentError, BudgetError
from tinyaot.ir import Program
from tinyaot.passes.candidates import Candidate, Found, PeakOf, Search
from tinyaot.passes.splitgraph import PICO, Choice, SplitGraph
from tinyaot.record import Decision

STRATEGIES = ("min_cut", "save_all", "recompute_all")
Strategy = Literal["min_cut", "save_all", "recompute_all"] | Callable[[Program], Iterable[int]]


def partition(
    program: Program,
    *,
    strategy: Strategy = "min_cut",
    memory_budget: int | float | None = None,
    cost: Literal["time", "flops"] = "time",
    time_slack: float = 0.05,
    rates: Rates = NUMPY_RATES,
    peak_of: PeakOf | None = None,
    log: list[Decision] | None = None,
) -> Program:
    """Decide for every forward value that the backward reads: save it, or compute it again.

    What it does: finds choices by minimum cuts, plans each, and takes the least planned peak among
    those whose predicted step is within `time_slack` of the fastest; under a `memory_budget` (an
    int: bytes; a float: 0 for the least peak found, 1 for that of saving everything) the fastest
    whose planned peak keeps it, looked for between those of the cuts too. The backward then reads
    saved values and clones of the rest. A joint program gets a `saved` output for each value that
    crosses from one half to the other.

        %2 = tanh(%1) forward               %2 = tanh(%1) forward
        ...                                 ...
        %9 = mul(%8, %2) backward     ->    %12 = tanh(%1) backward <recompute-of %2>
                                            %9 = mul(%8, %12) backward

    What to look at: the clones' origins, and in the record what each flip would have cost.

    `rates`: the machine's. Where they price saved bytes (fused code), a plan takes long: the peaks
    of large programs are estimated.
    `peak_of`: the planned peak in bytes of a program that this pass gives, for a backend with a
    plan of its own; called a few times.

    `cost`: what recomputation costs, in predicted seconds or in FLOPs. `strategy`: "save_all",
    "recompute_all", or a function that returns the ids of the values to save. Raises BudgetError
    (a ValueError) for a budget that is neither bytes nor a fraction, or that no plan found keeps.
    """
    check_options("partition", strategy, memory_budget, cost, time_slack)
    if not any(n.phase == "backward" for n in program.nodes) and not program.outputs_of("gradient"):
        return program.replace(stage="partition")
    search = Search(SplitGraph(program, cost, rates), peak_of)
    found = _choose(search, strategy, memory_budget, time_slack)
    if log is not None:
        log.append(_summary(search, found, strategy, memory_budget))
        log.append(_network(search, found.chosen.choice))
        log += explain(search.graph, found.chosen.choice, found.reason)
    return found.chosen.program


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


def _choose(search: Search, strategy: Strategy, budget: int | float | None, slack: float) -> Found:
    graph = search.graph
    if callable(strategy):
        return search.preset(search.save("function", _roots(graph, strategy)), budget)
    if strategy == "save_all":
        return search.preset(search.save_all, budget)
    if strategy == "recompute_all":
        return search.preset(search.recompute_all, budget)
    if budget is not None:
        return search.within(budget)
    return search.least_price(slack) if graph.rates.saved else search.least_peak(slack)


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
    search: Search, found: Found, strategy: Strategy, budget: int | float | None
) -> Decision:
    chosen = found.chosen
    numbers: dict[str, float] = {
        "saved_bytes": chosen.choice.bytes,
        "extra_flops": chosen.choice.cost.flops,
        "extra_seconds": chosen.choice.cost.seconds,
        "step_seconds": chosen.seconds,
    }
    if search.graph.objective == "time":
        numbers["gap_seconds"] = chosen.gap / PICO
    else:
        numbers["gap_flops"] = chosen.gap
    if (peak := _peak(chosen)) is not None:
        numbers["planned_peak"] = peak
    if budget is not None:
        numbers["budget"] = budget
    alternatives = tuple(
        {
            "name": c.name,
            "saved_bytes": c.choice.bytes,
            "planned_peak": _peak(c),
            "extra_flops": c.choice.cost.flops,
            "extra_seconds": c.choice.cost.seconds,
            "chosen": c is chosen,
            "is_exact": c.is_lowered,
        }
        for c in found.candidates
    )
    name = strategy if isinstance(strategy, str) else "function"
    return Decision("partition", None, name, found.reason, numbers, alternatives)


def _peak(candidate: Candidate) -> int | None:
    """A planned peak; of fused code, which takes the backend's own plan, one that is known."""
    if candidate.graph.rates.saved and not candidate.is_lowered:
        return None
    return candidate.known_peak


def _network(search: Search, choice: Choice) -> Decision:
    """The flow network as plain data, with its capacities, at the price of a byte for which the
    choice is the best cut or next to one; and how it cuts each storage."""
    graph = search.graph
    byte_price = float(search.frontier.byte_price(choice.bytes))
    rows = tuple(
        {
            "id": id_,
            "again": None if graph.price[id_] == math.inf else int(graph.price[id_]),
            "keep": None if id_ in graph.never_saved else byte_price * graph.size[id_],
            "users": tuple(graph.users[id_]),
            "read": id_ in graph.read,
            "cut": "keep"
            if id_ in choice.saved
            else "again"
            if id_ in choice.recomputed
            else "neither",
        }
        for id_ in graph.nodes
    )
    unit = "picoseconds" if graph.objective == "time" else "FLOPs"
    return Decision("network", None, unit, "minimum-cut", {"byte_price": byte_price}, rows)


def explain(graph: SplitGraph, choice: Choice, reason: str) -> list[Decision]:
    """One decision for each storage that the backward reads or computes again."""
    found = []
    for id_ in graph.nodes:
        if id_ in choice.saved:
            flip = graph.cost_of_recomputing(choice, id_)
            code = "compared" if id_ in graph.compared else reason
            code = "checkpoint" if id_ in graph.borders else code
            code = "overwritten" if graph.nodes[id_] is None else code
            numbers = _numbers(graph.size[id_], flip.flops, flip.seconds)
            found.append(Decision("save", id_, "save", code, numbers))
        elif id_ in choice.recomputed:
            own, flip = graph.cost[id_], graph.cost_of_saving(choice, id_)
            code = reason if own.seconds else "runs-once"
            code = "checkpoint" if id_ in graph.inside else code
            numbers = {
                **_numbers(graph.size[id_], own.flops, own.seconds),
                "flip_seconds": -flip.seconds,
                "flip_bytes": graph.size[id_],
            }
            found.append(Decision("recompute", id_, "recompute", code, numbers))
    return found


def _numbers(nbytes: int, flops: int, seconds: float) -> Mapping[str, float]:
    return {"bytes": nbytes, "flops": flops, "seconds": seconds}
