"""The results: one JSON file, of which the pages are made."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
LATEST = Path(__file__).parent / "results" / "latest.json"


def code() -> str:
    """Return a hash of the code at hand: a result of other code does not count."""
    digest = hashlib.sha256()
    for path in sorted((REPOSITORY / "src" / "dask_otel").rglob("*.py")):
        digest.update(path.relative_to(REPOSITORY).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def read() -> dict[str, Any]:
    """Return the results so far."""
    return dict(json.loads(LATEST.read_text(encoding="utf-8")))


def write(results: dict[str, Any]) -> None:
    """Write them, all or nothing: an interrupted run goes on where it stopped."""
    results["machine"] = {
        "python": platform.python_version(),
        "system": platform.system(),
        "cores": os.cpu_count(),
        "dask": version("dask"),
        "distributed": version("distributed"),
        "opentelemetry-sdk": version("opentelemetry-sdk"),
        "opentelemetry-exporter-otlp": version("opentelemetry-exporter-otlp"),
    }
    results["results"] = dict(sorted(results["results"].items()))
    scratch = LATEST.with_suffix(".tmp")
    scratch.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    scratch.replace(LATEST)
