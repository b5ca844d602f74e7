"""Flame graphs for the page's script: a tree as rows, packed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from dask_otel import semconv
from dask_otel.core.profiles.stacks import Frame, Stack
from dask_otel.core.sums import summed
from dask_otel.core.traces.values import coverage
from dask_otel.report.page.payload import pack
from dask_otel.report.profiles import (
    Seconds,
    cautions,
    merged,
    ran_in_threads,
    seconds_of,
    spans_of,
)
from dask_otel.report.telemetry.model import Session

#: The smallest share of all time that has a row.
_SMALLEST: Final = 1 / 2000
_CPU: Final = ("thread-cpu", "thread-noncpu")


@dataclass
class _Box:
    """A frame of the tree: its microseconds now and before, its own now by line, its callees."""

    now: int = 0
    before: int = 0
    own: Counter[int] = field(default_factory=Counter)
    callees: dict[Frame, _Box] = field(default_factory=lambda: defaultdict(_Box))

    def rows(self, least: float, depth: int = 0) -> Iterator[tuple[Frame, list[int]]]:
        """Yield the frames that are wide enough, the widest first, with their numbers."""
        for frame, box in sorted(self.callees.items(), key=lambda item: -item[1].now):
            if box.now >= least:
                line = max(box.own, key=box.own.__getitem__, default=0)
                yield frame, [depth, box.now, box.own.total(), line, box.before]
                yield from box.rows(least, depth + 1)


def flame(session: Session) -> dict[str, Any] | None:
    """Return the template's values of the flame graph of a run; None without profiles.

    They are the script's data, the sampled seconds, their share of the threads', and the gaps.
    """
    found = spans_of(session.profiles)
    if not found:
        return None
    seconds, ran = seconds_of(found), ran_in_threads(session.of_type("span"))
    return {
        "packed": _tree(merged(found), cpu=_cpu(session)),
        "seconds": seconds,
        "coverage": coverage(seconds, ran),
        "cautions": [*cautions(session.profiles)],
    }


def growth(before: Seconds, after: Seconds) -> str:
    """Return the script's data of the run after, with the seconds before of each function."""
    now, old = (
        Counter({stack: round(1e6 * seconds) for stack, seconds in side.items()})
        for side in (after, before)
    )
    return _tree(now, old, compared=True)


def _tree(now: Counter[Stack], before: Counter[Stack] | None = None, **more: Any) -> str:
    whole, frames, before = _Box(), dict[Frame, int](), before or Counter()
    for stack in {**now, **before}:
        *outer, inner = stack
        path = [whole]
        for frame in (*outer, inner._replace(at=0)):
            path.append(path[-1].callees[frame])
        for box in path:
            box.now += now[stack]
            box.before += before[stack]
        path[-1].own[inner.at or inner.line] += now[stack]
    rows = [
        [frames.setdefault(frame, len(frames)), *numbers]
        for frame, numbers in whole.rows(whole.now * _SMALLEST)
    ]
    return pack(
        {"whole": whole.now, "before": whole.before, "frames": [*frames], "nodes": rows, **more}
    )


def _cpu(session: Session) -> dict[str, list[float]]:
    """Return the seconds on and off the CPU of each span, and of each of its prefixes."""
    labels = (semconv.SPAN_NAME, semconv.TASK_PREFIX, semconv.ACTIVITY)
    metered = session.metrics.sums(semconv.SPAN_EXECUTE_TIME.name, *labels)
    found = summed(
        {(key, activity): took for key in (name, f"{name}\n{prefix}")}
        for (name, prefix, activity), took in metered.items()
        if activity in _CPU
    )
    return {
        key: [round(found.get((key, activity), 0.0), 6) for activity in _CPU]
        for key in dict.fromkeys(key for key, _ in found)
    }
