"""Runs random programs against the truth: ``python -m tests.simulated FIRST [LAST]``.

Prints the smallest part of each program that fails. The order of sets of texts is fixed, so that a
seed is the same history each time; ``PYTHONHASHSEED=1`` is another one.
"""

from __future__ import annotations

import logging
import os
import sys
import time

from dask_otel import lab

if __name__ == "__main__":
    if "PYTHONHASHSEED" not in os.environ:
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulated", *sys.argv[1:]])
    lab.install()
    logging.disable()
    from tests.simulated.histories import faults

    first = int(sys.argv[1])
    seeds = range(first, int(sys.argv[2]) if len(sys.argv) > 2 else first + 1)
    began, found = time.process_time(), 0
    for seed in seeds:
        for fault in faults([seed]):
            found += 1
            print(fault, flush=True)
    spent = (time.process_time() - began) / len(seeds)
    print(f"{found} of {len(seeds)} histories are wrong; {spent:.2f} s of CPU for each")
    sys.exit(min(found, 1))
