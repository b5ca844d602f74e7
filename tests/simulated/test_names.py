"""Names of spans that differ from labels of metrics: the report is as for any other name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from distributed import span, wait

from dask_otel import read_report
from dask_otel.lab.threads import burn
from dask_otel.report.history.sessions import listing
from dask_otel.report.money import bill
from dask_otel.report.seconds import span_times
from tests.simulated.bridged import Bridged


def known(folder: Path, name: str) -> str:
    b = Bridged({"files": {"path": str(folder)}}, workers=1, threads=2, unreconciled="escapes")

    def run() -> None:
        with span(name), span("below"):
            wait(b.client.map(burn, [1.0] * 6))
        b.exported()

    b.run(run)
    causes = [(one.kind, one.title) for one in read_report(folder).accounts()[0].diagnoses]
    ((run, _),), _ = listing([folder], lambda *_: None)
    found = repr([causes, run.cause, run.functions])
    return found.replace(name.replace("/", "\\\\/"), "NAME")


def test_a_root_with_a_slash_is_as_any_other(tmp_path: Path) -> None:
    assert known(tmp_path / "slash", "a/b") == known(tmp_path / "plain", "plain")


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("c-17", {}),
        # A label has 200 characters.
        ("c" * 250, {}),
        ("c-17", {"name-rules": [{"pattern": "-[0-9]+$"}]}),
        ("c-17", {"span-label": "root"}),
        ("c-17", {"span-names": {"deny": ["etl*"]}}),
    ],
)
def test_each_thread_second_counts_once(tmp_path: Path, name: str, labels: dict[str, Any]) -> None:
    config = {"files": {"path": str(tmp_path)}, "metrics": labels}
    b = Bridged(config, workers=1, threads=2, unreconciled="the labels are others")

    def run() -> None:
        with span("etl"), span(name):
            wait(b.client.map(burn, [1.0, 2.0]))
        b.exported()

    b.run(run)
    (session,) = read_report(tmp_path).runs
    # Two threads for two seconds.
    assert [(one.name, one.capacity) for one in span_times(session) if one.capacity] == [
        (f"etl/{name}", pytest.approx(4.0, rel=1e-3))
    ]
    assert bill(session).roots[0].capacity == pytest.approx(4.0, rel=1e-3)
