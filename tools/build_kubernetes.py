#!/usr/bin/env python3
"""Write the files of ``deploy/kubernetes`` that carry other files of ``deploy/``.

The alerts as a PrometheusRule, the dashboards and the Collector's configuration as ConfigMaps. With
``--check`` nothing is written, and the exit status is 1 where a file is not what would be written.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import write_or_check
import yaml
from write_or_check import Literal

DEPLOY = Path(__file__).parents[1] / "deploy"
HEADER = "# Made by tools/build_kubernetes.py from {}: change it there.\n"
NAMESPACE = "monitoring"
#: Bytes of a document that `kubectl apply` keeps a copy of, as the server allows.
MOST = 262_144


def _dump(documents: list[dict[str, Any]], source: str) -> str:
    for one in documents:
        # Kubectl's copy, in an annotation. Go escapes these signs.
        copy = json.dumps(one, separators=(",", ":"), ensure_ascii=False)
        size = len(re.sub("[<>&]", r"\\u0000", copy).encode()) + 1
        if size > MOST:
            raise SystemExit(
                f"{one['kind']} {one['metadata']['name']} has {size:,} bytes for `kubectl apply`, "
                f"which takes at most {MOST:,}: divide {source}"
            )
    text = yaml.safe_dump_all(documents, sort_keys=False, width=4096, allow_unicode=True)
    return HEADER.format(source) + text


def _metadata(name: str, **labels: str) -> dict[str, Any]:
    made: dict[str, Any] = {"name": name, "namespace": NAMESPACE}
    return made | ({"labels": labels} if labels else {})


def _config_map(name: str, file: str, text: str, **labels: str) -> dict[str, Any]:
    metadata = _metadata(name, **labels)
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {file: text}}


def collector_config() -> str:
    text = (DEPLOY / "collector" / "config.yaml").read_text(encoding="utf-8")
    config = _config_map("dask-otel-collector", "config.yaml", Literal(text))
    return _dump([config], "deploy/collector/config.yaml")


def prometheus_rule() -> str:
    groups = [
        group
        for file in sorted((DEPLOY / "prometheus" / "rules").glob("*.yml"))
        for group in yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]
    ]
    for group in groups:
        for rule in group["rules"]:
            if "\n" in rule["expr"]:
                rule["expr"] = Literal(rule["expr"])
    rule = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": _metadata("dask-otel", role="alert-rules"),
        "spec": {"groups": groups},
    }
    return _dump([rule], "deploy/prometheus/rules")


def dashboards() -> str:
    # The label that the sidecar of Grafana's chart looks for. Without white space: a ConfigMap ends
    # at 1 MiB, and nobody reads it here.
    made = [
        _config_map(
            f"dask-otel-{file.stem}",
            f"dask-otel-{file.name}",
            json.dumps(json.loads(file.read_text(encoding="utf-8")), separators=(",", ":")),
            grafana_dashboard="1",
        )
        for file in sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
    ]
    return _dump(made, "deploy/grafana/dashboards")


FILES = {
    "collector-config.yaml": collector_config,
    "prometheusrule.yaml": prometheus_rule,
    "dashboards.yaml": dashboards,
}


def texts() -> dict[Path, str]:
    """The text of each file."""
    return {DEPLOY / "kubernetes" / name: make() for name, make in FILES.items()}


if __name__ == "__main__":
    sys.exit(write_or_check.main(__doc__, texts))
