"""Adds our pages to the scheduler's own HTTP server while the bridge runs.

``/otel`` is the page of spans, `dask_otel.scheduler.live_page`.

``/metrics`` is Dask's page. It serves the registry of the process, which all schedulers and
workers in the process share. So our series are not in that registry: they are appended to the
page of *this* scheduler. ``/metrics/otel`` has our series alone.

All are routes before the server's own, and are removed at close. No new port is opened.
"""

from __future__ import annotations

import asyncio
import inspect
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urljoin

from distributed.comm import get_address_host
from distributed.http.utils import RequestHandler
from distributed.utils import format_dashboard_link

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

    from dask_otel._dask.boundary import ErrorBoundary
    from dask_otel._prometheus.page import MetricPage

#: Below the prefix, and below Dask's own page.
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


class Routes:
    """Our pages on the HTTP server of one scheduler.

    `boundary` catches our errors on Dask's page, so that it always has Dask's own series.
    """

    def __init__(self, scheduler: Scheduler, boundary: ErrorBoundary) -> None:
        self._scheduler = scheduler
        self._application = scheduler.http_application
        self._boundary = boundary
        self._rules: list[Any] = []

    def add_metrics(self, page: MetricPage) -> str:
        """Add our series to Dask's page, and a page of their own; return its path.

        Raises
        ------
        LookupError
            If the server has no ``/metrics`` page. No route is added then.
        """
        path, rule = self._metrics()
        self._add(
            (path, _extended(rule.target, page, self._boundary), rule.target_kwargs),
            (path + SUFFIX, OtelMetricsHandler, {"page": page}),
        )
        return path + SUFFIX

    def add_page(self, handler: type[Any], **options: Any) -> str:
        """Add the page of spans and their reports below it; return its address.

        The `handler` gets the `options`, and the `span_id` of a report.

        Raises
        ------
        LookupError
            As `add_metrics`.
        """
        prefix = self._metrics()[0].removesuffix("/metrics")
        self._add((f"{prefix}{SUFFIX}(?:/report/(?P<span_id>.+))?", handler, options))
        try:
            link: str = format_dashboard_link(
                get_address_host(self._scheduler.address), self._scheduler.http_server.port
            )
        except KeyError:
            # Its template names a variable of the environment that is not set.
            return prefix + SUFFIX
        # The template need not know the prefix.
        return urljoin(link, SUFFIX[1:] if prefix in link else prefix + SUFFIX)

    def _metrics(self) -> tuple[str, Any]:
        """Return the path of Dask's page of metrics, and its rule: only that has the prefix."""
        from distributed.http.scheduler.prometheus import routes

        ((_, handler, _),) = routes
        for rule in self._application.wildcard_router.rules:
            if rule.target is handler:
                return rule.matcher.regex.pattern.rstrip("$"), rule
        raise LookupError(
            "this scheduler's HTTP server has no /metrics page; have "
            "distributed.http.scheduler.prometheus in distributed.scheduler.http.routes"
        )

    def _add(self, *handlers: tuple[str, type[Any], Any]) -> None:
        rules = self._application.default_router.rules
        before = list(rules)
        self._application.add_handlers(".*$", [*handlers])
        self._rules += [rule for rule in rules if rule not in before]

    def remove(self) -> None:
        """Remove the routes."""
        rules = self._application.default_router.rules
        rules[:] = [rule for rule in rules if rule not in self._rules]
