"""The doctor's page: findings as text of 80 columns, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from dask_otel.doctor.finding import Finding, exit_code
from dask_otel.report import words

#: Of the JSON; it only grows.
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
    """Return the page.

    Parameters
    ----------
    facts, findings
        What was found.
    width
        Columns.
    colours
        Whether the terminal shows any.
    everything
        Whether settings with their default values are listed, too.
    """
    lines = [f"dask-otel doctor: {facts['scheduler'] or 'this machine, without a scheduler'}", ""]
    advised: set[tuple[str, str]] = set()
    for finding in findings:
        if (finding.why, finding.todo) in advised:
            finding = replace(finding, why="", todo="")
        advised.add((finding.why, finding.todo))
        lines += _finding(finding, width, colours)
    lines += ["", *_settings(facts["process"], everything), _verdict(findings)]
    return "\n".join(lines) + "\n"


def _finding(finding: Finding, width: int, colours: bool) -> Iterator[str]:
    label = f"{finding.level:<{_INDENT}}"
    if colours:
        label = f"\x1b[{_COLOURS[finding.level]}m{label}\x1b[0m"
    first, *more = _wrapped(finding.what, width - _INDENT)
    yield label + first
    for line in more:
        yield " " * _INDENT + line
    for word, text in (("why:", finding.why), ("next:", finding.todo)):
        for index, line in enumerate(_wrapped(text, width - _INDENT - 6) if text else ()):
            yield f"{'':{_INDENT}}{word if index == 0 else '':<6}{line}"


def _wrapped(text: str, width: int) -> list[str]:
    return words.wrapped(_printable(text), width)


def _printable(text: str) -> str:
    """Return the text on one line, without what a terminal would obey."""
    return words.one_line(" ".join(text.split()), "\ufffd")


def _settings(process: Mapping[str, Any] | None, everything: bool) -> Iterator[str]:
    if process is None:
        return
    rows = [
        (name, value, origin)
        for name, value, origin in [*process["settings"], *process["variables"]]
        if everything or origin != "default"
    ]
    yield "Configuration in force" + ("" if everything else " (--all has the defaults, too)")
    if not rows:
        yield "  nothing but defaults"
    for name, value, origin in rows:
        line = f"  {name} = {value}"
        yield _printable_line(line)
        yield _printable_line(f"      from {origin}")
    yield ""


def _printable_line(line: str) -> str:
    indent = len(line) - len(line.lstrip())
    return " " * indent + _printable(line)


def _verdict(findings: Sequence[Finding]) -> str:
    problems = sum(finding.level == "problem" for finding in findings)
    notes = sum(finding.level == "note" for finding in findings)
    said = words.counted(problems, "problem") if problems else "All is well"
    return f"{said}, {words.counted(notes, 'note')}."


def as_json(facts: Mapping[str, Any], findings: Sequence[Finding]) -> str:
    """Return the same as JSON; keys are only added, never renamed."""
    document = {
        "format": FORMAT,
        "ok": exit_code(findings) == 0,
        "findings": [finding.as_json() for finding in findings],
        "facts": facts,
    }
    return json.dumps(document, indent=2, allow_nan=False, default=str) + "\n"
