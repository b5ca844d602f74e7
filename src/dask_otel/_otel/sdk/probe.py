"""A test span and a test counter to each configured endpoint, and what became of them.

They go the way that everything goes: exporters made of the same variables, watched in the same
way. Only retries are not waited out: the first answer counts.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping
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
from dask_otel.core.records import MetricRecord, NumberPoint, SpanRecord
from dask_otel.settings.problems import ConfigurationError

#: Seconds for which a failed request may be tried again, before its first failure counts.
_SECOND_THOUGHTS: Final = 2.0
_PAUSE: Final = 0.02
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
    tries = [_Try("traces", sink, [span]) for sink in outputs.span_sinks]
    tries += [_Try("metrics", sink, [counter]) for sink in outputs.metric_sinks]
    for one in tries:
        one.start()
    until = time.monotonic() + seconds
    pending = tries
    while pending and time.monotonic() < until:
        # Each is asked each time, so that all of them are waited for at once.
        pending = [one for one in pending if not one.settled()]
        time.sleep(_PAUSE)
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
    """One export, in a thread of its own; where it fails, a look at who listens, in another."""

    def __init__(self, signal: str, sink: Any, records: list[Any]) -> None:
        self._sink = sink
        self._records = records
        self._probed = Probed(signal, sink.name, advice=sink.advice)
        self._endpoint = Endpoint.named(sink.name)
        #: An application's own provider says nothing of what becomes of spans.
        self._tells = not isinstance(sink, ProviderSpanSink)
        self._done = threading.Event()
        self._looked = threading.Event()
        self._began = time.monotonic()
        self._failed_at: float | None = None
        self._looking_until: float | None = None
        self._shutting = threading.Lock()
        self._shut = False

    def start(self) -> None:
        self._thread(self._export)

    @staticmethod
    def _thread(call: Callable[[], None]) -> None:
        # A daemon: one that hangs in an exporter holds up nothing.
        threading.Thread(target=call, name=_THREAD, daemon=True).start()

    def _begin_to_look(self) -> None:
        """Look who listens, once; a server that takes what it is sent is left in peace."""
        if self._looking_until is None:
            self._looking_until = time.monotonic() + 2 * _LOOK
            if self._endpoint is None:
                self._looked.set()
            else:
                self._thread(self._look)

    def _look(self) -> None:
        assert self._endpoint is not None
        try:
            self._probed.listener = look(self._endpoint, _LOOK)
        finally:
            self._looked.set()

    def _export(self) -> None:
        sink, probed = self._sink, self._probed
        ok, reason = False, ""
        try:
            with sink.surroundings():
                try:
                    ok = sink.export(self._records)
                    reason = "" if ok else sink.last_error()
                except BaseException as error:
                    reason = type(error).__name__
                probed.ok, probed.reason = (ok if self._tells else None), reason
                probed.lost, probed.said = sink.lost, getattr(sink, "said", "")
                probed.seconds = time.monotonic() - self._began
                self._done.set()
                self._shut_down()
        finally:
            self._done.set()

    def _let_go(self) -> None:
        with self._sink.surroundings():
            self._shut_down()

    def _shut_down(self) -> None:
        """Release the exporter, once; one that waits before it tries again gives up."""
        with self._shutting:
            shut, self._shut = self._shut, True
        if not shut:
            self._sink.shutdown()

    def settled(self) -> bool:
        """Whether it is over, or has failed for so long that it counts."""
        now = time.monotonic()
        if self._failed_at is None and self._sink.last_error():
            self._failed_at = now
            self._begin_to_look()
        late = self._failed_at is not None and now - self._failed_at > _SECOND_THOUGHTS
        return late or self._done.is_set()

    def outcome(self) -> Probed:
        """Return what became of it, as far as it is known now."""
        probed = self._probed
        if not self._done.is_set():
            waited = time.monotonic() - self._began
            reason = self._sink.last_error() or f"no answer within {waited:.0f} s"
            # A copy: the thread may still write.
            probed = replace(probed, ok=False, reason=reason, seconds=waited)
            self._thread(self._let_go)
        if probed.ok is False:
            self._begin_to_look()
            assert self._looking_until is not None
            self._looked.wait(max(0.0, self._looking_until - time.monotonic()))
            probed.listener = self._probed.listener
        return probed
