"""``/otel``: the page of spans on the scheduler's own HTTP server, and the report of a run.

Nothing is done while nobody asks. The event loop only reads facts, in short steps; the page is made
in a thread, and reports in a process. The headline of a run that has ended is that of its report.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import time as clocks
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tornado.web import HTTPError, RequestHandler

from dask_otel._children import started
from dask_otel._dask.adapter import SchedulerAdapter
from dask_otel._dask.overview import overview
from dask_otel._dask.settled import SettledSpans
from dask_otel._log import logger
from dask_otel.pump.recorder import Recorder
from dask_otel.pump.thread import apart
from dask_otel.scheduler.wiring import RECORDED

if TYPE_CHECKING:
    from dask_otel.report.child import Asked

Made = TypeVar("Made")

#: Seconds for which one answer serves all requests, at least; and as multiples of the time that it
#: took on the event loop, and beside it.
FRESH: Final = 1.0
SPARED: Final = 20.0
BESIDE: Final = 4.0
#: Most bytes of rows that are read for the headline of a run: they take seconds. Other runs have
#: theirs in the report alone.
LARGE: Final = 2**22
#: Bytes of such rows after which the other runs have their headlines at the next look: the start
#: of a process takes as long as half of them.
ROOM: Final = 2**21
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

#: The longest time for a process, in seconds.
_LIMIT: Final = 600.0

#: In place of a headline.
_IS_LARGE: Final = "not read here, as it has much telemetry: see its report"
_IS_GONE: Final = "its telemetry is no longer in memory"
_UNREADABLE: Final = "could not be read: the scheduler's log says why"

_NO_BOKEH: Final = "Reports need dask-otel[report] where the scheduler runs"


class Pages:
    """The pages of one bridge; the parameters are its parts."""

    def __init__(
        self, adapter: SchedulerAdapter, settled: SettledSpans, recorder: Recorder
    ) -> None:
        self._adapter, self._settled, self._recorder = adapter, settled, recorder
        self._live: bytes | None = None
        self._until = 0.0
        #: By span and its end, as it may go on: the headline of its report (None before it is
        #: made), and when it was first looked for.
        self._headlines: dict[tuple[str, float], tuple[str | None, float]] = {}
        # One page of a kind is made at a time: a report can take hundreds of megabytes.
        self._locks = asyncio.Lock(), asyncio.Lock()

    async def live(self) -> bytes | None:
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

    async def report(self, span_id: str) -> bytes | None:
        """Return the report of a span; None if it is unknown, or no longer in memory."""
        times = self._settled.times(span_id)
        if times is None:
            return None
        async with self._locks[1]:
            return await _made(partial(self._html, span_id, *times))

    def _html(self, span_id: str, start: float, ended: float) -> bytes | None:
        if find_spec("bokeh") is None:
            raise ImportError("bokeh is missing")
        return _read(True, [self._asked(span_id, start, ended)]) or None

    def _asked(self, span_id: str, start: float, ended: float) -> Asked:
        """Return what the report of a span is made of: the rows of its time."""
        rows, lost = self._recorder.since(start, ended + _SETTLES)
        return span_id, [row for row in rows if row[0] != "graph"], lost

    def _page(self, facts: dict[str, Any]) -> bytes:
        """Add the headlines of runs that have ended, and return the page. In a thread.

        They come in turn, with one look after the other.
        """
        known, self._headlines = self._headlines, {}
        now, room = facts["time"], ROOM
        asked: dict[tuple[str, float], Asked] = {}
        runs = [((one["id"], one["ended"]), one) for one in facts["ended"]]
        for run, one in runs:
            title, seen = known.get(run, (None, now))
            if title is None and room > 0 and now >= one["ended"] + _SETTLES:
                found = self._asked(one["id"], one["start"], one["ended"])
                size = sum(len(data) for _, data in found[1])
                if size > LARGE:
                    title = _IS_LARGE
                else:
                    room -= size
                    asked[run] = found
            self._headlines[run] = title, seen
        for run, made in zip(asked, _titles([*asked.values()]), strict=True):
            _, seen = self._headlines[run]
            # Until then, its rows may be on their way.
            is_gone = now >= seen + _SETTLES
            self._headlines[run] = made or (_IS_GONE if is_gone else None), seen
        for run, one in runs:
            one["headline"], _ = self._headlines[run]
        # Here, because it imports much.
        from dask_otel.report.page.html import live_page

        return live_page(facts).encode("utf-8", "replace")


def _titles(asked: Sequence[Asked]) -> Sequence[str | None]:
    """Return the headlines of reports; None of a span that is not in its rows."""
    try:
        found: list[str | None] = json.loads(_read(False, asked)) if asked else []
    except (OSError, RuntimeError):
        logger.warning("dask-otel can't read the headlines of runs", exc_info=True)
        return [_UNREADABLE] * len(asked)
    return found


def _read(as_page: bool, asked: Sequence[Asked]) -> bytes:
    """Return what the process of a report answers; see `dask_otel.report.child.answer`."""
    with started("dask_otel.report.child", _LIMIT, stdin=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        sizes = [
            (span_id, [(signal, len(data)) for signal, data in rows], lost)
            for span_id, rows, lost in asked
        ]
        try:
            process.stdin.write(json.dumps([as_page, sizes]).encode() + b"\n")
            process.stdin.writelines(data for _, rows, _ in asked for _, data in rows)
            process.stdin.flush()
        except BrokenPipeError:
            # It ended before it had read all: its status says why. The rest would be written again.
            with suppress(BrokenPipeError):
                process.stdin.close()
        found = process.stdout.read()
        if status := process.wait():
            raise RuntimeError(f"the process of the report ended with status {status}")
        return found


async def _made(make: Callable[[], Made]) -> Made:
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
        self.finish(page)
