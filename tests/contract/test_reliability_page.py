"""The page of faults is what the results say, of the scenarios that there are."""

from __future__ import annotations

from chaos import page, results
from chaos.catalogue import SCENARIOS
from chaos.scenario import SHORT

FOUND = results.read()


def test_the_page_is_written_of_the_results() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.text(FOUND)


def test_each_result_is_of_a_scenario_and_what_has_none_is_said_not_to_have_run() -> None:
    expected = {
        f"{one.name} {SHORT[protocol]}" for one in SCENARIOS.values() for protocol in one.protocols
    }
    assert FOUND["results"].keys() <= expected
    rows = page.PAGE.read_text(encoding="utf-8").splitlines()
    for one in SCENARIOS.values():
        (row,) = [line for line in rows if line.endswith(f"| `{one.how}` |")]
        for protocol in one.protocols:
            ran = f"{one.name} {SHORT[protocol]}" in FOUND["results"]
            assert f"{SHORT[protocol]}: not run" in row or ran, row
