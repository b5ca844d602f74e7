"""What the doctor makes of facts, how it shows them, and what it reads back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import reduce
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from operator import getitem
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_otel import semconv
from dask_otel.core.metrics.batch import MetricBatch
from dask_otel.doctor import backends
from dask_otel.doctor.backends import read_back
from dask_otel.doctor.finding import Finding, exit_code
from dask_otel.doctor.findings import all_findings
from dask_otel.doctor.page import as_json, as_text
from tests.limits import make_state

VERSIONS = {"python": "3.12.1", "dask-otel": "1", "distributed": "2", "opentelemetry-sdk": "3"}
ADDRESS = "tcp://scheduler:8786"


def worker(name: str, age: float = 0.1, clock: Any = (-0.01, 0.01)) -> dict[str, Any]:
    return {"address": f"tcp://{name}", "name": name, "last_seen_age": age, "clock": clock}


def result(signal: str, **changes: Any) -> dict[str, Any]:
    return {
        "signal": signal,
        "destination": "http://collector:4317 (OTLP over gRPC)",
        "endpoint": ["http://collector:4317", "gRPC"],
        "ok": True,
        "reason": "",
        "lost": 0,
        "said": "",
        "advice": "",
        "listener": None,
        "seconds": 0.1,
        **changes,
    }


def facts(**changes: Any) -> dict[str, Any]:
    """Return the facts of a healthy scheduler, with changes: ``where__key=value``."""
    said: dict[str, Any] = {
        "here": {"versions": VERSIONS, "fusion": False},
        "scheduler": ADDRESS,
        "packages": {
            "scheduler": {"installed": True, "version": "1"},
            "workers": {"a": {"installed": True, "version": "1"}},
        },
        "process": {
            "format": 1,
            "versions": VERSIONS,
            "fusion": None,
            "problems": [],
            "enabled": True,
            "linger": 2.0,
            "settle_timeout": 30.0,
            "prometheus": False,
            "settings": [["otel.enabled", "true", "default"]],
            "variables": [],
            "probe": {
                "disabled": False,
                "run": "r",
                "trace_id": "0" * 31 + "1",
                "span_id": "0" * 15 + "1",
                "results": [result("traces"), result("metrics")],
            },
            "bridge": {
                "state": "running",
                "exporting": True,
                "destinations": [{"destination": "x", "failing": [], "reason": ""}],
                "counts": [["dask.otel.dropped", "traces", "queue_full", 0.0]],
                "waiting": 7,
                "capacity": 10,
            },
            "workers": workers(worker("a"), worker("b")),
        },
    }
    for path, value in changes.items():
        *where, key = path.split("__")
        reduce(getitem, where, said)[key] = value
    return said


def workers(*them: dict[str, Any]) -> dict[str, Any]:
    return {"count": len(them), "heartbeat_interval": 0.5, "workers": [*them]}


ALONE = {"scheduler": None, "packages": None, "process__bridge": None, "process__workers": None}


@pytest.mark.parametrize(
    ("changes", "colours", "shown"),
    [
        ({}, False, "\nAll is well, 0 notes.\n"),
        ({}, True, "\x1b[32mok"),
        (ALONE, False, "unknown whether a bridge runs"),
        (ALONE, False, "\nAll is well on this machine, 1 note.\n"),
    ],
)
def test_all_is_well(changes: dict[str, Any], colours: bool, shown: str) -> None:
    findings = all_findings(facts(**changes))
    assert {f.level for f in findings} <= {"ok", "note"}
    assert (exit_code(findings), shown in as_text(facts(**changes), findings, colours=colours)) == (
        0, True,
    )  # fmt: skip


REFUSED = [
    result("traces", ok=False, reason="ConnectionRefusedError", listener="refused"),
    result("metrics"),
]
CLOCKS = workers(
    worker("slow", clock=(3.0, 3.2)),
    worker("fast", clock=(None, -7.0)),
    # Perhaps only the messages are slow.
    worker("far", clock=(-9.0, 9.0)),
    worker("new", clock=(None, None)),
)
COUNTS = [
    ["dask.otel.internal.errors", "tick", 2.0],
    ["dask.otel.dropped", "traces", "queue_full", 3.0],
    ["dask.otel.dropped", "metrics", "rejected", 4.0],
    ["dask.otel.folded", "names", 5.0],
    ["dask.otel.exported", "traces", 6.0],
]


@pytest.mark.parametrize(
    ("changes", "problems", "notes"),
    [
        ({"problems": ["otel.x is wrong."]}, {"configuration": "otel.x is wrong."}, {}),
        ({"enabled": False}, {"configuration": "switched off"}, {}),
        (
            {"misspelled": [["OTEL_SERVICE_NMAE", "OTEL_SERVICE_NAME"]]},
            {"configuration": "OTEL_SERVICE_NMAE"},
            {},
        ),
        ({"mistakes": ["OTEL_X is 'y'."]}, {"configuration": "OTEL_X is 'y'."}, {}),
        ({"bridge__state": "absent"}, {"bridge": "no bridge runs"}, {}),
        ({"bridge__state": "starting"}, {"bridge": "not made its exporters"}, {}),
        (
            {
                "bridge__destinations": [
                    {"destination": "there", "failing": ["metrics", "spans"], "reason": "no"}
                ]
            },
            {"bridge.delivery": "metrics and spans to there at the moment: no. 7 of 10 places"},
            {},
        ),
        *(
            (
                {
                    "bridge__destinations": [
                        {**result(""), "failing": ["spans"], "reason": "DEADLINE_EXCEEDED: late"}
                    ],
                    "probe__results": [result("traces"), result("metrics", **changes)],
                },
                {"bridge.delivery": words, **also},
                {},
            )
            for changes, words, also in (
                # Not: see the test, which is well.
                ({}, "at the moment: DEADLINE_EXCEEDED: late. The test was accepted", {}),
                (
                    {"ok": False, "reason": "no", "listener": "silent"},
                    "at the moment. 7 of 10 places of its queue are taken; items that do not "
                    "fit are dropped. See the test",
                    {"export.metrics": "no"},
                ),
            )
        ),
        (
            {"bridge__counts": COUNTS},
            {"counts.internal.errors": "2 (tick 2)"},
            {
                "counts.dropped": "7 (metrics/rejected 4, traces/queue_full 3)",
                "counts.folded": "5 (names 5)",
            },
        ),
        ({"settle_timeout": 0.9}, {"workers.heartbeats": "every 0.5 s"}, {}),
        ({"workers": workers()}, {"workers.count": "no workers"}, {}),
        ({"workers": workers(worker("w", 60.0))}, {"workers.heartbeats": "w (60 s)"}, {}),
        (
            {"workers": CLOCKS},
            {"workers.clocks": "on 2 workers: slow (3.0 s behind), fast (7.0 s ahead)"},
            {},
        ),
        (
            {"probe": None, "timed_out": 45.0},
            {"export": "did not end within 45 s"},
            {},
        ),
        ({"probe__results": REFUSED}, {"export.traces": "No endpoint is configured"}, {}),
        (
            {
                "probe__results": REFUSED,
                "variables": [["OTEL_EXPORTER_OTLP_ENDPOINT", "x", "environment"]],
            },
            {"export.traces": "Nothing listens at collector:4317"},
            {},
        ),
        (
            {"probe__results": [result("traces", lost=1, said="too old"), result("metrics")]},
            {"export.traces": "too old"},
            {},
        ),
        (
            {"probe__results": [result("traces", said="deprecated"), result("metrics")]},
            {},
            {"export.traces": "deprecated"},
        ),
        (
            {
                "probe__results": [
                    result(signal, endpoint=["http://collector:4317/v1/traces", "gRPC"])
                    for signal in ("traces", "metrics")
                ]
            },
            {},
            {"export.address": "ignores the path /v1/traces"},
        ),
        # The application's provider keeps the answers.
        (
            {"probe__results": [result("traces", ok=None, destination="it"), result("metrics")]},
            {},
            {"export.traces": "was given to it"},
        ),
        (
            {"probe__results": []},
            {},
            {"export.traces": "No traces", "export.metrics": "No metrics"},
        ),
        ({"probe__results": [], "prometheus": True}, {}, {"export.traces": "No traces"}),
        (
            {"variables": [["OTEL_TRACES_SAMPLER", "always_off", "environment"]]},
            {},
            {"export.sampler": "always_off"},
        ),
        (
            {"variables": [["OTEL_EXPORTER_OTLP_TIMEOUT", "10000", "environment"]]},
            {},
            {"export.timeout": "set it to 10."},
        ),
        (
            {"_packages__workers": {"a": {"installed": False}, "b": None, "c": {"installed": 1}}},
            {"workers.answer": "No answer from 1 worker: b"},
            {"workers.package": "1 of 3 workers"},
        ),
        # One that hangs keeps the answers of all.
        ({"_packages__workers": None}, {"workers.answer": "Not all workers have answered"}, {}),
        (
            {"_packages__scheduler__installed": False, "_process": None},
            {"scheduler.package": "The scheduler has no dask-otel"},
            {},
        ),
        (
            {"_here": {"versions": {**VERSIONS, "python": "3.9.0"}, "fusion": None}},
            {},
            {
                "versions": "python 3.9.0 here, 3.12.1 there",
                "fusion": '"optimization.fuse.active": False',
            },
        ),
    ],
)
def test_what_is_found(
    changes: dict[str, Any], problems: dict[str, str], notes: dict[str, str]
) -> None:
    said = facts(**{k[1:] if k[0] == "_" else f"process__{k}": v for k, v in changes.items()})
    findings = all_findings(said)
    for level, words in (("problem", problems), ("note", notes)):
        found = {
            f.check: " ".join((f.what, *f.why.split(), f.next))
            for f in findings
            if f.level == level
        }
        assert found.keys() == words.keys()
        assert [check for check, text in words.items() if text not in found[check]] == []
    assert [f for f in findings if f.level == "problem" and not f.next] == []
    text = as_text(said, findings)
    page = " ".join(text.split())
    assert [f.what for f in findings if " ".join(f.what.split()) not in page] == []
    assert (exit_code(findings), max(map(len, text.splitlines())) <= 80) == (bool(problems), True)


def test_each_failure_is_explained_once() -> None:
    words = "UNAVAILABLE: ipv{}: Connection refused"
    failing = {"failing": ["metrics", "spans"], "reason": words.format(6)}
    said = facts(
        process__variables=[["OTEL_EXPORTER_OTLP_ENDPOINT", "x", "environment"]],
        process__probe__results=[
            result("traces", ok=False, reason=words.format(4), listener="refused"),
            result("metrics", ok=False, reason=words.format(6), listener="refused"),
        ],
        process__bridge__destinations=[{"destination": result("traces")["destination"], **failing}],
    )
    findings = all_findings(said)
    page = " ".join(as_text(said, findings, 200).split())
    for text in (
        *("Connection refused", "Nothing listens at"),
        "did not accept the test counter either.",
        "can't deliver metrics and spans to http://collector:4317",
    ):
        assert page.count(text) == 1, text
    # For scripts, each finding is whole.
    exports = [(f.kind, bool(f.why)) for f in findings if f.check.startswith("export.")]
    assert {*exports} == {("refused", True)}
    # Another failure is another matter.
    other = "http://other:4317 (OTLP over gRPC)"
    said["process"]["bridge"]["destinations"][0] |= {"destination": other}
    assert as_text(said, all_findings(said), 200).count("Connection refused") == 2


def test_the_bridge_s_own_counts_are_those_that_it_exports() -> None:
    state, own = make_state(1), {("dask.otel.callers", "malformed"): 1}
    state.apply(MetricBatch(10, increments={**own, (semconv.SPAN_ACTIVE.name, ("a",)): 1}))
    assert state.totals("dask.otel.") == own


# ------------------------------------------------------------------------------- the page


@given(st.text(), st.text(), st.text(), st.integers(60, 100))
def test_whatever_was_said_the_page_is_plain(what: str, why: str, value: str, width: int) -> None:
    said = facts(process__variables=[["OTEL_SERVICE_NAME", value, "environment"]])
    findings = [Finding("x", "problem", what, why, "do")]
    page = as_text(said, findings, width, everything=True)
    assert [c for c in page if not (c.isprintable() or c == "\n")] == []
    for line in page.partition("Configuration in force")[0].splitlines()[2:]:
        # A word longer than what is left of a line stays whole.
        assert len(line) <= width or max(map(len, line.split())) > width - 15
    # Its keys are kept.
    finding = {"check": "x", "level": "problem", "what": what, "why": why, "next": "do", "kind": ""}
    document = {
        "format": 1,
        "ok": False,
        "findings": [finding],
        "facts": json.loads(json.dumps(said)),
    }
    assert json.loads(as_json(said, findings)) == document


# --------------------------------------------------------------------------- reading back

PROBE = {"run": "0123456789abcdef", "trace_id": f"{10:032x}", "span_id": f"{11:016x}"}
JAEGER = {"data": [{"spans": [{"spanID": f"{11:x}"}]}]}
TEMPO = {"batches": [{"scopeSpans": [{"spans": [{"spanId": "AAAAAAAAAAs="}]}]}]}
PROMETHEUS = {"data": {"result": [{"metric": {"dask_otel_doctor_run": PROBE["run"]}}]}}


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A server of answers, (status, body); it repeats the last one. Its requests, too."""
    asked: list[Any] = []
    answers: list[tuple[int, Any]] = []
    monkeypatch.setattr(backends, "_PAUSE", 0.01)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((urlsplit(self.path), self.headers["Authorization"]))
            status, body = answers.pop(0) if len(answers) > 1 else answers[0]
            self.send_response_only(status)
            self.end_headers()
            self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

    with (
        ThreadPoolExecutor(1) as threads,
        ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server,
        ExitStack() as stop,
    ):
        threads.submit(server.serve_forever, 0.05)
        stop.callback(server.shutdown)
        yield SimpleNamespace(asked=asked, answers=answers, place=f"127.0.0.1:{server.server_port}")


TRACE = f"/api/traces/{PROBE['trace_id']}"
NONE_YET = (200, {"data": [], "batches": []})
ANOTHER = (200, {"data": {"result": [{"metric": {"run": "another"}}]}})


@pytest.mark.parametrize(
    ("name", "path", "answers"),
    [
        ("jaeger", TRACE, [(404, b"no such trace"), NONE_YET, (200, JAEGER)]),
        ("tempo", TRACE, [(404, b"no such trace"), NONE_YET, (200, TEMPO)]),
        ("prometheus", "/api/v1/query", [ANOTHER, ANOTHER, (200, PROMETHEUS)]),
    ],
)
def test_it_is_found_once_it_is_there(api: Any, name: str, path: str, answers: list[Any]) -> None:
    api.answers += answers
    (finding,) = read_back({name: f"http://u:geheim@{api.place}/prefix/"}, PROBE, 60)
    assert (finding.level, "geheim" in repr(finding)) == ("ok", False)
    assert [(url.path, key) for url, key in api.asked] == [
        (f"/prefix{path}", "Basic dTpnZWhlaW0=")
    ] * 3
    query = parse_qs(api.asked[0][0].query).get("query", [""])
    assert ("dask.otel.doctor.checks" in query[0]) == (name == "prometheus")


MISSING = "did not receive the test"


@pytest.mark.parametrize(
    ("name", "place", "answer", "words"),
    [
        ("jaeger", "http://{}", (200, {"data": []}), MISSING),
        ("tempo", "http://{}", (200, {}), MISSING),
        ("prometheus", "http://{}", (200, {"data": {"result": []}}), MISSING),
        *(
            (name, "http://{}", *answer)
            for name in ("jaeger", "prometheus")
            for answer in (
                ((500, b""), "HTTP status 500"),
                ((200, b"<html>"), "not from its API"),
                ((200, []), "not from its API"),
            )
        ),
        ("jaeger", "http://127.0.0.1:1", None, "Nothing listens at 127.0.0.1:1"),
        ("tempo", "{}", None, "begins with http://"),
        ("prometheus", "http://[", None, ""),
    ],
)
def test_what_is_no_backend_or_never_has_it(
    api: Any, name: str, place: str, answer: Any, words: str
) -> None:
    api.answers.append(answer)
    (finding,) = read_back({name: place.format(api.place)}, PROBE, 0.05)
    found = (finding.level, words in finding.what + finding.why, "--patience" in finding.next)
    assert found == ("problem", True, words == MISSING)
