"""The figures of one ended run, small enough to keep: a *run* is one root span that ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from types import NoneType
from typing import Any, Final

from dask_otel import semconv
from dask_otel.report import words
from dask_otel.report.money import Price
from dask_otel.report.seconds import own_parts
from dask_otel.report.telemetry.model import Run, Span, text, tree_of

#: The headings of `PastRun.cells`, and which of them are numbers.
HEADINGS: Final = ("time", "name", "result", "duration", "tasks", "failed", "thread-hours", "idle",
                   "cost", "distributed", "dask-otel", "cluster")  # fmt: skip
NUMBERS: Final = frozenset(("duration", "tasks", "failed", "thread-hours", "idle", "cost"))


@dataclass(frozen=True)
class PastRun:
    """A root span and the spans below it. None if a figure was not exported.

    `thread_seconds` is the capacity that it used, with `idle_seconds`, and the sum of `parts`, by
    the title of the part; `command` makes its report.
    """

    name: str
    cluster: str
    trace_id: str
    span_id: str
    start: float
    seconds: float
    result: str
    tasks: float | None
    failed: float | None
    thread_seconds: float | None
    idle_seconds: float | None
    parts: dict[str, float]
    distributed: str
    dask_otel: str
    command: str

    def cells(self, price: Price | None = None) -> dict[str, str]:
        """Return its figures in words, by heading; empty if they are unknown."""
        values = (
            words.when(round(self.start * 1e9)).removesuffix(" UTC"),
            words.one_line(self.name),
            words.one_line(self.result),
            words.seconds(self.seconds),
            words.whole(self.tasks),
            words.whole(self.failed),
            # At a price of 1, the cost is the number of hours.
            Price(1.0).text(self.thread_seconds),
            words.share(self.idle_seconds, self.thread_seconds),
            price.text(self.thread_seconds) if price else "",
            words.one_line(self.distributed),
            words.one_line(self.dask_otel),
            words.one_line(self.cluster),
        )
        return dict(zip(HEADINGS, values, strict=True))


#: The types of the fields, by their annotations.
_TYPES: Final[dict[Any, tuple[type, ...]]] = {
    "str": (str,), "float": (int, float), "float | None": (int, float, NoneType),
    "dict[str, float]": (dict,),
}  # fmt: skip
#: Numbers beyond it are nobody's.
_LARGEST: Final = 1e200


def past_run(entry: Any) -> PastRun:
    """Return a run from plain data.

    Raises
    ------
    ValueError
        If it is not one.
    """
    for field in fields(PastRun):
        value: Any = entry.get(field.name) if isinstance(entry, dict) else None
        if not _is_valid(value, _TYPES[field.type]):
            raise ValueError(f"no run: {field.name}")
    return PastRun(**{field.name: entry[field.name] for field in fields(PastRun)})


def _is_valid(value: Any, types: tuple[type, ...]) -> bool:
    if isinstance(value, dict):
        return dict in types and all(_is_valid(one, (int, float)) for one in value.values())
    is_number = isinstance(value, (int, float))
    return (not is_number or abs(value) < _LARGEST) and isinstance(value, types)


def ended(run: Run, command: str) -> Iterator[PastRun]:
    """Yield the ended root spans of one scheduler, each with the spans below it."""
    _, below = tree_of(run.of_type("span"))
    for root in run.roots():
        if not root.unfinished:
            tree = list(_tree(root, below))
            yield PastRun(
                name=root.full_name,
                cluster=run.cluster,
                trace_id=root.trace_id,
                span_id=root.span_id,
                start=root.start_ns / 1e9,
                seconds=root.seconds,
                result=root.result,
                # Of the whole tree; the seconds are each span's own.
                tasks=root.number(semconv.TASK_COUNT),
                failed=root.number(semconv.TASK_OUTCOME_COUNT.format("erred")),
                thread_seconds=_sum(tree, semconv.SPAN_CAPACITY),
                idle_seconds=_sum(tree, semconv.SPAN_IDLE),
                parts=_parts(tree),
                distributed=text(run.resource.get(semconv.SERVICE_VERSION)),
                dask_otel=run.bridge,
                command=command,
            )


def _tree(root: Span, below: dict[tuple[str, str], list[Span]]) -> Iterable[Span]:
    """Return a span and all below it, each once, even in a cycle of a hostile file."""
    found = {root.key: root}
    stack = [root]
    while stack:
        new = [span for span in below.get(stack.pop().key, ()) if span.key not in found]
        found |= {span.key: span for span in new}
        stack += new
    return found.values()


def _sum(spans: Iterable[Span], key: str) -> float | None:
    known = [value for value in (span.number(key) for span in spans) if value is not None]
    return sum(known) if known else None


def _parts(spans: Iterable[Span]) -> dict[str, float]:
    result: Counter[str] = Counter()
    for span in spans:
        result.update(own_parts(span))
    return dict(result)
