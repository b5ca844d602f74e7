"""Redacts a report for sharing: no messages, logs, tracebacks, code, keys, users' attributes."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from dask_otel import semconv
from dask_otel.report.telemetry.model import Event, Plain, Session

#: Replaced by numbers, so that they remain distinct.
_NUMBERED: Final = {semconv.TASK_KEY: "task", semconv.TASK_GROUP_NAME: "group"}
#: May hold data or code. Names of spans, prefixes and workers stay.
_SECRET: Final = frozenset(
    {
        semconv.EXCEPTION_MESSAGE,
        semconv.EXCEPTION_STACKTRACE,
        semconv.CODE_FILE_PATH,
        semconv.CODE_LINE_NUMBER,
        semconv.CODE_FUNCTION_NAME,
        semconv.WORKER_LAST_LINES,
        semconv.LOG_LOGGER,
    }
)


def redacted(session: Session) -> Session:
    """Return a run without anything that can hold data, and without spans of other services."""
    numbers: dict[Plain, str] = {}
    spans = [
        replace(
            span,
            description="",
            attributes=_kept(span.attributes, numbers),
            events=[
                Event(event.name, event.time_ns, _kept(event.attributes, numbers))
                for event in span.events
            ],
        )
        for span in session.spans
    ]
    logs = [
        replace(log, body="", attributes=_kept(log.attributes, numbers)) for log in session.logs
    ]
    resource = {key: value for key, value in session.resource.items() if key in _RESOURCE}
    block = session.block
    if block is not None:
        block = replace(block, error=block.error and (block.error[0], ""), waits=None)
    return replace(
        session, spans=spans, foreign=[], resource=resource, logs=logs, block=block, profiles=[]
    )


_RESOURCE: Final = (
    semconv.SERVICE_NAME,
    semconv.SERVICE_VERSION,
    semconv.SERVICE_INSTANCE_ID,
    semconv.CLUSTER_NAME,
)


def _kept(attributes: dict[str, Plain], numbers: dict[Plain, str]) -> dict[str, Plain]:
    kept = {
        key: value
        for key, value in attributes.items()
        if key not in _SECRET and key.startswith(("dask.", "exception.", "error.type"))
    }
    for key, what in _NUMBERED.items():
        if key in kept:
            kept[key] = numbers.setdefault(kept[key], f"{what} {len(numbers) + 1}")
    return kept
