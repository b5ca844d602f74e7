"""The alerts fire when they should, and only then: promtool runs their own tests."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.backends.servers import DEPLOY
from tests.backends.test_configs import FindBinary

pytestmark = pytest.mark.backend

RULES = sorted((DEPLOY / "prometheus" / "rules").glob("*.yml"))
RULE_TESTS = sorted((DEPLOY / "prometheus" / "rule-tests").glob("*.yml"))


def promtool(backend_binary: FindBinary, *args: str) -> str:
    command = [str(backend_binary("prometheus", "promtool")), *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("rules", RULES, ids=lambda path: path.stem)
def test_rules_are_valid(backend_binary: FindBinary, rules: Path) -> None:
    assert "SUCCESS" in promtool(backend_binary, "check", "rules", str(rules))


@pytest.mark.parametrize("tests", RULE_TESTS, ids=lambda path: path.stem)
def test_alerts_fire_and_resolve(backend_binary: FindBinary, tests: Path) -> None:
    assert "SUCCESS" in promtool(backend_binary, "test", "rules", str(tests))


def alert_names() -> set[str]:
    names = {
        rule["alert"]
        for path in RULES
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }
    assert len(names) > 10
    return names


def test_every_alert_is_tested() -> None:
    """An alert that no test names could be wrong in silence."""
    tested = "\n".join(path.read_text() for path in RULE_TESTS)
    assert not {alert for alert in alert_names() if alert not in tested}


def test_every_alert_has_a_runbook_page() -> None:
    pages = {path.stem for path in (DEPLOY.parent / "docs" / "runbooks").glob("Dask*.md")}
    assert pages == alert_names()
