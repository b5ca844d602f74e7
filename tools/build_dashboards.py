#!/usr/bin/env python3
"""Write the Grafana dashboards into ``deploy/grafana/dashboards``.

Needs the Grafana Foundation SDK of the dependency group ``dashboards``. With ``--check`` nothing is
written, and the exit status is 1 where a file is not what would be written.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from dashboards import exporter, overview, span, workers
from grafana_foundation_sdk.cog.encoder import JSONEncoder

FOLDER = Path(__file__).parents[1] / "deploy" / "grafana" / "dashboards"
PAGES: dict[str, Any] = {
    "overview": overview,
    "span": span,
    "cluster-and-workers": workers,
    "exporter-health": exporter,
}


def texts() -> dict[Path, str]:
    """The text of each file."""
    encoder = JSONEncoder(sort_keys=True, indent=2)
    return {
        FOLDER / f"{name}.json": encoder.encode(page.build().build()) + "\n"
        for name, page in PAGES.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    stale = []
    for path, text in texts().items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(path.name)
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if stale:
        print(("not up to date: " if check else "written: ") + ", ".join(stale))
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
