"""What ``dask-otel demo`` does, step by step.

The bridge in the demo's scheduler writes files (``otel.files.path``), and what is in them is
shown: what left the process, not what was meant to. Where the standard variables name an endpoint,
or something listens at the default one, the bridge itself exports there, too.
"""

from __future__ import annotations

import io
import logging
import os
import re
import shlex
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from distributed import Client, span
from rich.console import Console, Group, RenderableType
from rich.text import Text

import dask_otel
from dask_otel.cli.cluster import (
    PRELOAD,
    WORKERS,
    configured_environment,
    is_disabled,
    observed_cluster,
)
from dask_otel.cli.terminal import DemoError
from dask_otel.client.traces import trace_context
from dask_otel.core import identity
from dask_otel.report import words as text
from dask_otel.report.telemetry.model import Run
from dask_otel.report.telemetry.reading import Reader
from dask_otel.report.terminal.time_table import TimeTable, time_by_span
from dask_otel.report.terminal.trace_tree import TraceTree, build_trees, late_starts, span_names
from dask_otel.settings.problems import ConfigurationError


def _load_workflow() -> Any:
    """Import the example: it is in the installed package, or in a checkout."""
    package = Path(dask_otel.__file__).parent
    packed, checkout = package / "_examples", package.parents[1] / "examples"
    # Workers import it, too: they are started with the same path.
    sys.path.append(str(packed if packed.exists() else checkout))
    return import_module("demo_workflow")


workflow: Final = _load_workflow()

DEFAULT_OUTPUT: Final = Path("dask-otel-demo")
#: Where OTLP goes if nothing says where: host and port, and as an endpoint.
_DEFAULT_ADDRESS: Final = ("localhost", 4317)
_DEFAULT_ENDPOINT: Final = "http://localhost:4317"
#: Seconds to wait for the root span: a heartbeat or two, then the bridge's linger.
SETTLE_LIMIT: Final = 20.0
SVG_WIDTH: Final = 112

_NOTHING_CAME: Final = """\
the workflow ran, but the bridge exported no {what}.
Is there a message of dask-otel above? Other causes: `otel:` in a Dask config file switches it
off, or the program runs under `opentelemetry-instrument`, whose own exporter got the spans."""


_LATE: Final = (
    "Threads are idle until the first task begins: for the first span that is late, as the "
    "workers are fresh and import what its tasks need. Workers that have run for a while do not."
)


@dataclass(frozen=True)
class Options:
    """The command's options."""

    quick: bool = False
    fail: bool = False
    output: Path | None = None
    svg: Path | None = None


def perform(options: Options) -> None:
    """Run the demo.

    Raises
    ------
    DemoError
        Where a step failed. What could be shown until then has been shown.
    """
    _check_writable(options)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name that the terminal's encoding can't show must not end the demo.
        sys.stdout.reconfigure(errors="replace")
    console = Console(highlight=False)
    sent, endpoint = _destinations(console)
    with tempfile.TemporaryDirectory(prefix="dask-otel-demo-") as temporary:
        folder = Path(temporary)
        with _Messages() as said:
            failure = _compute(options, console, folder, endpoint)
        run = _read(folder / "files")
        result = _result(run)
        console.print()
        console.print(result)
        console.print()
        if options.svg is not None:
            _save_svg(options.svg, _result(run, brief=True))
        for line in said.lines:
            print(line, file=sys.stderr)
        errors = [*_missing(run), *_unexpected(options, failure)]
        if options.output is not None or not sent:
            errors += _copy(console, folder / "files", options.output or DEFAULT_OUTPUT)
    if errors:
        raise DemoError("\n".join(errors))


def _check_writable(options: Options) -> None:
    """Fail before the work, not after it."""
    for path in (options.output, options.svg):
        if path is None:
            continue
        parent = path.absolute().parent
        if not parent.is_dir() or not os.access(parent, os.W_OK):
            raise DemoError(f"can't write {path}: no such directory, or no permission")
        if path.exists() and path.is_dir() != (path is options.output):
            kind = "no" if path is options.output else "a"
            raise DemoError(f"can't write {path}: it is {kind} directory")


def _destinations(console: Console) -> tuple[bool, str | None]:
    """Say where the telemetry goes beside the files: whether anywhere, and the default endpoint."""
    # Imports the SDK.
    from dask_otel._otel.sdk.environment import defaults_for_environment
    from dask_otel._otel.sdk.exporters import is_named, labels

    if is_disabled(configured_environment()):
        console.print("OTEL_SDK_DISABLED: the telemetry goes to files alone.", style="yellow")
        return False, None
    with defaults_for_environment(configured_environment()):
        named = [signal for signal in ("traces", "metrics") if is_named(signal)]
        try:
            places = {place: None for signal in named for place in labels(signal)}
        except ConfigurationError as error:
            raise DemoError(f"can't use the configured endpoint: {error}") from error
    if named:
        for place in places:
            console.print(f"The telemetry goes to {place}, too.", style="green")
        return bool(places), None
    if not _listens(_DEFAULT_ADDRESS):
        return False, None
    console.print(f"The telemetry goes to {_DEFAULT_ENDPOINT}, too.", style="green")
    return True, _DEFAULT_ENDPOINT


def _listens(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, 1.0).close()
    except OSError:
        return False
    return True


class _Messages(logging.Handler):
    """Keeps the bridge's warnings for the end, each once: the terminal belongs to the demo."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: dict[str, None] = {}
        self._logger = logging.getLogger("distributed.dask_otel")

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message."""
        self.lines[record.getMessage()] = None

    def __enter__(self) -> _Messages:
        self._before = self._logger.level, self._logger.propagate
        self._logger.setLevel(logging.WARNING)
        self._logger.propagate = False
        self._logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
        self._logger.level, self._logger.propagate = self._before


class _Steps:
    """Shows what is being done, and what has been done in which time."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._marks = text.glyphs(console.options.ascii_only)

    @contextmanager
    def __call__(self, title: str) -> Iterator[None]:
        begin = time.monotonic()
        mark, style = self._marks.failed, "red"
        spinner = "line" if self._console.options.ascii_only else "dots"
        try:
            # On a pipe nothing moves: only the line at the end is written.
            with self._console.status(f"{title} {self._marks.ellipsis}", spinner=spinner):
                yield
            mark, style = self._marks.done, "green"
        finally:
            took = text.seconds(time.monotonic() - begin)
            self._console.print(Text.assemble((mark, style), f" {title} ", (took, "dim")))


def _compute(
    options: Options, console: Console, folder: Path, endpoint: str | None
) -> Exception | None:
    """Run the workflow, with files in `folder`; return how it failed."""
    step = _Steps(console)
    size = workflow.QUICK if options.quick else workflow.FULL
    failure: Exception | None = None
    data, files = folder / "data", folder / "files"
    with step("Generating the data"):
        workflow.generate(data, size, broken=options.fail)
    with ExitStack() as cluster:
        with step(f"Starting a cluster of {WORKERS} workers with {PRELOAD}"):
            # A task that is to fail is shown in the trace, not by the worker's log.
            level = logging.CRITICAL if options.fail else logging.ERROR
            client = _start(cluster, files, endpoint, level)
        with span(workflow.ROOT) as root_id:
            try:
                workflow.run(client, data, size, step)
            except Exception as error:  # noqa: BLE001 - whatever it is, its trace counts
                failure = error
        with step("Waiting for the spans to settle"):
            # Without a bridge nothing will come.
            if trace_context(root_id, client).decided:
                _wait_for_span(files, identity.span_id(root_id))
        with step("Closing the cluster"):
            cluster.close()
    return failure


def _start(stack: ExitStack, files: Path, endpoint: str | None, log_level: int) -> Client:
    try:
        return stack.enter_context(observed_cluster(files, endpoint, log_level))
    except Exception as error:
        # Ports, memory, a broken Dask configuration: Dask's text says what.
        raise DemoError(f"the cluster did not start: {error}") from error


def _wait_for_span(files: Path, span_id: int) -> None:
    """Wait until a span has been written, or for `SETTLE_LIMIT` seconds."""
    wanted = f'"spanId":"{span_id:016x}"'
    deadline = time.monotonic() + SETTLE_LIMIT
    while time.monotonic() < deadline:
        if any(wanted in path.read_text("utf-8") for path in files.glob("*-traces.jsonl")):
            return
        time.sleep(0.1)


def _read(files: Path) -> Run:
    """Return what the bridge has written, of its one run."""
    reader = Reader()
    try:
        reader.read([files])
    except FileNotFoundError:
        return Run("", "")
    if reader.skipped.counts:
        raise DemoError(f"can't read what the bridge has written: {reader.skipped.lines()[0]}")
    runs = reader.runs()
    return runs[0] if runs else Run("", "")


def _copy(console: Console, files: Path, folder: Path) -> list[str]:
    """Copy the files to where they stay; return what went wrong."""
    if not files.exists():
        return []
    try:
        folder.mkdir(exist_ok=True)
        written = [shutil.copy(path, folder) for path in sorted(files.iterdir())]
    except OSError as error:
        return [f"can't write the telemetry: {error}"]
    title = "Traces and metrics, for Jaeger's UI (upload) or the Collector (otlpjsonfile receiver):"
    console.print(title, style="green")
    # Paths as they are, on a line of their own: for copying.
    for path in written:
        console.print(Text(f"  {path}"), soft_wrap=True)
    console.print("The same as a page:", style="green")
    console.print(Text(f"  dask-otel report {shlex.quote(str(folder))} --open"), soft_wrap=True)
    return []


def _result(run: Run, *, brief: bool = False) -> RenderableType:
    roots = build_trees(run.spans)
    late = late_starts(roots)
    parts: list[RenderableType] = [
        TraceTree(roots, brief),
        Text(),
        Text("Where did the workers' threads spend their time?", "bold"),
        TimeTable(time_by_span(run.metrics, order=span_names(roots)), late, brief),
    ]
    if late and not brief:
        parts.append(Text(f"\n{_LATE}", "dim"))
    return Group(*parts)


def _missing(run: Run) -> list[str]:
    """Return what should have been exported and was not."""
    names = [] if run.spans else ["spans"]
    if not time_by_span(run.metrics):
        names.append("metrics of the workers")
    return [_NOTHING_CAME.format(what=" and no ".join(names))] if names else []


def _unexpected(options: Options, failure: Exception | None) -> list[str]:
    """Return how the workflow's outcome differs from the one that was asked for."""
    if options.fail:
        if isinstance(failure, workflow.BadData):
            return []
        return [f"the workflow should have failed with BadData, but: {failure or 'it succeeded'}"]
    return [f"the workflow failed: {type(failure).__name__}: {failure}"] if failure else []


def _save_svg(path: Path, result: RenderableType) -> None:
    console = Console(
        record=True,
        width=SVG_WIDTH,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        highlight=False,
    )
    console.print(Text("$ dask-otel demo", "bold"))
    console.print(result)
    svg = console.export_svg(title="dask-otel demo", unique_id="dask-otel-demo")
    # Without rich's web font: a picture in a README loads nothing from elsewhere.
    path.write_text(re.sub(r"@font-face\s*{[^}]*}", "", svg), encoding="utf-8")
