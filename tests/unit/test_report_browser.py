"""The page in a real browser: it shows itself, loads nothing, and takes hostile text as text."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("bokeh")

from benchmarks.changes import history

from dask_otel.report.document import Report
from dask_otel.report.history.changes import trends
from dask_otel.report.page.html import history_page
from tests.browser import Page, open_page
from tests.unit.looped import looped
from tests.unit.report_files import EVIL, everything, log, logs, many, report_of, span, traces
from tests.unit.test_profile_command import MATCH, USUAL, make_profile
from tests.unit.test_report_logs import FILES
from tests.unit.test_report_path import LOAD, TRAIN
from tests.unit.test_report_profiles import evil, of, report

#: One browser for all, and one import of the libraries of pages.
pytestmark = pytest.mark.xdist_group("page")

READY = "document.documentElement.dataset.ready === '1'"
TIMELINE = "document.querySelector('[data-timeline]').timeline"
BOX = "document.querySelector('.timeline')"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a page with a hostile text in every place that takes one."""
    path = tmp_path_factory.mktemp("page") / "page.html"
    return report_of(*everything(EVIL), price=1.0).save(path)


@asynccontextmanager
async def show(chromium: str, path: Path, **options: Any) -> AsyncIterator[Page]:
    async with open_page(chromium, path.as_uri(), **options) as page:
        await page.until(READY)
        yield page
        assert page.trouble == []
        # Not even what a browser asks for by itself.
        assert {url.split(":")[0] for url in page.requests} <= {"file", "data", "blob"}


@looped
@pytest.mark.parametrize(("dark", "width"), [(False, 1400), (True, 500)], ids=["wide", "narrow"])
async def test_shows_itself(hostile: Path, chromium: str, dark: bool, width: int) -> None:
    async with show(chromium, hostile, dark=dark, width=width) as page:
        charts = "[...document.querySelectorAll('[data-chart]')]"
        assert await page.ask(f"{charts}.length") == 4
        await page.until(f"{charts}.every(one => one.dataset.ready && one.clientHeight > 60)")
        assert await page.ask("document.documentElement.scrollWidth") <= width
        ground = await page.ask("getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)")
        # The headline is on the first screen, in the colour of the text.
        headline = "document.querySelector('.verdict')"
        assert await page.ask(f"{headline}.getBoundingClientRect().bottom") < 600
        colour = await page.ask(f"getComputedStyle({headline}.querySelector('p')).color")
        assert colour == ("rgb(228, 231, 235)" if dark else "rgb(28, 33, 40)")
        # Each row that can be picked shows its attributes as text.
        rows = await page.ask(f"{TIMELINE}.data.rows.length")
        for row in range(rows):
            await page.ask(f"{TIMELINE}.pick({row})")
        picked = await page.ask("document.querySelector('.picked').textContent")
        assert EVIL in picked
        assert (
            await page.ask("document.querySelectorAll('.picked script, .picked img').length") == 0
        )
        assert await page.ask("window.pwned === undefined")
        # Three rows fill their box; there is no empty ground below them.
        assert await page.ask("document.querySelector('.more').textContent") == ""
        assert await page.ask(f"{BOX}.scrollHeight <= {BOX}.clientHeight")
        assert await page.ask(f"{BOX}.clientHeight") == rows * 20 + 24
        # A printed page has its pictures, and no buttons.
        await page.call("Emulation.setEmulatedMedia", media="print")
        heights = (
            "Object.fromEntries(['.verdict', '.bar', '.legend', '.timeline', '.tools'].map("
            "name => [name, document.querySelector(name).offsetHeight > 0]))"
        )
        assert await page.ask(heights) == {
            ".verdict": True, ".bar": True, ".legend": True, ".timeline": True, ".tools": False,
        }  # fmt: skip
        adjusted = "getComputedStyle(document.querySelector('.bar i')).printColorAdjust"
        assert await page.ask(adjusted) == "exact"
        assert await page.ask("document.documentElement.scrollWidth") <= width


@looped
async def test_the_history_is_searched_and_filtered(tmp_path: Path, chromium: str) -> None:
    noise = iter(range(1, 99))
    runs = history(lambda: 1.0 + next(noise) / 100, [1.0] * 9)
    other = replace(runs[0], name=EVIL, result="failure", command="dask-otel report else")
    saved = tmp_path / "history.html"
    saved.write_text(history_page([*runs, other], trends(runs), [EVIL], None), encoding="utf-8")
    shown = "document.querySelectorAll('tbody tr:not([hidden])').length"
    send = "dispatchEvent(new Event('input'))"
    async with show(chromium, saved) as page:
        assert await page.ask(shown) == 10
        for change, count in (
            ("document.querySelector('input').value = 'ELSE report'", 1),
            ("document.querySelector('input').value = ''", 10),
            ("document.querySelector('[data-column=name]').value = 'etl'", 9),
            ("document.querySelector('[data-column=result]').value = 'failure'", 0),
        ):
            await page.ask(f"{change}; document.querySelector('input').{send}")
            assert await page.ask(shown) == count, change
        assert await page.ask("window.pwned === undefined")


@looped
async def test_keys_and_messages_have_room_where_a_page_is_narrow(
    tmp_path: Path, chromium: str
) -> None:
    keys = ["('load-partition-0a1b2c3d4e5f6071', 12)", "k" * 200]
    tasks = [
        span(2 + number, "load task", kind="task", parent=1, dask_task_key=key)
        for number, key in enumerate(keys)
    ]
    text = "Worker 0 (tcp://127.0.0.1:40901) was lost: its connection dropped without notice."
    found = report_of(traces(span(1), *tasks), logs(log(1, text)))
    saved = found.save(tmp_path / "page.html")
    async with show(chromium, saved, width=390) as page:
        lines = "one.offsetHeight / parseFloat(getComputedStyle(one).lineHeight)"
        shown = await page.ask(
            "Object.fromEntries([...document.querySelectorAll('td > code')]"
            f".map(one => [one.textContent, Math.round({lines})]))"
        )
        # A long one does not make all columns after it hard to find.
        assert shown == {keys[0]: 1, keys[1]: 4}
        # The columns beside it may be empty, but each has the width of a name.
        cell = "getComputedStyle(document.querySelector('td.description'))"
        lines = f"parseFloat({cell}.height) / parseFloat({cell}.lineHeight)"
        assert await page.ask(lines) < 5
        assert await page.ask("document.documentElement.scrollWidth") <= 390


@looped
async def test_a_long_timeline_draws_what_is_seen_and_is_searched_zoomed_and_folded(
    tmp_path: Path, chromium: str
) -> None:
    run = many(2_000)
    run.spans[123].failed = True
    run.spans[55].attributes["link"] = "https://example.org/x"
    run.spans[56].attributes["link"] = "javascript:alert(1)"
    saved = Report([run]).save(tmp_path / "page.html")

    async with show(chromium, saved) as page:
        shown = f"{TIMELINE}.shown.map(index => {TIMELINE}.data.rows[index][3])"

        async def put(name: str, change: str) -> None:
            box = f"document.querySelector('{name}')"
            await page.ask(f"{box}.{change}; {box}.dispatchEvent(new Event('input'))")

        await page.ask("document.querySelector('.open').click()")
        # 20 rows of 20 pixels, and a part of the next.
        hides = "document.querySelector('.more').textContent"
        for above in (0, 10):
            await page.ask(f"{BOX}.scrollTop = {20 * above}")
            below = f"(1980 - {above}).toLocaleString()"
            said = f"'The box scrolls: {above} rows above, ' + {below} + ' below.'"
            await page.until(f"{hides} === {said}")
        # In one go, in which no frame of the browser's own comes between.
        drawn = await page.ask(
            f"(() => {{ const t = {TIMELINE}; let drawn = 0; const row = t.row.bind(t);"
            " t.row = (...all) => { drawn += 1; row(...all); };"
            " t.box.scrollTop = 100000; t.draw(); return drawn; })()"
        )
        assert 10 <= drawn <= 30
        await page.ask(f"{BOX}.scrollTop = 200000")
        await page.until(f"{hides}.endsWith(' 0 below.')")

        await put(".failed", "checked = true")
        # With what is above it.
        assert await page.ask(shown) == ["step 0", "step 1", "step 2", "step 3"]
        await put(".failed", "checked = false")
        await put("[type=search]", "value = 'nothing is called so'")
        assert await page.ask(shown) == []
        await put("[type=search]", "value = 'STEP 9'")
        assert len(await page.ask(shown)) == 2_000
        await put("[type=search]", "value = ''")
        await page.ask("document.querySelector('.close').click()")
        assert set(await page.ask(shown)) == {"step 0"}
        await page.ask(f"{TIMELINE}.focusOn(0)")
        assert await page.ask(f"{TIMELINE}.end") < await page.ask(f"{TIMELINE}.data.length") / 100
        for row, links in ((55, ["https://example.org/x"]), (56, [])):
            await page.ask(f"{TIMELINE}.pick({row})")
            found = "[...document.querySelectorAll('.picked a')].map(link => link.href)"
            assert await page.ask(found) == links


@looped
async def test_a_click_on_the_path_shows_its_task_and_what_happened_is_filtered(
    tmp_path: Path, chromium: str
) -> None:
    saved = report_of(traces(*TRAIN, *LOAD), FILES[1]).save(tmp_path / "page.html")

    async with show(chromium, saved) as page:
        links = f"{TIMELINE}.links"
        # Both spans began at the same time.
        assert await page.ask(f"[...new Set({links}.map(link => link.lane))]") == [0, 1]
        link = f"{links}.find(link => link.lane === 1)"
        place = f"""(() => {{
            const box = {TIMELINE}.canvas.getBoundingClientRect(), link = {link};
            const x = {TIMELINE}.x((link.start + link.end) / 2);
            return {{ clientX: box.left + x, clientY: box.top + 24 + 16 + 5, pointerId: 1 }};
        }})()"""
        # Only a real pointer can be captured.
        await page.ask(f"{TIMELINE}.canvas.setPointerCapture = () => {{}}")
        for event in ("pointermove", "pointerdown", "pointerup"):
            await page.ask(f"{TIMELINE}.canvas.dispatchEvent(new PointerEvent('{event}', {place}))")
        tip = await page.ask("document.querySelector('.tip').innerText")
        assert tip == "read-21\nNo free thread 31.0 s\nComputing 9.00 s"
        picked = await page.ask("document.querySelector('.picked').textContent")
        assert [text in picked for text in ("read-21", "w1", "31")] == [True] * 3
        box = "document.querySelector('[data-logs]')"
        shown = f"{box}.querySelectorAll('tr[data-severity]:not([hidden])').length"
        assert await page.ask(shown) == 2
        for change, count in (("input').checked = false", 1), ("select').value = '0'", 2)):
            await page.ask(
                f"{box}.querySelector('{change}; {box}.dispatchEvent(new Event('change'))"
            )
            assert await page.ask(shown) == count


@looped
async def test_a_comparison_shows_where_time_grew(tmp_path: Path, chromium: str) -> None:
    facts = {"root": "read"}
    grown = [(*one[:4], one[4] * 3 if MATCH in one[2] else one[4]) for one in USUAL]
    before = report(tmp_path / "a", of(make_profile(*USUAL, **facts)), ran=26.0)
    after = report(tmp_path / "b", of(make_profile(*grown, **facts)), ran=38.0)
    saved = after.compared_with(before).save(tmp_path / "page.html")
    assert saved.stat().st_size < 5_000_000
    async with show(chromium, saved, width=1000) as page:
        root = "document.querySelector('.compared [data-flame]')"
        await page.until(f"!!{root}.flame")
        told = f"{root}.querySelector('.said').textContent"
        assert await page.ask(told) == "all: 38.0 s, 100.0 %; +12.0 s since A, which had 26.0 s"
        node = f"{root}.flame.nodes.find(one => one.name === '%s')"
        await page.ask(f"{root}.flame.zoom({node % 'match'})")
        assert (await page.ask(told)).endswith("; +12.0 s since A, which had 6.00 s")
        colours = {
            name: await page.ask(f"{root}.flame.colour({node % name})")
            for name in ("match", "etl/train")
        }
        # Red by two thirds, and without a colour where nothing has changed.
        assert colours == {"match": "hsl(8 60% 77.33333333333333%)", "etl/train": "hsl(8 0% 92%)"}


FLAME = "document.querySelector('[data-flame]').flame"


@looped
async def test_the_flame_graph_is_searched_and_walked(tmp_path: Path, chromium: str) -> None:
    saved = report(tmp_path / "run", evil()).save(tmp_path / "page.html")
    async with show(chromium, saved, width=1000) as page:
        told = "document.querySelector('[data-flame] .said').textContent"
        assert (await page.ask(told)) == "all: 27.0 s, 100.0 %"
        canvas = "document.querySelector('[data-flame] canvas')"

        async def press(*keys: str) -> str:
            for key in keys:
                event = f"new KeyboardEvent('keydown', {{key: '{key}', cancelable: true}})"
                await page.ask(f"{canvas}.dispatchEvent({event})")
            return str(await page.ask(told))

        assert (await press("ArrowDown")).startswith("etl/read: 20.0 s, 74.1 %. By Dask: 8.00 s")
        down = await press("ArrowDown", "ArrowDown", "ArrowDown", "Enter")
        assert down == "parse (jobs/etl.py:33): 20.0 s, 74.1 %, 14.0 s of it its own"
        width = f"{FLAME}.box({FLAME}.selected)[1] / {FLAME}.width"
        assert await page.ask(width) == 1
        assert (await press("ArrowUp", "ArrowUp", "ArrowUp", "ArrowRight")).startswith("etl/train")
        assert await press("Escape") == "all: 27.0 s, 100.0 %"
        assert (
            round(await page.ask(f"{FLAME}.box({FLAME}.nodes[1])[1] / {FLAME}.width"), 3) == 0.741
        )
        # A click zooms where it is; recursion is counted once.
        place = f"{FLAME}.find(3, 1.5 * 19).name"
        assert await page.ask(place) == "etl/read"
        search = "document.querySelector('[data-flame] input')"
        for text, found in (("fit", "6.00 s match"), ("RE.PY", "6.00 s match"), ("", "")):
            await page.ask(f"{search}.value = '{text}'; {search}.dispatchEvent(new Event('input'))")
            count = "document.querySelector('[data-flame] .count').textContent"
            assert await page.ask(count) == found
        await page.ask(f"{FLAME}.zoom({FLAME}.nodes.find(one => one.name.includes('script')))")
        assert EVIL in await page.ask(told)
        assert await page.ask("window.pwned === undefined")
