"""``dask-otel doctor`` as a person calls it; on a healthy scheduler: `test_black_box`."""

from __future__ import annotations

import gc
import json
import re
import socket
import warnings
from pathlib import Path
from typing import Any

import pytest

from dask_otel import semconv
from dask_otel.cli import main
from dask_otel.doctor import asking
from tests.cluster.processes import Cluster, cluster
from tests.receiver import Receiver
from tests.waiting import eventually

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.unreconciled("about the doctor, who runs no task"),
]

#: A preload that hides the package, as if it were not installed.
WITHOUT = "import sys; sys.modules['dask_otel'] = None"


def doctor(capsys: pytest.CaptureFixture[str], made: Cluster, *arguments: str) -> tuple[int, Any]:
    capsys.readouterr()
    code = main(["doctor", "--scheduler", made.address, "--json", "--timeout", "60", *arguments])
    return code, json.loads(capsys.readouterr().out)


def by_check(document: Any) -> dict[str, Any]:
    return {finding["check"]: finding for finding in document["findings"]}


def assert_well(
    capsys: pytest.CaptureFixture[str], made: Cluster, received: Receiver, secret: str
) -> None:
    """Examine a scheduler with the bridge, on one of whose two workers the package is missing."""

    def examined() -> Any:
        code, document = doctor(capsys, made)
        assert (code, document["ok"]) == (0, True), document["findings"]
        assert len(document["facts"]["packages"]["workers"]) == 2
        # By heartbeats alone: each tells how long the one before it took.
        clocks = [one["clock"] for one in _process(document)["workers"]["workers"]]
        assert all(None not in clock for clock in clocks), clocks
        return document

    document = eventually(examined, what="all is well")
    levels = {check: finding["level"] for check, finding in by_check(document).items()}
    assert (levels.pop("fusion"), levels.pop("workers.package")) == ("note", "note")
    assert set(levels) >= {"bridge", "export.traces", "export.metrics", "workers.clocks"}
    assert set(levels.values()) == {"ok"}
    assert secret not in json.dumps(document)
    settings = {key: (value, origin) for key, value, origin in _process(document)["settings"]}
    assert settings["otel.cluster-name"] == ("nightly", "DASK_OTEL__CLUSTER_NAME")
    # From the scheduler, with what it says of itself.
    span = received.spans[-1]
    assert (span.name, span.resource["dask.cluster.name"], f"{span.trace_id:032x}") == (
        semconv.DOCTOR_SPAN,
        "nightly",
        _process(document)["probe"]["trace_id"],
    )


def _process(document: Any) -> Any:
    return document["facts"]["process"]


@pytest.mark.xdist_group("forked")
def test_a_scheduler_without_the_package(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with cluster(tmp_path, forked=True) as made:
        made.start_scheduler("--preload", WITHOUT)
        code, document = doctor(capsys, made)
    found = {c for c, f in by_check(document).items() if f["level"] == "problem"}
    assert (code, found, document["facts"]["process"]) == (1, {"scheduler.package"}, None)


@pytest.mark.usefixtures("only_new_garbage")
@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "tls://127.0.0.1:1", "silent", ""])
def test_no_scheduler(
    address: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "_CONNECT", 0.1)
    # It takes connections, and says no word of Dask's protocol, like the port of a dashboard.
    silent = socket.create_server(("127.0.0.1", 0))
    address = address.replace("silent", f"tcp://127.0.0.1:{silent.getsockname()[1]}")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with silent:
            assert main(["doctor", "--scheduler", address]) == 3
        gc.collect()
    assert [str(one.message) for one in warned if "never awaited" in str(one.message)] == []
    said = re.escape(f"no scheduler answers at {address}") + "(?s:.*)next: Compare the address"
    assert re.search(said, capsys.readouterr().err)
