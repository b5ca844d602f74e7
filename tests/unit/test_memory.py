"""The ledger of results in memory, and which worker was the fullest."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from dask_otel.core.memory.fullest import FullestWorkers
from dask_otel.core.memory.ledger import MAX_PREFIXES, Ledger
from dask_otel.core.records import SpanMemory, WorkerPeak


@dataclass(eq=False)
class Clock:
    """Sets the time of a ledger, and knows the owners."""

    now: float = 0.0
    #: Of the groups; see `put`.
    owners: dict[str, tuple[Any, str]] = field(default_factory=dict)

    def __call__(self) -> float:
        return self.now


def made(*open_spans: str, groups: tuple[str, ...] = ()) -> tuple[Ledger, Clock]:
    opened: dict[str, Any] = {
        one: SimpleNamespace(
            identity=SimpleNamespace(dask_id=one),
            heartbeats_before=0, work_done=0.0, worker_peak=None, results=None,
        )
        for one in open_spans
    }  # fmt: skip
    ledger, clock = Ledger(opened, set(groups)), Clock()
    ledger.clock, ledger.owner = clock, clock.owners.__getitem__
    return ledger, clock


def span(name: str, above: Any = None) -> Any:
    tags = (name,) if above is None else (*above.name, name)
    return SimpleNamespace(id=name, name=tags, parent=above)


def put(ledger: Ledger, when: float, group: str, owner: Any, size: int, prefix: str = "") -> None:
    clock: Any = ledger.clock
    clock.now = when
    clock.owners.setdefault(group, (owner, prefix or group))
    ledger.move(group, size, when)


def test_new_work_goes_on_counting_and_a_new_generation_begins_anew() -> None:
    ledger, clock = made("s", groups=("g",))
    put(ledger, 0.0, "g", span("s"), 10)
    clock.now = 2.0
    ledger.quiet(ledger._open["s"])
    put(ledger, 3.0, "g", None, 5)
    # The peak is that of the open span.
    assert ledger.of_span(ledger._open["s"]) == SpanMemory(15, 20.0, "g", 15)
    ledger.busy(ledger._open["s"])
    clock.now = 5.0
    assert ledger.of_span(ledger._open["s"]) == SpanMemory(15, 10 * 3.0 + 15 * 2.0, "g", 15)
    ledger.quiet(ledger._open["s"])
    clock.now = 100.0
    ledger.opened(ledger._open["s"])
    ledger.busy(ledger._open["s"])
    ledger.begin("g")
    put(ledger, 101.0, "g", None, -15)
    ledger.read()
    assert ledger.of_span(ledger._open["s"]) == SpanMemory(15, 15.0, "g", 15)
    group: Any = SimpleNamespace(source="g")
    assert ledger.of_group(group) == SpanMemory(15, 15.0)


def test_prefixes_of_a_root_are_limited() -> None:
    ledger, _ = made("s")
    for number in range(MAX_PREFIXES + 10):
        put(ledger, 0.0, f"g{number}", span("s"), 1)
    ledger.read()
    sizes = ledger._spans["s"].prefixes
    assert len(sizes) == MAX_PREFIXES + 1
    assert sizes["_OTHER"] == 10
    assert ledger.of_span(ledger._open["s"]) == SpanMemory(MAX_PREFIXES + 10, 0.0, "_OTHER", 10)


def test_recounting_corrects_what_was_missed() -> None:
    ledger, clock = made()
    put(ledger, 0.0, "a", span("s"), 10)
    put(ledger, 0.0, "b", span("s"), 10)
    clock.now = 1.0
    ledger.recount({"a": 3})
    assert ledger.held == 3
    assert sum(spent for *_, spent in ledger.series()) == 20.0


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
