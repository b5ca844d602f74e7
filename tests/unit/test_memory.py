"""What simulated clusters can't show of memory: a limit, and many heartbeats."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dask_otel.core.life.ledger import MAX_AT_PEAK, MAX_PREFIXES, Ledger
from dask_otel.core.memory.fullest import FullestWorkers
from dask_otel.core.records import WorkerPeak


def made(*sizes: int) -> tuple[Ledger, Any]:
    """Return a ledger of groups with results of these sizes in an open span, and that span."""
    span: Any = SimpleNamespace(id="s", name=("s",), parent=None, work_done=0.0)
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


@pytest.mark.parametrize(
    ("shares", "fullest"),
    [
        # By the first heartbeat that is asked for: the number of the fullest, the last of equals.
        ([0.5, 0.9, 0.3, 0.7, 0.7001, 0.2], [1, 1, 4, 4, 4, 5]),
        ([0.4, 0.3, 0.2], [0, 1, 2]),
        # Of a long rise nothing is kept.
        ([*(n / 1000 for n in range(1000)), 0.4], [999] * 1000 + [1000]),
        ([], []),
    ],
)
def test_the_fullest_worker_of_any_time_up_to_now(shares: list[float], fullest: list[int]) -> None:
    workers = FullestWorkers()
    for number, share in enumerate(shares):
        workers.heartbeat(share, f"w{number}", float(number))
    expected = [
        WorkerPeak(round(shares[best], 3), f"w{best}", float(best), len(shares) - since)
        for since, best in enumerate(fullest)
    ]
    assert [workers.since(number) for number in range(len(shares) + 1)] == [*expected, None]
    assert len(workers._falling) == len({*fullest})
