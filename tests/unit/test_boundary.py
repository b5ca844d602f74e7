"""Where errors end: nothing leaves, also where counting and telling fail."""

from __future__ import annotations

import logging
from unittest.mock import Mock

import pytest

from dask_otel._dask.boundary import ErrorBoundary


def test_an_error_is_counted_and_told_once_for_each_kind(caplog: pytest.LogCaptureFixture) -> None:
    boundary = ErrorBoundary()
    for kind in ("tick", "tick", "metrics"):
        try:
            raise KeyError(kind)
        except KeyError:
            boundary.failed(kind)
    assert [boundary.take(), boundary.take()] == [{"tick": 2, "metrics": 1}, {}]
    assert len(caplog.records) == 2


def test_an_error_ends_here_also_where_there_is_no_memory_to_tell_of_it() -> None:
    boundary, starved = ErrorBoundary(), Mock(filter=Mock(side_effect=MemoryError))
    logger = logging.getLogger("distributed.dask_otel")
    logger.addFilter(starved)
    try:
        boundary.failed("tick")
    finally:
        logger.removeFilter(starved)
    assert boundary.take() == {"tick": 1}
