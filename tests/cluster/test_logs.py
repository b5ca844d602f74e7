"""Log records of user code in tasks name the trace, the span and the task."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from distributed import Client
from opentelemetry.instrumentation import auto_instrumentation

import dask_otel
from tests.cluster import tasks
from tests.cluster.processes import cluster
from tests.receiver import receiver

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("forked")]

RUNS = (tasks.logs, tasks.logs_async)

#: A preload of the user's, with a handler that writes JSON.
HANDLER = """
import json, logging

class Lines(logging.Handler):
    def emit(self, record):
        fields = ("trace_id", "span_id", "trace_flags", "dask.span.name", "dask.task.key")
        # What is logged before the plugin is there has no such fields.
        line = {name: getattr(record, name, "") for name in fields}
        print(json.dumps({"message": record.getMessage(), **line}), flush=True)

def dask_setup(worker):
    logging.getLogger("user").addHandler(Lines())
    logging.getLogger("distributed.worker").addHandler(Lines())
"""


def test_by_opentelemetrys_instrumentation_and_by_a_handler_of_the_users(tmp_path: Path) -> None:
    handler = tmp_path / "handler.py"
    handler.write_text(HANDLER)
    # What `opentelemetry-instrument` does: the folder with its sitecustomize comes first.
    (folder,) = auto_instrumentation.__path__
    instrumented = {
        "PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        "OTEL_PYTHON_LOG_CORRELATION": "true",
        "OTEL_PYTHON_LOG_AUTO_INSTRUMENTATION": "false",
    }
    with receiver() as received, cluster(tmp_path, forked=True) as dask_processes:
        dask_processes.start_scheduler(
            "--preload",
            "dask_otel.preload",
            env={
                **received.environ,
                "OTEL_METRIC_EXPORT_INTERVAL": "500",
                "DASK_OTEL__SPANS__LINGER": "100ms",
                "DASK_OTEL__LOGS__INJECT": "true",
            },
        )
        worker = dask_processes.start_worker("both", "--preload", str(handler), env=instrumented)
        with Client(dask_processes.address) as client:
            client.wait_for_workers(1)
            with dask_otel.span("outer"), dask_otel.span("etl"):
                client.gather([client.submit(run, run.__name__) for run in RUNS])
                failed = client.submit(tasks.logs_and_fails, "wrong", key="wrong")
                assert failed.exception() is not None
            trace_id, span_id, _ = received.named("etl").ids
        expected = {"trace_id": f"{trace_id:032x}", "span_id": f"{span_id:016x}"}

        pattern = r"(\[trace_id=\w+ span_id=\w+ .*\]) - (logs\w*)$"
        lines = {message: ids for ids, message in re.findall(pattern, worker.output, re.MULTILINE)}
        assert set(lines) == {"logs", "logs_async"}
        for line in lines.values():
            assert f"[trace_id={expected['trace_id']} span_id={expected['span_id']} " in line

        said = {
            line["message"].partition("\n")[0]: line
            for line in map(json.loads, re.findall(r"^\{.*\}$", worker.output, re.MULTILINE))
        }
        in_task = {**expected, "trace_flags": "01", "dask.span.name": "outer/etl"}
        for name in ("logs", "logs_async", "wrong"):
            assert {**said[name], **in_task} == said[name]
            assert said[name]["dask.task.key"].startswith(("logs", "wrong"))
        # Dask's own word on it, too.
        assert {**said["Compute Failed"], **in_task, "dask.task.key": "wrong"} == said[
            "Compute Failed"
        ]
        # What belongs to no task has the fields, and nothing in them.
        outside = [line for line in said.values() if not line["dask.task.key"]]
        assert outside
        assert {line["trace_id"] for line in outside} == {""}
