"""The shipped defaults, below everything that the user has set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import dask.config
import yaml  # type: ignore[import-untyped]  # comes with dask


def put_into_dask(sections: Iterable[str]) -> None:
    """Put ``otel.yaml`` into ``dask.config``, as Dask's satellites do."""
    with Path(__file__).with_name("otel.yaml").open(encoding="utf-8") as file:
        defaults = yaml.safe_load(file)
    # Dask replaces a value by a section of the same name: DASK_OTEL=false would be lost
    # without a word. Put it back, so that it is reported.
    misplaced = {
        section: value
        for section in sections
        if (value := dask.config.get(section, None)) is not None and not isinstance(value, Mapping)
    }
    dask.config.update_defaults(defaults)
    dask.config.set(misplaced)
