"""The report has the alerts' limits and the dashboards' colours."""

from __future__ import annotations

import re
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "tools"))

from dashboards import limits as rules  # noqa: E402

from dask_otel.report.advice import Advice  # noqa: E402
from dask_otel.report.limits import ENOUGH_BYTES, ENOUGH_SECONDS, LIMITS  # noqa: E402
from dask_otel.report.meanings import HEX, MEANINGS, PARTS, PATH, hex_colour  # noqa: E402
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
