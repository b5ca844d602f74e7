"""The account of a run, computed once: where its time went, what failed, and what to do.

The text, the page and the JSON show it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dask_otel.core.diagnosis import Diagnosis, diagnose
from dask_otel.report import findings
from dask_otel.report.facts import facts_of
from dask_otel.report.idle import IdleReason, explain
from dask_otel.report.meanings import PARTS, Part
from dask_otel.report.money import Bill, Price, bill
from dask_otel.report.path import RunPath, path
from dask_otel.report.seconds import ClusterTime, SpanTime, cluster_time, run_parts, span_times
from dask_otel.report.telemetry.model import Session, Span


@dataclass(frozen=True)
class Account:
    """The report's facts about one run. None if they were not exported."""

    session: Session
    #: Number of tasks by outcome, and of repeated runs by reason.
    outcomes: dict[str, float]
    repeated: dict[str, float]
    cluster: ClusterTime | None
    #: Thread-seconds of every part of the time, by title.
    parts: dict[str, float]
    spans: list[SpanTime]
    #: What bounded it; None if no path was exported.
    path: RunPath | None
    #: What to do: the first one is the headline. There is always one.
    diagnoses: list[Diagnosis]
    failures: list[findings.Failure]
    slowest: list[Span]
    workers: list[findings.Worker]
    idle: IdleReason | None
    price: Price | None
    tag: str
    #: None without a price.
    bill: Bill | None

    def shares(self) -> Iterator[tuple[Part, float, float]]:
        """Yield the parts that took time, with their thread-seconds and shares."""
        whole = sum(self.parts.values())
        for part in PARTS:
            seconds = self.parts[part.title]
            if seconds > 0:
                yield part, seconds, seconds / whole


def account(session: Session, price: Price | None = None, tag: str = "team") -> Account:
    """Return the account of a run; with a `price`, its cost too, summed by the tags ``<tag>:…``."""
    return Account(
        session=session,
        outcomes=findings.outcome_counts(session),
        repeated=findings.retries(session),
        cluster=cluster_time(session),
        parts=run_parts(session),
        spans=span_times(session),
        path=path(session),
        diagnoses=diagnose(facts_of(session)),
        failures=findings.failures(session),
        slowest=findings.slowest(session),
        workers=findings.workers(session),
        idle=explain(session),
        price=price,
        tag=tag,
        bill=None if price is None else bill(session, tag),
    )
