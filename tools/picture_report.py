#!/usr/bin/env python3
"""Take the pictures of ``docs/report.md``: the report of a run, light and dark, in a real browser.

Needs Chromium, and Pillow, which comes with bokeh. ``picture_report.py PATH…`` takes the telemetry
files of a run, such as ``dask-otel demo --output`` writes.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

from PIL import Image

from dask_otel import read_report

IMAGES = Path(__file__).parents[1] / "docs" / "images"
#: Name, width, height of the part of the page, whether dark.
PICTURES = (("report.png", 1200, 1400, False), ("report-dark.png", 760, 1100, True))
_OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    # Time passes as soon as nothing is left to do: the charts are there.
    "--virtual-time-budget=10000",
)


def take(page: Path, target: Path, width: int, height: int, *, dark: bool) -> None:
    """Write one picture."""
    browser = next(
        path for name in ("chromium", "google-chrome") if (path := shutil.which(name)) is not None
    )
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [
                browser,
                *_OPTIONS,
                f"--user-data-dir={profile}",
                f"--window-size={width},{height}",
                f"--blink-settings=preferredColorScheme={0 if dark else 1}",
                f"--screenshot={target}",
                page.as_uri(),
            ],
            check=True,
            capture_output=True,
            timeout=120,
        )
    # Its colours mean something: only invisible differences are squeezed.
    with Image.open(target) as picture:
        picture.convert("RGB").save(target, optimize=True)


def main() -> None:
    """Take all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+")
    report = read_report(*parser.parse_args().paths)
    with tempfile.TemporaryDirectory() as folder:
        page = report.save(Path(folder) / "report.html")
        for name, width, height, dark in PICTURES:
            take(page, IMAGES / name, width, height, dark=dark)
            print(IMAGES / name, (IMAGES / name).stat().st_size)


if __name__ == "__main__":
    main()
