"""What users decide about labels: patterns, rules, tags; and that no sum ever changes by it."""

from __future__ import annotations

import logging
from collections import defaultdict, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_otel import semconv
from dask_otel.core.metrics.batch import MetricBatch, SpanDeltas
from dask_otel.core.metrics.cardinality import SeriesLimits
from dask_otel.core.metrics.labels import LabelRules, NameRule, Patterns
from dask_otel.core.metrics.state import MetricState
from dask_otel.core.text import Sanitizer
from dask_otel.pump.health import Notices
from dask_otel.scheduler.advice import FoldAdvice
from dask_otel.settings.keys import MetricSettings

S = 1_000_000_000
START = 1_700_000_000 * S
TIME = "dask.span.execute.time"


def batch(tags, prefix="inc", value=1.0) -> MetricBatch:
    key = ("execute", prefix, "thread-cpu", "seconds")
    return MetricBatch(0, {"id": SpanDeltas(tags, (11, 22), {key: value})})


def labels(rules, *tags):
    return rules.span(tags, Sanitizer())[0]


def exported(state, seconds=60):
    """Return the points of one export: {metric: {label values: value}}, the last of each."""
    records = list(state.collect(START + seconds * S))
    state.settled(True)
    return {
        record.name: {tuple(point.attributes.values()): point.value for point in record.points}
        for record in records
    }


# ----------------------------------------------------------------------------- patterns


@pytest.mark.parametrize(
    ("allow", "deny", "passed"),
    [
        ((), (), ["etl", "etl/load", "Tmp"]),
        (("etl*",), (), ["etl", "etl/load"]),
        (("etl/*", "Tmp"), (), ["etl/load", "Tmp"]),
        ((), ("*/*",), ["etl", "Tmp"]),
        (("etl*",), ("etl",), ["etl/load"]),
        (("tmp",), (), []),
        (("?tl",), (), ["etl"]),
        (("[a-f]*",), (), ["etl", "etl/load"]),
    ],
)
def test_patterns_match_the_whole_name_and_deny_wins(allow, deny, passed):
    patterns = Patterns(allow, deny)
    assert [n for n in ("etl", "etl/load", "Tmp") if patterns.allows(n)] == passed


def test_denied_names_are_counted_as_other():
    state = MetricState(START, rules=LabelRules(names=Patterns(deny=["tmp*"])))
    for tags in (("etl", "load"), ("tmp-1",), ("tmp-2", "x"), ("tmp-1",)):
        state.apply(batch(tags))
    found = exported(state)
    assert found[TIME] == {
        ("etl/load", "etl", "inc", "thread-cpu"): 1.0,
        ("_OTHER", "_OTHER", "inc", "thread-cpu"): 3.0,
    }
    assert found["dask.otel.folded"] == {("denied_names",): 2}
    assert len(state._families._slots) == 1


def test_denied_prefixes_are_counted_as_other():
    state = MetricState(START, rules=LabelRules(prefixes=Patterns(allow=["read-*"])))
    for prefix in ("read-csv", "sum", "mean"):
        state.apply(batch(("etl",), prefix))
        state.apply(MetricBatch(increments={("dask.task.finished", ("etl",), prefix, "memory"): 2}))
    # No prefix at all is no prefix to be denied.
    state.apply(MetricBatch(0, {"id": SpanDeltas(("etl",), (1, 2), {("gpu", "seconds"): 5})}))
    found = exported(state)
    assert found[TIME] == {
        ("etl", "etl", "read-csv", "thread-cpu"): 1.0,
        ("etl", "etl", "_OTHER", "thread-cpu"): 2.0,
    }
    assert found["dask.task.finished"] == {
        ("etl", "etl", "read-csv", "memory"): 2,
        ("etl", "etl", "_OTHER", "memory"): 4,
    }
    assert found["dask.span.custom"] == {("etl", "etl", "_EMPTY", "gpu", "seconds"): 5.0}
    assert found["dask.otel.folded"] == {("denied_prefixes",): 4}


# --------------------------------------------------------------------- names of spans


def test_by_root_every_span_has_the_name_of_its_root():
    rules = LabelRules(span_label="root")
    assert labels(rules, "etl", "load", "part") == ("etl", "etl")
    assert labels(rules, "a/b", "c") == ("a\\/b", "a/b")
    assert labels(rules) == ("_EMPTY", "_EMPTY")


def test_rules_take_ids_and_dates_out_of_each_tag():
    rules = LabelRules(
        rules=[
            NameRule(r"\d{4}-\d{2}-\d{2}", "<date>"),
            NameRule(r"-?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
            NameRule(r"^part-(\d)\d*$", r"part \1…"),
        ]
    )
    assert labels(rules, "etl-2026-11-21", "load") == ("etl-<date>/load", "etl-<date>")
    uuid = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
    assert labels(rules, f"run-{uuid}", "part-123") == ("run/part 1…", "run")
    # A tag that becomes empty is left out; where all are, the name is empty.
    assert labels(rules, "etl", uuid, "load") == ("etl/load", "etl")
    assert labels(rules, uuid) == ("_EMPTY", "_EMPTY")
    assert labels(rules, 7, None) == ("7/None", "7")


def test_rules_work_with_patterns_and_by_root():
    rules = LabelRules(
        span_label="root", rules=[NameRule(r"\d+", "#")], names=Patterns(allow=["run-#"])
    )
    assert rules.span(("run-17", "x"), Sanitizer()) == (("run-#", "run-#"), False)
    assert rules.span(("job-17",), Sanitizer())[1]


def test_rules_see_a_bounded_part_of_a_long_tag():
    rules = LabelRules(rules=[NameRule("a", "bb")])
    values = labels(rules, "a" * 100_000)
    assert all(len(value) == 200 for value in values)
    assert values[0].startswith("bb")


def test_spans_of_one_label_share_its_series():
    state = MetricState(START, rules=LabelRules(rules=[NameRule(r"\d+", "#")]))
    for number in range(500):
        state.apply(batch((f"run-{number}",)))
    assert exported(state) == {TIME: {("run-#", "run-#", "inc", "thread-cpu"): 500.0}}


# --------------------------------------------------------------------------------- tags


def test_tags_become_labels_of_every_metric_with_a_span():
    state = MetricState(START, rules=LabelRules(tags=["team", "env"]))
    state.apply(batch(("etl", "team:risk", "load")))
    state.apply(MetricBatch(increments={("dask.span.active", ("etl",)): 1}))
    state.apply(MetricBatch(levels={("dask.cluster.worker.count",): 3}))
    points = {r.name: r.points[-1].attributes for r in state.collect(START + 60 * S)}
    assert points[TIME] == {
        "dask.span.name": "etl/team:risk/load",
        "dask.span.root.name": "etl",
        "dask.tag.team": "risk",
        "dask.tag.env": "_EMPTY",
        "dask.task.prefix": "inc",
        "dask.activity": "thread-cpu",
    }
    assert points["dask.span.active"] == {
        "dask.span.name": "etl",
        "dask.span.root.name": "etl",
        "dask.tag.team": "_EMPTY",
        "dask.tag.env": "_EMPTY",
    }
    assert points["dask.cluster.worker.count"] == {}


def test_the_innermost_tag_counts_and_odd_ones_do_no_harm():
    rules = LabelRules(tags=["team"])
    assert labels(rules, "team:a", 5, "team:b:c", "teams:x", b"team:z")[2] == "b:c"
    assert labels(rules, "team:")[2] == "_EMPTY"


def test_values_of_a_tag_are_capped_and_their_places_come_back():
    limits = SeriesLimits(max_names=3)
    state = MetricState(START, rules=LabelRules(tags=["id"]), limits=limits)
    for number in range(10):
        state.apply(batch(("etl", f"id:{number}")))
    found = exported(state)
    teams = {key[2]: value for key, value in found[TIME].items()}
    assert {*teams} == {"0", "1", "2", "_OTHER"}
    assert sum(found[TIME].values()) == 10.0
    assert found["dask.otel.folded"]["tags",] == 7
    for seconds in (120, 3700, 3800, 7500):
        state.apply(batch(("etl", "id:new")))
        found = exported(state, seconds)
    assert "new" in {key[2] for key in found[TIME]}


# ------------------------------------------------------------------------ sums and caps


def test_50_000_span_names_stay_within_the_caps_and_the_grand_total_is_the_truth():
    limits = SeriesLimits(max_names=200, max_series=500)
    folded = []
    state = MetricState(START, limits=limits, on_folded=lambda *given: folded.append(given))
    # The last value of every series that ever was, by its labels and start time.
    last: dict[str, dict[tuple[object, ...], float]] = defaultdict(dict)
    truth = 0.0
    most_names = 0
    per_export = 250
    for export in range(200):
        for index in range(per_export):
            number = export * per_export + index
            value = float(number % 7 + 1)
            truth += value
            state.apply(batch((f"run-{number}", "load"), f"prefix-{number % 3}", value))
            state.apply(
                MetricBatch(
                    increments={("dask.task.finished", (f"run-{number}",), "inc", "memory"): 1}
                )
            )
        # Ten minutes apart, so that series retire all the time.
        records = list(state.collect(START + (export + 1) * 600 * S))
        state.settled(True)
        for record in records:
            if not record.name.startswith("dask.otel"):
                assert len({tuple(p.attributes.values()) for p in record.points}) <= 500
            for point in record.points:
                last[record.name][(*point.attributes.values(), point.start_ns)] = point.value
        most_names = max(most_names, len(state._families._slots))
    assert most_names == 200
    assert sum(last[TIME].values()) == truth
    assert sum(last["dask.task.finished"].values()) == 50_000
    names = {key[0] for key in last[TIME]}
    assert "_OTHER" in names
    assert len(names) > 1000, "places came back"
    assert {kind for kind, _ in folded} == {"names"}
    assert sum(last["dask.otel.folded"].values()) > 40_000


@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from(["a", "b1", "team:x", "team:y", "c/d", 7]), max_size=3),
            st.sampled_from(["inc", "sum", "x-1"]),
            st.integers(1, 9),
        ),
        max_size=30,
    ),
    st.sampled_from(["full", "root"]),
    st.lists(st.sampled_from(["a*", "b?", "*", "_*"]), max_size=2),
    st.lists(st.sampled_from(["a/*", "i*", "x"]), max_size=2),
    st.lists(st.sampled_from([NameRule("[a-c]"), NameRule(r"\d", "#")]), max_size=2),
    st.integers(1, 4),
)
def test_whatever_is_decided_about_labels_no_sum_changes(
    items, span_label, allow, deny, rules, max_names
):
    state = MetricState(
        START,
        limits=SeriesLimits(max_names=max_names, max_series=8),
        rules=LabelRules(
            names=Patterns(allow, deny),
            prefixes=Patterns((), deny),
            span_label=span_label,
            rules=rules,
            tags=["team"],
        ),
    )
    for tags, prefix, value in items:
        state.apply(batch(tuple(tags), prefix, float(value)))
    found = exported(state).get(TIME, {})
    assert sum(found.values()) == sum(value for *_, value in items)
    assert len(found) <= 8
    assert len({name for name, *_ in found} - {"_OTHER"}) <= max_names


# ------------------------------------------------------------------------------- advice


def test_advice_comes_once_for_each_cap_and_names_the_setting(caplog):
    rules = LabelRules(tags=["id"])
    settings = MetricSettings(max_names=2, max_series=10)
    limits = SeriesLimits(max_names=2, max_series=10)
    notices: Notices = deque()
    advice = FoldAdvice(settings, notices)
    with caplog.at_level(logging.WARNING, "distributed.dask_otel"):
        for state in [MetricState(START, limits=limits, rules=rules, on_folded=advice)] * 2:
            for number in range(20):
                state.apply(batch((f"run-{number}", f"id:{number}"), f"prefix-{number}"))
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 3
    assert "more than 2 span names (otel.metrics.max-names)" in said[0]
    assert "otel.metrics.name-rules" in said[0]
    assert "otel.metrics.span-label: root" in said[0]
    assert any("more than 10 series (otel.metrics.max-series), first dask.span." in s for s in said)
    assert any("otel.metrics.tag-attributes has more than 2 values" in s for s in said)
    assert all("docs/cardinality.md" in line for line in said)
    kinds = [facts[semconv.OTEL_KIND] for _, facts in notices]
    assert sorted(kinds) == ["names", "series", "tags"]
    assert {name for name, _ in notices} == {semconv.OTEL_FOLDING}
