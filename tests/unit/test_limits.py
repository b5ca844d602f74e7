"""The core's limits by the settings."""

from __future__ import annotations

import pytest

from dask_otel.core.life.open_span import Limits, TaskLimits
from dask_otel.scheduler.bridge import limits_of
from dask_otel.settings.reading import read_settings

SPANS = {
    "path": False,
    "memory": False,
    "linger": "3s",
    "settle-timeout": "4s",
    "max-groups": 5,
    "trace-gap": "6s",
    "max-per-trace": 70,
    "max-exceptions": 8,
    "remember": 90,
    "progress-after": "10s",
    "progress-interval": "11s",
    "tasks": {"slowest": 12, "ratio": 0.25, "max": 14},
}


@pytest.mark.parametrize(("detail", "slowest"), [("group", 12), ("span", 0)])
def test_each_limit_has_its_setting(detail: str, slowest: int) -> None:
    settings = read_settings({"spans": SPANS | {"detail": detail}})
    assert limits_of(settings) == Limits(
        linger=3.0,
        settle_timeout=4.0,
        max_groups=5,
        trace_gap=6.0,
        max_per_trace=70,
        max_exceptions=8,
        remember=90,
        progress_after=10.0,
        progress_interval=11.0,
        groups=detail == "group",
        tasks=TaskLimits(slowest=slowest, ratio=0.25, most=14),
        path=False,
        graph=False,
        memory=False,
    )
