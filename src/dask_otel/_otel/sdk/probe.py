"""Sends a test span, counter and log record to each configured endpoint; reports the results.

The same sinks as always encode and send them, made from the same variables. The first answer
counts.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Sequence
from concurrent.futures import wait
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from dask_otel import semconv
from dask_otel._otel.sdk.environment import mistakes
from dask_otel._otel.sdk.listening import look
from dask_otel._otel.sdk.outputs import Outputs, build
from dask_otel._otel.sdk.spans import ProviderSpanSink
from dask_otel.core.records import Answer, LogRecord, MetricRecord, NumberPoint, Row, SpanRecord
from dask_otel.pump.thread import apart
from dask_otel.settings.problems import ConfigurationError

if TYPE_CHECKING:
    from dask_otel.settings.keys import Settings

#: Seconds to identify the server.
_LOOK: Final = 4.0


def probe(settings: Settings, seconds: float) -> dict[str, Any]:
    """Send a test span, counter and log record to every endpoint that the variables name.

    Parameters
    ----------
    settings
        The scheduler's; see `dask_otel._otel.sdk.outputs.build`. Files and folders made here are
        removed again.
    seconds
        The longest time to wait for answers.

    Returns
    -------
    found
        Plain data: ``problems`` of the configuration, ``mistakes`` in it, ``disabled``, the ids for
        finding the telemetry (``run``, ``trace_id``, ``span_id``, ``sent_ns``), and ``results``,
        one for each signal at each destination: ``signal`` (``"traces"``, ``"metrics"``,
        ``"logs"``), ``destination`` as in the scheduler's log, ``endpoint`` (None, or its URL and
        protocol), ``ok`` (None if unknown), ``reason`` and ``advice`` after a failure, whether the
        signal is ``unsupported``,
        the number of items ``lost`` in an accepted request and the server's message (``said``), the
        ``listener`` if it was checked (`look`), and ``seconds``.
    """
    run = secrets.token_hex(8)
    trace_id, span_id = secrets.randbits(128) or 1, secrets.randbits(64) or 1
    sent_ns = time.time_ns()
    found: dict[str, Any] = {
        "run": run,
        "trace_id": f"{trace_id:032x}",
        "span_id": f"{span_id:016x}",
        "sent_ns": sent_ns,
        "disabled": False,
        "problems": [],
        "results": [],
        "interval": None,
    }
    try:
        # Not a scheduler's id, so that its files have different names.
        with mistakes() as found["mistakes"]:
            outputs = build(settings, f"doctor-{run}", sent_ns)
    except ConfigurationError as error:
        found["problems"] = list(error.problems)
        return found
    if outputs is None:
        found["disabled"] = True
        return found
    folders = () if outputs.prefix is None else outputs.prefix.parents
    missing = [one for one in folders if not os.path.exists(one)]
    found |= {
        "interval": outputs.environment.metric_interval,
        "service": str(outputs.resource.get(semconv.SERVICE_NAME, "")),
        "results": _results(_tries(outputs, run, trace_id, span_id, sent_ns), seconds),
    }
    if outputs.prefix is not None:
        with suppress(OSError):
            for path in outputs.prefix.parent.glob(f"{outputs.prefix.name}-*"):
                path.unlink()
            for one in missing:
                one.rmdir()
    return found


def _tries(
    outputs: Outputs, run: str, trace_id: int, span_id: int, now_ns: int
) -> list[tuple[Any, Any]]:
    """Return the sink and the record of each test."""
    attributes = {semconv.DOCTOR_RUN: run}
    span = SpanRecord(
        trace_id=trace_id,
        span_id=span_id,
        parent_span_id=None,
        name=semconv.DOCTOR_SPAN,
        kind="internal",
        start_ns=now_ns - 1_000_000,
        end_ns=now_ns,
        attributes=attributes,
        events=(),
        links=(),
        error=None,
    )
    metric = semconv.DOCTOR_CHECKS
    counter = MetricRecord(
        metric.name,
        metric.unit,
        metric.description,
        metric.instrument,
        outputs.environment.temporality,
        (NumberPoint(attributes, now_ns - 1_000_000_000, now_ns, 1),),
    )
    event = LogRecord(
        now_ns,
        semconv.DOCTOR_EVENT,
        semconv.INFO,
        "Test of the export by dask-otel doctor",
        attributes,
        trace_id,
        span_id,
    )
    records = {"traces": span, "metrics": counter, "logs": event}
    sinks = (*outputs.span_sinks, *outputs.metric_sinks, *outputs.log_sinks)
    return [(sink, records[sink.signal]) for sink in sinks]


def _results(tries: Sequence[tuple[Any, Any]], seconds: float) -> list[dict[str, Any]]:
    """Send all records to their sinks at once; return the results that arrive in time."""
    began = time.monotonic()
    sent = [apart(partial(_send, *one, began + seconds), "dask-otel-doctor") for one in tries]
    wait(sent, seconds + 2 * _LOOK)
    waited = time.monotonic() - began
    late = Answer(False, f"no answer within {waited:.0f} s"), None, waited
    return [
        _described(sink, *(future.result() if future.done() else late))
        for (sink, _), future in zip(tries, sent, strict=True)
    ]


def _send(sink: Any, record: Any, until: float) -> tuple[Answer, str | None, float]:
    """Send one record; if that fails, identify the server. Return its answer, it, and seconds."""
    began, endpoint = time.monotonic(), sink.destination.endpoint
    item = record if isinstance(record, MetricRecord) else Row(sink.encode(record))
    answer: Answer = sink.destination.send(sink, [item], until - began)
    took = time.monotonic() - began
    listener = None if answer.taken or endpoint is None else look(endpoint, _LOOK)
    sink.close()
    return answer, listener, took


def _described(sink: Any, answer: Answer, listener: str | None, seconds: float) -> dict[str, Any]:
    endpoint = sink.destination.endpoint
    return {
        "signal": sink.signal,
        "destination": sink.destination.name,
        "endpoint": endpoint and [endpoint.url, endpoint.protocol],
        "advice": sink.destination.advice,
        # An application's own provider reports no success.
        "ok": None if answer.taken and isinstance(sink, ProviderSpanSink) else answer.taken,
        "reason": answer.reason,
        "lost": answer.lost,
        "said": answer.said,
        "unsupported": answer.unsupported,
        "listener": listener,
        "seconds": seconds,
    }
