"""One key of the configuration: its default, its rule and its meaning, in one place."""

from __future__ import annotations

from dataclasses import dataclass, field
from inspect import cleandoc
from typing import Any, Final

import yaml  # type: ignore[import-untyped]  # comes with dask

from dask_otel.settings.rule import Rule

#: The key of the `Knob` in a field's metadata.
KNOB: Final = "knob"


@dataclass(frozen=True, slots=True)
class Knob:
    """The default of one key, its allowed values, and its meaning.

    ``tools/build_settings.py`` generates ``otel.yaml``, ``otel-schema.yaml`` and the table in
    ``docs/configuration.md`` from it.
    """

    #: As YAML.
    default: str
    rule: Rule
    #: A summary without a full stop; after a blank line, details. Links are relative to ``docs/``.
    meaning: str


def knob(default: str, rule: Rule, meaning: str, **options: Any) -> Any:
    """Return the field of a setting; see `Knob`. `options` are passed to `dataclasses.field`."""
    given = options or {"default": rule.parse(yaml.safe_load(default))}
    return field(**given, metadata={KNOB: Knob(default, rule, cleandoc(meaning))})
