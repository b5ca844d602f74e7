"""One transaction: what it does to the tables now, and to what is in memory once it is over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from dask_otel.spool import files, schema
from dask_otel.spool.state import Ids, State

#: Rows that one statement takes; SQLite knows 999 parameters at least.
_AT_ONCE: Final = 500
#: Part of the bytes that are allowed which is written before room is made again.
_PIECE: Final = 16
#: Bytes of a row beside its body, in the table and its index.
_ROW: Final = 40


class Change:
    """One transaction as it goes on: what it does to the tables now, and to memory afterwards."""

    def __init__(self, state: State) -> None:
        self.ids: list[int] = []
        self.gone: list[int] = []
        #: Of finished spans that could not be encoded.
        self.absent: list[int] = []
        self._state = state
        self._connection = state.connection
        self._next = state.next
        self._counts: Counter[str] = Counter()
        self._floor = state.floor
        #: Notes that were removed or replaced, and what they are now.
        self._notes: dict[tuple[Ids, str], int | None] = {}
        self._new: list[tuple[int, int, int, int, bytes]] = []
        self._removed: list[int] = []
        self._bytes = 0
        self._names = {key: name for name, key in state.sinks.items()}

    # What is in memory of the present run is looked up through these.

    def _note_of(self, ids: Ids, sink: str) -> int | None:
        if (ids, sink) in self._notes:
            return self._notes[ids, sink]
        return self._state.notes.get(ids, {}).get(sink)

    def settle(self, rows: Iterable[int]) -> None:
        """Remove finished rows, those that are there."""
        for some in _pieces(list(dict.fromkeys(rows))):
            marks = ",".join("?" * len(some))
            self._uncount(f"id IN ({marks})", some)

    def _uncount(self, condition: str, parameters: Sequence[Any]) -> None:
        finished = f"{condition} AND NOT (open AND run = ?)"
        given = (*parameters, self._state.run or 0)
        found = self._connection.execute(
            f"SELECT sink, count(*) FROM spans WHERE {finished} GROUP BY sink", given
        )
        for key, count in found.fetchall():
            self._uncounted(key, count)
        self._connection.execute(f"DELETE FROM spans WHERE {finished}", given)

    def _uncounted(self, sink: int, count: int) -> None:
        if sink in self._names:
            self._counts[self._names[sink]] -= count

    def forget(self, ids: Ids, sink: str | None) -> None:
        """Remove the note of one sink, or of all."""
        known = self._state.notes.get(ids, {})
        for each in list(known) if sink is None else [sink]:
            row = self._note_of(ids, each)
            if row is not None:
                self._removed.append(row)
                self._notes[ids, each] = None

    def note(self, sink: str, ids: Ids, body: bytes | None) -> None:
        """Write a note, or replace it."""
        if body is None:
            return
        row = self._note_of(ids, sink)
        if row is None:
            self._notes[ids, sink] = self._insert(sink, body, is_open=1)
        else:
            self._reserve(len(body))
            self._connection.execute("UPDATE spans SET body = ? WHERE id = ?", (body, row))

    def finish(self, sink: str, body: bytes | None) -> None:
        """Write a finished span."""
        if body is None:
            self.ids.append(self._next)
            self.absent.append(self._next)
            self._next += 1
            return
        self.ids.append(self._insert(sink, body, is_open=0))
        self._counts[sink] += 1

    def _insert(self, sink: str, body: bytes, is_open: int) -> int:
        self._reserve(len(body))
        row = self._next
        self._next += 1
        state = self._state
        self._new.append((row, state.sinks[sink], state.run or 0, is_open, body))
        return row

    def _reserve(self, size: int) -> None:
        """Take note of bytes to be written; make room when they are a piece."""
        self._bytes += size + _ROW
        limit = self._state.limit
        if limit is not None and self._bytes > limit // _PIECE:
            self.flush()

    def flush(self) -> None:
        """Bring to the tables what has piled up, and leave no more there than is allowed."""
        for some in _pieces(self._removed):
            marks = ",".join("?" * len(some))
            self._connection.execute(f"DELETE FROM spans WHERE id IN ({marks})", some)
        self._removed.clear()
        self._connection.executemany("INSERT INTO spans VALUES (?, ?, ?, ?, ?)", self._new)
        self._new.clear()
        self._bytes = 0
        self._make_room()

    def _make_room(self) -> None:
        limit = self._state.limit
        while limit is not None and (used := self._state.used()) > limit:
            # A little more, so that not each write comes here.
            wanted = used - limit + limit // (4 * _PIECE)
            if not (self._drop_oldest(wanted) or self._drop_note()):
                break

    def _drop_oldest(self, wanted: int) -> bool:
        """Drop finished rows, the oldest first, until so many bytes are free."""
        rows: list[int] = []
        found = self._connection.execute(
            "SELECT id, sink, length(body) FROM spans WHERE id >= ? AND NOT (open AND run = ?) "
            "ORDER BY id",
            (self._floor, self._state.run or 0),
        )
        for row, sink, size in found:
            rows.append(row)
            self._uncounted(sink, 1)
            wanted -= size + _ROW
            if wanted <= 0:
                break
        found.close()
        for some in _pieces(rows):
            marks = ",".join("?" * len(some))
            self._connection.execute(f"DELETE FROM spans WHERE id IN ({marks})", some)
        if rows:
            self._floor = rows[-1] + 1
            self.gone += rows
        return bool(rows)

    def _drop_note(self) -> bool:
        """Drop the oldest note: there is nothing else."""
        for ids, sink, row in self._present_notes():
            self._connection.execute("DELETE FROM spans WHERE id = ?", (row,))
            self._notes[ids, sink] = None
            return True
        return False

    def _present_notes(self) -> Iterator[tuple[Ids, str, int]]:
        for ids, rows in self._state.notes.items():
            for sink in rows:
                row = self._note_of(ids, sink)
                if row is not None:
                    yield ids, sink, row
        for (ids, sink), row in list(self._notes.items()):
            if row is not None and sink not in self._state.notes.get(ids, {}):
                yield ids, sink, row

    def take_effect(self) -> None:
        """Change what is in memory: the transaction is over."""
        state = self._state
        state.next = self._next
        state.floor = self._floor
        for sink, change in self._counts.items():
            state.counts[sink] += change
        for (ids, sink), row in self._notes.items():
            if row is not None:
                state.notes.setdefault(ids, {})[sink] = row
            elif ids in state.notes:
                state.notes[ids].pop(sink, None)
                if not state.notes[ids]:
                    del state.notes[ids]


def _pieces(rows: Sequence[int]) -> Iterator[Sequence[int]]:
    for begin in range(0, len(rows), _AT_ONCE):
        yield rows[begin : begin + _AT_ONCE]


def rows_limit(max_bytes: int) -> int:
    """Return how many of the bytes that are allowed are for rows.

    The log has the others, and what is written before there is room for it.
    """
    rest = max_bytes - files.RESERVE - 2 * schema.logged_pages(max_bytes) * schema.PAGE
    return rest * _PIECE // (_PIECE + 1)
