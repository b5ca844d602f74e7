"""The sections on Dask's own tests and on hostile input, of what these kept of their runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

_RESULTS = Path(__file__).parent / "results"
KEPT = _RESULTS / "dask-tests.json"
FUZZED = _RESULTS / "fuzz.json"

_HEAD = """
## Dask's own tests

The tests of Dask's scheduler, client, workers and shuffle, run without the bridge and with it,
which wrote into files. None may fail that does not fail without it; what failed only with it ran
again by itself, both ways.

```console
make dask-tests DASK=PATH        # a checkout of github.com/dask/distributed, at a release
```
"""


_HOSTILE = """
## Hostile input

A fuzzer that goes by coverage, and a million inputs: nothing may be raised into Dask, what is right
in the same batch is exported, sizes are capped, what is changed is counted, no credential is shown.
What it finds becomes a [test](../tests/unit/test_fuzz.py), which runs each target on a few bytes.

```console
make fuzz
```
"""

#: Files that take long, and are named where they have no result.
_LONG = ("distributed/tests/test_client.py", "distributed/shuffle/tests/test_rechunk.py")

#: What is thrown at each target.
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
}


def sections() -> str:
    """Return the sections of which there are results."""
    found = ""
    if KEPT.exists():
        kept = json.loads(KEPT.read_text(encoding="utf-8"))
        found += "\n".join([_HEAD.rstrip("\n"), *_lines(kept)]) + "\n"
    if FUZZED.exists():
        fuzzed = json.loads(FUZZED.read_text(encoding="utf-8"))
        found += "\n".join([_HOSTILE.rstrip("\n"), *_targets(fuzzed)]) + "\n"
    return found


def _targets(fuzzed: dict[str, Any]) -> Iterator[str]:
    yield ""
    yield "| target | what | inputs | verdict |"
    yield "|---|---|---|---|"
    for name, found in fuzzed.items():
        verdict = "held" if found["held"] else "broken"
        yield f"| `{name}` | {_THROWN.get(name, '')} | {found['inputs']:,} | {verdict} |"


def _lines(kept: dict[str, Any]) -> Iterator[str]:
    machine = kept["machine"]
    files = kept.get("files", {})
    said = ", ".join(f"{name} {value}" for name, value in machine.items() if name != "cores")
    yield ""
    yield f"Last run: {said}, {machine['cores']} cores, beside other work."
    yield ""
    yield from _outcomes(files)
    if missing := [f"`{file}`" for file in _LONG if file not in files]:
        yield ""
        yield f"Without a result of this version yet: {', '.join(missing)}."
    reasons = {
        test.rpartition("::")[2].partition("[")[0]: reason
        for found in files.values()
        for test, reason in found["expected"].items()
    }
    if reasons:
        yield ""
        yield "Expected to fail, by what they ask for:"
        yield ""
        yield from (f"- `{test}` {reason}" for test, reason in sorted(reasons.items()))
    if refusing := kept.get("refusing"):
        yield ""
        yield "The same with an endpoint that refuses connections:"
        yield ""
        yield from _outcomes(refusing)
    if pairs := kept.get("pairs"):
        yield ""
        yield (
            "What it costs them, in seconds and in CPU seconds of all their processes, in pairs "
            "with and without in turn; behind, the median of the pairs' ratios, with an interval "
            "(95 %). Most tests start and close a cluster of their own; that is what is seen "
            "here: about 0.01 to 0.02 s a cluster, for threads, the part that goes to each worker "
            "and the last export, and 0.2 to 0.3 s once in each process with a scheduler, which "
            "imports OpenTelemetry's SDK:"
        )
        yield ""
        yield "| file | pairs | seconds | with / without | CPU | with / without |"
        yield "|---|---|---|---|---|---|"
        for file, found in pairs.items():
            said = f"{_pair(found['elapsed'])} | {_pair(found)}"
            yield f"| `{file}` | {len(found['with'])} | {said} |"


def _pair(found: dict[str, Any]) -> str:
    without, with_it, within = found["without"], found["with"], found["interval"]
    ratio = median(b / a for a, b in zip(without, with_it, strict=True))
    limits = f"{within[0]:.2f} to {within[1]:.2f}" if within else "too few pairs"
    return f"{median(without):.1f} s, {median(with_it):.1f} s | {ratio:.2f} ({limits})"


def _outcomes(files: dict[str, Any]) -> Iterator[str]:
    yield (
        "| tests | passed, failed, skipped without | with | fail only with it | expected | "
        "threads left | CPU without | with |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for file, found in files.items():
        without, with_it = found["without"], found["with"]
        new = ", ".join(f"`{test.rpartition('::')[2]}`" for test in found["new"]) or "none"
        yield (
            f"| `{file}` | {_counts(without)} | {_counts(with_it)} | {new} | "
            f"{len(found['expected'])} | {len(found['threads'])} | {without['cpu']:.0f} s | "
            f"{with_it['cpu']:.0f} s |"
        )


def _counts(outcomes: dict[str, Any]) -> str:
    return ", ".join(str(outcomes[what]) for what in ("passed", "failed", "skipped"))
