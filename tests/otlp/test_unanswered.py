"""A server that takes what it is sent, and does not say so."""

from __future__ import annotations

import threading
import time

import pytest

from dask_otel.scheduler.wiring import make_pump
from dask_otel.settings.keys import Settings
from tests.otlp.conftest import PROTOCOLS
from tests.otlp.pipeline import Export, make_span
from tests.receiver import receiver as run_receiver


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_spans_are_sent_again_with_the_same_ids(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = threading.Event()
    with run_receiver(protocol) as receiver:
        variables = {**receiver.environ, "OTEL_EXPORTER_OTLP_TIMEOUT": "0.3"}
        for key, value in variables.items():
            monkeypatch.setenv(key, value)
        receiver.before_answer = lambda signal: answer.wait(10)
        made = make_pump(Settings(), "Scheduler-1", time.time_ns())
        assert made is not None
        export = Export(made.pump)
        made.pump.start()
        try:
            export.spans(make_span())
            receiver.wait_for(lambda r: len([one for one in r.requests if one[0] == "traces"]) >= 2)
            answer.set()
            receiver.wait_for(lambda r: len(r.spans) >= 2)
        finally:
            answer.set()
            export.close()
        assert len({(one.trace_id, one.span_id) for one in receiver.spans}) == 1
