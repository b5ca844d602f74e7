"""The page: nothing of the telemetry is ever markup, nothing is loaded, and it stays small."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("bokeh")

from bokeh.resources import Resources

from dask_otel.core.diagnosis import Diagnosis
from dask_otel.report.account import account
from dask_otel.report.document import Report
from dask_otel.report.page.payload import timeline
from tests.unit.report_files import (
    EVIL,
    Page,
    counter,
    everything,
    level,
    log,
    logs,
    many,
    metrics,
    point,
    report_of,
    run_of,
    span,
    traces,
    unpacked,
)
from tests.unit.test_report_path import bounded, link

# One process imports the libraries of pages.
pytestmark = pytest.mark.xdist_group("page")


def shown(text: str) -> str:
    """The page of a run with that text in every place, and on a path."""
    root = bounded(50, text, {"compute": 1.0}, **{"dask.span.root.id": "id-50"})
    path = traces(root, link(51, 50, text, 1.0, compute=1.0), instance=text, cluster=text)
    return report_of(*everything(text), path, price=1.0).html()


@pytest.fixture(scope="module")
def hostile() -> str:
    return shown(EVIL)


def test_hostile_text_is_shown_and_never_markup_nor_a_link(hostile: str) -> None:
    text = "javascript:" + re.sub("[<>\"'&`]", "_", EVIL)
    tame = shown(text)
    before, after = Page(tame), Page(hostile)
    # The same elements with the same attributes' names: none was added.
    assert [(tag, sorted(found)) for tag, found in after.tags] == [
        (tag, sorted(found)) for tag, found in before.tags
    ]
    assert hostile.count("<script") == tame.count("<script")
    escaped = "&lt;/script&gt;&lt;script&gt;window.pwned=1"
    assert (escaped in hostile, EVIL in hostile) == (True, False)
    assert hostile.count("<h2>Tasks on the path</h2>") == 1
    # It is there for the timeline, as data.
    assert json.dumps(EVIL)[1:-1] in "".join(after.packed)
    # Only addresses of the web are links.
    links = [str(found["href"]) for page in (before, after) for found in page.of("a")]
    assert {one.startswith("https://dask-otel.readthedocs.io/") for one in links} == {True}


def test_nothing_is_loaded_and_scripts_run_by_their_hashes_alone(hostile: str) -> None:
    page = Page(hostile)
    policies = [found for found in page.of("meta") if "Policy" in str(found.get("http-equiv"))]
    policy = str(policies[0]["content"])
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    hashes = {hashlib.sha256(text.encode()).digest() for text in page.running}
    assert {*rules["script-src"].split()} == {
        f"'sha256-{base64.b64encode(one).decode()}'" for one in hashes
    }
    assert (rules["default-src"], "http" in policy) == ("'none'", False)
    assert not {"link", "iframe", "object", "base", "form"} & {tag for tag, _ in page.tags}
    names = {name for _, found in page.tags for name in found}
    assert [name for name in names if name == "src" or name.startswith("on")] == []


def test_redacted_pages_have_no_secret() -> None:
    requests, secret = everything("name"), "S3CRET"
    hidden = {
        *("dask.task.key", "dask.task_group.name", "code.file.path", "name"),
        *("exception.message", "exception.stacktrace"),
    }
    for one in requests[0]["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        one["status"]["message"] = secret
        inner = [a for event in one["events"] for a in event["attributes"]]
        for item in [*one["attributes"], *inner]:
            if item["key"] in hidden:
                item["value"] = {"stringValue": secret}
    report = report_of(*requests, traces({**span(50, secret), "attributes": []}), price=1.0)
    for shown, is_there in ((report, True), (report.redacted(), False)):
        page = shown.html()
        for text in (
            page + "".join(Page(page).packed),
            shown.text(everything=True),
            json.dumps(shown.to_dict()),
        ):
            assert (secret in text) == is_there
    assert "redacted" in page
    # It still tells the tasks apart, and what failed.
    assert shown.to_dict()["runs"][0]["failures"][0]["kind"] == "name"


def test_a_prompt_shows_its_text_and_a_notebook_a_frame() -> None:
    shown = report_of(traces(span(1, "train")))
    assert repr(shown) == shown.text() != ""
    ((tag, found),) = Page(shown._repr_html_()).tags
    assert (tag, found["sandbox"]) == ("iframe", "allow-scripts allow-popups")
    assert "<!DOCTYPE html>" in str(found["srcdoc"])


def test_a_page_grows_by_less_than_two_hundred_bytes_a_span() -> None:
    """Beside Bokeh's own script, which grows with its releases."""
    drawn = sum(map(len, Resources(mode="inline", components=["bokeh"]).js_raw))
    few, more = (len(Report([many(count)]).html()) - drawn for count in (100, 1_100))
    assert few < 60_000
    assert more - few < 1_000 * 200


def over_time(*times: float) -> dict[str, Any]:
    """Idle seconds and the capacity, as they were at some times."""
    idle = [point(time, {"dask.activity": "idle"}, time=time) for time in times]
    capacity = [point(time, time=time) for time in times]
    return metrics(
        counter("dask.cluster.time", *idle), counter("dask.cluster.capacity.time", *capacity)
    )


ALICE = {"dask.worker.name": "alice", "dask.task.outcome": "memory"}
MEMORY = level("dask.worker.memory.usage", point(5.0, ALICE))
#: Only one of its tasks has a span.
SHORT = traces(
    span(1, "etl", dask_span_root_id="id-1", dask_worker_count=3),
    span(2, "work", parent=1, kind="task", dask_worker_name="alice"),
)
NO_TIMES = "OTEL_METRIC_EXPORT_INTERVAL"
#: Requests, what the page of them says, and what it does not.
SAYS = {
    # A short run ends before its first export of metrics.
    "no memory exported": (
        [SHORT],
        ["tasks shown here", '<b class="">3</b><span>workers</span>'],
        "(memory|spilled), at most",
    ),
    "memory exported": (
        [SHORT, metrics(MEMORY)],
        ["tasks shown here", "memory, at most"],
        "spilled, at most",
    ),
    "a worker that only an event names": (
        [
            SHORT,
            *(
                logs(log(n, "", "dask.worker.added", **{"dask.worker.name": f"w{n}"}))
                for n in range(4)
            ),
        ],
        ['<b class="">5</b><span>workers</span>', '<td class="name">w3</td>'],
        "<span>worker</span>",
    ),
    # From the begin of the metrics on, which is the bridge's, and not from the first span's.
    "as long as its thread-time was counted": (
        [
            traces(span(1, "etl", start=6, seconds=2)),
            metrics(counter("dask.cluster.capacity.time", point(0.0, time=0), point(20.0, time=8))),
        ],
        [
            '<b class="">8.00 s</b><span>observed</span>',
            '<b class="">2.5</b><span>mean threads</span>',
        ],
        "<span>observed</span>.*<span>observed</span>",
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
    "one interval": ([SHORT, over_time(0, 10)], [NO_TIMES], "<h2>Threads’ time over time</h2>"),
    "two intervals": ([SHORT, over_time(0, 5, 10)], ["<h2>Threads’ time over time</h2>"], NO_TIMES),
}


@pytest.mark.parametrize(("requests", "shown", "hidden"), SAYS.values(), ids=SAYS)
def test_what_a_page_says(requests: list[Any], shown: list[str], hidden: str) -> None:
    page = report_of(*requests).html()
    assert [text for text in shown if text not in page] == []
    assert not re.search(hidden, page)


CAUSES = [
    Diagnosis(
        kind, "etl", 10.0 - number, f"Title of {kind}.", f"Evidence of {kind}.", f"Cure of {kind}."
    )
    for number, kind in enumerate(("threads", "starting", "lost", "spill", "client"))
]


def test_page_and_text_tell_one_story(monkeypatch: pytest.MonkeyPatch) -> None:
    """The headline and the other causes; all else is below."""
    given = replace(account(run_of(traces(span(1, "etl", seconds=20)))), diagnoses=CAUSES)
    monkeypatch.setattr(Report, "accounts", lambda report: [given])
    found = Report([given.session])
    short, everything, page = found.text(80), found.text(80, everything=True), found.html()
    shown = {
        what: [re.findall(rf"{what} of (\w+)", text) for text in (short, everything, page)]
        for what in ("Title", "Evidence", "Cure")
    }
    five = [one.kind for one in CAUSES]
    more = [five[:1], five, five]
    assert shown == {"Title": [five] * 3, "Evidence": more, "Cure": more}
    assert short.count("The cure can save about 10.0 s.") == 1
    # Nothing comes before it but the title and the key figures.
    lines = short.splitlines()
    assert lines[2:4] == ["", "Title of threads."]
    assert lines.index("Where to look next") < 20
    assert max(map(len, lines)) <= 80
    links = [str(one["href"]) for one in Page(page).of("a")]
    assert [link.partition("/diagnoses.html#")[2] for link in links] == five
    first = page.partition("<main>")[2].partition("</div>")[0]
    assert ("Title of threads." in first, 'class="verdict warning"' in first) == (True, True)


@pytest.mark.parametrize(
    ("kind", "seconds", "severity"),
    [
        ("threads", 5.1, "warning"),
        ("threads", 4.9, "note"),
        ("failed", 0.0, "bad"),
        ("lost", 0.1, "bad"),
        ("gaps", 0.0, "warning"),
        ("healthy", 0.0, "good"),
        ("short", 0.0, "note"),
    ],
)
def test_a_severity_is_the_share_that_the_cure_saves(
    kind: str, seconds: float, severity: str
) -> None:
    given = account(run_of(traces(span(1, "etl", seconds=20, dask_span_root_id="id-1"))))
    assert given.severity(Diagnosis(kind, "", seconds, "", "", "")) == severity


def test_times_of_a_short_run_can_be_told_apart() -> None:
    page = Page(report_of(over_time(0.0, 0.1, 0.2, 0.3)).html())
    assert '"milliseconds":"%H:%M:%S.%3N"' in "".join(page.packed)


def test_what_has_no_row_is_said_and_parents_may_go_in_a_circle() -> None:
    run = many(50)
    for one in run.spans[25:]:
        one.attributes["dask.span.type"] = "task"
    run.spans[40].failed = True
    run.spans[0].parent_id = run.spans[2].span_id
    found = timeline(run, most=26)
    rows = json.loads(unpacked(found["packed"]))["rows"]
    assert (found["rows"], found["folded"], len(rows)) == (26, 24, 26)
    assert [row[6] for row in rows if row[2] == 2] == [1]
    assert [row[3] for row in rows if row[0] == -1].count("step 0") >= 2
