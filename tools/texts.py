#!/usr/bin/env python3
"""Print every text of the package that a person can meet, to be read as one text.

Log lines, errors, warnings, help and output of the commands, findings of the doctor. What is filled
in stands as ``{…}``.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).parents[1] / "src" / "dask_otel"

#: Calls whose texts are shown, by the last part of what is called.
SHOWING: Final = frozenset(
    {
        *("debug", "info", "warning", "error", "exception", "log", "warn"),
        *("print", "write", "add_argument", "add_parser", "ArgumentParser"),
        *("Finding", "Trouble", "Refusal", "Rule"),
    }
)
#: Texts with fewer words are names, keys and formats.
_WORDS: Final = 3


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of what a module shows."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    seen: set[int] = set()
    for node in ast.walk(tree):
        shown: list[ast.AST] = []
        if isinstance(node, ast.Call) and _name(node.func) in SHOWING:
            shown = [*node.args, *(keyword.value for keyword in node.keywords)]
        elif isinstance(node, ast.Raise) and node.exc is not None:
            shown = [node.exc]
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            # Constants that one of these shows.
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if all(_name(target).isupper() for target in targets):
                shown = [node.value]
        for part in shown:
            for line, text in _strings(part):
                if line not in seen and len(text.split()) >= _WORDS:
                    seen.add(line)
                    yield line, text


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _strings(node: ast.AST) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.lineno, " ".join(node.value.split())
    elif isinstance(node, ast.JoinedStr):
        parts = [
            str(part.value) if isinstance(part, ast.Constant) else "{…}" for part in node.values
        ]
        yield node.lineno, " ".join("".join(parts).split())
    else:
        for child in ast.iter_child_nodes(node):
            yield from _strings(child)


def main() -> int:
    """Print all of it, by module."""
    for path in sorted(PACKAGE.rglob("*.py")):
        found = sorted(texts(path))
        if found:
            print(f"\n{path.relative_to(PACKAGE)}")
        for line, text in found:
            print(f"{line:5}  {text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
