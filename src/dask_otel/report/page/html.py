"""The page as a whole: one file, no network, and a policy that would not let anything in.

Whatever comes from the telemetry goes through `_text` into the markup, or packed into base64 to
the script, which never makes markup of it. Scripts run by their hashes alone.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files as resource_files
from itertools import count

from dask_otel.report.money import Price
from dask_otel.report.page import sections, tables
from dask_otel.report.page.charts import charts
from dask_otel.report.page.payload import pack, timeline
from dask_otel.report.seconds import span_times
from dask_otel.report.telemetry.model import Run, Skipped


def page(
    runs: Sequence[Run],
    skipped: Skipped,
    *,
    price: Price | None = None,
    tag: str = "team",
    redacted: bool = False,
    comparison: str = "",
) -> str:
    """Return the page.

    Parameters
    ----------
    runs
        The first one is open, the others are folded.
    skipped
        What could not be read, which is said.
    price
        Of a thread-hour; without it nothing is said of money.
    tag
        Of which ``<tag>:<value>`` tags the cost is summed up.
    redacted
        Whether the runs are; it is said then.
    comparison
        Markup of `comparison.section`, put first.
    """
    numbers = count()
    data: list[str] = []
    bodies = []
    for index, run in enumerate(runs):
        body = _run(run, price, tag, numbers, data)
        if len(runs) > 1:
            title = _text(run.title)
            opened = " open" if index == 0 and not comparison else ""
            body = f'<details class="run"{opened}><summary>{title}</summary>{body}</details>'
        bodies.append(body)
    title = runs[0].title if len(runs) == 1 else f"{len(runs)} runs of Dask"
    head = f"<h1>{_text(title)}</h1>"
    return _document(
        title,
        f'<header class="top">{head}{sections.subtitle(runs, redacted)}</header>'
        f"<main>{comparison}{''.join(bodies)}</main>"
        f"<footer>{sections.footer(runs, skipped)}</footer>" + "".join(data),
    )


def _run(run: Run, price: Price | None, tag: str, numbers: Iterable[int], data: list[str]) -> str:
    names = span_times(run)
    number = iter(numbers)

    def chart(place: str) -> str:
        if place not in made:
            return ""
        key = f"c{next(number)}"
        data.append(_data(f"{key}-data", pack(made[place])))
        return f'<div class="chart" id="{key}" data-chart="{key}-data"></div>'

    made = charts(run, names)
    rows = timeline(run)
    key = f"t{next(number)}-data"
    data.append(_data(key, rows.packed))
    return "".join(
        (
            sections.overview(run, price),
            sections.advice_list(run),
            sections.where(run, chart("spans"), chart("flow")),
            sections.timeline(key, rows),
            sections.failed(run),
            sections.slow(run),
            sections.idle_reasons(run),
            tables.spans(run, names, price),
            tables.workers(run, chart("memory"), chart("busy")),
            tables.money(run, price, tag),
        )
    )


def _data(key: str, packed: str) -> str:
    return f'<script type="text/plain" id="{key}">{packed}</script>'


def _document(title: str, body: str) -> str:
    from bokeh.resources import INLINE

    own = [_file("timeline.js"), _file("page.js")]
    # Bokeh's core is what the charts need: no widgets, no tables, no WebGL, no MathJax.
    bokeh = next(raw for raw in INLINE.js_raw if "Bokeh" in raw[:20_000])
    scripts = [bokeh, *own]
    hashes = " ".join(f"'sha256-{_hash(script)}'" for script in scripts)
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:;"
        " font-src data:; base-uri 'none'; form-action 'none'"
    )
    tags = "".join(f"<script>{script}</script>" for script in scripts)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>{_text(title)} · dask-otel</title><style>{_file('style.css')}</style></head>"
        f"<body>{body}{tags}</body></html>\n"
    )


def _file(name: str) -> str:
    return resource_files("dask_otel.report.page").joinpath(name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")


def _text(value: str) -> str:
    return escape(value, quote=True)
