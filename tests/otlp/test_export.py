"""Records over real sockets: which arrive, which are refused, and which an outage costs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dask_otel.core import identity
from dask_otel.core.records import Answer, Event, Link
from tests.otlp.conftest import Begin, Build, send
from tests.otlp.pipeline import make_batch, make_span
from tests.otlp.records import ROOT, counter, number
from tests.receiver import Receiver
from tests.waiting import eventually

# Others go on in the other processes meanwhile.
pytestmark = pytest.mark.xdist_group("waiting")

# ------------------------------------------------------------------------------- what arrives


@pytest.mark.parametrize("compression", ["gzip", "none", "GZIP"])
def test_compression(server: Receiver, build: Build, compression: str) -> None:
    outputs = build(server.environ, OTEL_EXPORTER_OTLP_COMPRESSION=compression)
    assert send(outputs.span_sinks[0], [ROOT]).taken
    assert send(outputs.metric_sinks[0], [counter(number(1))]).taken
    assert ([s.name for s in server.spans], len(server.points)) == (["nightly"], 1)
    # gRPC keeps its own header to itself.
    if server.protocol == "http/protobuf":
        wanted = "gzip" if compression.lower() == "gzip" else None
        assert [r[2].get("content-encoding") for r in server.requests] == [wanted] * 2


@pytest.mark.parametrize(
    ("login", "variables", "expected"),
    [
        ("", {"OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20ours"}, "Bearer ours"),
        ("", {}, None),
        ("ours:word@", {}, "Basic b3Vyczp3b3Jk"),
    ],
)
def test_a_netrc_has_no_login_for_us(
    http: Receiver,
    build: Build,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    login: str,
    variables: dict[str, str],
    expected: str | None,
) -> None:
    """It is another program's, and would win over the configured one."""
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login theirs password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    endpoint = http.endpoint.replace("//", f"//{login}")
    environ = {**http.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}
    (sink,) = build(environ, **variables).span_sinks
    assert (
        send(sink, [ROOT]),
        [headers.get("authorization") for _, _, headers in http.requests],
    ) == (Answer(True), [expected])


# -------------------------------------------------------------------------------- limits


@pytest.mark.parametrize(
    ("limits", "attributes", "events", "links", "dropped"),
    [
        (
            {
                "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "2",
                "OTEL_SPAN_EVENT_COUNT_LIMIT": "1",
                "OTEL_SPAN_LINK_COUNT_LIMIT": "0",
                "OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT": "1",
                "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": "4",
            },
            {"first": "1234", "second": ("123…", "1")},
            [("one", 1, {"a": "123…"})],
            [],
            (1, 1, 1),
        ),
        # A general limit is lower than a special default.
        (
            {
                "OTEL_ATTRIBUTE_COUNT_LIMIT": "1",
                "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": "1",
                "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT": "3",
            },
            {"first": "12…"},
            [("one", 1, {"a": "…"}), ("two", 2, {})],
            [(1, 2, {})],
            (2, 0, 0),
        ),
    ],
)
def test_limits_lower_ours_and_every_cut_is_counted(
    server: Receiver,
    build: Build,
    limits: dict[str, str],
    attributes: dict[str, Any],
    events: list[Any],
    links: list[Any],
    dropped: tuple[int, int, int],
) -> None:
    (sink,) = build(server.environ, **limits).span_sinks
    whole = replace(
        ROOT,
        attributes={"first": "1234", "second": ("12345", "1"), "third": 3},
        events=(Event("one", 1, {"a": "123456", "b": 1}), Event("two", 2, {})),
        links=(Link(1, 2),),
    )
    send(sink, [whole])
    (span,) = server.spans
    found = (span.attributes, span.events, span.links, span.dropped)
    assert found == (attributes, events, links, dropped)


# --------------------------------------------------------------------------------- refusals


def test_an_outage_loses_nothing_and_is_said_once(
    server: Receiver,
    begin: Begin,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All between the event loop and the socket is real: totals, pump, exporters."""
    monkeypatch.setattr("dask_otel.pump.policy.FIRST_BACKOFF", 0.1)
    caplog.set_level(logging.INFO)
    server.answer = "UNAVAILABLE" if server.protocol == "grpc" else 503
    running = begin(server.environ | {"OTEL_METRIC_EXPORT_INTERVAL": "100"})

    def comes(check: Callable[[], object]) -> None:
        """Wait for a check, with metrics again and again, as the bridge sends them."""
        eventually(lambda: (running.offer_metrics(make_batch(0.0)), check())[1])

    names = [f"root-{number}" for number in range(100)]
    assert all(running.spans.offer(make_span(name)) for name in names)
    running.offer_metrics(make_batch(1.0))
    comes(lambda: {"traces", "metrics"} == {signal for signal, _, _ in server.requests})
    running.offer_metrics(make_batch(2.0))
    server.answer = None
    running.offer_metrics(make_batch(4.0))
    comes(lambda: list(server.last("dask.span.execute.time").values()) == [7.0])
    comes(lambda: 100 in server.last("dask.otel.exported").values())
    found = sorted(span.span_id for span in server.spans if span.type == "span")
    assert found == sorted(map(identity.span_id, names))
    assert server.last("dask.otel.dropped") == {}
    comes(lambda: "again" in caplog.text)
    (said,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert server.endpoint in said
    assert "has an internal error" in said
    assert not [r for r in caplog.records if r.name.startswith("opentelemetry")]
