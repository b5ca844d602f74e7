"""Runs the scenarios that have no result for this code, and writes the pages."""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from chaos import page, ratios, results
from chaos.catalogue import SCENARIOS
from chaos.scenario import BOUNDED, BROKEN, KEPT, SHORT, SKIPPED, CannotRun, Scenario
from chaos.world import world

#: Key of the result, scenario, protocol.
Wanted: TypeAlias = tuple[str, Scenario, str]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("name", nargs="*", help="only these, whether they have a result or not")
    parser.add_argument("--again", action="store_true", help="all, also those with a result")
    parser.add_argument("--list", action="store_true", help="show what there is, and run nothing")
    parser.add_argument("--page", action="store_true", help="write the pages, and run nothing")
    parser.add_argument("--keep", type=Path, help="a folder for the logs, which stay")
    given = parser.parse_args()
    unknown = set(given.name) - SCENARIOS.keys()
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    return given


def _run(one: Scenario, protocol: str, folder: Path, code: str) -> dict[str, Any]:
    began = time.monotonic()
    cost: dict[str, Any] = {}
    verdict = BOUNDED if one.loses else KEPT
    try:
        with world(folder, protocol, one.compared) as made:
            observed = one.run(made)
            if one.compared:
                assert made.cost is not None, "it was compared with nothing"
                cost = {"cost": made.cost}
                verdict = BROKEN if made.cost["verdict"] == ratios.WORSE else verdict
    except CannotRun as reason:
        verdict, observed = SKIPPED, str(reason)
    except Exception as error:
        verdict, observed = BROKEN, " ".join(f"{type(error).__name__}: {error}".split())[:600]
    seconds = round(time.monotonic() - began, 1)
    return {"verdict": verdict, "observed": observed, "seconds": seconds, "code": code, **cost}


def _wanted(given: argparse.Namespace, results: dict[str, Any], code: str) -> Iterator[Wanted]:
    """Yield scenarios that were asked for, or have no result for this code, by their keys."""
    for one, protocol in [(s, protocol) for s in SCENARIOS.values() for protocol in s.protocols]:
        key = f"{one.name} {SHORT[protocol]}"
        before = results.get(key, {})
        done = before.get("code") == code and (not one.compared or "cost" in before)
        if one.name in given.name or (not given.name and (given.again or not done)):
            yield key, one, protocol


def main() -> int:
    """Run, print a line for each, and write JSON and pages; 1 if a promise was broken."""
    given = _arguments()
    if given.list:
        for one in SCENARIOS.values():
            print(f"{one.name:32} {one.fault}. {one.promise}.")
        return 0
    found, code = results.read(), results.code()
    # Workers import the tasks' functions from this repository.
    paths = (str(results.REPOSITORY), os.environ.get("PYTHONPATH", ""))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    # The client logs at length that its scheduler is gone.
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
    for key, one, protocol in () if given.page else _wanted(given, found["results"], code):
        with tempfile.TemporaryDirectory() as scratch:
            folder = (given.keep or Path(scratch)) / key.replace(" ", "-")
            folder.mkdir(parents=True, exist_ok=True)
            result = found["results"][key] = _run(one, protocol, folder, code)
        results.write(found)
        print(f"{key:40} {result['verdict']:8} {result['seconds']:6.1f} s  "
              f"{result['observed']}{page.cost_in_words(result)}", flush=True)  # fmt: skip
    page.write(found)
    return int(any(result["verdict"] == BROKEN for result in found["results"].values()))


if __name__ == "__main__":
    raise SystemExit(main())
