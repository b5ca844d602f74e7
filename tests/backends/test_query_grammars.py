"""Every query in LogQL and TraceQL is one by Grafana's own grammars.

That finds wrong syntax. What Loki and Tempo answer is not tested: neither is built here.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

import pytest
import yaml

from tests.contract.dashboard_rules import links
from tests.contract.test_dashboards import PAGES
from tests.contract.test_pages import FENCES, TEXTS

from .servers import DEPLOY, PINNED, binary

pytestmark = pytest.mark.backend

#: Reads pairs of a language and a text; for each it prints from where on a text is no query.
_PARSER = """
const asked = JSON.parse(require("fs").readFileSync(0, "utf8"));
console.log(JSON.stringify(asked.map(([language, text]) => {
    const wrong = [];
    require(`@grafana/lezer-${language}`).parser.parse(text).iterate({
        enter(node) { if (node.type.isError) wrong.push(text.slice(node.from)); },
    });
    return wrong;
})));
"""

#: A language and a text.
Query = tuple[str, str]


def _of_grafana(node: Any) -> Iterator[Query]:
    """The queries of panels, annotations and links to Explore, and from a trace to its logs."""
    if isinstance(node, Mapping):
        kind = node["datasource"].get("type") if isinstance(node.get("datasource"), dict) else ""
        if kind == "loki" and "expr" in node:
            yield "logql", node["expr"]
        if kind == "tempo" and "query" in node:
            yield "traceql", node["query"]
        if "tracesToLogsV2" in node:
            yield "logql", node["tracesToLogsV2"]["query"]
    if isinstance(node, Mapping | list):
        for one in node.values() if isinstance(node, Mapping) else node:
            yield from _of_grafana(one)


def _queries() -> Iterator[tuple[str, Query]]:
    for name, page in PAGES.items():
        explored = [
            json.loads(unquote(url).partition("panes=")[2])
            for _, url in links(page)
            if url.startswith("/explore")
        ]
        yield from ((name, query) for query in _of_grafana([page, explored]))
    sources = DEPLOY / "grafana" / "provisioning" / "datasources" / "dask-otel.yaml"
    for query in _of_grafana(yaml.safe_load(sources.read_text("utf-8"))):
        yield sources.name, query
    for fence in FENCES:
        if fence.language in ("logql", "traceql"):
            yield from ((str(fence), (fence.language, one)) for one in fence.text.split("\n\n"))
    for page, text in TEXTS.items():
        yield from ((page.name, ("traceql", one)) for one in re.findall(r"`(\{ [^`]+\})`", text))


QUERIES = [*_queries()]


def _wrong(texts: list[Query]) -> list[list[str]]:
    """From where on each text is no query; nothing for one that is."""
    if (node := shutil.which("node")) is None:
        pytest.skip("node is not on PATH, which Grafana's grammars of LogQL and TraceQL need")
    folder = PINNED["grammars"].folder
    assert binary("grammars")
    done = subprocess.run(
        [node, "-e", _PARSER], cwd=folder, input=json.dumps(texts), capture_output=True, check=True,
        encoding="utf-8",
    )  # fmt: skip
    found: list[list[str]] = json.loads(done.stdout)
    return found


def test_every_query_is_one_by_the_grammar_of_its_language() -> None:
    places = {place.partition(":")[0] for place, _ in QUERIES}
    assert places == {*PAGES, "dask-otel.yaml", "docs/logs.md", "docs/history.md", "telemetry.md"}
    wrong = _wrong([query for _, query in QUERIES])
    assert [(*one, at) for one, at in zip(QUERIES, wrong, strict=True) if at] == []
