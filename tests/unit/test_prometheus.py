"""What a scraper reads is what was collected, under the names that Prometheus makes of OTLP."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from dask_otel import semconv
from dask_otel._prometheus.page import MetricPage
from dask_otel.core.metrics.batch import MetricBatch, Observation
from dask_otel.core.metrics.state import MetricState
from dask_otel.core.records import MetricRecord, NumberPoint
from dask_otel.semconv import METRICS

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND
IDS = (0xABC, 0xDEF)
RESOURCE = {
    "service.name": "dask-scheduler",
    "service.version": "2026.8.0",
    "dask.cluster.name": "nightly",
    "process.command_args": ("dask", "scheduler"),
}
PROMOTED = {"dask_cluster_name": "nightly", "service_version": "2026.8.0"}


def samples(page: MetricPage, *, openmetrics: bool = False, target_info: bool = False):
    """Everything on the page: {(name, labels): sample}; it must parse, and name each once."""
    text = page.render(openmetrics=openmetrics, target_info=target_info).decode()
    found = {}
    for family in (parse_openmetrics if openmetrics else parse_text)(text):
        for sample in family.samples:
            key = (sample.name, *sorted(sample.labels.items()))
            assert key not in found
            found[key] = sample
    return found


def key(name: str, **labels: str) -> tuple[object, ...]:
    return (name, *sorted((labels | PROMOTED).items()))


def collected(*batches: MetricBatch) -> MetricPage:
    page, state = MetricPage(RESOURCE), MetricState(START)
    for number, batch in enumerate(batches, 1):
        batch.time_ns = START + number * SECOND
        state.apply(batch)
        page.send(list(state.collect(batch.time_ns)), 60)
        state.settled(True)
    return page


def one_of_each() -> MetricBatch:
    """One series of each metric there is, with the label values l0, l1, …"""
    batch = MetricBatch()
    for metric in METRICS.values():
        labels = tuple(
            ("root", "leaf") if label == semconv.SPAN else f"l{number}"
            for number, label in enumerate(metric.labels)
        )
        if metric.instrument == "histogram":
            batch.observations.append(Observation(metric.name, labels, 2.0, IDS))
        elif metric.instrument == "counter":
            batch.increments[(metric.name, *labels)] = 3
        else:
            batch.levels[(metric.name, *labels)] = 3
    return batch


@pytest.mark.parametrize("openmetrics", [False, True])
def test_every_metric_has_the_name_that_prometheus_makes_of_otlp(openmetrics: bool) -> None:
    from tests.backends import prometheus_names

    names = {
        str(sample[0]) for sample in samples(collected(one_of_each()), openmetrics=openmetrics)
    }
    expected = {name for metric in METRICS.values() for name in prometheus_names.names(metric)}
    assert {name for name in names if not name.endswith("_created")} == expected


def test_a_ratio_and_unknown_units() -> None:
    page = MetricPage({})
    point = NumberPoint({"dask.worker.name": "a-b"}, 1, 2, 0.25)
    page.send(
        [
            MetricRecord("dask.worker.cpu.utilization", "1", "", "gauge", "cumulative", (point,)),
            MetricRecord("dask.some.level", "1", "", "updowncounter", "cumulative", (point,)),
        ],
        60,
    )
    labels = ("dask_worker_name", "a-b")
    assert {k: s.value for k, s in samples(page, openmetrics=True).items()} == {
        ("dask_worker_cpu_utilization_ratio", labels): 0.25,
        ("dask_some_level", labels): 0.25,
    }


def test_a_counter_has_its_last_value_and_no_zero_point() -> None:
    series = (semconv.SPAN_IDLE_TIME.name, ("nightly", "load"))
    page = collected(MetricBatch(increments={series: 1.5}), MetricBatch(increments={series: 2.0}))
    labels = {"dask_span_name": "nightly/load", "dask_span_root_name": "nightly"}
    found = samples(page)
    assert found[key("dask_span_idle_time_seconds_total", **labels)].value == 3.5
    assert not [name for name, *_ in found if name.endswith("_created")]
    created = samples(page, openmetrics=True)[key("dask_span_idle_time_seconds_created", **labels)]
    assert created.value == pytest.approx(START / 1e9, abs=0.01)


def test_a_histogram_has_its_buckets_and_an_exemplar_in_one_of_them() -> None:
    labels = (("nightly",), "success")
    points = [
        Observation(semconv.SPAN_DURATION.name, labels, value, IDS) for value in (0.5, 2.0, 1e6)
    ]
    page = collected(MetricBatch(observations=points[:1]), MetricBatch(observations=points[1:2]))
    of = {
        "dask_span_name": "nightly",
        "dask_span_root_name": "nightly",
        "dask_span_result": "success",
    }
    found = samples(page, openmetrics=True)
    buckets = {
        float(dict(k[1:])["le"]): sample
        for k, sample in found.items()
        if k[0] == "dask_span_duration_seconds_bucket"
    }
    assert list(buckets) == [*semconv.DURATION_BOUNDS, math.inf]
    assert {bound: s.value for bound, s in buckets.items() if bound <= 5} == {
        0.1: 0, 0.5: 1, 1.0: 1, 5.0: 2,
    }  # fmt: skip
    assert buckets[math.inf].value == 2
    assert {bound for bound, s in buckets.items() if s.exemplar} == {5.0}
    assert found[key("dask_span_duration_seconds_count", **of)].value == 2
    assert found[key("dask_span_duration_seconds_sum", **of)].value == 2.5


def test_an_exemplar_stays_until_the_next_and_is_in_openmetrics_alone() -> None:
    series = (semconv.SPAN_DURATION.name, (("a",), "success"))
    page = collected(
        MetricBatch(observations=[Observation(*series, 2.0, IDS)]),
        MetricBatch(levels={(semconv.OTEL_RUNNING.name,): 1}),
    )
    exemplars = [s.exemplar for s in samples(page, openmetrics=True).values() if s.exemplar]
    assert [(e.labels, e.value) for e in exemplars] == [
        ({"trace_id": f"{0xABC:032x}", "span_id": f"{0xDEF:016x}"}, 2.0)
    ]
    assert b"trace_id" not in page.render()


def test_rendering_changes_nothing() -> None:
    page = collected(one_of_each())
    first = page.render(openmetrics=True, target_info=True)
    assert page.render(openmetrics=True, target_info=True) == first
    assert page.render() == page.render()


def test_the_resource_is_told_once() -> None:
    found = samples(MetricPage(RESOURCE), openmetrics=True, target_info=True)
    ((name, *labels),) = found
    assert name == "target_info"
    assert dict(labels) == {
        "service_name": "dask-scheduler",
        "service_version": "2026.8.0",
        "dask_cluster_name": "nightly",
        "process_command_args": '["dask", "scheduler"]',
    }
    assert samples(MetricPage(RESOURCE)) == {}


@given(st.dictionaries(st.text(), st.floats(0, 1e12), max_size=5), st.booleans())
def test_any_text_of_users_comes_back_as_it_was(
    values: dict[str, float], openmetrics: bool
) -> None:
    state, page = MetricState(START), MetricPage({})
    name = semconv.CLUSTER_TIME.name
    state.apply(MetricBatch(increments={(name, text): value for text, value in values.items()}))
    records = list(state.collect(START + SECOND))
    page.send(records, 60)
    expected = {
        point.attributes["dask.activity"]: point.value
        for record in records
        if record.name == semconv.CLUSTER_TIME.name
        for point in record.points
    }
    found = {
        dict(k[1:])["dask_activity"]: sample.value
        for k, sample in samples(page, openmetrics=openmetrics).items()
        if k[0] == "dask_cluster_time_seconds_total"
    }
    assert found == expected
