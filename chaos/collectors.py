"""Faults of the collector."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

from tests.receiver import decode_spans
from tests.waiting import eventually

from chaos.pairs import compare
from chaos.ratios import BARE
from chaos.scenario import BOTH, GRPC, HTTP, scenario
from chaos.world import PATIENCE, PATIENT, World

#: All of these are compared with no fault, and with no bridge.
collector = partial(scenario, section="The collector", compared=True)
ONCE = "Each span and each increment arrives once when it is over; one warning, one line at the end"
_AGAIN = "Nothing is lost; what was taken and not confirmed"
#: Which part of a core an idle scheduler may use in a fault: what tries in a loop uses all of it.
_IDLE = 0.5
#: Seconds of load while the collector is away.
_AWAY = float(os.environ.get("CHAOS_AWAY", "120"))


@contextmanager
def changed(thing: object, **values: Any) -> Iterator[None]:
    """Give attributes other values for a while: a fault of a gate or a receiver."""
    before = {name: getattr(thing, name) for name in values}
    for state in (values, before):
        for name, value in state.items():
            setattr(thing, name, value)
        if state is values:
            yield


def through(
    world: World,
    *faults: AbstractContextManager[None],
    start: Callable[[], None] | None = None,
    healthy_first: bool = True,
    again: bool = False,
    warns: bool = True,
    says: str = "",
    seconds: float = 0.0,
) -> str:
    """Work before, during and after a fault, compare, and prove that everything arrived.

    Parameters
    ----------
    faults
        Entered together when the fault begins.
    start
        Starts the cluster; by default without anything of note.
    healthy_first
        Whether the fault begins after the scheduler.
    again
        Whether copies are allowed.
    warns
        Whether a warning is promised, and what it `says`.
    seconds
        How long there is load in the fault.
    """
    start = start or world.start
    with ExitStack() as fault:
        if healthy_first:
            start()
            world.work()
            world.all_arrived()
        for one in faults:
            fault.enter_context(one)
        if not healthy_first:
            start()
        began = time.monotonic()
        world.work()
        if warns:
            warning = world.warned()
            assert says in warning, warning
        compare(world)
        while time.monotonic() < began + seconds:
            # Half of the time, and fewer names than get series of their own.
            world.work(1, tasks=100)
            time.sleep(0.5)
        busy = world.busy()
        assert busy < _IDLE, f"the idle scheduler uses {busy:.0%} of a core"
    ended = time.monotonic()
    world.work()
    arrived = world.all_arrived(again=again)
    after = time.monotonic() - ended
    if warns:
        world.one_message_each()
    world.clean_log()
    assert world.dropped("queue_full") == 0
    return (
        f"{arrived}, {after:.0f} s after {ended - began:.0f} s in the fault; "
        f"idle scheduler {busy:.0%} of a core"
    )


def _mode(world: World, mode: str, **options: Any) -> str:
    return through(world, changed(world.gate, mode=mode), **options)


def _answers(world: World, answers: tuple[int, str], **values: Any) -> str:
    answer = answers[world.protocol == GRPC]
    start = partial(world.start, PATIENT)
    return through(world, changed(world.collector, answer=answer, **values), start=start)


def _redirected(world: World) -> str:
    return _answers(world, (301, ""), location=f"{world.collector.endpoint}/page")


def _drips(world: World) -> str:
    return _mode(world, "drip", again=True, warns=world.protocol == GRPC)


#: Name, fault, promise, what runs it, and the protocols.
_FAULTS: tuple[tuple[str, str, str, Callable[[World], str], tuple[str, ...]], ...] = (
    ("down-at-start", "Nobody listens when the scheduler starts", ONCE,
     partial(_mode, mode="closed", healthy_first=False), BOTH),
    ("down-and-back", "It is killed under load, and is back after two minutes of load",
     f"{ONCE}, as long as the queue holds (`OTEL_BSP_MAX_QUEUE_SIZE`)",
     partial(_mode, mode="closed", seconds=_AWAY), BOTH),
    ("silent", "It accepts connections and never answers", ONCE,
     partial(_mode, mode="silent"), BOTH),
    ("cut", "It takes requests, and the connection breaks within the answer",
     f"{_AGAIN} comes again, spans with the same ids", partial(_mode, mode="cut", again=True),
     BOTH),
    ("drip", "It takes requests and answers with one byte a second",
     f"{_AGAIN} in time comes again, spans with the same ids. Over HTTP the timeout starts "
     "again with each byte of an answer's head: until the head is complete, the bridge waits "
     "without a warning", _drips, BOTH),
    ("refused", "It refuses everything (400, `INVALID_ARGUMENT`)", ONCE,
     partial(_answers, answers=(400, "INVALID_ARGUMENT")), BOTH),
    ("unavailable", "It can't take anything now (500, `UNAVAILABLE`)", ONCE,
     partial(_answers, answers=(500, "UNAVAILABLE")), BOTH),
    ("long-pause", "It asks for a pause of an hour (429 with `Retry-After`, `RESOURCE_EXHAUSTED` "
     "with `RetryInfo`)", f"{ONCE}; the bridge waits for 30 s at most before the next try",
     partial(_answers, answers=(429, "RESOURCE_EXHAUSTED"), retry_after=3600), BOTH),
    ("redirect", "It redirects (301) to a page that answers 200",
     ONCE + "; a redirect is not followed", _redirected, (HTTP,)),
)  # fmt: skip
for _name, _fault, _promise, _run, _protocols in _FAULTS:
    collector(_name, fault=_fault, promise=_promise, protocols=_protocols)(_run)


@collector(
    "poison",
    fault="It refuses one span (400, `INVALID_ARGUMENT`) for ever",
    promise="That span is dropped, counted as `rejected`, and logged once; all others arrive once",
)
def _poison(world: World) -> str:
    answer = 400 if world.protocol == HTTP else "INVALID_ARGUMENT"
    world.collector.judge = lambda signal, request: (
        answer
        if signal == "traces" and "work 3" in [one.name for one in decode_spans(request)]
        else None
    )
    world.start({"OTEL_BSP_SCHEDULE_DELAY": "2000"})
    world.work(8)
    compare(world)
    eventually(lambda: world.dropped("rejected"), 120, "the span is counted as dropped")
    tasks = world.submitted.pop("work 3")
    world.work(2)
    world.all_spans_arrived()
    world.submitted["work 3"] = tasks
    world.all_tasks_counted()
    assert world.dropped("rejected") == 1, world.dropped("rejected")
    world.nothing_came_twice()
    warnings = world.logged("WARNING", "dropped a span")
    assert len(warnings) == 1, warnings
    world.clean_log()
    spans = len(world.submitted)
    return (
        f"{spans - 1} of {spans} spans; 1 counted as `rejected`, logged once; all tasks are counted"
    )


@collector(
    "queue-full",
    fault="It is away while 40 spans and more end, and the queue (`OTEL_BSP_MAX_QUEUE_SIZE`) "
    "holds 30 records",
    promise="Can't be kept for spans: what does not fit is lost. Bound: what the queue holds "
    "arrives once, each record that is lost is counted as `queue_full`; the counters lose nothing",
    loses=True,
)
def _queue_full(world: World) -> str:
    env = {"OTEL_BSP_MAX_QUEUE_SIZE": "30", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "5"}
    # The number of tasks on the path depends on times.
    world.begin(5, {**env, "DASK_OTEL__SPANS__PATH": "False"})
    # A Dask span, its group, its slowest task.
    records = 3
    before = 5 * records
    there = "each record of the first spans"
    eventually(lambda: len(world.collector.spans) == before, PATIENCE, there)
    with changed(world.gate, mode="closed"):
        world.work(40)
        world.warned()
        compare(world)
        sent = (len(world.submitted) - 5) * records
        # The last of them have settled.
        time.sleep(5)
    world.all_tasks_counted()

    def lost_records() -> int:
        dropped = world.dropped("queue_full", "traces")
        arrived = len(world.collector.spans) - before
        assert arrived + dropped == sent, f"{arrived} arrived, {dropped} of {sent} counted as lost"
        return dropped

    lost = eventually(lost_records, 120, "each record has arrived or is counted as lost")
    world.nothing_came_twice()
    world.one_message_each()
    return (
        f"{sent} records: {sent - lost} arrived once, {lost} are counted as "
        "`queue_full`; all tasks are counted"
    )


@collector(
    "dead-name",
    fault="Its name does not resolve, ever",
    promise="Dask runs on; one warning names the cause; the log counts the losses; the close takes "
    "hardly longer than without the bridge",
)
def _dead_name(world: World) -> str:
    world.start(endpoint="http://no-such-host.invalid:4318")
    world.work()
    warning = world.warned()
    assert "resolve" in warning, warning
    compare(world)
    world.one_message_each(recovered=False)
    for one in (world, world.peers[BARE]):
        one.close()
    (_code, bare), (_code, closed) = (one.end() for one in (world.peers[BARE], world))
    # A second for the noise of a machine that does other things as well.
    assert closed < bare + 1, f"the close took {closed:.1f} s, and {bare:.1f} s without the bridge"
    assert world.logged("INFO", "could not be exported"), "the log does not say what was lost"
    return (
        f"one warning; SIGTERM to exit {closed:.1f} s ({bare:.1f} s without the bridge); the log "
        "counts the losses"
    )
