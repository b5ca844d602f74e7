"""The metric state against a brute-force model: random batches, failures, clocks, caps."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_otel.core.metrics.batch import MetricBatch, SpanDeltas
from dask_otel.core.metrics.routing import route_span_key
from dask_otel.core.records import MetricRecord
from dask_otel.core.text import Sanitizer, label_text, span_path
from dask_otel.semconv import METRICS
from tests.limits import make_series_limits, make_state
from tests.unit.metric_states import START, S

HOUR = 3600 * S

TAGS = st.one_of(
    st.sampled_from([("a",), ("a", "b"), ("a/b",), (1,), ("1",), (True,), (), ("",)]),
    st.integers(0, 30).map(lambda n: (f"name-{n}",)),
    st.just(("x" * 300,)),
)
KEYS = st.one_of(
    st.tuples(
        st.sampled_from(["execute", "p2p", "future"]),
        st.sampled_from(["f", "g"]),
        st.sampled_from(["thread-cpu", "disk-read", 1, "1", ("weird", 1), ""]),
        st.sampled_from(["seconds", "bytes", "count", "records"]),
    ),
    st.sampled_from([("execute",), ("execute", "f"), ("p2p", "s", "a", "b", "seconds"), "odd"]),
)
AMOUNTS = st.one_of(st.integers(0, 10**6), st.floats(0, 1e6, allow_subnormal=False))
#: One change: span tags, key, amount.
CHANGES = st.lists(st.tuples(TAGS, KEYS, AMOUNTS), max_size=12)
STEPS = st.one_of(
    st.just(60 * S), st.integers(-2 * HOUR, 2 * HOUR), st.sampled_from([0, 1, 16 * 60 * S])
)
ROUNDS = st.lists(
    st.tuples(CHANGES, STEPS, st.sampled_from(["accepted", "accepted", "lost", "rejected"])),
    min_size=1,
    max_size=12,
)


def batch_of(changes, time_ns=0) -> MetricBatch:
    batch = MetricBatch(time_ns=time_ns)
    for number, (tags, key, amount) in enumerate(changes):
        batch.span_deltas[str(number)] = SpanDeltas(tags, (1, 2), {key: amount})
    return batch


def identity_of(tags, key):
    """What the contract says a raw key is: metric and label values."""
    sanitizer = Sanitizer()
    metric, labels = route_span_key(key)
    name = label_text(span_path(tags, sanitizer), sanitizer)
    root = label_text(tags[0] if tags else "", sanitizer)
    return metric.name, (name, root, *[label_text(label, sanitizer) for label in labels])


@dataclass
class Receiver:
    """What a strict backend sees, and checks, of everything that is sent."""

    #: The last point of each series.
    last: dict = field(default_factory=dict)
    collected_ns: int = START
    #: Last accepted value of every life of every series.
    totals: dict = field(default_factory=dict)
    accepted_deltas: defaultdict = field(default_factory=lambda: defaultdict(float))

    def receive(self, records: list[MetricRecord], now: int, *, accepted: bool) -> None:
        before, self.collected_ns = self.collected_ns, max(now, self.collected_ns + 2_000_000)
        for record in records:
            for point in record.points:
                identity = (record.name, tuple(point.attributes.values()))
                self.check_order(record, identity, point)
                if point.time_ns != self.collected_ns:
                    oldest = self.collected_ns - 76 * S
                    assert point.time_ns == max(before, oldest), "all share one time"
                    assert point.value == 0, "but zero points"
                if accepted:
                    self.totals[identity, point.start_ns] = point.value
                    self.accepted_deltas[identity] += point.value

    def check_order(self, record, identity, point) -> None:
        last = self.last.get(identity)
        assert type(point.value) is (int if METRICS[record.name].integer else float)
        assert not last or point.time_ns > last.time_ns, "no two at one time, none from the past"
        assert point.start_ns <= point.time_ns
        if record.temporality == "delta":
            assert point.value >= 0
        elif last and last.start_ns == point.start_ns:
            assert point.value >= last.value
        else:
            assert not last or point.start_ns > last.time_ns, "a series that returns starts later"
            assert point.value == 0, "born with a zero point"
            assert point.start_ns == point.time_ns - 1_000_000
        self.last[identity] = point


def drive(state, rounds, receiver, limits):
    """Play the rounds; return the truth, by identity before any folding."""
    truth = defaultdict(float)
    now = START
    for changes, step, answer in [*rounds, ([], 60 * S, "accepted")]:
        # Whole amounts for integer metrics, so that rounding plays no part in the model.
        changes = [
            (tags, key, math.floor(amount) if route_span_key(key)[0].integer else amount)
            for tags, key, amount in changes
        ]
        state.apply(batch_of(changes, now))
        for tags, key, amount in changes:
            truth[identity_of(tags, key)] += amount
        now += step
        records = list(state.collect(now))
        names = set()
        for record in records:
            identities = {tuple(point.attributes.values()) for point in record.points}
            assert len(identities) <= limits.max_series
            names |= {point.attributes.get("dask.span.name", "_OTHER") for point in record.points}
        assert len(names - {"_OTHER"}) <= limits.max_names
        receiver.receive(records, now, accepted=answer == "accepted")
        if state.settled(answer == "accepted", rejected=answer == "rejected"):
            now += S
            receiver.receive(list(state.collect(now)), now, accepted=True)
            assert not state.settled(True)
    return truth


ROOMY = make_series_limits(retire_after_ns=900 * S)
TIGHT = make_series_limits(retire_after_ns=900 * S, max_names=3, max_series=6)


@given(temporality=st.sampled_from(["cumulative", "delta"]), rounds=ROUNDS)
def test_totals_reconcile_key_by_key_and_beyond_the_caps_by_metric(temporality, rounds):
    for limits in (ROOMY, TIGHT):
        receiver = Receiver()
        state = make_state(START, limits=limits, temporality=temporality)
        truth = drive(state, rounds, receiver, limits)
        sent = receiver.accepted_deltas if temporality == "delta" else receiver.totals
        expected, seen = defaultdict(float), defaultdict(float)
        for identity, amount in truth.items():
            expected[identity if limits is ROOMY else identity[0]] += amount
        for key, value in sent.items():
            identity = key if temporality == "delta" else key[0]
            seen[identity if limits is ROOMY else identity[0]] += value
        for identity, amount in expected.items():
            assert seen[identity] == pytest.approx(amount, rel=1e-9)
