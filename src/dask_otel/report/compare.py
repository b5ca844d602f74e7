"""Two runs side by side, by the names of their spans: what became slower, faster, new, gone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dask_otel.report.meanings import PART_TITLES
from dask_otel.report.seconds import SpanTime, cluster_time, merged, span_times
from dask_otel.report.telemetry.model import Run

#: A difference is one from this share of the first run's seconds on, and this many seconds.
_SHARE, _SECONDS = 0.1, 0.05

SLOWER: Final = "slower"
FASTER: Final = "faster"
NEW: Final = "new"
GONE: Final = "gone"
SAME: Final = "same"


@dataclass(frozen=True)
class Side:
    """One span's name in one of the two: None where it was not there."""

    count: int
    #: From start to end, on average of its spans.
    lasted: float | None
    #: Thread-seconds, idle among them, of all its spans. None for one without tasks of its own.
    seconds: float | None
    parts: dict[str, float]


@dataclass(frozen=True)
class Difference:
    """One name in both."""

    name: str
    before: Side | None
    after: Side | None

    @property
    def lasted(self) -> float | None:
        """By how much longer one lasted in the second; None where there is nothing to compare."""
        if not (self.before and self.after):
            return None
        if self.before.lasted is None or self.after.lasted is None:
            return None
        return self.after.lasted - self.before.lasted

    @property
    def verdict(self) -> str:
        """``slower``, ``faster``, ``new``, ``gone`` or ``same``: by how long it lasted.

        Where no trace tells of that, by its thread-seconds.
        """
        if self.before is None:
            return NEW
        if self.after is None:
            return GONE
        change = self.lasted
        first = self.before.lasted
        if change is None or first is None:
            first = self.before.seconds or 0.0
            change = (self.after.seconds or 0.0) - first
        if abs(change) < _SECONDS or abs(change) < _SHARE * first:
            return SAME
        return SLOWER if change > 0 else FASTER

    def changes(self) -> list[tuple[str, float]]:
        """Return by how many thread-seconds each part grew, the largest change first."""
        before = self.before.parts if self.before else {}
        after = self.after.parts if self.after else {}
        grown = ((part, after.get(part, 0.0) - before.get(part, 0.0)) for part in PART_TITLES)
        return sorted(
            ((part, seconds) for part, seconds in grown if abs(seconds) >= _SECONDS),
            key=lambda item: -abs(item[1]),
        )


@dataclass(frozen=True)
class Comparison:
    """All names of two reports; `whole` is that of the clusters."""

    before: str
    after: str
    whole: Difference
    names: list[Difference]

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""

        def side(one: Side | None) -> dict[str, Any] | None:
            return None if one is None else dict(vars(one))

        def row(one: Difference) -> dict[str, Any]:
            return {
                "name": one.name,
                "verdict": one.verdict,
                "before": side(one.before),
                "after": side(one.after),
                "parts": dict(one.changes()),
            }

        return {
            "before": self.before,
            "after": self.after,
            "whole": row(self.whole),
            "spans": [row(one) for one in self.names],
        }


def compare(
    before: Sequence[Run], after: Sequence[Run], titles: tuple[str, str] = ("A", "B")
) -> Comparison:
    """Compare the runs of two reports; several runs of one are taken together.

    Names come in the order of the first, those that are new after them.
    """
    first, second = _sides(before), _sides(after)
    names = list(dict.fromkeys([*first, *second]))
    return Comparison(
        *titles,
        Difference("all", _whole(before), _whole(after)),
        [Difference(name, first.get(name), second.get(name)) for name in names],
    )


def _sides(runs: Iterable[Run]) -> dict[str, Side]:
    times: dict[str, list[SpanTime]] = {}
    lasted: dict[str, list[float]] = {}
    for run in runs:
        for entry in span_times(run):
            times.setdefault(entry.name, []).append(entry)
        for span in run.of_type("span"):
            if not span.unfinished:
                lasted.setdefault(span.full_name, []).append(span.seconds)
    result = {}
    for name, entries in times.items():
        entry = merged(name, entries)
        known = lasted.get(name, [])
        mean = sum(known) / len(known) if known else None
        worked = entry.activities or entry.idle is not None
        seconds = entry.seconds if worked else None
        result[name] = Side(len(known), mean, seconds, entry.parts())
    return result


def _whole(runs: Sequence[Run]) -> Side:
    parts = dict.fromkeys(PART_TITLES, 0.0)
    lasted = 0.0
    for run in runs:
        cluster = cluster_time(run)
        own = cluster.parts() if cluster else merged("", span_times(run)).parts()
        for part, seconds in own.items():
            parts[part] += seconds
        if run.start_ns is not None and run.end_ns is not None:
            lasted += (run.end_ns - run.start_ns) / 1e9
    mean = lasted / len(runs) if runs else None
    return Side(len(runs), mean, sum(parts.values()), parts)
