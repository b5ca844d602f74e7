"""The properties that the fuzzer goes on with where the tests stop.

Hypothesis draws their arguments of the fuzzer's bytes (``fuzz_one_input``), by the strategies that
the tests have.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Final

#: By name: how much of all inputs it gets, and the tests that have it.
PROPERTIES: Final[dict[str, tuple[int, str]]] = {
    "spans": (12, "tests.unit.test_translate:test_whatever_comes_the_records_are_valid"),
    "metrics": (10, "tests.unit.test_hostile:test_metrics_of_garbage_cost_no_valid_increment"),
    "carriers": (
        25,
        "tests.unit.test_context:test_a_carrier_of_garbage_is_nothing_or_within_bounds",
    ),
    "messages": (20, "tests.unit.test_hostile:test_a_message_of_garbage_costs_no_good_line"),
    # Runs a cluster each time.
    "cluster": (1, "tests.simulated.test_hostile:test_who_does_it_right_loses_nothing"),
    "settings": (
        4,
        "tests.unit.test_settings:"
        "test_junk_raises_nothing_but_a_configuration_error_that_can_be_printed",
    ),
    "environment": (
        15,
        "tests.unit.test_hostile:"
        "test_variables_are_values_in_their_limits_or_one_error_without_a_credential",
    ),
    "answers": (
        12,
        "tests.unit.test_hostile:test_whatever_a_server_answers_is_shown_in_a_short_line",
    ),
    # These make files.
    "report": (2, "tests.unit.test_report_reading:test_no_shape_ends_the_reading"),
    "spool": (1, "tests.unit.test_hostile:test_a_damaged_spool_is_used_or_refused"),
    "rows": (1, "tests.unit.test_hostile:test_beside_a_damaged_row_of_a_spool_the_others_are_sent"),
}


def property_of(name: str) -> Callable[[bytes], bytes | None]:
    """Return what runs a property on some bytes; it raises where the property does not hold."""
    module, _, function = PROPERTIES[name][1].partition(":")
    run: Callable[[bytes], bytes | None] = getattr(
        import_module(module), function
    ).hypothesis.fuzz_one_input
    return run
