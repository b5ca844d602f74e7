"""The process of a report: ``python -m dask_otel.report.child``, started by a scheduler.

A thread of the scheduler would keep its event loop from the GIL, and each look of Python's
collector at what the thread has made would visit all tasks of the scheduler, too.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import BinaryIO, TypeAlias

from dask_otel.report.document import Report, report_of
from dask_otel.report.telemetry.model import Block

#: A span's id, rows in memory, and what is no longer among them; see `report_of`.
Asked: TypeAlias = tuple[str, Sequence[tuple[str, bytes]], Mapping[str, int]]


def main() -> None:
    """Answer what standard input asks for: a line of JSON with the sizes of rows, and the rows."""
    # The scheduler goes first, also when there is too little memory for both.
    if sys.platform != "win32":
        os.nice(19)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    # It takes a third of the time, and the process ends soon.
    gc.disable()
    source = sys.stdin.buffer
    as_page, sizes = json.loads(source.readline())
    asked = [
        (span_id, [(signal, source.read(size)) for signal, size in rows], lost)
        for span_id, rows, lost in sizes
    ]
    Thread(target=_end_with, args=[source], daemon=True).start()
    sys.stdout.buffer.write(answer(as_page, asked))


def answer(as_page: bool, asked: Sequence[Asked]) -> bytes:
    """Return the page of a report, empty without the span; or the headlines of reports as JSON."""
    reports = (_report(*one) for one in asked)
    if as_page:
        return "".join(one.html() for one in reports if one).encode("utf-8", "replace")
    titles = [one and one.accounts()[0].diagnoses[0].title for one in reports]
    return json.dumps(titles).encode()


def _report(
    span_id: str, rows: Sequence[tuple[str, bytes]], lost: Mapping[str, int]
) -> Report | None:
    """Return the report of a span, if it is in some rows."""
    report = report_of(rows, lost, Block("", span_id))
    return report if any(run.own for run in report.runs) else None


def _end_with(source: BinaryIO) -> None:
    """End with the process that asked: nothing comes any more, until it closes the pipe."""
    # Past the buffer, whose lock must be free at the end of this process.
    os.read(source.fileno(), 1)
    os._exit(1)


if __name__ == "__main__":
    main()
