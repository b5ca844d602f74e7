"""What bounded a run: the paths of its spans, as the bridge exported them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dask_otel import semconv
from dask_otel.core.sums import summed
from dask_otel.report.meanings import PATH
from dask_otel.report.telemetry.model import Session, Span, grouped


@dataclass(frozen=True)
class Waits:
    """The path of all spans of one name: their durations, cut into parts."""

    name: str
    count: int
    #: Seconds by `semconv.PATH_PARTS`.
    parts: dict[str, float]
    #: Tasks on the paths. The exported ones among them, which are their own tasks, by prefix: their
    #: number, and the seconds of their parts; longest first.
    tasks: int
    functions: dict[str, tuple[int, dict[str, float]]]

    @property
    def seconds(self) -> float:
        """The sum of the durations."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class RunPath:
    """What bounded a run: its root spans together, and all names of spans."""

    whole: Waits
    names: list[Waits]

    def functions(self, most: int = 12) -> list[tuple[str, str, int, float]]:
        """Return span, prefix, tasks and seconds of the longest functions on the paths."""
        found = [
            (entry.name, prefix, count, sum(parts.values()))
            for entry in self.names
            for prefix, (count, parts) in entry.functions.items()
        ]
        return sorted(found, key=lambda item: -item[3])[:most]


def path(session: Session) -> RunPath | None:
    """Return what bounded a run; None if no span has a path."""
    names = waits(session.of_type("span"), session.of_type("task"))
    whole = _waits("all", [root for root in session.roots() if span_path(root)], ())
    return RunPath(whole, names) if whole.seconds else None


def waits(spans: Sequence[Span], tasks: Iterable[Span]) -> list[Waits]:
    """Return the paths of spans, as far as they have one, by their names."""
    owners = {span.text(semconv.SPAN_ID): span.full_name for span in spans}
    links = grouped(
        (task for task in tasks if task.attributes.get(semconv.TASK_ON_PATH) is True),
        lambda task: owners.get(task.text(semconv.SPAN_ID)),
    )
    known = grouped((span for span in spans if span_path(span)), lambda span: span.full_name)
    return [_waits(name, found, links.get(name, ())) for name, found in known.items()]


def _waits(name: str, spans: Sequence[Span], links: Iterable[Span]) -> Waits:
    same = grouped(filter(link, links), lambda task: task.text(semconv.TASK_PREFIX) or task.name)
    functions = {prefix: (len(found), summed(map(link, found))) for prefix, found in same.items()}
    return Waits(
        name,
        len(spans),
        summed(map(span_path, spans)),
        sum(int(span.number(semconv.SPAN_PATH_TASKS) or 0) for span in spans),
        dict(sorted(functions.items(), key=lambda item: -sum(item[1][1].values()))),
    )


def link(task: Span) -> dict[str, float]:
    """Return the seconds of a task's parts of its span's path, as far as it has them."""
    found = {part: task.number(semconv.TASK_PATH_PART_TIME.format(part)) for part in PATH}
    return {part: seconds for part, seconds in found.items() if seconds}


def span_path(span: Span) -> dict[str, float]:
    """Return the parts of a span's path; empty if it is unknown."""
    found = {part: span.number(semconv.SPAN_PATH_PART_TIME.format(part)) for part in PATH}
    return {
        part: seconds for part, seconds in found.items() if seconds is not None and seconds >= 0
    }
