"""The shipped defaults, below everything that the user has set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any


def put_into_dask() -> None:
    """Put ``otel.yaml`` into ``dask.config``, as Dask's satellites do. Once is enough."""
    # Here, because its import can be what calls this; and not as `dask.config`, which is not
    # there until that import is over.
    from dask import config

    _put(config)


@cache  # but for an error, which the next caller gets, too
def _put(config: Any) -> None:
    import yaml  # type: ignore[import-untyped]  # comes with dask

    with Path(__file__).with_name("otel.yaml").open(encoding="utf-8") as file:
        defaults = yaml.safe_load(file)
    # Dask replaces a value by a section of the same name: DASK_OTEL=false would be lost
    # without a word. Put it back, so that it is reported.
    misplaced = {
        section: value
        for section in _sections("otel", defaults["otel"])
        if (value := config.get(section, None)) is not None and not isinstance(value, Mapping)
    }
    config.update_defaults(defaults)
    config.set(misplaced)


def _sections(name: str, section: Mapping[str, Any]) -> Iterator[str]:
    """Yield the full names of a section and of those in it."""
    yield name
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from _sections(f"{name}.{key}", value)
