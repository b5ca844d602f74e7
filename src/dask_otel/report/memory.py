"""The results in the workers' memory: who held them at the peak and over time, and the rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from operator import attrgetter, itemgetter
from typing import Final, NamedTuple

from dask_otel import semconv
from dask_otel.report import words
from dask_otel.report.findings import Worker
from dask_otel.report.telemetry.model import Session, Span, grouped
from dask_otel.report.telemetry.series import History, at

#: Most bars of a picture over time, most holders with a layer each, and parts of a peak in words.
_BARS: Final = 240
_HOLDERS: Final = 5
_PARTS: Final = 3
_AT_PEAK: Final = semconv.SPAN_MEMORY_AT_PEAK + "."
#: The state of results of spans; other states of the cluster's memory in the order of a picture.
HELD: Final = "held"
_STATES: Final = ("scattered", "replica", "unmanaged_old", "unmanaged_recent", "unaccounted")


class Root(NamedTuple):
    """The results of a root span and of those below it, until its work was done.

    `prefix` had most of the `peak`: `of_it`. None if all came and went between two looks at them.
    `parts` are the largest parts of the peak, by prefix.
    """

    span: str
    peak: float | None
    prefix: str
    of_it: float | None
    time: float
    parts: Mapping[str, float]

    def in_words(self) -> str:
        """Return it as a sentence."""
        peak = f"held at most {words.size(self.peak)}" if self.peak else ""
        if self.prefix and self.of_it:
            share = words.share(self.of_it, self.peak)
            peak += f", {words.size(self.of_it)} of it ({share}) by {self.prefix}"
            peak += "".join(
                f", {words.size(part)} ({words.share(part, self.peak)}) by {prefix}"
                for prefix, part in [*self.parts.items()][1:_PARTS]
            )
        time = f"{words.byte_seconds(self.time)} until its work was done"
        return words.one_line(f"{self.span}: {'; '.join(filter(None, (peak, time)))}.")


class Holder(NamedTuple):
    """The results of one prefix in one span, in the export with most of all spans; and over time.

    `at_peak` is None if no export had any. `largest` is the most that was seen of them; None if
    they came and went unseen.
    """

    span: str
    prefix: str
    at_peak: float | None
    largest: float | None
    time: float


class Memory(NamedTuple):
    """What was in the workers' memory; False if no results are known.

    `peak` is the largest size of results that was seen: of a root, or of all spans together in an
    export. The latter is `exported`, `after` seconds. None if there were none.
    """

    roots: list[Root]
    peak: float | None
    exported: float | None
    after: float | None
    holders: list[Holder]
    #: The cluster's memory by its state; results by span and prefix.
    states: Mapping[str, History]
    results: Mapping[tuple[str, ...], History]

    def __bool__(self) -> bool:
        return bool(self.roots or self.peak)

    def in_words(self) -> str:
        """Return the peak as a sentence; empty if it is unknown."""
        if self.exported is None or self.after is None:
            return ""
        size, after = words.size(self.exported), words.seconds(self.after)
        return f"All spans: in an export at most {size}, {after} after the start of the run."


def memory(session: Session) -> Memory:
    """Return what was in memory."""
    known = (one for one in session.roots() if semconv.SPAN_MEMORY_SPENT in one.attributes)
    roots = [_root(found) for found in grouped(known, attrgetter("full_name")).values()]
    metrics, labels = session.metrics, (semconv.SPAN_NAME, semconv.TASK_PREFIX)
    states = metrics.histories(semconv.CLUSTER_MEMORY_USAGE.name, semconv.MEMORY_STATE)
    when, exported = max(states.get(HELD, []), key=itemgetter(1), default=(0, 0.0))
    spent = metrics.sums(semconv.SPAN_MEMORY_TIME.name, *labels)
    usage = grouped(
        metrics.of(semconv.SPAN_MEMORY_USAGE.name),
        lambda one: tuple(one.labels.get(label, "") for label in labels),
    )
    results = {key: _sum([one.history() for one in series]) for key, series in usage.items()}
    # The bridge looks at groups between exports, too.
    names = {one.text(semconv.SPAN_ID): one.full_name for one in session.of_type("span")}
    groups = grouped(
        session.of_type("group"),
        lambda one: (names.get(one.text(semconv.SPAN_ID), ""), one.text(semconv.TASK_PREFIX)),
    )
    holders = [
        Holder(
            span,
            prefix,
            at(results.get((span, prefix), []), when) if exported else None,
            max(
                [
                    *(size for _, size in results.get((span, prefix), [])),
                    *(
                        one.number(semconv.SPAN_MEMORY_PEAK) or 0.0
                        for one in groups.get((span, prefix), ())
                    ),
                ],
                default=0.0,
            )
            or None,
            time,
        )
        for (span, prefix), time in spent.items()
        if time
    ]
    return Memory(
        sorted(roots, key=lambda one: -(one.peak or 0.0)),
        max(0.0, exported, *(one.peak or 0.0 for one in roots)) or None,
        exported or None,
        (when - (session.start_ns or when)) / 1e9 if exported else None,
        sorted(holders, key=lambda one: -one.time),
        states,
        results,
    )


def table(found: Memory) -> list[list[str]]:
    """Return the headings of the holders, those of numbers with a ``#``, and the rows."""
    rows = [
        ["span", "function", "#at most", "#in that export", "#share", "#over time", "#share of it"]
    ]
    at_peak = sum(one.at_peak or 0.0 for one in found.holders)
    time = sum(one.time for one in found.holders)
    for one in found.holders:
        shares = words.share(one.at_peak, at_peak), words.share(one.time, time)
        sizes = words.size(one.at_peak), words.byte_seconds(one.time)
        names = words.one_line(one.span), words.one_line(one.prefix)
        rows.append([*names, words.size(one.largest), sizes[0], shares[0], sizes[1], shares[1]])
    return rows


def workers_table(found: Iterable[Worker]) -> list[list[str]]:
    """Return the headings of the workers, those of numbers with a ``#``, and the fullest first."""
    known = sorted(
        (one for one in found if one.memory),
        key=lambda one: -(one.memory or 0.0) / (one.limit or float("inf")),
    )
    return [["worker", "#memory, at most", "#of its limit", "#after"]] + [
        [
            words.one_line(one.name),
            words.size(one.memory),
            words.share(one.memory, one.limit),
            words.known(one.memory_after),
        ]
        for one in known
    ]


def provided(session: Session) -> float | None:
    """Return the bytes over time that workers had; None if they are unknown.

    A worker has its limit, or without one the memory of its process. A figure of an export is that
    of the time since the export before.
    """
    sizes, limits = (
        session.metrics.histories(name, semconv.WORKER_NAME)
        for name in (semconv.WORKER_MEMORY_USAGE.name, semconv.WORKER_MEMORY_LIMIT.name)
    )
    workers = [*(sizes | limits).values()]
    # Of levels that stay as they are, not each export is kept.
    exports = [one.history() for one in session.metrics.of(semconv.CLUSTER_CAPACITY_TIME.name)]
    times = sorted({time for history in (*workers, *exports) for time, _ in history})
    before = dict(zip(times, [session.metrics.start_ns or 0, *times], strict=False))
    total = sum(
        # A worker that comes back was away since its last export, whose figure is 0.
        value * (time - (earlier if was else before[time]))
        for history in workers
        for (earlier, was), (time, value) in pairwise([(0, 0.0), *history])
    )
    return total / 1e9 or None


class Layer(NamedTuple):
    """A part of the cluster's memory over time."""

    name: str
    state: str
    values: list[float]


def layers(found: Memory) -> tuple[list[int], list[Layer]]:
    """Return the times of exports, and the parts of the cluster's memory then, the lowest first.

    There are none with too few exports. The results of spans are divided by their largest holders.
    """
    states, results = found.states, found.results
    every = sorted({time for one in (*states.values(), *results.values()) for time, _ in one})
    if len(every) < 2:
        return [], []
    step = -(-len(every) // _BARS)
    parts = [every[place : place + step] for place in range(0, len(every), step)]
    times = [
        max(part, key=lambda time: sum(at(one, time) for one in states.values())) for part in parts
    ]
    made = [
        Layer(
            f"{words.cut(one.prefix, 24)} in {words.cut_beginning(one.span, 24)}",
            HELD,
            [at(results.get((one.span, one.prefix), []), time) for time in times],
        )
        for one in found.holders[:_HOLDERS]
    ]
    shown = [sum(layer.values[place] for layer in made) for place in range(len(times))]
    held = (at(states.get(HELD, []), time) for time in times)
    rest = [max(0.0, all_ - some) for all_, some in zip(held, shown, strict=True)]
    made.append(Layer("other results", HELD, rest))
    made += [
        Layer(state, state, [at(states.get(state, []), time) for time in times])
        for state in _STATES
    ]
    return times, [one for one in made if any(one.values)]


def _root(found: Iterable[Span]) -> Root:
    most = max(found, key=lambda one: one.number(semconv.SPAN_MEMORY_PEAK) or 0.0)
    parts = {
        key.removeprefix(_AT_PEAK): size
        for key in most.attributes
        if key.startswith(_AT_PEAK) and (size := most.number(key))
    }
    return Root(
        most.full_name,
        most.number(semconv.SPAN_MEMORY_PEAK),
        most.text(semconv.SPAN_MEMORY_PREFIX),
        most.number(semconv.SPAN_MEMORY_PREFIX_SIZE),
        sum(one.number(semconv.SPAN_MEMORY_SPENT) or 0.0 for one in found),
        dict(sorted(parts.items(), key=lambda one: -one[1])),
    )


def _sum(histories: list[History]) -> History:
    """Return several histories, such as those of different labels of the user, as one."""
    times = sorted({time for one in histories for time, _ in one})
    return [(time, sum(at(one, time) for one in histories)) for time in times]
