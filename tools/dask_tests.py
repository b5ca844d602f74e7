#!/usr/bin/env python3
"""Dask's own tests with the bridge on: none may fail that does not fail without it.

`python tools/dask_tests.py PATH [FILE ...]`, with PATH a checkout of github.com/dask/distributed,
best at the release that is installed (its tests are not in its wheel). `make dask-tests` has an
environment for it, with the plugin that knows their marker `flaky`. Each file runs twice,
without and with the preload, which writes into files in a temporary folder. What fails only with
it is run again by itself, both ways, so that a test that fails now and then is no verdict.

`--refusing` sends to an endpoint that refuses connections instead. `--write` keeps the results,
which `docs/reliability-evidence.md` shows.

Exit status: 0 where nothing new fails and no thread of the bridge is left; 1 otherwise; 2 where the
tests could not be run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final, TypeAlias

RESULTS: Final = Path(__file__).parents[1] / "chaos" / "results" / "dask-tests.json"

FILES: Final = (
    "distributed/tests/test_spans.py",
    "distributed/tests/test_metrics.py",
    "distributed/tests/test_actor.py",
    "distributed/tests/test_steal.py",
    "distributed/tests/test_failed_workers.py",
    "distributed/tests/test_cancelled_state.py",
    "distributed/diagnostics/tests/test_scheduler_plugin.py",
    "distributed/diagnostics/tests/test_worker_plugin.py",
    "distributed/diagnostics/tests/test_nanny_plugin.py",
    "distributed/diagnostics/tests/test_install_plugin.py",
    "distributed/diagnostics/tests/test_cluster_dump_plugin.py",
    "distributed/tests/test_scheduler.py",
    "distributed/tests/test_worker.py",
    "distributed/tests/test_client.py",
    "distributed/shuffle/tests",
)

#: Tests that fail because of what they check. By the name of the function.
EXPECTED: Final = {
    "test_quiet_client_close": "wants an empty log, and Dask logs each preload that it loads",
}

_OUTCOMES: Final = ("passed", "failed", "skipped")


#: Of one run: outcomes by test (`tests`), the bridge's threads that were left at the end
#: (`threads`), versions of packages, and the CPU seconds of all processes (`cpu`).
Found: TypeAlias = dict[str, Any]


class NothingPassed(Exception):
    """No test of a file has passed; the text is the end of the log."""


class Runner:
    """Runs tests of one checkout, each time in a process of its own.

    Parameters
    ----------
    checkout
        Where the tests are.
    folder
        For logs and telemetry.
    endpoint
        Where telemetry goes; into files in the folder if there is none.
    only
        Expression that selects tests, as pytest's ``-k`` has it.
    """

    def __init__(self, checkout: Path, folder: Path, endpoint: str, only: str) -> None:
        self._checkout = checkout
        self._folder = folder
        self._only = ["-k", only] if only else []
        # The checkout's own distributed: its tests are for that one.
        path = [str(checkout), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        unwanted = ("DASK_", "OTEL_", "PYTEST_")
        self._plain = {k: v for k, v in os.environ.items() if not k.startswith(unwanted)} | {
            "PYTHONPATH": os.pathsep.join(filter(None, path))
        }
        to = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}
        if not endpoint:
            to = {"DASK_OTEL__FILES__PATH": str(folder / "telemetry")}
        self._bridged = to | {"DASK_DISTRIBUTED__SCHEDULER__PRELOAD": '["dask_otel.preload"]'}
        #: Of the packages that the last tests ran with.
        self.versions: dict[str, str] = {}

    def run(self, tests: str, name: str, *, bridge: bool) -> Found:
        """Run a file or a test; what it prints goes into a log of that name."""
        self._folder.mkdir(parents=True, exist_ok=True)
        result, log = self._folder / f"{name}.json", self._folder / f"{name}.log"
        result.unlink(missing_ok=True)
        environment = self._plain | (self._bridged if bridge else {})
        command = [
            *(sys.executable, "-m", "pytest", "-q", tests, *self._only),
            *("-p", "dask_tests_plugin", "-p", "no:cacheprovider"),
            # Or one test that hangs ends all of them.
            *("-o", "timeout_method=signal"),
        ]
        with log.open("w") as output:
            subprocess.run(
                command,
                cwd=self._checkout,
                env=environment | {"DASK_TESTS_RESULT": str(result)},
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
        found = {"tests": {}, "threads": [], "versions": self.versions, "cpu": 0.0}
        if result.exists():
            found = json.loads(result.read_text())
        if "passed" not in found["tests"].values() and "::" not in tests:
            end = log.read_text(errors="replace")[-2000:]
            raise NothingPassed(f"{tests}: nothing passed; see {log}:\n{end}")
        self.versions = found["versions"]
        return found


def main() -> int:
    """Run the tests, and print new failures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("files", nargs="*", default=FILES, metavar="FILE")
    parser.add_argument("-k", dest="only", default="", help="as pytest has it")
    parser.add_argument("--keep", type=Path, help="a folder for logs and telemetry")
    parser.add_argument("--refusing", action="store_true", help="to an endpoint that refuses")
    parser.add_argument("--write", action="store_true", help="keep the results")
    # Files may stand behind options.
    args = parser.parse_intermixed_args()
    checkout = args.checkout.resolve()
    if not (checkout / "distributed" / "tests").is_dir():
        print(f"{checkout} is no checkout of distributed: it has no distributed/tests")
        return 2
    part = "refusing" if args.refusing else "files"
    with tempfile.TemporaryDirectory() as folder, socket.socket() as nobody:
        # It has a port, and nobody listens there.
        nobody.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{nobody.getsockname()[1]}" if args.refusing else ""
        runner = Runner(checkout, args.keep or Path(folder), endpoint, args.only)
        worst = 0
        for file in args.files:
            if not (checkout / file.partition("::")[0]).exists():
                print(f"not in this release: {file}")
                continue
            try:
                found = _compare(runner, file)
            except NothingPassed as error:
                print(error, flush=True)
                worst = 2
                continue
            if found.get("new") or found.get("threads"):
                worst = max(worst, 1)
            if args.write:
                _keep(runner.versions, part, file, found)
    return worst


def _log(file: str, name: str) -> str:
    return f"{file.replace('/', '.').removesuffix('.py')}-{name}"


def _compare(runner: Runner, file: str) -> dict[str, Any]:
    """Run a file both ways."""
    without = runner.run(file, _log(file, "without"), bridge=False)
    with_it = runner.run(file, _log(file, "with"), bridge=True)
    new, expected, flaky = [], {}, []
    for number, test in enumerate(_new(without, with_it)):
        # By itself: without the tests that ran before it.
        alone = runner.run(test, _log(file, f"again-{number}-with"), bridge=True)
        plain = runner.run(test, _log(file, f"again-{number}-without"), bridge=False)
        function = test.rpartition("::")[2].partition("[")[0]
        if not _new(plain, alone):
            flaky.append(test)
        elif function in EXPECTED:
            expected[test] = EXPECTED[function]
        else:
            new.append(test)
    both = [
        {**dict.fromkeys(_OUTCOMES, 0), **Counter(one["tests"].values()), "cpu": one["cpu"]}
        for one in (without, with_it)
    ]
    counts = ["/".join(str(one[name]) for name in _OUTCOMES) for one in both]
    lines = [
        f"{file}: {counts[0]} without, {counts[1]} with; "
        f"{without['cpu']:.0f} s of CPU without, {with_it['cpu']:.0f} s with",
        *(f"    now and then, with it or without: {test}" for test in flaky),
        *(f"    expected: {test}\n        {reason}" for test, reason in expected.items()),
        *(f"    NEW FAILURE: {test}" for test in new),
        *(f"    LEFT: thread {thread}" for thread in with_it["threads"]),
    ]
    print("\n".join(lines), flush=True)
    return {
        "without": both[0],
        "with": both[1],
        "new": new,
        "expected": expected,
        "now and then": flaky,
        "threads": with_it["threads"],
    }


def _keep(versions: dict[str, str], part: str, file: str, found: dict[str, Any]) -> None:
    """Write a result beside the others, with the versions it was made with."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    results["machine"] = {
        "system": platform.system(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        **versions,
    }
    results.setdefault(part, {})[file] = found
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def _new(without: Found, with_it: Found) -> list[str]:
    """Return what passes without the bridge, and with it does not, or is not even there."""
    return [
        test
        for test, outcome in without["tests"].items()
        if outcome == "passed" and with_it["tests"].get(test) != "passed"
    ]


if __name__ == "__main__":
    sys.exit(main())
