"""A finding of the doctor: something good, notable or wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

Level: TypeAlias = Literal["ok", "note", "problem"]
#: What findings are made of.
Facts: TypeAlias = Mapping[str, Any]

NOT_EXAMINED: Final = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. Only a problem makes the doctor's exit code 1."""

    #: A short, stable name for scripts: ``export.traces``, ``workers.clocks``, …
    check: str
    level: Level
    what: str
    #: The likely cause.
    why: str = ""
    #: The remedy.
    next: str = ""
    #: A short, stable name of the cause, if there are several.
    kind: str = ""


def rows(*table: tuple[object, Finding]) -> list[Finding]:
    """Return the findings whose conditions are true."""
    return [finding for condition, finding in table if condition]


def exit_code(findings: Iterable[Finding]) -> int:
    """Return 1 if there is a problem, else 0."""
    return int(any(finding.level == "problem" for finding in findings))
