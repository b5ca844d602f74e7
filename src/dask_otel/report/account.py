"""The account of a run, computed once: where its time went, what failed, and what to do.

The text, the page and the JSON show it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from dask_otel import semconv
from dask_otel.core.diagnosis import Diagnosis, ranked
from dask_otel.report import findings, words
from dask_otel.report.evidence import diagnoses_of, facts_of
from dask_otel.report.meanings import PART_TITLES, shares
from dask_otel.report.memory import Memory, memory
from dask_otel.report.money import Bill, Price, bill
from dask_otel.report.path import RunPath, path
from dask_otel.report.profiles import with_code
from dask_otel.report.seconds import ClusterTime, SpanTime, cluster_time, merged, parts, span_times
from dask_otel.report.telemetry.model import Session, Span
from dask_otel.report.units import Work, work

#: The share of the run from which on a cause is a warning.
_MUCH: Final = 0.25
#: Headlines that another number of threads can change; kinds for which more threads help less than
#: in a replay, because tasks share what they wait for.
_ABOUT_THREADS: Final = ("threads", "chain", "long_task", "client", "healthy")
TOGETHER: Final = ("gil", "cpus", "off_cpu")
#: Kinds whose severity does not depend on the time that they cost.
_SEVERITIES: Final = {"failed": "bad", "lost": "bad", "gaps": "warning", "healthy": "good"}


class Measured(NamedTuple):
    """The results of a run's replays."""

    #: See `dask_otel.core.diagnosis.ranked`.
    saved: Mapping[tuple[str, str], tuple[str, float]] = {}
    #: A better number of threads, in a sentence.
    threads: str = ""


@dataclass(frozen=True)
class Account:
    """The report's facts about one run. None if they were not exported."""

    session: Session
    #: Number of tasks by outcome, and of repeated runs by reason.
    outcomes: dict[str, float]
    repeated: dict[str, float]
    cluster: ClusterTime | None
    #: Thread-seconds of every part of the time, by title: of the cluster, or else of the spans.
    parts: dict[str, float]
    spans: list[SpanTime]
    #: What bounded it; None if no path was exported.
    path: RunPath | None
    #: What to do: the first one is the headline. There is always one.
    diagnoses: list[Diagnosis]
    #: The time that they explain: of open root spans, and of workers without any work before; or
    #: of the block that the report is about.
    seconds: float
    failures: list[findings.Failure]
    slowest: list[Span]
    workers: list[findings.Worker]
    price: Price | None
    tag: str
    #: The units of work that tasks metered.
    work: list[Work]
    memory: Memory
    #: None without a price.
    bill: Bill | None
    measured: Measured

    def threads_in_words(self) -> str:
        """Return how other threads would change the longest replayed root span; often empty."""
        kinds = [one.kind for one in self.diagnoses]
        are_own = kinds[0] in _ABOUT_THREADS and not {*kinds} & {*TOGETHER}
        return self.measured.threads if are_own else ""

    def severity(self, one: Diagnosis) -> str:
        """Return the severity of a cause of the run."""
        return severity(one.kind, one.seconds, self.seconds)

    def figures(self) -> list[tuple[str, str, str]]:
        """Return the key figures that were exported: their values, names and styles."""
        session, price, counts = self.session, self.price, self.outcomes
        spent = {title: share for title, _, share in shares(self.parts, PART_TITLES)}
        capacity = session.metrics.total(semconv.CLUSTER_CAPACITY_TIME.name)
        memory = self.bill.memory if self.bill else None
        done, failed = counts.get("memory"), int(counts.get("erred", 0))
        again = sum(self.repeated.values())
        # The figures of a worker come later than its first task.
        known = [
            *(one.attributes for one in session.roots()),
            *(log.attributes for log in session.logs),
        ]
        counted = (one.get(semconv.WORKER_COUNT) for one in known)
        workers = max([len(self.workers), *(one for one in counted if isinstance(one, int))])
        mean = capacity / session.metrics.seconds if capacity and session.metrics.seconds else None
        # Spans of others may have begun long before a block, or go on after it.
        observed = (session.block and session.metrics.seconds) or session.seconds
        found = [
            (words.seconds(observed), "observed", ""),
            (words.known(capacity), "thread-time", ""),
            (price.text(capacity, memory) if price else "", "cost", ""),
            (f"{spent.get('Computing', 0.0):.0%}" if spent else "", "computing", ""),
            (f"{spent.get('Idle', 0.0):.0%}" if spent else "", "idle", ""),
            (words.whole(done), f"{words.noun(done or 0, 'task')} done", ""),
            (
                f"{failed:,}" if counts else "",
                f"{words.noun(failed, 'task')} failed",
                "bad" if failed else "good",
            ),
            (words.whole(again or None), f"{words.noun(again, 'run')} repeated", "warning"),
            (words.whole(workers or None), words.noun(workers, "worker"), ""),
            ("" if mean is None else f"{mean:.1f}", "mean threads", ""),
        ]
        return [one for one in found if one[0]]


def severity(kind: str, saved: float, took: float) -> str:
    """Return ``bad``, ``warning``, ``note`` or ``good``: by the share that a cure saves."""
    return _SEVERITIES.get(kind, "warning" if saved > _MUCH * took else "note")


def account(
    session: Session,
    price: Price | None = None,
    tag: str = "team",
    measured: Measured | None = None,
) -> Account:
    """Return the account of a run; with a `price`, its cost too, summed by the tags ``<tag>:…``.

    What was `measured` in replays decides the order of its diagnoses.
    """
    workers = findings.workers(session)
    own, others = (
        findings.failures(replace(session, spans=[s for s in session.spans if is_own(s.key)]))
        for is_own in (session.own.__contains__, lambda key: key not in session.own)
    )
    failures = [*own, *others]
    facts = facts_of(session, failures, workers)
    block = None if session.block is None else facts.roots.get(session.block.name)
    whole = (facts if block is None else block).seconds + facts.before_first
    known = measured or Measured()
    costs = None if price is None else bill(session, tag)
    if price is not None and costs is not None and costs.memory is None:
        # Part of a cost is no cost.
        price = replace(price, memory=0.0)
    judged = ranked(diagnoses_of(session, facts, own), known.saved, whole)
    cluster, spans = cluster_time(session), span_times(session)
    return Account(
        session=session,
        outcomes=findings.outcome_counts(session),
        repeated=findings.retries(session),
        cluster=cluster,
        parts=parts(cluster.activities) if cluster else merged("", spans).parts(),
        spans=spans,
        path=path(session),
        diagnoses=[with_code(one, session.profiles) for one in judged],
        seconds=whole,
        failures=failures,
        slowest=findings.slowest(session),
        workers=workers,
        price=price,
        tag=tag,
        work=work(session, spans),
        memory=memory(session),
        bill=costs,
        measured=known,
    )
