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


def versions() -> dict[str, str | None]:
    """The version in each of the places."""
    found = {}
    for name, pattern in PLACES.items():
        match = re.search(pattern, (REPOSITORY / name).read_text(encoding="utf-8"), re.MULTILINE)
        found[name] = match[1] if match else None
    return found


def section(version: str) -> tuple[str, str] | None:
    """The date of a version in the changelog, and what is said of it."""
    text = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    heading = rf"^## {re.escape(version)} - (\d{{4}}-\d\d-\d\d)\n(.*?)(?=^## |\Z)"
    match = re.search(heading, text, re.MULTILINE | re.DOTALL)
    return (match[1], match[2].strip()) if match else None


def problems(tag: str) -> list[str]:
    """What does not agree."""
    version = tag.removeprefix("v")
    found = [
        f"{place} has version {has}, not {version}"
        for place, has in versions().items()
        if has != version
    ]
    said = section(version)
    if said is None:
        found.append(f"CHANGELOG.md has no section `## {version} - YYYY-MM-DD`")
    else:
        citation = (REPOSITORY / "CITATION.cff").read_text(encoding="utf-8")
        if f"date-released: {said[0]}\n" not in citation:
            found.append(f"CITATION.cff has another date than CHANGELOG.md, {said[0]}")
    return found


def main() -> int:
    """Check, and print the notes or what is wrong."""
    if len(sys.argv) != 2:
        print("usage: check_release.py TAG", file=sys.stderr)
        return 2
    if found := problems(sys.argv[1]):
        print("\n".join(found), file=sys.stderr)
        return 1
    said = section(sys.argv[1].removeprefix("v"))
    assert said is not None
    print(said[1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
