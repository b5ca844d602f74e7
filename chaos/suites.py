"""The sections on Dask's own tests and on hostile input, made of their results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.results import table

_RESULTS = Path(__file__).parent / "results"
KEPT = _RESULTS / "dask-tests.json"
FUZZED = _RESULTS / "fuzz.json"

_HEAD = """
## Dask's own tests

The tests of Dask's scheduler, client, workers and shuffle run without the bridge and with it; the
bridge writes into files. A test that failed only with the bridge was run again by itself,
with and without it.

```console
make dask-tests DASK=PATH        # a checkout of github.com/dask/distributed, at a release
```

"""


_HOSTILE = """
## Hostile input

A coverage-guided fuzzer tries a million inputs. No exception may reach Dask; valid data in the same
batch is exported; sizes are limited; changed values are counted; no credential is shown. An input
that breaks one of these promises becomes a [test](../tests/unit/test_fuzz.py).

```console
make fuzz
```

"""

#: The input of each target.
_THROWN = {
    "spans": "tags, attributes, messages, times and redaction of spans",
    "metrics": "keys, labels and values of metrics",
    "carriers": "callers' contexts in annotations",
    "messages": "what clients send on the bridge's topic",
    "cluster": "annotations, heartbeats, events and ends of runs, through a real scheduler",
    "settings": "configuration",
    "environment": "the variables that the bridge obeys",
    "exporters": "the variables of exporters, with credentials where they belong and where not",
    "answers": "what servers answer, over HTTP and gRPC",
    "report": "files for `dask-otel report`",
    "spool": "files of a spool, and the rows in them",
    "rows": "values in the rows of a spool",
}


def sections() -> str:
    """Return the sections on Dask's own tests and on hostile input."""
    kept, fuzzed = (json.loads(path.read_text(encoding="utf-8")) for path in (KEPT, FUZZED))
    targets = [
        (f"`{name}`", _THROWN[name], f"{one['inputs']:,}", "held" if one["held"] else "broken")
        for name, one in fuzzed.items()
    ]
    hostile = table(("target", "what", "inputs", "verdict"), targets)
    return f"{_HEAD}{_dask_tests(kept)}{_HOSTILE}{hostile}"


def _dask_tests(kept: dict[str, Any]) -> str:
    machine = dict(kept["machine"])
    cores, versions = machine.pop("cores"), ", ".join(map(" ".join, machine.items()))
    text = f"Last run: {versions}, {cores} cores, beside other work.\n\n{_outcomes(kept['files'])}"
    expected = {
        f"- `{test.rpartition('::')[2].partition('[')[0]}` {reason}\n"
        for found in kept["files"].values()
        for test, reason in found["expected"].items()
    }
    if expected:
        text += "\nThese tests fail with the bridge because of what they check:\n\n"
        text += "".join(sorted(expected))
    text += "\nThe same with an endpoint that refuses connections:\n\n"
    return text + _outcomes(kept["refusing"])


def _outcomes(files: dict[str, Any]) -> str:
    columns = (
        "tests", "passed, failed, skipped without", "with", "fail only with it", "expected",
        "threads left", "CPU without", "with",
    )  # fmt: skip
    rows = [
        (
            f"`{file}`",
            _counts(found["without"]),
            _counts(found["with"]),
            ", ".join(f"`{test.rpartition('::')[2]}`" for test in found["new"]) or "none",
            len(found["expected"]),
            len(found["threads"]),
            f"{found['without']['cpu']:.0f} s",
            f"{found['with']['cpu']:.0f} s",
        )
        for file, found in files.items()
    ]
    return table(columns, rows)


def _counts(outcomes: dict[str, Any]) -> str:
    return ", ".join(str(outcomes[name]) for name in ("passed", "failed", "skipped"))
