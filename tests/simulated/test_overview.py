"""What the page beside Dask's dashboard shows, in histories whose truth is known."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import dask
import pytest
from distributed import span, wait

import dask_otel
from dask_otel._dask import overview as module
from dask_otel.report import child
from dask_otel.report.words import seconds
from dask_otel.scheduler import live_page
from tests.simulated.bridged import Bridged
from tests.simulated.tasks import boom, nap

pytestmark = pytest.mark.options(workers=1, threads=2)


def asked(b: Bridged) -> tuple[dict[str, Any], int]:
    """Return the overview, and how often others had their turn meanwhile."""

    async def ask() -> tuple[dict[str, Any], int]:
        overview = module.overview(b.bridge.adapter, b.bridge.settled)
        asking, turns = asyncio.ensure_future(overview), 0
        while not asking.done():
            await asyncio.sleep(0)
            turns += 1
        return asking.result(), turns

    return b.cluster.do("scheduler", ask)


def test_open_and_ended_spans(b: Bridged) -> None:
    with span("load"):
        wait([b.client.submit(nap, 1), b.client.submit(boom, key="boom-1")])
    time.sleep(3.0)
    with span("fit"), span("inner"):
        futures = b.client.map(nap, [2, 4, 60, 60, 60], pure=False)
        wait(futures[:2])
        time.sleep(1.0)
    found, _ = asked(b)
    assert (found["workers"], found["threads"], found["more"]) == (1, 2, 0)
    (fit,) = found["open"]
    assert (fit["name"], fit["ended"], fit["least"]) == ("fit", 2, "")
    assert {state: count for state, count in fit["states"].items() if count} == {
        "processing": 3 - len(b.scheduler.queued),
        **({"queued": 1} if b.scheduler.queued else {}),
    }
    assert fit["seconds"] == pytest.approx(5.0, abs=0.1)
    assert sum(fit["path"].values()) == pytest.approx(4.0, abs=0.1)
    assert fit["since"] == pytest.approx(1.0, abs=0.1)
    assert fit["diagnosis"]
    assert {one["kind"] for one in fit["tasks"]} <= {"executing", "no free thread", "worker busy"}
    (load,) = found["ended"]
    (sent,) = [one for one in b.received.spans if one.name == "load"]
    assert (load["name"], load["result"]) == ("load", "failure")
    assert load["seconds"] == pytest.approx((sent.end_ns - sent.start_ns) / 1e9, abs=1e-6)
    assert load["stop"] == pytest.approx(sent.end_ns / 1e9, abs=1e-6)
    assert (load["counts"]["tasks"], load["counts"]["erred"]) == (2, 1)


@pytest.mark.options(otel={"spans": {"linger": "60s"}})
@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize(("shown", "step"), [(20, 1), (20, 2), (20, 3), (20, 4), (1, 1), (1, 2)])
def test_spans_that_end_or_go_on_meanwhile_are_shown_once(
    b: Bridged, monkeypatch: pytest.MonkeyPatch, shown: int, step: int, goes_on: bool
) -> None:
    """All is as it was at one time of the answer, except that what goes on has not ended."""
    monkeypatch.setattr(module, "SHOWN", shown)
    ids: list[str] = []
    for name in ("first", "second", "third", "fourth"):
        with span(name) as span_id:
            wait(b.client.submit(nap, 1, key=name))
        dask_otel.span_metrics(b.client, span_id)
        ids.append(span_id)
    adapter, spans = b.bridge.adapter, b.scheduler.extensions["spans"].spans

    async def ask() -> dict[str, Any]:
        adapter.lifecycle.end(ids[:2], time.time())
        adapter.lifecycle.tick(time.time())
        asking = asyncio.ensure_future(module.overview(adapter, b.bridge.settled))
        for _ in range(step):
            await asyncio.sleep(0)
        adapter.lifecycle.end(ids[2:], time.time())
        adapter.lifecycle.tick(time.time())
        if goes_on:
            adapter.spans._reopened(spans[ids[0]], time.time())
        return await asking

    found = b.cluster.do("scheduler", ask)
    assert {*adapter.lifecycle.open} == {*ids[:goes_on]}
    at_work, ended = ([one["id"] for one in found[part]] for part in ("open", "ended"))
    # It has read the open ones, and now those that have ended, of which it has one.
    read = step > min(2, shown)
    assert len(at_work) + found["more"] == (2 if read else goes_on)
    assert {*at_work} == ({*ids[-shown:]} - {*ids[:2]} if read else set())
    last = [*reversed(ids)][2 * read :]
    assert ended == [one for one in last if not (goes_on and step < 4 and one == ids[0])][:shown]


def test_many_spans_are_shown_in_part_in_short_steps(
    b: Bridged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHOWN", 4)
    monkeypatch.setattr(module, "LARGE", 8)

    def work(kind: str, count: int, seconds: float) -> list[Any]:
        futures = []
        for number in range(count):
            with span(f"{kind}-{number}"):
                # A task group is in one span only.
                futures.append(b.client.submit(nap, seconds, key=(f"{kind}-{number}", 0)))
                time.sleep(0.1)
        return futures

    wait(work("done", 5, 0.01))
    with span("large"):
        wait(work("part", 8, 0.01))
    time.sleep(5.0)
    held = work("open", 6, 60)
    found, turns = asked(b)
    assert [one["name"] for one in found["open"]] == ["open-5", "open-4", "open-3", "open-2"]
    assert found["more"] == 2
    assert [one["name"] for one in found["ended"]] == ["large", "done-4", "done-3", "done-2"]
    assert ["seconds" in one for one in found["ended"]] == [False, True, True, True]
    # Others have their turn after each of them.
    assert turns >= 8
    assert len(held) == 6


@pytest.mark.options(otel={"report": {"record": "always"}})
def test_a_run_has_its_headline_and_sums_whatever_is_no_longer_in_memory(
    b: Bridged, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(name: str, count: int) -> int:
        with span(name):
            b.client.gather(b.client.map(nap, [2.0] * count, key=name, pure=False))
        b.exported()
        b.client.sync(b.bridge.recording.cut)
        return int(recorder._size)

    recorder = b.bridge.recording.recorder
    earlier = work("earlier", 4)
    time.sleep(10.0)
    work("later", 6)
    time.sleep(10.0)
    later = recorder._size - earlier
    found, _ = asked(b)
    pages = live_page.Pages(b.bridge.adapter, b.bridge.settled, recorder)
    rows = [pages._asked(one["id"], one["start"], one["ended"])[1] for one in found["ended"]]
    sizes = [sum(len(data) for _, data in own) for own in rows]
    monkeypatch.setattr(live_page, "LARGE", min(sizes))
    pages._page(found)
    are_large = [one["headline"] == live_page._IS_LARGE for one in found["ended"]]
    assert are_large == [size > min(sizes) for size in sizes] != [False, False]
    monkeypatch.undo()
    # Without it, both have one: in turn, and for good.
    monkeypatch.setattr(live_page, "ROOM", 1)
    made: list[str] = []

    def read(as_page: bool, asked: Any) -> bytes:
        made.extend(span_id for span_id, *_ in asked)
        return child.answer(as_page, asked)

    monkeypatch.setattr(live_page, "_read", read)
    pages = live_page.Pages(b.bridge.adapter, b.bridge.settled, recorder)
    looks = []
    for _ in range(3):
        pages._page(found)
        looks.append([bool(one["headline"]) for one in found["ended"]])
    assert looks == [[True, False], [True, True], [True, True]]
    assert made == [one["id"] for one in found["ended"]]
    headlines = {one["name"]: one["headline"] for one in found["ended"]}
    # The first run leaves memory.
    recorder._most = later + 1000
    recorder.add("logs", b"")
    assert recorder.lost()["metrics"]
    monkeypatch.setattr(live_page, "ROOM", 10**6)
    pages = live_page.Pages(b.bridge.adapter, b.bridge.settled, recorder)
    for headline in (None, live_page._IS_GONE):
        pages._page(found)
        seen = {one["name"]: one["headline"] for one in found["ended"]}
        assert seen == {"earlier": headline, "later": headlines["later"]}
        found["time"] += 10.0
    (one,) = (one for one in found["ended"] if one["name"] == "later")
    report = child._report(one["id"], *recorder.since(one["start"]))
    assert report is not None
    (account,) = report.accounts()
    assert [span.full_name for span in account.session.of_type("span")] == ["later"]
    assert account.diagnoses[0].title == headlines["later"]
    assert account.outcomes == {"memory": 6}
    assert account.cluster is not None


@pytest.mark.options(otel={"report": {"record": "always"}})
def test_the_headline_of_a_run_that_went_on_is_that_of_its_report(b: Bridged) -> None:
    with span("fit") as fit:
        wait(b.client.submit(nap, 1, key="nap"))
    pages = live_page.Pages(b.bridge.adapter, b.bridge.settled, b.bridge.recording.recorder)

    def headline() -> str:
        b.exported()
        for _ in range(2):
            # Its rows are all there.
            time.sleep(15.0)
            found, _ = asked(b)
            pages._page(found)
        (one,) = found["ended"]
        return str(one["headline"])

    before = headline()
    with dask.annotate(span={"name": ("fit",), "ids": (str(fit),)}):
        wait(b.client.submit(boom, key="boom"))
    after = headline()
    assert "fail" in after
    assert "fail" not in before


@pytest.mark.options(otel={"report": {"record": "always"}})
def test_a_report_is_about_the_time_of_its_run(b: Bridged) -> None:
    def theirs(client: Any) -> None:
        with span("theirs"):
            wait(client.submit(nap, 300.0))

    b.cluster.user("other", theirs)
    time.sleep(60.0)
    with span("first") as first:
        b.client.gather(b.client.map(nap, [10.0] * 9, key=[("first", n) for n in range(9)]))
    with span("next"):
        b.client.submit(nap, 10.0, key=("next", 0)).result()
    time.sleep(60.0)
    with span("later"):
        b.client.submit(nap, 10.0, key=("later", 0)).result()
    time.sleep(200.0)
    pages = live_page.Pages(b.bridge.adapter, b.bridge.settled, b.bridge.recording.recorder)
    times = b.bridge.settled.times(str(first))
    assert times is not None
    report = child._report(*pages._asked(str(first), *times))
    assert report is not None
    (account,) = report.accounts()
    # The one that began before its last rows came, and the one that it shared the threads with.
    names = {one.full_name for one in account.session.of_type("span")}
    assert names == {"first", "next", "theirs"}
    # Batches of metrics are 5 s apart, and its rows are there 10 s after its end.
    assert account.cluster is not None
    assert account.cluster.capacity is not None
    assert account.cluster.capacity <= 4 * (30.0 + 15.5)
    figures = {name: value for value, name, _ in account.figures()}
    assert figures["observed"] == seconds(account.cluster.capacity / 4)
    assert figures["mean threads"] == "4.0"
