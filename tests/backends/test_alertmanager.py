"""Alertmanager gets the alerts that a real Prometheus fires."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .clients import AlertmanagerClient, PrometheusClient
from .processes import eventually
from .servers import Alertmanager, start_alertmanager, start_prometheus

pytestmark = pytest.mark.backend

Start = Callable[[Callable[[Path], Any]], Any]

ROUTE = "route: {receiver: nobody}\nreceivers: [{name: nobody}]\n"

RULES = """
groups:
  - name: test
    interval: 200ms
    rules:
      - alert: AlwaysThere
        expr: vector(42)
        labels: {severity: info}
        annotations: {summary: "{{ $value }}"}
"""


def test_an_alert_of_prometheus_arrives(start: Start, tmp_path: Path) -> None:
    route = tmp_path / "alertmanager.yml"
    route.write_text(ROUTE, encoding="utf-8")
    alertmanager: Alertmanager = start(lambda folder: start_alertmanager(folder, route))

    (tmp_path / "rules.yml").write_text(RULES, encoding="utf-8")
    config = tmp_path / "prometheus.yml"
    target = alertmanager.url.removeprefix("http://")
    config.write_text(
        "rule_files: [rules.yml]\n"
        f"alerting: {{alertmanagers: [{{static_configs: [{{targets: ['{target}']}}]}}]}}\n",
        encoding="utf-8",
    )
    # An alert that fires before Prometheus has looked up its Alertmanagers is sent to nobody, and
    # by default only a minute later again.
    again = ["--rules.alert.resend-delay=1s"]
    prometheus = start(lambda folder: start_prometheus(folder, config, again))

    (firing,) = eventually(PrometheusClient(prometheus.url).alerts)
    assert firing["state"] == "firing"
    (alert,) = eventually(AlertmanagerClient(alertmanager.url).alerts)
    assert alert["labels"] == {"alertname": "AlwaysThere", "severity": "info"}
    assert alert["annotations"] == {"summary": "42"}
