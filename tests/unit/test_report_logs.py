"""What happened, in the report: read from log records, listed, marked, and left out for sharing."""

from __future__ import annotations

import base64
import gzip
import json
import re
from typing import Any

import pytest

from dask_otel import semconv
from dask_otel.report.page.payload import timeline
from tests.unit.report_files import BEGIN, log, logs, report_of, run_of, span, traces

LAST = "The last lines of its log:\n0.3 s before: ERROR loader: the disk is full"
LOST = log(
    4,
    f"Worker 3 (tcp://w:1) was lost. {LAST}",
    semconv.WORKER_REMOVED,
    17,
    **{
        semconv.WORKER_NAME: "3",
        semconv.WORKER_REMOVAL_REASON: "lost",
        semconv.WORKER_LAST_LINES: ["0.3 s before: ERROR loader: the disk is full"],
    },
)
SAID = log(3, "row 7 is wrong", **{semconv.TASK_KEY: "load-1", semconv.LOG_LOGGER: "loader"})
STARTED = log(0, "The scheduler starts.", semconv.SCHEDULER_STARTED, 9)


def failed(number: int, key: str, kind: str, worker: str, message: str = "no") -> dict[str, Any]:
    """A failed task, as its span."""
    about = {
        semconv.EXCEPTION_TYPE: kind,
        semconv.EXCEPTION_MESSAGE: message,
        semconv.EXCEPTION_STACKTRACE: "Traceback: no",
        semconv.TASK_KEY: key,
        semconv.WORKER_NAME: worker,
    }
    return span(number, "load", kind="task", parent=1, failed=True, events=(("exception", about),))


FILES = (
    traces(
        span(1, "nightly", failed=True),
        failed(2, "load-1", "KeyError", "5"),
        failed(3, "load-2", "KilledWorker", "3"),
    ),
    logs(LOST, SAID, STARTED),
)


def test_log_records_are_read_once_and_in_order() -> None:
    run = run_of(*FILES, FILES[1])
    assert [(one.body, one.level, one.is_event) for one in run.logs] == [
        ("The scheduler starts.", "INFO", True),
        ("row 7 is wrong", "WARN", False),
        (f"Worker 3 (tcp://w:1) was lost. {LAST}", "ERROR", True),
    ]
    assert (run.logs[0].time_ns, semconv.EVENT_NAME in run.logs[0].attributes) == (BEGIN, False)
    # Scripts get them all.
    (plain,) = json.loads(json.dumps(report_of(*FILES).to_dict()))["runs"]
    assert (plain["events"][1], plain["failures"][0]["log"]) == (
        {
            "time": BEGIN / 1e9 + 3,
            "name": semconv.WORKER_LOG,
            "severity": "WARN",
            "body": "row 7 is wrong",
            "attributes": {semconv.TASK_KEY: "load-1", semconv.LOG_LOGGER: "loader"},
        },
        ["row 7 is wrong"],
    )


def test_they_are_bounded_and_what_is_left_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dask_otel.report.telemetry.reader.MOST_LOGS", 20)
    report = report_of(FILES[0], logs(*(log(number, "x") for number in range(27))))
    assert (len(report.runs[0].logs), report.to_dict()["skipped"]) == (
        20,
        {"log record beyond the limit": 7},
    )


def test_logs_of_other_services_are_no_run_and_hostile_ones_hurt_nothing() -> None:
    foreign: Any = logs(SAID)
    foreign["resourceLogs"][0]["scopeLogs"][0]["scope"]["name"] = "other"
    wrong: Any = [
        {},
        {"body": 7, "severityNumber": "x", "attributes": 3},
        {"timeUnixNano": "-1"},
        8,
    ]
    (empty, *_) = run_of(FILES[0], foreign, logs(*wrong)).logs
    assert (empty.time_ns, empty.description, empty.level) == (0, "", "DEBUG")
    assert run_of(FILES[0], foreign).logs == []


def test_the_text_says_what_happened_and_what_was_logged_about_a_failure() -> None:
    text = report_of(*FILES).text(100, everything=True)
    assert re.search(
        r"""Failures
(?s:.*)KeyError: no
.*load-1
.*Traceback: no
 +log: row 7 is wrong
(?s:.*)KilledWorker: no
.*load-2
(.*\n)+ +log: 0\.3 s before: ERROR(?s:.*)What happened
.*4\.00 s ERROR Worker 3 \(tcp://w:1\) was lost\. The last lines of its log:
      \| 0\.3 s before: ERROR loader: the disk is full""",
        text,
    )
    assert "scheduler starts" not in text


def test_an_orderly_end_of_a_later_worker_of_the_name_is_no_cause_of_a_failure() -> None:
    about = {semconv.WORKER_NAME: "3", semconv.WORKER_REMOVAL_EXPECTED: True}
    left = log(9, "Worker 3 was closed.", semconv.WORKER_REMOVED, 9, **about)
    (account,) = report_of(*FILES, logs(left)).accounts()
    (found,) = (one.log for one in account.failures if one.kind == "KilledWorker")
    assert found == (f"Worker 3 (tcp://w:1) was lost. {LAST}",)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "Worker 3 (tcp://w:1) was killed by its nanny: its process held 989 MiB of 1.0 GiB. "
            "It had 1 task to run: `load`.",
            ": Worker 3 (tcp://w:1) was killed by its nanny: its process held 989 MiB of 1.0 GiB",
        ),
        (f"Worker 3 (tcp://w:1) was lost. {LAST}", ": Worker 3 (tcp://w:1) was lost"),
        # A redacted report has no texts of events.
        ("", ""),
    ],
)
def test_the_headline_says_how_the_last_worker_of_a_killed_task_ended(body: str, said: str) -> None:
    killed = traces(span(1, "nightly", failed=True), failed(3, "load-2", "KilledWorker", "3", ""))
    (account,) = report_of(killed, logs({**LOST, "body": {"stringValue": body}})).accounts()
    assert account.diagnoses[0].evidence == f"KilledWorker{said}"


def test_the_page_lists_marks_and_filters_them() -> None:
    report = report_of(*FILES)
    page = report.html()
    rows = re.findall(r'<tr data-severity="(\d+)"( data-worker)?>(.*?)</tr>', page, re.DOTALL)
    shown = ("", "load-1", "the disk is full")
    assert [
        (severity, bool(worker), piece in text)
        for piece, (severity, worker, text) in zip(shown, rows, strict=True)
    ] == [("9", False, True), ("13", True, True), ("17", False, True)]
    assert '<option value="13">' in page
    packed = json.loads(gzip.decompress(base64.b64decode(timeline(report.runs[0])["packed"])))
    assert packed["events"] == [[4.0, "ERROR", f"Worker 3 (tcp://w:1) was lost. {LAST}"]]


def test_the_severest_are_listed_and_left_out_records_are_no_news() -> None:
    left_out = log(2, "Worker 3 logs too much", semconv.WORKER_LOG_LEFT_OUT)
    run = run_of(FILES[0], logs(LOST, left_out, *(log(n, "x", severity=9) for n in range(40))))
    assert [one.name for one in run.warnings()] == [semconv.WORKER_REMOVED]
    assert [one.severity for one in run.happened(3)][-1] == 17


def test_a_redacted_report_has_no_bodies() -> None:
    report = report_of(*FILES).redacted()
    everything = report.text(100, everything=True) + report.html() + json.dumps(report.to_dict())
    secrets = ("row 7", "disk is full", "tcp://w:1", "load-1", "ERROR loader")
    assert [text for text in secrets if text in everything] == []
    assert [one.description for one in report.runs[0].logs] == [
        *(semconv.SCHEDULER_STARTED, semconv.WORKER_LOG, f"{semconv.WORKER_REMOVED} lost")
    ]
