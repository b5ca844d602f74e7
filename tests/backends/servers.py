"""The real servers, started with the very files of ``deploy/``.

Ports and paths come in through the environment variables of those files, everything else is what
a user gets. Every function starts a server on free loopback ports with its data under `folder`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from .processes import Server, reserved_ports

REPOSITORY = Path(__file__).resolve().parents[2]
DEPLOY = REPOSITORY / "deploy"

sys.path.insert(0, str(REPOSITORY / "tools"))
import build_backends  # noqa: E402

PINNED = build_backends.load_servers()

#: A server is not there; the text says why and how to get it. A test that asks for it is left out.
Missing = pytest.skip.Exception


def binary(server: str, name: str | None = None) -> str:
    """The path of a built binary; leaves the test out where there is none.

    With ``DASK_OTEL_REQUIRE_BACKENDS=1`` the test fails instead, except where a registry refused
    the server, which no run on this machine could change.
    """
    pinned = PINNED[server]
    state = pinned.state()
    if state == "refused":
        raise Missing(f"{pinned.title}: the registry refused it ({pinned.refusal()})")
    if state == "missing":
        reason = f"{pinned.title} is not built: run `make backends` (see CONTRIBUTING.md)"
        if os.environ.get("DASK_OTEL_REQUIRE_BACKENDS") == "1":
            pytest.fail(f"DASK_OTEL_REQUIRE_BACKENDS=1, and {reason}", pytrace=False)
        raise Missing(reason)
    return str(pinned.binary(name or pinned.pin["binaries"][0]))


@dataclass(frozen=True)
class Running:
    """A running server, with those of its addresses that it has."""

    server: Server
    url: str = ""
    #: OTLP over gRPC and over HTTP, and its own metrics.
    grpc: str = ""
    http: str = ""
    metrics: str = ""

    @property
    def files(self) -> tuple[Path, Path]:
        """Where a sink writes what its two receivers get."""
        return self.server.folder / "first.jsonl", self.server.folder / "second.jsonl"

    def restart(self, kill: bool = False) -> None:
        """Stop it and start it again on the same ports with the same data."""
        self.server.stop(kill)
        self.server.start()


@dataclass(frozen=True)
class _Kind:
    """How one kind of server is started.

    In its texts, the name of a port stands for its address, and ``folder``, ``deploy`` and
    ``config`` for paths.
    """

    program: str
    ports: str
    command: str
    ready: str
    #: Attributes of `Running`.
    addresses: Mapping[str, str]
    environment: Mapping[str, str] = field(default_factory=dict)


_KINDS = {
    "prometheus": _Kind(
        "prometheus",
        "api",
        "--config.file={config} --storage.tsdb.path={folder}/data --web.listen-address={api} "
        "--web.enable-otlp-receiver --enable-feature=exemplar-storage",
        "http://{api}/-/ready",
        {"url": "http://{api}", "http": "http://{api}/api/v1/otlp"},
    ),
    "collector": _Kind(
        "otelcol",
        "grpc http health metrics",
        "",
        "http://{health}/",
        {"grpc": "http://{grpc}", "http": "http://{http}", "metrics": "http://{metrics}/metrics"},
        {
            "OTELCOL_GRPC_ENDPOINT": "{grpc}",
            "OTELCOL_HTTP_ENDPOINT": "{http}",
            "OTELCOL_HEALTH_ENDPOINT": "{health}",
            "OTELCOL_METRICS_HOST": "127.0.0.1",
            "OTELCOL_METRICS_PORT": "{metrics_port}",
            "OTELCOL_QUEUE_DIR": "{folder}/queue",
        },
    ),
    "sink": _Kind(
        "otelcol",
        "grpc http health",
        "--config={config}",
        "http://{health}/",
        {"grpc": "{grpc}", "http": "{http}"},
        {
            "SINK_FIRST_ENDPOINT": "{grpc}",
            "SINK_SECOND_ENDPOINT": "{http}",
            "SINK_HEALTH_ENDPOINT": "{health}",
            "SINK_FOLDER": "{folder}",
        },
    ),
    "jaeger": _Kind(
        "jaeger",
        "grpc http health query query_grpc",
        "--config={deploy}/jaeger/config.yaml",
        "http://{health}/status",
        {"url": "http://{query}", "grpc": "http://{grpc}", "http": "http://{http}"},
        {
            "JAEGER_OTLP_GRPC_ENDPOINT": "{grpc}",
            "JAEGER_OTLP_HTTP_ENDPOINT": "{http}",
            "JAEGER_HEALTH_ENDPOINT": "{health}",
            "JAEGER_QUERY_HTTP_ENDPOINT": "{query}",
            "JAEGER_QUERY_GRPC_ENDPOINT": "{query_grpc}",
        },
    ),
    "victorialogs": _Kind(
        "victoria-logs",
        "api",
        "-storageDataPath={folder}/data -httpListenAddr={api}",
        "http://{api}/health",
        {"url": "http://{api}"},
    ),
    "alertmanager": _Kind(
        "alertmanager",
        "api",
        "--config.file={config} --storage.path={folder}/data --web.listen-address={api} "
        "--cluster.listen-address=",
        "http://{api}/-/ready",
        {"url": "http://{api}"},
    ),
}


def local(port: int) -> str:
    return f"127.0.0.1:{port}"


def _start(
    name: str,
    folder: Path,
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    config: Path = Path(),
) -> Running:
    """Start a server on ports that it keeps when it is stopped and started again."""
    kind = _KINDS[name]
    program = binary("collector" if name == "sink" else name, kind.program)
    names = kind.ports.split()
    ports = dict(zip(names, reserved_ports(len(names)), strict=True))
    known: dict[str, object] = {"folder": folder, "deploy": DEPLOY, "config": config}
    known |= {f"{port}_port": str(number) for port, number in ports.items()}
    known |= {port: local(number) for port, number in ports.items()}
    variables, addresses = (
        {key: text.format(**known) for key, text in texts.items()}
        for texts in (kind.environment, kind.addresses)
    )
    command = [program, *(part.format(**known) for part in kind.command.split()), *options]
    ready = kind.ready.format(**known)
    server = Server(name, command, folder, ready, {**variables, **(environment or {})})
    server.start()
    return Running(server, **addresses)


def start_prometheus(
    folder: Path,
    config: Path = DEPLOY / "prometheus" / "prometheus.yml",
    options: Sequence[str] = (),
) -> Running:
    """Prometheus with the OTLP receiver and exemplars, as `config` says; `options` come last."""
    return _start("prometheus", folder, options, config=config)


def start_collector(
    folder: Path,
    environment: Mapping[str, str],
    configs: Sequence[Path | str] = (DEPLOY / "collector" / "config.yaml",),
) -> Running:
    """The Collector with `configs` (files, or ``yaml:`` settings); `environment` names backends."""
    return _start("collector", folder, [f"--config={config}" for config in configs], environment)


def backends(
    jaeger: str | None = None,
    tempo: str | None = None,
    prometheus: str | None = None,
    logs: str | None = None,
) -> dict[str, str]:
    """The Collector's environment: OTLP addresses of its backends; those without one are down."""
    down = local(reserved_ports(1)[0])
    return {
        "JAEGER_OTLP_ENDPOINT": (jaeger or down).removeprefix("http://"),
        "TEMPO_OTLP_ENDPOINT": (tempo or down).removeprefix("http://"),
        "PROMETHEUS_OTLP_ENDPOINT": prometheus or f"http://{down}",
        "LOKI_OTLP_ENDPOINT": logs or f"http://{down}/otlp",
    }


def start_sink(folder: Path) -> Running:
    """A second Collector that writes what it receives to files, one per receiver.

    It takes the place of a traces backend where only the Collector itself is tested: what leaves
    it, and that nothing is lost on the way. It says nothing about Jaeger or Tempo.
    """
    return _start("sink", folder, config=Path(__file__).with_name("sink.yaml"))


#: Jaeger with traces in memory.
start_jaeger = partial(_start, "jaeger")
#: VictoriaLogs alone. Its ``url`` takes OTLP below ``/insert/opentelemetry``.
start_victorialogs = partial(_start, "victorialogs")


def start_alertmanager(folder: Path, config: Path) -> Running:
    """Alertmanager alone, without a cluster."""
    return _start("alertmanager", folder, config=config)
