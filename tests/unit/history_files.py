"""Files of runs for the tests of ``dask-otel history``, and what it makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dask_otel.cli import main
from tests.unit.report_files import span, traces


def write(folder: Path, number: int, *requests: dict[str, Any], more: str = "") -> Path:
    """Write a session's file of traces, with ids of its own, as the bridge names it."""
    ids = (f"{number:024x}{index + 1:08x}" for index in range(len(requests)))
    lines = [
        json.dumps(one).replace("ab" * 16, new) for one, new in zip(requests, ids, strict=True)
    ]
    path = folder / f"nightly-20261121T203353Z-{number:08x}-0001-traces.jsonl"
    path.write_text("\n".join(lines) + "\n" + more)
    return path


def one(number: int, name: str = "etl", **of: Any) -> dict[str, Any]:
    """A run of two spans, with 10 + 20 thread-seconds; 2 + 4 of them were idle."""
    both = {"dask.span.root.id": "id-1", "dask.task.erred.count": 1}
    both["dask.span.activity.time.thread-cpu"] = 8.0
    own = {"dask.span.capacity.time": 10.0, "dask.span.idle.time": 2.0, "dask.task.count": 7}
    below = {"dask.span.capacity.time": 20.0, "dask.span.idle.time": 4.0, "dask.task.count": 5}
    below["dask.span.activity.time.transfer"] = 8.0
    root = span(1, name, start=100.0 * number, seconds=30.0, **both, **own, **of)
    child = span(2, f"{name}/load", parent=1, start=100.0 * number, **both, **below)
    return traces(child, root, instance=f"Scheduler-{number}")


def etl(
    number: int = 0,
    seconds: float = 10.0,
    idle: float = 1.0,
    name: str = "etl",
    **functions: tuple[float, ...],
) -> dict[str, Any]:
    """A run on a scheduler of its own: tasks, their seconds together, and perhaps their bytes."""
    first = 100 * number + 1
    root_id = {"dask.span.root.id": f"id-{first}"}
    groups = [
        span(
            first + place,
            f"{prefix} tasks",
            parent=first,
            kind="group",
            start=60.0 * number,
            **{"dask.task.prefix": prefix, "dask.task.count": int(count)},
            **{"dask.task_group.duration.compute": took, "dask.task_group.duration.transfer": 9.0},
            **({"dask.span.output.size": int(size[0])} if size else {}),
            **{"dask.span.root.name": name, **root_id},
        )
        for place, (prefix, (count, took, *size)) in enumerate(functions.items(), 1)
    ]
    busy = sum(took for _, took, *_ in functions.values())
    of = {
        # A tenth of a second is of no function.
        "dask.span.activity.time.thread-cpu": busy + 0.1,
        "dask.span.idle.time": idle,
        "dask.span.activity.time.executor": 0.2,
        "dask.span.capacity.time": busy + idle + 0.3,
        "dask.task.count": int(sum(count for count, *_ in functions.values())),
        "dask.span.path.compute.time": seconds - 1.5,
        "dask.span.path.transfer.time": 1.5,
        "dask.span.result": "success",
    }
    root = span(first, name, seconds=seconds, start=60.0 * number, **root_id, **of)
    step = span(first + 98, f"{name}/store", parent=first, seconds=seconds / 2)
    return traces(root, step, *groups, instance=f"Scheduler-{number}")


def listed(capsys, *arguments: str | Path, code: int = 0) -> tuple[list[dict[str, Any]], str]:
    assert main(["history", *map(str, arguments), "--json"]) == code
    captured = capsys.readouterr()
    return json.loads(captured.out)["runs"] if captured.out else [], captured.err
