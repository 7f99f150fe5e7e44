"""Run many programs; print every cause of a difference once, shrunk and ready to paste."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from contextlib import nullcontext

# Programs of one worker process: what it loaded and cached goes with it. For C, also those that
# are compiled together.
CHUNK = {"numpy": 400, "c": 40}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--backend", default="numpy", choices=sorted(CHUNK))
    parser.add_argument("--poison", action="store_true", help="freed and fresh memory is NaN")
    parser.add_argument("--any-plan", action="store_true", help="fusion at random prices, for C")
    parser.add_argument("--stages", type=int, default=10, help="check the stages of every n-th")
    parser.add_argument("--each", type=int, default=2, help="failures to print of each cause")
    args = parser.parse_args()
    if args.poison:
        os.environ["TINYAOT_POISON"] = "1"
    if args.backend == "c":
        os.environ["TINYAOT_CACHE"] = "0"  # nobody runs these programs again
    from tests.any_plan import any_plan
    from tests.fuzz.worker import fuzz_chunk

    causes: Counter[str] = Counter()
    verdicts: Counter[str] = Counter()
    began = time.monotonic()
    end, size = args.seed + args.programs, CHUNK[args.backend]
    for first in range(args.seed, end, size):
        seeds = range(first, min(first + size, end))
        with any_plan() if args.any_plan else nullcontext():
            found = fuzz_chunk(args.backend, args.stages, seeds)
        for verdict, cause, text in found:
            verdicts[verdict] += 1
            if cause:
                causes[cause] += 1
                if causes[cause] <= args.each:
                    print(text, flush=True)
        print(f"{seeds.stop - args.seed} of {args.programs}", file=sys.stderr, flush=True)
    seconds = time.monotonic() - began
    print(f"{args.programs} programs in {seconds:.0f} s: {dict(verdicts)}")
    for cause, count in causes.most_common():
        print(f"{count:6d}  {cause}")
    return 1 if causes else 0


if __name__ == "__main__":
    sys.exit(main())
