"""Expressions that several panels ask, in PromQL."""

from __future__ import annotations

#: Label matchers of the variables.
CLUSTER = 'dask_cluster_name=~"$cluster"'
#: One value, which Grafana escapes only when it is asked to: a name such as "nightly (eu)" is no
#: pattern. Only text in backticks may have the backslashes.
ROOT = CLUSTER + ", dask_span_root_name=~`${root:regex}`"
SPAN = f'{ROOT}, dask_span_name=~"$span"'
PREFIX = f'{SPAN}, dask_task_prefix=~"$prefix"'

#: A root span itself, and none of the spans below it: a name without a separator (a slash inside
#: a tag is escaped). What was folded can be anything.
ITSELF = 'dask_span_name=~"([^/\\\\\\\\]|\\\\\\\\.)+", dask_span_name!="_OTHER"'

#: The part of the tasks' time below which an activity is folded into "other".
SMALL = 0.01


def selector(metric: str, *matchers: str) -> str:
    return f"{metric}{{{', '.join(matchers)}}}"


def grown(series: str, by: str = "", offset: str = "") -> str:
    """How much a counter has grown in the shown time."""
    back = f" offset {offset}" if offset else ""
    group = f" by ({by})" if by else ""
    return f"sum{group} (increase({series}[$__range]{back}))"


def whole(series: str, by: str = "", offset: str = "") -> str:
    """The same for what comes in whole numbers.

    ``increase`` extrapolates to the ends of the time range and makes 55.4 runs of 50. The
    difference of the samples does not; only where a counter was reset within the range, it is less
    than what happened.
    """
    window = f"{series}[$__range]" + (f" offset {offset}" if offset else "")
    group = f" by ({by})" if by else ""
    return (
        f"sum{group} (((max_over_time({window}) - min_over_time({window}))"
        f" and (resets({window}) == 0)) or round(increase({window})))"
    )


def share(part: str, of: str, by: str = "") -> str:
    """A ratio of two sums over the time range; nothing where there is nothing to divide by.

    0 where there is, and no series of the part: it has not happened yet.
    """
    whole_ = f"({grown(of, by)} > 0)"
    return f"({grown(part, by)} / {whole_} or 0 * {whole_})"


def averaged(series: str) -> str:
    """Seconds for each second of the time that has data, of the cluster where it is most."""
    rate = f"sum by (dask_cluster_name) (rate({series}[$__rate_interval]))"
    return f"max(avg_over_time(({rate})[$__range:$__interval]))"


def smaller(first: str, second: str) -> str:
    """The smaller one of two single values."""
    return f"(({first}) < ({second})) or ({second})"


def rates(series: str, by: str) -> str:
    return f"sum by ({by}) (rate({series}[$__rate_interval]))"


def folded(metric: str, matchers: str) -> list[tuple[str, str]]:
    """Seconds for each second by activity; what is small all the time is in "other".

    Dask's own ``other`` is in it, too. What is small is decided once for the whole picture, not
    anew at each of its points.
    """
    named = selector(metric, matchers, 'dask_activity!="other"')
    everything = selector(metric, matchers)
    large = (
        f"sum by (dask_activity) (increase({named}[$__range] @ end()))"
        f" > {SMALL} * scalar(sum(increase({everything}[$__range] @ end())))"
    )
    return [
        (f"{rates(named, 'dask_activity')} and on (dask_activity) ({large})", "{{dask_activity}}"),
        (f"sum({rates(everything, 'dask_activity')} unless on (dask_activity) ({large}))", "other"),
    ]


def labelled(expression: str, **labels: str) -> str:
    """The expression's value with texts as labels, for the columns of a table."""
    for label, text in labels.items():
        expression = f'label_replace({expression}, "{label}", "{text}", "", "")'
    return expression


def renamed(expression: str, label: str, **texts: str) -> str:
    """The same series, with other texts for some values of a label."""
    for old, new in texts.items():
        expression = f'label_replace({expression}, "{label}", "{new}", "{label}", "{old}")'
    return expression
