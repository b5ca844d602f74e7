"""The metrics and labels that a PromQL expression names."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dask_otel import semconv
from tests.backends import prometheus_names

#: Names of TELEMETRY that nobody exports yet; the contract test says when one can go.
PLANNED: frozenset[str] = frozenset()

#: Labels of every series: what Prometheus adds, and the resource attributes that the shipped
#: configuration promotes (see deploy/prometheus/prometheus.yml).
COMMON = {
    "job", "instance", "dask_cluster_name", "service_namespace", "service_version",
    "deployment_environment_name", "k8s_namespace_name",
}  # fmt: skip

#: What Prometheus says of its alerts, and the labels of ours.
ALERTS = {
    "ALERTS": {"alertname", "alertstate", "severity"},
    "ALERTS_FOR_STATE": {"alertname", "severity"},
}

_METRIC = re.compile(
    r"(?<![\w:\"])(?:target_info|ALERTS(?:_FOR_STATE)?|dask_\w+|\w+:dask_\w+:\w+)(?![\w:])"
)
_MATCHERS = re.compile(r"\{([^}]*)\}")
_LABELS_OF_MATCHERS = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"')


def metrics(expression: str) -> set[str]:
    """The metrics of an expression, recorded ones included."""
    bare = _STRINGS.sub('""', expression)
    bare = _GROUPING.sub("", _MATCHERS.sub("", bare))
    return set(_METRIC.findall(bare))


def labels(expression: str) -> set[str]:
    """The labels of an expression, from matchers and groupings."""
    bare = _STRINGS.sub('""', expression)
    return set(_labels(bare))


def _labels(bare: str) -> Iterator[str]:
    for matchers in _MATCHERS.findall(bare):
        yield from _LABELS_OF_MATCHERS.findall(matchers)
    for grouping in _GROUPING.findall(bare):
        yield from (one.strip() for one in grouping.split(",") if one.strip())


#: Labels that users make of their tags (`otel.metrics.tag-attributes`), on all metrics of spans.
TAGS = {"dask_tag_team"}


def exported() -> dict[str, set[str]]:
    """The labels of every series name that the bridge exports."""
    return {
        name: prometheus_names.labels(metric)
        for metric in semconv.METRICS.values()
        for name in prometheus_names.names(metric)
    }
