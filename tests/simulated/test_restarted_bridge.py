"""A bridge is stopped on a scheduler that goes on, and started again: nothing is exported twice.

Its stop is not the end of the scheduler, nor of anybody's job.
"""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from typing import Any

import pytest
from distributed import fire_and_forget, span

import dask_otel
from dask_otel._wire import Recorded, end_record, install, record, uninstall
from dask_otel.scheduler.plugin import NAME, OtelSchedulerPlugin
from tests.receiver import Span
from tests.simulated.bridged import Bridged, generation
from tests.simulated.tasks import boom, nap

pytestmark = pytest.mark.options(workers=4, threads=1, unreconciled="work is done between bridges")

UNSET, ERROR = 0, 2
ACTIVE, EXECUTE = "dask.span.active", "dask.span.execute.time"


def of(b: Bridged, name: str) -> list[Span]:
    """The generations of a span so far."""
    found = [s for s in b.received.spans if s.type == "span" and s.name == name]
    return sorted(found, key=generation)


def generations(b: Bridged, name: str) -> list[tuple[Any, ...]]:
    """Return of each generation its result, completeness, status, and type of error."""
    names = ("dask.span.result", "dask.span.complete", "error.type")
    found = [(s, *map(s.attributes.get, names)) for s in of(b, name)]
    return [(result, complete, s.status, error) for s, result, complete, error in found]


def test_a_job_goes_on_as_its_next_generation_and_nothing_is_booked_twice(b: Bridged) -> None:
    """A healthy one is not red; what has failed by then has, although the rest is not known."""
    received = b.received
    with span("outer"), span("job") as job_id:
        futures = [b.client.submit(nap, seconds) for seconds in (0.4, 1.5, 8.0)]
    with span("bad") as bad_id:
        kept = [b.client.submit(boom), b.client.submit(nap, 5.0, key="other-nap")]
    time.sleep(1.25)
    assert dask_otel.unregister(b.client) == "stopped"
    off, count = time.time_ns(), len(received.points)
    for name in ("outer", "job"):
        assert generations(b, name) == [("unknown", False, UNSET, None)]
    assert generations(b, "bad") == [("failure", False, ERROR, "ValueError")]
    # How long they take is not known, nor whether anything is queued.
    assert not [p for p in received.points if p.metric == "dask.span.duration"]
    assert newest(received.points, EXECUTE) == [pytest.approx(0.4)]
    assert newest(received.points, ACTIVE) == [0] * 2
    futures[1].result()
    # Its worker has reported it.
    time.sleep(1.0)
    assert dask_otel.register(b.client) == "started"
    assert b.client.gather([*futures, kept[1]]) == [0.4, 1.5, 8.0, 5.0]
    b.exported()
    first, second = of(b, "job")
    for name in ("job", "bad"):
        assert generations(b, name)[1:] == [("success", True, UNSET, None)]
    assert (second.trace_id, second.parent_id) == (first.trace_id, first.parent_id)
    assert second.start_ns >= first.end_ns
    # One ended while nobody looked.
    assert second.attributes["dask.task.count"] == 1
    metrics = dask_otel.span_metrics(b.client, job_id)
    counts = metrics.counts or {}
    assert (metrics.result, counts["tasks"], counts["memory"]) == (None, 2, 2)
    # Asked for the whole, it has failed.
    assert dask_otel.span_metrics(b.client, bad_id).result == "failure"
    assert dask_otel.unregister(b.client) == "stopped"
    points = received.points[count:]
    # Seconds are not exported twice; those of the runs that went on are exported now.
    assert sorted(newest(points, EXECUTE)) == [pytest.approx(5.0), pytest.approx(8.0)]
    assert newest(points, ACTIVE) == [0] * 2
    for point in points:
        if point.kind in ("sum", "histogram") and point.start_ns:
            assert off <= point.start_ns <= point.time_ns, point
    # Every counter begins with 0 at a time of its own, so that a reset is seen as one.
    for series in {p.series for p in points if p.monotonic}:
        one, *_ = [p for p in points if p.series == series]
        assert one.value == 0 or one.start_ns >= off, series
        assert one.time_ns >= off
    assert {p.resource["service.instance.id"] for p in received.points} == {b.scheduler.id}


def newest(points: list[Any], metric: str) -> list[float]:
    """Return the last values of a metric that are not of an activity without seconds."""
    found = {p.series: p.value for p in points if p.metric == metric}
    return [value for value in found.values() if value > 1e-6 or metric == ACTIVE]


@pytest.mark.options(workers=0, unreconciled="it is looked at before the end of the cluster")
def test_a_scheduler_that_closes_ends_the_work(b: Bridged) -> None:
    with span("cut"):
        fire_and_forget(b.client.submit(nap, 1.0))
    time.sleep(1.0)
    b.cluster.do("scheduler", b.scheduler.close)
    assert generations(b, "cut") == [("error", False, ERROR, "SchedulerClosed")]


async def by_register(scheduler: Any) -> None:
    await scheduler.unregister_scheduler_plugin(NAME)
    assert await install({}, scheduler) == "started"


async def by_plugin(scheduler: Any, name: str | None = None) -> None:
    if name is None:
        await scheduler.unregister_scheduler_plugin(NAME)
    plugin = OtelSchedulerPlugin()
    await scheduler.register_scheduler_plugin(plugin, name=name, idempotent=True)


async def beside_it(scheduler: Any) -> None:
    """Nothing changes."""
    await by_plugin(scheduler, "mine")


async def while_it_leaves(scheduler: Any) -> None:
    leaving = asyncio.ensure_future(uninstall(scheduler))
    await asyncio.sleep(0)
    assert scheduler.plugins[NAME].bridge.leaving
    assert [await install({}, scheduler), await leaving] == ["started", "stopped"]


async def after_a_report(scheduler: Any, order: int = 1) -> None:
    """A report, which has a bridge of its own where there is none, has waited longer."""
    leaving, client = asyncio.ensure_future(uninstall(scheduler)), next(iter(scheduler.clients))
    asked = []
    for question in (record("x", client, scheduler), install({}, scheduler))[::order]:
        await asyncio.sleep(0)
        asked.append(asyncio.ensure_future(question))
    recorded, installed = [await one for one in asked][::order]
    assert [await leaving, installed] == ["stopped", "started"]
    assert isinstance(recorded, Recorded)
    assert not scheduler.plugins[NAME].bridge.recording.is_temporary
    await end_record("x", scheduler)


async def before_a_report(scheduler: Any) -> None:
    await after_a_report(scheduler, -1)


@pytest.mark.parametrize(
    "replace",
    [by_register, by_plugin, beside_it, while_it_leaves, after_a_report, before_a_report],
)
def test_a_plugin_that_is_replaced_without_a_word(
    b: Bridged, replace: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """`Client.unregister_scheduler_plugin` does not notify it, and the next one comes at once."""
    before = b.bridge
    with span("job"):
        future = b.client.submit(nap, 3.0)
    time.sleep(1.0)
    b.cluster.do("scheduler", replace, b.scheduler)
    assert (b.bridge is before) == (replace is beside_it)
    # Nor a warning of a registration that nobody has made.
    assert "this registration" not in caplog.text
    assert future.result() == 3.0
    b.exported()
    expected = ["success"] if replace is beside_it else ["unknown", "success"]
    assert [result for result, *_ in generations(b, "job")] == expected


@pytest.mark.options(begins=False, unreconciled="only the remains of a bridge are looked at")
def test_a_bridge_that_is_gone_is_not_kept_alive(b: Bridged) -> None:
    bridges, extension = [], b.scheduler.extensions["spans"]
    for _ in range(3):
        assert dask_otel.register(b.client) == "started"
        time.sleep(1.0)
        with span("job"):
            b.client.submit(nap, 1.0, pure=False).result()
        # Dask caches a handler when it calls it.
        time.sleep(1.0)
        bridges.append(weakref.ref(b.bridge))
        # Another library wraps one of our wrappers, and keeps it.
        wrapped = extension.observe_tasks
        extension.observe_tasks = lambda *args, _call=wrapped, **kwargs: _call(*args, **kwargs)
        assert dask_otel.unregister(b.client) == "stopped"
    gc.collect()
    assert [bridge() for bridge in bridges] == [None] * 3


@pytest.mark.options(begins=False)
def test_a_second_registration_says_what_it_would_change(
    b: Bridged, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing of what the first one alone has set."""
    first = {"spans": {"max-groups": 9}, "environment": {"OTEL_SERVICE_NAME": "a"}}
    assert dask_otel.register(b.client, first) == "started"
    caplog.clear()
    before = b.bridge
    assert [dask_otel.register(b.client, same) for same in (first, None)] == ["running"] * 2
    assert not caplog.records
    for other, key in (
        ({"spans": {"linger": "9s"}}, "linger"),
        ({"spans.max_groups": 8}, "max-groups"),
    ):
        with pytest.warns(UserWarning, match=rf"does not use otel\.spans\.{key} of this") as said:
            assert dask_otel.register(b.client, other) == "running"
        assert [one.filename for one in said] == [__file__]
        _, logged, keys = caplog.messages[-1].partition("already runs on this scheduler")
        assert (bool(logged), f"otel.spans.{key}" in keys) == (True, True)
    assert b.bridge is before


@pytest.mark.options(begins=False, unreconciled="nothing is exported")
def test_a_second_registration_waits_for_the_exporters_of_the_first(
    b: Bridged, slow_exporters: Any
) -> None:
    slow_exporters(5.0)
    # Only the exporters read it.
    b.begin({"environment": {"OTEL_TRACES_EXPORTER": "no-such"}})
    assert dask_otel.register(b.client) == "off"
    assert NAME not in b.scheduler.plugins


@pytest.mark.options(begins=False, unreconciled="work is done before the bridge")
def test_what_began_before_the_bridge_does_not_seem_to_begin_with_it(b: Bridged) -> None:
    runs: list[None] = []

    def third() -> None:
        time.sleep(1.0)
        runs.append(None)
        if len(runs) < 3:
            raise ValueError

    with span("before"):
        first = b.client.submit(nap, 0.5, key="first")
        second = b.client.submit(nap, 2.0, first, key="second")
    with span("again"):
        again = b.client.submit(third, retries=2)
    time.sleep(1.5)
    b.begin()
    b.client.gather([second, again])
    spans = b.exported().spans
    (before,) = of(b, "before")
    assert before.attributes["dask.span.queue.time"] < 0.1
    tasks = [s for s in spans if s.type == "task"]
    assert {s.name for s in tasks} == {"third task", "second task"}
    # It is the third run, and the bridge has seen two.
    assert not [s for s in tasks if "dask.task.attempt" in s.attributes]
