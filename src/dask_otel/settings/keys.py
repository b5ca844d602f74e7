"""The bridge's own configuration: the section ``otel`` of Dask's configuration, parsed once.

Importing this module puts the shipped defaults (``otel.yaml``) into ``dask.config``, below
everything that the user has set, as Dask's satellites do. It writes no file.

Where OpenTelemetry has a standard variable (endpoint, headers, sampler, queue size) there is
no key here. Every key has its default, its rule and its meaning here (``otel.metrics.*`` in
`dask_otel.settings.metrics`); ``otel.yaml``,
``otel-schema.yaml`` and the table in ``docs/configuration.md`` are made of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Final, Literal

from dask_otel.settings.defaults import put_into_dask
from dask_otel.settings.knob import KNOB, Knob
from dask_otel.settings.knob import knob as _knob
from dask_otel.settings.metrics import MetricSettings, PatternSettings
from dask_otel.settings.problems import ConfigurationError
from dask_otel.settings.rules import (
    DAY,
    HOUR,
    YEAR,
    baggage_keys,
    cluster_name,
    count,
    duration,
    duration_or_never,
    file_path,
    flag,
    function_name,
    one_of,
    propagation,
    ratio,
    size,
    trace_url,
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
    "Settings",
    "SpanSettings",
    "SpoolSettings",
    "TaskSettings",
    "WorkerSettings",
]

# ------------------------------------------------------------------------------ settings


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """Section ``otel.spans.tasks``: which tasks have spans of their own."""

    slowest: int = _knob(
        "1",
        count(0, 1000),
        """
        How many of each task group's runs have a span of their own because they took longest

        None with `otel.spans.detail: span`. Runs that failed for good have one anyway. See
        [task spans](lifecycle.md#task-spans).
        """,
    )
    ratio: float = _knob(
        "0.0",
        ratio(),
        """
        Which part of all tasks has a span of its own, chosen by a hash of the key

        The same tasks are chosen everywhere and each time. Where the worker's part runs, what the
        user's code in such a task makes hangs below the task's span.
        """,
    )
    max: int = _knob(
        "100",
        count(0, 10_000),
        """
        Tasks with spans of their own below one span: those that failed, then the longest; 0 for
        none at all

        The others are counted in `dask.span.dropped_task.count`.
        """,
    )

    @property
    def chosen(self) -> float:
        """The ratio as it is in force."""
        return self.ratio if self.max else 0.0


@dataclass(frozen=True, slots=True)
class SpanSettings:
    """Section ``otel.spans``. Durations are seconds."""

    default: Literal["export", "metrics-only"] = _knob(
        "export",
        one_of("export", "metrics-only"),
        """
        What happens with work outside every `distributed.span`

        Dask books it on spans named `default`. `export` makes traces of these, too;
        `metrics-only` counts their work in the metrics and exports no trace.
        """,
    )
    detail: Literal["span", "group"] = _knob(
        "group",
        one_of("span", "group"),
        """
        What a trace shows below a Dask span

        `group` adds one child span for each task group, which shows what work filled the span, and
        its slowest tasks; `span` leaves these out.
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
        A continuation that starts later than this after the root's previous generation begins a
        new trace, linked to the first
        """,
    )
    max_per_trace: int = _knob(
        "5000",
        count(1, 1_000_000),
        "Spans of one root in a trace, after which a continuation begins a new trace, with a link",
    )
    max_exceptions: int = _knob("16", count(0, 128), "Exception events on one span")
    exception_message: bool = _knob(
        "true",
        flag(),
        """
        Whether the messages of exceptions are exported

        They can hold data.
        """,
    )
    exception_stacktrace: bool = _knob(
        "true",
        flag(),
        """
        Whether the stack traces of exceptions are exported

        They can hold data.
        """,
    )
    code: bool = _knob(
        "true",
        flag(),
        """
        Whether file, line and function of the code that submitted a span's work are exported

        Where Dask collects it. Never the code itself.
        """,
    )
    task_keys: bool = _knob(
        "true",
        flag(),
        """
        Whether the keys of tasks are exported

        Names of groups and prefixes, which Dask makes of keys, stay.
        """,
    )
    redact: str | None = _knob(
        "null",
        function_name(),
        """
        A function, `module:function`, that is asked about each text of a user's before it is
        exported in a trace; `null` for none

        It gets the name of the attribute and the text, and returns the text to export, or `None`
        for none. Taken from the scheduler's own configuration, never from `register()`. See
        [Redaction](security.md#redaction).
        """,
    )
    progress_after: float | None = _knob(
        "60s",
        duration_or_never(0, YEAR),
        """
        Age at which a span that has not ended [shows itself](lifecycle.md#long-spans) in its trace;
        `null` for never

        A child span marks its start, others follow as it goes on.
        """,
    )
    progress_interval: float = _knob(
        "5 minutes",
        duration(1, YEAR),
        """
        The least time between two children that show the progress of a long span

        It grows with the span's age: at least a tenth of it passes between two.
        """,
    )
    remember: int = _knob(
        "10000",
        count(1, 10_000_000),
        """
        How many exported spans are kept in mind, so that later work on them becomes a continuation
        """,
    )
    baggage: tuple[str, ...] = _knob(
        "[]",
        baggage_keys(),
        """
        Keys of the caller's baggage that become attributes of the Dask spans that begin with its
        work

        Under the same keys. The client must send it: `otel.baggage`. What it says is exported as it
        is, so name no keys that hold secrets. See [baggage](context.md#baggage).
        """,
    )
    tasks: TaskSettings = field(default_factory=TaskSettings)


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Section ``otel.workers``."""

    context: bool = _knob(
        "true",
        flag(),
        """
        Whether the Dask span of a task is the current OpenTelemetry span while the task runs

        What libraries and user code trace in tasks becomes part of its trace. The bridge brings
        this to all workers by itself; those without the package do nothing.
        See [Trace context](context.md#in-tasks).
        """,
    )


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Section ``otel.logs``."""

    inject: bool = _knob(
        "false",
        flag(),
        """
        Whether log records of workers name the trace, the span and the task that they come from

        By `trace_id`, `span_id`, `trace_flags`, `dask.span.name` and `dask.task.key`: for those who
        do not use OpenTelemetry's own logging instrumentation. Needs `otel.workers.context`.
        See [Trace context](context.md#in-logs).
        """,
    )


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Section ``otel.client``: what runs beside the user's code."""

    span_per_caller: bool = _knob(
        "false",
        flag(),
        """
        Whether work under a caller's span without a Dask span gets one Dask span for each caller's
        span

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
        file_path(),
        """
        A folder into which all that is exported is written, as files of OTLP/JSON; `null` for none

        They are the scheduler's. Unless the standard variables name an exporter or an endpoint for
        a signal, it is then sent nowhere else. See [Files](files.md).
        """,
    )
    max_size: int = _knob(
        "100 MB",
        size(100_000, 10**12),
        "Bytes after which another file begins, for each signal",
    )
    max_files: int = _knob(
        "10",
        count(1, 100_000),
        """
        Files of one signal that are kept of one run of the scheduler

        The oldest are removed. Files of other runs are left alone.
        """,
    )


@dataclass(frozen=True, slots=True)
class SpoolSettings:
    """Section ``otel.spool``."""

    path: str | None = _knob(
        "null",
        file_path(),
        """
        A file on a local disk that keeps spans until the endpoint has taken them; `null` for none

        What waits in it when the scheduler ends or is killed goes out when the next one starts with
        the same path, or by `dask-otel spool --send`. It is one scheduler's at a time, and
        its folder has to be there. See [The spool](spool.md).
        """,
    )
    max_size: int = _knob(
        "256 MiB",
        size(1_000_000, 10**12),
        """
        Bytes that this file may have

        When it is full, the oldest spans are dropped, and counted in `dask.otel.dropped`.
        """,
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one bridge. Durations are seconds."""

    enabled: bool = _knob(
        "true",
        flag(),
        """
        Whether the bridge runs

        With `false` the preload does nothing: no thread, no callback, no export.
        """,
    )
    cluster_name: str | None = _knob(
        "null",
        cluster_name(),
        """
        The resource attribute `dask.cluster.name`

        With `null` it is what the operator, the gateway or Coiled puts into the environment, and
        where there is none, `service.name`. Digits alone need quotes within quotes in the
        environment variable: `"'2026'"`.
        """,
    )
    close_timeout: float = _knob(
        "5s",
        duration(0, HOUR),
        """
        The longest time that the bridge may delay the close of the scheduler

        What could not be exported by then is dropped.
        """,
    )
    propagation: Literal["adopt", "link", "off"] = _knob(
        "adopt",
        propagation(),
        """
        What becomes of the span that is current where work is submitted

        `adopt` makes the Dask root its child, in its trace; `link` leaves the Dask root a trace of
        its own, with a link; `off` ignores it. On the client it says which trace its links name.
        See [the caller](context.md#the-caller).
        """,
    )
    baggage: bool = _knob(
        "false",
        flag(),
        """
        Whether the caller's baggage travels with its context

        At most 8192 characters of it, with the message of each task. Read on the client.
        """,
    )
    provider: Literal["global", "own"] = _knob(
        "global",
        one_of("global", "own"),
        """
        Where the Dask spans go if the application has set a global tracer provider in the
        scheduler's process

        `global` sends them through that one, with its resource and so its `service.name`. `own`
        leaves it alone: the bridge has exporters and a resource of its own, and
        `otel.environment` wins over the environment, which is the application's. See [an
        application in the same process](context.md#an-application-in-the-schedulers-process).
        """,
    )
    trace_url: str | None = _knob(
        "null",
        trace_url(),
        """
        Where a trace can be looked at; `null` for no links

        An http or https address in which `{trace_id}` and `{span_id}` stand for the ids. Read where
        links are shown: on the client. See [links to a trace](context.md#links-to-a-trace).
        """,
    )
    #: OTEL_* variable: value, for those that the scheduler's environment does not set.
    #: Not in the repr: headers can hold credentials. A plain dict, as it has to be pickled.
    environment: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    client: ClientSettings = field(default_factory=ClientSettings)
    spans: SpanSettings = field(default_factory=SpanSettings)
    metrics: MetricSettings = field(default_factory=MetricSettings)
    workers: WorkerSettings = field(default_factory=WorkerSettings)
    logs: LogSettings = field(default_factory=LogSettings)
    files: FileSettings = field(default_factory=FileSettings)
    spool: SpoolSettings = field(default_factory=SpoolSettings)


def _sections(name: str, owner: type[Any]) -> dict[str, type[Any]]:
    """Return a section and those in it, by their names."""
    found = {name: owner}
    for known in fields(owner):
        if is_dataclass(known.default_factory):
            inner = f"{name}.{known.name.replace('_', '-')}"
            found |= _sections(inner, known.default_factory)
    return found


#: All sections with fixed names, and what holds their settings.
SECTIONS: Final[Mapping[str, type[Any]]] = _sections("otel", Settings)

put_into_dask()
