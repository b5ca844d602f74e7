#!/usr/bin/env python3
"""Make pictures for ``docs/images``: the demo and its report, memory, profiles, what if.

Of one run of ``dask-otel demo``: ``demo.svg``, the terminal at the end; ``demo-moving.svg``, the
steps and then the same; with Chromium, ``report.png`` and ``report-dark.png``, the page. Of a run
whose results fill the memory: ``held.svg``, the terminal; with Chromium, ``memory.png``, a section
of the page. Of a run with profiles: ``whatif.svg``, the terminal; with Chromium, ``whatif.png`` and
``flame.png``, sections of the page.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import dask
from distributed import Client, LocalCluster, Variable, span, wait
from rich.console import Console
from rich.text import Text
from tests.browser import browser, open_page

import dask_otel
from dask_otel.cli import showcase
from dask_otel.report.document import read_report

IMAGES = Path(__file__).parents[1] / "docs" / "images"
WIDTH = 80
#: Seconds of a step, and of the result.
STEP, RESULT = 0.7, 12.0
#: Whether it is dark, width and height, by picture of the whole page's top.
PAGES = {"report": (False, 1200, 1060), "report-dark": (True, 500, 1200)}
#: In the page: whether its charts are drawn.
DRAWN = "[...document.querySelectorAll('[data-chart]')].every((one) => one.dataset.ready)"
#: In the page: the place of a section by its title.
BOX = """(title) => {
    const all = [...document.querySelectorAll("h2")];
    const at = all.findIndex((one) => one.textContent === title);
    const [from, to] = [all[at], all[at + 1]].map((one) => one.getBoundingClientRect().y);
    return {x: 0, y: from + scrollY - 10, width: innerWidth, height: to - from, scale: 1};
}"""


def console() -> Console:
    """Return a terminal that only remembers, with the colours of a real one."""
    return Console(
        record=True, width=WIDTH, file=io.StringIO(), color_system="truecolor", highlight=False
    )


def drawn(lines: Sequence[Text], name: str, command: str = "dask-otel demo") -> str:
    """Return a picture of a terminal with these lines."""
    screen = console()
    screen.print(Text(f"$ {command}", "bold"), *lines, sep="\n")
    svg = screen.export_svg(title=command, unique_id=name)
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


def load(_number: int) -> bytes:
    """Return a part of the data."""
    time.sleep(0.4)
    return b"x" * 14_000_000


def join(*parts: bytes) -> bytes:
    """Return something from some parts."""
    time.sleep(0.6)
    return b"y" * (6_000_000 * len(parts))


@contextmanager
def observed(folder: Path, root: str, config: dict[str, Any], **options: Any) -> Iterator[Client]:
    """Give the client of a cluster that leaves files, in the block of a span."""
    always = {
        "otel.files.path": str(folder),
        "otel.environment": {"OTEL_METRIC_EXPORT_INTERVAL": "500"},
        "distributed.scheduler.preload": ["dask_otel.preload"],
    }
    with (
        dask.config.set({**always, **config}),
        LocalCluster(dashboard_address=None, n_workers=2, **options) as cluster,
        Client(cluster) as client,
        dask_otel.span(root),
    ):
        yield client


def filling(folder: Path) -> dask_otel.Held:
    """Run a program that forgets a part of its results; return who held them then."""
    options = {"threads_per_worker": 2, "memory_limit": "512MiB"}
    with observed(folder, "train", {}, **options) as client:
        with span("load"):
            parts = client.map(load, range(24))
            wait(parts)
        time.sleep(2)
        with span("join"):
            joined = [
                client.submit(join, *parts[n : n + 4], key=("join", n)) for n in range(0, 24, 4)
            ]
            wait(joined)
        Variable("best").set(joined[0])
        del parts[8:]
        time.sleep(3)
        del joined
        time.sleep(2)
        return dask_otel.held(client)


def read(number: int) -> str:
    """Return a part of the data."""
    time.sleep(0.3)
    return json.dumps([{"user": f"user-{number}", "visits": "12 times"}] * 4000)


def parse(text: str) -> int:
    """Return something that takes some time in several functions."""
    rows = [row for _ in range(2) for row in json.loads(text)]
    return sum(visits(row) for row in rows)


def visits(row: dict[str, str]) -> int:
    """Return a number of a row."""
    return int(re.sub(r"\D+", "", row["visits"])) + len(re.findall(r"\w+", row["user"]))


def fit(seconds: float, _parts: list[int]) -> None:
    """Wait for another program."""
    time.sleep(seconds)


def training(folder: Path) -> None:
    """Run a program with profiles, of which one long task is the last."""
    config = {"otel.profiles.enabled": True}
    with observed(folder, "nightly", config, threads_per_worker=1) as client:
        with span("load"):
            parts = client.map(parse, client.map(read, range(24)))
            wait(parts)
        with span("train"):
            seconds = [0.5] * 7 + [3.0]
            wait(
                [client.submit(fit, took, parts, key=("fit", n)) for n, took in enumerate(seconds)]
            )


async def shown(page: str, part: str | int, *, dark: bool = False, width: int = 1000) -> bytes:
    """Return a picture of a page's section by its title, or of its top by its height."""
    with tempfile.TemporaryDirectory() as profile, browser(Path(profile)) as address:
        async with open_page(address, page, dark=dark, width=width) as opened:
            # All charts are drawn: they move what is below them.
            await opened.until(DRAWN)
            box = {"x": 0, "y": 0, "width": width, "height": part, "scale": 1}
            if isinstance(part, str):
                box = await opened.ask(f"({BOX})({json.dumps(part)})")
            shot = await opened.call("Page.captureScreenshot", clip=box, captureBeyondViewport=True)
            return base64.b64decode(shot["data"])


def memory(folder: Path) -> None:
    """Draw who held the memory of a run: the terminal, and the section of the page."""
    answer = repr(filling(folder))
    lines = [Text(line) for line in answer.split("\n")]
    command = "dask-otel held --scheduler tcp://scheduler:8786"
    (IMAGES / "held.svg").write_text(drawn(lines, "held", command), encoding="utf-8")
    page = read_report(folder).save(folder / "page.html").as_uri()
    (IMAGES / "memory.png").write_bytes(asyncio.run(shown(page, "Memory")))


def code(folder: Path) -> None:
    """Draw what a run would take with other workers, and which code took its time."""
    training(folder)
    tried = dask_otel.what_if(folder)
    lines = [Text(line) for line in tried.text(WIDTH).split("\n")]
    picture = drawn(lines, "whatif", "dask-otel whatif telemetry/")
    (IMAGES / "whatif.svg").write_text(picture, encoding="utf-8")
    report = replace(read_report(folder), what_ifs=[tried])
    page = report.save(folder / "page.html").as_uri()
    for name, title in (("whatif", "What if"), ("flame", "Which code took the time")):
        (IMAGES / f"{name}.png").write_bytes(asyncio.run(shown(page, title)))


def main() -> None:
    """Draw the demo and its page, run in an empty folder, then the memory, then the code."""
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
        for name, (dark, width, height) in PAGES.items():
            picture = asyncio.run(shown(page, height, dark=dark, width=width))
            (IMAGES / f"{name}.png").write_bytes(picture)
        memory(Path(folder, "memory"))
        code(Path(folder, "code"))


if __name__ == "__main__":
    main()
