"""Faults of the collector, and of the network before it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

from tests.waiting import eventually

from chaos.scenario import GRPC, HTTP, scenario
from chaos.world import World

#: All of these are compared with no fault, and with no bridge.
collector = partial(scenario, section="The collector", compared=True)
ONCE = "Each span and each increment arrives once when it is over; one warning, one line at the end"
#: Which part of a core an idle scheduler may use in a fault: what tries in a loop uses all of it.
_IDLE = 0.5
#: Seconds for which it is away under load.
_AWAY = float(os.environ.get("CHAOS_AWAY", "120"))


def through(
    world: World,
    begin: Callable[[], None],
    end: Callable[[], None],
    *,
    start: Callable[[], None] | None = None,
    healthy_first: bool = True,
    again: bool = False,
    told: bool = True,
    says: str = "",
    seconds: float = 0.0,
) -> str:
    """Work before, during and after a fault, compare, and prove that all of it arrived.

    Parameters
    ----------
    begin, end
        Of the fault.
    start
        Starts the cluster; by default without anything of note.
    healthy_first
        Whether there is a time before the fault.
    again
        Whether copies are allowed.
    told
        Whether there is a warning, and what it `says`.
    seconds
        For how long there is load in the fault.
    """
    start = start or world.start
    if healthy_first:
        world.gate.mode = "pass"
        start()
        world.work()
        world.all_arrived()
        begin()
    else:
        begin()
        start()
    began = time.monotonic()
    world.work()
    if told:
        warning = world.warned()
        assert says in warning, warning
    world.compare()
    while time.monotonic() < began + seconds:
        # Half of the time, and fewer names than get series of their own.
        world.work(1, tasks=100)
        time.sleep(0.5)
    busy = world.busy()
    assert busy < _IDLE, f"the idle scheduler uses {busy:.0%} of a core"
    end()
    ended = time.monotonic()
    world.work()
    said = world.all_arrived(again=again)
    after = time.monotonic() - ended
    if told:
        world.one_message_each()
    world.clean_log()
    assert world.dropped("queue_full") == 0
    return (
        f"{said}, {after:.0f} s after {ended - began:.0f} s in the fault; "
        f"idle scheduler {busy:.0%} of a core"
    )


def _answers(world: World, answer: int | str, retry_after: int | None = None) -> str:
    def begin() -> None:
        world.collector.retry_after = retry_after
        world.collector.answer = answer

    def end() -> None:
        world.collector.answer = None

    return through(world, begin, end)


def _mode(world: World, mode: str, **options: Any) -> str:
    def begin() -> None:
        world.gate.mode = mode

    def end() -> None:
        world.gate.mode = "pass"

    return through(world, begin, end, **options)


@collector(
    "down-at-start",
    fault="Nobody listens when the scheduler starts",
    promise=ONCE,
)
def _down_at_start(world: World) -> str:
    return _mode(world, "closed", healthy_first=False)


@collector(
    "down-and-back",
    fault="It is killed under load, and is back after two minutes of load",
    promise=ONCE + ", as long as the queue holds (`OTEL_BSP_MAX_QUEUE_SIZE`)",
)
def _down_and_back(world: World) -> str:
    return _mode(world, "closed", seconds=_AWAY)


@collector("silent", fault="It accepts connections and never answers", promise=ONCE)
def _silent(world: World) -> str:
    return _mode(world, "silent")


@collector(
    "drip",
    fault="It takes requests and answers with one byte a second",
    promise="Nothing is lost; what was taken and not confirmed in time comes again, spans with the "
    "same ids. Over HTTP the time counts from byte to byte of an answer's head: until it is there, "
    "the bridge waits, without a warning",
)
def _drip(world: World) -> str:
    return _mode(world, "drip", again=True, told=world.protocol == GRPC)


@collector(
    "drip-content",
    fault="It takes requests, and the content of its answer comes one byte a second",
    promise="Nothing is lost; what was taken and not confirmed in time comes again, spans with the "
    "same ids; one warning, one line at the end",
    protocols=(HTTP,),
)
def _drip_content(world: World) -> str:
    def begin() -> None:
        # A success with 200 bytes in a field that nobody knows.
        world.collector.content = "application/x-protobuf", b"\x7a\xc8\x01" + bytes(200)
        world.gate.mode = "drip-content"

    def end() -> None:
        world.collector.content = None
        world.gate.mode = "pass"

    return through(world, begin, end, again=True)


@collector(
    "cut",
    fault="It takes requests, and the connection breaks within the answer",
    promise="Nothing is lost; what was taken and not confirmed comes again, spans with the "
    "same ids",
)
def _cut(world: World) -> str:
    return _mode(world, "cut", again=True)


def _status(answer: int | str, protocol: str, **options: Any) -> None:
    name = str(answer).lower().replace("_", "-")

    @collector(
        name,
        fault=f"It answers {answer} to everything",
        promise=ONCE,
        protocols=(protocol,),
    )
    def _run(world: World) -> str:
        return _answers(world, answer, **options)


for _code in (400, 401, 413, 500):
    _status(_code, HTTP)
for _name in ("UNAVAILABLE", "INVALID_ARGUMENT", "UNAUTHENTICATED", "INTERNAL"):
    _status(_name, GRPC)


def _retry_after(answer: int | str, protocol: str, word: str) -> None:
    name = f"{str(answer).lower().replace('_', '-')}-retry-after"

    @collector(
        name,
        fault=f"It answers {answer} with {word} of 1 s",
        promise=ONCE + "; nothing is sent sooner than it says",
        protocols=(protocol,),
    )
    def _run(world: World) -> str:
        times: dict[str, list[float]] = {"traces": [], "metrics": []}

        def note(signal: str) -> None:
            if world.collector.answer is not None:
                times[signal].append(time.monotonic())

        world.collector.before_answer = note
        said = _answers(world, answer, 1)
        pauses = [later - earlier for of in times.values() for earlier, later in pairwise(of)]
        assert pauses, "nothing was tried twice"
        assert min(pauses) > 0.9, f"tried again after {min(pauses):.2f} s"
        return f"{said}; tried again after {min(pauses):.1f} s at the soonest"

    @collector(
        f"{name}-hour",
        fault=f"It answers {answer} with {word} of an hour",
        promise=ONCE + "; more than 30 s is not honoured, the next try comes then",
        protocols=(protocol,),
    )
    def _run_hour(world: World) -> str:
        return _answers(world, answer, 3600)


for _code in (429, 503):
    _retry_after(_code, HTTP, "`Retry-After`")
_retry_after("RESOURCE_EXHAUSTED", GRPC, "`RetryInfo`")


@collector(
    "redirect",
    fault="It redirects (301) to a page that answers 200",
    promise=ONCE + "; a redirect is not followed",
    protocols=(HTTP,),
)
def _redirect(world: World) -> str:
    def begin() -> None:
        world.collector.location = f"{world.collector.endpoint}/page"
        world.collector.answer = 301

    def end() -> None:
        world.collector.answer, world.collector.location = None, ""

    return through(world, begin, end)


def _count_spans(request: Any) -> int:
    return sum(len(s.spans) for r in request.resource_spans for s in r.scope_spans)


def _names(request: Any) -> set[str]:
    return {span.name for r in request.resource_spans for s in r.scope_spans for span in s.spans}


@collector(
    "too-large",
    fault="It takes requests of up to 4 spans, and answers 413 (`INVALID_ARGUMENT`) to larger ones",
    promise="Batches are taken apart until they fit; each span arrives once",
)
def _too_large(world: World) -> str:
    refusal = 413 if world.protocol == HTTP else "INVALID_ARGUMENT"

    def judge(signal: str, request: Any) -> int | str | None:
        return refusal if signal == "traces" and _count_spans(request) > 4 else None

    world.collector.judge = judge
    world.gate.mode = "pass"
    # One batch of all of it.
    world.start({"OTEL_BSP_SCHEDULE_DELAY": "3000"})
    world.work(10)
    world.compare()
    said = world.all_arrived()
    sizes = [
        (_count_spans(request), judge(signal, request))
        for signal, request, _ in world.collector.requests
        if signal == "traces"
    ]
    refused = [size for size, answer in sizes if answer is not None]
    assert refused, "no request was too large"
    assert world.dropped("rejected") == 0
    world.clean_log()
    return f"{said}; {len(refused)} requests of up to {max(refused)} spans were refused"


@collector(
    "poison",
    fault="It refuses one span (400, `INVALID_ARGUMENT`) for ever",
    promise="That span is dropped, counted as `rejected`, told once; all others arrive once",
)
def _poison(world: World) -> str:
    refusal = 400 if world.protocol == HTTP else "INVALID_ARGUMENT"
    world.collector.judge = lambda signal, request: (
        refusal if signal == "traces" and "work 3" in _names(request) else None
    )
    world.gate.mode = "pass"
    world.start({"OTEL_BSP_SCHEDULE_DELAY": "2000"})
    world.work(8)
    world.compare()
    eventually(lambda: world.dropped("rejected"), 120, "the span is counted as dropped")
    tasks = world.submitted.pop("work 3")
    world.work(2)
    world.all_spans_arrived()
    world.submitted["work 3"] = tasks
    world.all_tasks_counted()
    assert world.dropped("rejected") == 1, world.dropped("rejected")
    world.nothing_came_twice()
    told = [line for line in world.logged("WARNING") if "dropped a span" in line]
    assert len(told) == 1, told
    world.clean_log()
    spans = len(world.submitted)
    return (
        f"{spans - 1} of {spans} spans; 1 counted as `rejected`, told once; all tasks are counted"
    )


@collector(
    "partial",
    fault="It takes requests and says that it did not take 2 items of each (partial success)",
    promise="They are counted as `rejected` and not as exported, never sent again; the "
    "server's words are told once",
)
def _partial(world: World) -> str:
    expected = 0

    def judge(signal: str, request: Any) -> None:
        nonlocal expected
        if signal == "traces" and world.collector.partial is not None:
            expected += min(2, _count_spans(request))

    world.collector.judge = judge
    world.gate.mode = "pass"
    world.start()
    world.work(2)
    world.all_arrived()
    world.collector.partial = (2, "quota of chaos")
    world.work()
    world.compare()
    world.all_spans_arrived()
    world.collector.partial = None
    world.work(1)
    said = world.all_arrived()
    eventually(
        lambda: world.dropped("rejected", "traces") == expected > 0, 60, "what it did not take"
    )
    told = [line for line in world.logged("WARNING") if "quota of chaos" in line]
    # One for spans, one for data points.
    assert len(told) == 2, told
    world.clean_log()
    return f"{said}; {expected} spans counted as `rejected`; told once for each kind of item"


@collector(
    "queue-full",
    fault="It is away while 40 spans and more end, and the queue (`OTEL_BSP_MAX_QUEUE_SIZE`) "
    "holds 30 records",
    promise="Can't be kept for spans: what does not fit is lost. Bound: what the queue holds "
    "arrives once, each record that is lost is counted as `queue_full`; the counters lose nothing",
    loses=True,
)
def _queue_full(world: World) -> str:
    world.gate.mode = "pass"
    world.start({"OTEL_BSP_MAX_QUEUE_SIZE": "30", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "5"})
    world.work(5)
    world.all_arrived()
    # A Dask span, its group, its slowest task.
    records, before = 3, len(world.collector.spans)
    assert before == 5 * records, before
    world.gate.mode = "closed"
    world.work(40)
    world.warned()
    world.compare()
    sent = (len(world.submitted) - 5) * records
    # The last of them have settled.
    time.sleep(5)
    world.gate.mode = "pass"
    world.all_tasks_counted()
    lost = 0

    def reconciled() -> bool:
        nonlocal lost
        lost = world.dropped("queue_full", "traces")
        arrived = len(world.collector.spans) - before
        assert arrived + lost == sent, f"{arrived} arrived, {lost} counted as lost"
        return lost > 0

    eventually(reconciled, 120, "each record has arrived or is counted as lost")
    world.nothing_came_twice()
    world.one_message_each()
    return (
        f"{sent} records: {sent - lost} arrived once, {lost} are counted as "
        "`queue_full`; all tasks are counted"
    )


@collector(
    "dead-name",
    fault="Its name does not resolve, ever",
    promise="Dask runs on; one warning says so; what is lost is told; the close takes a second "
    "longer than without the bridge, in which a collector may come back",
)
def _dead_name(world: World) -> str:
    world.start(endpoint="http://no-such-host.invalid:4318")
    world.work()
    warning = world.warned()
    assert "resolve" in warning, warning
    world.compare()
    world.one_message_each(recovered=False)
    assert world.pairs is not None
    (_code, bare), (_code, closed) = (one.end() for one in (world.pairs.bare, world))
    # Another second for the noise of a machine that does other things as well.
    assert closed < bare + 2, f"the close took {closed:.1f} s, and {bare:.1f} s without the bridge"
    gave_up = [line for line in world.logged("INFO") if "could not be exported" in line]
    assert len(gave_up) >= 1, "what was lost is not told"
    return (
        f"one warning; SIGTERM to exit {closed:.1f} s ({bare:.1f} s without the bridge); the log "
        "says what was lost"
    )
