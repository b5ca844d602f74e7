"""``dask-otel spool``: what waits is shown, and sent by the real exporters."""

from __future__ import annotations

import io
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from dask_otel._otel.sdk.encode import Encoder, reread
from dask_otel.cli import main, spool
from dask_otel.core.context import Caller, Traceparent
from dask_otel.core.records import SpanRecord
from dask_otel.core.trace import Trace
from dask_otel.pump import destination
from dask_otel.spool.store import Encoded, Store
from tests.environment import set_variables
from tests.otlp.records import CHILD, ROOT, SECOND
from tests.receiver import Receiver, receiver, refusing, silent_server
from tests.waiting import ended, eventually

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


def fill(path: Path, count: int = 2, *, sink: str = "otlp") -> list[int]:
    """Leave finished spans and an open one, as a run that was killed; return their ids."""
    store = opened(path)
    caller = Caller(Traceparent(ROOT.trace_id, 9, 1), "vendor=1")
    root = replace(ROOT, trace_id=Trace(ROOT.trace_id, "nightly", caller), parent_span_id=9)
    spans = [root, CHILD, *(replace(CHILD, span_id=100 + n) for n in range(count - 2))][:count]
    store.write(encoded(*spans, sink=sink), alive_ns=2)
    note = replace(CHILD, span_id=77, name="open", attributes={"dask.span.complete": False})
    store.write([noted(note, sink)], alive_ns=ALIVE)
    store.close(clean=False)
    return [span.span_id for span in (*spans, note)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spool.db"


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """However wide the terminal of whoever runs the tests is."""
    monkeypatch.setenv("COLUMNS", "120")


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command on a spool; return its exit code, and what it has said."""

    def call(*options: str, at: Path = path) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["spool", *options, str(at)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


def use(monkeypatch: pytest.MonkeyPatch, server: Receiver, **more: str) -> None:
    set_variables(monkeypatch, {**server.environ, **more})


def ids(server: Receiver) -> list[int]:
    return sorted(span.span_id for span in server.spans)


def test_what_waits_is_sent_as_its_own_run_would_have(
    server: Receiver,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: Command,
) -> None:
    wanted = fill(path)
    # What the run of this command has is not theirs.
    use(monkeypatch, server, OTEL_RESOURCE_ATTRIBUTES="service.instance.id=other,team=b")
    code, out, err = command("--send")
    assert (code, ids(server)) == (0, sorted(wanted))
    for span in server.spans:
        assert (span.resource, span.scope[1], span.trace_id) == (RESOURCE, "0.0.7", ROOT.trace_id)
    by_id = {span.span_id: span for span in server.spans}
    root = by_id[ROOT.span_id]
    assert ((root.name, root.start_ns, root.end_ns), root.attributes, root.parent_id) == (
        ("nightly", ROOT.start_ns, ROOT.end_ns),
        ROOT.attributes,
        9,
    )
    assert root.trace_state == "vendor=1"
    # What was open ends at the run's last sign of life.
    assert by_id[77].end_ns == ALIVE
    assert re.match(rf"3 spans sent to .*; 0 left in {path}\n$", out)
    assert (err, list(path.parent.iterdir())) == ("", [])


def test_an_empty_one_is_said_to_be(path: Path, command: Command) -> None:
    opened(path).close(clean=False)
    path.touch(0o600)
    assert command("--send") == (0, f"nothing waits in {path}\n", "")


@pytest.mark.parametrize("options", [[], ["--send"]])
def test_what_can_not_be_read_is_said_in_words(
    options: list[str], path: Path, command: Command
) -> None:
    assert command(*options) == (1, "", f"dask-otel spool: there is no {path}\n")
    path.write_text("a letter")
    code, _, said = command(*options)
    assert (code, "is no spool of dask-otel" in said, path.read_text()) == (1, True, "a letter")


def test_one_that_a_scheduler_has_is_not_sent(path: Path, command: Command) -> None:
    store = opened(path)
    store.write([noted(ROOT), *encoded(CHILD)], alive_ns=2)
    code, _, said = command("--send")
    assert (code, f"is in use by process {os.getpid()}" in said) == (1, True)
    # It can be looked at meanwhile.
    code, shown, _ = command()
    uses = f"process {os.getpid()} uses it and sends them; 1 span open"
    assert (code, "1 span waiting" in shown, uses in shown) == (0, True, True)
    store.write(encoded(ROOT), alive_ns=3)
    waiting = [row.body for row in store.waiting("otlp", 0, 9)]
    assert waiting == [ENCODER.span(CHILD), ENCODER.span(ROOT)]
    store.close(clean=True)


@pytest.mark.parametrize(
    ("server", "long", "said"),
    [(refusing, destination.LONG, "Nothing listens"), (silent_server, 0.1, "no answer within")],
)
def test_an_endpoint_that_takes_nothing_leaves_all_of_it(
    server: Callable[[], AbstractContextManager[str]],
    long: float,
    said: str,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: Command,
) -> None:
    """A request of hours does not hold it."""
    fill(path)
    monkeypatch.setattr(destination, "LONG", long)
    monkeypatch.setattr(spool, "_CLOSING", 0.1)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "10000")
    with server() as endpoint:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        code, out, err = command("--send", "--patience", "0")
    assert (code, out, said in err) == (1, f"0 spans sent; 3 left in {path}\n", True)


def test_what_waits_for_another_exporter_goes_with_the_first(
    http: Receiver, path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    wanted = fill(path, sink="zipkin")
    use(monkeypatch, http)
    assert (command("--send")[0], ids(http)) == (0, sorted(wanted))


def test_without_an_exporter_nothing_is_touched(
    path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    fill(path)
    for value in ("none", "console"):
        monkeypatch.setenv("OTEL_TRACES_EXPORTER", value)
        code, _, said = command("--send")
        assert (code, "names no exporter" in said) == (1, True)
    assert "3 spans waiting" in command()[1]


def test_an_interrupt_leaves_no_progress_on_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, pump = io.StringIO(), Mock()
    screen.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", screen)
    pump.condition.side_effect = [{"spool": {"waiting": 3, "reason": None}}, KeyboardInterrupt]
    with pytest.raises(KeyboardInterrupt):
        spool._wait(pump, patience=60.0)
    shown = screen.getvalue()
    assert ("3 spans left" in shown, shown.endswith("\r\x1b[K")) == (True, True)


#: Nobody waits for the request that hangs.
PROGRAM = """
from dask_otel.cli import main, spool
spool._CLOSING = 0.1
raise SystemExit(main())
"""


def test_it_can_be_interrupted(path: Path) -> None:
    fill(path, 600)
    released = threading.Event()
    with receiver("http/protobuf") as server:
        # The second request gets no answer until the command has ended.
        server.before_answer = lambda _: (len(server.requests) < 2 or released.wait(60)) and None
        try:
            with subprocess.Popen(
                [sys.executable, "-c", PROGRAM, "spool", "--send", str(path)],
                # It does not try again by itself meanwhile, however slow this machine is.
                env={**os.environ, **server.environ, "OTEL_EXPORTER_OTLP_TIMEOUT": "120"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            ) as sending:
                eventually(lambda: len(server.requests) == 2, what="it sends for a second time")
                sending.send_signal(signal.SIGINT)
                ended(sending)
                out, err = sending.communicate()
                first = len(ids(server))
        finally:
            released.set()
        assert sending.returncode == 130, (out, err)
        assert err.endswith("interrupted\n")
        assert 0 < first < 601
        assert f"{601 - first} left" in out


def test_a_disk_that_fails_meanwhile_hides_nothing_that_has_arrived(
    http: Receiver, path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    fill(path)
    use(monkeypatch, http)
    monkeypatch.setattr(Store, "write", Mock(side_effect=OSError(5, "the disk is gone")))
    code, out, err = command("--send")
    assert code == 1
    # They will be sent again.
    assert re.match(rf"3 spans sent to {http.endpoint}.*; 3 left in {path}\n$", out)
    assert "dask-otel spool: [Errno 5] the disk is gone\n" in err


def test_the_command_that_is_shown_works(tmp_path: Path, command: Command) -> None:
    path = tmp_path / "of a night" / "it's.db"
    path.parent.mkdir()
    fill(path)
    shown = next(line for line in command(at=path)[1].splitlines() if "--send" in line)
    assert shlex.split(shown) == ["dask-otel", "spool", "--send", str(path)]


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
    assert [x for x in ("32 spans waiting", "no scheduler uses it") if x not in shown] == []
    run, details, *_ = shown.split("last runs\n")[1].splitlines()
    assert run == "  nightly (Scheduler-7)"
    assert details.endswith(": 30 waiting, 1 lost")
    assert "  29  load  (otlp)\n" in shown
    assert [x for x in ("\x1b", "\u202e", "hunter2") if x in shown] == []
    # It has not ended the lost run.
    store = opened(path)
    assert store.recovered == 1
    store.close(clean=True)
