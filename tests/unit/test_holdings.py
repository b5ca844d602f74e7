"""Sums of results in memory by span, function and keeper, and the next steps."""

from __future__ import annotations

from dask_otel.core.holdings import _NEXT, _OF_CLIENTS, Holdings


def test_each_kind_has_a_step_that_can_be_filled_in() -> None:
    found = Holdings()
    for kind in _NEXT:
        found.add(kind, "{name}", 1, [(kind, "{0}'\n", ("{task}", 1))])
    # A data set has no submission, whatever its name.
    for one in found.answer({"{0}'\n": 3.0})["largest"]:
        assert one["keepers"][0]["seconds"] == (3.0 if one["span"] in _OF_CLIENTS else None)
        assert one["next_step"].isprintable(), one
        assert ("{0}" in one["next_step"]) == (one["span"] not in ("tasks", "nothing"))


def test_of_keepers_with_as_many_bytes_the_one_of_more_results_is_the_first() -> None:
    found = Holdings()
    for name, nbytes in (("one", 2), ("two", 1), ("two", 1)):
        found.add("span", "f", nbytes, [("client", name, None)])
    (largest,) = found.answer({})["largest"]
    assert [one["name"] for one in largest["keepers"]] == ["two", "one"]
