"""Section ``otel.files``: what is exported, written into files."""

from __future__ import annotations

from dataclasses import dataclass

from dask_otel.settings.knob import knob as _knob
from dask_otel.settings.rules import count, file_path, size


@dataclass(frozen=True, slots=True)
class FileSettings:
    """Section ``otel.files``."""

    path: str | None = _knob(
        "null",
        file_path(),
        """
        A folder into which all that is exported is written, as files of OTLP/JSON; `null` for none

        They are the scheduler's. Unless the standard variables name an exporter or an endpoint for
        a signal, it is then sent nowhere else. See [Files](files.md).
        """,
    )
    max_size: int = _knob(
        "100 MB",
        size(100_000, 10**12),
        "Bytes after which another file begins, for each signal",
    )
    max_files: int = _knob(
        "10",
        count(1, 100_000),
        """
        Files of one signal that are kept of one run of the scheduler

        The oldest are removed. Files of other runs are left alone.
        """,
    )
