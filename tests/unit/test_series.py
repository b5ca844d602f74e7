"""The contract's rules for metric points, one by one."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dask_otel import semconv
from dask_otel.core.metrics.batch import MetricBatch, Observation, SpanDeltas
from dask_otel.core.metrics.cardinality import SeriesLimits
from dask_otel.core.metrics.state import MetricState
from dask_otel.core.records import Exemplar
from dask_otel.core.text import Sanitizer, label_text
from tests.limits import make_series_limits, make_state
from tests.unit.metric_states import START, S, collect, durations, shown

CPU = ("execute", "load", "thread-cpu", "seconds")


def span_batch(values, tags=("workflow", "load"), time_ns=0) -> MetricBatch:
    return MetricBatch(time_ns, {"id": SpanDeltas(tags, (11, 22), dict(values))})


def signal_batch(*values) -> MetricBatch:
    """Increments of as many series of one counter."""
    series = [("dask.otel.exported", f"signal {number}") for number in range(len(values))]
    return MetricBatch(START, increments=dict(zip(series, values, strict=True)))


def worker_batch(values) -> MetricBatch:
    return MetricBatch(cluster_deltas=dict(values))


def points_of(state, name, seconds, ok=True) -> list[tuple[float, float, float]]:
    """Export, and return the points of a metric: (start, time, value)."""
    return [
        ((point.start_ns - START) / S, (point.time_ns - START) / S, point.value)
        for point in collect(state, seconds, ok).get(name, ())
    ]


@pytest.fixture
def state() -> MetricState:
    return make_state(START)


# ------------------------------------------------------------------------------ routing


#: Raw keys: the metric of each, and its labels.
OF_SPANS: list[tuple[Any, str, tuple[str, ...]]] = [
    (CPU, "dask.span.execute.time", ("load", "thread-cpu")),
    (("execute", "f", "disk-read", "bytes"), "dask.span.execute.io", ("f", "disk-read")),
    (("execute", "f", "x", "count"), "dask.span.execute.operations", ("f", "x")),
    (("execute", "f", ("weird", 1), "seconds"), "dask.span.execute.time", ("f", "('weird', 1)")),
    (("execute", "f", "", "seconds"), "dask.span.execute.time", ("f", "_EMPTY")),
    (("p2p", "foreground", "send", "seconds"), "dask.span.p2p.time", ("foreground", "send")),
    (
        ("p2p", "background-comms", "send", "bytes"),
        "dask.span.p2p.io",
        ("background-comms", "send"),
    ),
    (("p2p", "s", "a", "b", "count"), "dask.span.p2p.operations", ("s", "('a', 'b')")),
    (("execute", "f", "rows", "records"), "dask.span.custom", ("f", "rows", "records")),
    (("gpu", "f", "kernel", "seconds"), "dask.span.custom", ("f", "kernel", "seconds")),
    (("gpu", "seconds"), "dask.span.custom", ("_EMPTY", "gpu", "seconds")),
    (("gpu",), "dask.span.custom", ("_EMPTY", "gpu", "_EMPTY")),
    ((), "dask.span.custom", ("_EMPTY", "_EMPTY", "_EMPTY")),
    ("odd", "dask.span.custom", ("_EMPTY", "odd", "_EMPTY")),
]
OF_WORKERS = [
    (("gather-dep", "network", "seconds"), "dask.cluster.transfer.time", ("receive", "network")),
    (("get-data", "network", "seconds"), "dask.cluster.transfer.time", ("transmit", "network")),
    (("get-data", "serialize", "bytes"), "dask.cluster.transfer.io", ("transmit", "serialize")),
    (("get-data", "a", 1, "count"), "dask.cluster.transfer.operations", ("transmit", "('a', 1)")),
    (("memory-monitor", "disk-write", "seconds"), "dask.cluster.spill.time", ("disk-write",)),
    (("memory-monitor", "disk-write", "bytes"), "dask.cluster.spill.io", ("disk-write",)),
    (("memory-monitor", "disk-write", "count"), "dask.cluster.spill.operations", ("disk-write",)),
]


@pytest.mark.parametrize(
    ("batch", "metric", "labels"),
    [
        *(
            (span_batch({key: 3}), metric, ("workflow/load", "workflow", *labels))
            for key, metric, labels in OF_SPANS
        ),
        *((worker_batch({key: 3}), metric, labels) for key, metric, labels in OF_WORKERS),
    ],
)
def test_a_key_becomes_a_series(state, batch, metric, labels):
    state.apply(batch)
    assert shown(state, 10)[metric] == {labels: 3}


# ---------------------------------------------------------------------------- cumulative


@pytest.mark.parametrize(
    ("temporality", "exports"),
    [
        # A series begins with a zero point at the previous export.
        (
            "cumulative",
            [
                (None, (60, [])),
                (1.5, (120, [(59.999, 60, 0.0), (59.999, 120, 1.5)])),
                (None, (180, [(59.999, 180, 1.5)])),
            ],
        ),
        # It retires an hour after its last change, and returns from zero.
        (
            "cumulative",
            [
                (5.0, (60, [(-0.001, 0, 0.0), (-0.001, 60, 5.0)])),
                (None, (3600, [(-0.001, 3600, 5.0)])),
                (None, (3661, [])),
                (2.0, (3721, [(3660.999, 3661, 0.0), (3660.999, 3721, 2.0)])),
            ],
        ),
        # A first delta of zero, then what came.
        (
            "delta",
            [
                (5.0, (60, [(-0.001, 0, 0.0), (0, 60, 5.0)])),
                # A clock that stands still: no point is of no length.
                (3.0, (60, [(60, 60.002, 3.0)])),
                (None, (180, [])),
            ],
        ),
    ],
)
def test_the_points_of_a_series(temporality, exports):
    state = make_state(START, temporality=temporality)
    for value, (seconds, expected) in exports:
        state.apply(span_batch({} if value is None else {CPU: value}))
        assert points_of(state, TIME, seconds) == expected


@pytest.mark.parametrize("rejected", [False, True])
def test_a_zero_point_is_sent_at_most_once(state, rejected):
    state.apply(span_batch({CPU: 1.5}))
    list(state.collect(START + 60 * S))
    assert state.settled(False, rejected=rejected) is rejected
    assert points_of(state, TIME, 60.1) == [(-0.001, 60.1, 1.5)]
    list(state.collect(START + 120 * S))
    assert state.settled(False, rejected=True) is False, "nothing would change"


@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
def test_levels_go_up_and_down_without_zero_points(temporality):
    state = make_state(START, temporality=temporality)
    state.apply(MetricBatch(levels={("dask.cluster.worker.count",): 4}))
    for change in (2, -1):
        state.apply(MetricBatch(increments={("dask.span.active", ("a",)): change}))
    found = {record.name: record for record in state.collect(START + 60 * S)}
    assert {
        name: (record.temporality, [point.value for point in record.points])
        for name, record in found.items()
    } == {
        "dask.cluster.worker.count": ("cumulative", [4]),
        "dask.span.active": ("cumulative", [1]),
    }


def test_a_kept_series_exists_from_the_start(state):
    state.keep(("dask.otel.dropped", "traces", "queue_full"))
    assert points_of(state, "dask.otel.dropped", 60) == [(-0.001, 0, 0), (-0.001, 60, 0)]


# ----------------------------------------------------------------------------- retirement


@pytest.mark.parametrize("step", [-7200, 7200])
def test_hours_by_which_the_clock_is_set_make_no_series_old(state, step):
    state.apply(span_batch({CPU: 5.0}))
    shown = []
    for minute in range(1, 70):
        time_ns, age_ns = START + (60 * minute + (step if minute >= 5 else 0)) * S, 60 * minute * S
        shown.append(bool(list(state.collect(time_ns, None, age_ns))))
        state.settled(True)
    # An hour after its first export. Nothing is kept of it then.
    assert (shown, len(state._families._slots[0])) == ([True] * 60 + [False] * 9, 0)


ACTIVE = "dask.span.active"


def active(value) -> MetricBatch:
    return MetricBatch(increments={(ACTIVE, ("a",)): value})


THREADS, CPU_LEVEL = semconv.WORKER_THREAD_COUNT.name, semconv.WORKER_CPU_UTILIZATION.name
TRANSFER = semconv.CLUSTER_TRANSFER_TIME.name
GONE = [(THREADS, "a"), (CPU_LEVEL, "a")]


def worker_levels(value, ended=()) -> MetricBatch:
    levels = {} if value is None else {(THREADS, "a"): value, (CPU_LEVEL, "a"): 0.5}
    return MetricBatch(levels=levels, ended=list(ended))


TIME = semconv.SPAN_EXECUTE_TIME.name
LOAD = {TIME: {("workflow/load", "workflow", "load", "thread-cpu"): 5.0}}
TWICE = {TIME: {("workflow/load", "workflow", "load", "thread-cpu"): 10.0}}
FOLDED = {"dask.otel.folded": {("names",): 1}}
FOUR = {THREADS: {("a",): 4}, CPU_LEVEL: {("a",): 0.5}}
EIGHT = {THREADS: {("a",): 8}, CPU_LEVEL: {("a",): 0.5}}
ZERO = {THREADS: {("a",): 0}}
NO_LABELS = {"dask.otel.running": {(): 1}, "dask.otel.exported": {("traces",): 1}}


def named(**seconds) -> dict[tuple[str, ...], float]:
    """Return the series of spans of these names."""
    return {(name, name, "load", "thread-cpu"): value for name, value in seconds.items()}


#: Names that are one when they are clean, and some that are not.
NAMES = ["a\x00b", "a\ufffdb", "a\ud800b", "", "_EMPTY", "_OTHER", "w1", "w2", 1, "1", "y" * 300]
AGE = "dask.worker.last_seen.age"


def levels(present: dict[Any, int], ended: Iterable[Any] = ()) -> MetricBatch:
    made = {(THREADS, name): threads for name, threads in present.items()}
    made |= {(AGE, name): float(threads) for name, threads in present.items()}
    return MetricBatch(
        levels=made, ended=[(metric, name) for metric in (THREADS, AGE) for name in ended]
    )


ONE, SANITIZED = "a\ufffdb", semconv.OTEL_SANITIZED.name


#: What happens in turn: a batch, or an export: its seconds, whether it was accepted, its values.
#: The limits come first, where they are not the default.
@pytest.mark.parametrize(
    "history",
    {
        **{
            f"what is no number is left out and counted: {str(bad)[:3]}": [
                span_batch({CPU: bad, ("execute", "f", "ok", "seconds"): 1.0}),
                worker_batch({("gather-dep", "network", "seconds"): bad}),
                MetricBatch(increments={("dask.otel.exported", "traces"): bad}),
                MetricBatch(levels={("dask.cluster.worker.count",): bad}),
                (60, True, {TIME: {("workflow/load", "workflow", "f", "ok"): 1.0},
                            SANITIZED: {("value",): 4}}),
            ]
            for bad in (float("nan"), float("inf"), "x", None, 10**400)
        },
        "a counter shows the highest total that there was": [
            span_batch({CPU: 5.0}), span_batch({CPU: -3.0}), (60, True, LOAD),
            span_batch({CPU: 2.5}), (120, True, LOAD), span_batch({CPU: 5.5}), (180, True, TWICE),
        ],
        "a change keeps a series for another hour": [
            span_batch({CPU: 5.0}), (60, True, LOAD),
            span_batch({CPU: 5.0}), (3000, True, TWICE), (6599, True, TWICE), (6600, True, {}),
        ],
        "a series does not retire before its last value was accepted": [
            span_batch({CPU: 5.0}),
            (60, False, LOAD), (4000, False, LOAD), (8000, False, LOAD),
            (8060, True, LOAD), (8120, True, {}),
        ],
        "what has no free labels stays for ever": [
            MetricBatch(
                levels={("dask.otel.running",): 1}, increments={("dask.otel.exported", "traces"): 1}
            ),
            (60, True, NO_LABELS), (10**6, True, NO_LABELS),
        ],
        "a sum of increments stays until it is back at zero": [
            active(1), (60, True, {ACTIVE: {("a", "a"): 1}}),
            (10_000, True, {ACTIVE: {("a", "a"): 1}}),
            active(-1), (10_060, True, {ACTIVE: {("a", "a"): 0}}), (20_000, True, {}),
        ],
        "a level that is not set any more goes to zero and retires": [
            MetricBatch(levels={(ACTIVE, ("a",)): 3}), (60, True, {ACTIVE: {("a", "a"): 3}}),
            (4000, False, {ACTIVE: {("a", "a"): 0}}), (4060, True, {ACTIVE: {("a", "a"): 0}}),
            (4120, True, {}),
        ],
        "levels that ended go to zero once and gauges go at once": [
            worker_levels(4), (10, True, FOUR),
            worker_levels(None, GONE), (20, True, ZERO), (30, True, {}),
        ],
        "the zero of a level that ended is sent until it is accepted": [
            worker_levels(4), (10, True, FOUR), worker_levels(None, GONE),
            (20, False, ZERO), (30, False, ZERO), (40, True, ZERO), (50, True, {}),
        ],
        "a level that comes back has not ended": [
            worker_levels(4), (10, True, FOUR), worker_levels(None, GONE), worker_levels(8),
            (20, True, EIGHT), (30, True, EIGHT),
        ],
        "the end of what never was or is no level harms nothing": [
            worker_batch({("get-data", "network", "seconds"): 1.0}),
            worker_levels(4, [("no.such.metric", "a"), (TRANSFER, "transmit", "network")]),
            (10, True, {**FOUR, TRANSFER: {("transmit", "network"): 1.0},
                        "dask.otel.sanitized": {("error",): 1, ("shape",): 1}}),
        ],
        "a series retires as soon as its time is over": [
            make_series_limits(retire_after_ns=900 * S), span_batch({CPU: 5.0}),
            (60, True, LOAD), (60 + 899, True, LOAD), (60 + 900, True, {}),
        ],
        "what is told elsewhere is ignored": [
            worker_batch({"latency": 1.0, "tick-duration": 0.02, CPU: 2.0}),
            worker_batch({("p2p", "foreground", "send", "seconds"): 2.0}), (10, True, {}),
        ],
        "unknown keys of workers are counted": [
            *[worker_batch({("new", "x", "seconds"): 1, ("get-data", "x", "rows"): 1, 5: 1})] * 2,
            (10, True, {"dask.otel.sanitized": {("unknown_key",): 6}}),
        ],
        "unknown metrics and wrong labels are counted": [
            MetricBatch(increments={("no.such.metric",): 1, ("dask.otel.exported",): 1}),
            MetricBatch(levels={("dask.otel.exported", "traces"): 1}),
            (60, True, {
                "dask.otel.exported": {("traces",): 0},
                "dask.otel.sanitized": {("error",): 2, ("shape",): 1},
            }),
        ],
        "series are identified by their text": [
            *(span_batch({("execute", "f", k, "seconds"): 1.0}, (k,)) for k in (1, "1", True)),
            (10, True, {TIME: {("1", "1", "f", "1"): 2.0, ("True", "True", "f", "True"): 1.0},
                        "dask.otel.sanitized": {("type",): 6}}),
        ],
        "names beyond the cap are folded": [
            make_series_limits(max_names=2), *(span_batch({CPU: 1.0}, (tag,)) for tag in "abcd"),
            (60, True, {TIME: named(a=1.0, b=1.0, _OTHER=2.0),
                        "dask.otel.folded": {("names",): 2}}),
        ],
        "a name that retires gives its place back and keeps its total": [
            make_series_limits(max_names=1),
            span_batch({CPU: 1.0}, ("a",)), (60, True, {TIME: named(a=1.0)}),
            span_batch({CPU: 10.0}, ("b",)),
            (3000, True, {TIME: named(a=1.0, _OTHER=10.0), **FOLDED}),
            # The folded one is younger.
            (3700, True, {TIME: named(_OTHER=10.0), **FOLDED}),
            span_batch({CPU: 100.0}, ("b",)),
            (3760, True, {TIME: named(b=100.0, _OTHER=10.0), **FOLDED}),
        ],
        "levels of names that are one when they are clean are summed": [
            # Nobody can say whose the age is.
            levels({"a\0b": 20, ONE: 2, "c": 5}),
            (60, True, {THREADS: {(ONE,): 22, ("c",): 5}, AGE: {("c",): 5},
                        SANITIZED: {("nul",): 2}}),
            levels({"a\0b": 20, "c": 5}, ended=[ONE]),
            (120, True, {THREADS: {(ONE,): 20, ("c",): 5}, AGE: {(ONE,): 20, ("c",): 5},
                         SANITIZED: {("nul",): 4}}),
            levels({"c": 5}, ended=["a\0b"]),
            (180, True, {THREADS: {(ONE,): 0, ("c",): 5}, AGE: {("c",): 5},
                         SANITIZED: {("nul",): 4}}),
            levels({"c": 5}),
            (240, True, {THREADS: {("c",): 5}, AGE: {("c",): 5}, SANITIZED: {("nul",): 4}}),
        ],
        "series beyond the cap are folded and units kept apart": [
            make_series_limits(max_series=10),
            *(
                span_batch({("execute", "f", f"a{number}", unit): 1})
                for number in range(100) for unit in ("rows", "files")
            ),
            (60, True, {
                "dask.span.custom": {
                    **{
                        ("workflow/load", "workflow", "f", activity, unit): 1
                        for activity, unit in (
                            ("a0", "rows"), ("a0", "files"), ("a1", "rows"), ("a1", "files"),
                            ("a2", "rows"),
                        )
                    },
                    ("_OTHER", "_OTHER", "_OTHER", "_OTHER", "rows"): 97,
                    ("_OTHER", "_OTHER", "_OTHER", "_OTHER", "files"): 98,
                },
                "dask.otel.folded": {("series",): 195},
            }),
        ],
    }.items(),
    ids=lambda given: given[0],
)  # fmt: skip
def test_history(state, history):
    for step in history[1]:
        if isinstance(step, SeriesLimits):
            state = make_state(START, limits=step)
        elif isinstance(step, MetricBatch):
            state.apply(step)
        else:
            seconds, accepted, expected = step
            assert shown(state, seconds, accepted) == expected, seconds


@given(
    steps=st.lists(
        st.tuples(st.dictionaries(st.sampled_from(NAMES), st.integers(1, 50)), st.booleans()),
        max_size=6,
    ),
    cap=st.integers(1, 12) | st.just(2000),
)
@example(steps=[({"w1": 1, "w2": 1}, True)], cap=1)
def test_whatever_the_names_levels_sum_to_what_is_there(steps, cap):
    state = make_state(START, limits=make_series_limits(max_series=cap))
    before: dict[Any, int] = {}
    held: list[MetricBatch] = []
    for number, (present, exported) in enumerate(steps, 1):
        held.append(levels(present, before.keys() - present))
        before = present
        if exported:
            for one in held:
                state.apply(one)
            held = []
            found = shown(state, 60 * number)
            assert sum(found.get(THREADS, {}).values()) == sum(present.values())
            assert len(found.get(THREADS, {})) <= cap
            clean = Counter(label_text(name, Sanitizer()) for name in present)
            ages = found.get(AGE, {})
            if len(NAMES) <= make_series_limits(max_series=cap).ordinary_series:
                assert {name for (name,) in ages} == {n for n in clean if clean[n] == 1}


# ---------------------------------------------------------------------------------- delta


def test_a_histogram_delta_has_the_extremes_of_what_it_holds():
    state, found = make_state(START, temporality="delta"), []
    exports = [(5.0, True), (9.0, False), (7.0, True), (8.0, True), (1e308, False), (1e308, True)]
    for number, (value, ok) in enumerate(exports, 1):
        observe(state, value)
        point = collect(state, 60 * number, ok)["dask.span.duration"][-1]
        found.append((point.count, point.min, point.max))
    # The sum of the last two would be infinite.
    huge = [(1, 1e308, 1e308)] * 2
    assert found == [(1, 5.0, 5.0), (1, 9.0, 9.0), (2, 7.0, 9.0), (1, 8.0, 8.0), *huge]
    assert "dask.span.duration" not in collect(state, 420)


# ------------------------------------------------------------------ histograms, exemplars


def observe(state, value, ids=(11, 22), time_ns=0):
    observation = Observation("dask.span.duration", (("a", "b"), "success"), value, ids)
    state.apply(MetricBatch(time_ns, observations=[observation]))


# Unknown, and of a clock that was set back meanwhile.
@pytest.mark.parametrize("time_ns", [0, START + 99 * S])
def test_a_histogram_is_born_with_an_empty_point(state, time_ns):
    for value in (0.1, 0.2, 100_000.0, -1.0):
        observe(state, value, time_ns=time_ns)
    attributes = {
        "dask.span.name": "a/b",
        "dask.span.root.name": "a",
        "dask.span.result": "success",
    }
    exemplar = Exemplar(11, 22, 0.0, START + 60 * S)
    assert [
        (p.count, p.min, p.max, p.sum, p.bucket_counts, p.attributes, p.exemplars)
        for p in collect(state, 60)["dask.span.duration"]
    ] == [
        (0, 0.0, 0.0, 0.0, (0,) * 15, attributes, ()),
        (
            *(4, 0.0, 100_000.0, pytest.approx(100_000.3), (2, 1, *[0] * 11, 0, 1)),
            *(attributes, (exemplar,)),
        ),
    ]


def test_a_point_carries_the_last_measurement_since_the_previous_export(state):
    for number, amount in enumerate((1.0, 2.0)):
        state.apply(span_batch({CPU: amount}, time_ns=START + number * S))
    exemplars = [p.exemplars for seconds in (60, 120) for p in collect(state, seconds)[TIME]]
    assert exemplars == [(), (Exemplar(11, 22, 2.0, START + S),), ()]


@pytest.mark.parametrize(
    ("sampled", "exemplars"),
    [(lambda trace_id: trace_id == 12, [(), (12,)]), (lambda trace_id: False, [(), ()])],
    ids=["one trace", "none"],
)
def test_only_sampled_traces_are_exemplars(sampled, exemplars):
    state = make_state(START, sampled=sampled)
    state.apply(span_batch({CPU: 1.0}))
    for ids in ((12, 1), None):
        observe(state, 1.0, ids=ids)
    found = collect(state, 60)
    last = [found[name][-1] for name in (TIME, "dask.span.duration")]
    assert [tuple(one.trace_id for one in point.exemplars) for point in last] == exemplars
    assert (last[0].value, last[1].sum) == (1.0, 2.0)


def test_durations_are_counted_by_bucket_where_they_arise():
    """A bound is inclusive, and a clock that stepped back counts as 0."""
    made = durations((0.1, 0.1000001, 86400.0, 90000.0, -1.0))
    assert (made.counts, made.sum, made.low, made.high) == (
        *([2, 1, *[0] * 11, 1, 1], pytest.approx(0.2000001 + 176400.0)),
        *(0.0, 90000.0),
    )


def test_a_distribution_that_is_none_is_counted_and_harms_nothing(state):
    huge = durations([1.0])
    huge.sum = float("inf")
    given = {
        (semconv.CLUSTER_TIME.name, "idle"): durations([1.0]),
        ("dask.task.duration", "b"): huge,
        ("dask.task.duration", "load"): durations([2.0]),
    }
    state.apply(MetricBatch(distributions=given))
    found = collect(state, 10)
    last = {p.attributes["dask.task.prefix"]: p.count for p in found["dask.task.duration"]}
    assert (last, found["dask.otel.sanitized"][-1].value) == ({"load": 1, "b": 0}, 2)


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 1000])
def test_records_are_bounded_and_keep_a_zero_point_with_its_value(limit):
    state, whole = make_state(START), make_state(START)
    for to in (state, whole):
        to.apply(signal_batch(*range(1, 12)))
    records = list(state.collect(START + 60 * S, limit))
    sizes = [len(record.points) for record in records]
    assert [size for size in sizes if size > max(2, limit) or size % 2] == []
    (expected,) = whole.collect(START + 60 * S)
    together = tuple(point for record in records for point in record.points)
    assert dataclasses.replace(records[0], points=together) == expected
    assert len({dataclasses.replace(record, points=()) for record in records}) == 1


def test_points_are_made_one_record_at_a_time():
    made = []
    state = make_state(START, breathe=lambda: made.append(1))
    state.apply(signal_batch(*range(1000)))
    made.clear()
    records = state.collect(START + 60 * S, 10)
    assert not made
    first = next(records)
    assert len(made) <= 10
    assert len(first.points) + sum(len(record.points) for record in records) == 2000
