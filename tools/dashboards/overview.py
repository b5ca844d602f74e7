"""Where did the time go? The questions of somebody who wants a faster or a cheaper workflow."""

from __future__ import annotations

from typing import Any

from .parts import CLUSTER, ROOT, bars, cluster, graph, number, page, root, share, smaller

TIME = f"dask_cluster_time_seconds_total{{{CLUSTER}}}"
EXECUTE = "dask_span_execute_time_seconds_total"
SPILLING = 'dask_activity=~"disk-read|disk-write|compress|decompress"'
NOT_THE_CPU = 'dask_activity="thread-noncpu"'


def of_time(activity: str) -> str:
    return f'dask_cluster_time_seconds_total{{{CLUSTER}, dask_activity="{activity}"}}'


def build() -> Any:
    return page(
        "Dask / Overview",
        "dask-otel-overview",
        "Where the time of Dask clusters went, and what could be saved",
        [cluster(), root()],
        [
            "Where did the time go?",
            *_where(),
            "How much am I losing, and to what?",
            *_losses(),
            "Did it get better?",
            *_scale(),
        ],
    )


def _where() -> list[Any]:
    return [
        number(
            "What was paid for",
            "Thread-seconds of the clusters: what a bill is made of. Everything below is a part.",
            (f"sum(increase(dask_cluster_capacity_time_seconds_total{{{CLUSTER}}}[$__range]))", ""),
            unit="s",
        ),
        number(
            "… computing",
            "thread-cpu: the time that a single CPU would have taken. The useful part.",
            (share(of_time("thread-cpu"), TIME), ""),
        ),
        number(
            "… idle, though there was work",
            "A thread was free and no task could run on it. Too few parallel tasks, or waiting for "
            "the scheduler or the network.",
            (share(of_time("idle"), TIME), ""),
        ),
        number(
            "… unused, without any work",
            "Nobody had asked for anything: a smaller or shorter-lived cluster saves all of it.",
            (share(of_time("unused"), TIME), ""),
        ),
        graph(
            "Where did the time go?",
            "Threads by what they did. The stack is as high as the cluster has threads. Seconds of "
            "an activity are booked when the task ends: with long tasks look at a longer time.",
            (f"sum by (dask_activity) (rate({TIME}[$__rate_interval]))", "{{dask_activity}}"),
            width=24,
            stacked=True,
        ),
        bars(
            "Which workflows cost the most?",
            "Thread-seconds of each root span: what its tasks used, and its share of idle time.",
            (
                "topk(15, sum by (dask_span_root_name) (increase("
                f"dask_span_capacity_time_seconds_total{{{ROOT}}}[$__range])))",
                "{{dask_span_root_name}}",
            ),
        ),
        bars(
            "Which spans cost the most?",
            "The same by full span name. Values are a span's own, without the spans inside of it.",
            (
                "topk(15, sum by (dask_span_name) (increase("
                f"dask_span_capacity_time_seconds_total{{{ROOT}}}[$__range])))",
                "{{dask_span_name}}",
            ),
        ),
        bars(
            "Which functions cost the most?",
            "Thread-seconds by task prefix, whatever they did meanwhile.",
            (
                f"topk(15, sum by (dask_task_prefix) (increase({EXECUTE}{{{ROOT}}}[$__range])))",
                "{{dask_task_prefix}}",
            ),
        ),
        bars(
            "Which activities cost the most?",
            "Thread-seconds of tasks by activity. thread-cpu should be the longest by far.",
            (
                f"topk(15, sum by (dask_activity) (increase({EXECUTE}{{{ROOT}}}[$__range])))",
                "{{dask_activity}}",
            ),
        ),
    ]


def _losses() -> list[Any]:
    receive = "dask_cluster_transfer_time_seconds_total"
    receiving = f'{CLUSTER}, network_io_direction="receive"'
    return [
        number(
            "How much time am I losing to GIL contention?",
            "At most this share of the tasks' time: threads that were not on the CPU. It holds I/O "
            "and GPU time, too, so look at the functions beside it.",
            (share(f"{EXECUTE}{{{ROOT}, {NOT_THE_CPU}}}", f"{EXECUTE}{{{ROOT}}}"), ""),
        ),
        bars(
            "Which functions wait for the GIL or for I/O?",
            "thread-noncpu by function. Long for a function that reads or writes: as it should be. "
            "Long for pure computation: it probably does not release the GIL.",
            (
                f"topk(10, sum by (dask_task_prefix) (increase({EXECUTE}{{{ROOT}, {NOT_THE_CPU}}}"
                "[$__range])))",
                "{{dask_task_prefix}}",
            ),
            width=18,
        ),
        number(
            "How much time am I wasting in network transfer?",
            "At most this share of the time with work: transfers run beside the tasks, and cost "
            "something only where threads are idle meanwhile. So it is the smaller one of idle "
            "time and receiving time.",
            (
                smaller(share(f"{receive}{{{receiving}}}", TIME), share(of_time("idle"), TIME)),
                "",
            ),
        ),
        graph(
            "More throughput, or better data locality?",
            "Receiving by activity, in seconds for each second. Mostly network: throughput or "
            "locality helps. Mostly serialize, compress, other: it would not.",
            (
                f"sum by (dask_activity) (rate({receive}{{{receiving}}}[$__rate_interval]))",
                "{{dask_activity}}",
            ),
            (f"sum(rate({of_time('idle')}[$__rate_interval]))", "(idle threads)"),
            width=18,
        ),
        number(
            "How much time is lost to spilling?",
            "Share of the tasks' time in which they waited for disk or compression: what enough "
            "memory would save at most.",
            (share(f"{EXECUTE}{{{ROOT}, {SPILLING}}}", f"{EXECUTE}{{{ROOT}}}"), ""),
        ),
        number(
            "Would more memory help? (cache hits)",
            "Bytes that tasks found in memory, of all that they took from their worker. Near 100 % "
            "more memory gives nothing, less would hurt.",
            (
                share(
                    f'dask_span_execute_io_bytes_total{{{ROOT}, dask_activity="memory-read"}}',
                    "dask_span_execute_io_bytes_total"
                    f'{{{ROOT}, dask_activity=~"(memory|disk)-read"}}',
                ),
                "",
            ),
        ),
        number(
            "The event loop is blocked: should I worry?",
            "Share of the time for which the scheduler's event loop was held up. Below 10 % or "
            "without idle threads: no.",
            (
                "sum(increase(dask_event_loop_blocked_time_seconds_total"
                f'{{{CLUSTER}, dask_process_role="scheduler"}}[$__range])) / $__range_s',
                "",
            ),
        ),
        number(
            "How much was for nothing?",
            "Share of the tasks' time that went to runs that failed or were cancelled.",
            (
                share(
                    f'{EXECUTE}{{{ROOT}, dask_activity=~"failed|cancelled"}}',
                    f"{EXECUTE}{{{ROOT}}}",
                ),
                "",
            ),
        ),
    ]


def _scale() -> list[Any]:
    return [
        graph(
            "Twice the cluster, not twice as fast: where did the inefficiency go?",
            "Threads that there are, and threads by what they do. What grows with the cluster, "
            "other than thread-cpu, is the answer.",
            (f"sum(dask_cluster_thread_count{{{CLUSTER}}})", "(threads)"),
            (
                f"sum by (dask_activity) (rate({TIME}[$__rate_interval]))",
                "{{dask_activity}}",
            ),
        ),
        graph(
            "Does the same work take more than before?",
            "CPU seconds for each second of the cluster, by workflow. A fall is a regression: open "
            "the dashboard Span to see which activity has grown.",
            (
                "sum by (dask_span_root_name) (rate("
                f'{EXECUTE}{{{ROOT}, dask_activity="thread-cpu"}}[$__rate_interval]))'
                " / (sum by (dask_span_root_name) "
                f"(rate(dask_span_capacity_time_seconds_total{{{ROOT}}}[$__rate_interval])) > 0)",
                "{{dask_span_root_name}}",
            ),
            unit="percentunit",
        ),
    ]
