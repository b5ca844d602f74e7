"""Is dask-otel itself well, and is what the other dashboards show complete?"""

from __future__ import annotations

from typing import Any

from .limits import ANYTHING, limit, seconds
from .meanings import BAD, GOOD
from .parts import Details, Line, Panel, Steps, cluster, graph, line, number, page
from .queries import CLUSTER, averaged, rates, selector, whole

#: For counters that only exist once something went wrong: 0 where the bridge runs, and nothing
#: where it does not.
NONE_YET = f"0 * sum(dask_otel_running{{{CLUSTER}}})"
NO_BRIDGE = "no bridge"
QUEUE = f"max(dask_otel_queue_size{{{CLUSTER}}} / (dask_otel_queue_capacity{{{CLUSTER}}} > 0))"


def build() -> Any:
    return page(
        "Dask / Exporter health",
        "The bridge between Dask and OpenTelemetry: what it sends, drops and costs",
        [cluster()],
        [
            "Is it complete?",
            *_complete(),
            "What does it send, and what does it cost?",
            _cost(),
            Details("When did what happen?", _when()),
        ],
    )


def _trouble(title: str, read: str, metric: str, label: str, steps: Steps, width: int) -> Panel:
    """Green at 0; else red, one number for each value of the label."""
    grown = f"{whole(selector(metric, CLUSTER), label)} > 0"
    return number(
        title,
        read,
        (f"{grown} or ({NONE_YET} unless on () sum({grown}))", f"{{{{{label}}}}}"),
        unit="short",
        width=width,
        below=GOOD,
        steps=steps,
        decimals=None,
        empty=NO_BRIDGE,
    )


def _complete() -> list[Line]:
    silent = seconds("DaskOtelSilent")
    full = limit("DaskOtelQueueFull")
    return [
        line(
            number(
                "Running",
                "Schedulers whose bridge runs. One that ended properly says 0; one that died says "
                "nothing more (alert DaskOtelSilent).",
                (f"sum(dask_otel_running{{{CLUSTER}}})", ""),
                unit="short",
                width=4,
                decimals=0,
                steps=[(1, GOOD)],
                empty=NO_BRIDGE,
            ).runbook("DaskOtelSilent"),
            number(
                "Last success",
                "Since the last export that was answered with success. Much longer than the "
                f"interval: the endpoint is away. Red from {silent:.0f} s on, when DaskOtelSilent "
                "would fire.",
                (f"max(dask_otel_export_last_success_age_seconds{{{CLUSTER}}})", ""),
                unit="s",
                width=4,
                below=GOOD,
                steps=[(silent, BAD)],
                empty="none yet",
            ),
            _trouble(
                "What was lost",
                "Spans and data points, over the shown time. Anything but 0 means that traces or "
                "counters miss something.",
                "dask_otel_dropped_total",
                "dask_otel_reason",
                [(limit("DaskOtelDropping"), BAD)],
                4,
            ).runbook("DaskOtelDropping"),
            _trouble(
                "Errors of its own",
                "Swallowed, so that Dask goes on; the scheduler's log has the first of each kind.",
                "dask_otel_internal_errors_total",
                "dask_otel_kind",
                [(limit("DaskOtelErrors"), BAD)],
                4,
            ).runbook("DaskOtelErrors"),
            number(
                "Its queue",
                f"Spans that wait for export, of as many as fit. Red from {full:.0%} on, the limit "
                "of DaskOtelQueueFull: when it is full, spans are dropped.",
                (QUEUE, ""),
                width=4,
                below=GOOD,
                steps=[(full, BAD)],
                empty="no spans",
            ).runbook("DaskOtelQueueFull"),
            number(
                "Its event loop",
                "Share of the scheduler's event loop that the bridge uses, of the time with data.",
                (averaged(selector("dask_otel_loop_time_seconds_total", CLUSTER)), ""),
                width=4,
                decimals=2,
                empty=NO_BRIDGE,
            ),
            height=4,
        ),
        line(
            *(
                _trouble(title, read, metric, "dask_otel_kind", [(ANYTHING, BAD)], 6)
                for title, read, metric in _SMALLER
            ),
            height=4,
        ),
    ]


_SMALLER = (
    (
        "Names folded together",
        "Names and series beyond the caps, which are under _OTHER: raise otel.metrics.max-names, "
        "or keep ids and dates out of span names.",
        "dask_otel_folded_total",
    ),
    (
        "Texts that were changed",
        "Texts that were cut or cleaned, by kind.",
        "dask_otel_sanitized_total",
    ),
    (
        "What came late",
        "Seconds, bytes and counts that workers reported for spans that had been exported. "
        "They are in the counters, and missing in the traces.",
        "dask_otel_late_total",
    ),
    (
        "Spans that did not wait",
        "Spans exported at the settle timeout: a worker did not report their last metrics in time.",
        "dask_otel_unsettled_total",
    ),
)


def _cost() -> Line:
    return line(
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
            empty="No spans are exported.",
        ),
        graph(
            "How much of the event loop does it use?",
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
    def growth(metric: str, label: str) -> tuple[str, str]:
        series = selector(metric, CLUSTER)
        return f"sum by ({label}) (increase({series}[$__rate_interval]))", f"{{{{{label}}}}}"

    return (
        line(
            graph(
                "When was something lost, and why?",
                "By reason. The next metrics carry everything again; lost spans are gone.",
                growth("dask_otel_dropped_total", "dask_otel_reason"),
                empty="Nothing was lost in the shown time.",
                decimals=0,
                width=8,
            ),
            graph(
                "When did it meet errors of its own?",
                "By hook: where in the bridge an error was swallowed.",
                growth("dask_otel_internal_errors_total", "dask_otel_kind"),
                empty="It met no error of its own in the shown time.",
                decimals=0,
                width=8,
            ),
            graph(
                "What became of callers?",
                "Trace contexts that came with work: adopted, linked, dropped (a link beyond the "
                "31 of a span), or malformed (no context at all).",
                growth("dask_otel_callers_total", "dask_otel_kind"),
                empty="No work came with a caller's context in the shown time.",
                decimals=0,
                width=8,
            ),
            height=9,
        ),
        line(
            graph(
                "What waits in the spool?",
                "Spans in the file that otel.spool.path names, until the endpoint has taken them.",
                (
                    f"sum by (dask_cluster_name) (dask_otel_spool_size{{{CLUSTER}}})",
                    "{{dask_cluster_name}}",
                ),
                empty="No scheduler has a spool.",
                decimals=0,
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
                empty="No scheduler has a spool.",
                decimals=1,
                width=12,
                lines=[(limit("DaskOtelSpoolFull"), BAD)],
            ),
            height=9,
        ),
    )
