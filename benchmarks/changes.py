"""Row 12, and rates of ``dask-otel history``'s alarms.

``python -m benchmarks.changes [HISTORIES] [SEED]``: false alarms in histories of 30 runs without a
change, and changes found within five runs after 25. Duration and thread-time vary independently,
as they do at worst.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.unit.report_files import span, traces

from benchmarks.results import Row, verdict
from dask_otel.report.history.changes import Trend, trends
from dask_otel.report.history.past import PastRun
from dask_otel.report.history.sessions import listing

#: The standard deviation of the noise.
NOISE = 0.1


def history(noise: Callable[[], float], levels: list[float]) -> list[PastRun]:
    """Return a history with these levels."""
    return [
        PastRun(
            name="etl", cluster="", trace_id="", span_id="", start=number * 3600.0,
            seconds=100.0 * level * noise(), result="success", tasks=None, failed=None,
            output=None, thread_seconds=400.0 * level * noise(), idle_seconds=None, parts={},
            functions={}, work={}, moved={}, steps={}, workers=None, threads=None, python="",
            distributed="", dask_otel="", command="",
        )
        for number, level in enumerate(levels)
    ]  # fmt: skip


def trend(runs: list[PastRun]) -> Trend:
    """Return the trend of the only name."""
    (found,) = trends(runs)
    return found


def rates(histories: int, seed: int) -> Iterator[tuple[str, float]]:
    """Yield the rate of each alarm, with normal noise first."""
    chance = random.Random(seed)
    noises = {
        "normal noise": lambda: chance.lognormvariate(0.0, NOISE),
        "noise with outliers": lambda: chance.lognormvariate(
            0.0, NOISE * (5 if chance.random() < 0.1 else 1)
        ),
    }
    for title, noise in noises.items():
        steady = [trend(history(noise, [1.0] * 30)) for _ in range(histories)]
        changed = sum(map(bool, (s.changes for s in steady)))
        yield f"{title}: a change in 30 equal runs", changed / histories
        yield f"{title}: a regression", sum(one.regression for one in steady) / histories
        unusual = sum(map(bool, (s.unusual for s in steady)))
        yield f"{title}: an unusual last run", unusual / histories
        for step in (1.3, 1.2):
            runs = (history(noise, [1.0] * 25 + [step] * 5) for _ in range(histories))
            found = sum(any(trend(one[:end]).regression for end in range(26, 31)) for one in runs)
            yield f"{title}: {step - 1:+.0%} found within five runs", found / histories


def listed(folder: str) -> float:
    """Return the seconds of a list of all runs below a folder."""
    began = time.perf_counter()
    listing([folder], lambda *_: None)
    return time.perf_counter() - began


def run(quick: bool) -> list[Row]:
    """Measure lists of many runs of 60 spans: unread, then from their summaries."""
    count = 100 if quick else 1000
    with TemporaryDirectory() as folder:
        for number in range(count):
            of = {"dask.span.root.id": "id-1", "dask.task.prefix": "load", "dask.task.count": 8}
            of |= {f"dask.span.activity.time.activity-{one}": 1.0 for one in range(6)}
            kinds = ["span"] * 5 + ["group"] * 25 + ["task"] * 29
            below = (span(n, f"step {n}", parent=1, kind=k, **of) for n, k in enumerate(kinds, 2))
            text = json.dumps(traces(span(1, "etl", **of), *below))
            path = Path(folder, f"nightly-{number:08}-0001-traces.jsonl")
            path.write_text(text.replace("ab" * 16, f"{number:032x}") + "\n")
        unread, known = listed(folder), listed(folder)
    what, data = f"list of {count:,} runs", {"unread": unread, "known": known, "runs": count}
    return [
        Row("12", f"{what} that have summaries", "≤ 1 s", f"{known:.2f} s", verdict(known <= 1)),
        Row("12", f"{what} of 60 spans, unread", "", f"{unread:.1f} s", "info", data),
    ]


if __name__ == "__main__":
    options = [int(text) for text in sys.argv[1:]]
    for title, rate in rates(*(options + [1000, 1][len(options) :])):
        print(f"{rate:8.2%}  {title}")
