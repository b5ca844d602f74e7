"""``/otel``: the page of spans on the scheduler's own HTTP server, and the report of a run.

Nothing is done while nobody asks. The event loop only reads facts, in short steps; texts are made
in a thread. The headline of a run that has ended is that of its report.
"""

from __future__ import annotations

import asyncio
import time as clocks
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final

from tornado.web import HTTPError, RequestHandler

from dask_otel._dask.adapter import SchedulerAdapter
from dask_otel._dask.overview import overview
from dask_otel._dask.settled import SettledSpans
from dask_otel.pump.recorder import RecordedRow, Recorder
from dask_otel.pump.thread import apart
from dask_otel.scheduler.wiring import RECORDED

if TYPE_CHECKING:
    from dask_otel.report.document import Report

#: Seconds for which one answer serves all requests, at least; and as multiples of the time that it
#: took on the event loop, and in a thread, which takes turns with the event loop.
FRESH: Final = 1.0
SPARED: Final = 20.0
BESIDE: Final = 4.0
#: Most bytes of rows that are read for the headline of a run, since its beginning: they take
#: seconds. Other runs have theirs in the report alone.
LARGE: Final = 2**22
#: Bytes of such rows after which the other runs have their headlines at the next look.
ROOM: Final = 2**19
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
        #: By span and its end, as it may go on: the headline of its report (None before it is
        #: made), and when to make it again, as it can change; infinite if it can't.
        self._headlines: dict[tuple[str, float], tuple[str | None, float]] = {}
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
        start = self._settled.enqueued(span_id)
        if start is None:
            return None
        async with self._locks[1]:
            return await _made(partial(self._html, span_id, start))

    def _html(self, span_id: str, start: float) -> str | None:
        report = _report(span_id, *self._recorder.since(start))
        return None if report is None else report.html()

    def _page(self, facts: dict[str, Any]) -> str:
        """Add the headlines of runs that have ended, and return the page. In a thread.

        They come in turn, with one look after the other: first those of runs that have none.
        """
        known, self._headlines = self._headlines, {}
        now, room = facts["time"], ROOM
        new: tuple[str | None, float] = None, now + _SETTLES
        runs = [((one["id"], one["ended"]), one) for one in facts["ended"]]
        for run, one in sorted(runs, key=lambda item: known.get(item[0], new)[0] is not None):
            title, again = known.get(run, new)
            if room > 0 and (title is None or now >= again):
                rows, lost = self._recorder.since(one["start"])
                size = sum(len(data) for signal, data in rows if signal != "graph")
                is_small = size <= LARGE
                room -= size * is_small
                report = _report(one["id"], rows, lost) if is_small else None
                if report is not None:
                    title = report.accounts()[0].diagnoses[0].title
                elif now >= again or not is_small:
                    # Until then, its rows may be on their way.
                    title = ""
                again = inf if now >= again else again
            self._headlines[run] = title, again
            one["headline"] = title
        # Here, because it imports much.
        from dask_otel.report.page.html import live_page

        return live_page(facts)


def _report(span_id: str, rows: Sequence[RecordedRow], lost: Mapping[str, int]) -> Report | None:
    """Return the report of a span, if it is in some rows."""
    from dask_otel.report.document import report_of
    from dask_otel.report.telemetry.model import Block

    report = report_of(rows, lost, Block("", span_id))
    return report if any(run.own for run in report.runs) else None


async def _made(make: Callable[[], str | None]) -> str | None:
    return await asyncio.wrap_future(apart(make, "dask-otel-page"))


class PageHandler(RequestHandler):
    """Answers with the page, or with the report below it."""

    def initialize(self, pages: Pages) -> None:
        """See ``tornado.web.RequestHandler.initialize``."""
        self._pages = pages

    async def get(self, span_id: str | None) -> None:
        """Answer a browser: with the report of a span, or without its id with the page."""
        try:
            page = await (self._pages.report(span_id) if span_id else self._pages.live())
        except ImportError as error:
            raise HTTPError(501, reason=_NO_BOKEH) from error
        if page is None:
            raise HTTPError(404)
        for name, value in _HEADERS:
            self.set_header(name, value)
        self.set_header("Content-Security-Policy", _REPORT if span_id else _LIVE)
        self.finish(page.encode("utf-8", "replace"))
