"""Assembles the pump: exporters, totals and translation."""

from __future__ import annotations

import math
import threading
import time as clocks
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from dask_otel import semconv
from dask_otel._log import logger
from dask_otel.core.endpoints.address import long_timeouts
from dask_otel.core.events.lines import LastLines
from dask_otel.core.events.narration import narrate
from dask_otel.core.graph import graph_line
from dask_otel.core.metrics.cardinality import SeriesLimits
from dask_otel.core.metrics.labels import LabelRules, patterns
from dask_otel.core.metrics.state import MetricState
from dask_otel.core.profiles.store import Profiles
from dask_otel.core.records import Temporality
from dask_otel.core.text import ATTRIBUTE_LIMIT, STACKTRACE_LIMIT, Sanitizer
from dask_otel.core.trace import Trace
from dask_otel.core.traces.translate import translate
from dask_otel.core.traces.values import SpanLimits
from dask_otel.pump.breath import Breath
from dask_otel.pump.destination import MOST_NOTICES, WORDS, Destination, Notices, SpanSink
from dask_otel.pump.limits import PumpLimits
from dask_otel.pump.pump import MetricExport, Pump, RecordExport
from dask_otel.pump.recorder import Recorder
from dask_otel.pump.rotated import obstacle
from dask_otel.pump.spooled import Spool
from dask_otel.scheduler.advice import FoldAdvice
from dask_otel.scheduler.redaction import load_redaction
from dask_otel.settings.keys import ConfigurationError, Settings
from dask_otel.settings.origins import mask_of
from dask_otel.settings.variables import environment_of

if TYPE_CHECKING:
    from dask_otel._otel.sdk.outputs import Outputs
    from dask_otel._prometheus.page import MetricPage
    from dask_otel.spool.store import Store

#: The greatest age of the page for scrapers in seconds, for any export interval.
LONGEST_PAGE_AGE: Final = 15.0
#: The seconds between two batches of metrics while they are recorded in memory.
RECORDED: Final = 5.0
#: Seconds for a pump to write into memory what it has: nothing of it waits for a server.
WRITTEN_WITHIN: Final = 5.0
#: The queue of what is recorded, which waits for no server.
_IN_MEMORY: Final = PumpLimits(queue_size=10_000, schedule_delay=0.0)
#: The longest wait for the spool's content, in seconds; the export then begins without it.
_SPOOL_PATIENCE: Final = 10.0
#: By name and instance of a service, the bridge that exports under them, while it exists.
_owners: Final[WeakValueDictionary[tuple[str, str], Owner]] = WeakValueDictionary()
#: Held to read and change them: bridges start in threads, and one can end meanwhile.
_owning: Final = threading.Lock()

_NO_LISTENER: Final = (
    "dask-otel: nothing listens at {}, OpenTelemetry's default, so {} can't be seen: no other "
    "place is configured for them. Set otel.files.path (DASK_OTEL__FILES__PATH=DIR) to write "
    "files, or OTEL_EXPORTER_OTLP_ENDPOINT to send everything to a collector. If a collector "
    "starts at the default endpoint later, the bridge uses it. See "
    "https://github.com/dask-otel/dask-otel#use-it"
)


class Owner:
    """A bridge as the owner of a service's name and instance."""

    def __init__(self, instance_id: str) -> None:
        self.instance_id = instance_id

    def claims(self, name: str, instance: str) -> bool:
        """Return whether the bridge may export under these; from then on no other one may."""
        with _owning:
            return _owners.setdefault((name, instance), self).instance_id == self.instance_id


@dataclass(frozen=True, slots=True)
class WiredPump:
    """A pump that has not been started, and the bridge's facts about it."""

    pump: Pump
    #: Seconds between two batches of metrics.
    metric_interval: float
    #: For the log: what is exported, and the destinations.
    summary: str
    #: For the log: a remedy if nothing listens; else empty.
    hint: str = ""
    #: The page for scrapers; None without one.
    page: MetricPage | None = None
    #: Decides whether a trace is sampled, once.
    decides: Callable[[Trace], bool] | None = None
    #: Returns the bridge's own counts at the last export, by metric and label values.
    counts: Callable[[], dict[tuple[str, ...], float]] = dict
    #: Keeps the service's name and instance.
    owner: Owner | None = None
    #: Makes another pump, which keeps everything from now on in memory.
    recording: Callable[[Recorder], Pump] | None = None


def _words(signals: Set[str]) -> str:
    """Return the words for spans and metrics, as far as they are among some signals."""
    return " and ".join(WORDS[signal][0] for signal in ("traces", "metrics") if signal in signals)


def make_pump(settings: Settings, instance_id: str, started_ns: int) -> WiredPump | None:
    """Make the exporters and the pump from the settings and the standard variables.

    It is slow: it imports the SDK and exporters, and runs resource detectors. Call it in a thread.
    It is one function on purpose: it uses the exporters in 15 places, and parts would have to pass
    them around.

    Parameters
    ----------
    settings
        The bridge's settings.
    instance_id
        The Dask id of the scheduler.
    started_ns
        The start of the bridge: no zero point is earlier.

    Returns
    -------
    wired
        None if ``OTEL_SDK_DISABLED`` disables everything.

    Raises
    ------
    ConfigurationError
        If a standard variable has a value that is not allowed.
    """
    from dask_otel._otel.sdk import outputs as _otel

    # First: if the redaction can't be loaded, nothing else may be made.
    spans = settings.spans
    span_limits = SpanLimits(
        message=ATTRIBUTE_LIMIT if spans.exception_message else 0,
        stacktrace=STACKTRACE_LIMIT if spans.exception_stacktrace else 0,
        task_keys=spans.task_keys,
        code=spans.code,
        redact=None if settings.redact is None else load_redaction(settings.redact),
    )
    owner = Owner(instance_id)
    outputs = _otel.build(
        settings,
        instance_id,
        started_ns,
        claims=owner.claims,
        graph=partial(graph_line, redact=span_limits.redact) if settings.graphs != "off" else None,
        profiles=None
        if settings.sampled is None
        else Profiles(settings.sampled, span_limits.redact),
    )
    if outputs is None:
        return None
    if settings.profiles.enabled and settings.sampled is None:
        missing = "otel.files.path" if settings.files.path is None else "otel.workers.context"
        logger.warning(
            "dask-otel samples no profiles: otel.profiles.enabled also needs %s", missing
        )
    for text in long_timeouts(
        environment_of(settings.environment, settings.provider == "own").items()
    ):
        logger.warning("dask-otel: %s", text)
    folder = outputs.files
    if (
        folder is not None
        and outputs.prefix is not None
        and (reason := obstacle(outputs.prefix.parent))
    ):
        logger.warning(
            "dask-otel can't write into otel.files.path: %s. Set it to a folder that the scheduler "
            "may write to. Dask is not affected; the bridge keeps as much as its queue holds, and "
            "retries without logging each failure.",
            reason,
        )
        folder.expect_no_server()
    read = outputs.environment
    page = _make_page(outputs.resource) if settings.metrics.prometheus else None
    # With a page the metrics have a reader, so a missing server needs no hint.
    unreachable = outputs.without_server if page is None else None
    if unreachable is not None:
        unreachable.expect_no_server()
    # Page and files get batches more often than the exports of others.
    oftener = [LONGEST_PAGE_AGE] if page is not None else []
    if folder is not None and read.file_interval is not None:
        oftener.append(read.file_interval)
    interval = min(read.metric_interval, *oftener, math.inf)
    limits = SeriesLimits(
        max_names=settings.metrics.max_names,
        max_series=settings.metrics.max_series,
        retire_after_ns=int(settings.metrics.retire_after * 1e9),
        interval_ns=int(read.metric_interval * 1e9),
    )
    notices: Notices = deque(maxlen=MOST_NOTICES)
    state = partial(
        _make_state,
        limits=limits,
        sampled=outputs.sampled,
        rules=LabelRules(
            names=patterns(settings.metrics.span_names.allow, settings.metrics.span_names.deny),
            prefixes=patterns(settings.metrics.prefixes.allow, settings.metrics.prefixes.deny),
            span_label=settings.metrics.span_label,
            rules=settings.metrics.name_rules,
            tags=settings.metrics.tag_attributes,
        ),
    )
    made = partial(state, started_ns, on_folded=FoldAdvice(settings.metrics, notices))
    metrics = [(sink, made(temporality=read.temporality)) for sink in outputs.metric_sinks]
    # Prometheus has no deltas.
    shown = None if page is None else (page, made(temporality="cumulative"))
    profile_of = None if outputs.profiles is None else outputs.profiles.of
    translated = partial(translate, limits=span_limits, profile_of=profile_of)
    narrated = partial(narrate, limits=span_limits, mask=mask_of(settings))

    def exported(
        sinks: Sequence[SpanSink],
        made: Callable[..., Sequence[Any]],
        limits: PumpLimits,
        spool: Spool | None = None,
        **options: Any,
    ) -> RecordExport:
        # Of its own, because each has a thread.
        sanitizer = Sanitizer()
        made = partial(made, sanitizer=sanitizer, **options)
        return RecordExport(sinks, made, limits, sanitizer.drain, spool)

    pump = Pump(
        exported(outputs.span_sinks, translated, read.spans, _spool(settings, outputs)),
        # A batch may come slightly early or late.
        MetricExport(metrics, read.metric_interval - min(interval, RECORDED) / 2, shown),
        exported(outputs.log_sinks, narrated, read.logs, last=LastLines()),
        notices,
        RecordExport(outputs.graph_sinks, lambda graph: [graph]),
        outputs.profiles,
    )

    # What was measured until the exporters were made is in the first batch.
    since = [started_ns] if settings.report.record == "always" else []

    def recording(recorder: Recorder) -> Pump:
        (traces, values, logs), graphs = outputs.recording(recorder)
        begun = since.pop() if since else clocks.time_ns()
        made = Pump(
            exported([traces], translated, _IN_MEMORY),
            # Deltas, so that the sums of any rows are those of their time.
            MetricExport([(values, state(begun, temporality="delta"))]),
            exported([logs], narrated, _IN_MEMORY, last=LastLines()),
            graphs=RecordExport(graphs, lambda graph: [graph], _IN_MEMORY),
            within=f"{WRITTEN_WITHIN:g} s",
        )
        made.relieve(pump)
        return made

    places = [destination.name for destination in pump.destinations]
    signals = set().union(*(destination.signals for destination in pump.destinations))
    summary = (
        f"{_words(signals) or 'logs'}: {', '.join(places)}"
        if places
        else "spans and metrics: to nowhere (OTEL_TRACES_EXPORTER=none)"
    )
    found = pump.open_spool(_SPOOL_PATIENCE)
    if found:
        summary = f"{summary}; {found}"
    hint = ""
    if unreachable is not None:
        # Events alone are worth no hint: they are exported by default.
        what = _words(unreachable.signals)
        hint = _NO_LISTENER.format(unreachable.name, what) if what else ""
    if hint and found:
        hint = f"{hint}. Until then spans wait: {found}"
    states = [one for _, one in metrics] + ([] if shown is None else [shown[1]])
    # All exporters have the same, so one is enough.
    counts = partial(states[0].totals, "dask.otel.") if states else dict
    return WiredPump(pump, interval, summary, hint, page, outputs.decides, counts, owner, recording)


def disown(instance_id: str) -> None:
    """Let other bridges export under the service's name and instance that this one had."""
    with _owning:
        for identity in [one for one, its in _owners.items() if its.instance_id == instance_id]:
            _owners.pop(identity, None)


def _spool(settings: Settings, outputs: Outputs) -> Spool | None:
    """Return the unopened spool; None without one, or if no exporter can use it."""
    place = settings.spool.path
    if place is None:
        return None
    if not any(sink.key for sink in outputs.span_sinks):
        logger.warning(
            "dask-otel: otel.spool.path is %s, and no spool is used: %s. Only exporters such as "
            "otlp report which spans were accepted.",
            place,
            "the spans go to " + ", ".join(sink.destination.name for sink in outputs.span_sinks)
            if outputs.span_sinks
            else "no spans are exported",
        )
        return None
    try:
        from dask_otel.spool.files import place as full_path
        from dask_otel.spool.store import Store
    except ImportError as error:
        # Some Python builds lack SQLite.
        logger.error(
            "dask-otel runs without a spool: otel.spool.path is %s, and this Python has no "
            "sqlite3 (%s). The scheduler is not affected, and spans are exported.",
            place,
            error,
        )
        return None

    def opened() -> Store:
        from dask_otel._otel.sdk.encode import reread

        return Store.open(full_path(place), size, outputs.origin, clocks.time_ns(), reread)

    size = settings.spool.max_size
    return Spool(place, size, opened)


def _make_page(resource: Mapping[str, Any]) -> MetricPage:
    try:
        from dask_otel._prometheus.page import MetricPage
    except ImportError as error:
        raise ConfigurationError(
            [
                "otel.metrics.prometheus is true, which needs prometheus_client where the "
                f"scheduler runs ({error}); install dask-otel[prometheus] there"
            ]
        ) from error
    return MetricPage(resource, Destination("the scheduler's own HTTP server"))


def _make_state(started_ns: int, temporality: Temporality, **options: Any) -> MetricState:
    state = MetricState(started_ns, temporality=temporality, breathe=Breath(), **options)
    for time in ("idle", "unused", "lost"):
        # A closed sum needs all its parts, even those that are 0.
        state.keep((semconv.CLUSTER_TIME.name, time))
    return state
