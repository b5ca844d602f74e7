"""The section on Dask's own tests, of what `tools/dask_tests.py` kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

KEPT = Path(__file__).parent / "results" / "dask-tests.json"

_HEAD = """
## Dask's own tests

The tests of Dask's scheduler, client, workers and shuffle, run without the bridge and with it,
which wrote into files. None may fail that does not fail without it; what failed only with it ran
again by itself, both ways.

```console
make dask-tests DASK=PATH        # a checkout of github.com/dask/distributed, at a release
```
"""


def section() -> str:
    """Return the section; nothing if there is no result."""
    if not KEPT.exists():
        return ""
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    return "\n".join([_HEAD.rstrip("\n"), *_lines(kept)]) + "\n"


def _lines(kept: dict[str, Any]) -> Iterator[str]:
    machine = kept["machine"]
    files = kept.get("files", {})
    said = ", ".join(f"{name} {value}" for name, value in machine.items() if name != "cores")
    yield ""
    yield f"Last run: {said}, {machine['cores']} cores, beside other work."
    yield ""
    yield from _outcomes(files)
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
            "What it costs them, in CPU seconds of all their processes, in pairs with and without "
            "in turn. These tests start and close a cluster each, so this is mostly what a start "
            "and a close cost:"
        )
        yield ""
        yield "| file | pairs | without | with | with / without: median | 95% |"
        yield "|---|---|---|---|---|---|"
        for file, found in pairs.items():
            without, with_it = found["without"], found["with"]
            ratio = median(b / a for a, b in zip(without, with_it, strict=True))
            within = found["interval"]
            limits = f"{within[0]:.2f} to {within[1]:.2f}" if within else "too few pairs"
            yield (
                f"| `{file}` | {len(without)} | {median(without):.1f} s | "
                f"{median(with_it):.1f} s | {ratio:.2f} | {limits} |"
            )


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
