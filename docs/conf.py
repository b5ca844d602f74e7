"""How Sphinx builds the site: `make docs`. No network is needed, neither here nor by a reader."""

from __future__ import annotations

import sys
from importlib.metadata import version as version_of
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "dask-otel"
author = "the dask-otel developers"
copyright = "the dask-otel developers"  # noqa: A001 (Sphinx calls it so)
version = release = version_of("dask-otel")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "numpydoc",
    "sphinx_copybutton",
    # Of this folder.
    "breakable_names",
    "command_line",
    "repository_links",
    "no_third_parties",
]
root_doc = "index"
source_suffix = {".md": "markdown"}
templates_path = ["_templates"]
exclude_patterns = ["_build", "**/.*"]

# Every name in the API that is ours has to be there. Others are on other sites, whose inventories
# would have to be fetched.
nitpicky = True
nitpick_ignore_regex = [
    (r"py:.*", r"(?!dask_otel\b).*"),
    # Of constructors that nobody calls.
    (r"py:class", r"dask_otel\.(?:client\.roots\.Root|report\.compare\.Comparison)"),
]

# As GitHub makes them, so that one link works in both places.
myst_heading_anchors = 4

autosummary_generate = False
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
python_use_unqualified_type_names = True
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

# What says no language is text.
highlight_language = "none"

html_theme = "dask_sphinx_theme"
html_title = "dask-otel"
html_static_path = ["_static"]
html_css_files = ["dask-otel.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    # Home. The theme's own value is the path of a picture, seen from the first page alone.
    "logo_link": "",
    "repository_url": "https://github.com/dask-otel/dask-otel",
    "repository_branch": "main",
    "path_to_docs": "docs",
    "use_repository_button": True,
    "use_issues_button": True,
    "use_edit_page_button": False,
    "use_download_button": False,
    "home_page_in_toc": False,
    "show_navbar_depth": 1,
    "show_toc_level": 2,
}
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True


def setup(app: Sphinx) -> None:
    """Name the languages of queries that Pygments does not know."""
    for language in ("logql", "logsql", "traceql"):
        app.add_lexer(language, TextLexer)
