"""Assembles the pump: exporters, totals and translation."""

from __future__ import annotations

import logging
import math
import time as clocks
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import distributed

from dask_otel import semconv
from dask_otel._version import __version__
from dask_otel.core.endpoints.address import long_timeouts
from dask_otel.core.events.lines import LastLines
from dask_otel.core.events.narration import narrate
from dask_otel.core.metrics.cardinality import SeriesLimits
from dask_otel.core.metrics.labels import LabelRules, Patterns
from dask_otel.core.metrics.state import MetricState
from dask_otel.core.records import (
    Temporality,
)
from dask_otel.core.text import ATTRIBUTE_LIMIT, STACKTRACE_LIMIT, Sanitizer
from dask_otel.core.trace import Trace
from dask_otel.core.traces.translate import translate
from dask_otel.core.traces.values import SpanLimits
from dask_otel.pump.breath import Breath
from dask_otel.pump.feeder import Spool
from dask_otel.pump.health import MOST_NOTICES, Notices
from dask_otel.pump.pump import Pump
from dask_otel.pump.rotated import obstacle
from dask_otel.scheduler.advice import FoldAdvice
from dask_otel.scheduler.redaction import load_redaction
from dask_otel.settings.keys import ConfigurationError, Settings
from dask_otel.settings.origins import mask_of
from dask_otel.settings.variables import environment_of

if TYPE_CHECKING:
    from dask_otel._otel.sdk.files import FileTarget
    from dask_otel._otel.sdk.outputs import Outputs
    from dask_otel._prometheus.page import MetricPage
    from dask_otel.spool.store import Store

logger = logging.getLogger("distributed.dask_otel")

#: The greatest age of the page for scrapers in seconds, for any export interval.
LONGEST_PAGE_AGE: Final = 15.0
#: The longest wait for the spool's content, in seconds; the export then begins without it.
_SPOOL_PATIENCE: Final = 10.0
#: By name and instance of a service, the id of the scheduler whose bridge exports under them.
_owners: Final[dict[tuple[str, str], str]] = {}

_NO_LISTENER: Final = (
    "dask-otel: nothing listens at {}, OpenTelemetry's default, so {} can't be seen: no other "
    "place is configured for them. Set otel.files.path (DASK_OTEL__FILES__PATH=DIR) to write "
    "files, or OTEL_EXPORTER_OTLP_ENDPOINT to send everything to a collector. If a collector "
    "starts at the default endpoint later, the bridge uses it. See "
    "https://github.com/dask-otel/dask-otel#use-it"
)


@dataclass(frozen=True, slots=True)
class WiredPump:
    """A pump that has not been started, and the bridge's facts about it."""

    pump: Pump
    #: Seconds between two batches of metrics.
    metric_interval: float
    #: For the log: the destinations.
    summary: str
    #: For the log: a remedy if nothing listens; else empty.
    hint: str = ""
    #: The page for scrapers; None without one.
    page: MetricPage | None = None
    #: Decides whether a trace is sampled, once.
    decides: Callable[[Trace], bool] | None = None
    #: Returns the bridge's own counts at the last export, by metric and label values.
    counts: Callable[[], dict[tuple[str, ...], float]] = dict


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
        exceptions=spans.max_exceptions,
        task_keys=spans.task_keys,
        code=spans.code,
        redact=None if settings.redact is None else load_redaction(settings.redact),
    )
    target = file_target(settings)
    outputs = _otel.build(
        settings.environment,
        service_name="dask-scheduler",
        instance_id=instance_id,
        service_version=distributed.__version__,
        cluster_name=settings.cluster_name,
        version=__version__,
        files=target,
        started_ns=started_ns,
        own_provider=settings.provider == "own",
        logs=settings.logs.exported,
        owners=_owners,
    )
    if outputs is None:
        return None
    for text in long_timeouts(
        environment_of(settings.environment, settings.provider == "own").items()
    ):
        logger.warning("dask-otel: %s", text)
    known = []
    if target is not None and (reason := obstacle(Path(target.path).expanduser())):
        logger.warning(
            "dask-otel can't write into otel.files.path: %s. Set it to a folder that the scheduler "
            "may write to. Dask is not affected; the bridge keeps as much as its queue holds, and "
            "retries without logging each failure.",
            reason,
        )
        known = [sink.name for sink in outputs.span_sinks if sink.name.startswith("files in ")]
    read = outputs.environment
    sanitizer = Sanitizer()
    page = _make_page(outputs.resource) if settings.metrics.prometheus else None
    # With a page the metrics have a reader, so a missing server needs no hint.
    unreachable = outputs.without_server if page is None else None
    interval = min(read.metric_interval, math.inf if page is None else LONGEST_PAGE_AGE)
    if outputs.hurried:
        interval = min(interval, read.file_interval or interval)
    limits = SeriesLimits(
        max_names=settings.metrics.max_names,
        max_series=settings.metrics.max_series,
        retire_after_ns=int(settings.metrics.retire_after * 1e9),
        interval_ns=int(read.metric_interval * 1e9),
    )
    notices: Notices = deque(maxlen=MOST_NOTICES)
    state = partial(
        _make_state,
        started_ns,
        limits=limits,
        sampled=outputs.sampled,
        rules=LabelRules(
            names=Patterns(settings.metrics.span_names.allow, settings.metrics.span_names.deny),
            prefixes=Patterns(settings.metrics.prefixes.allow, settings.metrics.prefixes.deny),
            span_label=settings.metrics.span_label,
            rules=settings.metrics.name_rules,
            tags=settings.metrics.tag_attributes,
        ),
        on_folded=FoldAdvice(settings.metrics, notices),
    )
    metrics = [(sink, state(temporality=read.temporality)) for sink in outputs.metric_sinks]
    # Prometheus has no deltas.
    shown = None if page is None else (page, state(temporality="cumulative"))
    pump = Pump(
        outputs.span_sinks,
        metrics,
        partial(translate, limits=span_limits, sanitizer=sanitizer),
        read.spans,
        sanitizer.drain,
        page=shown,
        without_server=known if unreachable is None else [unreachable, *known],
        # Page and files get batches more often than exports, slightly early or late.
        metric_interval=(
            read.metric_interval - interval / 2 if page is not None or outputs.hurried else 0.0
        ),
        hurried=outputs.hurried,
        spool=_spool(settings, outputs),
        log_sinks=outputs.log_sinks,
        narrate=partial(
            narrate,
            limits=span_limits,
            sanitizer=sanitizer,
            mask=mask_of(settings),
            last=LastLines(),
        ),
        log_limits=read.logs,
        notices=notices,
    )
    places = [
        sink.name for sink in (*outputs.span_sinks, *outputs.metric_sinks, *outputs.log_sinks)
    ]
    summary = ", ".join(dict.fromkeys(places)) or "to nowhere (OTEL_TRACES_EXPORTER=none)"
    found = pump.open_spool(_SPOOL_PATIENCE)
    if found:
        summary = f"{summary}; {found}"
    # Events alone are worth no hint: they are exported by default.
    what = [
        signal
        for signal, made in (("spans", outputs.span_sinks), ("metrics", outputs.metric_sinks))
        if unreachable in [sink.name for sink in made]
    ]
    hint = _NO_LISTENER.format(unreachable, " and ".join(what)) if what else ""
    if hint and found:
        hint = f"{hint}. Until then spans wait: {found}"
    states = [one for _, one in metrics] + ([] if shown is None else [shown[1]])
    # All exporters have the same, so one is enough.
    counts = partial(states[0].totals, "dask.otel.") if states else dict
    return WiredPump(pump, interval, summary, hint, page, outputs.decides, counts)


def disown(instance_id: str) -> None:
    """Let other bridges export under the service's name and instance that this one had."""
    for identity in [one for one, owner in [*_owners.items()] if owner == instance_id]:
        _owners.pop(identity, None)


def file_target(settings: Settings) -> FileTarget | None:
    """Return the folder and limits of telemetry files; None without files."""
    from dask_otel._otel.sdk.files import FileTarget

    files = settings.files
    return None if files.path is None else FileTarget(files.path, files.max_size, files.max_files)


def _spool(settings: Settings, outputs: Outputs) -> Spool | None:
    """Return the unopened spool; None without one, or if no exporter can use it."""
    place = settings.spool.path
    if place is None:
        return None
    keys = [sink.key or "" for sink in outputs.span_sinks]
    if not any(keys):
        logger.warning(
            "dask-otel: otel.spool.path is %s, and no spool is used: %s. Only exporters such as "
            "otlp report which spans were accepted.",
            place,
            "the spans go to " + ", ".join(sink.name for sink in outputs.span_sinks)
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
    return Spool(place, size, opened, keys)


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
    return MetricPage(resource)


def _make_state(started_ns: int, temporality: Temporality, **options: Any) -> MetricState:
    state = MetricState(started_ns, temporality=temporality, breathe=Breath(), **options)
    for time in ("idle", "unused", "lost"):
        # A closed sum needs all its parts, even those that are 0.
        state.keep((semconv.CLUSTER_TIME.name, time))
    return state
