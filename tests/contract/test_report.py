"""The report has the alerts' limits and the dashboards' colours."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "tools"))

from dashboards import limits as rules  # noqa: E402

from dask_otel.report.advice import Advice  # noqa: E402
from dask_otel.report.limits import ENOUGH_BYTES, ENOUGH_SECONDS, LIMITS  # noqa: E402
from dask_otel.report.meanings import (  # noqa: E402
    ALIKE,
    HEX,
    MEANINGS,
    PARTS,
    PATH,
    colour_of,
    hex_colour,
)
from dask_otel.semconv import PATH_PARTS  # noqa: E402


def test_limits_are_those_of_the_alerts() -> None:
    found = {
        alert: tuple(float(number) for number in rules._LIMIT.findall(rules.ALERTS[alert]["expr"]))
        for alert in LIMITS
    }
    assert found == LIMITS
    assert len(found) > 8


def test_what_is_enough_is_what_the_recording_rules_say() -> None:
    text = (rules.RULES / "dask-recording.yml").read_text(encoding="utf-8")
    volumes = {float(number) for number in re.findall(r"> ([\d.e]+)\)?$", text, re.MULTILINE)}
    assert {ENOUGH_SECONDS, ENOUGH_BYTES} <= volumes


def test_advice_leads_to_a_page_that_is_there() -> None:
    alerts = {*LIMITS, *(part.alert for part in PARTS), "DaskOtelSilent"}
    alerts |= {part.alert for part in PATH.values() if part.alert}
    for alert in alerts:
        assert Advice("note", "", "", alert).url == rules.runbook(alert)
        assert (REPOSITORY / "docs" / "runbooks" / f"{alert}.md").is_file()


def test_every_part_of_a_path_has_words_and_a_colour_of_its_own() -> None:
    assert (tuple(PATH), len({part.colour for part in PATH.values()})) == (PATH_PARTS, len(PATH))


def test_every_colour_is_one_that_a_page_knows() -> None:
    for colour in [one.colour for one in (*MEANINGS.values(), *PARTS)]:
        assert re.fullmatch(r"#[0-9A-Fa-f]{6}", hex_colour(colour)), colour
    assert set(HEX) <= {one.colour for one in (*MEANINGS.values(), *PARTS)}


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
]


def linear(colour: str) -> list[float]:
    """Red, green and blue of a colour as a screen emits them."""
    parts = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def light(colour: str) -> float:
    return sum(w * part for w, part in zip((0.2126, 0.7152, 0.0722), linear(colour), strict=True))


def contrast(one: str, other: str) -> float:
    """The contrast of WCAG."""
    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


def difference(one: str, other: str) -> float:
    """The difference that people see: the distance in CIELAB."""

    def lab(colour: str) -> tuple[float, float, float]:
        red, green, blue = linear(colour)
        x, y, z = (
            value ** (1 / 3) if value > 0.008856 else 7.787 * value + 16 / 116
            for value in (
                (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047,
                light(colour),
                (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883,
            )
        )
        return 116 * y, 500 * (x - y), 200 * (y - z)

    return math.dist(lab(one), lab(other))


def test_opposite_meanings_never_share_a_colour() -> None:
    close = [pair for pair in OPPOSITE if difference(*map(colour_of, pair)) < 30]
    assert close == []
    spill = colour_of("spilled")
    names = {
        *(part.title for part in (*PARTS, *PATH.values())),
        *MEANINGS,
        *sum(ALIKE.values(), ()),
    }
    near = {name for name in names if difference(spill, colour_of(name)) < 20}
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
    bars = {colour_of(part.title) for part in (*PARTS, *PATH.values())}
    assert [one for one in bars if contrast(one, dark_page["bg"]) < 2.5] == []
