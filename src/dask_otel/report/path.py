"""What bounded a run: the paths of its spans, as the bridge exported them, and what they say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from dask_otel import semconv
from dask_otel.report import words
from dask_otel.report.advice import Advice
from dask_otel.report.findings import late_starts, span_names
from dask_otel.report.meanings import PATH, PathPart
from dask_otel.report.seconds import add
from dask_otel.report.telemetry.model import Session, Span, tree_of

#: The smallest share of its span, and of the whole run, for a sentence, and the most sentences.
_SHARE, _OF_RUN, _MOST = 0.25, 0.1, 5


@dataclass
class Waits:
    """The path of all spans of one name: their durations, cut into parts."""

    name: str
    count: int = 0
    #: The sum of the durations, and its parts by `semconv.PATH_PARTS`.
    seconds: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    #: The parts without those of the spans directly below.
    own: dict[str, float] = field(default_factory=dict)
    #: Tasks on the paths, and the exported ones among them, which are their own tasks.
    tasks: int = 0
    shown: list[Span] = field(default_factory=list)
    #: Lower bound of the duration with any number of threads.
    chain: float = 0.0
    #: The most seconds that twice the threads can save.
    saved: float = 0.0

    def shares(self) -> Iterator[tuple[PathPart, float, float]]:
        """Yield the parts that took time, with their seconds and shares."""
        for name, part in PATH.items():
            seconds = self.parts.get(name, 0.0)
            if seconds > 0:
                yield part, seconds, seconds / self.seconds

    def functions(self, *parts: str) -> dict[str, tuple[int, float]]:
        """Return the shown tasks of each prefix that took part, and their seconds, longest first.

        Of some `parts`, or of all.
        """
        found: dict[str, tuple[int, float]] = {}
        for task in self.shown:
            if seconds := sum(link_parts(task, parts or semconv.PATH_PARTS)):
                prefix = task.text(semconv.TASK_PREFIX) or task.name
                count, known = found.get(prefix, (0, 0.0))
                found[prefix] = count + 1, known + seconds
        return dict(sorted(found.items(), key=lambda item: -item[1][1]))


@dataclass(frozen=True)
class RunPath:
    """What bounded a run: its root spans together, all names of spans, and sentences."""

    whole: Waits
    names: list[Waits]
    sentences: list[Advice]

    def functions(self, most: int = 12) -> list[tuple[str, str, int, float]]:
        """Return span, prefix, tasks and seconds of the longest functions on the paths."""
        found = [
            (entry.name, prefix, count, seconds)
            for entry in self.names
            for prefix, (count, seconds) in entry.functions().items()
        ]
        return sorted(found, key=lambda item: -item[3])[:most]


def path(session: Session) -> RunPath | None:
    """Return what bounded a run; None if no span has a path."""
    spans = session.of_type("span")
    _, below = tree_of(spans)
    names: dict[str, Waits] = {}
    labels = span_names(session)
    for span in spans:
        if parts := span_path(span):
            entry = names.setdefault(span.full_name, Waits(span.full_name))
            _add(entry, span, parts, [span_path(one) for one in below.get(span.key, ())])
    for task in session.of_type("task"):
        name = labels.get(task.text(semconv.SPAN_ID), "")
        if name in names and task.attributes.get(semconv.TASK_ON_PATH) is True:
            names[name].shown.append(task)
    whole = Waits("all")
    for root in session.roots():
        if parts := span_path(root):
            _add(whole, root, parts, ())
    if not whole.seconds:
        return None
    late = late_starts(session)
    found = [
        one
        for entry in names.values()
        for one in _sentences(entry, whole.seconds, late.get(entry.name, 0.0))
    ]
    best = sorted(found, key=lambda one: -one.weight)[:_MOST]
    return RunPath(whole, list(names.values()), best)


def link_parts(task: Span, parts: Iterable[str] = semconv.PATH_PARTS) -> list[float]:
    """Return the seconds of a task's parts of its span's path."""
    return [task.number(semconv.TASK_PATH_PART_TIME.format(part)) or 0.0 for part in parts]


def span_path(span: Span) -> dict[str, float]:
    """Return the parts of a span's path; empty if it is unknown."""
    found = {part: span.number(semconv.SPAN_PATH_PART_TIME.format(part)) for part in PATH}
    return {
        part: seconds for part, seconds in found.items() if seconds is not None and seconds >= 0
    }


def _add(
    entry: Waits, span: Span, parts: dict[str, float], below: Iterable[dict[str, float]]
) -> None:
    seconds = sum(parts.values())
    chain = span.number(semconv.SPAN_PATH_BOUND_CHAIN) or 0.0
    threads = span.number(semconv.SPAN_PATH_BOUND_THREADS) or 0.0
    if threads > 0.999 * seconds:
        # Perhaps of seceded tasks, which need no thread of the workers'.
        threads = 0.0
    entry.count += 1
    entry.seconds += seconds
    entry.tasks += int(span.number(semconv.SPAN_PATH_TASKS) or 0)
    entry.chain += chain
    entry.saved += max(0.0, seconds - max(chain, threads / 2))
    for part, value in parts.items():
        inner = sum(one.get(part, 0.0) for one in below)
        add(entry.parts, part, value)
        add(entry.own, part, max(0.0, value - inner))


def _sentences(entry: Waits, whole: float, late: float) -> Iterator[Advice]:
    """Yield what a name's path says, about the parts that are more than those of spans below.

    `late` is the wait for its first task, if that was long.
    """
    name = entry.name if entry.count == 1 else f"{entry.name} ({entry.count:,} spans together)"
    for part, own in entry.own.items():
        seconds = entry.chain if part == "compute" else entry.parts[part]
        if seconds < _SHARE * entry.seconds or own < _OF_RUN * whole:
            continue
        took = f"{words.seconds(seconds)} of its {words.seconds(entry.seconds)}"
        said = PATH[part]
        title = said.claim.format(name=name, took=took) + _evidence(entry, part, seconds)
        if part == "no_thread":
            began = f"; its first task began after {words.seconds(late)}" if late else ""
            title += f"{began}; doubling the threads saves at most {words.seconds(entry.saved)}"
        yield Advice("note", title, said.advice, said.alert, own)


def _evidence(entry: Waits, part: str, whole: float) -> str:
    """Return the function with most of a part in words; empty if no shown one has half of it."""
    prefix, (count, seconds) = next(iter(entry.functions(part).items()), ("", (0, 0.0)))
    if seconds < whole / 2:
        return ""
    took = "all" if seconds > 0.99 * whole else words.seconds(seconds)
    if part != "compute":
        where = "after" if part == "report" else "before"
        return f": {took} of it {where} {words.counted(count, 'task')} of {prefix}"
    if count > 1:
        return f": {count:,} tasks of {prefix} follow one another, {took} of it"
    longest = max(entry.shown, key=lambda task: sum(link_parts(task, [part])))
    worker = longest.text(semconv.WORKER_NAME)
    return f": one task of {prefix} took {words.seconds(seconds)}" + (
        f" on worker {worker}" if worker else ""
    )
