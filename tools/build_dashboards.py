#!/usr/bin/env python3
"""Write the Grafana dashboards into ``deploy/grafana/dashboards``.

Needs the Grafana Foundation SDK of the dependency group ``dashboards``. With ``--check`` nothing is
written, and the exit status is 1 where a file is not what would be written.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import write_or_check
from dashboards import exporter, overview, span, workers
from grafana_foundation_sdk.cog.encoder import JSONEncoder

FOLDER = Path(__file__).parents[1] / "deploy" / "grafana" / "dashboards"
PAGES: dict[str, Any] = {
    "overview": overview.PAGE,
    "span": span.PAGE,
    "cluster-and-workers": workers.PAGE,
    "exporter-health": exporter.PAGE,
}


def texts() -> dict[Path, str]:
    """The text of each file."""
    encoder = JSONEncoder(sort_keys=True, indent=2)
    return {
        FOLDER / f"{name}.json": encoder.encode(page.build()) + "\n" for name, page in PAGES.items()
    }


if __name__ == "__main__":
    sys.exit(write_or_check.main(__doc__, texts))
