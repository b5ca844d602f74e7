"""Errors of our own, at random, in everything that Dask calls: Dask does not notice."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import attrgetter

import pytest
from distributed import Client, Future, span, wait

from dask_otel.lab.cluster import Cluster, simulate
from tests.simulated.observed import LIMITS, Observer, Simulated
from tests.simulated.tasks import fail, inc
from tests.waiting import eventually

#: What raises: everything that the hooks call, on the parts of Dask's side and in the core.
RAISES = {
    "adapter": ("span_activity",),
    "adapter.spans": ("_collisions", "_created", "_add_group", "_take_in_spans"),
    "adapter.contexts": ("submitted", "caller", "annotate"),
    "adapter.task_events": (
        "_to_waiting",
        "_failed",
        "_to_forgotten",
        "_from_unfinished",
        "stolen",
    ),
    "adapter.heartbeats": ("_span_deltas", "report", "worker_deltas"),
    "adapter.lifecycle": ("_count_busy", "all_forgotten"),
    "adapter.lifecycle.outcomes": ("added", "activity"),
    "adapter.lifecycle.reports": ("heartbeat",),
}


class Saboteur:
    """Lets methods raise at random, before or after they did their work."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.active = True
        self.raised: set[str] = set()

    def spoil(self, owner: object, name: str) -> None:
        original = getattr(owner, name)

        def spoiled(*args, **kwargs):
            if self.active and self.random.random() < 0.1:
                self.raised.add(name)
                raise RuntimeError(f"{name}, before")
            result = original(*args, **kwargs)
            if self.active and self.random.random() < 0.1:
                self.raised.add(name)
                raise RuntimeError(f"{name}, after")
            return result

        setattr(owner, name, spoiled)


def count_calls(owner: object) -> Counter[str]:
    """Count the calls of methods, as they are now: Dask's own, or with what wraps them."""
    counts: Counter[str] = Counter()

    def watched(name, original, *args, **kwargs):
        counts[name] += 1
        return original(*args, **kwargs)

    for name in ("heartbeat", "observe_tasks"):
        setattr(owner, name, partial(watched, name, getattr(owner, name)))
    return counts


def workload(client: Client) -> None:
    with span("root"):
        for name in ("a", "b", "c"):
            with span(name):
                futures = client.map(inc, range(20), delay=0.01, key=f"inc-{name}")
                total = client.submit(sum, futures, key=f"sum-{name}")
                bad = client.map(fail, [0.0] * 3, pure=False, key=f"boom-{name}", retries=1)
                cancelled = client.map(inc, range(5), delay=0.3, key=f"slow-{name}")
            assert total.result() == 210
            wait(bad)
            assert [f.status for f in bad] == ["error"] * 3
            client.cancel(cancelled)
            del futures, total, bad, cancelled
            # Heartbeats come meanwhile.
            time.sleep(1)


def alone(
    observer: Observer,
    program: Callable[[Cluster], None],
    spoil: Callable[[object], None] = lambda extension: None,
    seed: int = 0,
) -> None:
    """Run a program with an observer whose errors are no failure.

    `spoil` is called with Dask's extension before the observer starts, and once it has.
    """

    async def prepare(cluster: Cluster) -> None:
        extension = cluster.scheduler.extensions["spans"]
        spoil(extension)
        await observer.start(cluster.scheduler)
        spoil(extension)
        cluster.scheduler.add_plugin(observer)

    async def finish(cluster: Cluster) -> None:
        await observer.close()

    simulate(program, prepare=prepare, finish=finish, seed=seed)
    exported = [s.identity.span_id for s in observer.finished]
    assert len(exported) == len(set(exported))


@pytest.mark.parametrize("seed", range(3))
def test_errors_at_random_hurt_nobody_and_every_span_still_ends(seed: int) -> None:
    # What an error has lost is not waited for.
    observer, saboteur = Observer(replace(LIMITS, settle_timeout=5.0)), Saboteur(seed)
    counts: list[Counter[str]] = []

    def spoil(extension: object) -> None:
        for part, names in RAISES.items() if counts else ():
            for name in names:
                saboteur.spoil(attrgetter(part)(observer), name)
        counts.append(count_calls(extension))

    def program(cluster: Cluster) -> None:
        workers = set(cluster.scheduler.workers)
        workload(cluster.client)
        assert set(cluster.scheduler.workers) == workers, "a worker was lost"
        eventually(lambda: not cluster.scheduler.tasks)
        saboteur.active = False
        # From here on nothing fails: what the errors left wrong is set right.
        adapter = observer.adapter
        eventually(lambda: not adapter.lifecycle.open, what="every span ends")
        eventually(lambda: not adapter.task_events.ready)
        assert not adapter.spans.groups

    alone(observer, program, spoil, seed)
    assert len(saboteur.raised) >= 10, saboteur.raised
    assert observer.errors
    below, above = counts
    assert below == above, "each call reached Dask's own method exactly once"
    assert above["heartbeat"] > 4
    assert above["observe_tasks"] >= 9
    assert {s.identity.tags[-1] for s in observer.finished} >= {"root", "a", "b", "c"}


def test_an_error_at_the_close_keeps_no_span_back() -> None:
    observer = Observer(LIMITS)

    def program(cluster: Cluster) -> None:
        with span("open"):
            future = cluster.client.submit(inc, 1, delay=3)
        ready = observer.adapter.task_events.ready
        eventually(lambda: ready)
        # As after an error in a hook, in the moment of the close.
        ready["gone"] = None
        cluster.client.sync(observer.close)
        assert isinstance(future, Future)

    alone(observer, program)
    assert observer.errors
    assert "open" in [one.identity.tags[-1] for one in observer.finished]


def test_dasks_own_errors_pass(o: Simulated) -> None:
    extension = o.scheduler.extensions["spans"]
    (ws, *_) = o.scheduler.workers.values()
    with pytest.raises(KeyError, match="no such span"):
        extension.heartbeat(ws, {("execute", "no such span", "f", "x", "seconds"): 1.0})
    assert o.observer.errors == []


def test_anything_can_be_logged_under_dasks_topics(o: Simulated) -> None:
    for topic in ("scheduler", "stealing"):
        for message in ("text", 1, None, [], {}, ("confirm",), {"action": "update-graph"}):
            o.client.log_event(topic, message)


def test_restart_hook_releases_what_is_still_counted() -> None:
    """Also where Dask clears its tasks without any transition."""
    observer = Observer(LIMITS)

    def program(cluster: Cluster) -> None:
        with span("restarted"):
            future = cluster.client.submit(inc, 1, delay=1.0)
        adapter = observer.adapter
        eventually(lambda: adapter.task_events.ready)
        observer.restart(cluster.scheduler)
        (opened,) = adapter.lifecycle.open.values()
        assert (dict(adapter.task_events.ready), opened.unfinished) == ({}, 0)
        assert isinstance(future, Future)

    alone(observer, program)
