"""Errors of our own, at random, in everything that Dask calls: Dask does not notice."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from operator import attrgetter

import pytest
from distributed import Future, span, wait

from tests.cluster.observed import LIMITS, Observed, Observer
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

#: What raises: everything that the hooks call, on the parts of Dask's side and in the core.
RAISES = {
    "adapter": ("span_active", "span_inactive"),
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
    "adapter.lifecycle.outcomes": ("added", "finished", "_began", "_ended"),
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


def count_calls(extension: object) -> dict[str, int]:
    """Count the calls of methods, as they are now: Dask's own, or with what wraps them."""
    counts = {"heartbeat": 0, "observe_tasks": 0}

    def watch(name: str) -> None:
        original = getattr(extension, name)

        def watched(*args, **kwargs):
            counts[name] += 1
            return original(*args, **kwargs)

        setattr(extension, name, watched)

    for name in counts:
        watch(name)
    return counts


def inc(x, delay=0.01):
    time.sleep(delay)
    return x + 1


def boom(x):
    raise KeyError(x)


def workload(o: Observed) -> None:
    with span("root"):
        for name in ("a", "b", "c"):
            with span(name):
                futures = o.client.map(inc, range(20), key=f"inc-{name}")
                total = o.client.submit(sum, futures, key=f"sum-{name}")
                bad = o.client.map(boom, range(3), key=f"boom-{name}", retries=1)
                cancelled = o.client.map(inc, range(5), delay=0.3, key=f"slow-{name}")
            assert total.result() == 210
            wait(bad)
            assert [f.status for f in bad] == ["error"] * 3
            o.client.cancel(cancelled)
            del futures, total, bad, cancelled


@pytest.mark.unreconciled("hooks fail on purpose")
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.options(attach=False)
def test_errors_at_random_hurt_nobody_and_every_span_still_ends(o: Observed, seed: int) -> None:
    scheduler = o.cluster.scheduler
    extension = scheduler.extensions["spans"]
    workers = set(scheduler.workers)
    saboteur = Saboteur(seed)

    async def add():
        below = count_calls(extension)
        # What an error has lost is not waited for.
        o.observer = Observer(replace(LIMITS, settle_timeout=5.0))
        await o.observer.start(scheduler)
        for part, names in RAISES.items():
            for name in names:
                saboteur.spoil(attrgetter(part)(o), name)
        scheduler.add_plugin(o.observer)
        return below, count_calls(extension)

    below, above = o.client.sync(add)
    workload(o)
    assert set(scheduler.workers) == workers, "a worker was lost"
    eventually(lambda: not scheduler.tasks)
    saboteur.active = False
    # From here on nothing fails: what the errors left wrong is set right.
    eventually(lambda: not o.adapter.lifecycle.open, what="every span ends")
    assert len(saboteur.raised) >= 10, saboteur.raised
    assert o.observer.errors
    assert below == above, "each call reached Dask's own method exactly once"
    assert above["heartbeat"] > 4
    assert above["observe_tasks"] >= 9
    assert not o.adapter.spans.groups
    eventually(lambda: not o.adapter.task_events.assigned)
    exported = [s.identity.span_id for s in o.exported]
    assert len(exported) == len(set(exported))
    assert {s.identity.tags[-1] for s in o.exported} >= {"root", "a", "b", "c"}


@pytest.mark.unreconciled("a step of the close fails on purpose")
def test_an_error_at_the_close_keeps_no_span_back(o: Observed) -> None:
    with span("open"):
        future = o.client.submit(inc, 1, delay=3)
    (one,) = eventually(lambda: list(o.adapter.task_events.assigned.values()))
    # As after an error in a hook, in the moment of the close.
    o.adapter.task_events.assigned["gone"] = one
    o.close()
    assert o.observer.errors
    assert isinstance(future, Future)
    assert "open" in [one.identity.tags[-1] for one in o.exported]


def test_dasks_own_errors_pass(o: Observed) -> None:
    extension = o.scheduler.extensions["spans"]

    async def call():
        ws = next(iter(o.scheduler.workers.values()))
        extension.heartbeat(ws, {("execute", "no such span", "f", "x", "seconds"): 1.0})

    with pytest.raises(KeyError, match="no such span"):
        o.client.sync(call)
    assert o.observer.errors == []


def test_anything_can_be_logged_under_dasks_topics(o: Observed) -> None:
    for topic in ("scheduler", "stealing"):
        for message in ("text", 1, None, [], {}, ("confirm",), {"action": "update-graph"}):
            o.client.log_event(topic, message)
    o.check()


def test_restart_hook_releases_what_is_still_counted(o: Observed) -> None:
    """Also where Dask clears its tasks without any transition."""
    with o.held():
        with span("restarted"):
            future = o.client.submit(inc, 1, delay=1.0)
        eventually(lambda: o.adapter.task_events.assigned)

        async def restart():
            o.observer.restart(o.cluster.scheduler)
            assert not o.adapter.task_events.assigned

        o.client.sync(restart)
        (opened,) = o.adapter.lifecycle.open.values()
        assert opened.unfinished == 0
    assert isinstance(future, Future)
