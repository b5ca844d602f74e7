#!/usr/bin/env python3
"""Try an installed dask-otel: its commands, its files, and a span that arrives.

Run it with the Python of an environment that has nothing but the package, from outside of the
checkout: ``python smoke.py VERSION DEPLOY``, with the version that must be there and the folder
that ``dask-otel assets`` must write out. It needs no package but what dask-otel itself needs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

COMMAND = str(Path(sysconfig.get_path("scripts")) / "dask-otel")
DEADLINE = 120.0


def check(condition: object, what: str) -> None:
    """End with an error if a condition does not hold."""
    if not condition:
        sys.exit(f"smoke test: {what}")


def output(*arguments: str) -> str:
    """The output of the installed command."""
    done = subprocess.run([COMMAND, *arguments], capture_output=True, text=True, timeout=DEADLINE)
    check(done.returncode == 0, f"dask-otel {' '.join(arguments)}: {done.stderr}")
    return done.stdout


def check_commands(wanted: str) -> None:
    """The package is the installed one, and every part of it can be imported."""
    import dask_otel

    package = Path(dask_otel.__file__).resolve()
    check(package.is_relative_to(Path(sys.prefix).resolve()), f"not installed: {package}")
    check(version("dask-otel") == wanted, f"version {version('dask-otel')}, not {wanted}")
    check(output("--version").startswith(f"dask-otel {wanted},"), "--version says another one")
    dask = [str(Path(COMMAND).with_name("dask")), "otel", "--version"]
    done = subprocess.run(dask, capture_output=True, text=True, timeout=DEADLINE)
    check(done.stdout.startswith(f"dask-otel {wanted},"), f"dask otel: {done.stdout}{done.stderr}")
    check((package.parent / "py.typed").is_file(), "py.typed is missing")
    for name in dask_otel.__all__:
        getattr(dask_otel, name)


def files(folder: Path) -> dict[str, bytes]:
    """The content of a folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def check_assets(deploy: Path) -> int:
    """The package carries the files of the checkout."""
    with tempfile.TemporaryDirectory() as made:
        output("assets", made)
        written, wanted = files(Path(made)), files(deploy)
    check(wanted, f"nothing is in {deploy}")
    differing = sorted({name for name, _ in written.items() ^ wanted.items()})
    check(not differing, f"dask-otel assets writes others than {deploy}: {differing}")
    return len(written)


class _Handler(BaseHTTPRequestHandler):
    """Takes OTLP over HTTP, and keeps the bodies by path."""

    bodies: ClassVar[dict[str, list[bytes]]] = {"/v1/traces": [], "/v1/metrics": []}

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.bodies[self.path].append(body)
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Print nothing."""


def missing() -> list[str]:
    """The names, of a span and of a metric, that have not arrived: they are text in the bodies."""
    wanted = {"/v1/traces": b"smoke test", "/v1/metrics": b"dask.span.execute.time"}
    return [
        name.decode()
        for path, name in wanted.items()
        if not any(name in body for body in list(_Handler.bodies[path]))
    ]


def check_telemetry() -> None:
    """A cluster as a person starts it, with the preload: its span and metrics arrive."""
    import dask
    from distributed import Client, LocalCluster, span

    import dask_otel

    receiver = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    os.environ |= {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{receiver.server_port}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_METRIC_EXPORT_INTERVAL": "1000",
    }
    settings = {
        "distributed.scheduler.preload": ["dask_otel"],
        # A busy machine may take longer for the last export than an operator should wait.
        "otel.close-timeout": "60s",
    }
    with (
        dask.config.set(settings),
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as client,
    ):
        with span("smoke test") as span_id:
            check(client.submit(pow, 2, 3).result() == 8, "Dask itself computes wrongly")
        # Workers report with their heartbeats: this waits until they have.
        found = dask_otel.span_metrics(client, span_id)
        check(found.result == "success", f"the span's result: {found}")
    # The close of the scheduler has exported everything.
    until = time.monotonic() + DEADLINE
    while missing() and time.monotonic() < until:
        time.sleep(0.1)
    check(not missing(), f"{missing()} have not arrived")
    receiver.shutdown()


def main() -> None:
    """Check everything, and print a summary."""
    wanted, deploy = sys.argv[1:]
    check_commands(wanted)
    count = check_assets(Path(deploy))
    check_telemetry()
    parts = ("distributed", "opentelemetry-sdk")
    print(
        f"Python {sys.version.split()[0]}, dask-otel {wanted}:"
        f" commands, {count} files, a span and its metrics"
        f" ({', '.join(f'{name} {version(name)}' for name in parts)})"
    )


if __name__ == "__main__":
    main()
