"""Is dask-otel itself well, and is what the other dashboards show complete?"""

from __future__ import annotations

from typing import Any

from .limits import ANYTHING, limit
from .meanings import BAD, GOOD, TEXT
from .parts import Details, Line, Panel, Steps, graph, line, number, page
from .queries import CLUSTER, averaged, rates, selector, whole

#: For counters that only exist once something went wrong: 0 where the bridge runs, and nothing
#: where it does not.
NONE_YET = f"0 * sum(dask_otel_running{{{CLUSTER}}})"
BY_SIGNAL = "max by (dask_otel_signal)"
SIGNAL = "{{dask_otel_signal}}"
QUEUE = (
    f"{BY_SIGNAL} (dask_otel_queue_size{{{CLUSTER}}} / (dask_otel_queue_capacity{{{CLUSTER}}} > 0))"
)
SPOOL = (
    f"{BY_SIGNAL} (dask_otel_spool_usage_bytes{{{CLUSTER}}} / "
    f"(dask_otel_spool_limit_bytes{{{CLUSTER}}} > 0))"
)
AGE = f"dask_otel_export_last_success_age_seconds{{{CLUSTER}}}"
METRICS_AGE = AGE.replace("}", ', dask_otel_signal="metrics"}')
#: Where something waits: else a signal without a success has nothing to send.
WAITS = f"(dask_otel_queue_size{{{CLUSTER}}} > 0 or dask_otel_spool_size{{{CLUSTER}}} > 0)"
#: What a number says of a signal that waits, and had no success yet.
NEVER = -1
NOTHING_WAITS = "nothing waits"


def _trouble(title: str, read: str, series: str, label: str, steps: Steps, width: int) -> Panel:
    """Green at 0; else red, one number for each value of the label."""
    grown = f"{whole(series, label)} > 0"
    return number(
        title,
        read,
        (f"{grown} or ({NONE_YET} unless on () sum({grown}))", f"{{{{{label}}}}}"),
        unit="none",
        width=width,
        below=GOOD,
        steps=steps,
        decimals=None,
    )


def lost(width: int) -> Panel:
    """What is missing from the telemetry."""
    return _trouble(
        "Telemetry lost",
        "Spans, data points and log records, over the shown time. Anything but 0 means that "
        "something is missing. Log records for an endpoint that accepts none don't count.",
        selector("dask_otel_dropped_total", CLUSTER, 'dask_otel_reason!="unsupported"'),
        "dask_otel_reason",
        [(limit("DaskOtelDropping"), BAD)],
        width,
    ).runbook("DaskOtelDropping")


def last_export(width: int) -> Panel:
    """Whether the telemetry still arrives."""
    stopped = limit("DaskOtelSignalStopped")
    return (
        number(
            "Last export",
            "Since each signal was last exported with success, where that is longest ago. "
            f"Red from {stopped:.0f} s on, the limit of DaskOtelSignalStopped, and where spans "
            "wait that had no success yet (never). Grey: no spans wait, so none are sent.",
            (
                f"{BY_SIGNAL} (0 * ({WAITS} unless {AGE}) - {-NEVER}) or "
                f"{BY_SIGNAL} ({AGE} and {WAITS} or {METRICS_AGE})",
                SIGNAL,
            ),
            (
                f"{BY_SIGNAL} ({AGE} unless {METRICS_AGE}) unless on (dask_otel_signal) {WAITS}",
                f"{SIGNAL}, {NOTHING_WAITS}",
            ),
            unit="s",
            width=width,
            below=GOOD,
            steps=[(stopped, BAD)],
        )
        .mapped(NEVER, "never", BAD)
        .stepped(NOTHING_WAITS, TEXT, [])
        .runbook("DaskOtelSignalStopped")
    )


def _complete() -> list[Line]:
    full, spool = limit("DaskOtelQueueFull"), limit("DaskOtelSpoolFull")
    return [
        line(
            number(
                "Running",
                "Schedulers whose bridge runs. A bridge that ended properly reports 0; one that "
                "died reports nothing more (alert DaskOtelSilent).",
                (f"sum(dask_otel_running{{{CLUSTER}}})", ""),
                unit="none",
                width=4,
                decimals=0,
                steps=[(1, GOOD)],
            ).runbook("DaskOtelSilent"),
            last_export(width=7),
            number(
                "Spans that wait",
                "In the queue or, with a spool, in the file. If the number stays high and the last "
                "success is long ago, the endpoint is unreachable.",
                (
                    f"sum by (dask_otel_signal) (dask_otel_queue_size{{{CLUSTER}}})"
                    f" + (sum by (dask_otel_signal) (dask_otel_spool_size{{{CLUSTER}}})"
                    f" or 0 * sum by (dask_otel_signal) (dask_otel_queue_size{{{CLUSTER}}}))",
                    SIGNAL,
                ),
                unit="none",
                width=5,
                decimals=0,
            ).runbook("DaskOtelSignalStopped"),
            number(
                "Its queue",
                f"Spans that wait for export, as a share of the queue. Red from {full:.0%} on, the "
                "limit of DaskOtelQueueFull: when it is full, spans are dropped.",
                (QUEUE, SIGNAL),
                width=4,
                below=GOOD,
                steps=[(full, BAD)],
            ).runbook("DaskOtelQueueFull"),
            number(
                "Its spool",
                f"The file of otel.spool.path, of the size that it may have. Red from {spool:.0%} "
                "on, the limit of DaskOtelSpoolFull. No data: there is none.",
                (SPOOL, SIGNAL),
                width=4,
                below=GOOD,
                steps=[(spool, BAD)],
            ).runbook("DaskOtelSpoolFull"),
            height=4,
        ),
        line(
            lost(width=8),
            _trouble(
                "Errors of its own",
                "The bridge caught them, so Dask continues; the scheduler's log has the first "
                "of each kind.",
                selector("dask_otel_internal_errors_total", CLUSTER),
                "dask_otel_kind",
                [(limit("DaskOtelErrors"), BAD)],
                8,
            ).runbook("DaskOtelErrors"),
            number(
                "Its event loop",
                "Share of the scheduler's event loop that the bridge uses, of the time with data.",
                (averaged(selector("dask_otel_loop_time_seconds_total", CLUSTER)), ""),
                width=8,
                decimals=2,
            ),
            height=4,
        ),
        line(
            *(
                _trouble(title, read, series, "dask_otel_kind", [(ANYTHING, BAD)], 6)
                for title, read, series in _SMALLER
            ),
            height=4,
        ),
    ]


_SMALLER = (
    (
        "Names folded together",
        "Names and series beyond the caps, which are under _OTHER: raise otel.metrics.max-names, "
        "or keep ids and dates out of span names.",
        selector("dask_otel_folded_total", CLUSTER),
    ),
    (
        "Texts that were changed",
        "Texts that were cut or cleaned, by kind. Empty ones, which are called _EMPTY, are left "
        "out: nothing of them is lost.",
        selector("dask_otel_sanitized_total", CLUSTER, 'dask_otel_kind!="empty"'),
    ),
    (
        "What came late",
        "Seconds, bytes and counts that workers reported after their span was exported. The "
        "counters include them, the traces do not.",
        selector("dask_otel_late_total", CLUSTER),
    ),
    (
        "Spans that did not wait",
        "Spans exported at the settle timeout: a worker did not report their last metrics in time.",
        selector("dask_otel_unsettled_total", CLUSTER),
    ),
)


_COST = line(
    graph(
        "What does it send?",
        "Spans and data points for each second that the endpoint accepted.",
        (
            rates(selector("dask_otel_exported_total", CLUSTER), "dask_otel_signal"),
            "{{dask_otel_signal}}",
        ),
        unit="ops",
        width=8,
    ),
    graph(
        "How full is its queue?",
        "Share of its capacity that waits for export. The line is the limit of the alert "
        "DaskOtelQueueFull; at 100 % spans are dropped.",
        (
            "max by (dask_cluster_name) (dask_otel_queue_size"
            f"{{{CLUSTER}}} / (dask_otel_queue_capacity{{{CLUSTER}}} > 0))",
            "{{dask_cluster_name}}",
        ),
        unit="percentunit",
        decimals=1,
        width=8,
        lines=[(limit("DaskOtelQueueFull"), BAD)],
        empty="no spans are exported",
    ),
    graph(
        "How much event loop does it use?",
        "Seconds for each second of the scheduler's event loop, by cluster.",
        (
            rates(selector("dask_otel_loop_time_seconds_total", CLUSTER), "dask_cluster_name"),
            "{{dask_cluster_name}}",
        ),
        unit="percentunit",
        width=8,
    ),
    height=9,
)


def _when() -> tuple[Line, ...]:
    def growth(metric: str, label: str, *but: str) -> tuple[str, str]:
        series = selector(metric, CLUSTER, *but)
        return f"sum by ({label}) (increase({series}[$__rate_interval]))", f"{{{{{label}}}}}"

    return (
        line(
            graph(
                "When was something lost, and why?",
                "By reason. The next metrics contain everything again; dropped spans are lost.",
                growth(
                    "dask_otel_dropped_total", "dask_otel_reason", 'dask_otel_reason!="unsupported"'
                ),
                empty="nothing was lost in the shown time",
                decimals=None,
                width=8,
            ),
            graph(
                "When did it meet errors of its own?",
                "By hook: where in the bridge an error was caught.",
                growth("dask_otel_internal_errors_total", "dask_otel_kind"),
                empty="it met no error of its own in the shown time",
                decimals=None,
                width=8,
            ),
            graph(
                "What became of callers?",
                "Trace contexts that came with work: adopted, linked, dropped (a link beyond the "
                "31 of a span), or malformed (no context at all).",
                growth("dask_otel_callers_total", "dask_otel_kind"),
                empty="no work came with a caller's context in the shown time",
                decimals=None,
                width=8,
            ),
            height=9,
        ),
        line(
            graph(
                "What waits in the spool?",
                "Spans in the file that otel.spool.path names, until the endpoint has accepted "
                "them.",
                (
                    f"sum by (dask_cluster_name) (dask_otel_spool_size{{{CLUSTER}}})",
                    "{{dask_cluster_name}}",
                ),
                empty="no scheduler has a spool",
                decimals=None,
                width=12,
            ),
            graph(
                "How full is the spool?",
                "Share of otel.spool.max-size. The line is the limit of the alert "
                "DaskOtelSpoolFull; at 100 % the oldest spans are dropped.",
                (
                    f"max by (dask_cluster_name) (dask_otel_spool_usage_bytes{{{CLUSTER}}} / "
                    f"(dask_otel_spool_limit_bytes{{{CLUSTER}}} > 0))",
                    "{{dask_cluster_name}}",
                ),
                unit="percentunit",
                empty="no scheduler has a spool",
                decimals=1,
                width=12,
                lines=[(limit("DaskOtelSpoolFull"), BAD)],
            ),
            height=9,
        ),
    )


PAGE: Any = page(
    "Dask / Exporter health",
    "The bridge between Dask and OpenTelemetry: what it sends, drops and costs",
    ["cluster"],
    [
        "Is it complete?",
        *_complete(),
        "What does it send, and what does it cost?",
        _COST,
        Details("When did what happen?", _when()),
    ],
)
