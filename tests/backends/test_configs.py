"""Every file of ``deploy/`` is valid for its own server, and the checks can fail."""

from __future__ import annotations

import re
import shutil
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


@pytest.mark.parametrize(
    ("path", "right", "wrong", "checked", "command", "answer"),
    [
        (
            COLLECTOR, "num_consumers", "number_of_consumers", COLLECTOR,
            ("collector", None, "validate", "--config"), "number_of_consumers",
        ),
        (
            DEPLOY / "prometheus" / "rules" / "dask-alerts.yml",
            "cluster:dask_idle:ratio15m > 0.5", "cluster:dask_idle:ratio15m > 0.05",
            DEPLOY / "prometheus" / "rule-tests" / "dask-clusters.yml",
            (*PROMTOOL, "test", "rules", "--run=DaskClusterIdle"), "DaskClusterIdle",
        ),
        (
            WORKFLOWS / "release.yml", "matrix.python", "matrix.pythons",
            WORKFLOWS / "release.yml", ACTIONLINT, r'property "pythons" is not defined',
        ),
    ],
    ids=["collector", "threshold", "workflow"],
)  # fmt: skip
def test_a_wrong_file_is_found(
    path: Path,
    right: str,
    wrong: str,
    checked: Path,
    command: tuple[str, ...],
    answer: str,
    tmp_path: Path,
) -> None:
    shutil.copytree(DEPLOY.parent, tmp_path / "copy", ignore=lambda folder, names: [
        name for name in names if folder == str(DEPLOY.parent) and name not in ("deploy", ".github")
    ])  # fmt: skip
    broken, asked = (tmp_path / "copy" / one.relative_to(DEPLOY.parent) for one in (path, checked))
    text = broken.read_text(encoding="utf-8")
    assert right in text
    broken.write_text(text.replace(right, wrong), encoding="utf-8")
    with pytest.raises(AssertionError, match=answer):
        run(*command, asked)


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
