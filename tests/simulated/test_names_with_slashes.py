"""A root whose tag has a slash, in the report and in the history: it is as any other."""

from __future__ import annotations

from pathlib import Path

from distributed import span, wait

from dask_otel import read_report
from dask_otel.lab.threads import burn
from dask_otel.report.history.sessions import listing
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
