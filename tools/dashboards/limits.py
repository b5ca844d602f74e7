"""The limits of the alerts, read from the rules: a panel turns red where an alert fires."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "rules"

_LIMIT = re.compile(r"[<>]\s*([\d.e]+)\s*$", re.MULTILINE)

#: What "more than nothing" is as a step of Grafana, which colours from a step on.
ANYTHING = 1e-9


def _alerts() -> dict[str, dict[str, Any]]:
    return {
        rule["alert"]: rule
        for file in sorted(RULES.glob("*.yml"))
        for group in yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }


ALERTS = _alerts()


def limit(alert: str, which: int = 0) -> float:
    """The number that an alert's expression is compared with; `which` where there are several."""
    value = float(_LIMIT.findall(ALERTS[alert]["expr"])[which])
    return value or ANYTHING


def runbook(alert: str) -> str:
    """The address of an alert's page; also of one that Grafana fills in."""
    (template,) = {
        str(rule["annotations"]["runbook_url"]).replace(name, "{}") for name, rule in ALERTS.items()
    }
    return template.format(alert)
