"""Every file of ``deploy/`` is valid for its own server."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from .servers import DEPLOY, binary

pytestmark = pytest.mark.backend

RULES = sorted((DEPLOY / "prometheus" / "rules").glob("*.yml"))
RULE_TESTS = sorted((DEPLOY / "prometheus" / "rule-tests").glob("*.yml"))
COLLECTOR = DEPLOY / "collector" / "config.yaml"
WORKFLOWS = DEPLOY.parent / ".github" / "workflows"
#: Not with the other checkers that happen to be on a machine: the same everywhere.
ACTIONLINT = ("actionlint", None, "-no-color", "-shellcheck=", "-pyflakes=")
VALIDATE = ("collector", None, "validate", f"--config={COLLECTOR}")
PROMTOOL = ("prometheus", "promtool")


def run(server: str, name: str | None, *arguments: object) -> str:
    """The output of a server's own checker, which must be content."""
    command = [binary(server, name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    "command",
    [
        # Deprecations are only logged by a running Collector: see test_collector.py.
        VALIDATE,
        (*VALIDATE, f"--config={COLLECTOR.with_name('tail-sampling.yaml')}"),
        (*PROMTOOL, "check", "config", "--lint=all", DEPLOY / "prometheus" / "prometheus.yml"),
        *((*PROMTOOL, "test", "rules", tests) for tests in RULE_TESTS),
        (
            "alertmanager", "amtool", "check-config", DEPLOY / "alertmanager" / "alertmanager.yml"
        ),
        ("jaeger", None, "validate", f"--config={DEPLOY / 'jaeger' / 'config.yaml'}"),
        (*ACTIONLINT, *sorted(WORKFLOWS.glob("*.yml"))),
    ],
    ids=lambda command: f"{command[0]}-{Path(command[-1]).stem}",
)  # fmt: skip
def test_a_file_is_valid(command: tuple[str, ...]) -> None:
    assert run(*command) or command[0] in ("collector", "actionlint")


def test_prometheus_rules_for_kubernetes(tmp_path: Path) -> None:
    """The `spec` of a PrometheusRule is what a file of rules is."""
    manifest = DEPLOY / "kubernetes" / "prometheusrule.yaml"
    spec = yaml.safe_load(manifest.read_text(encoding="utf-8"))["spec"]
    rules = tmp_path / "rules.yml"
    rules.write_text(yaml.safe_dump(spec), encoding="utf-8")
    counted, there = (
        re.findall(r"(\d+) rules found", run(*PROMTOOL, "check", "rules", *files))
        for files in ([rules], RULES)
    )
    # All that Prometheus gets by files.
    assert len(there) == len(RULES) == 2
    assert sum(map(int, counted)) == sum(map(int, there)) > 30
