#!/usr/bin/env python3
"""Make the pictures of the demo and its report: one run of ``dask-otel demo``, and its page.

They are in ``docs/images``: ``demo.svg``, the terminal at the end; ``demo-moving.svg``, the steps
and then the same; with Chromium, ``report.png`` and ``report-dark.png``, the page.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path

from rich.console import Console
from rich.text import Text

from dask_otel.cli import showcase
from dask_otel.report.document import read_report

IMAGES = Path(__file__).parents[1] / "docs" / "images"
WIDTH = 80
#: Seconds of a step, and of the result.
STEP, RESULT = 0.7, 12.0
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
#: Width, height and Chromium's further options by picture.
PAGES = {
    "report": (1200, 1060, ()),
    "report-dark": (500, 1200, ("--blink-settings=preferredColorScheme=0",)),
}


def console() -> Console:
    """Return a terminal that only remembers, with the colours of a real one."""
    return Console(
        record=True, width=WIDTH, file=io.StringIO(), color_system="truecolor", highlight=False
    )


def drawn(lines: Sequence[Text], name: str) -> str:
    """Return a picture of a terminal with these lines."""
    screen = console()
    screen.print(Text("$ dask-otel demo", "bold"), *lines, sep="\n", soft_wrap=True)
    svg = screen.export_svg(title="dask-otel demo", unique_id=name)
    # Without rich's web font: a picture in a README cannot load other files.
    return re.sub(r"@font-face\s*{[^}]*}", "", svg)


def moving(frames: Sequence[Sequence[Text]]) -> str:
    """Return a picture that shows the frames in turn; without motion, the last one."""
    most = max(map(len, frames))
    pictures = [
        drawn([*lines, *[Text()] * (most - len(lines))], f"f{number}")
        for number, lines in enumerate(frames)
    ]
    times = [*accumulate([STEP] * (len(frames) - 1), initial=0.0), 0.0]
    times[-1] = times[-2] + RESULT
    style = "".join(
        f"@keyframes k{number}{{0%{{visibility:hidden}}{100 * begin / times[-1]:.2f}%"
        f"{{visibility:visible}}{100 * end / times[-1]:.2f}%{{visibility:hidden}}}}"
        f"#k{number}{{animation:k{number} {times[-1]:.1f}s step-end infinite}}"
        for number, (begin, end) in enumerate(pairwise(times))
    )
    last = len(frames) - 1
    shown = "".join(f'<g id="k{number}">{svg}</g>' for number, svg in enumerate(pictures))
    (box,) = {*re.findall(r'<svg[^>]*viewBox="([^"]+)"', shown)}
    return (
        f'<svg viewBox="{box}" xmlns="http://www.w3.org/2000/svg"><style>g[id^=k]{{visibility:'
        f"hidden}}#k{last}{{visibility:visible}}@media (prefers-reduced-motion:no-preference){{"
        f"{style}}}</style>{shown}</svg>\n"
    )


def main() -> int:
    """Run the demo in an empty folder, and draw its result and its page."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        screen = console()
        output = showcase.DEFAULT_OUTPUT
        showcase.perform(quick=False, fail=False, output=output, console=screen)
        lines = Text.from_ansi(screen.export_text(styles=True)).split()
        steps = [line for line in lines if line.plain.startswith("✓")]
        result = [line for line in lines if line not in steps]
        (IMAGES / "demo.svg").write_text(drawn(result, "demo"), encoding="utf-8")
        frames = [[step] for step in steps] + [result]
        (IMAGES / "demo-moving.svg").write_text(moving(frames), encoding="utf-8")
        page = read_report(output).save(Path(folder, "page.html")).as_uri()
        browser = next(filter(None, map(shutil.which, BROWSERS)), None)
        if browser is None:
            print("no Chromium: the pictures of the page stay as they are", file=sys.stderr)
            return 1
        for name, (width, height, options) in PAGES.items():
            shot = f"--screenshot={IMAGES / name}.png"
            size = f"--window-size={width},{height}"
            common = (
                "--headless",
                "--no-sandbox",
                "--hide-scrollbars",
                "--virtual-time-budget=9000",
            )
            subprocess.run([browser, *common, *options, shot, size, page], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
