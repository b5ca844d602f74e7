"""The templates of all pages, and what they know."""

from __future__ import annotations

from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from dask_otel import semconv
from dask_otel.report import words
from dask_otel.report.history.difference import NOTHING
from dask_otel.report.meanings import DIAGNOSES, NEUTRAL, PART_TITLES, PATH, colour_of, shares
from dask_otel.report.seconds import own_parts

ENVIRONMENT: Final = Environment(
    loader=PackageLoader("dask_otel.report.page", "templates"),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
)
ENVIRONMENT.filters |= {
    name: getattr(words, name)
    for name in ("seconds", "known", "whole", "size", "share", "exact", "counted", "inside")
}
ENVIRONMENT.globals |= {
    "PART_TITLES": PART_TITLES, "PATH": PATH, "NOTHING": NOTHING, "DIAGNOSES": DIAGNOSES,
    "colour_of": colour_of, "shares": shares, "own_parts": own_parts, "NEUTRAL": NEUTRAL,
    "semconv": semconv,
}  # fmt: skip
