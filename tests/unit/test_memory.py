"""The ledger of results in memory, and which worker was the fullest."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from dask_otel.core.life.open_span import Group
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
    ledger, clock = Ledger({one: generation(one) for one in open_spans}, set(groups)), Clock()
    ledger.clock, ledger.owner = clock, clock.owners.__getitem__
    return ledger, clock


def span(name: str, above: Any = None) -> Any:
    tags = (name,) if above is None else (*above.name, name)
    return SimpleNamespace(id=name, name=tags, parent=above)


def generation(dask_id: str) -> Any:
    identity = SimpleNamespace(dask_id=dask_id)
    return SimpleNamespace(
        identity=identity, heartbeats_before=0, work_done=0.0, worker_peak=None, results=None
    )


def group_of(source: str) -> Any:
    return SimpleNamespace(source=source)


def put(ledger: Ledger, when: float, group: str, owner: Any, size: int, prefix: str = "") -> None:
    clock: Any = ledger.clock
    clock.now = when
    clock.owners.setdefault(group, (owner, prefix or group))
    ledger.move(group, size, when)


def test_bytes_over_time_and_the_peak_of_a_tree() -> None:
    root = span("root")
    ledger, clock = made("root", "child", groups=("a", "b"))
    put(ledger, 1.0, "a", root, 100)
    ledger.read()
    put(ledger, 3.0, "b", span("child", root), 50)
    ledger.read()
    put(ledger, 4.0, "a", root, -100)
    put(ledger, 4.0, "b", root, 20)
    ledger.quiet(ledger._open["child"])
    clock.now = 10.0
    ledger.quiet(ledger._open["root"])
    put(ledger, 12.0, "b", root, -70)
    # 100 for 3 s, 50 for 1 s, 70 for 6 s.
    assert ledger.of_span(ledger._open["root"]) == SpanMemory(150, 770.0, "a", 100)
    assert ledger.of_span(ledger._open["child"]) == SpanMemory(70, 50.0)
    assert ledger.of_group(group_of("a")) == SpanMemory(100, 300.0)
    assert ledger.of_group(group_of("b")) == SpanMemory(70, 50.0)
    assert ledger.held == 0
    assert {(labels[1], size, spent) for labels, size, spent in ledger.series()} == {
        ("a", 0, 300.0),
        ("b", 0, 50.0 + 8 * 70.0),
    }


def test_what_comes_and_goes_between_two_readings_has_no_peak() -> None:
    ledger, _ = made("s", groups=("g",))
    put(ledger, 1.0, "g", span("s"), 10)
    put(ledger, 3.0, "g", None, -10)
    assert (
        ledger.of_span(ledger._open["s"])
        == ledger.of_group(group_of("g"))
        == SpanMemory(None, 20.0)
    )


def test_results_that_groups_have_noted_themselves() -> None:
    """As the hot path does, without a call."""
    ledger, clock = made("s", groups=("g",))
    clock.owners["g"] = span("s"), "g"
    group = Group(ledger._open["s"], "g", "g", "g", 0.0)
    group.came, group.moment = 10, 10 * 1.0
    ledger.came.append(group)
    put(ledger, 3.0, "g", None, -10)
    assert ledger.of_span(ledger._open["s"]) == SpanMemory(None, 20.0)
    assert (group.came, group.moment, ledger.came) == (0, 0.0, [])


def test_series_are_what_changed_since_the_last_export() -> None:
    ledger, clock = made("s")
    put(ledger, 0.0, "g1", span("s"), 10, "p")
    put(ledger, 1.0, "g2", span("s"), 5, "p")
    clock.now = 3.0
    assert [*ledger.series()] == [((("s",), "p"), 15, 10.0 + 2 * 15.0)]
    clock.now = 5.0
    assert [*ledger.series()] == [((("s",), "p"), 0, 30.0)]
    assert [*ledger.series()] == [((("s",), "p"), 0, 0.0)]
    put(ledger, 6.0, "g1", None, -10)
    put(ledger, 6.0, "g2", None, -5)
    assert [*ledger.series()] == [((("s",), "p"), -15, 15.0)]
    assert {**ledger._series, **ledger.holdings} == {}


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
    ledger.begin("g")
    put(ledger, 101.0, "g", None, -15)
    ledger.read()
    assert ledger.of_span(ledger._open["s"]) == SpanMemory(15, 15.0, "g", 15)
    assert ledger.of_group(group_of("g")) == SpanMemory(15, 15.0)


def test_data_without_a_span_may_get_one() -> None:
    ledger, clock = made("s", groups=("x",))
    put(ledger, 0.0, "x", None, 8)
    ledger.read()
    assert (ledger.scattered.bytes, ledger.held, ledger.spanless) == (8, 0, {"x"})
    clock.now = 4.0
    clock.owners["x"] = span("s"), "x"
    ledger.begin("x")
    assert (ledger.scattered.bytes, ledger.held, ledger.spanless) == (0, 8, set())
    clock.now = 6.0
    assert ledger.of_span(ledger._open["s"]) == SpanMemory(8, 16.0, "x", 8)
    assert 6.0 * ledger.scattered.bytes - ledger.scattered.moment == 32.0


def test_nothing_is_kept_that_nobody_needs() -> None:
    ledger, _ = made()
    rng, root, held = random.Random(1), span("root"), dict[str, int]()
    for number in range(500):
        group = f"g{rng.randrange(200)}"
        if held.get(group):
            put(ledger, number, group, None, -held.pop(group))
        else:
            held[group] = rng.randrange(1, 100)
            put(ledger, number, group, span(f"child-{group}", root), held[group])
        ledger.read()
        assert ledger.holdings.keys() == held.keys()
        assert ledger.held == sum(held.values())
        assert len(ledger._spans) == (len(held) + 1 if held else 0)
    ledger.recount({})
    assert ({**ledger.holdings, **ledger._spans}, ledger.held) == ({}, 0)
    assert len([*ledger.series()]) > 0
    assert not ledger._series


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
