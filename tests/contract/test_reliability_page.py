"""The pages of faults are made of the results, and of the scenarios that exist."""

from __future__ import annotations

from chaos import page, results
from chaos.catalogue import SCENARIOS
from chaos.scenario import SHORT

FOUND = results.read()


def test_both_pages_are_made_of_the_results_and_have_each_scenario_once() -> None:
    assert (page.PAGE.read_text(encoding="utf-8"), page.EVIDENCE.read_text(encoding="utf-8")) == (
        page.summary(FOUND),
        page.evidence(FOUND),
    )
    names = [name for *_, names in page.ROWS for name in names.split()]
    assert sorted(names) == sorted(SCENARIOS)


def test_the_page_for_users_is_one_table_that_says_what_was_broken_or_not_run() -> None:
    assert page.summary(FOUND).count("\n| ---") == 1
    other = {**FOUND, "results": {"sigterm HTTP": {"verdict": "broken", "observed": ""}}}
    (row,) = [line for line in page.summary(other).splitlines() if "SIGTERM" in line]
    assert row.endswith("| 1 broken, 3 not run |")
    assert ": not run" in page.evidence(other)


def test_each_result_is_of_a_scenario() -> None:
    expected = {
        f"{one.name} {SHORT[protocol]}" for one in SCENARIOS.values() for protocol in one.protocols
    }
    assert FOUND["results"].keys() <= expected
