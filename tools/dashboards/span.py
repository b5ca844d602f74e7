"""One root span: what it is made of, how long it takes, and how it compares."""

from __future__ import annotations

from typing import Any

from . import links
from .limits import limit
from .meanings import BAD, NEUTRAL
from .parts import (
    Column,
    Details,
    Line,
    Panel,
    bars,
    bounded_runs,
    failed_runs,
    graph,
    happened,
    line,
    number,
    page,
    rows,
)
from .queries import (
    CLUSTER,
    ITSELF,
    PREFIX,
    ROOT,
    SPAN,
    folded,
    grown,
    rates,
    renamed,
    selector,
    share,
    whole,
)

EXECUTE = "dask_span_execute_time_seconds_total"
TASKS = selector(EXECUTE, PREFIX)
CAPACITY = selector("dask_span_capacity_time_seconds_total", SPAN)
#: Runs of the workflow: ends of the root span itself. Ends of the spans inside are not runs.
RUNS = selector("dask_span_duration_seconds_count", ROOT, ITSELF)
FAILED_RUNS = selector(
    "dask_span_duration_seconds_count", ROOT, ITSELF, 'dask_span_result=~"failure|error"'
)

#: Submissions of it that Dask booked on another span.
COLLIDED = selector("dask_span_collided_total", ROOT)


def _numbers() -> tuple[Line, Line]:
    cpu = selector(EXECUTE, SPAN, 'dask_activity="thread-cpu"')
    idle = limit("DaskSpanIdle")
    cost = (
        number(
            "Thread-time",
            "What it cost: thread-time of its tasks, and its share of idle time.",
            (grown(CAPACITY), ""),
            unit="s",
            width=8,
        ),
        number(
            "Computing",
            "Share of it on the CPU: its efficiency.",
            (share(cpu, CAPACITY), ""),
            width=8,
            below="green",
        ),
        number(
            "Idle",
            "Share of it for which threads were free, though it had work. Red from "
            f"{idle:.0%} on, the limit of DaskSpanIdle.",
            (share(selector("dask_span_idle_time_seconds_total", SPAN), CAPACITY), ""),
            width=8,
            below="orange",
            steps=[(idle, BAD)],
        ).runbook("DaskSpanIdle"),
    )
    runs = (
        number(
            "Runs that ended",
            "Complete runs of the workflow: ends of the root span itself, for any choice of spans.",
            (whole(RUNS), ""),
            unit="none",
            decimals=0,
        ),
        number(
            "Not counted",
            "Submissions that Dask booked on an earlier run because the client keeps futures: the "
            "numbers of runs and failed runs are too low.",
            (f"{whole(COLLIDED)} or 0 * {whole(RUNS)}", ""),
            unit="none",
            decimals=0,
            steps=[(1, BAD)],
        ),
        number(
            "Failed runs",
            "Of these, the ones that ended with failure or error.",
            (f"{whole(FAILED_RUNS)} or 0 * {whole(RUNS)}", ""),
            unit="none",
            decimals=0,
            steps=[(1, BAD)],
        ),
        number(
            "Unfinished now",
            "Spans of these names that have unfinished work at this moment.",
            (f"sum(dask_span_active{{{SPAN}}})", ""),
            unit="none",
            decimals=0,
        ),
    )
    return line(*cost, height=3), line(*runs, height=3)


_PARTS: list[Line] = [
    *_numbers(),
    line(
        graph(
            "What do its tasks spend their time on?",
            "Threads by activity. thread-cpu is computing, thread-noncpu waits for I/O, GPU, a "
            "sleep or the GIL, disk-… is spilling, failed and cancelled gave no result. Less "
            "than 1 % is in other. Points are exemplars: they lead to traces.",
            *folded(EXECUTE, PREFIX),
            unit="suffix:threads",
            width=24,
            stacked=True,
            exemplars=True,
        ),
        height=10,
    ),
    line(
        bars(
            "Which of its spans cost thread-time?",
            "Thread-time by span, each without the spans inside of it.",
            (
                "topk(12, sum by (dask_span_root_name, dask_span_name) "
                f"(increase({TASKS}[$__range])) > 0)",
                "{{dask_span_name}}",
            ),
        ),
        bars(
            "Which functions, doing what?",
            "The longest parts of its thread-time: task prefix and activity.",
            (
                "topk(12, sum by (dask_span_root_name, dask_task_prefix, dask_activity) "
                f"(increase({TASKS}[$__range])) > 0)",
                "{{dask_task_prefix}}: {{dask_activity}}",
            ),
        ),
        height=10,
    ),
    line(
        graph(
            "How much data do its tasks read, and from where?",
            "memory-read found its data in memory, disk-read had to bring it back.",
            (
                rates(selector("dask_span_execute_io_bytes_total", PREFIX), "dask_activity"),
                "{{dask_activity}}",
            ),
            unit="Bps",
        ),
        graph(
            "What do its peer-to-peer shuffles do?",
            "Seconds for each second by stage and activity, without background stages that "
            "wait for data, which is no fault.",
            (
                rates(
                    selector("dask_span_p2p_time_seconds_total", SPAN, 'dask_activity!="idle"'),
                    "dask_p2p_stage, dask_activity",
                ),
                "{{dask_p2p_stage}}: {{dask_activity}}",
            ),
            unit="suffix:threads",
            empty="no peer-to-peer shuffle ran in the shown time",
        ),
        height=9,
    ),
]


def _durations() -> list[tuple[str, str]]:
    """Of the root's own runs, and none of spans inside; where nothing ended there is no value."""

    def grew(suffix: str, by: str = "") -> str:
        series = selector(f"dask_span_duration_seconds_{suffix}", ROOT, ITSELF)
        return f"sum{by} (increase({series}[$__rate_interval]))"

    buckets = grew("bucket", " by (le)")
    return [
        (f"histogram_quantile(0.5, {buckets}) >= 0", "median"),
        (f"histogram_quantile(0.9, {buckets}) >= 0", "90 %"),
        (f"{grew('sum')} / ({grew('count')} > 0)", "mean"),
    ]


def _ends() -> Panel:
    metric = "dask_span_duration_seconds"
    by = "dask_span_name"
    count = selector(f"{metric}_count", SPAN)

    def ended(results: str) -> str:
        series = selector(f"{metric}_count", SPAN, f'dask_span_result=~"{results}"')
        return f"{whole(series, by)} or 0 * ({whole(count, by)} > 0)"

    waited = "dask_span_queue_duration_seconds"
    return rows(
        "How did its spans end, and how long did they take?",
        "Each of its spans by itself, the workflow and the spans inside of it: whole numbers of "
        "ends, by result, and the mean times of a run and of waiting for its first task.",
        Column(
            "Span",
            label=by,
            link=links.cell_link("Open in Dask / Span", "dask_span_name"),
        ),
        Column("Ended", f"{whole(count, by)} > 0", decimals=0, width=90),
        Column("Success", ended("success"), decimals=0, width=90),
        Column("Failed", ended("failure|error"), decimals=0, width=90, steps=[(1, BAD)]),
        Column("Cancelled", ended("cancellation"), decimals=0, width=100, steps=[(1, "light-red")]),
        Column(
            "Mean duration",
            f"{grown(selector(f'{metric}_sum', SPAN), by)} / ({grown(count, by)} > 0)",
            unit="s",
            decimals=2,
            bar=NEUTRAL,
        ),
        Column(
            "Mean wait",
            f"{grown(selector(f'{waited}_sum', SPAN), by)}"
            f" / ({grown(selector(f'{waited}_count', SPAN), by)} > 0)",
            unit="s",
            decimals=2,
            width=120,
        ),
        sort="Mean duration",
        empty="no span ended in the shown time",
    )


def _changes() -> list[Line]:
    def of_a_run(offset: str = "") -> str:
        runs = whole(RUNS, offset=offset)
        return f"{grown(TASKS, 'dask_activity', offset)} / on () group_left () ({runs} > 0)"

    now, before = of_a_run(), of_a_run("$before")
    #: As much worse as the alert on efficiency allows.
    worse = 1 / limit("DaskEfficiencyFell") - 1
    versions = "service_version, dask_activity"
    return [
        line(
            rows(
                "Slower than before: where do I spend more time?",
                "Thread-seconds of a run of the workflow by activity, in this time range and in "
                "one before it (Compare with). Red: more by a quarter, or what DaskEfficiencyFell "
                "allows.",
                Column("Activity", label="dask_activity", meant=True),
                Column("Now", now, unit="s", decimals=2, bar=NEUTRAL),
                Column("Before", before, unit="s", decimals=2, width=100),
                Column(
                    "Change",
                    f"({now}) / (({before}) > 0) - 1",
                    unit="percentunit",
                    decimals=0,
                    width=90,
                    steps=[(worse, BAD)],
                ),
                sort="Now",
                width=12,
                empty="no run ended in the shown time",
            ),
            rows(
                "A new version of Dask: where do I spend more time?",
                "Thread-seconds of a run of the workflow by version of distributed "
                "(service.version) and activity. Set service.version yourself to compare versions "
                "of your own code.",
                Column("Activity", label="dask_activity", meant=True),
                Column("Version", label="service_version", width=140),
                Column(
                    "A run",
                    f"{grown(TASKS, versions)} / on (service_version) group_left () "
                    f"({whole(RUNS, 'service_version')} > 0)",
                    unit="s",
                    decimals=2,
                    bar=NEUTRAL,
                ),
                sort="A run",
                width=12,
                empty="no run ended in the shown time",
            ),
            height=11,
        ),
        line(
            graph(
                "How does its efficiency go on?",
                "CPU seconds for each second of the cluster that was its own, over a day: the "
                "number that the alert DaskEfficiencyFell watches.",
                (
                    f"last_over_time(root:dask_efficiency:ratio1d{{{ROOT}}}[30m])",
                    "{{dask_cluster_name}}",
                ),
                unit="percentunit",
                decimals=1,
                width=24,
                empty="less than 10 thread-minutes of work within a day, or no recording rules",
            ).runbook("DaskEfficiencyFell"),
            height=8,
        ),
    ]


_RUNS: list[Line] = [
    line(
        graph(
            "How long do its runs take?",
            "From submission to the end of the last task, a point where runs of the workflow "
            "ended; spans inside are in the table below. Quantiles are estimates between the "
            "bounds of the histogram, the mean is exact.",
            *_durations(),
            unit="s",
            exemplars=True,
            calcs=("lastNotNull", "max"),
            empty="no run ended in the shown time",
        ),
        graph(
            "How long do its spans wait for their first task?",
            "By span, 90th percentile from submission to the start of the first task in it or "
            "below it. Long: the cluster was full, or was still starting. The line is the "
            "limit of DaskQueueLong.",
            (
                "histogram_quantile(0.9, sum by (dask_span_root_name, dask_span_name, le) "
                f"(increase({selector('dask_span_queue_duration_seconds_bucket', SPAN)}"
                "[$__rate_interval]))) >= 0",
                "{{dask_span_name}}",
            ),
            unit="s",
            exemplars=True,
            calcs=("lastNotNull", "max"),
            lines=[(limit("DaskQueueLong"), BAD)],
            empty="no span ended in the shown time",
        ).runbook("DaskQueueLong"),
        height=9,
    ),
    line(bounded_runs(ROOT, each=True), height=10),
    line(failed_runs("${root}"), height=7),
    line(happened("${root}"), height=7),
    line(_ends(), height=8),
    line(
        graph(
            "How many tasks ended, and how?",
            "Runs of tasks for each second by outcome. Dask calls the ones that succeeded "
            "memory, and those that failed erred.",
            (
                renamed(
                    rates(selector("dask_task_finished_total", PREFIX), "dask_task_outcome"),
                    "dask_task_outcome",
                    memory="succeeded",
                    erred="failed",
                ),
                "{{dask_task_outcome}}",
            ),
            unit="ops",
        ),
        graph(
            "Which tasks were repeated, and why?",
            "Runs for each second that were repeated: error, they failed with retries left; "
            "worker_lost; recomputed, the result was lost; client, Client.retry. rescheduled "
            "is no error: the task asked for it, as a shuffle that restarts does.",
            (
                rates(selector("dask_task_retried_total", PREFIX), "dask_task_retry_reason"),
                "{{dask_task_retry_reason}}",
            ),
            unit="ops",
            empty="no task was repeated in the shown time",
        ),
        height=9,
    ),
    line(
        graph(
            "How long is one task?",
            "90th percentile of the computing time of the chosen spans' functions, over all "
            "spans of the cluster that have them. Below 0.1 s Dask's overhead begins to show; "
            "above minutes work is spread badly.",
            (
                "histogram_quantile(0.9, sum by (le, dask_task_prefix) (rate("
                f"dask_task_duration_seconds_bucket{{{CLUSTER}}}[$__rate_interval]))"
                # The functions of these spans: a list of all would be shorter than `.*`.
                " and on (dask_task_prefix) "
                f"last_over_time({TASKS}[$__range] @ end())) >= 0",
                "{{dask_task_prefix}}",
            ),
            unit="s",
            width=24,
            calcs=("lastNotNull", "max"),
        ),
        height=9,
    ),
]


_MEMORY = line(
    graph(
        "How large are its results in memory?",
        "Size of the results that are in the workers' memory or spilled, each once, by "
        "function. What stays after the end is kept by a client.",
        (
            f"sum by (dask_task_prefix) ({selector('dask_span_memory_usage_bytes', PREFIX)})",
            "{{dask_task_prefix}}",
        ),
        unit="bytes",
        stacked=True,
        width=24,
        empty="no result was in memory in the shown time",
    ),
    height=9,
)


PAGE: Any = page(
    "Dask / Span",
    "One workflow (root span): its parts, its runs, and its changes",
    ["cluster", "root", "span", "prefix", "before"],
    [
        *_PARTS,
        "Its runs",
        *_RUNS,
        "What has changed?",
        *_changes(),
        Details("Who holds the memory?", (_MEMORY,)),
    ],
)
