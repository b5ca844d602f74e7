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
from dask_otel.core.records import MetricRecord, NumberPoint
from dask_otel.semconv import METRICS
from tests.backends import prometheus_names
from tests.limits import make_state
from tests.unit.metric_states import START, S

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
    families = (parse_openmetrics if openmetrics else parse_text)(text)
    found = [sample for family in families for sample in family.samples]
    named = {(sample.name, *sorted(sample.labels.items())): sample for sample in found}
    assert len(named) == len(found)
    return named


def key(name: str, **labels: str) -> tuple[object, ...]:
    return (name, *sorted((labels | PROMOTED).items()))


def collected(*batches: MetricBatch) -> MetricPage:
    page, state = MetricPage(RESOURCE), make_state(START)
    for number, batch in enumerate(batches, 1):
        batch.time_ns = START + number * S
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
    names = {name for name, *_ in samples(collected(one_of_each()), openmetrics=openmetrics)}
    expected = {name for metric in METRICS.values() for name in prometheus_names.names(metric)}
    assert {name for name in names if not name.endswith("_created")} == expected


def test_a_ratio_and_unknown_units() -> None:
    page = MetricPage({})
    kinds = {"dask.worker.cpu.utilization": "gauge", "dask.some.level": "updowncounter"}
    point = NumberPoint({"dask.worker.name": "a-b"}, 1, 2, 0.25)
    records = [MetricRecord(n, "1", "", kind, "cumulative", (point,)) for n, kind in kinds.items()]
    page.send(records, 60)
    labels = ("dask_worker_name", "a-b")
    assert {k: s.value for k, s in samples(page, openmetrics=True).items()} == {
        ("dask_worker_cpu_utilization_ratio", labels): 0.25,
        ("dask_some_level", labels): 0.25,
    }


def test_a_counter_has_its_last_value_and_no_zero_point() -> None:
    series = (semconv.SPAN_IDLE_TIME.name, ("nightly", "load"))
    page = collected(*(MetricBatch(increments={series: value}) for value in (1.5, 2.0)))
    labels = {"dask_span_name": "nightly/load", "dask_span_root_name": "nightly"}
    name = "dask_span_idle_time_seconds"
    total, created = key(f"{name}_total", **labels), key(f"{name}_created", **labels)
    for openmetrics in (False, True):
        found = {k: s.value for k, s in samples(page, openmetrics=openmetrics).items()}
        begin = {created: pytest.approx(START / 1e9, abs=0.01)} if openmetrics else {}
        assert {k: v for k, v in found.items() if k[0].startswith(name)} == {total: 3.5, **begin}


def test_a_histogram_has_its_buckets_and_an_exemplar_in_one_of_them() -> None:
    """The exemplar stays until the next, and is in OpenMetrics alone."""
    series = (semconv.SPAN_DURATION.name, (("nightly",), "success"))
    page = collected(
        *(MetricBatch(observations=[Observation(*series, value, IDS)]) for value in (0.5, 2.0)),
        MetricBatch(levels={(semconv.OTEL_RUNNING.name,): 1}),
    )
    of = {
        "dask_span_name": "nightly",
        "dask_span_root_name": "nightly",
        "dask_span_result": "success",
    }
    found = samples(page, openmetrics=True)
    name = "dask_span_duration_seconds"
    buckets = {float(dict(k[1:])["le"]): s for k, s in found.items() if k[0] == f"{name}_bucket"}
    assert {bound: s.value for bound, s in buckets.items()} == {
        bound: (bound >= 0.5) + (bound >= 2.0) for bound in (*semconv.DURATION_BOUNDS, math.inf)
    }
    exemplars = [(k, e.labels, e.value) for k, s in buckets.items() if (e := s.exemplar)]
    assert exemplars == [(5.0, {"trace_id": f"{0xABC:032x}", "span_id": f"{0xDEF:016x}"}, 2.0)]
    sums = [found[key(f"{name}_{what}", **of)].value for what in ("count", "sum")]
    assert (sums, b"trace_id" in page.render()) == ([2, 2.5], False)


def test_the_resource_is_told_once() -> None:
    known = {
        "service_name": "dask-scheduler",
        "service_version": "2026.8.0",
        "dask_cluster_name": "nightly",
        "process_command_args": '["dask", "scheduler"]',
    }
    found = samples(MetricPage(RESOURCE), openmetrics=True, target_info=True)
    assert [*found] == [("target_info", *sorted(known.items()))]
    assert samples(MetricPage(RESOURCE)) == {}


@given(st.dictionaries(st.text(), st.floats(0, 1e12), max_size=5), st.booleans())
def test_any_text_of_users_comes_back_as_it_was(
    values: dict[str, float], openmetrics: bool
) -> None:
    state, page = make_state(START), MetricPage({})
    name = semconv.CLUSTER_TIME.name
    state.apply(MetricBatch(increments={(name, text): value for text, value in values.items()}))
    records = list(state.collect(START + S))
    page.send(records, 60)
    points = [point for record in records if record.name == name for point in record.points]
    found = {
        dict(k[1:])["dask_activity"]: sample.value
        for k, sample in samples(page, openmetrics=openmetrics).items()
        if k[0] == "dask_cluster_time_seconds_total"
    }
    assert found == {point.attributes["dask.activity"]: point.value for point in points}
