"""The alerts ask for what is exported, and each has its page and its test."""

from __future__ import annotations

import re
from collections import Counter

import pytest
import yaml

from tests.environment import REPOSITORY

from . import queries
from .queries import ALERTS, RECORDED
from .test_packaging import PROJECT

PROMETHEUS = REPOSITORY / "deploy" / "prometheus"
RUNBOOKS = REPOSITORY / "docs" / "runbooks"
#: The pages of the last release.
RUNBOOKS_ON_SITE = f"{PROJECT['urls']['Documentation']}/en/stable/runbooks/"


def test_rules_ask_for_what_is_exported() -> None:
    asked = {name: queries.unknown(rule["expr"]) for name, rule in {**ALERTS, **RECORDED}.items()}
    assert {name: unknown for name, unknown in asked.items() if unknown} == {}


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_has_a_runbook_and_texts(name: str) -> None:
    alert = ALERTS[name]
    page = (RUNBOOKS / f"{name}.md").read_text(encoding="utf-8")
    assert page.startswith(f"# {name}\n")
    assert alert["annotations"]["runbook_url"] == f"{RUNBOOKS_ON_SITE}{name}.html"
    assert alert["annotations"].keys() == {"summary", "description", "runbook_url"}
    assert alert["labels"]["severity"] in ("critical", "warning", "info")
    assert f"`{alert['labels']['severity']}`" in page
    # The cause by its name in a report; the build of the site finds anchors that are not there.
    assert "](../diagnoses.md" in page.partition("**What it means.**")[0]


def test_each_runbook_has_an_alert_and_the_list_has_all_with_their_severities() -> None:
    assert {page.stem for page in RUNBOOKS.glob("*.md")} == {"README", *ALERTS}
    listed = re.findall(
        r"^\| \[(Dask\w+)\]\(\1\.md\) \| (\w+) \|",
        (RUNBOOKS / "README.md").read_text(encoding="utf-8"),
        flags=re.MULTILINE,
    )
    assert (len(listed), dict(listed)) == (
        len(ALERTS),
        {name: rule["labels"]["severity"] for name, rule in ALERTS.items()},
    )


def test_every_alert_is_tested_to_fire_and_not_to_fire() -> None:
    checks = [
        check
        for file in (PROMETHEUS / "rule-tests").glob("*.yml")
        for test in yaml.safe_load(file.read_text(encoding="utf-8"))["tests"]
        for check in test["alert_rule_test"]
    ]
    fires = {check["alertname"] for check in checks if check["exp_alerts"]}
    quiet = Counter(check["alertname"] for check in checks if not check["exp_alerts"])
    assert fires == set(ALERTS)
    # Before it fires, and after it has resolved.
    assert quiet.keys() == set(ALERTS)
    assert min(quiet.values()) >= 2


def test_the_pages_name_the_number_of_rules() -> None:
    """In words: so many there are."""
    words = {17: "seventeen", 24: "twenty-four"}
    alerts, recorded = words[len(ALERTS)], words[len(RECORDED)]
    for page, said in {
        "README.md": f"{alerts} alerts with a",
        "docs/backends.md": f"{alerts.capitalize()} alerts and {recorded} recording rules",
    }.items():
        assert said in (REPOSITORY / page).read_text(encoding="utf-8")


def test_an_alert_hides_only_others_of_the_same_cluster() -> None:
    """Clusters of one name can be in two namespaces, and one of them has no workers."""
    (cluster,) = re.findall(r"unless on \(([^)]+)\)", ALERTS["DaskOtelSilent"]["expr"])
    config = REPOSITORY / "deploy" / "alertmanager" / "alertmanager.yml"
    rules = yaml.safe_load(config.read_text(encoding="utf-8"))["inhibit_rules"]
    assert [rule["equal"] for rule in rules] == [cluster.split(", ")] * 2
