"""The operator's redaction through the whole export side, into files: what is on disk is all."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import dask.config
import pytest

from dask_otel.scheduler.examination import process_facts
from dask_otel.scheduler.wiring import make_pump
from dask_otel.settings.keys import FileSettings, Settings
from dask_otel.settings.reading import read_settings
from tests.unit.pumps import closes
from tests.unit.test_redaction import SECRET, full_span, module_with


def settings_with(name: str, path: Path) -> Settings:
    with dask.config.set({"otel.redact": name, "otel.files.path": str(path)}):
        return read_settings()


def test_nothing_gets_past_it_and_nothing_is_lost(tmp_path: Path, monkeypatch) -> None:
    threads = set()

    def redact(name: str, text: str) -> str | None:
        threads.add(threading.current_thread())
        if name == "dask.task.key":
            raise ValueError(text)
        return None if name == "exception.message" else text.replace(SECRET, "***")

    module_with(monkeypatch, redact=redact)
    # Its root's name is for samplers alone.
    made = make_pump(settings_with("operators_module:redact", tmp_path), "S", time.time_ns())
    assert made is not None
    made.pump.start()
    assert made.pump.spans.offer(full_span())
    closes(made.pump, 60)
    written = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    assert written.count('"spanId"') == 3
    assert [x for x in ("step ***", '"A task failed: ValueError"') if x not in written] == []
    assert SECRET not in written
    # Never the thread that hands over: on a scheduler that is the event loop's.
    assert threads
    assert threading.current_thread() not in threads


@pytest.mark.parametrize(
    ("name", "problems"), [("no_such_module_at_all:redact", 1), ("json:dumps", 0)]
)
def test_the_doctor_says_where_it_cannot_be_loaded(
    tmp_path: Path, name: str, problems: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing is to be sent from here.
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    settings = replace(settings_with(name, tmp_path), files=FileSettings())
    found = process_facts(settings, {}, 10)["problems"]
    assert [line.startswith(f"otel.redact = '{name}'") for line in found] == [True] * problems
