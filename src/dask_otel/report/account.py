"""The account of a run: where its time went, what failed, and what to do; found out once.

The text, the page and the JSON show it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dask_otel.report import findings
from dask_otel.report.advice import Advice, advice, outcome_counts
from dask_otel.report.idle import IdleReason, explain
from dask_otel.report.meanings import PARTS, Part
from dask_otel.report.money import Bill, Price, bill
from dask_otel.report.seconds import ClusterTime, SpanTime, cluster_time, run_parts, span_times
from dask_otel.report.telemetry.model import Run, Span


@dataclass(frozen=True)
class Account:
    """What the report says of one run. None is what was not exported."""

    run: Run
    #: How many tasks ended how, and how many runs of tasks were repeated why.
    outcomes: dict[str, float]
    repeated: dict[str, float]
    cluster: ClusterTime | None
    #: Thread-seconds of each part of the time, by title; all parts are there.
    parts: dict[str, float]
    spans: list[SpanTime]
    advice: list[Advice]
    failures: list[findings.Failure]
    slowest: list[Span]
    workers: list[findings.Worker]
    idle: IdleReason | None
    price: Price | None
    tag: str
    #: None without a price.
    bill: Bill | None

    def shares(self) -> Iterator[tuple[Part, float, float]]:
        """Yield the parts that took time, with their thread-seconds and their shares."""
        whole = sum(self.parts.values())
        for part in PARTS:
            seconds = self.parts[part.title]
            if seconds > 0:
                yield part, seconds, seconds / whole


def account(run: Run, price: Price | None = None, tag: str = "team") -> Account:
    """Return the account of a run; its cost with a `price`, summed by the tags ``<tag>:…``."""
    return Account(
        run=run,
        outcomes=outcome_counts(run),
        repeated=findings.retries(run),
        cluster=cluster_time(run),
        parts=run_parts(run),
        spans=span_times(run),
        advice=advice(run),
        failures=findings.failures(run),
        slowest=findings.slowest(run),
        workers=findings.workers(run),
        idle=explain(run),
        price=price,
        tag=tag,
        bill=None if price is None else bill(run, tag),
    )
