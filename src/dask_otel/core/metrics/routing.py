"""The metric and labels of a raw Dask metric key.

Dask's keys are tuples ``(context, …, unit)``. Dask compares only the first and the last
element (``Span.cumulative_worker_metrics`` advises ``k[0] == "execute"``), and so do we: between
them are prefix or stage, then the activity. If an activity is a tuple, the contexts p2p, get-data
and memory-monitor write its elements into the key one by one (``(tag, *label, unit)`` in
distributed's core.py, worker_memory.py, shuffle/_core.py); here they become a tuple again.

===========================================  =============================================
Key of a span                                 Metric and labels
===========================================  =============================================
``("execute", prefix, activity…, unit)``      ``dask.span.execute.*`` (prefix, activity)
``("p2p", stage, activity…, unit)``           ``dask.span.p2p.*`` (stage, activity)
any other unit or context, 3 or more parts    ``dask.span.custom`` (2nd part, rest, unit)
``(context, unit)``                           ``dask.span.custom`` (empty, context, unit)
``(anything,)``, or no tuple                  ``dask.span.custom`` (empty, it, empty)
===========================================  =============================================
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, TypeAlias

from dask_otel import semconv
from dask_otel.semconv import Metric

_Units: TypeAlias = dict[Hashable, Metric]

_SPAN: Final[dict[Hashable, _Units]] = {
    "execute": {
        "seconds": semconv.SPAN_EXECUTE_TIME,
        "bytes": semconv.SPAN_EXECUTE_IO,
        "count": semconv.SPAN_EXECUTE_OPERATIONS,
    },
    "p2p": {
        "seconds": semconv.SPAN_P2P_TIME,
        "bytes": semconv.SPAN_P2P_IO,
        "count": semconv.SPAN_P2P_OPERATIONS,
    },
}
_TRANSFER: Final[_Units] = {
    "seconds": semconv.CLUSTER_TRANSFER_TIME,
    "bytes": semconv.CLUSTER_TRANSFER_IO,
    "count": semconv.CLUSTER_TRANSFER_OPERATIONS,
}
_SPILL: Final[_Units] = {
    "seconds": semconv.CLUSTER_SPILL_TIME,
    "bytes": semconv.CLUSTER_SPILL_IO,
    "count": semconv.CLUSTER_SPILL_OPERATIONS,
}
#: Context of a worker's key: the metrics by unit, and the labels before the activity.
_CLUSTER: Final[dict[Hashable, tuple[_Units, tuple[str, ...]]]] = {
    "gather-dep": (_TRANSFER, ("receive",)),
    "get-data": (_TRANSFER, ("transmit",)),
    "memory-monitor": (_SPILL, ()),
}

#: A metric and its label values without the span.
Route: TypeAlias = tuple[Metric, tuple[Hashable, ...]]


def _activity(parts: tuple[Hashable, ...]) -> Hashable:
    return parts[0] if len(parts) == 1 else parts or ""


def route_span_key(key: Hashable) -> Route:
    """Return the metric of a span's key and its label values after the span label.

    Never fails: unknown keys are `semconv.SPAN_CUSTOM` (see the module's table).
    """
    if not isinstance(key, tuple) or len(key) < 2:
        activity = _activity(key) if isinstance(key, tuple) else key
        return semconv.SPAN_CUSTOM, ("", activity, "")
    unit = key[-1]
    if len(key) == 2:
        return semconv.SPAN_CUSTOM, ("", key[0], unit)
    labels = (key[1], _activity(key[2:-1]))
    metric = _SPAN.get(key[0], {}).get(unit)
    return (semconv.SPAN_CUSTOM, (*labels, unit)) if metric is None else (metric, labels)


def is_ignored_cluster_key(key: Hashable) -> bool:
    """Return whether another metric covers a key of the cluster's totals, or it is not a sum.

    Contexts ``execute`` and ``p2p`` are reported per span; plain strings (``latency``,
    ``tick-duration``, ``transfer-bandwidth``) are not seconds of work.
    """
    return isinstance(key, str) or (isinstance(key, tuple) and bool(key) and key[0] in _SPAN)


def route_cluster_key(key: Hashable) -> Route | None:
    """Return the metric of a key of the cluster's totals and its label values.

    None for a context, unit or shape without a metric: the caller counts it as unknown.
    """
    if isinstance(key, tuple) and len(key) > 1 and key[0] in _CLUSTER:
        units, labels = _CLUSTER[key[0]]
        if key[-1] in units:
            return units[key[-1]], (*labels, _activity(key[1:-1]))
    return None
