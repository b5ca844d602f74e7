"""The steps of ``dask-otel demo``.

The bridge in the demo's scheduler writes files (``otel.files.path``), and the demo prints the
report of these files. If the standard variables name an endpoint, or if something listens at the
default one, the bridge also exports there.
"""

from __future__ import annotations

import io
import logging
import os
import shlex
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeAlias

import dask.config
from distributed import Client, span
from rich.console import Console
from rich.text import Text

import dask_otel
from dask_otel import semconv
from dask_otel._otel.sdk.environment import defaults_for_environment, is_disabled
from dask_otel.cli import terminal
from dask_otel.cli.cluster import (
    PRELOAD,
    WORKERS,
    configured_environment,
    observed_cluster,
)
from dask_otel.cli.report import judged
from dask_otel.cli.terminal import DemoError
from dask_otel.client.traces import trace_context
from dask_otel.core import identity
from dask_otel.core.graph import SUFFIX
from dask_otel.report import words
from dask_otel.report.document import Report, read_report
from dask_otel.report.text import Line, Sheet, report_lines
from dask_otel.settings.problems import ConfigurationError


def _load_workflow() -> Any:
    """Import the example: it is in the installed package, or in a checkout."""
    package = Path(dask_otel.__file__).parent
    packed, checkout = package / "_examples", package.parents[1] / "examples"
    # Workers import it too: they start with the same path.
    sys.path.append(str(packed if packed.exists() else checkout))
    return import_module("demo_workflow")


workflow: Final = _load_workflow()

DEFAULT_OUTPUT: Final = Path("dask-otel-demo")
#: OTLP's default destination: host and port, and as an endpoint.
_DEFAULT_ADDRESS: Final = ("localhost", 4317)
_DEFAULT_ENDPOINT: Final = "http://localhost:4317"
#: Seconds to wait for the root span: a heartbeat or two, then the bridge's linger.
SETTLE_LIMIT: Final = 20.0
#: Seconds to wait until a worker is lost.
_LOSS_LIMIT: Final = 5.0
#: Most columns of the text.
_WIDE: Final = 160

_ABOUT: Final = (
    "Ran a workflow on a new cluster, and ended one of its idle workers on purpose.",
    "New workers import pandas and pyarrow with their first tasks.",
)
_WRITTEN: Final = "Jaeger's UI and the Collector can read the files in"
_SWITCHED_OFF: Final = """\
the bridge is switched off: `otel.enabled` is false in Dask's configuration.
Set it to true in the Dask config file with `otel:`, or run with DASK_OTEL__ENABLED=true."""
_NOTHING_CAME: Final = """\
the workflow ran, but the bridge exported no {what}.
Is there a message of dask-otel above? Another cause: the program runs under
`opentelemetry-instrument`, whose own exporter got the spans."""

#: Prints the title of a step while it runs, and then its duration.
_Step: TypeAlias = Callable[[str], AbstractContextManager[None]]


def perform(
    *, quick: bool, fail: bool, output: Path | None, console: Console | None = None
) -> None:
    """Run the demo with the command's options, and print the result on a console.

    Raises
    ------
    DemoError
        If a step failed. The earlier results have been printed.
    """
    if not dask.config.get("otel.enabled", True):
        raise DemoError(_SWITCHED_OFF)
    if output is not None:
        _check_writable(output)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name that the terminal's encoding lacks must not end the demo.
        sys.stdout.reconfigure(errors="replace")
    console = console or Console(highlight=False)
    sent, endpoint = _destinations(console)
    with tempfile.TemporaryDirectory(prefix="dask-otel-demo-") as temporary:
        data, files = Path(temporary, "data"), Path(temporary, "files")
        with terminal.held_back("distributed.dask_otel") as messages:
            failure = _compute(partial(_step, console), data, files, endpoint, quick, fail)
        try:
            report = judged("demo", read_report(files), limited=True)
        except FileNotFoundError:
            report = Report([])
        folder = output or (None if sent else DEFAULT_OUTPUT)
        command = f"dask-otel report {shlex.quote(str(folder))}" if folder else ""
        is_recorded = folder and any(files.glob(f"*{SUFFIX}"))
        replay = f"dask-otel whatif {shlex.quote(str(folder))}" if is_recorded else ""
        _print(console, [*([(line, "dim")] for line in _ABOUT), []])
        sheet = Sheet(min(console.width, _WIDE), command=command, replay=replay)
        _print(console, report_lines(report.accounts(), report.skipped, sheet))
        for curve in filter(None, ([*one.curve(sheet.width)] for one in report.what_ifs)):
            title: Line = [("The same run with other threads, replayed", "bold")]
            _print(console, [title, *([(line, "")] for line in curve), []])
        for message in messages:
            print(message, file=sys.stderr)
        unread = [f"can't read the bridge's files: {line}" for line in report.skipped.lines()]
        errors = [*unread, *_missing(report), *_unexpected(fail, failure)]
        if folder is not None:
            errors += _copy(console, files, folder)
    if errors:
        raise DemoError("\n".join(errors))


def _check_writable(path: Path) -> None:
    """Fail before the work if the path is not writable."""
    parent = path.absolute().parent
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise DemoError(f"can't write {path}: no such directory, or no permission")
    if path.exists() and not path.is_dir():
        raise DemoError(f"can't write {path}: it is no directory")


def _destinations(console: Console) -> tuple[bool, str | None]:
    """Print the destinations besides files; return if there are any, and the default endpoint."""
    # Imports the SDK.
    from dask_otel._otel.sdk.exporters import is_named, labels

    if is_disabled(configured_environment()):
        console.print("OTEL_SDK_DISABLED is set: the telemetry goes only to files.", style="yellow")
        return False, None
    with defaults_for_environment(configured_environment()):
        named = [signal for signal in ("traces", "metrics") if is_named(signal)]
        try:
            places = list(dict.fromkeys(place for signal in named for place in labels(signal)))
        except ConfigurationError as error:
            raise DemoError(f"can't use the configured endpoint: {error}") from error
    endpoint = _DEFAULT_ENDPOINT if not named and _listens(_DEFAULT_ADDRESS) else None
    for place in [endpoint] if endpoint else places:
        console.print(f"The telemetry goes to {place}, too.", style="green")
    return bool(places or endpoint), endpoint


def _listens(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, 1.0).close()
    except OSError:
        return False
    return True


@contextmanager
def _step(console: Console, title: str) -> Iterator[None]:
    """Print a step while it runs, and then its duration where that stays readable."""
    begin = time.monotonic()
    mark = ("✗", "red")
    spinner = "line" if console.options.ascii_only else "dots"
    try:
        # A pipe has no animation: only the last line is written.
        with console.status(_adapted(console)(f"{title} …"), spinner=spinner):
            yield
        mark = ("✓", "green")
    finally:
        # On a terminal, the steps make room for the result.
        if mark[0] == "✗" or not console.is_terminal:
            took = words.seconds(time.monotonic() - begin)
            _print(console, [[mark, (f" {title} ", ""), (took, "dim")]])


def _compute(
    step: _Step, data: Path, files: Path, endpoint: str | None, quick: bool, fail: bool
) -> Exception | None:
    """Run the workflow on a cluster that writes `files`; return its exception, if any."""
    size = workflow.QUICK if quick else workflow.FULL
    failure: Exception | None = None
    with step("Generating the data"):
        workflow.generate(data, size, broken=fail)
    with ExitStack() as cluster:
        with step(f"Starting a cluster of {WORKERS} workers with {PRELOAD}"):
            # An intended failure belongs in the trace, not in the worker's log.
            level = logging.CRITICAL if fail else logging.ERROR
            try:
                client = cluster.enter_context(observed_cluster(files, endpoint, level))
            except Exception as error:
                # Ports, memory, a broken Dask configuration: Dask's message names the cause.
                raise DemoError(f"the cluster did not start: {error}") from error
        with span(workflow.ROOT) as root_id:
            try:
                workflow.run(client, data, size, step)
            except Exception as error:  # noqa: BLE001 - whatever it is, its trace counts
                failure = error
        with step("Waiting for the spans to settle"):
            # Without a bridge, no span will be written.
            if trace_context(root_id, client).decided:
                _wait_for_span(files, identity.span_id(root_id))
        with step("Losing a worker"):
            _lose_a_worker(client)
        with step("Closing the cluster"):
            cluster.close()
    return failure


def _lose_a_worker(client: Client) -> None:
    """End the process of an idle worker, after a last line in its log."""
    workers = client.scheduler_info()["workers"]
    client.run(_end, workers=[next(iter(workers))])
    terminal.wait_until(lambda: len(client.scheduler_info()["workers"]) < len(workers), _LOSS_LIMIT)


def _end() -> None:
    log = logging.getLogger("demo")
    # Otherwise Python prints it.
    log.addHandler(logging.NullHandler())
    log.error("This worker ends now: it is part of the demo")
    # For the record to leave the process.
    threading.Timer(0.3, os._exit, [1]).start()


def _wait_for_span(files: Path, span_id: int) -> None:
    """Wait until a span has been written, or for `SETTLE_LIMIT` seconds."""
    wanted = f'"spanId":"{span_id:016x}"'
    terminal.wait_until(
        lambda: any(wanted in path.read_text("utf-8") for path in files.glob("*-traces.jsonl")),
        SETTLE_LIMIT,
    )


def _adapted(console: Console) -> Callable[[str], str]:
    return words.in_ascii if console.options.ascii_only else str


def _print(console: Console, lines: Iterable[Line]) -> None:
    adapted = _adapted(console)
    for line in lines:
        pieces = ((adapted(words.one_line(piece)), style) for piece, style in line)
        console.print(Text.assemble(*pieces), soft_wrap=True)


def _copy(console: Console, files: Path, folder: Path) -> list[str]:
    """Copy the files to their final place; return the problems."""
    if not files.exists():
        return []
    try:
        folder.mkdir(exist_ok=True)
        for path in files.iterdir():
            shutil.copy(path, folder)
    except OSError as error:
        return [f"can't write the telemetry: {error}"]
    console.print(_WRITTEN, Text(f"{folder}/"), style="green", soft_wrap=True)
    return []


def _missing(report: Report) -> list[str]:
    """Return the telemetry that is missing in the export."""
    names = []
    if not any(run.spans for run in report.runs):
        names.append("spans")
    if not any(run.metrics.total(semconv.SPAN_EXECUTE_TIME.name) for run in report.runs):
        names.append("metrics of the workers")
    return [_NOTHING_CAME.format(what=" and no ".join(names))] if names else []


def _unexpected(fail: bool, failure: Exception | None) -> list[str]:
    """Return the differences between the requested outcome and the workflow's."""
    if fail and not isinstance(failure, workflow.BadData):
        return [f"the workflow should have failed with BadData, but: {failure or 'it succeeded'}"]
    if failure and not fail:
        return [f"the workflow failed: {type(failure).__name__}: {failure}"]
    return []
