"""The page: nothing of the telemetry is ever markup, nothing is loaded, and it stays small."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

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


def over_time(*times: float) -> dict[str, Any]:
    """Idle seconds and the capacity, as they were at some times."""
    idle = [point(time, {"dask.activity": "idle"}, time=time) for time in times]
    capacity = [point(time, time=time) for time in times]
    return metrics(
        counter("dask.cluster.time", *idle), counter("dask.cluster.capacity.time", *capacity)
    )


ALICE = {"dask.worker.name": "alice", "dask.task.outcome": "memory"}
MEMORY = level("dask.worker.memory.usage", point(5.0, ALICE))
SHORT = traces(span(1, "etl"), span(2, "work", parent=1, kind="task", dask_worker_name="alice"))
NO_TIMES = "OTEL_METRIC_EXPORT_INTERVAL"
#: Requests, what the page of them says, and what it does not.
SAYS = {
    # A short run ends before its first export of metrics.
    "no memory exported": ([SHORT], ["tasks shown here"], "(memory|spilled), at most"),
    "memory exported": (
        [SHORT, metrics(MEMORY)],
        ["tasks shown here", "memory, at most"],
        "spilled, at most",
    ),
    # From the begin of the metrics on, which is the bridge's, and not from the first span's.
    "as long as its thread-time was counted": (
        [
            traces(span(1, "etl", start=6, seconds=2)),
            metrics(counter("dask.cluster.capacity.time", point(0.0, time=0), point(20.0, time=8))),
        ],
        [
            '<b class="">8.00 s</b><span>lasted</span>',
            '<b class="">2.5</b><span>mean threads</span>',
        ],
        "<span>lasted</span>.*<span>lasted</span>",
    ),
    "one thing is singular": (
        [
            metrics(
                counter(
                    "dask.task.finished",
                    *(point(1, ALICE), point(1, {"dask.task.outcome": "erred"})),
                ),
                counter("dask.task.retried", point(1, {"dask.task.retry.reason": "error"})),
                MEMORY,
            )
        ],
        [f"<span>{one}</span>" for one in ("task done", "task failed", "run repeated", "worker")],
        r">1 \w+s\b",
    ),
    "one interval": ([SHORT, over_time(0, 10)], [NO_TIMES], "<h3>Over time</h3>"),
    "two intervals": ([SHORT, over_time(0, 5, 10)], ["<h3>Over time</h3>"], NO_TIMES),
}


@pytest.mark.parametrize(("requests", "shown", "hidden"), SAYS.values(), ids=SAYS)
def test_what_a_page_says(requests: list[Any], shown: list[str], hidden: str) -> None:
    page = report_of(*requests).html()
    assert [text for text in shown if text not in page] == []
    assert not re.search(hidden, page)


def test_times_of_a_short_run_can_be_told_apart() -> None:
    page = _Page(report_of(over_time(0.0, 0.1, 0.2, 0.3)).html())
    (drawn,) = [one for one in page.packed() if "%H:%M" in one]
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
