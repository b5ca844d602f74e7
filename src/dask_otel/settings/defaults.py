"""The shipped defaults, which all the user's settings override."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any


@cache  # except for an error, which the next caller gets, too
def put_into_dask() -> None:
    """Add ``otel.yaml`` to ``dask.config`` once, as Dask's companion packages do."""
    import yaml  # type: ignore[import-untyped]  # comes with dask

    # Imported here, because Dask's import can call this function; and not as `dask.config`, which
    # does not exist until the end of that import.
    from dask import config

    with Path(__file__).with_name("otel.yaml").open(encoding="utf-8") as file:
        defaults = yaml.safe_load(file)
    # Dask replaces a value by a section of the same name: DASK_OTEL=false would be lost
    # silently. Put it back, so that it is reported.
    misplaced = {
        section: value
        for section in _sections("otel", defaults["otel"])
        if (value := config.get(section, None)) is not None and not isinstance(value, Mapping)
    }
    config.update_defaults(defaults)
    config.set(misplaced)


def _sections(name: str, section: Mapping[str, Any]) -> Iterator[str]:
    """Yield the full names of a section and its subsections."""
    yield name
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from _sections(f"{name}.{key}", value)
