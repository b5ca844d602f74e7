"""Sums of results in memory by span, function and keeper, and the next steps."""

from __future__ import annotations

from dask_otel.core.holdings import _NEXT, Holdings


def test_keepers_of_most_bytes_come_first_and_the_others_are_counted() -> None:
    found = Holdings()
    for size in range(1, 9):
        found.add("fit", "load", size, [("client", f"c{size}", None), ("data set", "all", None)])
    found.add("fit", "sum", 100, [("nothing", "", None)])
    assert found.clients() == {f"c{size}" for size in range(1, 9)}
    answer = found.answer({"c8": 3.0, "all": 9.0})
    assert (answer["bytes"], answer["results"], answer["others"]) == (136, 9, 0)
    first, second = answer["largest"]
    assert (first["prefix"], first["bytes"], first["next_step"]) == ("sum", 100, _NEXT["nothing"])
    keepers = [(one["name"], one["bytes"], one["seconds"]) for one in second["keepers"]]
    # A data set has no submission, whatever its name.
    assert keepers[:2] == [("all", 36, None), ("c8", 8, 3.0)]
    assert (len(keepers), second["other_keepers"]) == (5, 4)
    # One step for each kind, in the same order.
    assert second["next_step"].startswith("Call client.unpublish_dataset('all'). In the client c8,")


def test_each_kind_has_a_step_that_can_be_filled_in() -> None:
    found = Holdings()
    for kind in _NEXT:
        found.add(kind, "{name}", 1, [(kind, "{0}'\n", ("{task}", 1))])
    for one in found.answer({})["largest"]:
        assert one["next_step"].isprintable(), one
        assert ("{0}" in one["next_step"]) == (one["span"] not in ("tasks", "nothing"))
