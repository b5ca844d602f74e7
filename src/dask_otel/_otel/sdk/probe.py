"""A test span and a test counter to each configured endpoint, and what became of them.

They go the way that everything goes: encoded and sent by the same sinks, made of the same
variables. The first answer counts.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from dask_otel import semconv
from dask_otel._otel.sdk.files import FileTarget, run_name
from dask_otel._otel.sdk.listening import look
from dask_otel._otel.sdk.outputs import build
from dask_otel._otel.sdk.spans import ProviderSpanSink
from dask_otel.core.endpoints.address import Endpoint
from dask_otel.core.records import Answer, MetricRecord, NumberPoint, Row, SpanRecord
from dask_otel.settings.problems import ConfigurationError

#: Seconds for the look at who listens.
_LOOK: Final = 4.0
_THREAD: Final = "dask-otel-doctor"


@dataclass
class Probed:
    """What became of one signal at one destination."""

    #: ``"traces"`` or ``"metrics"``.
    signal: str
    #: As the scheduler's log calls it.
    destination: str
    #: Whether it was taken; None where nobody can tell.
    ok: bool | None = False
    #: Why it was not, as the exporter or the server says.
    reason: str = ""
    #: Items that were rejected although the request was taken, and what the server said.
    lost: int = 0
    said: str = ""
    #: What to do where it can't be told from the answer.
    advice: str = ""
    #: Who listens there, see `Listener`; None if nobody looked.
    listener: str | None = None
    seconds: float = 0.0


def probe(
    environment: Mapping[str, str],
    *,
    service_name: str,
    service_version: str,
    cluster_name: str | None,
    version: str,
    files: FileTarget | None,
    own_provider: bool,
    seconds: float,
) -> dict[str, Any]:
    """Send a test span and a test counter to every endpoint that the variables name.

    Parameters
    ----------
    environment, service_name, service_version, cluster_name, version, files, own_provider
        As for the scheduler's own exporters; see `dask_otel._otel.sdk.outputs.build`. What is
        written into files is removed again.
    seconds
        The longest time to wait for answers.

    Returns
    -------
    found
        Plain data: ``results`` (`Probed`), ``problems`` of the configuration, ``disabled``, and the
        ids to find the telemetry by: ``run``, ``trace_id``, ``span_id``, ``sent_ns``.
    """
    run, trace_id, span_id = secrets.token_hex(8), secrets.randbits(128), secrets.randbits(64)
    sent_ns = time.time_ns()
    # No scheduler's: what it writes has files of its own.
    instance = f"doctor-{run}"
    found: dict[str, Any] = {
        "run": run,
        "trace_id": f"{trace_id or 1:032x}",
        "span_id": f"{span_id or 1:016x}",
        "sent_ns": sent_ns,
        "disabled": False,
        "problems": [],
        "results": [],
        "interval": None,
    }
    try:
        outputs = build(
            environment,
            service_name=service_name,
            instance_id=instance,
            service_version=service_version,
            cluster_name=cluster_name,
            version=version,
            files=files,
            started_ns=sent_ns,
            own_provider=own_provider,
        )
    except ConfigurationError as error:
        found["problems"] = list(error.problems)
        return found
    if outputs is None:
        found["disabled"] = True
        return found
    found["interval"] = outputs.environment.metric_interval
    found["service"] = str(outputs.resource.get(semconv.SERVICE_NAME, ""))
    span = _span(trace_id or 1, span_id or 1, run, sent_ns)
    counter = _counter(run, sent_ns, outputs.environment.temporality)
    until = time.monotonic() + seconds
    tries = [_Try("traces", sink, span, until) for sink in outputs.span_sinks]
    tries += [_Try("metrics", sink, counter, until) for sink in outputs.metric_sinks]
    for one in tries:
        one.start()
    found["results"] = [asdict(one.outcome()) for one in tries]
    if files is not None:
        cluster = str(outputs.resource.get(semconv.CLUSTER_NAME, service_name))
        _remove(Path(files.path).expanduser(), run_name(cluster, instance, sent_ns))
    return found


def _remove(folder: Path, prefix: str) -> None:
    with suppress(OSError):
        for path in folder.iterdir():
            if path.name.startswith(f"{prefix}-"):
                path.unlink()


def _span(trace_id: int, span_id: int, run: str, now_ns: int) -> SpanRecord:
    return SpanRecord(
        trace_id=trace_id,
        span_id=span_id,
        parent_span_id=None,
        name=semconv.DOCTOR_SPAN,
        kind="internal",
        start_ns=now_ns - 1_000_000,
        end_ns=now_ns,
        attributes={semconv.DOCTOR_RUN: run},
        events=(),
        links=(),
        error=None,
        root_name=semconv.DOCTOR_SPAN,
    )


def _counter(run: str, now_ns: int, temporality: Any) -> MetricRecord:
    metric = semconv.DOCTOR_CHECKS
    points = (NumberPoint({semconv.DOCTOR_RUN: run}, now_ns - 1_000_000_000, now_ns, 1),)
    return MetricRecord(
        metric.name, metric.unit, metric.description, metric.instrument, temporality, points
    )


class _Try:
    """One request, and where it fails a look at who listens, in a thread of its own."""

    def __init__(self, signal: str, sink: Any, record: Any, until: float) -> None:
        self._sink = sink
        self._record = record
        self._until = until
        self._probed = Probed(signal, sink.name, advice=sink.advice)
        self._began = time.monotonic()
        # A daemon: one that hangs in an exporter holds up nothing.
        self._thread = threading.Thread(target=self._run, name=_THREAD, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            answer = self._send()
        except BaseException as error:
            answer = Answer(False, type(error).__name__)
        probed = replace(
            self._probed,
            # An application's own provider says nothing of what becomes of spans.
            ok=None if isinstance(self._sink, ProviderSpanSink) else answer.taken,
            reason=answer.reason,
            lost=answer.lost,
            said=answer.said,
            seconds=time.monotonic() - self._began,
        )
        endpoint = Endpoint.named(self._sink.name)
        if probed.ok is False and endpoint is not None:
            probed.listener = look(endpoint, _LOOK)
        self._probed = probed
        self._sink.close()

    def _send(self) -> Answer:
        longest = self._until - time.monotonic()
        traces = isinstance(self._record, SpanRecord)
        item = Row(self._sink.encode(self._record)) if traces else self._record
        answer: Answer = self._sink.send([item], longest)
        return answer

    def outcome(self) -> Probed:
        """Return what became of it, as far as it is known in time."""
        self._thread.join(max(0.0, self._until - time.monotonic()) + 2 * _LOOK)
        probed = self._probed
        if self._thread.is_alive() and not probed.seconds:
            waited = time.monotonic() - self._began
            probed = replace(probed, reason=f"no answer within {waited:.0f} s", seconds=waited)
        return probed
