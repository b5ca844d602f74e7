"""The rules of Prometheus that are shipped, and what a PromQL expression names that is nowhere."""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml

from dask_otel import semconv
from tests.backends import prometheus_names
from tests.environment import LOADER, REPOSITORY

RULES = [
    rule
    for file in sorted((REPOSITORY / "deploy" / "prometheus" / "rules").glob("*.yml"))
    for group in yaml.load(file.read_text(encoding="utf-8"), LOADER)["groups"]
    for rule in group["rules"]
]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
RECORDED = {rule["record"]: rule for rule in RULES if "record" in rule}

#: Labels of every series: what Prometheus adds, and the resource attributes that the shipped
#: configuration promotes (see deploy/prometheus/prometheus.yml).
COMMON = {
    "job", "instance", "dask_cluster_name", "service_namespace", "service_version",
    "deployment_environment_name", "k8s_namespace_name",
}  # fmt: skip

#: What Prometheus says of its alerts, and the labels of ours.
FIRING = {
    "ALERTS": {"alertname", "alertstate", "severity"},
    "ALERTS_FOR_STATE": {"alertname", "severity"},
}

_METRIC = re.compile(
    r"(?<![\w:\"])(?:target_info|ALERTS(?:_FOR_STATE)?|(?:dask|hw_gpu)_\w+|\w+:dask_\w+:\w+)(?![\w:])"
)
_MATCHERS = re.compile(r"\{([^}]*)\}")
_LABELS_OF_MATCHERS = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"|`[^`]*`')


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


#: The labels of every series name that the bridge exports.
EXPORTED = {
    name: {*prometheus_names.labels(metric)}
    for metric in semconv.METRICS.values()
    for name in prometheus_names.names(metric)
}


def unknown(expression: str) -> set[str]:
    """The metrics and labels of an expression that nobody exports; itself, if it has no metric."""
    used = metrics(expression)
    # A recorded one, or an alert, may have the labels of any.
    every = COMMON.union(*EXPORTED.values(), *FIRING.values())
    known = COMMON.union(*(EXPORTED.get(one, every) for one in used))
    if any("dask_span_name" in EXPORTED.get(one, ()) for one in used):
        # That users make of their tags (`otel.metrics.tag-attributes`).
        known.add("dask_tag_team")
    found = used - EXPORTED.keys() - RECORDED.keys() - FIRING.keys()
    found |= labels(expression) - known
    return found if used else {expression}
