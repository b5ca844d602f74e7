"""A diagnosis: one cause that cost a run time, its evidence, and the next step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Diagnosis:
    """One cause; the first of a run is its headline."""

    #: A stable name; docs/diagnoses.md has an entry for each.
    kind: str
    #: The full name of the span that it concerns; empty for the whole run.
    span: str
    #: The seconds of wall clock that the cure saves at most.
    seconds: float
    #: The cause, the evidence for it, and the next step: a sentence each.
    title: str
    evidence: str
    next: str
