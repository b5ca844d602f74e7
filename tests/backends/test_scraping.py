"""A real Prometheus that scrapes the scheduler has what one has that gets OTLP."""

from __future__ import annotations

from typing import Any

import pytest

from dask_otel.core import identity

from .scraping import PAGES, Scraped

pytestmark = [pytest.mark.backend, pytest.mark.cluster]

#: Seconds pass, and exports are counted, also where nothing happens.
MOVING = ("dask_cluster_time_", "dask_cluster_capacity_", "dask_otel_", "dask_event_loop_")


@pytest.mark.parametrize("job", PAGES)
def test_the_same_series_with_the_same_values(scraped: Scraped, job: str) -> None:
    run = scraped.pushed
    pushed = scraped.series(run.prometheus, run.at)
    there = scraped.series(scraped.scraped, scraped.at, job=job)
    assert {_normal(key) for key in there} == {_normal(key) for key in pushed}
    still = {_normal(k): v for k, v in pushed.items() if not k[0].startswith(MOVING)}
    assert len(still) > 100
    assert still == {_normal(k): v for k, v in there.items() if _normal(k) in still}


def _normal(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """A series with its bucket as a number: OTLP gives ``le="1"``, a scrape ``le="1.0"``."""
    name, *labels = key
    return (name, *[(k, float(v) if k == "le" else v) for k, v in labels])


def test_exemplars_come_with_the_page_of_our_own(scraped: Scraped) -> None:
    between = (scraped.pushed.started, scraped.pushed.at + 60)
    name = scraped.pushed.selector(
        "dask_span_execute_time_seconds_total", dask_span_name="nightly/compute"
    )
    found = scraped.scraped.exemplars(name, *between)
    ids = scraped.pushed.ids
    assert found == {
        (f"{identity.trace_id(ids['nightly']):032x}", f"{identity.span_id(ids['compute']):016x}")
    }


def test_created_times_let_increase_see_the_first_value(scraped: Scraped) -> None:
    selector = scraped.pushed.selector(
        "dask_span_execute_time_seconds_total", dask_span_name="nightly/load", job="alone"
    )
    samples = scraped.scraped.query(f"{selector}[10m]", scraped.at)
    assert samples
    assert {one.points[0][1] for one in samples} == {0.0}
    truth = sum(
        v for k, v in scraped.pushed.values.items() if k[0] == "nightly/load" and k[4] == "seconds"
    )
    # From the first 0 on nothing is missing. Prometheus extrapolates to the end of the range, by at
    # most 1.1 times the mean time between two points.
    most = truth * (1 + 1.1 / (min(len(one.points) for one in samples) - 1))
    assert (
        truth * 0.999
        <= scraped.scraped.value(f"sum(increase({selector}[10m]))", scraped.at)
        <= most
    )
