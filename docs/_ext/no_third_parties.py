"""A built page loads nothing from elsewhere: no fonts, no scripts, nobody who counts its readers.

The theme of Dask's own pages fetches fonts, and has Dask's own analytics in its layout.
``_templates/layout.html`` takes the place of the latter; the former are taken out here. What is
left is looked for in every page, so that a newer theme can't bring it back.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sphinx.errors import ExtensionError

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_IMPORT: Final = re.compile(r"""@import\s+url\(["']?https?:[^)]*\)\s*;""")
_LOADED: Final = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc="(?:https?:)?//"""
    r"""|<link\b[^>]*\brel="(?:stylesheet|preload|icon)"[^>]*\bhref="(?:https?:)?//"""
    r"""|googletagmanager"""
)


def setup(app: Sphinx) -> dict[str, bool]:
    """Look at what was built."""
    app.connect("build-finished", _finished)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _finished(app: Sphinx, exception: Exception | None) -> None:
    if exception is not None or app.builder.format != "html":
        return
    built = Path(app.outdir)
    for sheet in built.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        if _IMPORT.search(text):
            sheet.write_text(_IMPORT.sub("", text), encoding="utf-8")
    guilty = [
        f"{page.relative_to(built)}: {found.group()}"
        for page in sorted(built.rglob("*.html"))
        if (found := _LOADED.search(page.read_text(encoding="utf-8")))
    ]
    if guilty:
        raise ExtensionError("Pages load things from elsewhere:\n" + "\n".join(guilty))
