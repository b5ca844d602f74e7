"""The scheduler's own HTTP server: our series on its pages, while the bridge lives.

``/metrics`` is Dask's page. It shows the registry of the process, which all schedulers and
workers in it share and which cannot know who asks; so our series are no part of that registry.
The page of *this* scheduler gets them appended to what Dask writes, and a second scheduler in
the process has only its own. ``/metrics/otel`` has our series alone.

Both are routes laid in front of the server's own, and taken away at the close. Nothing
listens on a port that did not before.
"""

from __future__ import annotations

import asyncio
import inspect
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from distributed.http.utils import RequestHandler

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

    from dask_otel._dask.boundary import Boundary

#: Below Dask's own page.
SUFFIX: Final = "/otel"
_ASKS_FOR_OPENMETRICS: Final = "application/openmetrics-text"


class Page(Protocol):
    """What is shown: `dask_otel._prometheus.page.MetricPage`."""

    def render(self, *, openmetrics: bool = False, target_info: bool = False) -> bytes:
        """Return the page as text; it may take a while."""


async def _rendered(page: Page, openmetrics: bool = False, target_info: bool = False) -> bytes:
    # Thousands of series take a tenth of a second, which the event loop does not have.
    render = partial(page.render, openmetrics=openmetrics, target_info=target_info)
    return await asyncio.get_running_loop().run_in_executor(None, render)


class OtelMetricsHandler(RequestHandler):  # type: ignore[misc]  # Dask's class is untyped
    """``/metrics/otel``: our series alone, in the format that the scraper asks for."""

    def initialize(self, page: Page) -> None:
        """See ``tornado.web.RequestHandler.initialize``."""
        self._page = page

    async def get(self) -> None:
        """Answer a scrape."""
        # Here, as this module is also imported where the extra is not installed.
        from dask_otel._prometheus import page as prometheus

        openmetrics = _ASKS_FOR_OPENMETRICS in self.request.headers.get("Accept", "")
        self.write(await _rendered(self._page, openmetrics, target_info=True))
        self.set_header("Content-Type", prometheus.OPENMETRICS if openmetrics else prometheus.TEXT)


def _extended(original: type[Any], page: Page, boundary: Boundary) -> type[Any]:
    """Return Dask's handler with our series at the end of its page."""

    class MetricsHandler(original):  # type: ignore[misc]
        async def get(self) -> None:
            ours = b""
            try:
                ours = await _rendered(page)
            except Exception:
                boundary.failed("metrics page")
            answer = super().get()
            if inspect.isawaitable(answer):
                await answer
            self.write(ours)

    return MetricsHandler


class MetricRoutes:
    """Our series on the HTTP server of one scheduler.

    Parameters
    ----------
    scheduler
        A scheduler with its HTTP server.
    page
        What is shown.
    boundary
        Takes errors of ours on Dask's page: Dask's own series are shown whatever happens.
    """

    def __init__(self, scheduler: Scheduler, page: Page, boundary: Boundary) -> None:
        self._application = scheduler.http_application
        self._page = page
        self._boundary = boundary
        self._rules: list[Any] = []

    def add(self) -> str:
        """Put the series on the server; return the path of our own page.

        Raises
        ------
        LookupError
            If the server has no ``/metrics`` page; there are no routes of ours then, either.
        """
        found = self._dasks_own()
        if found is None:
            raise LookupError(
                "this scheduler's HTTP server has no /metrics page; have "
                "distributed.http.scheduler.prometheus in distributed.scheduler.http.routes"
            )
        path, rule = found
        rules = self._application.default_router.rules
        before = list(rules)
        self._application.add_handlers(
            ".*$",
            [
                (path, _extended(rule.target, self._page, self._boundary), rule.target_kwargs),
                (path + SUFFIX, OtelMetricsHandler, {"page": self._page}),
            ],
        )
        self._rules = [rule for rule in rules if rule not in before]
        return path + SUFFIX

    def remove(self) -> None:
        """Take the series off again; Dask's page is what it was."""
        rules = self._application.default_router.rules
        for rule in self._rules:
            if rule in rules:
                rules.remove(rule)
        self._rules = []

    def _dasks_own(self) -> tuple[str, Any] | None:
        """Return path and rule of Dask's page. Its prefix is told nowhere but there."""
        from distributed.http.scheduler.prometheus import routes

        ((_, handler, _),) = routes
        for rule in self._application.wildcard_router.rules:
            if rule.target is handler:
                return rule.matcher.regex.pattern.rstrip("$"), rule
        return None
