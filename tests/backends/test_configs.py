"""Every file of ``deploy/`` is valid for its own server."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from .servers import DEPLOY

pytestmark = pytest.mark.backend

FindBinary = Callable[..., str]


def _run(*command: str, **environment: str) -> str:
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    return output


@pytest.mark.parametrize("files", [["config"], ["config", "tail-sampling"]], ids="+".join)
def test_collector(backend_binary: FindBinary, files: list[str]) -> None:
    configs = [f"--config={DEPLOY / 'collector' / name}.yaml" for name in files]
    # Deprecations are only logged by a running Collector: see test_collector.py.
    _run(backend_binary("collector"), "validate", *configs)


def test_collector_validation_can_fail(backend_binary: FindBinary, tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    text = (DEPLOY / "collector" / "config.yaml").read_text(encoding="utf-8")
    broken.write_text(text.replace("num_consumers", "number_of_consumers"), encoding="utf-8")
    with pytest.raises(AssertionError, match="number_of_consumers"):
        _run(backend_binary("collector"), "validate", f"--config={broken}")


def test_prometheus(backend_binary: FindBinary) -> None:
    config = str(DEPLOY / "prometheus" / "prometheus.yml")
    output = _run(backend_binary("prometheus", "promtool"), "check", "config", "--lint=all", config)
    assert "SUCCESS" in output


def test_prometheus_rules(backend_binary: FindBinary) -> None:
    tests = sorted((DEPLOY / "prometheus" / "rule-tests").glob("*.yml"))
    assert len(tests) >= 4
    promtool = backend_binary("prometheus", "promtool")
    _run(promtool, "test", "rules", *map(str, tests))


def test_a_wrong_threshold_fails_the_rule_tests(backend_binary: FindBinary, tmp_path: Path) -> None:
    copy = tmp_path / "prometheus"
    shutil.copytree(DEPLOY / "prometheus", copy)
    rules = copy / "rules" / "dask-alerts.yml"
    text = rules.read_text(encoding="utf-8")
    broken = text.replace("cluster:dask_idle:ratio15m > 0.5", "cluster:dask_idle:ratio15m > 0.05")
    assert broken != text
    rules.write_text(broken, encoding="utf-8")
    promtool = backend_binary("prometheus", "promtool")
    with pytest.raises(AssertionError, match="DaskClusterIdle"):
        _run(promtool, "test", "rules", str(copy / "rule-tests" / "dask-clusters.yml"))


def test_prometheus_rules_for_kubernetes(backend_binary: FindBinary, tmp_path: Path) -> None:
    """The `spec` of a PrometheusRule is what a file of rules is."""
    manifest = DEPLOY / "kubernetes" / "prometheusrule.yaml"
    spec = yaml.safe_load(manifest.read_text(encoding="utf-8"))["spec"]
    rules = tmp_path / "rules.yml"
    rules.write_text(yaml.safe_dump(spec), encoding="utf-8")
    promtool = backend_binary("prometheus", "promtool")
    found = re.compile(r"(\d+) rules found")
    counted = found.findall(_run(promtool, "check", "rules", str(rules)))
    # All that Prometheus gets by files.
    files = sorted((DEPLOY / "prometheus" / "rules").glob("*.yml"))
    there = found.findall(_run(promtool, "check", "rules", *map(str, files)))
    assert len(there) == len(files) == 2
    assert sum(map(int, counted)) == sum(map(int, there)) > 30


def test_alertmanager(backend_binary: FindBinary) -> None:
    config = str(DEPLOY / "alertmanager" / "alertmanager.yml")
    _run(backend_binary("alertmanager", "amtool"), "check-config", config)


def test_tempo(backend_binary: FindBinary, tmp_path: Path) -> None:
    _run(
        backend_binary("tempo"),
        f"-config.file={DEPLOY / 'tempo' / 'tempo.yaml'}",
        "-config.expand-env=true",
        "-config.verify=true",
        TEMPO_DATA=str(tmp_path),
    )


def test_jaeger(backend_binary: FindBinary) -> None:
    _run(backend_binary("jaeger"), "validate", f"--config={DEPLOY / 'jaeger' / 'config.yaml'}")


#: Not with the other checkers that happen to be on a machine: the same everywhere.
ACTIONLINT = ("-no-color", "-shellcheck=", "-pyflakes=")


def test_workflows(backend_binary: FindBinary) -> None:
    folder = DEPLOY.parent / ".github" / "workflows"
    _run(backend_binary("actionlint"), *ACTIONLINT, *map(str, sorted(folder.glob("*.yml"))))


def test_a_wrong_workflow_is_found(backend_binary: FindBinary, tmp_path: Path) -> None:
    text = (DEPLOY.parent / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    broken = tmp_path / "release.yml"
    broken.write_text(text.replace("matrix.python", "matrix.pythons"), encoding="utf-8")
    with pytest.raises(AssertionError, match=r'property "pythons" is not defined'):
        _run(backend_binary("actionlint"), *ACTIONLINT, str(broken))
