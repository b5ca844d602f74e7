"""Long names in tables may break behind their dots and underscores, so that every column is seen.

A browser breaks ``DASK_OTEL__SPANS__LINGER`` nowhere by itself, and a table of such names is wider
than the page.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx

_CELL: Final = re.compile(r"<td\b.*?</td>", re.DOTALL)
_NAME: Final = re.compile(r'(?<=<span class="pre">)[^<&]{16,}(?=</span>)')
_PLACE: Final = re.compile(r"(?<=[._/])(?=[A-Za-z])")


def setup(app: Sphinx) -> dict[str, bool]:
    """Change what a page shows."""
    app.connect("html-page-context", _breakable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _breakable(
    _app: Sphinx, _page: str, _template: str, context: dict[str, Any], _tree: nodes.document | None
) -> None:
    def name(found: re.Match[str]) -> str:
        return _PLACE.sub("<wbr/>", found.group())

    body = context.get("body", "")
    context["body"] = _CELL.sub(lambda cell: _NAME.sub(name, cell.group()), body)
