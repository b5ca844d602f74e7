"""One trace through the whole system: a request, its Dask spans, and the HTTP calls inside tasks.

An application with OpenTelemetry of its own serves a small shop over HTTP, and asks Dask for a
report under a span ``request``. The tasks fetch prices from the shop. All of it is one trace:

    request                       the application's span
      report                      the Dask span, in the caller's trace
        fetch tasks               one for each task group, and its slowest task
        GET                       requests, instrumented on the worker
          GET /price              the shop, instrumented too

Run it with ``pip install dask-otel opentelemetry-instrumentation-requests
opentelemetry-instrumentation-wsgi requests``. The application speaks OTLP over HTTP, so let the
bridge do so, too: ``OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf``, and, unless a server of OTLP is at
its default, ``OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318``.
Without ``--scheduler`` it starts a cluster of its own, whose scheduler loads the bridge.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import dask
import requests
from distributed import Client, LocalCluster, Worker, WorkerPlugin
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.requests import RequestsInstrumentor
from opentelemetry.instrumentation.wsgi import OpenTelemetryMiddleware
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import dask_otel


def make_provider(service: str) -> TracerProvider:
    """Return a provider that exports over OTLP/HTTP, as any application would set it up."""
    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


class Traced(WorkerPlugin):
    """Instruments ``requests`` on the workers: what the user's own code has, not the bridge's."""

    name = "traced"

    def setup(self, worker: Worker) -> None:
        self.provider = make_provider("report-worker")
        RequestsInstrumentor().instrument(tracer_provider=self.provider)

    def teardown(self, worker: Worker) -> None:
        RequestsInstrumentor().uninstrument()
        self.provider.shutdown()


def fetch(url: str, item: int) -> int:
    """Ask the shop for a price: user code in a task, which knows nothing of tracing."""
    return int(requests.get(f"{url}/price?item={item}", timeout=10).text)


class _Quiet(WSGIRequestHandler):
    def log_message(self, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def shop(provider: TracerProvider) -> Iterator[str]:
    """Serve prices; give the shop's address."""

    def prices(environ: dict[str, Any], start: Any) -> list[bytes]:
        item = int(environ["QUERY_STRING"].removeprefix("item="))
        start("200 OK", [("Content-Type", "text/plain")])
        return [str(item * 10).encode()]

    application = OpenTelemetryMiddleware(prices, tracer_provider=provider)
    with make_server("127.0.0.1", 0, application, handler_class=_Quiet) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextmanager
def connected(address: str | None) -> Iterator[Client]:
    """Connect to a scheduler that has the bridge, or start a cluster that has."""
    if address is not None:
        with Client(address) as client:
            yield client
        return
    with (
        dask.config.set({"distributed.scheduler.preload": ["dask_otel"]}),
        LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield client


def main() -> None:
    """Make the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scheduler", help="address of a scheduler with the bridge")
    address = parser.parse_args().scheduler
    provider = make_provider("report")
    tracer = provider.get_tracer("examples.one_trace")
    with shop(make_provider("shop")) as url, connected(address) as client:
        client.register_plugin(Traced())
        dask_otel.instrument()
        with tracer.start_as_current_span("request") as request:
            with dask_otel.span("report", attributes={"tenant": "acme"}):
                total = sum(client.gather(client.map(fetch, [url] * 4, range(4), pure=False)))
            trace_id = trace.format_trace_id(request.get_span_context().trace_id)
        client.unregister_worker_plugin(Traced.name)
    provider.shutdown()
    print(f"{total} in trace {trace_id}")


if __name__ == "__main__":
    main()
