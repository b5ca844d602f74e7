"""Logs once that names or series are folded, and which setting helps."""

from __future__ import annotations

from typing import Final

from dask_otel import semconv
from dask_otel._log import logger
from dask_otel.pump.destination import Notices
from dask_otel.settings.keys import MetricSettings

#: By what is folded; with the limit, and the first one beyond it.
_MESSAGES: Final = {
    "names": "dask-otel: metrics have more than %d span names (otel.metrics.max-names). Further "
    "ones, such as %r, are counted under _OTHER, so that no sum is wrong. Where names hold ids or "
    "dates, take them out with otel.metrics.name-rules, or use otel.metrics.span-label: root.",
    "series": "dask-otel: a metric has more than %d series (otel.metrics.max-series), first %s. "
    "Further ones are counted under _OTHER, so that no sum is wrong. Leave out names that you "
    "don't need with otel.metrics.prefixes or otel.metrics.span-names, or raise the limit.",
    "tags": "dask-otel: a label of otel.metrics.tag-attributes has more than %d values "
    "(otel.metrics.max-names). Further ones, such as %r, are counted under _OTHER. A tag with an "
    "id in it makes no good label.",
}
_MORE: Final = (
    " This is logged once; dask.otel.folded counts them. "
    "See https://dask-otel.readthedocs.io/en/stable/cardinality.html"
)


class FoldAdvice:
    """Logs one warning for each cap that is reached. Several metric lanes may share it."""

    def __init__(self, settings: MetricSettings, notices: Notices) -> None:
        self._notices = notices
        self._warned: set[str] = set()
        self._limits = {
            "names": settings.max_names,
            "series": settings.max_series,
            "tags": settings.max_names,
        }

    def __call__(self, kind: str, what: str) -> None:
        """Record that the cap of this kind has folded something."""
        if kind in self._warned:
            return
        self._warned.add(kind)
        self._notices.append((semconv.OTEL_FOLDING, {semconv.OTEL_KIND: kind}))
        logger.warning(_MESSAGES[kind] + _MORE, self._limits[kind], what)
