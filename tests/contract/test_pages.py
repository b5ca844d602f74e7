"""What the pages for people say is so: code that parses, names that exist, panels and alerts.

Links and anchors are held by the build of the site (`make docs`), where a warning is an error.
"""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from dask_otel import cli
from dask_otel.core import reasons
from dask_otel.settings.reading import read_settings
from tests.environment import REPOSITORY

from . import queries
from .queries import ALERTS
from .test_dashboards import PANELS

DOCS = REPOSITORY / "docs"
PAGES = sorted([*REPOSITORY.glob("*.md"), *DOCS.rglob("*.md")])
TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>[\w{}-]*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


class Fence(NamedTuple):
    """A piece of code on a page."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


FENCES = [
    Fence(
        page.relative_to(REPOSITORY).as_posix(),
        text.count("\n", 0, found.start()) + 1,
        found["language"],
        # Of a list item: without its indentation.
        re.sub(rf"^{found['indent']}", "", found["text"], flags=re.MULTILINE),
    )
    for page, text in TEXTS.items()
    for found in _FENCE.finditer(text)
]


def of(*languages: str) -> list[Fence]:
    chosen = [fence for fence in FENCES if fence.language in languages]
    assert chosen, languages
    return chosen


def test_code_parses_settings_are_valid_and_queries_ask_for_what_is_exported() -> None:
    for fence in of("python"):
        compile(fence.text, str(fence), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    for fence in of("yaml", "json"):
        content = yaml.safe_load(fence.text)
        if isinstance(content, dict) and "otel" in content:
            read_settings(content["otel"])
    for fence in of("promql"):
        assert queries.unknown(fence.text) == set(), fence
    for fence in of("bash"):
        read = subprocess.run(
            ["bash", "-n"], input=fence.text, capture_output=True, encoding="utf-8", check=False
        )
        assert (read.returncode, read.stderr) == (0, ""), fence


def test_a_command_line_is_one_that_the_command_takes() -> None:
    parsers = [action.choices for action in cli._parser()._actions]
    (commands,) = (choices for choices in parsers if isinstance(choices, dict))
    lines = [
        line.removeprefix("$ ")
        for fence in of("", "bash", "console")
        for line in fence.text.splitlines()
        if re.match(r"(\$ )?dask-otel\s+[a-z]", line)
    ]
    assert len(lines) > 20
    for line in lines:
        words = shlex.split(line, comments=True)[1:]
        options = {text for one in commands[words[0]]._actions for text in one.option_strings}
        used = {word.partition("=")[0] for word in words[1:] if word.startswith("-")}
        assert used <= options, line


def test_every_setting_that_a_page_names_exists() -> None:
    table = TEXTS[DOCS / "configuration.md"]
    known = set(re.findall(r"^\| `(otel\.[\w.-]+)`", table, flags=re.MULTILINE))
    assert len(known) > 30
    sections = {key[:end] for key in known for end in range(len(key)) if key[end] == "."}
    unknown = {
        (page.name, key)
        for page, shown in TEXTS.items()
        # A key in backticks, with a value behind it or not. Metrics of the SDK begin alike.
        for key in re.findall(r"`(otel\.[\w.-]*\w)(?=[`:,= ])", shown)
        if key not in known | sections and not key.startswith(("otel.sdk.", "otel.yaml"))
    }
    assert unknown == set()


def _anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


README = TEXTS[REPOSITORY / "README.md"]
LINKS = re.findall(r"\]\(([^)\s]+)\)", README)


def test_the_readme_is_short_and_leads_to_what_is_there() -> None:
    """Any checkout shows its own pictures and pages: links into the repository are relative."""
    assert len(README.split()) <= 800
    assert [one for one in LINKS if "/dask-otel/dask-otel/" in one and "/actions/" not in one] == []
    ours = [one.partition("#") for one in LINKS if not one.startswith("https://")]
    assert len(ours) > 20
    assert {path for path, _, _ in ours if not (REPOSITORY / path).exists()} == set()
    wanted = {(path, anchor) for path, _, anchor in ours if anchor}
    assert {(p, a) for p, a in wanted if a not in _anchors(REPOSITORY / p)} == set()


def test_the_readme_s_make_targets_exist_and_figures_are_the_measured_ones() -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"`make ([\w-]+)`", README))
    assert targets >= {"demo", "test"}
    assert targets <= set(re.findall(r"^([\w-]+):.*##", makefile, re.MULTILINE))
    (cost,) = re.findall(r"^\*\*It costs\*\* (.*)$", README, re.MULTILINE)
    figures = re.findall(r"\d[\d.,]*(?: %)?", cost.partition("(")[0])
    measured = TEXTS[DOCS / "benchmarks.md"].replace("%", " %").replace("  %", " %")
    assert [one for one in figures if one.strip(", ") not in measured] == []
    (share,) = (one for one in figures if one.endswith("%"))
    assert f"measured in instructions: {share} of those" in TEXTS[DOCS / "faq.md"]
    assert f"[{share} more instructions](cost.md)" in TEXTS[DOCS / "concepts.md"]
    (million,) = re.findall(r"of the ([\d.]+ million)", TEXTS[DOCS / "cost.md"])
    assert f"of the {million}\nthat its process executes" in TEXTS[DOCS / "why.md"]
    # And those of trace context.
    (row,) = re.findall(
        r"CPU that trace context adds.*?([\d.]+) µs \(([\d.]+) hooks, ([\d.]+) Dask",
        TEXTS[DOCS / "benchmarks.md"],
    )
    total, hooks, calls = (f"{float(one) + 1e-9:.1f}" for one in row)
    assert f"takes about {total} µs a task, {calls} of them" in TEXTS[DOCS / "cost.md"]
    assert (
        f"about {hooks} µs of CPU a task on the worker, and {calls} µs for"
        in (TEXTS[DOCS / "context.md"])
    )


def test_what_the_log_says_in_troubleshooting_is_what_it_says() -> None:
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    quoted = re.findall(r"(?:`|INFO - )(dask-otel:? (?!-)[^`\n]+)", page)
    assert len(quoted) > 4
    # Every text of the package, one a line; what is filled in is a line's end, too.
    said = "\n".join(
        node.value
        for path in (REPOSITORY / "src").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    # Up to what is filled in.
    starts = {re.split(r" ?…| spans and metrics: http", words)[0] for words in quoted}
    # And what it says of an endpoint.
    starts |= set(re.findall(r'"([^"\n]+)"(?= …|,| \|)', page)) | {"does not resolve."}
    assert len(starts) > 10
    assert {words for words in starts if words not in said} == set()


QUESTIONS = re.split(r"^## ", TEXTS[DOCS / "questions.md"], flags=re.MULTILINE)[1:]


def test_every_cause_that_why_names_is_on_the_page() -> None:
    rows = re.findall(r"^\| `.*$", QUESTIONS[6], flags=re.MULTILINE)
    kinds = {rule[1] for rules in reasons._RULES.values() for rule in rules}
    assert {*re.findall("`([^`]+)`", " ".join(rows))} == {*reasons._RULES, *kinds}


@pytest.mark.parametrize("section", QUESTIONS, ids=lambda text: text.partition("\n")[0])
def test_a_question_names_panels_alerts_and_a_query(section: str) -> None:
    assert section[0] in "12345678"
    (line,) = re.findall(r"^- \*\*Panel\.\*\* (.*)$", section, flags=re.MULTILINE)
    panels = [
        f"{dashboard.lower().replace(' ', '-')}: {title}"
        for part in line.split(";")
        for dashboard in re.findall(r"\*([A-Z][\w ]+)\*:", part)
        for title in re.findall(r"\*\*(.+?)\*\*", part)
    ]
    assert panels
    assert set(panels) <= set(PANELS)
    (line,) = re.findall(r"^- \*\*Alert\.\*\* (.*)$", section, flags=re.MULTILINE)
    alerts = re.findall(r"\[(Dask\w+)\]\(runbooks/\1\.md\)", line)
    assert alerts
    assert set(alerts) <= set(ALERTS)
    assert "```promql" in section


def test_the_python_interface_has_every_public_name() -> None:
    import dask_otel

    page = (DOCS / "api.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"^\.\. auto(?:function|class):: (\w+)$", page, flags=re.MULTILINE))
    assert shown == {name for name in dask_otel.__all__ if not name.startswith("__")}
