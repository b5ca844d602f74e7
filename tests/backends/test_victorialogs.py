"""VictoriaLogs: the bridge's log records, and every query in LogsQL of the pages."""

from __future__ import annotations

from collections import Counter

import pytest

from dask_otel import semconv
from tests.contract.test_pages import Fence, of
from tests.receiver import Log
from tests.waiting import eventually

from .clients import VictoriaLogsClient
from .conftest import Start
from .logs_run import WAYS, Logged, check_each_arrived_once, run_logging, same
from .servers import Running

pytestmark = [pytest.mark.backend, pytest.mark.cluster]


@pytest.fixture
def client(victorialogs: Running) -> VictoriaLogsClient:
    return VictoriaLogsClient(victorialogs.url)


@pytest.fixture(scope="module", params=WAYS)
def logged(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    start_shared: Start,
    victorialogs: Running,
) -> Logged:
    otlp, folder = f"{victorialogs.url}/insert/opentelemetry", tmp_path_factory.mktemp("dask")
    run = run_logging(request.param, otlp, folder, start_shared)
    rows = VictoriaLogsClient(victorialogs.url).rows
    eventually(lambda: len(rows(everything(run), run.started)) >= len(run.records), 60, "all")
    return run


def everything(logged: Logged) -> str:
    return f'{{dask.cluster.name="{logged.name}"}}'


def test_each_record_arrives_once_with_all_that_it_has(
    logged: Logged, client: VictoriaLogsClient
) -> None:
    found = client.query(everything(logged), logged.started)
    check_each_arrived_once(found, logged, str)
    resource = logged.records[0].resource
    assert resource[semconv.SERVICE_NAME] == "dask-scheduler"
    for entry in found:
        assert {key: entry.labels.get(key) for key in resource} == {
            key: str(value) for key, value in resource.items()
        }


@pytest.mark.parametrize("fence", of("logsql"))
def test_a_query_of_the_pages_is_answered(
    fence: Fence, logged: Logged, client: VictoriaLogsClient
) -> None:
    text = fence.text.replace('"}', f'", dask.cluster.name="{logged.name}"}}')
    assert text != fence.text
    removed = [log for log in logged.records if log.name == semconv.WORKER_REMOVED]
    if "stats" in text:
        reasons = Counter(log.attributes[semconv.WORKER_REMOVAL_REASON] for log in removed)
        (row,) = client.rows(text, logged.started)
        assert {row[semconv.WORKER_REMOVAL_REASON]: int(row["workers"])} == reasons == {"lost": 2}
        return
    wanted: list[Log] = [logged.said] if semconv.WORKER_LOG in text else removed
    assert same(client.query(text, logged.started), wanted)
