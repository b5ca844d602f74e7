#!/usr/bin/env python3
"""Check that a tag, the version everywhere and the changelog agree; print the release's notes.

``check_release.py v1.2.3``: exit status 1 where one of them has another version, or where the
changelog's section has no date. Needs no package.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
#: Where the version stands, and how.
PLACES = {
    "pyproject.toml": r'^version = "([^"]+)"$',
    "CITATION.cff": r"^version: (\S+)$",
    "recipe/recipe.yaml": r'^  version: "([^"]+)"$',
}


def _found(name: str, pattern: str) -> re.Match[str] | None:
    text = (REPOSITORY / name).read_text(encoding="utf-8")
    return re.search(pattern, text, re.MULTILINE | re.DOTALL)


def main() -> int:
    """Check, and print the notes or what is wrong."""
    if len(sys.argv) != 2:
        print("usage: check_release.py TAG", file=sys.stderr)
        return 2
    version = sys.argv[1].removeprefix("v")
    wrong = [
        f"{place} has version {found and found[1]}, not {version}"
        for place, pattern in PLACES.items()
        if (found := _found(place, pattern)) is None or found[1] != version
    ]
    heading = rf"^## {re.escape(version)} - (\d{{4}}-\d\d-\d\d)\n(.*?)(?=^## |\Z)"
    notes = _found("CHANGELOG.md", heading)
    if notes is None:
        wrong.append(f"CHANGELOG.md has no section `## {version} - YYYY-MM-DD`")
    elif not _found("CITATION.cff", f"^date-released: {notes[1]}$"):
        wrong.append(f"CITATION.cff has another date than CHANGELOG.md, {notes[1]}")
    print("\n".join(wrong), file=sys.stderr, end="")
    if notes is not None and not wrong:
        print(notes[2].strip())
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
