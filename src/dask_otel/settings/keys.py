"""The bridge's own configuration: the section ``otel`` of Dask's configuration, parsed once.

Importing this module adds the shipped defaults (``otel.yaml``) to ``dask.config``, below all the
user's settings, as Dask's companion packages do. It writes no file.

If OpenTelemetry has a standard variable (endpoint, headers, sampler, queue size), there is no key.
Every key has its default, its rule and its meaning here (``otel.metrics.*`` in
`dask_otel.settings.metrics`). ``otel.yaml``, ``otel-schema.yaml`` and the table in
``docs/configuration.md`` are generated from them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Final, Literal

from dask_otel.settings.defaults import put_into_dask
from dask_otel.settings.knob import KNOB, Knob
from dask_otel.settings.knob import knob as _knob
from dask_otel.settings.metrics import MetricSettings, PatternSettings
from dask_otel.settings.problems import ConfigurationError
from dask_otel.settings.rules import (
    BAGGAGE_KEYS,
    CLUSTER_NAME,
    DAY,
    ENVIRONMENT_SCHEMA,
    FILE_PATH,
    FLAG,
    FUNCTION_NAME,
    HOUR,
    LEVEL,
    PROPAGATION,
    RATIO,
    TOPICS,
    TRACE_URL,
    VARIABLE,
    YEAR,
    count,
    duration,
    duration_or_never,
    one_of,
    size,
)

__all__ = [
    "KNOB",
    "ClientSettings",
    "ConfigurationError",
    "FileSettings",
    "Knob",
    "LogSettings",
    "MetricSettings",
    "PatternSettings",
    "ProfileSettings",
    "ReportSettings",
    "Settings",
    "SpanSettings",
    "SpoolSettings",
    "TaskSettings",
    "WorkerSettings",
]

# ------------------------------------------------------------------------------ settings


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """Section ``otel.spans.tasks``: the tasks with spans of their own."""

    slowest: int = _knob(
        "1",
        count(0, 1000),
        """
        The number of runs of each task group that have a span of their own, the longest ones

        None with `otel.spans.detail: span`. Failed runs always have one. See
        [task spans](lifecycle.md#task-spans).
        """,
    )
    ratio: float = _knob(
        "0.0",
        RATIO,
        """
        The share of all tasks that have a span of their own, chosen by a hash of the key

        The same tasks are chosen everywhere and each time. With `otel.workers.context`, spans that
        code in such a task makes are children of the task's span.
        """,
    )
    max: int = _knob(
        "100",
        count(0, 10_000),
        """
        Tasks with spans of their own below one span, failed ones first, then the longest; 0 for
        none

        The others are counted in `dask.span.dropped_task.count`.
        """,
    )

    @property
    def chosen(self) -> float:
        """The effective ratio."""
        return self.ratio if self.max else 0.0


@dataclass(frozen=True, slots=True)
class SpanSettings:
    """Section ``otel.spans``. Durations are seconds."""

    default: Literal["export", "metrics-only"] = _knob(
        "export",
        one_of("export", "metrics-only"),
        """
        How work outside every `distributed.span` is exported

        Dask books it on spans named `default`. `export` makes traces of these, too;
        `metrics-only` counts their work in the metrics and exports no trace.
        """,
    )
    detail: Literal["span", "group"] = _knob(
        "group",
        one_of("span", "group"),
        """
        What a trace shows below a Dask span

        `group` adds one child span for each task group, and below it its slowest tasks; `span`
        leaves these out.
        """,
    )
    path: bool = _knob(
        "true",
        FLAG,
        """
        Whether each span says [what bounded its duration](why.md)

        The parts are in `dask.span.path.*`, and in the spans of the tasks on its path.
        """,
    )
    graph: bool = _knob(
        "true",
        FLAG,
        """
        Whether the [graph of each root span](files.md#graph-logs) is recorded, for files and for
        reports from memory

        It has what a replay needs of each run of a task, without keys. It is only recorded with
        `otel.files.path`, with `otel.report.record: always`, or while a client is in a
        `performance_report`. Needs `otel.spans.path`.
        """,
    )
    memory: bool = _knob(
        "true",
        FLAG,
        """
        Whether the [results in memory](telemetry.md#results-in-memory) are followed: their spans,
        their sizes, and how long they stay

        `dask.span.memory.*`, `dask.span.worker_memory.*` and `dask.cluster.memory.*` need it.
        """,
    )
    linger: float = _knob(
        "2s",
        duration(0, DAY),
        """
        How long a settled span waits for more work before it is exported

        New work in this time re-opens the span; new work after it becomes a continuation.
        """,
    )
    settle_timeout: float = _knob(
        "30s",
        duration(0, DAY),
        """
        The longest wait for the last heartbeats of the workers that ran a span's tasks

        After it the span is exported, and counted in `dask.otel.unsettled`.
        """,
    )
    max_groups: int = _knob(
        "64",
        count(0, 10_000),
        """
        Task groups exported for one span, the longest first

        The others are counted in `dask.span.dropped.count`.
        """,
    )
    trace_gap: float = _knob(
        "1h",
        duration(0, YEAR),
        """
        Longest pause after the root's previous generation for a continuation in the same trace

        A continuation that starts later is in a new trace, linked to the first.
        """,
    )
    max_per_trace: int = _knob(
        "5000",
        count(1, 1_000_000),
        "Spans of one root in a trace; beyond that, a continuation begins a new trace, with a link",
    )
    max_exceptions: int = _knob("16", count(0, 128), "Exception events on one span")
    exception_message: bool = _knob(
        "true",
        FLAG,
        """
        Whether the messages of exceptions are exported

        They can hold data.
        """,
    )
    exception_stacktrace: bool = _knob(
        "true",
        FLAG,
        """
        Whether the stack traces of exceptions are exported

        They can hold data.
        """,
    )
    code: bool = _knob(
        "true",
        FLAG,
        """
        Whether file, line and function of the code that submitted a span's work are exported

        They are absent if Dask does not collect code. The code itself is never exported.
        """,
    )
    task_keys: bool = _knob(
        "true",
        FLAG,
        """
        Whether the keys of tasks are exported

        The names of groups and prefixes, which Dask makes of keys, always are.
        """,
    )
    progress_after: float | None = _knob(
        "60s",
        duration_or_never(0, YEAR),
        """
        Age at which a span that has not ended [shows itself](lifecycle.md#long-spans) in its trace;
        `null` for never

        One child span marks its start, others follow while it goes on.
        """,
    )
    progress_interval: float = _knob(
        "5 minutes",
        duration(1, YEAR),
        """
        The shortest time between two children that show the progress of a long span

        It grows with the span: at least a tenth of its age.
        """,
    )
    remember: int = _knob(
        "10000",
        count(1, 10_000_000),
        """
        How many exported spans are remembered, so that later work on them becomes a continuation
        """,
    )
    baggage: tuple[str, ...] = _knob(
        "[]",
        BAGGAGE_KEYS,
        """
        Keys of the caller's baggage that become attributes of the Dask spans that begin with its
        work

        The attributes have the same keys. The client must send the baggage: `otel.baggage`. The
        values are exported, so name no keys that hold secrets. See
        [baggage](context.md#baggage).
        """,
    )
    tasks: TaskSettings = field(default_factory=TaskSettings)


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Section ``otel.workers``."""

    context: bool = _knob(
        "true",
        FLAG,
        """
        Whether the Dask span of a task is the current OpenTelemetry span while the task runs

        Spans that libraries and user code make in tasks become part of its trace. The bridge sets
        this up on all workers by itself; workers without the package do nothing.
        See [Trace context](context.md#in-tasks).
        """,
    )


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Section ``otel.logs``."""

    inject: bool = _knob(
        "false",
        FLAG,
        """
        Whether log records of workers name the trace, the span and the task that they come from

        The fields are `trace_id`, `span_id`, `trace_flags`, `dask.span.name` and `dask.task.key`.
        Not needed with OpenTelemetry's own logging instrumentation. Needs `otel.workers.context`.
        See [Trace context](context.md#in-logs).
        """,
    )
    events: bool = _knob(
        "true",
        FLAG,
        """
        Whether [events of the cluster](logs.md) are exported as log records

        They say, for example, why a worker was lost. If an endpoint accepts no logs, the bridge
        tries again each hour.
        """,
    )
    topics: tuple[str, ...] = _knob(
        "[]",
        TOPICS,
        """
        Topics of Dask's event log whose messages are exported as log records, too

        Use it for messages of your own, from `Client.log_event` and `Worker.log_event`. See
        [your own events](logs.md#your-own-events).
        """,
    )
    level: str = _knob(
        "'off'",
        LEVEL,
        """
        The least level of workers' log records that are [exported](logs.md#logs-of-workers), with
        the trace, the span and the task that they come from

        `WARNING` is a good first choice. Needs `otel.workers.context`. Their number is limited for
        each worker, and for all workers together.
        """,
    )

    @property
    def exported(self) -> bool:
        """Whether there may be log records."""
        return self.events or bool(self.topics) or self.least is not None

    @property
    def least(self) -> int | None:
        """Python's number of the level; None for none."""
        return None if self.level == "off" else int(logging.getLevelName(self.level))


@dataclass(frozen=True, slots=True)
class ProfileSettings:
    """Section ``otel.profiles``."""

    enabled: bool = _knob(
        "false",
        FLAG,
        """
        Whether workers sample what their tasks do, for [a profile of each span](profiles.md)

        Needs `otel.files.path`, where the profiles are written, and `otel.workers.context`.
        """,
    )
    interval: float = _knob(
        "20ms",
        duration(0.005, 60),
        """
        The least time between two samples

        It is longer where samples would take more than 0.5 % of a worker's CPU.
        """,
    )


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Section ``otel.client``: the client side."""

    span_per_caller: bool = _knob(
        "false",
        FLAG,
        """
        Whether work outside all Dask spans gets a Dask span for each OpenTelemetry span that it is
        submitted in

        It takes the place of `default`. Dask never forgets a span, about 680 bytes each, and its
        name is a metric label: [read this first](context.md#one-dask-span-per-caller). Read on the
        client.
        """,
    )


@dataclass(frozen=True, slots=True)
class FileSettings:
    """Section ``otel.files``."""

    path: str | None = _knob(
        "null",
        FILE_PATH,
        """
        A folder on the scheduler's machine for files of OTLP/JSON with all that is exported; `null`
        for none

        A signal is then sent elsewhere only if the standard variables name an exporter or an
        endpoint for it. See [Files](files.md).
        """,
    )
    max_size: int = _knob(
        "100 MB",
        size(100_000, 10**12),
        "Size after which the next file of a signal begins",
    )
    max_files: int = _knob(
        "10",
        count(1, 100_000),
        """
        How many files of one signal and one run of the scheduler are kept

        The oldest are removed. Files of other runs are left alone.
        """,
    )


@dataclass(frozen=True, slots=True)
class SpoolSettings:
    """Section ``otel.spool``."""

    path: str | None = _knob(
        "null",
        FILE_PATH,
        """
        A file on a local disk that keeps spans until the endpoint has accepted them; `null` for
        none

        Spans that wait in it when the scheduler ends or is killed are sent by the next scheduler
        with the same path, or by `dask-otel spool --send`. One scheduler uses it at a time; its
        folder must exist. See [The spool](spool.md).
        """,
    )
    max_size: int = _knob(
        "256 MiB",
        size(1_000_000, 10**12),
        """
        The largest size of this file

        When it is full, the oldest spans are dropped, and counted in `dask.otel.dropped`.
        """,
    )


@dataclass(frozen=True, slots=True)
class ReportSettings:
    """Section ``otel.report``."""

    record: Literal["asked", "always"] = _knob(
        "asked",
        one_of("asked", "always"),
        """
        When the scheduler keeps its telemetry in memory, for reports of a running cluster

        `asked`: while a client is in a block of `dask_otel.performance_report`; `always`: from the
        start, with [a page beside Dask's dashboard](report.md#beside-dasks-dashboard). See [the
        report of a block](performance_report.md#in-the-schedulers-memory).
        """,
    )
    memory: int = _knob(
        "64 MiB",
        size(1_000_000, 10**12),
        """
        The most memory for that telemetry, which is compressed

        When it is full, the oldest traces are removed first; a report says so.
        """,
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one bridge. Durations are seconds."""

    enabled: bool = _knob(
        "true",
        FLAG,
        """
        Whether the bridge runs

        With `false` the preload does nothing: no thread, no callback, no export.
        """,
    )
    cluster_name: str | None = _knob(
        "null",
        CLUSTER_NAME,
        """
        The resource attribute `dask.cluster.name`

        With `null` it is the name that the operator, the gateway or Coiled puts into the
        environment, otherwise `service.name`. In the environment variable, digits alone need quotes
        within quotes: `"'2026'"`.
        """,
    )
    close_timeout: float = _knob(
        "5s",
        duration(0, HOUR),
        """
        The longest time that the bridge may delay the close of the scheduler

        Telemetry that is not exported by then is dropped.
        """,
    )
    propagation: Literal["adopt", "link", "off"] = _knob(
        "adopt",
        PROPAGATION,
        """
        What the caller is used for: the span that is current where work is submitted

        `adopt` makes the Dask root its child, in its trace; `link` gives the Dask root a trace of
        its own, with a link to the caller; `off` ignores the caller. The client uses this key to
        choose the trace that links point to. See [the caller](context.md#the-caller).
        """,
    )
    baggage: bool = _knob(
        "false",
        FLAG,
        """
        Whether the caller's baggage travels with its context

        At most 8192 characters travel, with the message of each task. Read on the client.
        """,
    )
    provider: Literal["global", "own"] = _knob(
        "global",
        one_of("global", "own"),
        """
        Where the Dask spans go if the application has set a global tracer provider in the
        scheduler's process

        `global` sends them through that provider, with its resource and so its `service.name`. With
        `own`, the bridge has exporters and a resource of its own, and `otel.environment` takes
        precedence over the process's environment, which is the application's. See [an application
        in the same process](context.md#an-application-in-the-schedulers-process).
        """,
    )
    trace_url: str | None = _knob(
        "null",
        TRACE_URL,
        """
        The address of a trace's page; `null` for no links

        An http or https address in which `{trace_id}` and `{span_id}` stand for the ids. Read on
        the client, where links are shown. See [links to a trace](context.md#links-to-a-trace).
        """,
    )
    #: Not in the repr: headers can hold credentials. A plain dict, because it is pickled.
    environment: Mapping[str, str] = _knob(
        "{}",
        VARIABLE._replace(schema=ENVIRONMENT_SCHEMA),
        """
        Values for `OTEL_*` variables that the environment of the scheduler does not set

        Use it where Dask's configuration can be set but the environment cannot. A variable
        of the environment has priority, except with `otel.provider: own`. Names must begin with
        `OTEL_`. See [below](configuration.md#when-the-environment-cannot-be-set).
        """,
        default_factory=dict,
        repr=False,
        hash=False,
    )
    redact: str | None = _knob(
        "null",
        FUNCTION_NAME,
        """
        A function, `module:function`, that the bridge calls with each text from users before it
        exports the text in a trace or a log record; `null` for none

        It gets the name of the attribute (`body` for the text of a log record) and the text, and
        returns the text to export, or `None` for none. It is read from the scheduler's own
        configuration, never from `register()`. See [Redaction](security.md#redaction).
        """,
    )
    client: ClientSettings = field(default_factory=ClientSettings)
    spans: SpanSettings = field(default_factory=SpanSettings)
    metrics: MetricSettings = field(default_factory=MetricSettings)
    workers: WorkerSettings = field(default_factory=WorkerSettings)
    logs: LogSettings = field(default_factory=LogSettings)
    files: FileSettings = field(default_factory=FileSettings)
    spool: SpoolSettings = field(default_factory=SpoolSettings)
    report: ReportSettings = field(default_factory=ReportSettings)
    profiles: ProfileSettings = field(default_factory=ProfileSettings)

    @property
    def sampled(self) -> float | None:
        """Seconds between two samples of workers' threads; None for none."""
        wanted = self.profiles.enabled and self.files.path is not None and self.workers.context
        return self.profiles.interval if wanted else None

    @property
    def graphs(self) -> Literal["always", "asked", "off"]:
        """When graph logs are recorded: always, or while a client asks for a report."""
        if not (self.spans.graph and self.spans.path):
            return "off"
        kept = self.files.path is not None or self.report.record == "always"
        return "always" if kept else "asked"


def _sections(name: str, owner: type[Any]) -> dict[str, type[Any]]:
    """Return a section and its subsections by name."""
    found = {name: owner}
    for known in fields(owner):
        if is_dataclass(known.default_factory):
            inner = f"{name}.{known.name.replace('_', '-')}"
            found |= _sections(inner, known.default_factory)
    return found


#: All sections with fixed names, and the classes of their settings.
SECTIONS: Final[Mapping[str, type[Any]]] = _sections("otel", Settings)
#: Section: every name in it, with subsections, as dask.config.canonical_name needs it.
NAMES: Final[Mapping[str, Mapping[str, None]]] = {
    section: dict.fromkeys(known.name.replace("_", "-") for known in fields(owner))
    for section, owner in SECTIONS.items()
}
#: Every key, in the order of the documentation.
KNOBS: Final[Mapping[str, Knob]] = {
    f"{section}.{known.name.replace('_', '-')}": known.metadata[KNOB]
    for section, owner in SECTIONS.items()
    for known in fields(owner)
    if KNOB in known.metadata
}

put_into_dask()
