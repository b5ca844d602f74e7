"""Adds up the results in the cluster's memory, and names their keepers: `dask_otel.held`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import nlargest
from typing import Any, Final

from dask_otel.core.text import NAMED, line_text

#: Most spans and functions in an answer.
SHOWN: Final = 10

#: By the kind of a keeper: the step after which it keeps nothing.
_NEXT: Final[Mapping[str, str]] = {
    "client": (
        "In the client {name}, delete the futures and collections that refer to them, or close "
        "that client."
    ),
    "actor": "In the client {name}, delete the handles of these actors, or close that client.",
    "tasks": (
        "They leave memory when the tasks that need them are done; ask for one of these: "
        "dask_otel.why(client, {task!r})."
    ),
    "data set": "Call client.unpublish_dataset({name!r}).",
    "variable": "Call Variable({name!r}).delete(), or set it to something else.",
    "queue": "Take the futures out of Queue({name!r}).",
    "nothing": "Ask again: Dask is about to release them.",
}

#: The kinds of keepers whose name is that of a client.
_OF_CLIENTS: Final = ("client", "actor")

#: What keeps a result: its kind, its name, and of tasks the key of one.
Keeper = tuple[str, str, object]


class Holdings:
    """The results in memory by span and function."""

    def __init__(self) -> None:
        self.results = 0
        self.bytes = 0
        #: By full name of the span and prefix: bytes, results, and by keeper the same of those
        #: that it keeps, with the key of a task.
        self._groups: dict[tuple[str, str], tuple[list[int], dict[tuple[str, str], list[Any]]]] = {}
        #: The clients that keep results.
        self.clients: set[str] = set()

    def add(self, span: str, prefix: str, nbytes: int, keepers: Iterable[Keeper]) -> None:
        """Add a result."""
        self.results += 1
        self.bytes += nbytes
        sums, kept = self._groups.setdefault((span, prefix), ([0, 0], {}))
        sums[0] += nbytes
        sums[1] += 1
        for kind, name, task in keepers:
            known = kept.setdefault((kind, name), [0, 0, task])
            known[0] += nbytes
            known[1] += 1
            if kind in _OF_CLIENTS:
                self.clients.add(name)

    def answer(self, seconds: Mapping[str, float]) -> dict[str, Any]:
        """Return the largest as plain data; `seconds` since the last submission of clients.

        The fields are those of `dask_otel._wire.Held`.
        """
        # There can be as many as results: to sort them all would hold the event loop.
        largest = nlargest(SHOWN, self._groups.items(), key=lambda item: item[1][0][0])
        return {
            "bytes": self.bytes,
            "results": self.results,
            "largest": [
                {
                    "span": span,
                    "prefix": prefix,
                    "bytes": nbytes,
                    "results": results,
                    **_kept(kept, seconds),
                }
                for (span, prefix), ((nbytes, results), kept) in largest
            ],
            "others": len(self._groups) - len(largest),
        }


def _kept(
    kept: Mapping[tuple[str, str], list[Any]], seconds: Mapping[str, float]
) -> dict[str, Any]:
    """Return the keepers of most bytes, and the next step for each kind of them."""
    keepers: list[dict[str, Any]] = []
    steps: dict[str, str] = {}
    ordered = sorted(kept.items(), key=lambda item: (-item[1][0], -item[1][1]))
    for (kind, name), (nbytes, results, task) in ordered[:NAMED]:
        shown = line_text(name)
        steps.setdefault(kind, _NEXT[kind].format(name=shown, task=line_text(task)))
        keepers.append(
            {
                "kind": kind,
                "name": shown,
                "bytes": nbytes,
                "results": results,
                "seconds": seconds.get(name) if kind in _OF_CLIENTS else None,
            }
        )
    return {
        "keepers": keepers,
        "other_keepers": len(ordered[NAMED:]),
        "next_step": " ".join(steps.values()),
    }
