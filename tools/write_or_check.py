"""Shared by the scripts that make files: YAML's blocks, and writing or checking the files."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

import yaml


class Literal(str):
    """A text that YAML has as a block, as it is."""


yaml.SafeDumper.add_representer(
    Literal,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|"),
)


def main(description: str, texts: Callable[[], Mapping[Path, str]]) -> int:
    """Write what is not up to date, or with ``--check`` only say so; returns the exit status."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    stale = []
    for path, text in texts().items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(path.name)
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if stale:
        print(("not up to date: " if check else "written: ") + ", ".join(stale))
    return 1 if check and stale else 0
