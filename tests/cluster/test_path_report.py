"""What a report says of a real run in which one task is late."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from distributed import span

from dask_otel.report.document import read_report
from tests.cluster.conftest import Start

pytestmark = pytest.mark.cluster

#: Seconds of the late task.
LATE = 2.0


def fit(number: int) -> int:
    time.sleep(LATE if number == 3 else 0.05)
    return number


def test_the_straggler_is_named(start: Start, tmp_path: Path) -> None:
    # No task has to wait behind the late one.
    with start({"files": {"path": str(tmp_path)}}, threads_per_worker=4) as bridged:
        with span("train"):
            assert sorted(bridged.client.gather(bridged.client.map(fit, range(8)))) == [*range(8)]
        bridged.exported()
    report = read_report(tmp_path)
    (run,) = report.to_dict()["runs"]
    (train,) = run["traces"]
    (told,) = run["path"]["spans"]
    assert sum(told["parts"].values()) == pytest.approx(train["seconds"], abs=1e-6)
    assert LATE <= told["parts"]["compute"] < train["seconds"]
    (said, *_) = run["path"]["sentences"]
    assert said.startswith("More workers can't make train shorter than 2.")
    assert ": one task of fit took 2." in said
    assert said in " ".join(report.text(500).split())
