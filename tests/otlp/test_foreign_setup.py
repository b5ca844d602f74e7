"""Code of others that hangs while the exporters are made: the start goes on without it, or ends."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Collection, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.util import _importlib_metadata

from dask_otel._otel.sdk import resource
from dask_otel.pump import rotated, thread
from dask_otel.scheduler.wiring import WiredPump, make_pump
from dask_otel.settings.keys import ConfigurationError, Settings
from tests.foreign import install
from tests.waiting import eventually

# Others go on in the other processes meanwhile.
pytestmark = pytest.mark.xdist_group("waiting")

GATE = threading.Event()
#: The environment that code of others had.
SEEN: list[dict[str, str]] = []

SECONDS = 1.0

#: For the bridge alone.
SECRET = {"OTEL_EXPORTER_OTLP_HEADERS": "x-key=geheim"}


def hang(*_: Any) -> None:
    SEEN.append(dict(os.environ))
    GATE.wait()


def until_all_are_done_or_hang(futures: Collection[Future[Any]], _: float) -> None:
    """Wait until all detectors have answered or hang, however slow the machine is."""
    eventually(lambda: len(SEEN) == [one.done() for one in futures].count(False))


def fail() -> None:
    SEEN.append(dict(os.environ))
    raise RuntimeError("no way")


@pytest.fixture(autouse=True)
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package whose functions hang, as well as the import of one of its modules."""
    source = f"from {__name__} import fail, hang\nclass Detector:\n    detect = hang\n"
    groups = ("traces_exporter", "metrics_exporter", "traces_sampler", "tracer_provider")
    entries = dict.fromkeys(groups, "mine = hanging:hang\nfails = hanging:fail")
    entries["otlp_credential_provider"] = "mine = hanging_at_import:anything"
    entries["resource_detector"] = "mine = hanging:Detector\nlater = hanging:hang"
    install(tmp_path, "hanging", source, entries)
    # Once imported, it does not hang.
    for name in ("hanging_at_import", "operators"):
        (tmp_path / f"{name}.py").write_text(f"{source}hang()\n")
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.syspath_prepend(str(tmp_path))
    # Releases around 1.37 look for entry points once in a process.
    known = getattr(_importlib_metadata, "_original_entry_points_cached", None)
    if known is not None:
        monkeypatch.setattr(_importlib_metadata, "_original_entry_points_cached", known.__wrapped__)
    # What hangs here never ends.
    monkeypatch.setattr(thread, "PATIENCE", SECONDS)
    monkeypatch.setattr(resource, "wait", until_all_are_done_or_hang)
    GATE.clear()
    SEEN.clear()
    yield
    # A writer, for the one who reads.
    os.close(os.open(tmp_path / "fifo", os.O_RDWR))
    GATE.set()


def made(variables: dict[str, str], **options: Any) -> WiredPump:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://127.0.0.1:1", **SECRET, **variables}
    before = dict(os.environ)
    try:
        pump = make_pump(Settings(environment=environment, **options), "Scheduler", time.time_ns())
    finally:
        assert [one for one in SEEN if one != before] == [], "processes that start get it, too"
    assert pump is not None
    return pump


def all_are_daemons() -> bool:
    """Whether no thread of the bridge's holds up the end of the process, and there are some."""
    own = [one for one in threading.enumerate() if one.name.startswith("dask-otel")]
    return bool(own) and all(one.daemon for one in own)


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        (
            "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS",
            "mine, later, unknown,*",
            "mine (TimeoutError: no answer in time), later (TimeoutError: no answer in time), "
            "unknown (KeyError: 'unknown')",
        ),
        ("OTEL_TRACES_SAMPLER", "mine", "is 'mine', which could not be made"),
    ],
)
def test_what_can_be_left_out_is_named_once(
    caplog: pytest.LogCaptureFixture, variable: str, value: str, said: str
) -> None:
    caplog.set_level(logging.WARNING, "distributed.dask_otel")
    assert made({variable: value}).pump
    eventually(lambda: SEEN)
    assert all_are_daemons()
    (record,) = [one for one in caplog.records if one.name == "distributed.dask_otel"]
    assert [x for x in (variable, said) if x not in record.getMessage()] == []


@pytest.mark.parametrize(
    ("variables", "options"),
    [
        ({"OTEL_METRICS_EXPORTER": "mine"}, {}),
        ({"OTEL_PYTHON_EXPORTER_OTLP_GRPC_CREDENTIAL_PROVIDER": "mine"}, {}),
        ({"OTEL_EXPORTER_OTLP_CERTIFICATE": "fifo"}, {}),
        ({}, {"redact": "operators:anything"}),
    ],
)
def test_what_the_bridge_can_not_do_without_is_one_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    options: dict[str, Any],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="it did not return within") as caught:
        made(variables, **options)
    assert all_are_daemons()
    assert all(name in str(caught.value) for name in (*variables, *options.values()))


def test_an_applications_provider_that_can_not_be_loaded_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_PYTHON_TRACER_PROVIDER", "mine")
    with pytest.raises(TimeoutError, match="it did not return within"):
        made({})
    assert all_are_daemons()


def test_an_exporter_of_others_says_what_it_does_not_get(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenTelemetry's own get it."""
    monkeypatch.setattr(thread, "PATIENCE", 60.0)
    caplog.set_level(logging.WARNING, "distributed.dask_otel")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "https://127.0.0.1:1")
    with pytest.raises(ConfigurationError, match="no way"):
        made({"OTEL_TRACES_EXPORTER": "otlp_proto_http,console,fails", "OTEL_EXPORTER_X_Y": "1"})
    assert SEEN
    (record,) = caplog.records
    assert [
        x
        for x in ("'fails'", "does not get OTEL_EXPORTER_OTLP_HEADERS, OTEL_EXPORTER_X_Y of")
        if x not in record.getMessage()
    ] == []


def test_a_folder_that_does_not_answer_is_an_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotated, "TemporaryFile", lambda **_: hang())
    assert rotated.obstacle(tmp_path) == f"it did not return within {SECONDS:g} s: {tmp_path}"
