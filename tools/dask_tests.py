#!/usr/bin/env python3
"""Dask's own tests with the bridge on: none may fail that does not fail without it.

`python tools/dask_tests.py PATH [FILE ...]`, with PATH a checkout of github.com/dask/distributed,
best at the release that is installed (its tests are not in its wheel). `make dask-tests` has an
environment for it, with the plugin that knows their marker `flaky`. Each file runs twice,
without and with the preload, which writes into files in a temporary folder. What fails only with
it is run again by itself, both ways, so that a test that fails now and then is no verdict.

`--refusing` sends to an endpoint that refuses connections instead. `--write` keeps the results,
which `docs/reliability-evidence.md` shows.

Exit status: 0 where nothing new fails and no thread of the bridge is left; 1 otherwise, and where
the tests could not be run.
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
from collections.abc import Callable
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


#: Runs a file or a test, with the bridge or without; what it prints goes into a log of that name.
Run: TypeAlias = Callable[[str, str, bool], Found]


def runner(checkout: Path, folder: Path, endpoint: str) -> Run:
    """Return what runs tests of a checkout, each time in a process of its own.

    Parameters
    ----------
    checkout
        Where the tests are.
    folder
        For logs and telemetry.
    endpoint
        Where telemetry goes; into files in the folder if there is none.
    """
    # The checkout's own distributed: its tests are for that one.
    path = [str(checkout), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    unwanted = ("DASK_", "OTEL_", "PYTEST_")
    plain = {k: v for k, v in os.environ.items() if not k.startswith(unwanted)}
    plain["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    to = {"DASK_OTEL__FILES__PATH": str(folder / "telemetry")}
    if endpoint:
        to = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}
    bridged = {**plain, **to, "DASK_DISTRIBUTED__SCHEDULER__PRELOAD": '["dask_otel.preload"]'}
    folder.mkdir(parents=True, exist_ok=True)

    def run(tests: str, name: str, bridge: bool) -> Found:
        result, log = folder / f"{name}.json", folder / f"{name}.log"
        result.unlink(missing_ok=True)
        command = [
            *(sys.executable, "-m", "pytest", "-q", tests),
            *("-p", "dask_tests_plugin", "-p", "no:cacheprovider"),
            # Or one test that hangs ends all of them.
            *("-o", "timeout_method=signal"),
        ]
        with log.open("w") as output:
            subprocess.run(
                command,
                cwd=checkout,
                env=(bridged if bridge else plain) | {"DASK_TESTS_RESULT": str(result)},
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
        found: Found = {"tests": {}}
        if result.exists():
            found = json.loads(result.read_text())
        if "passed" not in found["tests"].values() and "::" not in tests:
            sys.exit(f"{tests}: nothing passed:\n{log.read_text(errors='replace')[-2000:]}")
        return found

    return run


def main() -> int:
    """Run the tests, and print new failures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("files", nargs="*", default=FILES, metavar="FILE")
    parser.add_argument("--keep", type=Path, help="a folder for logs and telemetry")
    parser.add_argument("--refusing", action="store_true", help="to an endpoint that refuses")
    parser.add_argument("--write", action="store_true", help="keep the results")
    # Files may stand behind options.
    args = parser.parse_intermixed_args()
    checkout, wrong = args.checkout.resolve(), False
    if not (checkout / "distributed" / "tests").is_dir():
        sys.exit(f"{checkout} is no checkout of distributed: it has no distributed/tests")
    with tempfile.TemporaryDirectory() as folder, socket.socket() as nobody:
        # It has a port, and nobody listens there.
        nobody.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{nobody.getsockname()[1]}" if args.refusing else ""
        run = runner(checkout, args.keep or Path(folder), endpoint)
        for file in args.files:
            if not (checkout / file.partition("::")[0]).exists():
                print(f"not in this release: {file}")
                continue
            found, versions = _compare(run, file)
            wrong |= bool(found["new"] or found["threads"])
            if args.write:
                _keep(versions, "refusing" if args.refusing else "files", file, found)
    return int(wrong)


def _compare(run: Run, file: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Run a file both ways; return what was found, and the versions of packages."""
    name = file.replace("/", ".").removesuffix(".py")
    without, with_it = run(file, f"{name}-without", False), run(file, f"{name}-with", True)
    new, expected, flaky = [], {}, []
    for number, test in enumerate(_new(without, with_it)):
        # By itself: without the tests that ran before it.
        alone = run(test, f"{name}-again-{number}-with", True)
        plain = run(test, f"{name}-again-{number}-without", False)
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
    found = {
        "without": both[0],
        "with": both[1],
        "new": new,
        "expected": expected,
        "now and then": flaky,
        "threads": with_it["threads"],
    }
    return found, with_it["versions"]


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
