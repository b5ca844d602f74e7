"""Exporters made by the standard variables, against a real receiver."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from importlib.metadata import distributions
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from dask_otel import _version
from dask_otel._otel.sdk import outputs as _otel
from dask_otel._otel.sdk.outputs import Outputs
from dask_otel.core.records import Answer, Row
from dask_otel.pump.pump import Pump
from dask_otel.scheduler.wiring import make_pump
from dask_otel.settings.keys import FileSettings, LogSettings, Settings
from tests.environment import set_variables
from tests.receiver import Receiver, receiver
from tests.unit.pumps import closes

PROTOCOLS = ("grpc", "http/protobuf")

Build = Callable[..., Outputs]
Begin = Callable[..., Pump]


@cache
def packages(folder: str) -> list[Any]:
    """Return what is installed in a folder, with its entry points."""
    return [SimpleNamespace(entry_points=one.entry_points) for one in distributions(path=[folder])]


@pytest.fixture(autouse=True)
def _each_package_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remember what is installed: nearly every test asks for entry points, of all packages."""
    read = _version._distributions

    def remembered(name: str | None = None) -> Iterable[Any]:
        return read(name) if name else chain.from_iterable(map(packages, [*sys.path]))

    monkeypatch.setattr(_version, "_distributions", remembered)


@pytest.fixture(params=PROTOCOLS)
def server(request: pytest.FixtureRequest) -> Iterator[Receiver]:
    with receiver(request.param) as made:
        yield made


@pytest.fixture
def http() -> Iterator[Receiver]:
    with receiver("http/protobuf") as made:
        yield made


@pytest.fixture
def application(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the application have a provider, which exports nothing."""
    provider = TracerProvider(shutdown_on_exit=False)
    monkeypatch.setattr(_otel, "application_provider", lambda: provider)


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Iterator[Build]:
    """Return a function that makes sinks with variables; they are shut down at the end."""
    with ExitStack() as stack:

        def call(
            environ: Mapping[str, str] | None = None,
            *,
            defaults: Mapping[str, str] | None = None,
            cluster_name: str | None = None,
            files: FileSettings | None = None,
            logs: bool = False,
            **variables: str,
        ) -> Outputs:
            set_variables(monkeypatch, {**(environ or {}), **variables})
            settings = Settings(
                environment=defaults or {},
                cluster_name=cluster_name,
                files=files or FileSettings(),
                logs=LogSettings(events=logs),
            )
            outputs = _otel.build(settings, "Scheduler-1", 0)
            assert outputs is not None
            for sink in (*outputs.span_sinks, *outputs.metric_sinks, *outputs.log_sinks):
                stack.callback(sink.close)
            return outputs

        yield call


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Begin]:
    """Start pumps as the bridge does, with the given variables in the environment."""
    started: list[Pump] = []

    def start(
        variables: Mapping[str, str],
        settings: Settings | None = None,
        scheduler: str = "Scheduler-1",
        started_ns: int = 0,
    ) -> Pump:
        defaults = {
            "OTEL_BSP_SCHEDULE_DELAY": "20",
            "OTEL_BLRP_SCHEDULE_DELAY": "20",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "60",
        }
        set_variables(monkeypatch, {**defaults, **variables})
        # A moment ago: the first batch comes at once here, and a zero point has its time before it.
        began = started_ns or time.time_ns() - 10**9
        made = make_pump(settings or Settings(), scheduler, began)
        assert made is not None
        made.pump.start()
        started.append(made.pump)
        return made.pump

    yield start
    for pump in started:
        # A thread that hangs in an exporter ends with its timeout.
        closes(pump, 0.5)


def send(sink: Any, records: Sequence[Any], longest: float = 60) -> Answer:
    """Send records as the pump does, in one request."""
    if sink.signal == "metrics":
        return sink.send(records, longest)
    answer: Answer = sink.send([Row(sink.encode(record)) for record in records], longest)
    return answer
