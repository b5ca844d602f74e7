"""What users decide about labels: patterns, rules, tags; and that no sum ever changes by it."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_otel import semconv
from dask_otel.core.metrics.batch import MetricBatch, SpanDeltas
from dask_otel.core.metrics.labels import LabelRules, NameRule, patterns
from dask_otel.core.text import Sanitizer
from dask_otel.pump.destination import Notices
from dask_otel.scheduler.advice import FoldAdvice
from dask_otel.settings.keys import MetricSettings
from tests.limits import make_series_limits, make_state
from tests.unit.metric_states import START, collect, shown

TIME = "dask.span.execute.time"


def batch(tags, prefix="inc", value=1.0) -> MetricBatch:
    key = ("execute", prefix, "thread-cpu", "seconds")
    return MetricBatch(0, {"id": SpanDeltas(tags, (11, 22), {key: value})})


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
    assert [*filter(patterns(allow, deny), ("etl", "etl/load", "Tmp"))] == passed


#: Rules, what is booked, and all that is exported of it.
BOOKED: dict[str, tuple[LabelRules, list[MetricBatch], dict[str, Any]]] = {
    # They take no place from the other names: here there is one for all.
    "denied names": (
        LabelRules(names=patterns(deny=["tmp*"])),
        [batch(tags) for tags in (("tmp-1",), ("tmp-2", "x"), ("etl", "load"), ("tmp-1",))],
        {
            TIME: {
                ("etl/load", "etl", "inc", "thread-cpu"): 1.0,
                ("_OTHER", "_OTHER", "inc", "thread-cpu"): 3.0,
            },
            "dask.otel.folded": {("denied_names",): 2},
        },
    ),
    "denied prefixes": (
        LabelRules(prefixes=patterns(allow=["read-*"])),
        [
            *(batch(("etl",), prefix) for prefix in ("read-csv", "sum", "mean")),
            *(
                MetricBatch(increments={("dask.task.finished", ("etl",), prefix, "memory"): 2})
                for prefix in ("read-csv", "sum", "mean")
            ),
            # No prefix at all is no prefix to be denied.
            MetricBatch(0, {"id": SpanDeltas(("etl",), (1, 2), {("gpu", "seconds"): 5})}),
        ],
        {
            TIME: {
                ("etl", "etl", "read-csv", "thread-cpu"): 1.0,
                ("etl", "etl", "_OTHER", "thread-cpu"): 2.0,
            },
            "dask.task.finished": {
                ("etl", "etl", "read-csv", "memory"): 2,
                ("etl", "etl", "_OTHER", "memory"): 4,
            },
            "dask.span.custom": {("etl", "etl", "_EMPTY", "gpu", "seconds"): 5.0},
            "dask.otel.folded": {("denied_prefixes",): 4},
            "dask.otel.sanitized": {("empty",): 1},
        },
    ),
    "spans of one label share its series": (
        LabelRules(rules=[NameRule(r"\d+", "#")]),
        [batch((f"run-{number}",)) for number in range(500)],
        {TIME: {("run-#", "run-#", "inc", "thread-cpu"): 500.0}},
    ),
}


@pytest.mark.parametrize(("rules", "booked", "expected"), BOOKED.values(), ids=BOOKED)
def test_what_is_booked_under_rules(rules, booked, expected):
    state = make_state(START, rules=rules, limits=make_series_limits(max_names=1))
    for one in booked:
        state.apply(one)
    assert shown(state) == expected


# --------------------------------------------------------------------- names of spans


UUID = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
BY_ROOT = LabelRules(span_label="root")
WITHOUT_IDS = LabelRules(
    rules=[
        NameRule(r"\d{4}-\d{2}-\d{2}", "<date>"),
        NameRule(r"-?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
        NameRule(r"^part-(\d)\d*$", r"part \1…"),
    ]
)
TEAMS = LabelRules(span_label="root", tags=["team"])


@pytest.mark.parametrize(
    ("rules", "tags", "labels"),
    [
        (BY_ROOT, ("etl", "load", "part"), ("etl", "etl")),
        (BY_ROOT, ("a/b", "c"), ("a\\/b", "a/b")),
        (BY_ROOT, (), ("_EMPTY", "_EMPTY")),
        (WITHOUT_IDS, ("etl-2026-11-21", "load"), ("etl-<date>/load", "etl-<date>")),
        (WITHOUT_IDS, (f"run-{UUID}", "part-123"), ("run/part 1…", "run")),
        # A tag that becomes empty is left out; where all are, the name is empty.
        (WITHOUT_IDS, ("etl", UUID, "load"), ("etl/load", "etl")),
        (WITHOUT_IDS, (UUID,), ("_EMPTY", "_EMPTY")),
        (WITHOUT_IDS, (7, None), ("7/None", "7")),
        # A bounded part of a long one is looked at.
        (LabelRules(rules=[NameRule("a", "bb")]), ("a" * 100_000,), ("b" * 191 + "~057408f9",) * 2),
        # The innermost counts, and odd ones do no harm.
        (TEAMS, ("a", "team:a", 5, "team:b:c", "teams:x", b"team:z"), ("a", "a", "b:c")),
        (TEAMS, ("a", "team:"), ("a", "a", "_EMPTY")),
    ],
)
def test_what_rules_make_of_tags(rules, tags, labels):
    assert rules.span(tags, Sanitizer())[0] == labels


# --------------------------------------------------------------------------------- tags


def test_tags_become_labels_of_every_metric_with_a_span():
    state = make_state(START, rules=LabelRules(tags=["team", "env"]))
    state.apply(batch(("etl", "team:risk", "load")))
    active, workers = ("dask.span.active", ("etl",)), ("dask.cluster.worker.count",)
    state.apply(MetricBatch(increments={active: 1}, levels={workers: 3}))
    found = collect(state)
    del found["dask.otel.sanitized"]
    assert {name: points[-1].attributes for name, points in found.items()} == {
        TIME: {
            "dask.span.name": "etl/team:risk/load",
            "dask.span.root.name": "etl",
            "dask.tag.team": "risk",
            "dask.tag.env": "_EMPTY",
            "dask.task.prefix": "inc",
            "dask.activity": "thread-cpu",
        },
        "dask.span.active": {
            "dask.span.name": "etl",
            "dask.span.root.name": "etl",
            "dask.tag.team": "_EMPTY",
            "dask.tag.env": "_EMPTY",
        },
        "dask.cluster.worker.count": {},
    }


def test_values_of_a_tag_are_capped_and_their_places_come_back():
    state = make_state(START, rules=LabelRules(tags=["id"]), limits=make_series_limits(max_names=3))
    for number in range(10):
        state.apply(batch(("etl", f"id:{number}")))
    found = shown(state)
    teams = {key[2]: value for key, value in found[TIME].items()}
    assert teams == {"0": 1.0, "1": 1.0, "2": 1.0, "_OTHER": 7.0}
    assert found["dask.otel.folded"]["tags",] == 7
    for seconds in (120, 3700, 3800, 7500):
        state.apply(batch(("etl", "id:new")))
        found = shown(state, seconds)
    assert "new" in {key[2] for key in found[TIME]}


# ------------------------------------------------------------------------ sums and caps


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
    state = make_state(
        START,
        limits=make_series_limits(max_names=max_names, max_series=8),
        rules=LabelRules(
            names=patterns(allow, deny),
            prefixes=patterns((), deny),
            span_label=span_label,
            rules=rules,
            tags=["team"],
        ),
    )
    for tags, prefix, value in items:
        state.apply(batch(tuple(tags), prefix, float(value)))
    found = shown(state).get(TIME, {})
    assert sum(found.values()) == sum(value for *_, value in items)
    assert len(found) <= 8
    assert len({name for name, *_ in found} - {"_OTHER"}) <= max_names


# ------------------------------------------------------------------------------- advice


def test_advice_comes_once_for_each_cap_and_names_the_setting(caplog):
    limits = make_series_limits(max_names=2, max_series=10)
    notices: Notices = deque()
    advice = FoldAdvice(MetricSettings(max_names=2, max_series=10), notices)
    state = make_state(START, limits=limits, rules=LabelRules(tags=["id"]), on_folded=advice)
    for number in [*range(20)] * 2:
        state.apply(batch((f"run-{number}", f"id:{number}"), f"prefix-{number}"))
    expected = [
        ("more than 2 span names (otel.metrics.max-names)", "otel.metrics.name-rules"),
        ("otel.metrics.tag-attributes has more than 2 values", "/cardinality.html"),
        ("more than 10 series (otel.metrics.max-series), first dask.span.", "/cardinality.html"),
    ]
    assert len(caplog.messages) == len(expected)
    for line, pieces in zip(caplog.messages, expected, strict=True):
        assert [piece for piece in pieces if piece not in line] == []
    assert sorted((name, facts[semconv.OTEL_KIND]) for name, facts in notices) == [
        (semconv.OTEL_FOLDING, kind) for kind in ("names", "series", "tags")
    ]
