"""The page: nothing of the telemetry is ever markup, nothing is loaded, and it stays small."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest

pytest.importorskip("bokeh")

from dask_otel.report.document import Report
from dask_otel.report.page.payload import timeline
from tests.unit.report_files import (
    EVIL,
    counter,
    everything,
    level,
    many,
    metrics,
    point,
    report_of,
    span,
    traces,
)

LINK = "javascript:alert(1)"


class _Page(HTMLParser):
    """What a browser would see of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] == "script" and self.cdata_elem == "script":
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)

    def packed(self) -> list[str]:
        """The data that scripts unpack, as JSON."""
        return [
            gzip.decompress(base64.b64decode(text)).decode()
            for attributes, text in self.scripts
            if attributes.get("type") == "text/plain"
        ]


def test_hostile_text_is_shown_and_never_markup() -> None:
    tame = report_of(*everything(re.sub("[<>\"'&`]", "_", EVIL)), price=1.0).html()
    page = report_of(*everything(EVIL), price=1.0).html()
    before, after = _Page(tame), _Page(page)
    # The same elements with the same attributes' names: none was added.
    assert [(tag, sorted(found)) for tag, found in after.tags] == [
        (tag, sorted(found)) for tag, found in before.tags
    ]
    assert page.count("<script") == tame.count("<script")
    assert "&lt;/script&gt;&lt;script&gt;window.pwned=1" in page
    assert EVIL not in page
    # It is there for the timeline, as data.
    assert any(json.dumps(EVIL)[1:-1] in text for text in after.packed())


def test_only_addresses_of_the_web_are_links() -> None:
    page = report_of(*everything(LINK)).html()
    links = [found["href"] for tag, found in _Page(page).tags if tag == "a"]
    assert links
    assert all(link and link.startswith("https://github.com/dask-otel/") for link in links)


def test_nothing_is_loaded_and_scripts_run_by_their_hashes_alone() -> None:
    page = _Page(report_of(*everything("x")).html())
    (policy,) = [
        found["content"] or ""
        for tag, found in page.tags
        if tag == "meta" and found.get("http-equiv") == "Content-Security-Policy"
    ]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert "http" not in policy
    assert "unsafe" not in rules["script-src"]
    scripts = [text for found, text in page.scripts if "type" not in found]
    hashes = {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts}
    assert {*rules["script-src"].split()} == {f"'sha256-{one}'" for one in hashes}
    for tag, found in page.tags:
        assert "src" not in found, tag
        assert tag not in ("link", "iframe", "object", "base", "form")
        assert not [name for name in found if name.startswith("on")]


def test_redacted_pages_have_no_secret() -> None:
    requests = everything("name")
    secret = "S3CRET"
    for one in requests[0]["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        one["status"]["message"] = secret
        for item in [
            *one["attributes"],
            *(a for event in one["events"] for a in event["attributes"]),
        ]:
            if item["key"] in (
                "dask.task.key", "dask.task_group.name", "code.file.path", "name",
                "exception.message", "exception.stacktrace",
            ):  # fmt: skip
                item["value"] = {"stringValue": secret}
    foreign = traces({**span(50, secret), "attributes": []})
    report = report_of(*requests, foreign, price=1.0)
    hidden = report.redacted()
    for shown, is_there in ((report, True), (hidden, False)):
        for page in (shown.html(), shown.text(), json.dumps(shown.to_dict())):
            assert (secret in page + "".join(_Page(page).packed())) == is_there
    assert "redacted" in hidden.html()
    # It still tells the tasks apart, and what failed.
    assert hidden.to_dict()["runs"][0]["failures"][0]["kind"] == "name"


def test_a_notebook_shows_it_in_a_frame_of_its_own() -> None:
    shown = _Page(report_of(traces(span(1)))._repr_html_())
    ((tag, found),) = shown.tags
    assert (tag, found["sandbox"]) == ("iframe", "allow-scripts allow-popups")
    assert "<!DOCTYPE html>" in (found["srcdoc"] or "")


def test_ten_thousand_spans_are_less_than_six_megabytes() -> None:
    assert len(Report([many(10_000)]).html()) < 6_000_000


@pytest.mark.parametrize(
    ("exported", "columns"), [([], []), (["dask.worker.memory.usage"], ["memory, at most"])]
)
def test_workers_have_no_columns_of_what_was_not_exported(
    exported: list[str], columns: list[str]
) -> None:
    """A short run ends before its first export of metrics."""
    task = span(2, "work", parent=1, kind="task", dask_worker_name="alice")
    levels = [level(name, point(5.0, {"dask.worker.name": "alice"})) for name in exported]
    page = report_of(traces(span(1, "etl"), task), metrics(*levels)).html()
    assert "tasks shown here" in page
    assert [one for one in ("memory, at most", "spilled, at most") if one in page] == columns


def test_the_run_lasted_as_long_as_its_thread_time_was_counted() -> None:
    """From the begin of the metrics on, which is the bridge's, and not from the first span's."""
    told = metrics(counter("dask.cluster.capacity.time", point(0.0, time=0), point(20.0, time=8)))
    page = report_of(traces(span(1, "etl", start=6, seconds=2)), told).html()
    assert '<b class="">8.00 s</b><span>lasted</span>' in page
    assert '<b class="">2.5</b><span>mean threads</span>' in page


def test_one_thing_is_singular() -> None:
    labels = {"dask.worker.name": "alice", "dask.task.outcome": "memory"}
    failed = {"dask.task.outcome": "erred"}
    told = metrics(
        counter("dask.task.finished", point(1, labels), point(1, failed)),
        counter("dask.task.retried", point(1, {"dask.task.retry.reason": "error"})),
        level("dask.worker.memory.usage", point(5.0, labels)),
    )
    page = report_of(told).html()
    for one in ("task done", "task failed", "run repeated", "worker"):
        assert f"<span>{one}</span>" in page
    assert not re.search(r">1 \w+s\b", page)


def test_times_of_a_short_run_can_be_told_apart() -> None:
    seconds = [point(0.1 * t, {"dask.activity": "idle"}, time=0.1 * t) for t in range(4)]
    capacity = [point(0.1 * t, time=0.1 * t) for t in range(4)]
    told = metrics(
        counter("dask.cluster.time", *seconds), counter("dask.cluster.capacity.time", *capacity)
    )
    (drawn,) = [one for one in _Page(report_of(told).html()).packed() if "%H:%M" in one]
    assert '"milliseconds":"%H:%M:%S.%3N"' in drawn


def test_what_has_no_row_is_said() -> None:
    run = many(50)
    for one in run.spans[25:]:
        one.attributes["dask.span.type"] = "task"
    run.spans[40].failed = True
    rows = timeline(run, most=26)
    data = json.loads(gzip.decompress(base64.b64decode(rows.packed)))
    assert (rows.rows, rows.folded, len(data["rows"])) == (26, 24, 26)
    assert [row[2] for row in data["rows"]].count(0) == 25
    assert [row[6] for row in data["rows"] if row[2] == 2] == [1]


def test_rows_follow_the_tree_also_where_parents_go_in_a_circle() -> None:
    run = many(3)
    run.spans[0].parent_id = run.spans[2].span_id
    run.spans[1].parent_id = run.spans[0].span_id
    run.spans[2].parent_id = run.spans[1].span_id
    data = json.loads(gzip.decompress(base64.b64decode(timeline(run).packed)))
    assert sorted(row[0] for row in data["rows"]) == [-1, 0, 1]


@pytest.mark.parametrize(("times", "shown"), [((0, 10), False), ((0, 5, 10), True)])
def test_time_goes_by_if_more_than_one_interval_is_known(
    times: tuple[int, ...], shown: bool
) -> None:
    labels = {"dask.activity": "idle"}
    points = [point(float(time), labels, time=time) for time in times]
    capacity = [point(float(time), time=time) for time in times]
    page = report_of(
        traces(span(1, "etl")),
        metrics(
            counter("dask.cluster.time", *points), counter("dask.cluster.capacity.time", *capacity)
        ),
    ).html()
    assert ("<h3>Over time</h3>" in page) == shown
    assert ("OTEL_METRIC_EXPORT_INTERVAL" in page) != shown
