"""The names under which Prometheus stores metrics, by its own default translation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dask_otel import semconv

#: What the names of Dask's units are at the end of Prometheus' names.
SUFFIXES = {"seconds": "time_seconds", "bytes": "io_bytes", "count": "operations"}

#: Units in braces are annotations, which are left out of names.
_UNITS = {"s": "_seconds", "By": "_bytes", "By.s": "_By_s", "1": ""}


def label(key: str) -> str:
    """The label of an attribute key."""
    return key.replace(".", "_").replace("-", "_")


def base_name(metric: semconv.Metric) -> str:
    """The name of a metric without what histograms add."""
    name = label(metric.name) + _UNITS.get(metric.unit, "")
    if metric.instrument == "counter":
        return f"{name}_total"
    if metric.instrument == "gauge" and metric.unit == "1":
        return f"{name}_ratio"
    return name


def names(metric: semconv.Metric) -> set[str]:
    """Every series name of a metric."""
    base = base_name(metric)
    if metric.instrument == "histogram":
        return {f"{base}_{part}" for part in ("bucket", "sum", "count")}
    return {base}


def labels(metric: semconv.Metric) -> set[str]:
    """Every label of a metric, without those of the resource."""
    keys = [
        key
        for one in metric.labels
        for key in (semconv.SPAN_KEYS if one == semconv.SPAN else (one,))
    ]
    return {label(key) for key in keys} | ({"le"} if metric.instrument == "histogram" else set())


def fine_metrics(series: Mapping[tuple[Any, ...], float]) -> dict[tuple[Any, ...], float]:
    """Dask's fine metrics among series by name and labels, with the keys of `text_keys`."""
    seconds = {"execute": "dask_task_prefix", "p2p": "dask_p2p_stage"}
    found = {
        (of["dask_span_name"], context, of[second], of["dask_activity"], unit): value
        for unit, suffix in SUFFIXES.items()
        for context, second in seconds.items()
        for (name, *labels), value in series.items()
        if name == f"dask_span_{context}_{suffix}_total"
        for of in [dict(labels)]
    }
    for (name, *labels), value in series.items():
        if name == "dask_span_custom_total":
            of = dict(labels)
            prefix, activity = of["dask_task_prefix"], of["dask_activity"]
            found[of["dask_span_name"], "execute", prefix, activity, of["dask_unit"]] = value
    return found
