"""The page of spans on the scheduler's HTTP server, asked as a browser would, through Tornado."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import logging
import re
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from html import unescape
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urljoin
from urllib.request import urlopen

import dask
import pytest
from distributed import Client, LocalCluster, span, wait

import dask_otel
from dask_otel._dask.overview import overview
from dask_otel.scheduler import live_page as module
from tests.browser import open_page
from tests.environment import OFF, python
from tests.unit.looped import looped
from tests.waiting import eventually

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.unreconciled("nothing is exported; the page is compared with what was arranged"),
]


@pytest.fixture(autouse=True)
def _no_old_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a page for each request."""
    for name in ("FRESH", "SPARED", "BESIDE"):
        monkeypatch.setattr(module, name, 0.0)


#: Markup, characters that control a terminal, and half a character.
HOSTILE = "<script>pwned=1</script><img src=x onerror=pwned=1>'\"\x1b[31m\0\ud800"
ALWAYS = {"report": {"record": "always"}, "environment": OFF, "spans": {"linger": "0s"}}


#: By number; the worker's threads are in this process.
GATES = [threading.Event() for _ in range(4)]


def gated(number: int) -> int:
    GATES[number].wait()
    return number


@contextmanager
def cluster(prefix: str | None = None) -> Iterator[Client]:
    options = {"http_prefix": prefix} if prefix else {}
    for gate in GATES:
        gate.clear()
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=2, processes=False, dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False, **options}, silence_logs=False,
        ) as local,
        Client(local) as client,
    ):  # fmt: skip
        try:
            yield client
        finally:
            # A worker closes when its tasks have ended.
            for gate in GATES:
                gate.set()
            # Dask's server leaves open what a browser keeps open.
            local.sync(local.scheduler.http_server.close_all_connections)


def address(client: Client, path: str = "/otel") -> str:
    return f"http://127.0.0.1:{client.cluster.scheduler.http_server.port}{path}"


def status(client: Client, path: str = "/otel") -> int:
    try:
        with urlopen(address(client, path)) as answer:
            return int(answer.status)
    except HTTPError as error:
        with error:
            return error.code


def read(client: Client, path: str = "/otel") -> str:
    with urlopen(address(client, path)) as answer:
        return str(answer.read(), "utf-8")


def is_ready(dask_scheduler: Any) -> bool:
    return dask_scheduler.plugins["dask-otel"].bridge.wired is not None


def registered(client: Client, config: dict[str, Any] = ALWAYS) -> None:
    """Start a bridge that records always, and wait until its page is there."""
    assert dask_otel.register(client, config) == "started"
    # Asked on the event loop, between two steps of the bridge.
    eventually(lambda: client.run_on_scheduler(is_ready))


def test_it_is_there_only_if_asked_for_and_leaves_nothing(caplog: Any) -> None:
    with cluster() as client:
        scheduler = client.cluster.scheduler
        rules = [*scheduler.http_application.default_router.rules]
        registered(client, {"environment": OFF})
        assert status(client) == 404
        dask_otel.unregister(client)

        with caplog.at_level(logging.INFO, "distributed.dask_otel"):
            registered(client)
        port = scheduler.http_server.port
        assert re.search(rf"reports of runs at http://[\d.]+:{port}/otel\n", caplog.text)
        assert "No span is open." in read(client)
        # Nothing below it that a request may invent, and only GET.
        for path in ("/otel/", "/otel/x", "/otel/report", "/otel/report/x", "/otelx"):
            assert status(client, path) == 404, path
        with pytest.raises(HTTPError, match="405") as refused:
            urlopen(address(client), data=b"{}")
        refused.value.close()
        # The pages have it, too.
        recorder = weakref.ref(scheduler.plugins["dask-otel"].bridge.recording.recorder)
        dask_otel.unregister(client)
        assert status(client) == 404
        assert scheduler.http_application.default_router.rules == rules
        eventually(lambda: gc.collect() is not None and recorder() is None)


@pytest.mark.parametrize(
    ("prefix", "links"),
    [
        (
            "/clusters/a",
            {
                "{scheme}://{host}:{port}/status": "/clusters/a/otel",
                "https://hub/clusters/a/status": "https://hub/clusters/a/otel",
                "{NO_SUCH_VARIABLE}/status": " /clusters/a/otel",
            },
        ),
        (None, {"/user/me/proxy/{port}/status": "/user/me/proxy/{port}/otel"}),
    ],
)
def test_behind_a_prefix_and_proxies(
    prefix: str | None, links: dict[str, str], caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def made(pages: module.Pages, span_id: str) -> bytes:
        return f"the report of {span_id}".encode()

    monkeypatch.setattr(module.Pages, "report", made)
    caplog.set_level(logging.INFO, "distributed.dask_otel")
    with cluster(prefix) as client:
        port = client.cluster.scheduler.http_server.port
        for link, said in links.items():
            dask_otel.unregister(client)
            with dask.config.set({"distributed.dashboard.link": link}):
                registered(client)
            assert f"{said.format(port=port)}\n" in caplog.text
        with span("etl") as span_id:
            wait(client.submit(int))
        path = f"{prefix or ''}/otel"
        assert status(client) == (404 if prefix else 200)
        page = eventually(lambda: 'href="otel/' in (text := read(client, path)) and text)
        found = [unescape(one) for one in re.findall(r'(?:href|src)="([^"]*)"', page)]
        inside = [one for one in found if not one.startswith("https://dask-otel.readthedocs.io/")]
        assert inside == [f"otel/report/{span_id}"]
        # A proxy that adds a path of its own: the browser resolves the link, the proxy strips it.
        proxy = "http://hub/user/me/proxy/1"
        there = urljoin(f"{proxy}{path}", inside[0])
        assert read(client, there.removeprefix(proxy)) == f"the report of {span_id}"


def test_the_page_and_a_replay_in_a_notebook_need_no_bokeh() -> None:
    facts = "scheduler='', workers=0, threads=0, time=1.0, open=[], more=0, ended=[]"
    shown = python(
        "import sys; sys.modules['bokeh'] = None;"
        f"from dask_otel.report.page.html import live_page; print(live_page(dict({facts})));"
        "from dask_otel.report.whatif import WhatIf, WhatIfReport;"
        "print(WhatIfReport(WhatIf('etl', 1.0, None, refused='Too long.'))._repr_html_())"
    )
    assert "No span is open." in shown
    assert "<b>No answer for etl: Too long.</b>" in shown


@looped
async def test_all_who_ask_at_a_time_share_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    async def overview(*parts: Any) -> dict[str, Any]:
        asked.append(parts)
        return {"number": len(asked)}

    monkeypatch.setattr(module, "overview", overview)
    monkeypatch.setattr(module.Pages, "_page", lambda _, facts: str(facts["number"]))
    cases = {
        (3600.0, 0.0, 0.0): {"1"},
        # As long as it took on the event loop, or in the thread, many times over.
        (0.0, 1e12, 0.0): {"2"},
        (0.0, 0.0, 1e12): {"3"},
        (0.0, 0.0, 0.0): {"4", "5", "6"},
    }
    for values, answers in cases.items():
        for name, value in zip(("FRESH", "SPARED", "BESIDE"), values, strict=True):
            monkeypatch.setattr(module, name, value)
        pages = module.Pages(None, None, None)  # type: ignore[arg-type]
        assert {*await asyncio.gather(*(pages.live() for _ in range(3)))} == answers


def test_names_are_text_and_the_page_is_shut_off() -> None:
    with cluster() as client:
        registered(client)
        with span(HOSTILE):
            wait(client.submit(int, key=f"{HOSTILE}-1"))
        with span(HOSTILE, "below"):
            future = client.submit(gated, 0, key=f"{HOSTILE}-2")
            text = eventually(lambda: "processing" in (now := read(client)) and now)
        with urlopen(address(client)) as answer:
            headers = answer.headers
        GATES[0].set()
        wait(future)
    assert "pwned=1" in text
    assert re.findall(r"<(?:script|img)[^>]*>", text) == ["<script>"]
    assert not re.search(r"[\0-\x09\x0b-\x1f\ud800]", text)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert re.match(r"default-src 'none'; script-src 'sha256-[^ ']*';", policy[1])
    assert "base-uri 'none'; form-action 'none'" in policy[1]
    assert headers["Content-Security-Policy"] == "frame-ancestors 'self'"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"


def headlines(page: str) -> list[str]:
    """Return those of runs that have ended, the last one first."""
    rows = re.findall(r"<tr id=.*?</tr>", page, flags=re.DOTALL)
    return [unescape(re.findall(r"<td[^>]*>(.*?)</td>", row, flags=re.DOTALL)[4]) for row in rows]


async def overview_later(*known: Any) -> dict[str, Any]:
    """Return what the page shows, as when the rows of all runs have come."""
    found = await overview(*known)
    return {**found, "time": found["time"] + module._SETTLES}


@pytest.mark.xdist_group("page")
def test_a_report_is_about_one_run_of_those_in_memory_and_has_the_headline_of_the_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # It would hold up the event loop.
    monkeypatch.setattr("dask_otel.report.child.report_of", None)
    with cluster() as client:
        registered(client)
        with span(HOSTILE) as span_id:
            wait(client.submit(float, "bad"))
        # In the report, it is context: it came later.
        with span("good"):
            wait(client.submit(int))
        path = f"/otel/report/{span_id}"
        recorder = client.cluster.scheduler.plugins["dask-otel"].bridge.recording.recorder

        def complete() -> bool:
            signals = [signal for signal, _ in recorder.since(0.0)[0]]
            return signals.count("traces") == 2 and signals[-1] == "metrics"

        eventually(complete)
        monkeypatch.setattr(module, "overview", overview_later)

        def alike() -> str:
            report = read(client, path)
            (found,) = re.findall(r'class="verdict \w+"><p><b[^>]*>(.*?)</b>', report)
            assert unescape(found) == headlines(read(client))[1]
            assert "failed" in found
            return report

        report = eventually(alike)
        assert report.count("(this block)") == 1
        assert "&lt;script&gt;pwned=1" in report
        assert "<script>pwned" not in report
        # Too many bytes to read them for a headline.
        monkeypatch.setattr(module, "LARGE", -1)
        with span("late"):
            wait(client.submit(int))
        eventually(lambda: headlines(read(client))[:-2] == [module._IS_LARGE])
        monkeypatch.setitem(sys.modules, "bokeh", None)
        with pytest.raises(HTTPError, match=r"501: .*\[report\]") as refused:
            read(client, path)
        refused.value.close()
        # A root that the scheduler knows, and whose rows are gone.
        recorder._most = 0
        recorder.add("logs", b"")
        monkeypatch.undo()
        assert status(client, path) == 404


def test_a_process_that_is_killed_leaves_the_page_without_headlines(
    monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(module, "_LIMIT", 0.0)
    monkeypatch.setattr(module, "overview", overview_later)
    with cluster() as client:
        registered(client)
        with span("etl") as span_id:
            wait(client.submit(int))
        eventually(lambda: headlines(read(client)) == [unescape(module._UNREADABLE)])
        assert status(client, f"/otel/report/{span_id}") == 500
    killed = "the process of the report ended with status -9"
    assert killed in caplog.text
    # More than a pipe holds, so that it was killed before it had read all.
    with pytest.raises(RuntimeError, match=killed):
        module._read(False, [("", [("traces", bytes(1 << 20))], {})])


def test_a_process_ends_with_the_one_that_asked() -> None:
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "dask_otel.report.child"]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdin
        assert process.stdout
        row = gzip.compress(b"{}\n" * 2_000_000)
        sizes = [["x", [["logs", len(row)]] * 9, {}]]
        process.stdin.write(json.dumps([False, sizes]).encode() + b"\n" + row * 9)
        process.stdin.close()
        assert (process.stdout.read(), process.wait()) == (b"", 1)


def test_a_report_is_made_in_a_thread_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, threads = threading.Event(), list[threading.Thread]()

    def blocked(*_: Any) -> str:
        threads.append(threading.current_thread())
        assert gate.wait(60)
        return "made"

    monkeypatch.setattr(module.Pages, "_html", blocked)
    with cluster() as client, ThreadPoolExecutor(2) as askers:
        registered(client)
        with span("etl") as span_id:
            wait(client.submit(int))
        path = f"/otel/report/{span_id}"
        answers = askers.map(read, [client] * 2, [path] * 2)
        eventually(lambda: threads)
        # The event loop goes on: it answers others, and runs tasks.
        assert "Last runs" in read(client)
        assert client.submit(sum, [1, 2]).result() == 3
        assert [one.daemon for one in threads] == [True]
        gate.set()
        assert [*answers] == ["made", "made"]
        with urlopen(address(client, path)) as answer:
            policy = answer.headers["Content-Security-Policy"]
        assert policy == "frame-ancestors 'self'; sandbox allow-scripts allow-popups"


@looped
@pytest.mark.xdist_group("page")
async def test_it_refreshes_without_flicker(chromium: str) -> None:
    with cluster() as client:
        registered(client)
        with span("fit"):
            futures = client.map(gated, range(4), pure=False)
            eventually(lambda: "0 of 4 tasks ended" in read(client))
        async with open_page(chromium, address(client)) as page:
            for dark, width in ((True, 500), (False, 1200)):
                await page.emulate(dark, width)
                assert await page.ask("document.documentElement.scrollWidth") <= width
                ground = await page.ask("getComputedStyle(document.body).backgroundColor")
                assert ground == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)")
            # The nodes of what stays, and all that is added or removed from now on.
            await page.ask(
                "window.kept = [...document.querySelectorAll('h1, h2, h3, section')];"
                "window.seen = []; new MutationObserver(all => all.forEach(one => seen.push("
                "...[...one.addedNodes, ...one.removedNodes].map(node => node.nodeName)"
                "))).observe(document.body, {subtree: true, childList: true})"
            )
            look = "document.dispatchEvent(new Event('visibilitychange'))"
            said = "document.getElementById('now').textContent"
            for number, gate in enumerate(GATES[:2], 1):
                gate.set()
                wait(futures[number - 1])
                await page.ask(look)
                await page.until(f"{look}, {said}.includes('{number} of 4 tasks ended')")
            assert await page.ask("window.kept.every(one => one.isConnected)")
            gone = set(await page.ask("window.seen"))
            assert not gone & {"SECTION", "H1", "H2", "H3"}
            for gate in GATES:
                gate.set()
            wait(futures)
            await page.until(f"{look}, document.querySelector('tbody tr') !== null")
            assert await page.ask(f"{said}.includes('No span is open.')")
            assert page.trouble == []
            # A proxy asks for a password.
            await page.ask(
                "window.asked = window.fetch;"
                "window.fetch = async () => new Response('<p>Log in</p>')"
            )
            trouble = "document.getElementById('trouble').textContent"
            await page.until(f"{look}, {trouble}.includes('such as a login: reload')")
            assert await page.ask(f"{said}.includes('No span is open.')")
            # It asks again later, but not while it is hidden, however often it was asked before.
            await page.ask(
                "window.fetch = window.asked;"
                "window.timers = new Set(); const [set, clear] = [setTimeout, clearTimeout];"
                "window.setTimeout = (...all) => { const one = set(...all); timers.add(one);"
                " return one; };"
                "window.clearTimeout = one => { timers.delete(one); clear(one); };"
            )
            await page.ask(f"{look}, {look}, {look}")
            await page.until("timers.size === 1")
            hide = "Object.defineProperty(document, 'hidden', {{value: {}, configurable: true}})"
            assert await page.ask(f"{hide.format('true')}, {look}, timers.size") == 0
            await page.ask(hide.format("false"))
            # The report works with an origin of its own.
            report = await page.ask("document.querySelector('tbody a').href")
            path = report.removeprefix(address(client, ""))
            eventually(lambda: status(client, path) == 200, what="it is in memory")
            async with open_page(chromium, report) as other:
                await other.until("document.documentElement.dataset.ready === '1'")
                assert await other.ask("window.origin") == "null"
                assert other.trouble == []
            dask_otel.unregister(client)
            await page.until(f"{look}, {trouble}.includes('has been removed from this scheduler')")
            # What was known is still there.
            assert await page.ask("document.querySelector('tbody tr td').textContent") == "fit"
