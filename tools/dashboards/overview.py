"""Where did the time go? The questions of somebody who wants a faster or a cheaper workflow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import exporter, limits, links, meanings, money
from .limits import limit
from .meanings import BAD, GOOD, PARTS, TEXT
from .money import CLUSTER_TIME, IDLE, UNUSED
from .parts import (
    FIRING,
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
    averaged,
    folded,
    grown,
    labelled,
    rates,
    selector,
    share,
    smaller,
    whole,
)

EXECUTE = "dask_span_execute_time_seconds_total"
TRANSFER = "dask_cluster_transfer_time_seconds_total"
READ = "dask_span_execute_io_bytes_total"

TIME = selector(CLUSTER_TIME, CLUSTER)
TASKS = selector(EXECUTE, CLUSTER)
SPAN_TIME = selector("dask_span_capacity_time_seconds_total", CLUSTER)
WORKED = selector(CLUSTER_TIME, CLUSTER, 'dask_activity!="unused"')
LOST = selector(CLUSTER_TIME, CLUSTER, 'dask_activity="lost"')
READING = selector(EXECUTE, CLUSTER, 'dask_activity="disk-read"')
CPU = selector(EXECUTE, CLUSTER, 'dask_activity="thread-cpu"')
OFF_CPU = selector(EXECUTE, CLUSTER, 'dask_activity="thread-noncpu"')
ON_THREADS = selector(EXECUTE, CLUSTER, 'dask_activity=~"thread-(non)?cpu"')
SPILLING = selector(EXECUTE, CLUSTER, f'dask_activity=~"{meanings.names("spill")}"')
NO_RESULT = selector(EXECUTE, CLUSTER, 'dask_activity=~"failed|cancelled"')
RECEIVING = selector(TRANSFER, CLUSTER, 'network_io_direction="receive"')
FROM_DISK = selector(READ, CLUSTER, 'dask_activity="disk-read"')
FROM_ANYWHERE = selector(READ, CLUSTER, 'dask_activity=~"(memory|disk)-read"')
HELD = selector("dask_span_memory_usage_bytes", CLUSTER)
HELD_TIME = selector("dask_span_memory_time_By_s_total", CLUSTER)
LOOP = selector(
    "dask_event_loop_blocked_time_seconds_total", CLUSTER, 'dask_process_role="scheduler"'
)

#: Runs of workflows: ends of root spans themselves. Ends of the spans inside are not runs.
ENDED = selector("dask_span_duration_seconds_count", CLUSTER, ITSELF)
FAILED = selector(
    "dask_span_duration_seconds_count", CLUSTER, ITSELF, 'dask_span_result=~"failure|error"'
)

BY_ROOT = "dask_span_root_name"
BY_FUNCTION = "dask_span_root_name, dask_task_prefix"
FUNCTION = "{{dask_span_root_name}}: {{dask_task_prefix}}"


# ----------------------------------------------------------------------------- first screen


def _alerts() -> Panel:
    by = "alertname, severity, dask_cluster_name, dask_span_root_name"
    critical, warning = (
        FIRING.replace("}", f', severity="{severity}"}}') for severity in ("critical", "warning")
    )
    rank = f"max by ({by}) (3 * {critical} or 2 * {warning} or {FIRING})"
    since = FIRING.replace('ALERTS{alertstate="firing", ', "ALERTS_FOR_STATE{")
    return rows(
        "Which alerts fire now?",
        "Alerts of deploy/prometheus/rules, and when each began to fire, the worst "
        "first. The link of an alert is its runbook.",
        Column(
            "Alert",
            label="alertname",
            width=190,
            link={
                "title": "Runbook",
                "url": limits.runbook("${__value.raw}"),
                "targetBlank": True,
            },
        ),
        Column("Severity", label="severity", width=80),
        Column("Cluster", label="dask_cluster_name", width=120),
        Column("Workflow", label="dask_span_root_name"),
        Column(
            "Since",
            f"max by ({by}) (({since} and ignoring (alertstate) {FIRING}) * 1000)",
            unit="dateTimeFromNow",
            width=130,
        ),
        Column("Rank", rank, hidden=True),
        sort="Rank",
        empty="no alert fires, or there are no rules",
        width=12,
    )


@dataclass(frozen=True)
class _Loss:
    """Something that costs time: what it is, and what to do."""

    what: str
    #: Thread-seconds that it would save at most.
    seconds: str
    #: What the alert looks at, and its sign and limit.
    over: str
    alert: str
    advice: str

    def row(self, over: bool = True) -> str:
        """Its thread-seconds, with its texts as labels; where it is over its limit, or anyway."""
        value = f"({self.seconds}) and ({self.over})" if over else f"({self.seconds})"
        return labelled(value, what=self.what, advice=self.advice, alertname=self.alert)


#: The greatest loss has an advice, too, from this share of all time on.
GREATEST = 0.1


def _losses_of_time() -> list[_Loss]:
    say = {part.title: part.advice for part in PARTS}
    idle = share(IDLE, WORKED)
    network = share(RECEIVING, TASKS)
    failed = whole(FAILED, BY_ROOT)
    failing = f"{failed} / ({whole(ENDED, BY_ROOT)} > 0)"
    alerts = {
        "Idle": ("DaskClusterIdle", IDLE, idle),
        "Unused": ("DaskClusterUnused", UNUSED, share(UNUSED, TIME)),
        "Off the CPU": ("DaskThreadsWait", OFF_CPU, share(OFF_CPU, ON_THREADS)),
        "Spilling": ("DaskSpilling", SPILLING, share(SPILLING, TASKS)),
        "Wasted": ("DaskWorkWasted", NO_RESULT, share(NO_RESULT, TASKS)),
        "Lost": ("DaskTimeLost", LOST, share(LOST, WORKED)),
    }
    same = {"Spilling": "Moving data", "Lost": "Wasted"}
    return [
        *(
            _Loss(what, grown(of), f"({ratio}) > {limit(alert)}", alert, say[same.get(what, what)])
            for what, (alert, of, ratio) in alerts.items()
        ),
        _Loss(
            "Failed runs",
            # Of each workflow that fails, the time of as many of its runs as failed.
            f"sum({grown(SPAN_TIME, BY_ROOT)} * ({failing} > {limit('DaskRunsFail')}))",
            f"max({failing}) > {limit('DaskRunsFail')}",
            "DaskRunsFail",
            "Runs end with an exception: see the table of failed runs below.",
        ),
        _Loss(
            "Network",
            smaller(grown(RECEIVING), grown(IDLE)),
            f"(({network}) > {limit('DaskNetworkSlow')}) "
            f"and (({idle}) > {limit('DaskNetworkSlow', 1)})",
            "DaskNetworkSlow",
            "Threads wait for others' data: use fewer and larger workers.",
        ),
        _Loss(
            "Cache misses",
            grown(READING),
            f"(1 - {share(FROM_DISK, FROM_ANYWHERE)}) < {limit('DaskCacheMisses')}",
            "DaskCacheMisses",
            "Data comes back from disk: give each worker more memory.",
        ),
        _Loss(
            "Event loop",
            smaller(f"{averaged(LOOP)} * {grown(TIME)}", grown(IDLE)),
            f"({averaged(LOOP)}) > {limit('DaskEventLoopBlocked')}",
            "DaskEventLoopBlocked",
            "The scheduler is late: give it a CPU, or longer tasks.",
        ),
    ]


def _advice() -> Panel:
    """What would save the most, at once."""
    losses = _losses_of_time()
    over = " or ".join(loss.row() for loss in losses)
    # What can be saved alone: the others are parts of these.
    whole_parts = " or ".join(
        loss.row(over=False) for loss in losses if loss.what in ("Idle", "Unused", "Off the CPU")
    )
    greatest = f"topk(1, {whole_parts}) > {GREATEST} * scalar({grown(TIME)})"
    found = f"({over} or {greatest})"
    return rows(
        "What should I do next?",
        "Values beyond the limit of an alert over the shown time, and the greatest loss from "
        f"{GREATEST:.0%} on, by the thread-hours that it would save at most. The share is of all "
        "time, as in the numbers below; the limits of the alerts look at parts of it.",
        Column(
            "What",
            label="what",
            width=110,
            meant=True,
            link={
                "title": "Runbook",
                "url": limits.runbook("${__data.fields.alertname}"),
                "targetBlank": True,
            },
        ),
        Column("Thread-hours", f"{found} / 3600", decimals=2, width=100),
        Column(
            "Share",
            f"{found} / scalar({grown(TIME)} > 0)",
            unit="percentunit",
            decimals=0,
            width=70,
        ),
        Column("Advice", label="advice", wrapped=True),
        Column("Alert", label="alertname", hidden=True),
        sort="Thread-hours",
        empty="nothing is beyond its limit",
        width=10,
    )


#: No rule says how much computing or overhead is right: theirs compares with a week ago.
LIMITED = [part for part in PARTS if part.alert != "DaskEfficiencyFell"]


def _parts() -> Panel:
    """All parts in one panel: each in its colour, and red beyond the limit of its alert."""
    panel = number(
        "Where did the thread-time go?",
        "Shares of all booked time, which add up to 100 %; the time of a task is booked when it "
        "ends. "
        + " ".join(
            f"{part.title}: {part.advice}"
            + (
                f" Red from {limit(part.alert):.0%} on, the limit of {part.alert}."
                * (part in LIMITED)
            )
            for part in PARTS
        ),
        *(
            (share(selector(CLUSTER_TIME, CLUSTER, meanings.matcher(part)), TIME), part.title)
            for part in PARTS
        ),
        width=24,
    )
    for part in PARTS:
        # The wasted part is red by its meaning: while it is small, its number need not be.
        colour = meanings.MEANINGS[(*part.meanings, "other")[0]].colour
        below = TEXT if colour == BAD else colour
        panel.stepped(part.title, below, [(limit(part.alert), BAD)] if part in LIMITED else [])
    for alert in dict.fromkeys(part.alert for part in PARTS):
        panel = panel.runbook(alert)
    return panel


def _summary() -> Line:
    """What it cost, what failed, and whether the telemetry is complete."""
    return line(
        number(
            "Thread-time",
            "Thread-time of the clusters (a thread for an hour is an hour): bills count it.",
            (grown(money.CAPACITY), ""),
            unit="s",
            width=5,
        ),
        number(
            "Cost",
            "The thread-hours of the clusters, times the price of a thread-hour above.",
            (money.money(grown(money.CAPACITY)), ""),
            unit="short",
            width=4,
            decimals=2,
        ),
        number(
            "Failed runs",
            "Complete runs that ended with failure or error, of all workflows.",
            (f"{whole(FAILED)} or 0 * {whole(ENDED)}", ""),
            unit="none",
            width=4,
            below=GOOD,
            steps=[(1, BAD)],
            decimals=0,
        ),
        exporter.lost(width=5),
        exporter.last_export(width=6),
        height=4,
    )


def _workflows() -> Panel:
    time = grown(SPAN_TIME, BY_ROOT)
    runs = whole(ENDED, BY_ROOT)
    before = "$__range"
    each = f"{time} / ({runs} > 0)"
    each_before = f"{grown(SPAN_TIME, BY_ROOT, before)} / ({whole(ENDED, BY_ROOT, before)} > 0)"
    idle = selector("dask_span_idle_time_seconds_total", CLUSTER)
    return rows(
        "Which workflows cost the most?",
        "Thread-time of each root span and the spans inside of it: what its tasks used, and its "
        "share of idle time. Runs are complete runs. Not counted: submissions that Dask booked on "
        "another run because the client keeps futures, so the number of runs is too low. The "
        "trend is the thread-time of a run, against the time just before. Set a price above to "
        "see money.",
        Column(
            "Workflow",
            label="dask_span_root_name",
            link=links.cell_link("Open in Dask / Span", "dask_span_root_name"),
        ),
        Column("Thread-hours", f"{time} / 3600", decimals=2, bar=meanings.NEUTRAL),
        Column("Cost", money.money(time), decimals=2, width=90),
        Column("Idle cost", money.money(grown(idle, BY_ROOT)), decimals=2, width=90),
        Column(
            "Computing",
            f"{grown(CPU, BY_ROOT)} / ({time} > 0)",
            unit="percentunit",
            decimals=0,
            width=100,
        ),
        Column(
            "Idle",
            f"{grown(idle, BY_ROOT)} / ({time} > 0)",
            unit="percentunit",
            decimals=0,
            width=80,
            steps=[(limit("DaskSpanIdle"), BAD)],
        ),
        Column("Runs", f"{runs} > 0", decimals=0, width=80),
        Column(
            "Failed",
            f"{whole(FAILED, BY_ROOT)} or 0 * ({runs} > 0)",
            decimals=0,
            width=80,
            steps=[(1, BAD)],
        ),
        Column(
            "Not counted",
            f"{whole(selector('dask_span_collided_total', CLUSTER), BY_ROOT)} > 0",
            decimals=0,
            width=105,
            steps=[(1, BAD)],
        ),
        Column(
            "Trend",
            f"({each}) / (({each_before}) > 0) - 1",
            unit="percentunit",
            decimals=0,
            width=90,
            steps=[(1 / limit("DaskEfficiencyFell") - 1, BAD)],
        ),
        sort="Thread-hours",
        empty="no work in the shown time",
    )


_WHERE = graph(
    "Where did the time go?",
    "Threads by what they did, in the colours of the numbers above, below the line of the "
    "threads that there were. Seconds of an activity are booked when the task ends: with long "
    "tasks look at a longer time.",
    *(
        (
            f"sum(rate({selector(CLUSTER_TIME, CLUSTER, meanings.matcher(part))}"
            "[$__rate_interval]))",
            part.title,
        )
        for part in PARTS
    ),
    (f"sum({selector('dask_cluster_thread_count', CLUSTER)})", "(threads)"),
    unit="suffix:threads",
    width=24,
    stacked=True,
    meant=True,
    outline="(threads)",
)


# ------------------------------------------------------------------------------------ costs


def _top(count: int, by: str, series: str) -> str:
    return f"topk({count}, {grown(series, by)} > 0)"


_COSTS = line(
    bars(
        "Which spans cost the most thread-time?",
        "By full span name. Values are a span's own, without the spans inside of it.",
        (
            _top(12, "dask_span_root_name, dask_span_name", SPAN_TIME),
            "{{dask_span_name}}",
        ),
    ),
    bars(
        "Which functions cost the most thread-time?",
        "By workflow and task prefix, over all activities.",
        (_top(12, BY_FUNCTION, TASKS), FUNCTION),
    ),
    height=9,
)


# ----------------------------------------------------------------------------------- losses


def _limited(title: str, read: str, query: str, alert: str, which: int = 0) -> Panel:
    """A share that is red beyond the limit of an alert."""
    bound = limit(alert, which)
    return number(
        title,
        f"{read} Red from {bound:.0%} on, the limit of {alert}.",
        (query, ""),
        width=7,
        steps=[(bound, BAD)],
    ).runbook(alert)


_LOSSES: list[Line] = [
    line(
        _limited(
            "Off the CPU: GIL, I/O, GPU",
            "Share of the tasks' computing time for which their thread was not on the CPU. "
            "The reason is unknown: look at the functions beside it.",
            share(OFF_CPU, ON_THREADS),
            "DaskThreadsWait",
        ),
        bars(
            "Which functions are off the CPU, in thread-time?",
            "Normal for a function that reads, writes, sleeps or uses a GPU. Pure computation: "
            "try one thread per worker process. If the wait goes away, it was the GIL; if not, "
            "the machine has fewer CPUs than the workers have threads.",
            (_top(10, BY_FUNCTION, OFF_CPU), FUNCTION),
            width=17,
            colour=meanings.MEANINGS["off the CPU"].colour,
        ),
    ),
    line(
        _limited(
            "Does the network cost time?",
            "At most this share of the time with work: transfers run beside the tasks, and "
            "cost something only where threads are idle meanwhile. So it is the smaller one "
            "of idle time and receiving time.",
            smaller(share(RECEIVING, WORKED), share(IDLE, WORKED)),
            "DaskNetworkSlow",
            1,
        ),
        graph(
            "More throughput, or better data locality?",
            "Receiving by activity, in seconds for each second, and idle threads. Mostly "
            "network: throughput or locality helps. Mostly serialize, compress, other: it "
            "would not.",
            *folded(TRANSFER, f'{CLUSTER}, network_io_direction="receive"'),
            (f"sum(rate({IDLE}[$__rate_interval]))", "(idle threads)"),
            unit="suffix:threads",
            width=17,
        ),
    ),
    line(
        _limited(
            "How much does spilling cost?",
            "Share of the tasks' time in which they waited for disk or compression: the most "
            "that enough memory can save.",
            share(SPILLING, TASKS),
            "DaskSpilling",
        ),
        bars(
            "Which functions wait for spilled data, in thread-time?",
            "Disk and compression by workflow and function.",
            (_top(10, BY_FUNCTION, SPILLING), FUNCTION),
            width=17,
            colour=meanings.MEANINGS["spill"].colour,
            empty="no task waited for spilled data in the shown time",
        ),
    ),
    line(
        graph(
            "Would more memory help? (cache hits)",
            "Bytes that tasks took from memory, and bytes that had to come back from disk. With "
            "few from disk, more memory gains nothing, and less would hurt.",
            (rates(FROM_ANYWHERE, "dask_activity"), "{{dask_activity}}"),
            unit="Bps",
            stacked=True,
        ).runbook("DaskCacheMisses"),
        graph(
            "The event loop is blocked: should I worry?",
            "Below the line or without idle threads: no. Above: heartbeats, transfers and "
            "scheduling wait.",
            (rates(LOOP, "dask_cluster_name"), "{{dask_cluster_name}}"),
            unit="percentunit",
            lines=[(limit("DaskEventLoopBlocked"), BAD)],
        ).runbook("DaskEventLoopBlocked"),
        height=9,
    ),
    line(
        bars(
            "Which functions worked for nothing, in thread-time?",
            "Runs that failed or were cancelled, by workflow and function.",
            (_top(10, BY_FUNCTION, NO_RESULT), FUNCTION),
            width=24,
            colour=BAD,
            empty="no run failed or was cancelled in the shown time",
        ).runbook("DaskWorkWasted"),
    ),
]


_MEMORY = line(
    graph(
        "Which workflows have results in memory?",
        "Size of the results that are in the workers' memory or spilled, each once, by "
        "workflow: also those that a client keeps after the end.",
        (f"sum by ({BY_ROOT}) ({HELD})", "{{dask_span_root_name}}"),
        unit="bytes",
        stacked=True,
        empty="no result was in memory in the shown time",
    ),
    bars(
        "Which functions' results take the most of it?",
        "Size by time, in gigabytes times hours, by workflow and function.",
        (f"topk(10, {grown(HELD_TIME, BY_FUNCTION)} > 0) / 3.6e12", FUNCTION),
        unit="suffix: GB h",
        empty="no result was in memory in the shown time",
    ).runbook("DaskResultsKept"),
    height=9,
)


def _work() -> Line:
    by = "dask_span_root_name, dask_activity, dask_unit"
    units = 'dask_unit!~"|seconds|bytes|count|_EMPTY|_OTHER"'
    done = grown(selector("dask_span_custom_total", CLUSTER, units), by)
    runs = grown(selector("dask_span_duration_seconds_sum", CLUSTER, ITSELF), BY_ROOT)
    threads = grown(SPAN_TIME, BY_ROOT)

    def per(amount: str) -> str:
        return f"{done} / on ({BY_ROOT}) group_left () (({amount}) > 0)"

    return line(
        rows(
            "What work was done, and what did it take?",
            "What tasks metered in units of their own, such as events, with all spans of a "
            "workflow: for each second of its runs that ended, of its threads, and for the price "
            "above.",
            Column("Workflow", label=BY_ROOT),
            Column("Work", label="dask_activity"),
            Column("Unit", label="dask_unit"),
            Column("Total", done, decimals=0, bar=meanings.NEUTRAL),
            Column("Per second", per(runs), decimals=2, width=110),
            Column("Per thread-second", per(threads), decimals=2, width=150),
            Column("Per unit of money", per(money.money(threads)), decimals=2, width=150),
            sort="Total",
            empty="no task meters units of its own",
        ),
        height=8,
    )


_SCALE = line(
    graph(
        "Twice the cluster, not twice as fast: where is the rest?",
        "Threads by activity, below the line of the threads that there were. An activity other "
        "than thread-cpu that grows with the cluster is the answer.",
        *folded(CLUSTER_TIME, CLUSTER),
        (f"sum({selector('dask_cluster_thread_count', CLUSTER)})", "(threads)"),
        unit="suffix:threads",
        stacked=True,
        outline="(threads)",
    ),
    graph(
        "Does the same work take more than before?",
        "CPU seconds for each second of the cluster, by workflow. A fall is a regression: open "
        "the dashboard Span to see which activity has grown.",
        (
            f"{rates(CPU, BY_ROOT)} / ({rates(SPAN_TIME, BY_ROOT)} > 0)",
            "{{dask_span_root_name}}",
        ),
        unit="percentunit",
        decimals=1,
    ),
    height=10,
)


PAGE: Any = page(
    "Dask / Overview",
    "Where the time of Dask clusters went, and what could be saved",
    ["cluster", "price"],
    [
        _summary(),
        line(bounded_runs(CLUSTER, width=14), _advice(), height=9),
        line(failed_runs(width=12), _alerts(), height=7),
        line(_parts(), height=4),
        line(_workflows(), height=9),
        line(happened(), height=7),
        line(_WHERE, height=10),
        Details("What costs the most?", (_COSTS,)),
        Details("What does it cost, in money?", tuple(money.LINES)),
        Details("What work was done?", (_work(),)),
        Details("How much am I losing, and to what?", tuple(_LOSSES)),
        Details("Who holds the memory?", (_MEMORY,)),
        Details("Did it get better?", (_SCALE,)),
    ],
)
