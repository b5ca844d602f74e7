"""What exporters try again by themselves, and how that ends when the scheduler closes.

An exporter answers when it has tried for ten seconds or more, and sleeps in between. At the end
nobody waits for that: where nobody is at the other end one try is enough, and at the deadline
there is no other one.

What this relies on: the event for which an exporter waits between two tries is an attribute, which
its own ``shutdown`` sets. Where a release has none, its thread sleeps on, and is left behind; a
test says so first.
"""

from __future__ import annotations

import threading
from typing import Any, Final

from dask_otel._otel.sdk.answers import Answers

#: Where releases of the exporters keep what ends a wait between two tries. 1.28 just sleeps.
_ENDS: Final = ("_shutdown_in_progress", "_shutdown_event", "_shutdown_is_occuring")


class ExporterRetries:
    """The retries inside of an exporter; see `dask_otel.pump.sinks.Retries`.

    Parameters
    ----------
    exporter
        Any exporter.
    answers
        What it gets.
    patience
        At the end, seconds for which somebody may come to the endpoint.
    """

    def __init__(self, exporter: Any, answers: Answers, patience: float) -> None:
        self.patience = patience
        self._answers = answers
        found = [
            getattr(owner, name, None)
            for owner in (exporter, getattr(exporter, "_client", None))
            for name in _ENDS
        ]
        self._events = [event for event in found if isinstance(event, threading.Event)]

    @property
    def absent(self) -> bool:
        """Whether the last request found nobody."""
        return self._answers.absent

    @property
    def pause(self) -> float:
        """Seconds for which the server wants no other request after the last one."""
        return self._answers.pause

    def cut(self) -> None:
        """From now on, try once where nobody is; called by another thread."""
        # In this order, as the exporter's thread notes first and looks then: one of them sees it.
        self._answers.hurry = True
        if self._answers.absent:
            self._wake()

    def end(self) -> None:
        """Wait for no other try any more, whatever it is for; called by another thread."""
        self._wake()

    def _wake(self) -> None:
        for event in self._events:
            event.set()
