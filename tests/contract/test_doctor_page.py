"""docs/doctor.md names every check and every kind of trouble that there is, and what is sent."""

from __future__ import annotations

import re

from dask_otel import semconv
from dask_otel.core.endpoints.explaining import KINDS
from dask_otel.doctor import exporting, findings
from tests.environment import REPOSITORY

PACKAGE = REPOSITORY / "src" / "dask_otel"
PAGE = (REPOSITORY / "docs" / "doctor.md").read_text(encoding="utf-8")


def column(heading: str, index: int = 0) -> set[str]:
    """Return what is code in a column of the table below a heading."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert rows
    return {word for row in rows for word in re.findall(r"`([^`]+)`", row.split("|")[index + 1])}


def written(folder: str, pattern: str) -> set[str]:
    sources = [path.read_text(encoding="utf-8") for path in (PACKAGE / folder).glob("*.py")]
    return {found for source in sources for found in re.findall(pattern, source)}


def test_every_check_and_kind_of_trouble_is_documented() -> None:
    checks = written("doctor", r'Finding\(\s*"([a-z_.]+)"')
    checks |= {f"export.{signal}" for signal in exporting._SENT}
    checks |= {f"backend.{name}" for name in ("jaeger", "tempo", "prometheus")}
    checks |= {f"counts.{name.removeprefix('dask.otel.')}" for name in findings._COUNTS}
    assert column("Checks") == checks
    assert column("Why an endpoint fails") == {*KINDS, "unknown"}


def test_what_is_sent_is_documented() -> None:
    assert (
        column("What it sends", 1),
        column("What it sends", 2),
        semconv.DOCTOR_CHECKS.labels,
    ) == (
        {semconv.DOCTOR_SPAN, semconv.DOCTOR_CHECKS.name, semconv.DOCTOR_EVENT},
        {semconv.DOCTOR_RUN},
        (semconv.DOCTOR_RUN,),
    )


def test_alerts_that_it_names_have_a_runbook() -> None:
    named = written("doctor", r"\b(Dask[A-Z][A-Za-z]+)\b")
    runbooks = {path.stem for path in (REPOSITORY / "docs" / "runbooks").glob("Dask*.md")}
    assert named
    assert named <= runbooks
