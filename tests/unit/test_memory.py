"""What simulated clusters can't show of memory: a limit, and many heartbeats."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

from dask_otel.core.life.ledger import MAX_AT_PEAK, MAX_PREFIXES, Ledger
from dask_otel.core.memory.fullest import FullestWorkers
from dask_otel.core.records import WorkerPeak


def made(*sizes: int) -> tuple[Ledger, Any]:
    """Return a ledger of groups with results of these sizes in an open span, and that span."""
    span: Any = SimpleNamespace(id="s", name=("s",), parent=None, busy=1)
    ledger = Ledger({"s": span})
    ledger.owner = lambda group: (span, f"p{group}")
    for number, size in enumerate(sizes):
        ledger.move(number, size, 0.0)
    return ledger, span


def test_prefixes_of_a_root_are_limited() -> None:
    ledger, span = made(*[1] * (MAX_PREFIXES + 10))
    found = ledger.of_span(span)
    assert found is not None
    (largest, *_), parts = found.at_peak, len(found.at_peak)
    assert (found.peak, largest, parts) == (MAX_PREFIXES + 10, ("_OTHER", 10), MAX_AT_PEAK)
    assert len(span.results.prefixes) == MAX_PREFIXES + 1


def test_recounting_corrects_what_was_missed() -> None:
    ledger, _ = made(10, 10)
    ledger.clock = lambda: 1.0
    ledger.recount({0: 3})
    assert (ledger.held, sum(spent for *_, spent in ledger.series())) == (3, 20.0)


def test_the_fullest_worker_of_any_time_up_to_now() -> None:
    workers, rng = FullestWorkers(), random.Random(2)
    beats: list[tuple[float, str]] = []
    assert workers.since(0) is None
    for number in range(3000):
        # It falls for a long time, and rises again.
        share = abs(1500 - number) / 2000 + rng.random() / 5
        beats.append((round(share, 3), f"w{number % 7}"))
        workers.heartbeat(share, f"w{number % 7}", float(number))
        since = rng.randrange(number + 1)
        best = max(share for share, _ in beats[since:])
        last = max(i for i in range(since, number + 1) if beats[i][0] == best)
        found = workers.since(since)
        assert found == WorkerPeak(best, beats[last][1], float(last), number + 1 - since)
        assert len(workers._falling) < 1000
    assert workers.since(3000) is None
