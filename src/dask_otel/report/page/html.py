"""The whole page: one file, no network, and a content policy that forbids loading anything.

The templates escape all telemetry, or pack it into base64 for the script, which never turns it
into markup. The policy allows scripts only by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib.resources import files as resource_files
from typing import Any, Final

from markupsafe import Markup

from dask_otel.core.diagnosis.decision import Diagnosis
from dask_otel.core.text import listed
from dask_otel.report import findings, memory, money, words
from dask_otel.report.account import Account, severity
from dask_otel.report.history.changes import Trend
from dask_otel.report.history.difference import Comparison
from dask_otel.report.history.past import HEADINGS, NUMBERS, PastRun
from dask_otel.report.money import Price
from dask_otel.report.page.environment import ENVIRONMENT
from dask_otel.report.page.flames import flame, growth
from dask_otel.report.page.multiples import marks, panels
from dask_otel.report.page.payload import pack, timeline
from dask_otel.report.seconds import SpanTime
from dask_otel.report.telemetry.model import Skipped, Span, grouped
from dask_otel.report.units import table

#: Most spans in a list; if there are more, the list has their names.
_MOST_SPANS: Final = 60
#: Most log records in a list: the severest.
_MOST_LOGS: Final = 500
#: Most names with trends on the page of many runs; those with news come first.
_MOST_NAMES: Final = 40
#: Most names of a comparison with a flame graph.
_MOST_GROWTHS: Final = 10


def page(
    accounts: Sequence[Account],
    skipped: Skipped,
    *,
    redacted: bool = False,
    comparison: Comparison | None = None,
    what_ifs: Mapping[str, str] | None = None,
) -> str:
    """Return the page of the accounts, the first open and the others folded.

    The footer lists `skipped`, the unreadable input. A `comparison` comes first, and a page of
    `redacted` runs says so. `what_ifs` has results of `replays` by the ids of their spans.
    """
    from bokeh.resources import INLINE

    # The charts need only Bokeh's core: no widgets, no tables, no WebGL, no MathJax.
    bokeh = next(raw for raw in INLINE.js_raw if "Bokeh" in raw[:20_000])
    return _rendered(
        "page.html",
        *(bokeh, _file("timeline.js"), _file("flame.js"), _file("page.js")),
        runs=[_run(account, number, what_ifs or {}) for number, account in enumerate(accounts)],
        skipped=skipped,
        redacted=redacted,
        comparison=comparison,
        growths=comparison and _growths(comparison),
    )


def history_page(
    runs: Sequence[PastRun],
    trends: Sequence[Trend],
    left_out: Sequence[str],
    price: Price | None,
    links: Sequence[str] = (),
) -> str:
    """Return the page of a list of runs, the newest first, with search and filter.

    The `links` lead to the reports of the runs; without them, the page has commands.
    """
    same = grouped(runs, lambda run: run.name)
    several = [one for one in trends if len(same[one.name]) > 1][:_MOST_NAMES]
    return _rendered(
        "history.html",
        _file("history.js"),
        runs=[(run, run.cells(price)) for run in reversed(runs)],
        trends=trends,
        multiples=[
            (
                one.name,
                [*panels(same[one.name])],
                marks(same[one.name], (change.since for change in one.changes)),
            )
            for one in several
        ],
        links=links[::-1],
        headings=[name for name in HEADINGS if price or name != "cost"],
        numbers=NUMBERS,
        left_out=left_out,
    )


def live_page(facts: Mapping[str, Any]) -> str:
    """Return the page of what a scheduler knows now, which asks for itself again and again.

    The `facts` are those of `dask_otel._dask.overview`. The links are relative to the page.
    """
    more = {"severity": severity, "when": words.when, "listed": listed, "Diagnosis": Diagnosis}
    return _rendered("live.html", _file("live.js"), **facts, **more)


def _run(account: Account, number: int, what_ifs: Mapping[str, str]) -> dict[str, Any]:
    """Return the values for a run's template besides its account."""
    # The other pages need no bokeh.
    from dask_otel.report.page.charts import charts

    session, spans = account.session, account.session.of_type("span")
    packed = {place: pack(item) for place, item in charts(account).items()}
    return {
        "account": account,
        "key": f"r{number}",
        "charts": packed,
        "timeline": timeline(session),
        "flame": flame(session),
        "spans": spans,
        "logs": [
            (max(0, log.time_ns - (session.start_ns or 0)) / 1e9, log)
            for log in session.happened(_MOST_LOGS)
        ],
        "what_ifs": [what_ifs[one.span_id] for one in session.roots() if one.span_id in what_ifs],
        "names": _by_name(account, spans) if len(spans) > _MOST_SPANS else [],
        "costs": money.table(account.bill, account.price, account.tag)
        if account.price and account.bill
        else [],
        "work": table(account.work, account.price) if account.work else [],
        "memory": memory.table(account.memory) if account.memory else [],
        "span_names": findings.span_names(session),
    }


def _growths(comparison: Comparison) -> dict[str, str]:
    names = [one.name for one in comparison.names if one.name in comparison.code]
    return {name: growth(*comparison.code[name]) for name in names[:_MOST_GROWTHS]}


def _by_name(account: Account, spans: Sequence[Span]) -> list[tuple[SpanTime, list[Span]]]:
    """Return the time of each name with its spans, in the order of their first start."""
    times = {entry.name: entry for entry in account.spans}
    same = grouped(spans, lambda span: span.full_name)
    return [(times.get(name) or SpanTime(name, name), found) for name, found in same.items()]


def _file(name: str) -> str:
    return resource_files("dask_otel.report.page").joinpath(name).read_text(encoding="utf-8")


def _rendered(template: str, *scripts: str, **values: Any) -> str:
    """Return a page with scripts, and their hashes for its policy."""
    hashes = [base64.b64encode(hashlib.sha256(one.encode()).digest()) for one in scripts]
    return ENVIRONMENT.get_template(template).render(
        values,
        scripts=[Markup(one) for one in scripts],
        hashes=[Markup(one.decode("ascii")) for one in hashes],
        style=Markup(_file("style.css")),
    )
