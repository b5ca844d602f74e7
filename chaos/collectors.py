"""Faults of the collector, and of the network before it."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from tests.waiting import eventually

from chaos.scenario import GRPC, HTTP, scenario
from chaos.world import World

_SECTION = "The collector"
_ONCE = (
    "Each span and each increment arrives once when it is over; one warning, one line at the end"
)
#: Which part of a core an idle scheduler may use in a fault: what tries in a loop uses all of it.
_IDLE = 0.5


def _through(
    world: World,
    begin: Callable[[], None],
    end: Callable[[], None],
    *,
    healthy_first: bool = True,
    again: bool = False,
    told: bool = True,
    hold: float = 0.0,
) -> str:
    """Work before, during and after a fault, and prove that all of it arrived."""
    before = None
    if healthy_first:
        world.gate.mode = "pass"
        world.start()
        before = world.work()
        world.all_arrived()
        begin()
    else:
        begin()
        world.start()
    during = world.work()
    if told:
        world.warned()
    busy = world.busy(max(2.0, hold))
    assert busy < _IDLE, f"the idle scheduler uses {busy:.0%} of a core"
    end()
    ended = time.monotonic()
    world.work()
    said = world.all_arrived(again=again)
    seconds = time.monotonic() - ended
    if told:
        world.one_message_each()
    world.clean_log()
    pace = f"work took {during:.1f} s in the fault"
    if before is not None:
        pace += f", {before:.1f} s before"
    return f"{said}, {seconds:.0f} s after its end; {pace}; idle scheduler {busy:.0%} of a core"


def _answers(world: World, answer: int | str, retry_after: int | None = None) -> str:
    def begin() -> None:
        world.collector.retry_after = retry_after
        world.collector.answer = answer

    def end() -> None:
        world.collector.answer = None

    return _through(world, begin, end)


def _mode(world: World, mode: str, **options: Any) -> str:
    def begin() -> None:
        world.gate.mode = mode

    def end() -> None:
        world.gate.mode = "pass"

    return _through(world, begin, end, **options)


@scenario(
    "down-at-start",
    section=_SECTION,
    fault="Nobody listens when the scheduler starts",
    promise=_ONCE,
)
def _down_at_start(world: World) -> str:
    return _mode(world, "closed", healthy_first=False)


@scenario(
    "down-and-back",
    section=_SECTION,
    fault="It is killed under load, and is back after 15 s",
    promise=_ONCE,
)
def _down_and_back(world: World) -> str:
    return _mode(world, "closed", hold=15.0)


@scenario(
    "silent", section=_SECTION, fault="It accepts connections and never answers", promise=_ONCE
)
def _silent(world: World) -> str:
    return _mode(world, "silent", hold=5.0)


@scenario(
    "drip",
    section=_SECTION,
    fault="It takes requests and answers with one byte a second",
    promise="Nothing is lost; what was taken and not confirmed in time comes again, spans with the "
    "same ids. Over HTTP the time counts from byte to byte of an answer's head: until it is there, "
    "the bridge waits, without a warning",
)
def _drip(world: World) -> str:
    return _mode(world, "drip", again=True, told=world.protocol == GRPC, hold=5.0)


@scenario(
    "drip-content",
    section=_SECTION,
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

    return _through(world, begin, end, again=True, hold=5.0)


@scenario(
    "cut",
    section=_SECTION,
    fault="It takes requests, and the connection breaks within the answer",
    promise="Nothing is lost; what was taken and not confirmed comes again, spans with the "
    "same ids",
)
def _cut(world: World) -> str:
    return _mode(world, "cut", again=True)


def _status(answer: int | str, protocol: str, **options: Any) -> None:
    name = str(answer).lower().replace("_", "-")

    @scenario(
        name,
        section=_SECTION,
        fault=f"It answers {answer} to everything",
        promise=_ONCE,
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

    @scenario(
        name,
        section=_SECTION,
        fault=f"It answers {answer} with {word} of 1 s",
        promise=_ONCE + "; nothing is sent sooner than it says",
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

    @scenario(
        f"{name}-hour",
        section=_SECTION,
        fault=f"It answers {answer} with {word} of an hour",
        promise=_ONCE + "; more than 30 s is not honoured, the next try comes then",
        protocols=(protocol,),
    )
    def _run_hour(world: World) -> str:
        return _answers(world, answer, 3600)


for _code in (429, 503):
    _retry_after(_code, HTTP, "`Retry-After`")
_retry_after("RESOURCE_EXHAUSTED", GRPC, "`RetryInfo`")


@scenario(
    "redirect",
    section=_SECTION,
    fault="It redirects (301) to a page that answers 200",
    promise=_ONCE + "; a redirect is not followed",
    protocols=(HTTP,),
)
def _redirect(world: World) -> str:
    def begin() -> None:
        world.collector.location = f"{world.collector.endpoint}/page"
        world.collector.answer = 301

    def end() -> None:
        world.collector.answer, world.collector.location = None, ""

    return _through(world, begin, end)


def _count_spans(request: Any) -> int:
    return sum(len(s.spans) for r in request.resource_spans for s in r.scope_spans)


def _names(request: Any) -> set[str]:
    return {span.name for r in request.resource_spans for s in r.scope_spans for span in s.spans}


@scenario(
    "too-large",
    section=_SECTION,
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


@scenario(
    "poison",
    section=_SECTION,
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
    eventually(lambda: world.dropped("rejected"), 120, "the span is counted as dropped")
    tasks = world.submitted.pop("work 3")
    world.work(2)
    world.all_spans_arrived()
    world.submitted["work 3"] = tasks
    world.all_tasks_counted()
    assert world.dropped("rejected") == 1, world.dropped("rejected")
    assert world.copies() == 0
    told = [line for line in world.logged("WARNING") if "dropped a span" in line]
    assert len(told) == 1, told
    world.clean_log()
    return "9 of 10 spans; 1 counted as `rejected`, told once; all tasks are counted"


@scenario(
    "partial",
    section=_SECTION,
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


@scenario(
    "queue-full",
    section=_SECTION,
    fault="It is away while 40 spans end, and the queue (`OTEL_BSP_MAX_QUEUE_SIZE`) holds 30 "
    "records",
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
    # The last of them have settled.
    time.sleep(5)
    world.gate.mode = "pass"
    world.all_tasks_counted()
    lost = 0

    def reconciled() -> bool:
        nonlocal lost
        lost = world.dropped("queue_full", "traces")
        arrived = len(world.collector.spans) - before
        assert arrived + lost == 40 * records, f"{arrived} arrived, {lost} counted as lost"
        return lost > 0

    eventually(reconciled, 120, "each record has arrived or is counted as lost")
    assert world.copies() == 0
    world.one_message_each()
    return (
        f"{40 * records} records: {40 * records - lost} arrived once, {lost} are counted as "
        "`queue_full`; all tasks are counted"
    )


@scenario(
    "dead-name",
    section=_SECTION,
    fault="Its name does not resolve, ever",
    promise="Dask runs on; one warning says so; what is lost is told; from SIGTERM to the end of "
    "the process it is 15 s at most: `otel.close-timeout` (5 s), and Dask's own close",
)
def _dead_name(world: World) -> str:
    world.start(endpoint="http://no-such-host.invalid:4318")
    seconds = world.work()
    warning = world.warned()
    assert "resolve" in warning, warning
    world.one_message_each(recovered=False)
    world.close()
    began = time.monotonic()
    world.scheduler.terminate(60)
    closed = time.monotonic() - began
    assert closed < 15, f"the close took {closed:.1f} s"
    gave_up = [line for line in world.logged("INFO") if "could not be exported" in line]
    assert len(gave_up) >= 1, "what was lost is not told"
    return (
        f"work took {seconds:.1f} s; one warning; SIGTERM to exit {closed:.1f} s; the log "
        f"says what was lost"
    )
