"""Adds our series to the scheduler's own HTTP server while the bridge runs.

``/metrics`` is Dask's page. It serves the registry of the process, which all schedulers and
workers in the process share. So our series are not in that registry: they are appended to the
page of *this* scheduler. ``/metrics/otel`` has our series alone.

Both are routes before the server's own, and are removed at close. No new port is opened.
"""

from __future__ import annotations

import asyncio
import inspect
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from distributed.http.utils import RequestHandler

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

    from dask_otel._dask.boundary import ErrorBoundary
    from dask_otel._prometheus.page import MetricPage

#: Below Dask's own page.
SUFFIX: Final = "/otel"
_ASKS_FOR_OPENMETRICS: Final = "application/openmetrics-text"


async def _rendered(
    page: MetricPage, openmetrics: bool = False, target_info: bool = False
) -> bytes:
    # Thousands of series take a tenth of a second: too long for the event loop.
    render = partial(page.render, openmetrics=openmetrics, target_info=target_info)
    return await asyncio.get_running_loop().run_in_executor(None, render)


class OtelMetricsHandler(RequestHandler):  # type: ignore[misc]  # Dask's class is untyped
    """``/metrics/otel``: our series alone, in the format that the scraper requests."""

    def initialize(self, page: MetricPage) -> None:
        """See ``tornado.web.RequestHandler.initialize``."""
        self._page = page

    async def get(self) -> None:
        """Answer a scrape."""
        # Imported here, because this extra may not be installed.
        from dask_otel._prometheus import page as prometheus

        openmetrics = _ASKS_FOR_OPENMETRICS in self.request.headers.get("Accept", "")
        self.write(await _rendered(self._page, openmetrics, target_info=True))
        self.set_header("Content-Type", prometheus.OPENMETRICS if openmetrics else prometheus.TEXT)


def _extended(original: type[Any], page: MetricPage, boundary: ErrorBoundary) -> type[Any]:
    """Return Dask's handler with our series at the end of its page."""

    class MetricsHandler(original):  # type: ignore[misc]
        async def get(self) -> None:
            ours = b""
            with boundary.guarding("metrics page"):
                ours = await _rendered(page)
            answer = super().get()
            if inspect.isawaitable(answer):
                await answer
            self.write(ours)

    return MetricsHandler


class MetricRoutes:
    """Our series on the HTTP server of one scheduler.

    `boundary` catches our errors on Dask's page, so that it always has Dask's own series.
    """

    def __init__(self, scheduler: Scheduler, boundary: ErrorBoundary) -> None:
        self._application = scheduler.http_application
        self._boundary = boundary
        self._rules: list[Any] = []

    def add(self, page: MetricPage) -> str:
        """Add the routes; return the path of our own page.

        Raises
        ------
        LookupError
            If the server has no ``/metrics`` page. No route is added then.
        """
        from distributed.http.scheduler.prometheus import routes

        ((_, handler, _),) = routes
        own = [rule for rule in self._application.wildcard_router.rules if rule.target is handler]
        if not own:
            raise LookupError(
                "this scheduler's HTTP server has no /metrics page; have "
                "distributed.http.scheduler.prometheus in distributed.scheduler.http.routes"
            )
        # Only the rule has the prefix of the server's pages.
        path: str = own[0].matcher.regex.pattern.rstrip("$")
        rules = self._application.default_router.rules
        before = list(rules)
        self._application.add_handlers(
            ".*$",
            [
                (path, _extended(handler, page, self._boundary), own[0].target_kwargs),
                (path + SUFFIX, OtelMetricsHandler, {"page": page}),
            ],
        )
        self._rules = [rule for rule in rules if rule not in before]
        return path + SUFFIX

    def remove(self) -> None:
        """Remove the routes."""
        rules = self._application.default_router.rules
        rules[:] = [rule for rule in rules if rule not in self._rules]
        self._rules = []
