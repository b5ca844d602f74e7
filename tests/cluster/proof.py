"""Every cluster test proves that what was exported is what Dask knows.

The harnesses (`bridged`, `cluster`) prove it when a test leaves them: totals against
``Scheduler.cumulative_worker_metrics``, every span's own values key by key, the closed sum,
and that no counter went back. A test where that can't hold says so, with the reason:
``@pytest.mark.unreconciled("…")``, or ``@pytest.mark.relabelled("…")`` where only the totals can be
compared, because labels were folded or cleaned. conftest.py sees to it that a test has one or
the other.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from dask_otel import semconv
from tests.cluster.truth import (
    UNITS,
    assert_closed,
    assert_monotone,
    assert_reconciled,
    assert_same,
    own_values,
)
from tests.receiver import Receiver


@dataclass
class Proof:
    """What the running test owes, and has given."""

    #: Why nothing, or only totals, can be compared.
    unreconciled: str | None = None
    relabelled: str | None = None
    given: int = 0


#: Of the test that runs.
current = Proof()


def begin(unreconciled: str | None, relabelled: str | None) -> Proof:
    """Take up a test."""
    global current
    current = Proof(unreconciled, relabelled)
    return current


def truth(dask_scheduler: Any) -> dict[str, Any]:
    """Return what Dask knows. Runs on the scheduler (``Client.run_on_scheduler``)."""
    return {
        "spans": own_values(dask_scheduler),
        "totals": dict(dask_scheduler.cumulative_worker_metrics),
    }


def prove(received: Receiver, known: dict[str, Any], cut: bool = False) -> None:
    """Check everything that was exported against what Dask knows.

    Parameters
    ----------
    received
        What was exported.
    known
        What :func:`truth` returned.
    cut
        Whether the collector had faults: an export at the borders of one may have arrived in part.
    """
    if current.unreconciled is not None:
        return
    assert_totals(received, known["totals"])
    if current.relabelled is None:
        assert_reconciled(received, known["spans"])
    assert_monotone(received)
    assert_closed(received, cut=cut)
    current.given += 1


def metric_of(key: Any) -> str | None:
    """Return the metric that a key of ``cumulative_worker_metrics`` belongs to."""
    if not isinstance(key, tuple):
        return None
    part = UNITS.get(key[-1])
    names = {
        "execute": "dask.span.execute",
        "p2p": "dask.span.p2p",
        "gather-dep": "dask.cluster.transfer",
        "get-data": "dask.cluster.transfer",
        "memory-monitor": "dask.cluster.spill",
    }
    name = names.get(key[0])
    if name is None or (part is None and not name.startswith("dask.span.")):
        return None  # nobody's: counted as unknown
    return f"{name}.{part}" if part else "dask.span.custom"


def assert_totals(received: Receiver, cumulative: dict[Any, float]) -> None:
    """Check the sum of each metric over all its labels against Dask's own totals."""
    contexts = ("span.execute", "span.p2p", "cluster.transfer", "cluster.spill")
    parts = [f"{context}.{part}" for context in contexts for part in UNITS.values()]
    expected = {f"dask.{part}": 0.0 for part in [*parts, "span.custom"]}
    for key, value in cumulative.items():
        metric = metric_of(key)
        if metric is not None:
            expected[metric] += value
    assert_same({metric: sum(received.last(metric).values()) for metric in expected}, expected)


def prove_adapter(adapter: Any, increments: dict[tuple[Any, ...], float]) -> None:
    """Check what an adapter that was there first holds, and has handed over.

    Belongs to the event loop.
    """
    batch = adapter.swap(1)
    # Where a batch did not keep all spans of a name apart, their sum is compared.
    folded = {place for place in batch.span_deltas if isinstance(place, tuple)}
    known: dict[Any, float] = defaultdict(float)
    for span in adapter.scheduler.extensions["spans"].spans.values():
        for key, value in span._cumulative_worker_metrics.items():
            known[(span.name if span.name in folded else span.id, *key)] += value
    exported: dict[Any, float] = defaultdict(float)
    for place, deltas in batch.span_deltas.items():
        for key, value in deltas.values.items():
            exported[(deltas.tags if deltas.tags in folded else place, *key)] += value
    assert_same(nonzero(exported), nonzero(known))
    of_no_span = {
        key: value
        for key, value in adapter.scheduler.cumulative_worker_metrics.items()
        if type(key) is tuple and key and key[0] not in ("execute", "p2p")
    }
    assert_same(nonzero(batch.cluster_deltas), nonzero(of_no_span))
    sums: dict[str, float] = defaultdict(float)
    for parts in (increments, batch.increments):
        for (name, *_), value in parts.items():
            sums[name] += value
            if semconv.METRICS[name].instrument == "counter":
                assert value >= 0, name
    in_flight = batch.levels[semconv.CLUSTER_INFLIGHT_TIME.name,]
    assert in_flight >= 0
    went = sums["dask.cluster.time"] + in_flight
    there = sums["dask.cluster.capacity.time"] + sums["dask.cluster.excess.time"]
    assert abs(went - there) <= 1e-6 * max(1.0, there), (went, there)


def nonzero(values: dict[Any, float]) -> dict[Any, float]:
    """Leave out what is 0: Dask's own numbers have no key for it, or one since before."""
    return {k: v for k, v in values.items() if v}
