"""The page of planted causes: each case, what its report says first, and whether that is right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import distributed

from tests.environment import REPOSITORY
from tests.planted.case import Case
from tests.planted.recording import CASES, UNSEEN

PAGE = REPOSITORY / "docs" / "planted.md"

_TEXT = """# Planted causes

Each row is a program that loses time for a known reason, and the first sentence of its
[report](report.md). [The laboratory](laboratory.md#planted-causes) shows how such programs are
written; `make planted ARGS=--page` runs them all, and writes this page. It was written with Dask
{version}.

A sentence is right if its [kind](diagnoses.md) is one of those planted, and if it names who holds
the threads, or what else it has to name. It must not promise more seconds than the run is shorter
without the cause, nor fewer, where that is known. No other cause that the report names may be one
that the facts rule out.

Of these cases, {share} Nobody tunes the rules for those in `tests/planted/unseen.py`, so they are
not listed. Of them, {unseen}

## In simulated time

Their seconds do not depend on the machine. Those of groups-on-a-slow-network differ from run to
run, by some tenths.

{simulated}
## In real processes

For the GIL, CPUs, imports, pickling, disks and deaths. Their seconds depend on the machine, so they
are run by hand; the tests run one of them. Cases without a verdict were not run for this page.

{real}"""


def row(case: Case, fact: Mapping[str, Any] | None) -> str:
    """Return a row of the page; without a fact, the case was not run."""
    kinds = ", ".join(f"`{kind}`" for kind in case.kinds)
    said, right = "not run", "–"
    if fact:
        first = fact["said"][0] if fact["said"] else {"kind": "nothing", "title": fact["faults"][0]}
        said = f"`{first['kind']}`: {first['title']}".replace("|", "\\|")
        right = "no" if fact["faults"] else "yes"
    return f"| {case.name} | {kinds} | {said} | {right} |\n"


def page(facts: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the text of the page, with the facts of the cases that were run."""

    def share(cases: Mapping[str, Case]) -> str:
        ran = [facts[name] for name in cases if name in facts]
        left = len(cases) - len(ran)
        said = f"{sum(not one['faults'] for one in ran)} of {len(ran)} are right"
        return said + f"; {left} were not run." if left else f"{said}."

    def table(real: bool) -> str:
        head = "| Case | Planted | Said first | Right |\n|---|---|---|---|\n"
        chosen = [case for case in CASES.values() if case.real is real]
        return head + "".join(row(case, facts.get(case.name)) for case in chosen)

    return _TEXT.format(
        version=distributed.__version__,
        share=share(CASES),
        unseen=share(UNSEEN),
        simulated=table(False),
        real=table(True),
    )
