"""Is dask-otel itself well, and is what the other dashboards show complete?"""

from __future__ import annotations

from typing import Any

from .parts import CLUSTER, cluster, graph, number, page

#: For counters that only exist once something went wrong: 0 where the bridge runs, and nothing
#: where it does not.
NONE_YET = f"0 * sum(dask_otel_running{{{CLUSTER}}})"


def trouble(metric: str, by: str) -> tuple[str, str]:
    return (
        f"sum by ({by}) (increase({metric}{{{CLUSTER}}}[$__rate_interval])) or {NONE_YET}",
        f"{{{{{by}}}}}",
    )


def build() -> Any:
    return page(
        "Dask / Exporter health",
        "dask-otel-exporter",
        "The bridge between Dask and OpenTelemetry: what it sends, drops and costs",
        [cluster()],
        ["Is it complete?", *_complete(), "What does it cost?", *_cost()],
    )


def _complete() -> list[Any]:
    return [
        number(
            "Running",
            "Schedulers whose bridge runs. One that ended properly says 0; one that died says "
            "nothing more (alert DaskOtelSilent).",
            (f"sum(dask_otel_running{{{CLUSTER}}})", ""),
            unit="short",
        ),
        number(
            "Spans and points that were lost",
            "Over the shown time. Anything but 0 means that traces or counters miss something.",
            (f"sum(increase(dask_otel_dropped_total{{{CLUSTER}}}[$__range])) or {NONE_YET}", ""),
            unit="short",
        ),
        number(
            "Last success",
            "Since the last export that was answered with success. Much longer than the interval: "
            "the endpoint is away.",
            (f"max(dask_otel_export_last_success_age_seconds{{{CLUSTER}}})", ""),
            unit="s",
        ),
        number(
            "Event loop",
            "Share of the scheduler's event loop that the bridge uses.",
            (
                f"sum(increase(dask_otel_loop_time_seconds_total{{{CLUSTER}}}[$__range]))"
                " / $__range_s",
                "",
            ),
        ),
        graph(
            "What does it send?",
            "Spans and data points for each second that the endpoint accepted.",
            (
                "sum by (dask_otel_signal) (rate("
                f"dask_otel_exported_total{{{CLUSTER}}}[$__rate_interval]))",
                "{{dask_otel_signal}}",
            ),
        ),
        graph(
            "What does it lose, and why?",
            "By reason. The next metrics carry everything again; lost spans are gone.",
            trouble("dask_otel_dropped_total", "dask_otel_reason"),
        ),
        graph(
            "Which names are folded together?",
            "Names and series beyond the caps are under _OTHER: raise otel.metrics.max-names, or "
            "keep ids and dates out of span names.",
            trouble("dask_otel_folded_total", "dask_otel_kind"),
        ),
        graph(
            "What had to be changed?",
            "Texts that were cut or cleaned, by kind.",
            trouble("dask_otel_sanitized_total", "dask_otel_kind"),
        ),
        graph(
            "What came late?",
            "Seconds, bytes and counts that workers reported for spans that had been exported. "
            "They are in the counters, and missing in the traces.",
            trouble("dask_otel_late_total", "dask_otel_kind"),
        ),
        graph(
            "Which spans did not wait for their last metrics?",
            "Spans exported at the settle timeout: a worker did not report in time.",
            trouble("dask_otel_unsettled_total", "dask_otel_kind"),
        ),
    ]


def _cost() -> list[Any]:
    return [
        graph(
            "How full is its queue?",
            "Spans that wait for export, and the limit at which more are dropped.",
            (f"sum(dask_otel_queue_size{{{CLUSTER}}})", "waiting"),
            (f"sum(dask_otel_queue_capacity{{{CLUSTER}}})", "limit"),
        ),
        graph(
            "How much of the scheduler's event loop does it use?",
            "Seconds for each second, by cluster.",
            (
                "sum by (dask_cluster_name) (rate("
                f"dask_otel_loop_time_seconds_total{{{CLUSTER}}}[$__rate_interval]))",
                "{{dask_cluster_name}}",
            ),
            unit="percentunit",
        ),
        graph(
            "Did it meet errors of its own?",
            "Swallowed, so that Dask goes on; the scheduler's log has the first of each kind.",
            trouble("dask_otel_internal_errors_total", "dask_otel_kind"),
            width=24,
        ),
    ]
