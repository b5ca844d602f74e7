"""The report's words lead to pages, and its colours mean the same everywhere."""

from __future__ import annotations

import math
import re
from html import unescape
from xml.etree import ElementTree

import pytest

from dask_otel.report.meanings import (
    ALIKE,
    HEX,
    MEANINGS,
    PART_TITLES,
    PARTS,
    PATH,
    colour_of,
    hex_colour,
)
from dask_otel.report.text import _SECTIONS as SECTIONS
from dask_otel.semconv import PATH_PARTS
from tests.environment import REPOSITORY

TITLES = {*PART_TITLES, *PATH.values()}


def test_every_part_has_a_page_and_words_and_a_colour_of_its_own() -> None:
    runbooks = REPOSITORY / "docs" / "runbooks"
    assert [one for one in PARTS if not (runbooks / f"{one.alert}.md").is_file()] == []
    assert tuple(PATH) == PATH_PARTS
    for whole in (PATH.values(), PART_TITLES):
        assert len({*map(colour_of, whole)}) == len(whole)
    colours = {one.colour for one in MEANINGS.values()}
    wrong = [one for one in colours if not re.fullmatch(r"#[0-9A-Fa-f]{6}", hex_colour(one))]
    assert (wrong, set(HEX) - colours) == ([], set())


#: Names that mean the opposite, or whose cures do.
OPPOSITE = [
    ("No free thread", "Idle"),
    ("No free thread", "Uneven"),
    ("No free thread", "Unused"),
    ("No free thread", "No worker"),
    ("No free thread", "Computing"),
    ("Idle", "Computing"),
    ("Idle", "Unused"),
    ("Starting", "Uneven"),
    ("Computing", "Off the CPU"),
    ("Computing", "Wasted"),
    ("Computing", "Repeated"),
    ("Inner", "No free thread"),
    ("Inner", "Computing"),
    ("Starting", "Computing"),
    ("Wasted", "Idle"),
    ("succeeded", "failed"),
    ("memory-read", "disk-read"),
    ("managed", "spilled"),
]


def linear(colour: str) -> list[float]:
    """Red, green and blue of a colour as a screen emits them."""
    parts = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def difference(one: str, other: str) -> float:
    """The distance of red, green and blue, each up to 255."""
    return math.dist(
        *([int(c[place : place + 2], 16) for place in (1, 3, 5)] for c in (one, other))
    )


def light(colour: str) -> float:
    return sum(w * part for w, part in zip((0.2126, 0.7152, 0.0722), linear(colour), strict=True))


def contrast(one: str, other: str) -> float:
    """The contrast of WCAG."""
    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


def test_opposite_meanings_never_share_a_colour() -> None:
    close = [pair for pair in OPPOSITE if difference(*map(colour_of, pair)) < 80]
    assert close == []
    # Light and dark of one colour.
    assert difference(colour_of("waiting"), colour_of("processing")) > 80
    spill = colour_of("spilled")
    names = {*TITLES, *MEANINGS, *sum(ALIKE.values(), ())}
    near = {name for name in names if difference(spill, colour_of(name)) < 50}
    assert {meaning for meaning, one in MEANINGS.items() if hex_colour(one.colour) == spill} == {
        "spill"
    }
    assert near == {"spilled", "on disk", "p2p-disk-read"}


def test_text_and_bars_can_be_read_on_light_and_dark_pages() -> None:
    style = (REPOSITORY / "src/dask_otel/report/page/style.css").read_text(encoding="utf-8")
    light_page, dark_page = (
        dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", style_of))
        for style_of in style.partition("* {")[0].split("@media")
    )
    faint = [
        (name, ground)
        for page in (light_page, dark_page)
        for name in ("text", "dim", "bad", "warning", "note", "good")
        for ground in ("bg", "panel")
        if contrast(page[name], page[ground]) < 4.5
    ]
    assert faint == []
    # On a light page, an edge surrounds each colour.
    bars = {*map(colour_of, TITLES)}
    assert [one for one in bars if contrast(one, dark_page["bg"]) < 2.5] == []


@pytest.mark.parametrize("name", ["demo.svg", "demo-moving.svg"])
def test_pictures_show_the_headings_that_the_code_prints(name: str) -> None:
    """`make pictures` draws them again."""
    text = (REPOSITORY / "docs" / "images" / name).read_text(encoding="utf-8")
    ElementTree.fromstring(text)
    # The last frame.
    svg = text.rpartition('class="rich-terminal"')[2]
    bold = re.findall(r"\.([\w-]+) \{[^}]*font-weight: bold", svg)
    first = re.findall(r'<text class="([\w-]+)" x="0" [^>]*>([^<]+)</text>', svg)
    shown = [unescape(said).replace("\N{NO-BREAK SPACE}", " ") for of, said in first if of in bold]
    lines = [line.rstrip() for line in shown]
    headings = [heading for heading in SECTIONS if heading in lines]
    # The headline, the root span, and a replay below it are bold besides.
    assert (lines[0], headings[-2:]) == ("$ dask-otel demo", ["Where to look next", "Spans"])
    at = lines.index(headings[0])
    assert lines[at : at + len(headings) + 1] == [*headings, "Alice's workflow"]
