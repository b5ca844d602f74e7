"""One root span: what it is made of, how long it takes, and how it compares."""

from __future__ import annotations

from typing import Any

from .parts import (
    CLUSTER,
    PREFIX,
    SPAN,
    bars,
    cluster,
    compared_with,
    graph,
    number,
    page,
    prefix,
    root,
    share,
    span,
)

EXECUTE = f"dask_span_execute_time_seconds_total{{{PREFIX}}}"
CAPACITY = f"dask_span_capacity_time_seconds_total{{{SPAN}}}"


def build() -> Any:
    return page(
        "Dask / Span",
        "dask-otel-span",
        "One workflow (root span): its parts, its runs, and what has changed",
        [cluster(), root(every=False), span(), prefix(), compared_with()],
        ["What is it made of?", *_parts(), "Its runs", *_runs(), "What has changed?", *_changes()],
    )


def _parts() -> list[Any]:
    return [
        number(
            "Thread-seconds",
            "What it cost: seconds of its tasks, and its share of idle time.",
            (f"sum(increase({CAPACITY}[$__range]))", ""),
            unit="s",
        ),
        number(
            "Idle",
            "Share of it for which threads were free, though it had work.",
            (share(f"dask_span_idle_time_seconds_total{{{SPAN}}}", CAPACITY), ""),
        ),
        number(
            "Computing",
            "Share of it on the CPU: its efficiency.",
            (
                share(
                    f'dask_span_execute_time_seconds_total{{{SPAN}, dask_activity="thread-cpu"}}',
                    CAPACITY,
                ),
                "",
            ),
        ),
        number(
            "Unfinished now",
            "Spans of these names that have unfinished work at this moment.",
            (f"sum(dask_span_active{{{SPAN}}})", ""),
            unit="short",
        ),
        graph(
            "What do its tasks spend their time on?",
            "Threads by activity. thread-cpu is computing, thread-noncpu waits for I/O, GPU or the "
            "GIL, disk-… is spilling, failed and cancelled gave no result.",
            (f"sum by (dask_activity) (rate({EXECUTE}[$__rate_interval]))", "{{dask_activity}}"),
            width=24,
            stacked=True,
        ),
        bars(
            "Which of its spans?",
            "Thread-seconds by span, each without the spans inside of it.",
            (
                f"topk(20, sum by (dask_span_name) (increase({EXECUTE}[$__range])))",
                "{{dask_span_name}}",
            ),
        ),
        bars(
            "Which functions, doing what?",
            "The longest parts of it: task prefix and activity.",
            (
                "topk(20, sum by (dask_task_prefix, dask_activity) "
                f"(increase({EXECUTE}[$__range])))",
                "{{dask_task_prefix}}: {{dask_activity}}",
            ),
        ),
        graph(
            "How much data do its tasks read, and from where?",
            "memory-read found its data in memory, disk-read had to bring it back.",
            (
                "sum by (dask_activity) (rate("
                f"dask_span_execute_io_bytes_total{{{PREFIX}}}[$__rate_interval]))",
                "{{dask_activity}}",
            ),
            unit="Bps",
        ),
        graph(
            "What do its peer-to-peer shuffles do?",
            "Seconds for each second by stage and activity. Idle of a background stage is waiting "
            "for data, which is no fault.",
            (
                "sum by (dask_p2p_stage, dask_activity) (rate("
                f"dask_span_p2p_time_seconds_total{{{SPAN}}}[$__rate_interval]))",
                "{{dask_p2p_stage}}: {{dask_activity}}",
            ),
        ),
    ]


def _quantiles(metric: str) -> list[tuple[str, str]]:
    by = f"sum by (le) (increase({metric}_bucket{{{SPAN}}}[$__rate_interval]))"
    mean = f"sum(increase({metric}_sum{{{SPAN}}}[$__rate_interval]))"
    count = f"sum(increase({metric}_count{{{SPAN}}}[$__rate_interval]))"
    return [
        (f"histogram_quantile(0.5, {by})", "median"),
        (f"histogram_quantile(0.9, {by})", "90 %"),
        (f"{mean} / ({count} > 0)", "mean"),
    ]


def _runs() -> list[Any]:
    return [
        graph(
            "How long do its runs take?",
            "From submission to the end of the last task, a point where spans ended. Quantiles are "
            "estimates between the bounds of the histogram, the mean is exact.",
            *_quantiles("dask_span_duration_seconds"),
            unit="s",
        ),
        graph(
            "How long do they wait for their first task?",
            "From submission to the start of the first task. Long: the cluster was full, or was "
            "still starting.",
            *_quantiles("dask_span_queue_duration_seconds"),
            unit="s",
        ),
        bars(
            "How did they end?",
            "Spans that ended, by result: success, failure, cancellation, error.",
            (
                "sum by (dask_span_name, dask_span_result) (increase("
                f"dask_span_duration_seconds_count{{{SPAN}}}[$__range]))",
                "{{dask_span_name}}: {{dask_span_result}}",
            ),
            unit="short",
        ),
        graph(
            "How many tasks, and how did they end?",
            "Runs of tasks for each second by outcome, and repeated runs by reason.",
            (
                "sum by (dask_task_outcome) (rate("
                f"dask_task_finished_total{{{PREFIX}}}[$__rate_interval]))",
                "{{dask_task_outcome}}",
            ),
            (
                "sum by (dask_task_retry_reason) (rate("
                f"dask_task_retried_total{{{PREFIX}}}[$__rate_interval]))",
                "repeated: {{dask_task_retry_reason}}",
            ),
        ),
        graph(
            "How long is one task?",
            "90th percentile of the computing time by function, over all spans of the cluster. "
            "Below 0.1 s Dask's overhead begins to show; above minutes work is spread badly.",
            (
                "histogram_quantile(0.9, sum by (le, dask_task_prefix) (rate("
                f'dask_task_duration_seconds_bucket{{{CLUSTER}, dask_task_prefix=~"$prefix"}}'
                "[$__rate_interval])))",
                "{{dask_task_prefix}}",
            ),
            unit="s",
            width=24,
        ),
    ]


def _changes() -> list[Any]:
    now = f"sum by (dask_activity) (increase({EXECUTE}[$__range]))"
    then = f"sum by (dask_activity) (increase({EXECUTE}[$__range] offset $before))"
    runs = "sum(increase(dask_span_duration_seconds_count{%s}[$__range]%s))"
    return [
        bars(
            "Slower than before: where do I spend more time?",
            "Thread-seconds of a run by activity, in this time range and one before it (Compare "
            "with). A run is one end of a span among those that are chosen.",
            (f"{now} / on () group_left () ({runs % (SPAN, '')} > 0)", "now: {{dask_activity}}"),
            (
                f"{then} / on () group_left () ({runs % (SPAN, ' offset $before')} > 0)",
                "before: {{dask_activity}}",
            ),
        ),
        bars(
            "A new version of Dask: where do I spend more time?",
            "Thread-seconds of a run by version of distributed (service.version) and activity. Set "
            "service.version yourself to compare versions of your own code.",
            (
                f"sum by (service_version, dask_activity) (increase({EXECUTE}[$__range]))"
                " / on (service_version) group_left () (sum by (service_version) (increase("
                f"dask_span_duration_seconds_count{{{SPAN}}}[$__range])) > 0)",
                "{{service_version}}: {{dask_activity}}",
            ),
        ),
        graph(
            "How does its efficiency go on?",
            "CPU seconds for each second of the cluster that was its own, over a day: the number "
            "that the alert DaskEfficiencyFell watches.",
            (
                "last_over_time(root:dask_efficiency:ratio1d"
                f'{{{CLUSTER}, dask_span_root_name=~"$root"}}[30m])',
                "{{dask_cluster_name}}",
            ),
            unit="percentunit",
            width=24,
        ),
    ]
