"""The real servers, started with the very files of ``deploy/``.

Ports and paths come in through the environment variables of those files, everything else is what
a user gets. Every function starts a server on free loopback ports with its data under `folder`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .processes import Server, free_ports, start_on_free_ports

REPOSITORY = Path(__file__).resolve().parents[2]
DEPLOY = REPOSITORY / "deploy"

sys.path.insert(0, str(REPOSITORY / "tools"))
import build_backends  # noqa: E402

PINNED = build_backends.load_servers()


class Missing(Exception):
    """A server is not there; the text says why and how to get it."""


def binary(server: str, name: str | None = None) -> str:
    """The path of a built binary.

    Raises
    ------
    Missing
        If it was not built. `Refused` if that is because a registry refused it.
    """
    pinned = PINNED[server]
    state = pinned.state()
    if state == "refused":
        raise Refused(f"{pinned.title}: the registry refused it ({pinned.refusal()})")
    if state == "missing":
        raise Missing(f"{pinned.title} is not built: run `make backends` (needs Go)")
    return str(pinned.binary(name or pinned.pin["binaries"][0]))


class Refused(Missing):
    """A registry refused the server: nothing here can change that."""


@dataclass(frozen=True)
class Running:
    """A running server; the addresses it has are in the subclasses."""

    server: Server

    def stop(self) -> None:
        self.server.stop()

    def restart(self) -> None:
        """Stop it and start it again on the same ports with the same data."""
        self.server.stop()
        self.server.start()


@dataclass(frozen=True)
class Prometheus(Running):
    url: str

    @property
    def otlp(self) -> str:
        """The OTLP/HTTP base, as the Collector wants it."""
        return f"{self.url}/api/v1/otlp"

    @property
    def otlp_metrics(self) -> str:
        """The OTLP/HTTP endpoint for metrics, as the SDK's ``endpoint=`` wants it."""
        return f"{self.otlp}/v1/metrics"


@dataclass(frozen=True)
class Collector(Running):
    grpc: str
    http: str
    metrics: str


@dataclass(frozen=True)
class Sink(Running):
    """A second Collector that writes what it receives to files, one per receiver.

    It takes the place of a traces backend where only the Collector itself is tested: what leaves
    it, and that nothing is lost on the way. It says nothing about Jaeger or Tempo.
    """

    first_grpc: str
    second_grpc: str

    @property
    def first(self) -> Path:
        return self.server.folder / "first.jsonl"

    @property
    def second(self) -> Path:
        return self.server.folder / "second.jsonl"


@dataclass(frozen=True)
class Jaeger(Running):
    url: str
    grpc: str
    http: str


@dataclass(frozen=True)
class Tempo(Running):
    url: str
    grpc: str
    http: str


@dataclass(frozen=True)
class Alertmanager(Running):
    url: str


def _start(running: Running) -> None:
    running.server.start()


def local(port: int) -> str:
    return f"127.0.0.1:{port}"


def start_prometheus(
    folder: Path,
    config: Path = DEPLOY / "prometheus" / "prometheus.yml",
    options: Sequence[str] = (),
) -> Prometheus:
    """Prometheus with the OTLP receiver and exemplars, as `config` says; `options` come last."""
    program = binary("prometheus", "prometheus")

    def make() -> Prometheus:
        (port,) = free_ports(1)
        url = f"http://{local(port)}"
        command = [
            program,
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={local(port)}",
            "--web.enable-otlp-receiver",
            "--enable-feature=exemplar-storage",
            *options,
        ]
        return Prometheus(Server("prometheus", command, folder, f"{url}/-/ready"), url)

    return start_on_free_ports(make, _start)


def start_collector(
    folder: Path,
    environment: Mapping[str, str],
    configs: Sequence[Path | str] = (DEPLOY / "collector" / "config.yaml",),
) -> Collector:
    """The Collector with `configs` (files, or ``yaml:`` settings); `environment` names backends."""
    program = binary("collector")

    def make() -> Collector:
        grpc, http, health, metrics = free_ports(4)
        command = [program, *(f"--config={config}" for config in configs)]
        variables = {
            "OTELCOL_GRPC_ENDPOINT": local(grpc),
            "OTELCOL_HTTP_ENDPOINT": local(http),
            "OTELCOL_HEALTH_ENDPOINT": local(health),
            "OTELCOL_METRICS_HOST": "127.0.0.1",
            "OTELCOL_METRICS_PORT": str(metrics),
            "OTELCOL_QUEUE_DIR": str(folder / "queue"),
            **environment,
        }
        server = Server("collector", command, folder, f"http://{local(health)}/", variables)
        return Collector(
            server,
            f"http://{local(grpc)}",
            f"http://{local(http)}",
            f"http://{local(metrics)}/metrics",
        )

    return start_on_free_ports(make, _start)


def behind_collector(sink: Sink, prometheus_otlp: str, **more: str) -> dict[str, str]:
    """The Collector's environment: the sink in place of the traces backends, and Prometheus."""
    return {
        "JAEGER_OTLP_ENDPOINT": sink.first_grpc,
        "TEMPO_OTLP_ENDPOINT": sink.second_grpc,
        "PROMETHEUS_OTLP_ENDPOINT": prometheus_otlp,
        **more,
    }


def start_sink(folder: Path) -> Sink:
    """A Collector that writes the spans that it receives to two files."""
    program = binary("collector")
    config = Path(__file__).with_name("sink.yaml")

    def make() -> Sink:
        first, second, health = free_ports(3)
        variables = {
            "SINK_FIRST_ENDPOINT": local(first),
            "SINK_SECOND_ENDPOINT": local(second),
            "SINK_HEALTH_ENDPOINT": local(health),
            "SINK_FOLDER": str(folder),
        }
        command = [program, f"--config={config}"]
        server = Server("sink", command, folder, f"http://{local(health)}/", variables)
        return Sink(server, local(first), local(second))

    return start_on_free_ports(make, _start)


def start_jaeger(folder: Path) -> Jaeger:
    """Jaeger with traces in memory."""
    program = binary("jaeger")

    def make() -> Jaeger:
        grpc, http, health, query, query_grpc = free_ports(5)
        variables = {
            "JAEGER_OTLP_GRPC_ENDPOINT": local(grpc),
            "JAEGER_OTLP_HTTP_ENDPOINT": local(http),
            "JAEGER_HEALTH_ENDPOINT": local(health),
            "JAEGER_QUERY_HTTP_ENDPOINT": local(query),
            "JAEGER_QUERY_GRPC_ENDPOINT": local(query_grpc),
        }
        command = [program, f"--config={DEPLOY / 'jaeger' / 'config.yaml'}"]
        ready = f"http://{local(health)}/status"
        server = Server("jaeger", command, folder, ready, variables)
        return Jaeger(
            server, f"http://{local(query)}", f"http://{local(grpc)}", f"http://{local(http)}"
        )

    return start_on_free_ports(make, _start)


def start_tempo(folder: Path) -> Tempo:
    """Tempo in one process, with its blocks on disk."""
    program = binary("tempo")

    def make() -> Tempo:
        api, api_grpc, grpc, http, gossip = free_ports(5)
        command = [
            program,
            f"-config.file={DEPLOY / 'tempo' / 'tempo.yaml'}",
            "-config.expand-env=true",
        ]
        variables = {
            "TEMPO_LISTEN_HOST": "127.0.0.1",
            "TEMPO_HTTP_PORT": str(api),
            "TEMPO_GRPC_PORT": str(api_grpc),
            "TEMPO_OTLP_GRPC_ENDPOINT": local(grpc),
            "TEMPO_OTLP_HTTP_ENDPOINT": local(http),
            "TEMPO_MEMBERLIST_PORT": str(gossip),
            "TEMPO_DATA": str(folder / "data"),
        }
        server = Server("tempo", command, folder, f"http://{local(api)}/ready", variables)
        return Tempo(
            server, f"http://{local(api)}", f"http://{local(grpc)}", f"http://{local(http)}"
        )

    return start_on_free_ports(make, _start)


def start_alertmanager(folder: Path, config: Path) -> Alertmanager:
    """Alertmanager alone, without a cluster."""
    program = binary("alertmanager", "alertmanager")

    def make() -> Alertmanager:
        (port,) = free_ports(1)
        url = f"http://{local(port)}"
        command = [
            program,
            f"--config.file={config}",
            f"--storage.path={folder / 'data'}",
            f"--web.listen-address={local(port)}",
            "--cluster.listen-address=",
        ]
        return Alertmanager(Server("alertmanager", command, folder, f"{url}/-/ready"), url)

    return start_on_free_ports(make, _start)
