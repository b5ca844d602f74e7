"""What it costs, in money: thread-hours times the price at the top of the page."""

from __future__ import annotations

from . import meanings
from .limits import limit
from .meanings import BAD
from .parts import Column, Line, Panel, line, number, rows
from .queries import CLUSTER, grown, selector

CLUSTER_TIME = "dask_cluster_time_seconds_total"
CAPACITY = selector("dask_cluster_capacity_time_seconds_total", CLUSTER)
IDLE = selector(CLUSTER_TIME, CLUSTER, 'dask_activity="idle"')
UNUSED = selector(CLUSTER_TIME, CLUSTER, 'dask_activity="unused"')
WASTED = selector(
    CLUSTER_TIME, CLUSTER, f'dask_activity=~"{meanings.names("failed", "cancelled", "lost")}"'
)

#: Only where tags are labels: without the label there is no team to speak of.
_TEAMS = 'dask_tag_team!=""'
TEAM_TIME = selector("dask_span_capacity_time_seconds_total", CLUSTER, _TEAMS)
TEAM_IDLE = selector("dask_span_idle_time_seconds_total", CLUSTER, _TEAMS)

BY_CLUSTER = "dask_cluster_name"
BY_TEAM = "dask_tag_team"


def hours(seconds: str) -> str:
    return f"{seconds} / 3600"


def money(seconds: str) -> str:
    """What seconds of threads cost; nothing without a price."""
    return f"({seconds} / 3600 * $price) > 0"


def _teams() -> Panel:
    time, idle = grown(TEAM_TIME, BY_TEAM), grown(TEAM_IDLE, BY_TEAM)
    return rows(
        "Which teams cost the most?",
        "Thread-time of all spans with a tag `team:…`, and its idle part. `_EMPTY` is work "
        "without such a tag. Unused time belongs to no team: see the clusters beside it.",
        Column("Team", label=BY_TEAM),
        Column("Thread-hours", hours(time), decimals=2, bar=meanings.NEUTRAL),
        Column("Cost", money(time), decimals=2, width=90),
        Column("Idle cost", money(idle), decimals=2, width=90),
        Column(
            "Idle",
            f"{idle} / ({time} > 0)",
            unit="percentunit",
            decimals=0,
            width=70,
            steps=[(limit("DaskSpanIdle"), BAD)],
        ),
        sort="Thread-hours",
        empty="no span has a team: see otel.metrics.tag-attributes",
        width=12,
    )


def _clusters() -> Panel:
    paid = grown(CAPACITY, BY_CLUSTER)
    return rows(
        "Which clusters cost the most?",
        "All paid thread-time, and its idle and unused parts. Unused time belongs to the cluster "
        "alone.",
        Column("Cluster", label=BY_CLUSTER),
        Column("Thread-hours", hours(paid), decimals=2, bar=meanings.NEUTRAL),
        Column("Cost", money(paid), decimals=2, width=90),
        Column("Idle cost", money(grown(IDLE, BY_CLUSTER)), decimals=2, width=90),
        Column("Unused cost", money(grown(UNUSED, BY_CLUSTER)), decimals=2, width=110),
        sort="Thread-hours",
        empty="no cluster in the shown time",
        width=12,
    )


#: Parts of the cost that bought nothing: name, thread-time, meaning.
_FOR_NOTHING = (("Idle", IDLE, "idle"), ("Unused", UNUSED, "unused"), ("Wasted", WASTED, "failed"))


def _for_nothing() -> Panel:
    panel = number(
        "What was paid for nothing?",
        "The price of threads that had nothing to do while there was work (idle), of threads while "
        "there was no work at all (unused), and of runs that failed or were cancelled and the time "
        "lost with dead workers (wasted). Set the price of a thread-hour above.",
        *((money(grown(series)), name) for name, series, _ in _FOR_NOTHING),
        unit="short",
        decimals=2,
        width=24,
    )
    for name, _, meaning in _FOR_NOTHING:
        panel.stepped(name, meanings.MEANINGS[meaning].colour, [])
    return panel


LINES: list[Line] = [
    line(_for_nothing(), height=4),
    line(_teams(), _clusters(), height=8),
]
