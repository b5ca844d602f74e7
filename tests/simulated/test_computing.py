"""Who computed while a span was at work, on which workers, and which tasks may run anywhere."""

from __future__ import annotations

import time
from typing import Any

import pytest
from distributed import Client, wait

from dask_otel import span
from dask_otel.core.records import FinishedGroup
from tests.simulated.observed import Simulated
from tests.simulated.tasks import nap


def slow_there(seconds: float, slow: str) -> None:
    from distributed import get_worker

    time.sleep(seconds * (5 if get_worker().name == slow else 1))


def groups(o: Simulated, name: str) -> list[FinishedGroup]:
    return list(o.named(name).groups)


@pytest.mark.options(workers=1, threads=4)
def test_what_others_computed_meanwhile_is_known(o: Simulated) -> None:
    """Alice holds the four threads for 2 s; bob's tasks wait for them, and then compute."""

    def bob(client: Client) -> None:
        time.sleep(0.5)
        with span("bob"):
            wait(client.map(nap, [0.25] * 4, key=[f"bob-{n}" for n in range(4)]))

    user = o.cluster.user("b", bob)
    with span("alice"):
        wait(o.client.map(nap, [2.0] * 4, key=[f"alice-{n}" for n in range(4)]))
    user.result()
    time.sleep(1.0)
    with span("late"):
        wait(o.client.submit(nap, 0.5, key="late-1"))
    o.quiet()
    found = {name: o.named(name).elsewhere for name in ("alice", "bob", "late")}
    # All of Alice's runs, which began before; none of what was computed after the end.
    assert found == pytest.approx({"alice": 0.0, "bob": 8.0, "late": 0.0}, abs=1e-6)


@pytest.mark.options(workers=1, threads=4)
def test_the_last_run_of_a_span_is_its_own(o: Simulated) -> None:
    """Alice's block is left before her tasks end, so that the last one ends her work."""

    def bob(client: Client) -> None:
        with span("bob"):
            wait(client.map(nap, [1.0] * 2, key=[f"bob-{n}" for n in range(2)]))

    with span("alice"):
        futures = o.client.map(nap, [2.0] * 2, key=[f"alice-{n}" for n in range(2)])
    o.cluster.user("b", bob).result()
    wait(futures)
    o.quiet()
    assert o.named("alice").elsewhere == pytest.approx(2.0, abs=1e-6)


@pytest.mark.options(workers=3, threads=1)
def test_the_worker_that_takes_longer_is_named(o: Simulated) -> None:
    with span("even"):
        wait(o.client.map(nap, [0.2] * 12, key=[f"even-{n}" for n in range(12)]))
    with span("uneven"):
        keys = [f"uneven-{n}" for n in range(20)]
        wait(o.client.map(slow_there, [0.2] * 20, slow="w1", key=keys))
    o.quiet()
    (even,), (uneven,) = groups(o, "even"), groups(o, "uneven")
    assert even.slow_workers is None
    assert uneven.slow_workers is not None
    names, share, mean, others = uneven.slow_workers
    assert (names, mean, others) == (["w1"], pytest.approx(1.0), pytest.approx(0.2))
    assert 2 / 20 <= share < 7 / 20


@pytest.mark.options(config={"distributed.worker.resources": {"gpu": 1}})
@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, ""), ({"workers": ["w0"]}, "workers"), ({"resources": {"gpu": 1}}, "resources")],
)
def test_a_restricted_group_says_by_what(
    o: Simulated, options: dict[str, Any], expected: str
) -> None:
    with span("restricted"):
        wait(o.client.map(nap, [0.1] * 4, key=[f"f-{n}" for n in range(4)], **options))
    o.quiet()
    assert [group.restriction for group in groups(o, "restricted")] == [expected]
