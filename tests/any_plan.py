"""Every plan that fusion may make is right, and not only the cheapest: here chance sets the prices.

What fuses with what, which loops tile a region and how large its tiles are follows from prices, and
programs small enough to be tried by thousands all get much the same plan, most often one tile a
thread. With prices and tiles drawn at random, they get the plans of large programs, and others that
no price would choose. The draws follow from the program, so a failure fails again.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from tinyaot.ir import Program
from tinyaot.passes.fusion import model, plan, regions
from tinyaot.passes.fusion.graph import Graph
from tinyaot.passes.fusion.labels import Atom
from tinyaot.passes.fusion.machine import Machine
from tinyaot.passes.fusion.op import Op
from tinyaot.text import print_program

POWER = 6.0  # of two, that a price is multiplied by at most


@contextmanager
def any_plan(threads: Sequence[int] = (1, 2, 3), seed: int = 0) -> Iterator[None]:
    """Programs that are fused meanwhile get some plan, for one of these numbers of threads."""
    rng = random.Random()
    best_block, region_ns, op_ns = model.best_block, model.region_ns, model.op_ns

    def off(ns: Any) -> Any:
        return ns * 2 ** rng.uniform(0, POWER)

    def some_block(
        g: Graph,
        members: Collection[Op],
        kind: Mapping[Op, str],
        tile: Sequence[Atom],
        threads: int,
        limits: Mapping[Atom, Atom] | None = None,
    ) -> tuple[float, dict[Atom, int]]:
        ns, block = best_block(g, members, kind, tile, threads, limits)
        if tile:
            cut = rng.randrange(len(tile))
            sizes = [1] * cut + [a.size for a in tile[cut:]]
            few = [s for s in model.block_sizes(tile[cut].size, threads) if s > 1 or not cut]
            sizes[cut] = rng.choice(few or [tile[cut].size])
            if math.prod(sizes) <= model.MAX_ROWS:
                block = dict(zip(tile, sizes, strict=True))
        return off(ns), block

    def some_plan(program: Program, most: int, machine: Machine) -> plan.FusionPlan:
        rng.seed(zlib.crc32(print_program(program).encode()) + seed)
        return plan.plan_among(program, (rng.choice(threads),), machine)

    with (
        mock.patch.object(regions, "best_block", some_block),
        mock.patch.object(plan, "best_block", some_block),
        mock.patch.object(regions, "region_ns", lambda *a, **k: off(region_ns(*a, **k))),
        mock.patch.object(regions, "op_ns", lambda *a, **k: off(op_ns(*a, **k))),
        mock.patch("tinyaot.passes.fuse.plan_fusion", some_plan),
    ):
        yield
