"""``/otel``: the page of spans on the scheduler's own HTTP server, and the report of a run.

Nothing is done while nobody asks. The event loop only reads facts, in short steps; texts are made
in a thread. The headline of a run that has ended is that of its report.
"""

from __future__ import annotations

import asyncio
import time as clocks
from collections.abc import Callable, Collection, Iterator
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final

from tornado.web import HTTPError, RequestHandler

from dask_otel._dask.adapter import SchedulerAdapter
from dask_otel._dask.overview import overview
from dask_otel._dask.settled import SettledSpans
from dask_otel.pump.recorder import Recorder
from dask_otel.pump.thread import apart
from dask_otel.scheduler.wiring import RECORDED

if TYPE_CHECKING:
    from dask_otel.report.document import Report

#: Seconds for which one answer serves all requests, at least; and as multiples of the time that it
#: took on the event loop, and in a thread, which takes turns with the event loop.
FRESH: Final = 1.0
SPARED: Final = 20.0
BESIDE: Final = 4.0
#: Bytes of rows from which on headlines are left to the reports: to read them takes seconds.
LARGE: Final = 2**22
#: Seconds after a run's end in which its rows can still become more.
_SETTLES: Final = 2 * RECORDED

_HEADERS: Final = (
    ("Content-Type", "text/html; charset=utf-8"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
)
#: Beside the policy in each page, which forbids to load anything. A report has an origin of its
#: own: nothing in it can reach the server's other pages.
_LIVE: Final = "frame-ancestors 'self'"
_REPORT: Final = f"{_LIVE}; sandbox allow-scripts allow-popups"

_NO_BOKEH: Final = "Reports need dask-otel[report] where the scheduler runs"


class Pages:
    """The pages of one bridge; the parameters are its parts."""

    def __init__(
        self, adapter: SchedulerAdapter, settled: SettledSpans, recorder: Recorder
    ) -> None:
        self._adapter, self._settled, self._recorder = adapter, settled, recorder
        self._live: str | None = None
        self._until = 0.0
        #: By span: the headline of its report, and until when it can change; 0 if it can't.
        self._headlines: dict[str, tuple[str, float]] = {}
        # One page of a kind is made at a time: a report can take hundreds of megabytes.
        self._locks = asyncio.Lock(), asyncio.Lock()

    async def live(self) -> str | None:
        """Return the page of the present state; all requests share a small part of the loop."""
        async with self._locks[0]:
            began = clocks.monotonic()
            if began >= self._until:
                facts = await overview(self._adapter, self._settled)
                read = clocks.monotonic()
                self._live = await _made(partial(self._page, facts))
                now = clocks.monotonic()
                self._until = now + max(FRESH, SPARED * (read - began), BESIDE * (now - read))
            return self._live

    async def report(self, span_id: str) -> str | None:
        """Return the report of a span; None if it is unknown, or no longer in memory."""
        if self._settled.trace_context(span_id) is None:
            return None
        async with self._locks[1]:
            return await _made(partial(_report, self._recorder, span_id))

    def _page(self, facts: dict[str, Any]) -> str:
        """Add the headlines of runs that have ended, and return the page. In a thread."""
        known, now = self._headlines, facts["time"]
        shown = {one["id"]: known.get(one["id"], ("", now + _SETTLES)) for one in facts["ended"]}
        changing = {span_id: until for span_id, (_, until) in shown.items() if until}
        for span_id, report in _reports(self._recorder, changing, LARGE):
            title = "" if report is None else report.accounts()[0].diagnoses[0].title
            shown[span_id] = title, changing[span_id] if now < changing[span_id] else 0.0
        self._headlines = shown
        for one in facts["ended"]:
            one["headline"], _ = shown[one["id"]]
        # Here, because it imports much.
        from dask_otel.report.page.html import live_page

        return live_page(facts)


def _reports(
    recorder: Recorder, ids: Collection[str], most: float
) -> Iterator[tuple[str, Report | None]]:
    """Yield the reports of spans: None if not in memory, or if all rows exceed `most` bytes."""
    from dask_otel.report.document import about, report_of
    from dask_otel.report.telemetry.model import Block

    rows = recorder.rows() if ids else []
    large = sum(len(data) for signal, data in rows if signal != "graph") > most
    report = report_of([] if large else rows, recorder.lost())
    for span_id in ids:
        one = about(report, Block("", span_id))
        yield span_id, one if any(run.own for run in one.runs) else None


def _report(recorder: Recorder, span_id: str) -> str | None:
    ((_, report),) = _reports(recorder, [span_id], inf)
    return None if report is None else report.html()


async def _made(make: Callable[[], str | None]) -> str | None:
    return await asyncio.wrap_future(apart(make, "dask-otel-page"))


class PageHandler(RequestHandler):
    """Answers with the page, or with the report below it."""

    def initialize(self, pages: Pages) -> None:
        """See ``tornado.web.RequestHandler.initialize``."""
        self._pages = pages

    async def get(self, span_id: str | None) -> None:
        """Answer a browser: with the report of a span, or without its id with the page."""
        pages = self._pages
        try:
            page = await (pages.report(span_id) if span_id else pages.live())
        except ImportError as error:
            raise HTTPError(501, reason=_NO_BOKEH) from error
        if page is None:
            raise HTTPError(404)
        for name, value in _HEADERS:
            self.set_header(name, value)
        self.set_header("Content-Security-Policy", _REPORT if span_id else _LIVE)
        self.finish(page.encode("utf-8", "replace"))
