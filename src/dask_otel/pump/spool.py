"""What the journal needs of a spool. How that stores is its own affair."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from dask_otel.core.records import SpanRecord

#: Trace id and span id.
Ids: TypeAlias = tuple[int, int]


class Written(Protocol):
    """What became of a transaction."""

    @property
    def ids(self) -> Sequence[int]:
        """Numbers of the rows, in the order of the records."""

    @property
    def gone(self) -> Collection[int]:
        """Rows that were dropped because the spool is full."""

    @property
    def unreadable(self) -> int:
        """How many rows could not be read, and were dropped."""

    @property
    def absent(self) -> Collection[int]:
        """Those of `ids` that have no row: such a record can't be kept."""


class Store(Protocol):
    """A spool that is open; see `dask_otel.spool.store.Store`. Used by one thread."""

    def write(
        self,
        *,
        finished: Sequence[tuple[str, SpanRecord]],
        noted: Sequence[tuple[str, SpanRecord]],
        over: Sequence[Ids],
        settled: Sequence[int],
        alive_ns: int,
    ) -> Written:
        """Write all of it in one transaction. Raises OSError where the disk makes trouble."""

    def waiting(self, sink: str, after: int, limit: int) -> Sequence[tuple[int, SpanRecord]]:
        """Return rows of finished records with higher numbers, the lowest first."""

    def count(self, sink: str | None = None) -> int:
        """Return how many finished records there are."""

    @property
    def size(self) -> int:
        """Bytes that are used."""

    @property
    def recovered(self) -> int:
        """Spans that were open when their scheduler was lost, as they were found at the start."""

    def close(self, clean: bool) -> None:
        """Let go of it; `clean` if nothing is open any more."""


@dataclass(frozen=True, slots=True)
class Spool:
    """What the pump must know of the spool."""

    #: For a person.
    path: str
    max_bytes: int
    #: Opens it, in the thread that will use it. Raises OSError where it can't be used, as it is
    #: told a person.
    open: Callable[[], Store]
    #: Of each span sink, whose rows in the spool are its own; empty for one without.
    keys: Sequence[str]
