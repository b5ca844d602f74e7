"""The doctor's page: findings as text of 80 columns, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from dask_otel.doctor.finding import Finding, exit_code
from dask_otel.report import words

#: Version of the JSON; it only increases.
FORMAT: Final = 1

_COLOURS: Final = {"ok": "32", "note": "33", "problem": "31;1"}
_INDENT: Final = 9


def as_text(
    facts: Mapping[str, Any],
    findings: Sequence[Finding],
    width: int = 80,
    *,
    colours: bool = False,
    everything: bool = False,
) -> str:
    """Return the page; `everything` lists settings with default values, too."""
    lines = [f"dask-otel doctor: {facts['scheduler'] or 'this machine, without a scheduler'}", ""]
    advised: set[tuple[str, str]] = set()
    for finding in findings:
        advice = (finding.why, finding.next)
        texts = ("", "") if advice in advised else advice
        advised.add(advice)
        label = f"{finding.level:<{_INDENT}}"
        if colours:
            label = f"\x1b[{_COLOURS[finding.level]}m{label}\x1b[0m"
        lines += _column(label, " " * _INDENT, finding.what, width - _INDENT)
        for word, text in zip(("why:", "next:"), texts, strict=True):
            before = f"{'':{_INDENT}}{word:<6}"
            lines += _column(before, " " * len(before), text, width - len(before)) if text else ()
    counts = {level: sum(one.level == level for one in findings) for level in ("problem", "note")}
    well = "All is well" if facts["scheduler"] else "All is well on this machine"
    verdict = words.counted(counts["problem"], "problem") if counts["problem"] else well
    lines += ["", *_settings(facts["process"], everything)]
    return "\n".join(lines) + f"\n{verdict}, {words.counted(counts['note'], 'note')}.\n"


def _column(first: str, others: str, text: str, width: int) -> list[str]:
    """Return the lines of a text, with one prefix for the first and another for the rest."""
    lines = words.wrapped(_printable(text), width)
    return [f"{others if number else first}{line}" for number, line in enumerate(lines)]


def _printable(text: str) -> str:
    """Return the text on one line, without terminal control characters."""
    return words.one_line(" ".join(text.split()), "\ufffd")


def _settings(process: Mapping[str, Any] | None, everything: bool) -> Iterator[str]:
    if process is None:
        return
    rows = [
        row
        for row in [*process["settings"], *process["variables"]]
        if everything or row[2] != "default"
    ]
    yield "Configuration in force" + ("" if everything else " (--all adds the defaults)")
    if not rows:
        yield "  only defaults"
    for name, value, origin in rows:
        yield f"  {_printable(f'{name} = {value}')}"
        yield f"      {_printable(f'from {origin}')}"
    yield ""


def as_json(facts: Mapping[str, Any], findings: Sequence[Finding]) -> str:
    """Return the page's content as JSON; keys are only added, never renamed."""
    document = {
        "format": FORMAT,
        "ok": exit_code(findings) == 0,
        "findings": [asdict(finding) for finding in findings],
        "facts": facts,
    }
    return json.dumps(document, indent=2, allow_nan=False, default=str) + "\n"
