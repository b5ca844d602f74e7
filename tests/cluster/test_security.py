"""What SECURITY.md says of secrets, of a scheduler as a person starts it."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, span

import dask_otel
from dask_otel.doctor.asking import facts_of_scheduler
from dask_otel.doctor.findings import all_findings
from dask_otel.doctor.page import as_json, as_text
from dask_otel.settings.problems import ConfigurationError
from tests.cluster.processes import cluster
from tests.receiver import receiver, refusing
from tests.waiting import eventually

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.xdist_group("forked"),
    pytest.mark.unreconciled("about what is shown and who listens, not about numbers"),
]

#: Stands in every secret, and nowhere else.
SECRET = "geheim"

#: Everything that anybody logs, on standard error.
LOUD = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"all": {"class": "logging.StreamHandler"}},
    "root": {"level": "DEBUG", "handlers": ["all"]},
}


def shown_there(dask_scheduler: Any) -> list[str]:
    """Return what objects of the bridge say of themselves."""
    plugin = dask_scheduler.plugins["dask-otel"]
    bridge = plugin.bridge
    pump = bridge.wired.pump
    things = [plugin, bridge, bridge.settings, bridge.adapter, pump, bridge.condition()]
    return [repr(thing) for thing in [*things, *pump.spans.lanes, *pump._metrics]]


def answer_of(url: str) -> str:
    """Return what a page says, be it that Dask cannot make it.

    2025.1.0 makes no JSON of a worker's metrics, whose keys are tuples, with and without us.
    """
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return str(answer.read(), "utf-8")
    except urllib.error.HTTPError as error:
        with error:
            return str(error.read(), "utf-8")


def _without_messages(log: str) -> str:
    """Leave out what Dask logs of messages at DEBUG: all that they hold, as SECURITY.md says."""
    return "\n".join(line for line in log.splitlines() if not line.startswith("Message from "))


def test_no_secret_is_shown_anywhere(tmp_path: Path) -> None:
    shown: dict[str, str] = {}
    with (
        receiver("http/protobuf") as received,
        cluster(tmp_path, forked=True) as made,
        refusing() as nobody,
    ):
        received.answer = 401
        received.content = ("text/plain", b"no such user: geheim-header, geheim-user:geheim-word")
        address = received.endpoint.replace("://", "://geheim-user:geheim-word@")
        env = {
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_ENDPOINT": address,
            "OTEL_EXPORTER_OTLP_HEADERS": "x-key=Bearer%20geheim-header",
            # Through a proxy, where nobody is.
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://u:geheim-u@collector.invalid/?k=geheim-q",
            "DASK_OTEL__ENVIRONMENT__OTEL_EXPORTER_OTLP_TRACES_HEADERS": "x-key=geheim-setting",
            "HTTP_PROXY": nobody.replace("://", "://geheim-proxy:geheim-pass@"),
            "NO_PROXY": "127.0.0.1",
            "OTEL_METRIC_EXPORT_INTERVAL": "300",
            "OTEL_BSP_SCHEDULE_DELAY": "50",
            "DASK_OTEL__SPANS__LINGER": "0",
            "DASK_OTEL__METRICS__PROMETHEUS": "true",
            "DASK_OTEL__CLOSE_TIMEOUT": "100ms",
            "DASK_LOGGING": repr(LOUD),
        }
        scheduler = made.start_scheduler("--preload", "dask_otel.preload", env=env)
        made.start_worker("w", "--preload", "dask_otel.preload", env=env)
        with Client(made.address, set_as_default=False) as client:
            with span("load"):
                assert client.submit(int, 7, pure=False).result() == 7
            # As a person would who looks for where it goes.
            eventually(
                lambda: "401" in scheduler.output and "ProxyError" in scheduler.output,
                60,
                "both signals were refused",
            )
            wrong = {
                "environment": {"OTEL_EXPORTER_OTLP_HEADERS": ["geheim"], "TOKEN": "geheim"},
                "endpoint": "https://u:geheim@collector/?key=geheim",
                "api-key": "geheim",
            }
            with pytest.raises(ConfigurationError) as refused:
                dask_otel.register(client, wrong)
            shown["a refused registration"] = f"{refused.value} {refused.value!r}"
            good = {"environment": {"OTEL_EXPORTER_OTLP_HEADERS": "x-key=geheim-registered"}}
            with pytest.warns(UserWarning, match="does not use") as warned:
                dask_otel.register(client, good)
            shown["another registration"] = str([str(one.message) for one in warned])
            shown["reprs"] = "\n".join(client.run_on_scheduler(shown_there))
            port = client.scheduler_info()["services"]["dashboard"]
        for page in ("metrics", "health", "json/identity.json"):
            shown[page] = answer_of(f"http://127.0.0.1:{port}/{page}")
        facts = asyncio.run(facts_of_scheduler(made.address, 30))
        findings = all_findings(facts)
        shown["the doctor's text"] = as_text(facts, findings, everything=True)
        shown["the doctor's JSON"] = as_json(facts, findings)
        shown["the doctor's findings"] = repr(findings) + json.dumps(facts)
        scheduler.terminate()
        shown["the scheduler's log"] = _without_messages(scheduler.output)
        shown["the worker's log"] = _without_messages(made.processes[-1].output)
    # It was all there, and loud.
    sent = [headers for signal, _, headers in received.requests if signal == "metrics"]
    assert sent[0]["x-key"] == "Bearer geheim-header"
    assert "OTEL_EXPORTER_OTLP_HEADERS" in shown["the doctor's text"]
    assert "Message from " in scheduler.output, "it is not as loud as it can be"
    assert {name for name, text in shown.items() if SECRET in text} == set()
