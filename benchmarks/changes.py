"""Rates of ``dask-otel history``'s alarms: ``python -m benchmarks.changes [HISTORIES] [SEED]``.

False alarms in histories of 30 runs without a change, and changes found within five runs after 25.
Duration and thread-time vary independently, as they do at worst.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

from dask_otel.report.history.changes import Trend, trends
from dask_otel.report.history.past import PastRun

#: The standard deviation of the noise.
NOISE = 0.1


def history(noise: Callable[[], float], levels: list[float]) -> list[PastRun]:
    """Return a history with these levels."""
    return [
        PastRun(
            name="etl", cluster="", trace_id="", span_id="", start=number * 3600.0,
            seconds=100.0 * level * noise(), result="success", tasks=None, failed=None,
            thread_seconds=400.0 * level * noise(), idle_seconds=None, parts={}, distributed="",
            dask_otel="", command="",
        )
        for number, level in enumerate(levels)
    ]  # fmt: skip


def trend(runs: list[PastRun]) -> Trend:
    """Return the trend of the only name."""
    (found,) = trends(runs)
    return found


def rates(histories: int, seed: int) -> dict[str, float]:
    """Return the rate of each alarm."""
    chance = random.Random(seed)
    noises = {
        "normal noise": lambda: chance.lognormvariate(0.0, NOISE),
        "noise with outliers": lambda: chance.lognormvariate(
            0.0, NOISE * (5 if chance.random() < 0.1 else 1)
        ),
    }
    found: dict[str, float] = {}
    for title, noise in noises.items():
        steady = [trend(history(noise, [1.0] * 30)) for _ in range(histories)]
        found[f"{title}: a change in 30 equal runs"] = sum(map(bool, (s.changes for s in steady)))
        found[f"{title}: a regression"] = sum(one.regression for one in steady)
        found[f"{title}: an unusual last run"] = sum(map(bool, (s.unusual for s in steady)))
        for step in (1.3, 1.2):
            runs = (history(noise, [1.0] * 25 + [step] * 5) for _ in range(histories))
            found[f"{title}: {step - 1:+.0%} found within five runs"] = sum(
                any(trend(one[:end]).regression for end in range(26, 31)) for one in runs
            )
    return {title: count / histories for title, count in found.items()}


if __name__ == "__main__":
    options = [int(text) for text in sys.argv[1:]]
    for title, rate in rates(*(options + [1000, 1][len(options) :])).items():
        print(f"{rate:8.2%}  {title}")
