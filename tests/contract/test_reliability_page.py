"""The page of faults is what the results say, of the scenarios that there are."""

from __future__ import annotations

from chaos import page, results
from chaos.catalogue import SCENARIOS
from chaos.scenario import SHORT

FOUND = results.read()


def test_the_page_is_written_of_the_results() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.text(FOUND)


def test_each_scenario_has_a_result_and_no_other_has() -> None:
    expected = {
        f"{one.name} {SHORT[protocol]}" for one in SCENARIOS.values() for protocol in one.protocols
    }
    assert FOUND["results"].keys() == expected
