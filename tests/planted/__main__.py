"""A table of planted causes, what the report says of each, and whether that is right.

``python -m tests.planted [--real | --unseen | --page] [--replay] [--json] [--keep FOLDER] [CASE]``
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from dask_otel import lab


def main() -> int:
    parser = argparse.ArgumentParser("tests.planted", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="these only, instead of a set")
    parser.add_argument("--real", action="store_true", help="those with real processes, too")
    parser.add_argument("--unseen", action="store_true", help="those that nobody tunes for")
    parser.add_argument("--replay", action="store_true", help="measure what the cures save")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each case")
    parser.add_argument("--page", action="store_true", help="all cases; write docs/planted.md")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="write the telemetry there")
    asked = parser.parse_args()

    from tests.planted.page import PAGE, page
    from tests.planted.recording import CASES, UNSEEN, judged

    asked_for = {**CASES, **UNSEEN} if asked.page else UNSEEN if asked.unseen else CASES
    chosen = [
        case
        for case in asked_for.values()
        if case.name in asked.cases or (not asked.cases and (asked.real or not case.real))
    ]
    if asked.keep:
        asked.keep.mkdir(parents=True, exist_ok=True)
    right, facts = 0, dict[str, dict[str, Any]]()
    for case in chosen:
        folder = asked.keep / case.name if asked.keep else Path(tempfile.mkdtemp())
        shutil.rmtree(folder, ignore_errors=True)
        began = time.perf_counter(), time.process_time()
        try:
            said, faults = judged(case, folder, replay=asked.replay)
        except Exception as error:
            said, faults = [], [f"{type(error).__name__}: {error}".splitlines()[0]]
        spent = time.perf_counter() - began[0], time.process_time() - began[1]
        right += not faults
        fact: dict[str, Any] = {"case": case.name, "kinds": case.kinds, "faults": faults}
        fact["said"] = [vars(one) for one in said]
        fact["seconds"], fact["cpu"] = spent
        facts[case.name] = fact
        if asked.json:
            print(json.dumps(fact), flush=True)
        else:
            headline = f"{said[0].kind}: {said[0].title}" if said else "nothing"
            print(
                f"{'right' if not faults else 'WRONG'} {case.name:28.28} {spent[0]:5.1f} s  "
                f"{headline}",
                flush=True,
            )
            if faults:
                print(f"      {'; '.join(faults)}")
                print("      " + ", ".join(f"{one.kind} {one.seconds:.3g} s" for one in said))
        if not asked.keep:
            shutil.rmtree(folder)
    if asked.page:
        PAGE.write_text(page(facts), encoding="utf-8")
    print(f"{right} of {len(chosen)} are right", file=sys.stderr)
    return 0


if __name__ == "__main__":
    if "PYTHONHASHSEED" not in os.environ:
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.planted", *sys.argv[1:]])
    lab.install()
    logging.disable()
    warnings.simplefilter("ignore")
    sys.exit(main())
