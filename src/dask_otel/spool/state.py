"""What a store knows of its file without asking it."""

from __future__ import annotations

import sqlite3
from collections import Counter
from dataclasses import dataclass, field
from typing import TypeAlias

from dask_otel.spool import schema

#: Trace id, span id.
Ids: TypeAlias = tuple[int, int]


@dataclass(slots=True)
class State:
    """As the last transaction has left it."""

    connection: sqlite3.Connection
    #: Bytes that rows may have; None for no limit.
    limit: int | None
    #: Number of the present run; 0, which no run has, where nothing is written.
    run: int = 0
    #: Numbers of the sinks.
    sinks: dict[str, int] = field(default_factory=dict)
    #: The next row's.
    next: int = 1
    #: No finished row has a lower one.
    floor: int = 0
    #: Finished rows of each sink.
    counts: Counter[str] = field(default_factory=Counter)
    #: Rows of the present run's notes, by ids and sink, in their order.
    notes: dict[Ids, dict[str, int]] = field(default_factory=dict)

    def used(self) -> int:
        """Return how many bytes of the file hold something."""
        free = schema.number(self.connection, "freelist_count")
        pages = schema.number(self.connection, "page_count") - free
        return pages * schema.number(self.connection, "page_size")
