"""Run many programs; print every cause of a difference once, shrunk and ready to paste."""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections import Counter


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--backend", default="numpy")
    parser.add_argument("--poison", action="store_true", help="freed and fresh memory is NaN")
    parser.add_argument("--stages", type=int, default=10, help="check the stages of every n-th")
    parser.add_argument("--each", type=int, default=2, help="failures to print of each cause")
    args = parser.parse_args()
    if args.poison:
        os.environ["TINYAOT_POISON"] = "1"
    from tests.fuzz.fuzz import fuzz_one, report

    warnings.simplefilter("ignore")
    causes: Counter[str] = Counter()
    verdicts: Counter[str] = Counter()
    began = time.monotonic()
    for seed in range(args.seed, args.seed + args.programs):
        verdict, failure = fuzz_one(seed, args.backend, seed % args.stages == 0)
        verdicts[verdict] += 1
        if failure is not None:
            program, difference = failure
            causes[difference.cause] += 1
            if causes[difference.cause] <= args.each:
                print(report(program, difference), flush=True)
    seconds = time.monotonic() - began
    print(f"{args.programs} programs in {seconds:.0f} s: {dict(verdicts)}")
    for cause, count in causes.most_common():
        print(f"{count:6d}  {cause}")
    return 1 if causes else 0


if __name__ == "__main__":
    sys.exit(main())
