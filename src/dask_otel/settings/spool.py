"""Section ``otel.spool``: spans that no endpoint has taken yet, on the disk."""

from __future__ import annotations

from dataclasses import dataclass

from dask_otel.settings.knob import knob as _knob
from dask_otel.settings.rules import file_path, size


@dataclass(frozen=True, slots=True)
class SpoolSettings:
    """Section ``otel.spool``."""

    path: str | None = _knob(
        "null",
        file_path(),
        """
        A file on a local disk that keeps spans until the endpoint has taken them; `null` for none

        What waits in it when the scheduler ends or is killed goes out when the next one starts with
        the same path, or by `dask-otel spool send`. It is the scheduler's, for one at a time, and
        its folder has to be there. See [The spool](spool.md).
        """,
    )
    max_size: int = _knob(
        "256 MiB",
        size(1_000_000, 10**12),
        """
        Bytes that this file may have

        When it is full, the oldest spans are dropped, and counted in `dask.otel.dropped`.
        """,
    )
