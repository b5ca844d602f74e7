"""Links of Markdown that work on GitHub work on the site as well, or the build fails.

A page of ``docs/`` links to a file elsewhere in the repository by its path, as GitHub wants it. On
the site that is a link to the file on GitHub, or to the page that shows it. And a page can be
the text of a file at the top of the repository (`PAGES`), whose links begin there.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sphinx.util import logging

if TYPE_CHECKING:
    from sphinx.application import Sphinx

logger = logging.getLogger(__name__)

DOCS: Final = Path(__file__).parents[1]
REPOSITORY: Final = DOCS.parent
GITHUB: Final = "https://github.com/dask-otel/dask-otel"
#: What Read the Docs builds: the tag of a release, or the branch.
VERSION: Final = os.environ.get("READTHEDOCS_GIT_IDENTIFIER", "main")

#: File at the top of the repository: the page of the site that shows it.
PAGES: Final = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
    "SECURITY.md": "security.md",
}
#: Where such a page says that the text of the file is to stand.
_PLACE: Final = re.compile(r"^<!-- the text of \.\./(?P<name>[A-Z]+\.md) -->$", re.MULTILINE)
_LINK: Final = re.compile(r"(?<!\\)(?P<open>\]\()(?P<target>[^()\s]+)(?P<close>\))")
_FENCE: Final = re.compile(r"(?ms)^(?P<fence> *(`{3,}|~{3,})).*?^(?P=fence) *$")
#: A line of the contents for a page that may not be there yet.
_PERHAPS: Final = re.compile(r"^\?(?P<page>\S+)\n", re.MULTILINE)
_ELSEWHERE: Final = re.compile(r"[a-z][a-z0-9+.-]*:|#")


def setup(app: Sphinx) -> dict[str, bool]:
    """Read pages with their links put right."""
    app.connect("source-read", _source_read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _source_read(app: Sphinx, docname: str, source: list[str]) -> None:
    page = Path(app.env.doc2path(docname))

    def included(place: re.Match[str]) -> str:
        text = (REPOSITORY / place["name"]).read_text(encoding="utf-8")
        return with_links(text, REPOSITORY / place["name"], page)

    if docname.endswith("/README"):
        # The pages of a folder hang below the page that GitHub shows for it.
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\n*\n```\n"
    if docname == app.config.root_doc:
        source[0] = _PERHAPS.sub(
            lambda line: line["page"] + "\n" if (DOCS / f"{line['page']}.md").exists() else "",
            source[0],
        )
    # First the page's own links, which begin elsewhere than those of the text in it.
    source[0] = _PLACE.sub(included, with_links(source[0], page, page))


def with_links(text: str, origin: Path, page: Path) -> str:
    """Return a Markdown text of the file `origin` with links that work from `page` on the site."""
    parts, end = [], 0
    for fence in _FENCE.finditer(text):
        parts += [_replaced(text[end : fence.start()], origin, page), fence.group()]
        end = fence.end()
    return "".join([*parts, _replaced(text[end:], origin, page)])


def _replaced(text: str, origin: Path, page: Path) -> str:
    return _LINK.sub(
        lambda link: link["open"] + _target(link["target"], origin, page) + link["close"], text
    )


def _target(target: str, origin: Path, page: Path) -> str:
    if _ELSEWHERE.match(target):
        return target
    path, hash_sign, anchor = target.partition("#")
    file = Path(os.path.normpath(origin.parent / path))
    if not file.exists():
        logger.warning("%s links to %s, which is not there", origin.name, target)
        return target
    name = file.relative_to(REPOSITORY).as_posix()
    if name in PAGES:
        file = DOCS / PAGES[name]
    elif not file.is_relative_to(DOCS) or file.is_dir():
        kind = "tree" if file.is_dir() else "blob"
        return f"{GITHUB}/{kind}/{VERSION}/{name}{hash_sign}{anchor}"
    return os.path.relpath(file, page.parent) + hash_sign + anchor
