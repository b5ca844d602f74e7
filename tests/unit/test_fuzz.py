"""What `make fuzz` runs, and what a million inputs found."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from distributed.core import Status
from distributed.scheduler import WorkerState
from fuzz.properties import PROPERTIES, property_of

from dask_otel import semconv
from dask_otel._dask.clients import MOST, ClientBlocks
from dask_otel._dask.workers.samples import WorkerSamples
from dask_otel._otel.sdk.environment import count, number
from dask_otel.core.masking import Mask
from dask_otel.core.metrics.batch import Batches, MetricBatch
from dask_otel.core.text import Sanitizer
from dask_otel.core.traces.translate import translate
from dask_otel.settings.keys import ConfigurationError
from dask_otel.settings.origins import settings_in_force
from dask_otel.settings.reading import read_settings
from tests.limits import make_limits, make_state
from tests.unit.finished import make_span
from tests.unit.garbage import Pretender
from tests.unit.metric_states import START, shown


@pytest.mark.parametrize("name", PROPERTIES)
def test_bytes_are_arguments_of_a_property(name: str) -> None:
    assert property_of(name)(b"\1" * 8192) is not None


# ------------------------------------------------------------------------------ what was found


def test_finite_seconds_with_an_infinite_sum_are_left_out():
    """Two activities with one name in the attribute."""
    sanitizer = Sanitizer()
    (record,) = translate(make_span(activities={"a b": 1e308, "a/b": 1e308}), sanitizer=sanitizer)
    assert not [key for key in record.attributes if key.startswith("dask.span.activity.time.")]
    assert sanitizer.counts["value"] == 1


def blocks_of(client: str) -> ClientBlocks:
    known = {client: SimpleNamespace(last_seen=0.0)}
    return ClientBlocks(SimpleNamespace(clients=known), SimpleNamespace(open={}), make_limits())


@pytest.mark.parametrize(
    ("message", "wrong", "entered"),
    [
        # A line without sense costs no other line,
        *(
            ({"client": "me", "blocks": [["entered", "a"], line, ["entered", "b"]]}, 1, ["a", "b"])
            for line in (
                *(None, 7, "ab", [], ["entered"], ["entered", 7]),
                *(["entered", "a", "b"], ["left", 7], [[], "a"]),
            )
        ),
        # and attributes no block.
        *(
            ({"client": "me", "blocks": [["entered", "a"]], "attributes": given}, wrong, ["a"])
            for given, wrong in (
                *((None, 0), (7, 1), ("text", 1), (["a"], 1), ({7: {"a": 1}}, 1)),
                ({"x": None}, 1),
            )
        ),
        *((message, 1, []) for message in (None, 7, "text", [], {}, {"client": []})),
        ({"client": "me"}, 1, []),
    ],
)
def test_what_has_no_sense_in_a_message_is_counted_and_costs_nothing_else(message, wrong, entered):
    blocks = blocks_of("me")
    assert blocks.handle_message(message, 0.0) == wrong
    assert [*blocks.blocks._waiting] == entered


def test_a_huge_message_is_read_in_part():
    blocks, many = blocks_of("me"), MOST + 7
    message = {
        "client": "me",
        "blocks": [["entered", str(number)] for number in range(many)],
        "attributes": {str(number): {"a": 1} for number in range(many)},
    }
    assert blocks.handle_message(message, 0.0) == 14
    assert str(MOST - 1) in blocks.blocks._waiting
    assert str(MOST) not in blocks.blocks._waiting


def test_a_number_of_thousands_of_digits_is_a_mistake_in_the_configuration(monkeypatch):
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "9" * 5000)
    with pytest.raises(ConfigurationError) as caught:
        count("OTEL_BSP_MAX_QUEUE_SIZE", 1)
    assert len(str(caught.value)) < 400


def test_a_time_that_no_clock_can_wait_for_is_never(monkeypatch):
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1e300")
    assert number(0, "milliseconds", "OTEL_BSP_SCHEDULE_DELAY") == 1e11


@pytest.mark.parametrize("key", ["cluster-name", "trace-url", "spans.baggage"])
def test_a_value_that_lies_about_being_text_is_the_text_that_it_is(key):
    """Such as a member of an enum that is text, which shows itself otherwise."""
    text = "https://h/{trace_id}" if key == "trace-url" else "a"
    given = Pretender(text)
    settings = read_settings({key: [given] if key == "spans.baggage" else given})
    assert text in {one.key: one.value for one in settings_in_force(settings)}[f"otel.{key}"]


def worker(name: str, metrics: dict[str, Any]) -> Any:
    """Return what a scheduler has of a worker."""
    made: Any = WorkerState(
        address=f"tcp://{name}:1", status=Status.running, pid=0, nthreads=2, memory_limit=0,
        name=name, local_directory="", services={}, versions={}, nanny="", extra={},
        server_id=name, scheduler=None,
    )  # fmt: skip
    made.metrics = metrics
    made._occupancy_cache = 1.0
    return made


def sampled(*workers: Any) -> MetricBatch:
    """Return what is exported of workers."""
    scheduler: Any = SimpleNamespace(
        workers={f"tcp://{number}": one for number, one in enumerate(workers)}
    )
    batches = Batches()
    for _ in WorkerSamples(scheduler, 10).sample(batches):
        pass
    return batches.open


GOOD = {"memory": 100, "spilled_bytes": {"memory": 0, "disk": 7}, "cpu": 50.0}


@pytest.mark.parametrize(
    "wrong",
    [
        {"cpu": "high"},
        {"cpu": 10**400},
        {"cpu": float("nan")},
        {"memory": "much"},
        {"spilled_bytes": 7},
        {"spilled_bytes": {"memory": 0, "disk": [1]}},
    ],
)
def test_a_worker_that_reports_no_numbers_costs_no_other_its_metrics(wrong: dict) -> None:
    """Metrics of workers are functions, which users can replace."""
    workers = worker("bad", {**GOOD, **wrong}), worker("good", GOOD)
    batch = sampled(*workers)
    assert batch.levels[semconv.WORKER_MEMORY_SPILLED.name, "good"] == 7
    assert batch.levels[semconv.WORKER_CPU_UTILIZATION.name, "good"] == 0.25
    assert batch.levels[semconv.WORKER_THREAD_COUNT.name, "bad"] == 2
    assert batch.increments == {(semconv.OTEL_SANITIZED.name, "value"): 1}
    assert batch.levels[(semconv.CLUSTER_SPILL_SIZE.name,)] in (7, 14)


def test_workers_of_any_names_are_summed_and_none_is_taken_for_another() -> None:
    names: list[Any] = ["", "_EMPTY", "a\0b", "a\ufffdb", 1, "1", "alone"]
    state = make_state(START)
    state.apply(sampled(*(worker(name, GOOD) for name in names)))
    found = shown(state)
    assert found[semconv.WORKER_THREAD_COUNT.name] == {
        ("_EMPTY",): 4, ("a\ufffdb",): 4, ("1",): 4, ("alone",): 2,
    }  # fmt: skip
    # What has no meaningful sum is told of those alone that have their name to themselves.
    assert found[semconv.WORKER_OCCUPANCY.name].keys() == {("alone",)}


def test_a_long_text_takes_no_time_to_mask() -> None:
    """From each character on, an address was looked for: it took for ever."""
    assert Mask()("x" * 1_000_000) == "x" * 1_000_000
