"""The search for a partition: choices of what to save, each judged by the plan that it leads to.

Bytes saved are only a proxy for the peak, which the order of the backward and its temporaries also
decide. So what may be chosen is planned: quickly, in the order that its program comes in, which
gives a peak that scheduling can only improve; and, where that may decide, as the pipeline will.

Under a budget there is a ladder of choices, from the fastest to the one of the least peak, by an
estimate that plans nothing. It does not depend on the budget. Bisection looks for the fastest rung
that keeps the budget, and takes a faster one only if its peak is no smaller. So a smaller budget
never leads to a larger peak, whatever the estimate is worth: where the searches for two budgets
part, a rung keeps the larger one alone, and all that this search takes from there on has at least
that rung's peak.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from tinyaot.errors import BudgetError
from tinyaot.ir import Program
from tinyaot.memory import planned_peak
from tinyaot.passes.estimate import Estimate
from tinyaot.passes.exact import least_price
from tinyaot.passes.frontier import Frontier
from tinyaot.passes.rematerialize import rematerialize
from tinyaot.passes.schedule import best_order, plan_order
from tinyaot.passes.splitgraph import PICO, Choice, SplitGraph

PeakOf = Callable[[Program], int]

CORNERS = 10  # corners of the hull that are looked at
HULL = 64  # that are estimated
RUNGS = 17  # at most, among which a budget chooses: planned are those that bisection meets
BACKEND_RUNGS = 4  # where planning takes a lowering to fused loops
MARGIN = 1.05  # scheduling lowers a quick peak by less than this factor
SMALL = 300  # nodes of a program that is scheduled at once
BETWEEN = 3  # steps between two corners, each the exact best for its bytes


@dataclass(frozen=True, eq=False)
class Candidate:
    """A choice, with the program it gives and the figures of running that.

    `gap`: by how much its price exceeds what is proved to be the least with as many bytes, in the
    objective's unit. `peak_of`: planned peak of a partitioned program; None: that of scheduling and
    planning it."""

    name: str
    graph: SplitGraph
    choice: Choice
    gap: int = 0
    peak_of: PeakOf | None = None

    @cached_property
    def program(self) -> Program:
        return rematerialize(self.graph, self.choice)

    @cached_property
    def quick_peak(self) -> int:
        """A planned peak in bytes that is no less than `peak`, found in a third of the time."""
        if self.peak_of or len(self.program.nodes) < SMALL:
            return self.peak
        return planned_peak(plan_order(self.program))

    @cached_property
    def peak(self) -> int:
        """Planned peak in bytes, after scheduling and planning as the pipeline will."""
        if self.peak_of:
            return self.peak_of(self.program)
        return planned_peak(best_order(self.program)[2])

    @property
    def seconds(self) -> float:
        """Predicted time of the whole step."""
        return self.graph.seconds(self.choice)

    @property
    def is_lowered(self) -> bool:
        """Whether `peak` is known already."""
        return "peak" in self.__dict__

    @property
    def known_peak(self) -> int:
        return self.peak if self.is_lowered else self.quick_peak


@dataclass(frozen=True)
class Found:
    """The candidate taken, all that were looked at, and the reason code."""

    chosen: Candidate
    candidates: list[Candidate]
    reason: str


class Search:
    """Candidates of a graph; each is made, and planned, once."""

    def __init__(self, graph: SplitGraph, peak_of: PeakOf | None = None) -> None:
        self.graph, self.peak_of = graph, peak_of
        self.frontier = Frontier(graph)
        self.made: dict[frozenset[int], Candidate] = {}
        self.save_all = self.candidate("save_all", graph.save_all())
        self.recompute_all = self.candidate("recompute_all", graph.recompute_all())

    def candidate(self, name: str, choice: Choice, gap: int = 0) -> Candidate:
        """That of a choice; one that was made before keeps its name."""
        if choice.saved not in self.made:
            self.made[choice.saved] = Candidate(name, self.graph, choice, gap, self.peak_of)
        return self.made[choice.saved]

    def save(self, name: str, ids: Iterable[int]) -> Candidate:
        """The candidate of saving these storages."""
        choice = self.graph.choice(ids)
        best = least_price(self.frontier, choice.bytes)
        gap = max(choice.price - best.least_price, 0) if best else 0
        return self.candidate(name, choice, gap)

    def corners(self, most_seconds: float = math.inf, count: int = CORNERS) -> list[Candidate]:
        """Saving everything, and corners of the hull spread evenly over their bytes, from the
        fastest to the slowest; none with more than `most_seconds` of recomputation."""
        frontier = self.frontier
        able = [
            at
            for at, (_, price) in enumerate(frontier.corners)
            if self.graph.seconds_of(price) <= most_seconds
        ]
        low, high = (frontier.corners[at][0] for at in (able[0], able[-1]))
        by_cell: dict[int, int] = {}
        for at in able:
            cell = (frontier.corners[at][0] - low) * (count - 1) // max(high - low, 1)
            by_cell.setdefault(cell, at)
        choices = (frontier.choice(at) for at in by_cell.values())
        found = [self.candidate("min_cut", c) for c in choices if c.cost.seconds <= most_seconds]
        unique = dict.fromkeys([self.save_all, *found])
        return sorted(unique, key=lambda c: (c.seconds, -c.choice.bytes))

    def between(self, fast: Candidate, slow: Candidate) -> list[Candidate]:
        """The best choices for some numbers of saved bytes between two candidates'."""
        low, high = slow.choice.bytes, fast.choice.bytes
        steps = (low + (high - low) * step // BETWEEN for step in range(BETWEEN - 1, 0, -1))
        found = [least_price(self.frontier, most_bytes) for most_bytes in steps]
        made = [self.candidate("min_cut", best.choice, best.gap) for best in found if best]
        return [c for c in dict.fromkeys(made) if c not in (fast, slow)]

    # ---- what to take ----

    def least_peak(self, slack: float) -> Found:
        """The least planned peak among those whose predicted step is within `slack` of the
        fastest."""
        forced = self.save_all.choice.cost.seconds  # by checkpoints
        candidates = self.corners(forced + slack * self.graph.step.seconds)
        looked = dict.fromkeys([*candidates, self.recompute_all])
        return Found(least_of(candidates), list(looked), "least-peak")

    def least_price(self, slack: float) -> Found:
        """Where fusion decides what has memory at all, a saved byte has a price, and fewer of them
        need not be a smaller peak. The least peak of those within `slack` of the fastest: planned,
        of the fastest, the fewest bytes and saving everything, where a program is planned quickly;
        else estimated."""
        graph, frontier = self.graph, self.frontier
        corners = self.corners(count=HULL)
        if graph.objective == "time":
            best = frontier.cut(Fraction(graph.rates.saved * PICO))
            corners.append(self.candidate("min_cut", best))
        fastest = min(corners, key=lambda c: c.seconds)
        limit = (1 + slack) * fastest.seconds
        for at, (nbytes, price) in enumerate(frontier.corners):
            seconds = graph.seconds_of(price) + graph.rates.saved * nbytes
            if graph.step.seconds + seconds <= limit:
                corners.append(self.candidate("min_cut", frontier.choice(at)))
                break
        able = [c for c in dict.fromkeys(corners) if c.seconds <= limit]
        chosen = fastest
        if self.peak_of and len(graph.program.nodes) < SMALL:  # a plan takes a fuse
            looked = [self.save_all, fastest, min(able, key=lambda c: c.choice.bytes)]
            for c in looked:
                if c in able and c.choice.bytes < chosen.peak:
                    chosen = min(chosen, c, key=lambda c: (c.peak, c.seconds))
        else:
            estimate = Estimate(graph)
            chosen = min(able, key=lambda c: (estimate(c.choice), c.seconds))
            looked = [self.save_all, fastest, chosen]
        reason = "fastest" if chosen is fastest else "least-peak"
        return Found(chosen, list(dict.fromkeys(looked)), reason)

    def within(self, budget: int | float) -> Found:
        """The fastest rung whose planned peak keeps the budget, or a choice between that and the
        next faster one. Raises BudgetError if there is none."""
        rungs = self.rungs()
        limit: float = budget
        if isinstance(budget, float):
            limit = rungs[-1].peak
            if budget:  # else the peak of saving everything is not asked for
                limit += budget * max(self.save_all.peak - rungs[-1].peak, 0)
        chosen = bisect(rungs, limit)
        if chosen is None:  # the estimate may be wrong
            chosen = next((c for c in self.corners() if c.peak <= limit), None)
        if chosen is None:
            least = min(c.peak for c in self.made.values() if c.is_lowered)
            raise BudgetError(
                f"memory_budget={budget}: no plan found keeps it; the least planned peak found is "
                f"{least} bytes (saving everything takes {self.save_all.peak})"
            )
        at = rungs.index(chosen) if chosen in rungs else 0
        if at and not self.peak_of:
            between = self.between(rungs[at - 1], chosen)
            chosen = next((c for c in between if chosen.peak <= c.peak <= limit), chosen)
        lowered = [c for c in self.made.values() if c.is_lowered]
        return Found(chosen, sorted(lowered, key=lambda c: c.seconds), "budget")

    def rungs(self) -> list[Candidate]:
        """From the fastest corner of the hull to the one of the least estimated peak, spread evenly
        over the estimates, which fall."""
        corners, estimate = self.corners(count=HULL), Estimate(self.graph)
        estimates = [estimate(c.choice) for c in corners]
        least = min(estimates)
        end = max(at for at, e in enumerate(estimates) if e == least)
        count = BACKEND_RUNGS if self.peak_of else RUNGS
        span, high = max(estimates[0] - least, 1), estimates[0]
        by_cell: dict[int, Candidate] = {}
        for at in range(end):
            if estimates[at] == min(estimates[: at + 1]):
                by_cell.setdefault((high - estimates[at]) * (count - 1) // span, corners[at])
        return list(dict.fromkeys([*by_cell.values(), corners[end]]))

    def preset(self, chosen: Candidate, budget: int | float | None) -> Found:
        """A choice made otherwise, beside the best with as many bytes. Raises BudgetError if it
        takes more than a budget of bytes."""
        if isinstance(budget, int) and chosen.peak > budget:
            raise BudgetError(
                f"memory_budget={budget}: the partition {chosen.name!r} takes {chosen.peak} bytes; "
                f"partition='min_cut' looks for one that keeps a budget"
            )
        best = least_price(self.frontier, chosen.choice.bytes)
        others = [self.candidate("min_cut", best.choice, best.gap)] if best else []
        looked = dict.fromkeys([self.save_all, self.recompute_all, chosen, *others])
        return Found(chosen, list(looked), "strategy")


def least_of(candidates: list[Candidate]) -> Candidate:
    """The least planned peak."""
    by_peak = sorted(candidates, key=lambda c: (c.quick_peak, c.seconds))
    least = by_peak[0]
    for candidate in by_peak:
        if candidate.quick_peak > MARGIN * least.peak:
            break
        least = min(least, candidate, key=lambda c: (c.peak, c.seconds))
    return least


def bisect(rungs: list[Candidate], limit: float) -> Candidate | None:
    """The fastest of the rungs met that keeps the limit, as the module's text says."""
    chosen = None
    first, last = 0, len(rungs) - 1
    while first < last:
        middle = (first + last - 1) // 2
        peak = rungs[middle].peak
        if peak <= limit and (chosen is None or peak >= chosen.peak):
            chosen, last = rungs[middle], middle
        else:
            first = middle + 1
    return chosen or next((c for c in rungs[-1:] if c.peak <= limit), None)
