"""What bounded a run: the paths of its spans, as the bridge exported them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from dask_otel import semconv
from dask_otel.report.findings import span_names
from dask_otel.report.meanings import PATH, PathPart
from dask_otel.report.seconds import add
from dask_otel.report.telemetry.model import Session, Span


@dataclass
class Waits:
    """The path of all spans of one name: their durations, cut into parts."""

    name: str
    count: int = 0
    #: The sum of the durations, and its parts by `semconv.PATH_PARTS`.
    seconds: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    #: Tasks on the paths, and the exported ones among them, which are their own tasks.
    tasks: int = 0
    shown: list[Span] = field(default_factory=list)

    def shares(self) -> Iterator[tuple[PathPart, float, float]]:
        """Yield the parts that took time, with their seconds and shares."""
        for name, part in PATH.items():
            seconds = self.parts.get(name, 0.0)
            if seconds > 0:
                yield part, seconds, seconds / self.seconds

    def functions(self) -> dict[str, tuple[int, float]]:
        """Return the shown tasks of each prefix, and their seconds, longest first."""
        found: dict[str, tuple[int, float]] = {}
        for task in self.shown:
            if seconds := sum(link_parts(task)):
                prefix = task.text(semconv.TASK_PREFIX) or task.name
                count, known = found.get(prefix, (0, 0.0))
                found[prefix] = count + 1, known + seconds
        return dict(sorted(found.items(), key=lambda item: -item[1][1]))


@dataclass(frozen=True)
class RunPath:
    """What bounded a run: its root spans together, and all names of spans."""

    whole: Waits
    names: list[Waits]

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
    names: dict[str, Waits] = {}
    labels = span_names(session)
    for span in spans:
        if parts := span_path(span):
            entry = names.setdefault(span.full_name, Waits(span.full_name))
            _add(entry, span, parts)
    for task in session.of_type("task"):
        name = labels.get(task.text(semconv.SPAN_ID), "")
        if name in names and task.attributes.get(semconv.TASK_ON_PATH) is True:
            names[name].shown.append(task)
    whole = Waits("all")
    for root in session.roots():
        if parts := span_path(root):
            _add(whole, root, parts)
    if not whole.seconds:
        return None
    return RunPath(whole, list(names.values()))


def link_parts(task: Span, parts: Iterable[str] = semconv.PATH_PARTS) -> list[float]:
    """Return the seconds of a task's parts of its span's path."""
    return [task.number(semconv.TASK_PATH_PART_TIME.format(part)) or 0.0 for part in parts]


def span_path(span: Span) -> dict[str, float]:
    """Return the parts of a span's path; empty if it is unknown."""
    found = {part: span.number(semconv.SPAN_PATH_PART_TIME.format(part)) for part in PATH}
    return {
        part: seconds for part, seconds in found.items() if seconds is not None and seconds >= 0
    }


def _add(entry: Waits, span: Span, parts: dict[str, float]) -> None:
    entry.count += 1
    entry.seconds += sum(parts.values())
    entry.tasks += int(span.number(semconv.SPAN_PATH_TASKS) or 0)
    for part, value in parts.items():
        add(entry.parts, part, value)
