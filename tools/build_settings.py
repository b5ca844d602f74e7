#!/usr/bin/env python3
"""Write what is made of the settings: the defaults, their schema, and the table in the docs.

The source is ``src/dask_otel/settings/keys.py``. With ``--check`` nothing is written, and the exit
status is 1 where a file is not what would be written.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import write_or_check
import yaml
from write_or_check import Literal

from dask_otel.settings.keys import KNOBS, Knob

REPOSITORY = Path(__file__).parents[1]
SETTINGS = REPOSITORY / "src" / "dask_otel" / "settings"
PAGE = REPOSITORY / "docs" / "configuration.md"
HEADER = "# Made by tools/build_settings.py from keys.py: change it there.\n"
BEGIN = "<!-- made by tools/build_settings.py: begin -->\n"
END = "<!-- made by tools/build_settings.py: end -->\n"
_DEFAULTS = """\
# What each key means is in otel-schema.yaml. Where OpenTelemetry has
# a standard variable there is no key here: see `environment`.
"""
_LINK = re.compile(r"\[([^]]+)\]\([^)]+\)")
_SEE = re.compile(r"\s*See \[[^]]+\]\([^)]+\)\.")


class _Dumper(yaml.SafeDumper):
    """Lists are indented below their key, as in the schemas of Dask's own packages."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow, indentless=False)


def _dump(content: dict[str, Any]) -> str:
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=100, allow_unicode=True)


def _files() -> tuple[str, str]:
    """Return the defaults and the schema."""
    defaults: dict[str, Any] = {}
    schema: dict[str, Any] = {}
    for key, knob in KNOBS.items():
        *sections, name = key.split(".")
        values, parts = defaults, schema.setdefault("properties", {})
        for section in sections:
            values = values.setdefault(section, {})
            empty = {"type": "object", "additionalProperties": False, "properties": {}}
            parts = parts.setdefault(section, empty)["properties"]
        values[name], parts[name] = yaml.safe_load(knob.default), _leaf(knob)
    # A blank line before each section.
    text = re.sub(r"\n( +[\w-]+:\n)", r"\n\n\1", _dump(defaults))
    return f"{HEADER}{_DEFAULTS}{text}", HEADER + _dump(schema)


def _leaf(knob: Knob) -> dict[str, Any]:
    # Without links, for those who read it in no page.
    plain = _LINK.sub(r"\1", _SEE.sub("", knob.meaning))
    text = "\n\n".join(textwrap.fill(" ".join(p.split()), 80) for p in plain.split("\n\n"))
    return {
        **knob.rule.schema,
        "default": yaml.safe_load(knob.default),
        "description": Literal(text + "\n"),
    }


def _table() -> str:
    lines = ["| Key | Environment variable | Default | Meaning |", "|---|---|---|---|"]
    for key, knob in KNOBS.items():
        variable = "DASK_OTEL__" + key.removeprefix("otel.").upper().replace(".", "__")
        summary, _, more = knob.meaning.partition("\n\n")
        limits = f" ({knob.rule.limits})" if knob.rule.limits else ""
        meaning = " ".join(f"{summary}{limits}. {more}".split())
        meaning = meaning.replace("(configuration.md#", "(#")
        lines.append(f"| `{key}` | `{variable.replace('-', '_')}` | `{knob.default}` | {meaning} |")
    return "\n".join(lines) + "\n"


def texts() -> dict[Path, str]:
    """Return the text of each file."""
    defaults, schema = _files()
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise SystemExit(f"{PAGE.name} has no place for the table: {BEGIN.strip()}")
    return {
        SETTINGS / "otel.yaml": defaults,
        SETTINGS / "otel-schema.yaml": schema,
        PAGE: f"{before}{BEGIN}\n{_table()}\n{END}{after}",
    }


if __name__ == "__main__":
    sys.exit(write_or_check.main(__doc__, texts))
