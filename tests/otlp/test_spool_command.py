"""``dask-otel spool``: what waits is shown, and sent by the real exporters."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from dask_otel._otel.sdk.encode import Encoder, reread
from dask_otel.cli import main, spool
from dask_otel.core.context import Caller, Traceparent
from dask_otel.core.records import SpanRecord
from dask_otel.core.trace import Trace
from dask_otel.pump import destination
from dask_otel.spool.store import Encoded, Store
from tests.otlp.records import CHILD, ROOT, SECOND
from tests.receiver import Receiver, receiver, silent_server
from tests.waiting import eventually

RESOURCE = {
    "service.name": "dask-scheduler",
    "service.instance.id": "Scheduler-7",
    "dask.cluster.name": "nightly",
    "host.cpu": 2,
}
ENCODER = Encoder(RESOURCE, "0.0.7")
ALIVE = 1_700_000_009 * SECOND


def opened(path: Path, encoder: Encoder = ENCODER) -> Store:
    return Store.open(path, 100_000_000, encoder.origin, 1, reread)


def encoded(*records: SpanRecord, sink: str = "otlp") -> list[Encoded]:
    return [(sink, None, ENCODER.span(one)) for one in records]


def noted(record: SpanRecord, sink: str = "otlp") -> Encoded:
    return sink, b"%d" % record.span_id, ENCODER.span(record)


def fill(path: Path, count: int = 2, *, sink: str = "otlp", with_note: bool = True) -> list[int]:
    """Leave finished spans and an open one, as a run that was killed; return their ids."""
    store = opened(path)
    caller = Caller(Traceparent(ROOT.trace_id, 9, 1), "vendor=1")
    root = replace(ROOT, trace_id=Trace(ROOT.trace_id, "nightly", caller), parent_span_id=9)
    spans = [root, CHILD, *(replace(CHILD, span_id=100 + n) for n in range(count - 2))][:count]
    store.write(encoded(*spans, sink=sink), alive_ns=2)
    if with_note:
        note = replace(CHILD, span_id=77, name="open", attributes={"dask.span.complete": False})
        store.write([noted(note, sink)], alive_ns=ALIVE)
        spans.append(note)
    store.close(clean=False)
    return [span.span_id for span in spans]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spool.db"


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """However wide the terminal of whoever runs the tests is."""
    monkeypatch.setenv("COLUMNS", "120")


def use(monkeypatch: pytest.MonkeyPatch, server: Receiver, **more: str) -> None:
    for key, value in {**server.environ, **more}.items():
        monkeypatch.setenv(key, value)


def ids(server: Receiver) -> list[int]:
    return sorted(span.span_id for span in server.spans)


def test_what_waits_is_sent_as_its_own_run_would_have(
    server: Receiver,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wanted = fill(path)
    # What the run of this command has is not theirs.
    use(monkeypatch, server, OTEL_RESOURCE_ATTRIBUTES="service.instance.id=other,team=b")
    assert main(["spool", "--send", str(path)]) == 0
    assert ids(server) == sorted(wanted)
    for span in server.spans:
        assert span.resource == RESOURCE
        assert span.scope[1] == "0.0.7"
        assert span.trace_id == ROOT.trace_id
    by_id = {span.span_id: span for span in server.spans}
    root = by_id[ROOT.span_id]
    assert (root.name, root.start_ns, root.end_ns) == ("nightly", ROOT.start_ns, ROOT.end_ns)
    assert root.attributes == ROOT.attributes
    assert root.parent_id == 9
    states = {
        span.trace_state
        for _, request in server.accepted
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
        if span.name == "nightly"
    }
    assert states == {"vendor=1"}
    # What was open ends at the run's last sign of life.
    assert by_id[77].end_ns == ALIVE
    told = capsys.readouterr()
    assert told.out.startswith("3 spans sent to ")
    assert told.out.endswith(f"; 0 left in {path}\n")
    assert told.err == ""
    assert list(path.parent.iterdir()) == []


def test_an_empty_one_is_said_to_be(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened(path).close(clean=False)
    path.touch(0o600)
    assert main(["spool", "--send", str(path)]) == 0
    assert capsys.readouterr().out == f"nothing waits in {path}\n"


@pytest.mark.parametrize("options", [[], ["--send"]])
def test_what_can_not_be_read_is_said_in_words(
    options: list[str], path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["spool", *options, str(path)]) == 1
    assert capsys.readouterr().err == f"dask-otel spool: there is no {path}\n"
    path.write_text("a letter")
    assert main(["spool", *options, str(path)]) == 1
    assert "is no spool of dask-otel" in capsys.readouterr().err
    assert path.read_text() == "a letter"


def test_one_that_a_scheduler_has_is_not_sent(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = opened(path)
    store.write([noted(ROOT), *encoded(CHILD)], alive_ns=2)
    assert main(["spool", "--send", str(path)]) == 1
    assert f"is in use by process {os.getpid()}" in capsys.readouterr().err
    # It can be looked at meanwhile.
    assert main(["spool", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "1 span to be sent" in shown
    assert f"process {os.getpid()} uses it and sends them; 1 span open" in shown
    store.write(encoded(ROOT), alive_ns=3)
    assert [row.body for row in store.waiting("otlp", 0, 9)] == [
        ENCODER.span(CHILD),
        ENCODER.span(ROOT),
    ]
    store.close(clean=True)


def test_nobody_at_the_endpoint_leaves_all_of_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(path)
    with receiver("http/protobuf") as gone:
        environ = gone.environ
    for key, value in environ.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    assert main(["spool", "--send", "--patience", "0", str(path)]) == 1
    told = capsys.readouterr()
    assert told.out == f"0 spans sent; 3 left in {path}\n"
    assert "Nothing listens" in told.err


def test_a_request_of_hours_does_not_hold_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(path)
    monkeypatch.setattr(destination, "LONG", 0.1)
    monkeypatch.setattr(spool, "_CLOSING", 0.1)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "10000")
    with silent_server() as endpoint:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        assert main(["spool", "--send", "--patience", "0", str(path)]) == 1
        told = capsys.readouterr()
    assert told.out == f"0 spans sent; 3 left in {path}\n"
    assert "no answer within" in told.err


def test_what_waits_for_another_exporter_goes_with_the_first(
    http: Receiver, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = fill(path, sink="zipkin")
    use(monkeypatch, http)
    assert main(["spool", "--send", str(path)]) == 0
    assert ids(http) == sorted(wanted)


def test_without_an_exporter_nothing_is_touched(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(path)
    for value in ("none", "console"):
        monkeypatch.setenv("OTEL_TRACES_EXPORTER", value)
        assert main(["spool", "--send", str(path)]) == 1
        assert "names no exporter" in capsys.readouterr().err
    assert main(["spool", str(path)]) == 0
    assert "3 spans to be sent" in capsys.readouterr().out


def test_a_terminal_is_told_how_far_it_is(
    http: Receiver, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(path, 300)
    use(monkeypatch, http)
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", terminal)
    assert main(["spool", "--send", str(path)]) == 0
    assert "301 spans left" in terminal.getvalue()
    # Nothing of it stays.
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_an_interrupt_leaves_no_progress_on_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", terminal)
    pump = Mock()
    pump.condition.side_effect = [{"spool": {"waiting": 3, "reason": None}}, KeyboardInterrupt]
    with pytest.raises(KeyboardInterrupt):
        spool._wait(pump, patience=60.0)
    assert "3 spans left" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_it_can_be_interrupted(path: Path) -> None:
    fill(path, 600, with_note=False)
    released = threading.Event()
    with receiver("http/protobuf") as server:
        # The second request gets no answer until the command has ended.
        server.before_answer = lambda _: (len(server.requests) < 2 or released.wait(60)) and None
        try:
            with subprocess.Popen(
                [sys.executable, "-m", "dask_otel", "spool", "--send", str(path)],
                # It does not try again by itself meanwhile, however slow this machine is.
                env={**os.environ, **server.environ, "OTEL_EXPORTER_OTLP_TIMEOUT": "120"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            ) as sending:
                eventually(lambda: len(server.requests) == 2, what="it sends for a second time")
                sending.send_signal(signal.SIGINT)
                out, err = sending.communicate(timeout=60)
                first = len(ids(server))
        finally:
            released.set()
        assert sending.returncode == 130, (out, err)
        assert err.endswith("interrupted\n")
        assert 0 < first < 600
        assert f"{600 - first} left" in out


def test_a_disk_that_fails_meanwhile_hides_nothing_that_has_arrived(
    http: Receiver,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fill(path)
    use(monkeypatch, http)

    def broken(*_: Any, **changes: Any) -> None:
        raise OSError(5, "the disk is gone")

    monkeypatch.setattr(Store, "write", broken)
    assert main(["spool", "--send", str(path)]) == 1
    told = capsys.readouterr()
    assert told.out.startswith(f"3 spans sent to {http.endpoint}")
    # They will be sent again.
    assert told.out.endswith(f"; 3 left in {path}\n")
    assert "dask-otel spool: [Errno 5] the disk is gone\n" in told.err


def test_what_is_shown(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(path, 30)
    evil = replace(CHILD, span_id=5, name="a\x1b[31m\u202eb")
    store = opened(path, Encoder({"secret": "hunter2"}, "1"))
    store.write(encoded(evil), alive_ns=2)
    store.close(clean=True)
    before = sorted((each.name, each.stat().st_size) for each in path.parent.iterdir())
    assert main(["spool", str(path)]) == 0
    shown = capsys.readouterr().out
    assert before == sorted((each.name, each.stat().st_size) for each in path.parent.iterdir())
    assert "32 spans to be sent" in shown
    assert "no scheduler uses it" in shown
    run, details, *_ = shown.split("last runs\n")[1].splitlines()
    assert run == "  nightly (Scheduler-7)"
    assert details.endswith(": 30 to be sent, 1 lost")
    assert "  29  load  (otlp)\n" in shown
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "hunter2" not in shown
    # It has not ended the lost run.
    store = opened(path)
    assert store.recovered == 1
    store.close(clean=True)


@pytest.mark.parametrize(
    "arguments", [["spool"], ["spool", "--send"], ["spool", "--patience", "-1", "a"]]
)
def test_wrong_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    assert raised.value.code == 2
    assert "usage: dask-otel spool" in capsys.readouterr().err


@pytest.mark.parametrize("options", [[], ["--send"]])
def test_a_path_is_printed_without_what_a_terminal_would_obey(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is no file at first, and an empty one later."""
    path = tmp_path / "a\x1b[31mb"
    for expected in (1, 0):
        assert main(["spool", str(path), *options]) == expected
        said = "".join(capsys.readouterr())
        assert "[31mb" in said
        assert "\x1b" not in said
        path.touch()
