#!/usr/bin/env python3
"""Dask's own tests with the bridge on: none may fail that does not fail without it.

`python tools/dask_tests.py PATH [FILE ...]`, with PATH a checkout of github.com/dask/distributed,
best at the release that is installed (its tests are not in its wheel). Each file runs twice,
without and with the preload, which writes into files in a temporary folder. What fails only with
it is run again by itself, both ways, so that a test that fails now and then is no verdict.

Exit status: 0 where nothing new fails and no thread of the bridge is left; 1 otherwise; 2 where the
tests could not be run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

FILES: Final = (
    "distributed/tests/test_spans.py",
    "distributed/tests/test_scheduler.py",
    "distributed/tests/test_client.py",
    "distributed/tests/test_worker.py",
    "distributed/tests/test_steal.py",
    "distributed/tests/test_actor.py",
    "distributed/tests/test_failed_workers.py",
    "distributed/tests/test_cancelled_state.py",
    "distributed/tests/test_metrics.py",
    "distributed/shuffle/tests",
    "distributed/diagnostics/tests/test_scheduler_plugin.py",
    "distributed/diagnostics/tests/test_worker_plugin.py",
    "distributed/diagnostics/tests/test_nanny_plugin.py",
)

#: Tests that fail by what they ask for, and why. By the name of the function.
EXPECTED: Final = {
    "test_quiet_client_close": "wants an empty log, and Dask logs each preload that it loads",
    "test_spans": "as the next one: an x has no annotations there, and has one with the bridge",
    "test_annotations_global_vs_local": (
        "compares a task's annotations exactly, and the bridge adds what its worker is told"
    ),
}

#: Tests in which the time may be lost that the bridge costs: beyond this they are slower.
_SLOWER: Final = 1.25
_PLUGIN: Final = "dask_tests_plugin"


class Outcomes(NamedTuple):
    """What one run of the tests came to."""

    #: ``passed``, ``failed`` or ``skipped``, by test.
    tests: dict[str, str]
    #: Names of the bridge's threads that were left at the end.
    threads: list[str]
    seconds: float
    log: Path


def main() -> int:
    """Run the tests twice, and say what is new."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("files", nargs="*", default=FILES, metavar="FILE")
    parser.add_argument("-k", dest="only", default="", help="as pytest has it")
    parser.add_argument("--keep", type=Path, help="a folder for logs and telemetry")
    args = parser.parse_args()
    checkout = args.checkout.resolve()
    if not (checkout / "distributed" / "tests").is_dir():
        print(f"{checkout} is no checkout of distributed: it has no distributed/tests")
        return 2
    known = [file for file in args.files if (checkout / file).exists()]
    for file in sorted(set(args.files) - set(known)):
        print(f"not in this release: {file}")
    with tempfile.TemporaryDirectory() as folder:
        return _compare(checkout, known, args.only, args.keep or Path(folder))


def _compare(checkout: Path, files: list[str], only: str, folder: Path) -> int:
    more = ["-k", only] if only else []
    without = _run(checkout, [*files, *more], folder, "without", bridge=False)
    with_it = _run(checkout, [*files, *more], folder, "with", bridge=True)
    for outcomes in (without, with_it):
        if not any(outcome == "passed" for outcome in outcomes.tests.values()):
            print(f"nothing passed; see {outcomes.log}:")
            print(outcomes.log.read_text(errors="replace")[-2000:])
            return 2
    suspects = _new(without, with_it)
    new = []
    for number, test in enumerate(suspects):
        # By itself: without what ran before it.
        alone = _run(checkout, [test], folder, f"again-{number}-with", bridge=True)
        plain = _run(checkout, [test], folder, f"again-{number}-without", bridge=False)
        if _new(plain, alone):
            new.append(test)
    unexpected = [test for test in new if _function(test) not in EXPECTED]
    for test in suspects:
        if test not in new:
            print(f"now and then, with it or without: {test}")
    for test in new:
        print(f"{'expected' if test not in unexpected else 'NEW FAILURE'}: {test}")
        if test not in unexpected:
            print(f"    {EXPECTED[_function(test)]}")
    for thread in with_it.threads:
        print(f"LEFT: thread {thread}")
    slower = with_it.seconds / max(without.seconds, 1e-9)
    print(
        f"{len(with_it.tests)} tests, {_count(without, 'failed')} failed without, "
        f"{_count(with_it, 'failed')} with, {len(unexpected)} new; "
        f"{without.seconds:.0f} s without, {with_it.seconds:.0f} s with"
        f"{' (SLOWER than noise?)' if slower > _SLOWER and without.seconds > 60 else ''}"
    )
    return 1 if unexpected or with_it.threads else 0


def _new(without: Outcomes, with_it: Outcomes) -> list[str]:
    """Return what passes without the bridge, and with it does not, or is not even there."""
    return [
        test
        for test, outcome in without.tests.items()
        if outcome == "passed" and with_it.tests.get(test) != "passed"
    ]


def _function(test: str) -> str:
    return test.rpartition("::")[2].partition("[")[0]


def _count(outcomes: Outcomes, what: str) -> int:
    return sum(outcome == what for outcome in outcomes.tests.values())


def _run(checkout: Path, tests: list[str], folder: Path, name: str, *, bridge: bool) -> Outcomes:
    """Run tests in a process of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    result, log = folder / f"{name}.jsonl", folder / f"{name}.log"
    result.unlink(missing_ok=True)
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("DASK_", "OTEL_", "PYTEST_"))
    }
    # The checkout's own distributed: its tests are for that one.
    path = [str(checkout), str(Path(__file__).parent), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(part for part in path if part)
    environment["DASK_TESTS_RESULT"] = str(result)
    if bridge:
        environment["DASK_DISTRIBUTED__SCHEDULER__PRELOAD"] = '["dask_otel.preload"]'
        environment["DASK_OTEL__FILES__PATH"] = str(folder / "telemetry")
    command = [sys.executable, "-m", "pytest", "-p", _PLUGIN, "-p", "no:cacheprovider", "-q"]
    with log.open("w") as output:
        subprocess.run(
            [*command, *tests],
            cwd=checkout,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    return _read(result, log)


def _read(result: Path, log: Path) -> Outcomes:
    outcomes = Outcomes({}, [], 0.0, log)
    if not result.exists():
        return outcomes
    seconds = 0.0
    for line in result.read_text().splitlines():
        entry = json.loads(line)
        seconds += entry.get("seconds", 0.0)
        outcomes.threads.extend(entry.get("threads", ()))
        if "test" in entry and outcomes.tests.get(entry["test"]) != "failed":
            outcomes.tests[entry["test"]] = entry["outcome"]
    return outcomes._replace(seconds=seconds)


if __name__ == "__main__":
    sys.exit(main())
